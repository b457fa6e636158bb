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
"""A border is sought in steps of this factor, and once between two of them."""
STEPS: Final = 8
"""Steps at most."""

Time = Callable[[int, int], float]
"""(number of a plan, bytes) -> microseconds."""


def play(program: Program, forest: Forest, topology: Topology, size: int) -> float:
    """Microseconds over links that share and over links in order, added up."""
    options = Options(signal=float(HOP[program.protocol]))
    timings = simulate.run_each(program, forest, size, links=topology, options=options)
    return sum(timing.time for timing in timings)


def settle(ranges: Sequence[Range], time: Time, until: Sequence[int]) -> list[Range]:
    """The same plans in the same order, each from where it is faster than the one before it.

    `until`: per plan the largest size that it serves. A plan that is nowhere faster goes.
    """
    end = ranges[-1].high
    found = [ranges[0]]
    for after in ranges[1:]:
        low = ranges[0].low
        while found:
            low = _border(found[-1], after, time, min(until[found[-1].index], end))
            if low > found[-1].low:
                break
            low = found.pop().low
        if low <= end:
            found.append(Range(low, max(low, after.high), after.index))
    return [
        Range(here.low, end if after is None else after.low - 1, here.index)
        for here, after in zip_longest(found, found[1:])
    ]


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
    middle = round((max(1, bad) * good) ** 0.5)
    if bad < middle < good:
        return middle if later(middle) else good
    return good
