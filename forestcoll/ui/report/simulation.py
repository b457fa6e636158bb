"""Simulated times as tables for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from forestcoll.ui.report import reached, words
from forestcoll.ui.report.facts import Fact, Part, grid, views
from forestcoll.verify.simulate import RULE_WORDS

if TYPE_CHECKING:
    from forestcoll.study.figures import Figures
    from forestcoll.verify.simulate import Timing


def _facts(
    title: str, figures: Figures, timings: Sequence[Timing], model: str, shown: int = 0
) -> list[Part]:
    """A row for each size and rule, and the `shown` busiest links of each; equal ones once."""
    shares = [100 * timing.algbw / float(figures.algbw) for timing in timings]
    both = list(zip(timings, shares, strict=True))
    rates = [
        (
            timing,
            (
                words.duration(timing.time),
                f"{timing.algbw:.5g} GB/s",
                f"{timing.busbw:.5g} GB/s",
                f"{share:.1f} %",
            ),
        )
        for timing, share in both
    ]
    links = [(timing, tuple(_busiest(timing, shown))) for timing in timings]
    used = [[*row[:2], *use] for row in _fold(links) for use in row[2:]]
    head = [
        Fact("simulated", title, title),
        *reached.facts(figures),
        Fact("model", model, model),
        Fact("timings", [{**timing.summary(), "percent": share} for timing, share in both]),
    ]
    return [
        head,
        grid(("size", "links", "time", "algbw", "busbw", "of algbw"), _fold(rates), range(2, 6)),
        grid(("size", "links", "busiest", "bandwidth", "used"), used, (3, 4)),
    ]


table, summary = views(_facts)


def _fold(rows: Sequence[tuple[Timing, tuple[Any, ...]]]) -> list[list[Any]]:
    """Size, rules and what is said of them: rules of a size that differ in nothing share a row."""
    rules: dict[tuple[int, tuple[Any, ...]], list[str]] = {}
    for timing, said in rows:
        name = RULE_WORDS[timing.rule] if timing.rule else "own"
        rules.setdefault((timing.size, said), []).append(name)
    return [[words.size(size), ", ".join(names), *said] for (size, said), names in rules.items()]


def _busiest(timing: Timing, most: int) -> Iterator[tuple[str, str, str]]:
    """The busiest links with their bandwidth and use; those alike are one."""
    alike: dict[tuple[str, str], list[str]] = {}
    for use in timing.busiest:
        said = f"{use.bandwidth:.4g} GB/s", f"{100 * use.utilisation:.1f} %"
        alike.setdefault(said, []).append(f"{use.src} -> {use.dst}")
    for (bandwidth, used), names in islice(alike.items(), most):
        more = f" and {len(names) - 1} alike" if len(names) > 1 else ""
        yield f"{names[0]}{more}", bandwidth, used
