"""Where one plan of a set takes over from another, by simulated times instead of lines.

The estimate knows latency and bandwidth; messages, slots and thread blocks move the borders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Final

from forestcoll import simulate
from forestcoll.compile.plan_set.estimate import HOP, Range
from forestcoll.forest import Forest
from forestcoll.program import Program
from forestcoll.simulate import Options
from forestcoll.topology import Topology

STEP: Final = 4
"""A border is sought in steps of this factor, ..."""
STEPS: Final = 8
"""... this many at most, ..."""
HALVES: Final = 2
"""... and this many times halfway between two of them."""

Time = Callable[[int, int], float]
"""(number of a plan, bytes) -> microseconds."""


def play(program: Program, forest: Forest, topology: Topology, size: int) -> float:
    """Microseconds over links that share and over links in order, added up."""
    options = Options(signal=float(HOP[program.protocol]))
    timings = simulate.run_each(program, forest, size, links=topology, options=options)
    return sum(timing.time for timing in timings)


def settle(
    ranges: Sequence[Range], time: Time, until: Sequence[int], low: int, high: int
) -> list[Range]:
    """The same plans in the same order, each from where it is faster than the one before it.

    `until`: per plan the largest size that it serves. The sizes are those from `low` to `high`
    bytes; ranges may lie outside, as the simulated border need not. A plan that is nowhere faster
    goes.
    """
    found = [Range(low, max(low, ranges[0].high), ranges[0].index)]
    for after in ranges[1:]:
        start = low
        while found:
            start = _border(found[-1], after, time, min(until[found[-1].index], high))
            if start > found[-1].low:
                break
            start = found.pop().low
        if start <= high:
            found.append(Range(start, max(start, after.high), after.index))
    return [
        Range(here.low, high if after is None else after.low - 1, here.index)
        for here, after in zip_longest(found, found[1:])
    ]


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
