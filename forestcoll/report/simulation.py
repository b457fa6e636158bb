"""Simulated times as tables for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Any

from forestcoll.report import table as tables
from forestcoll.report import words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forestcoll.simulate import Timing


def table(title: str, found: Sequence[Timing], best: Fraction | None, shown: int) -> RenderableType:
    """A row for each size and rule, and the busiest links of each; what is equal stands once."""
    from rich.console import Group

    heads = ["size", "links", "time", "algbw", "busbw", "of the forest"]
    rows = [
        (
            timing,
            (
                _time(timing.time),
                f"{timing.algbw:.5g} GB/s",
                f"{timing.busbw:.5g} GB/s",
                _share(timing, best),
            ),
        )
        for timing in found
    ]
    parts: list[RenderableType] = [
        tables.facts([("simulated", title), ("algbw", _best(best))]),
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
        name = words.RULES[timing.rule] if timing.rule else "own"
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


def summary(title: str, found: Sequence[Timing], best: Fraction | None) -> dict[str, object]:
    """The same for machines."""
    return {
        "simulated": title,
        "algbw": None if best is None else str(best),
        "timings": [{**timing.summary(), "percent": _percent(timing, best)} for timing in found],
    }


def _best(best: Fraction | None) -> str:
    return (
        "unknown: no forest file beside the plan"
        if best is None
        else (f"{words.exact(best)} GB/s, what the links allow")
    )


def _percent(timing: Timing, best: Fraction | None) -> float | None:
    return None if best is None else 100 * timing.algbw / float(best)


def _share(timing: Timing, best: Fraction | None) -> str:
    percent = _percent(timing, best)
    return "" if percent is None else f"{percent:.1f} %"


def _time(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:.2f} us"
    return words.seconds(microseconds / 1e6)
