"""Simulated times as tables for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from forestcoll.report import table as tables
from forestcoll.report import words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forestcoll.simulate import Timing


def table(title: str, found: Sequence[Timing], best: Fraction | None, shown: int) -> RenderableType:
    """A row for each size and rule, and the busiest links of each."""
    from rich.console import Group

    heads = ["size", "links", "time", "algbw", "busbw", "of the forest"]
    rows = [
        [
            words.size(timing.size),
            timing.rule or "each its own",
            _time(timing.time),
            f"{timing.algbw:.5g} GB/s",
            f"{timing.busbw:.5g} GB/s",
            _share(timing, best),
        ]
        for timing in found
    ]
    parts: list[RenderableType] = [
        tables.facts([("simulated", title), ("algbw", _best(best))]),
        "",
        tables.columns(heads, rows, right=(2, 3, 4, 5)),
    ]
    links = [
        [
            words.size(timing.size),
            timing.rule or "each its own",
            f"{use.src} -> {use.dst}",
            f"{use.bandwidth:.4g} GB/s",
            f"{100 * use.utilisation:.1f} %",
        ]
        for timing in found
        for use in timing.busiest[:shown]
    ]
    if links:
        heads = ["size", "links", "busiest", "bandwidth", "used"]
        parts += ["", tables.columns(heads, links, right=(3, 4))]
    return Group(*parts)


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
