"""Simulated times as tables for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from forestcoll.ui.report import reached, words
from forestcoll.ui.report import table as tables
from forestcoll.verify.simulate import RULE_WORDS

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forestcoll.study.figures import Figures
    from forestcoll.verify.simulate import Timing


def table(
    title: str, figures: Figures, found: Sequence[Timing], model: str, shown: int
) -> RenderableType:
    """A row for each size and rule, and the busiest links of each; what is equal stands once."""
    from rich.console import Group

    heads = ["size", "links", "time", "algbw", "busbw", "of algbw"]
    rows = [
        (
            timing,
            (
                _time(timing.time),
                f"{timing.algbw:.5g} GB/s",
                f"{timing.busbw:.5g} GB/s",
                f"{_percent(timing, figures):.1f} %",
            ),
        )
        for timing in found
    ]
    parts: list[RenderableType] = [
        tables.facts([("simulated", title), *reached.rows(figures), ("model", model)]),
        "",
        tables.columns(heads, _folded(rows), right=(2, 3, 4, 5)),
    ]
    links = [(timing, tuple(_busiest(timing, shown))) for timing in found]
    if any(uses for _, uses in links):
        heads = ["size", "links", "busiest", "bandwidth", "used"]
        each = [[*row[:2], *use] for row in _folded(links) for use in row[2:]]
        parts += ["", tables.columns(heads, each, right=(3, 4))]
    return Group(*parts)


def _folded(rows: Sequence[tuple[Timing, tuple[Any, ...]]]) -> list[list[Any]]:
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


def summary(title: str, figures: Figures, found: Sequence[Timing], model: str) -> dict[str, object]:
    """The same for machines."""
    return {
        "simulated": title,
        **reached.summary(figures),
        "model": model,
        "timings": [{**timing.summary(), "percent": _percent(timing, figures)} for timing in found],
    }


def _percent(timing: Timing, figures: Figures) -> float:
    return 100 * timing.algbw / float(figures.algbw)


def _time(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:.2f} us"
    return words.seconds(microseconds / 1e6)
