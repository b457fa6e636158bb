"""How long a plan takes for how many bytes: a line, and which line is lowest where.

    time = hops' latency + bytes / algbw

What a hop costs beyond the link is the runtime's; measured by others, it depends on the protocol
most: LL sends a flag with every 4 bytes and waits for nothing else, LL128 one with every 120,
Simple waits for the whole message (NCCL src/graph/tuning.cc: hwLat of rings on NVLink).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final

from forestcoll.forest import Forest
from forestcoll.program import Protocol
from forestcoll.topology import DEFAULT_LATENCY, Topology

HOP: Final[Mapping[Protocol, Fraction]] = {
    "LL": Fraction("0.6"),
    "LL128": Fraction("1.9"),
    "Simple": Fraction("3.4"),
}
"""Microseconds of a hop besides those of its links."""
SHARE: Final[Mapping[Protocol, Fraction]] = {
    "LL": Fraction(1, 2),
    "LL128": Fraction(15, 16),
    "Simple": Fraction(1),
}
"""What of the bandwidth is data: the rest is flags."""
WORTH = Fraction(21, 20)
"""A plan has to be this many times as fast as the others somewhere, or it is left out."""

Links = Mapping[tuple[str, str], Fraction]


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


def latencies(topology: Topology) -> dict[tuple[str, str], Fraction]:
    """(from, to) -> microseconds of the quickest of the parallel links."""
    found: dict[tuple[str, str], Fraction] = {}
    for link in topology.links:
        latency = DEFAULT_LATENCY if link.latency is None else link.latency
        for ends in link.directions():
            found[ends] = min(latency, found.get(ends, latency))
    return found


def line_of(forest: Forest, protocol: Protocol, links: Links) -> Line:
    """The estimate for the forest with that protocol; for an allreduce both ways count."""
    names = forest.graph.names
    # whole numbers of a common unit: there may be a million links on the trees' ways
    unit = math.lcm(HOP[protocol].denominator, *{time.denominator for time in links.values()})
    hop = int(HOP[protocol] * unit)
    times = {ends: int(time * unit) for ends, time in links.items()}
    longest: dict[tuple[int, str], int] = {}
    for tree in forest.trees:
        time = {tree.root: 0}
        down = tree.phase == "broadcast"
        for path in tree.edges if down else reversed(tree.edges):
            near, far = (path[0], path[-1]) if down else (path[-1], path[0])
            way = sum([times[names[a], names[b]] for a, b in pairwise(path)])
            time[far] = time[near] + way + hop
        key = tree.root, tree.phase
        longest[key] = max(longest.get(key, 0), *time.values())
    roots = {root for root, _ in longest}
    worst = max(sum(longest.get((r, p), 0) for p in ("reduce", "broadcast")) for r in roots)
    return Line(Fraction(worst, unit), forest.plain_algbw * SHARE[protocol])


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
