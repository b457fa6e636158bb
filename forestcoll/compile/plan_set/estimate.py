"""How long a plan takes for how many bytes: a line, and which line is lowest where.

    time = hops' latency + bytes / algbw

What a hop costs beyond the link is the protocol's (`simulate.HOP`).

Lines guide the search: they say which candidates are worth a plan. Messages and thread blocks are
not in them, so they are far off at sizes that a protocol is not for (figures: docs/plans.md).
Up to `simulate.RANKS` ranks simulated times then say where plans begin, and which of them stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, zip_longest

from forestcoll.program import Protocol
from forestcoll.program.targets import library_on
from forestcoll.schedule.forest import Forest
from forestcoll.schedule.latency import Latencies, latency
from forestcoll.solver.alltoall.routes import Routes, orbit_of
from forestcoll.verify.simulate import HOP

WORTH = Fraction(21, 20)
"""A plan has to be this many times as fast as the others somewhere, or it is left out."""


@dataclass(frozen=True, slots=True)
class Line:
    """Microseconds: `latency`, and a byte more every 1 / (1000 `algbw`)."""

    latency: Fraction  # us
    algbw: Fraction  # GB/s that the protocol leaves of the forest's plain_algbw

    def time(self, size: int) -> Fraction:
        """Microseconds for `size` bytes, as nccl-tests counts them."""
        return self.latency + size / (1000 * self.algbw)


@dataclass(frozen=True, slots=True)
class Range:
    """From `low` to `high` bytes, both inclusive, line `index` is the lowest."""

    low: int
    high: int
    index: int


def abut(ranges: Sequence[Range], high: int) -> list[Range]:
    """Each from where it begins up to where the next one does, the last one up to `high` bytes."""
    return [
        Range(here.low, high if after is None else after.low - 1, here.index)
        for here, after in zip_longest(ranges, ranges[1:])
    ]


def line_of(made_from: Forest | Routes, protocol: Protocol, links: Latencies, machine: str) -> Line:
    """The estimate for the forest with that protocol; for an allreduce both ways count.

    For routes of an all-to-all that of the longest of them. `machine`: name of the topology, which
    says whose library runs there, and so what of the bandwidth is data: the rest is flags.
    """
    wire = library_on(machine).messages.wire(protocol)
    if isinstance(made_from, Routes):
        return Line(_longest_route(made_from, protocol, links), made_from.algbw / wire)
    return Line(latency(made_from, links, HOP[protocol]), made_from.plain_algbw / wire)


def _longest_route(routes: Routes, protocol: Protocol, links: Latencies) -> Fraction:
    """Microseconds of the slowest way, a hop's own with them."""
    graph, orbit = routes.graph, orbit_of(routes.graph, routes.group)
    slowest: dict[int, Fraction] = {}  # of each orbit: images of a path may take any of its links
    number = {}
    for e, (u, v) in enumerate(zip(graph.tail, graph.head, strict=True)):
        number[u, v] = orbit[e]
        time = links[graph.names[u], graph.names[v]]
        slowest[orbit[e]] = max(time, slowest.get(orbit[e], time))
    return max(
        sum((slowest[number[hop]] for hop in pairwise(route.path)), start=Fraction(0))
        + HOP[protocol] * sum(graph.gpu[v] for v in route.path[1:])
        for route in routes.routes
    )


def lowest_lines(
    lines: Sequence[Line], low: int, high: int, until: Sequence[int] | None = None
) -> list[Range]:
    """Which line is lowest where, from `low` to `high` bytes; no gap, no overlap.

    `until`: per line the largest size at which it is there at all; where none is, the ranges end.
    Lines that are nowhere WORTH more than the others are left out.
    """
    ends = [high] * len(lines) if until is None else list(until)
    kept = list(range(len(lines)))
    while True:
        ranges = _envelope(lines, kept, low, high, ends)
        kept = sorted({r.index for r in ranges})
        reached = ranges[-1].high if ranges else 0
        worth = {}
        for index in kept:
            others = [i for i in kept if i != index]
            without = _envelope(lines, others, low, high, ends)
            if without and without[-1].high == reached:
                worth[index] = _worth(lines, ranges, without, index)
        least = min(worth, key=lambda i: (worth[i], i), default=None)
        if least is None or worth[least] >= WORTH:
            return ranges
        kept = [i for i in kept if i != least]


def _envelope(
    lines: Sequence[Line], among: Sequence[int], low: int, high: int, ends: Sequence[int]
) -> list[Range]:
    ranges: list[Range] = []
    at = low
    while at <= high:
        there = [i for i in among if ends[i] >= at]
        if not there:
            break
        here = min(there, key=lambda i: (lines[i].time(at), -lines[i].algbw, i))
        after = min(high, ends[here]) + 1
        for other in there:
            if lines[other].algbw > lines[here].algbw:
                after = min(after, max(at + 1, _crossing(lines[here], lines[other])))
        if ranges and ranges[-1].index == here:
            ranges[-1] = Range(ranges[-1].low, after - 1, here)
        else:
            ranges.append(Range(at, after - 1, here))
        at = after
    return ranges


def _crossing(a: Line, b: Line) -> int:
    """The first size at which `b`, the one with more bandwidth, is not slower."""
    gain = (1 / a.algbw - 1 / b.algbw) / 1000
    size = (b.latency - a.latency) / gain
    return -(-size.numerator // size.denominator)


def _worth(
    lines: Sequence[Line], ranges: Sequence[Range], without: Sequence[Range], index: int
) -> Fraction:
    """How many times as fast as without it line `index` makes the set, at the best of its sizes.

    Both are lowest lines, made of pieces: the ratio is largest where a piece of either ends.
    """
    best = Fraction(1)
    for mine in (r for r in ranges if r.index == index):
        for other in without:
            low, high = max(mine.low, other.low), min(mine.high, other.high)
            for size in (low, high) if low <= high else ():
                best = max(best, lines[other.index].time(size) / lines[index].time(size))
    return best
