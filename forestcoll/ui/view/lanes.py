"""Time lines: which row each span of a simulated run is drawn in.

A thread block does one thing at a time but where it reads from several ranks at once, and a forest
alone has as many flows for a tree and rank as there are children: those get a lane each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from forestcoll.verify.simulate import Span, Timing


class Row(NamedTuple):
    """A row of a rank: its thread block (of a forest alone its tree) or a proxy of it."""

    rank: int
    proxy: bool
    block: int
    lane: int


def assign_rows(timing: Timing) -> list[tuple[Row, Span]]:
    """Every span with its row, in the order of rows and times; spans of a row do not overlap."""
    ordered = sorted(timing.timeline, key=lambda s: (s.rank, s.proxy, s.block, s.start, s.end))
    found: list[tuple[Row, Span]] = []
    ends: list[float] = []  # per lane of the thread block at hand
    place: tuple[int, bool, int] | None = None
    for span in ordered:
        if place != (span.rank, span.proxy, span.block):
            place, ends = (span.rank, span.proxy, span.block), []
        lane = next((k for k, end in enumerate(ends) if end <= span.start), len(ends))
        ends[lane : lane + 1] = [span.end]
        found.append((Row(*place, lane), span))
    found.sort(key=lambda entry: (entry[0], entry[1].start, entry[1].end))
    return found


def name_row(row: Row, *, trees: bool) -> str:
    """`block 3`, `tree 3`, `block 3 (2)` of its second lane, `block 3 proxy`."""
    what = f"{'tree' if trees else 'block'} {row.block}"
    lane = f" ({row.lane + 1})" if row.lane else ""
    return what + " proxy" * row.proxy + lane


def rates(spans: Sequence[Span], links: int) -> list[list[tuple[float, float]]]:
    """Per link its load over time: (microseconds, GB/s from then on).

    Every transfer counts with its bytes spread evenly over its time, so that peaks of transfers
    which speed up and slow down are flattened.
    """
    changes: list[dict[float, float]] = [{} for _ in range(links)]
    for span in spans:
        if span.links and span.end > span.start:
            rate = span.bytes / (span.end - span.start) / 1000
            for link in span.links:
                at = changes[link]
                at[span.start] = at.get(span.start, 0.0) + rate
                at[span.end] = at.get(span.end, 0.0) - rate
    found = []
    for at in changes:
        total, steps = 0.0, []
        for time in sorted(at):
            total += at[time]
            steps.append((time, max(0.0, total) if abs(total) > 1e-9 else 0.0))
        found.append(steps)
    return found
