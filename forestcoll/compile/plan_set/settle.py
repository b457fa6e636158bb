"""Where one plan of a set takes over from another, by simulated times instead of lines.

The estimate knows latency and bandwidth; messages, slots and thread blocks move the borders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final

from forestcoll.compile.plan_set.estimate import Range, abut
from forestcoll.program import Program
from forestcoll.schedule.forest import Forest
from forestcoll.topology import Topology
from forestcoll.verify import simulate
from forestcoll.verify.simulate import HOP, RANKS, Band, Options, Where

STEP: Final = 4
"""A border is sought in steps of this factor, ..."""
STEPS: Final = 8
"""... this many at most, ..."""
HALVES: Final = 2
"""... and this many times halfway between two of them."""

MANY: Final = 2**26
"""Bytes at which plans for the largest sizes are looked at: more change little."""


def play(program: Program, where: Where, size: int, links: Topology | None) -> Band:
    """Over links in order and links that share; a signal takes HOP, with whatever runtime."""
    options = Options(signal=float(HOP[program.protocol]))
    return simulate.band(program, where, size, links=links, options=options)


def ends_of(
    program: Program, where: Where, links: Topology | None, low: int, high: int
) -> Ends | None:
    """At the least and the most bytes that a plan of a set serves, MANY at most.

    None of more ranks than reports have simulated figures of.
    """
    if program.n > RANKS:
        return None
    sizes = low, last_size(low, high)
    first, last = (simulate.band(program, where, size, links=links) for size in sizes)
    return first, last


def last_size(low: int, high: int) -> int:
    """The largest of a plan's sizes at which it is looked at."""
    return min(high, max(MANY, low))


Ends = tuple[Band, Band]
"""Of a plan at the least of its bytes, and at the most."""
Time = Callable[[int, int], float]
"""(number of a plan, bytes) -> microseconds."""


class Plays:
    """Simulated times of plans, each looked at once; plans by their numbers."""

    def __init__(
        self,
        plan: Callable[[int], tuple[Program, Forest]],
        topology: Topology,
        stage: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._plan, self._topology, self._stage = plan, topology, stage
        self._known: dict[tuple[int, int], Band] = {}

    def band(self, index: int, size: int) -> Band:
        """That of a plan for so many bytes."""
        if (index, size) not in self._known:
            program, forest = self._plan(index)
            with self._stage("play"):
                self._known[index, size] = play(program, forest, size, self._topology)
        return self._known[index, size]

    def time(self, index: int, size: int) -> float:
        """Microseconds over both kinds of links, added up."""
        band = self.band(index, size)
        return band.fifo + band.fair

    def ends(self, index: int, low: int, high: int) -> Ends:
        """As `ends_of` a plan that serves `low` to `high` bytes."""
        ends = ends_of(*self._plan(index), self._topology, low, high)
        assert ends is not None  # plans of more ranks are not played
        return ends


def settle(
    ranges: Sequence[Range], time: Time, until: Sequence[int], low: int, high: int
) -> list[Range]:
    """The same plans in the same order, each from where it is faster than the one before it.

    `until`: per plan the largest size that it serves. The sizes are those from `low` to `high`
    bytes; ranges may lie outside, as the simulated border need not. A plan that is nowhere faster
    goes.
    """
    settled = [Range(low, max(low, ranges[0].high), ranges[0].index)]
    for after in ranges[1:]:
        start = low
        while settled:
            start = _border(settled[-1], after, time, min(until[settled[-1].index], high))
            if start > settled[-1].low:
                break
            start = settled.pop().low
        if start <= high:
            settled.append(Range(start, max(start, after.high), after.index))
    return abut(settled, high)


def clip(ranges: Sequence[Range], low: int, high: int) -> list[Range]:
    """What of the ranges lies from `low` to `high` bytes."""
    clipped = [Range(max(r.low, low), min(r.high, high), r.index) for r in ranges]
    return [r for r in clipped if r.low <= r.high]


def _border(before: Range, after: Range, time: Time, most: int) -> int:
    """The first size at which `after` is faster, as far as the steps tell."""

    def later(size: int) -> bool:
        return time(after.index, size) < time(before.index, size)

    size = min(max(after.low, before.low + 1), most)
    if later(size):  # it takes over sooner: go down until it does not
        good, bad = size, 0
        for _ in range(STEPS):
            if good <= before.low:
                return before.low
            lower = max(before.low, good // STEP)
            if later(lower):
                good = lower
                continue
            bad = lower
            break
    else:
        good, bad = most + 1, size
        for _ in range(STEPS):
            upper = min(most, bad * STEP)
            if upper == bad:
                break
            if later(upper):
                good = upper
                break
            bad = upper
    for _ in range(HALVES):
        middle = round((max(1, bad) * good) ** 0.5)
        if not bad < middle < good:
            break
        if later(middle):
            good = middle
        else:
            bad = middle
    return good
