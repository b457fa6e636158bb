"""How long the first byte is under way through a forest: its height in microseconds.

So long takes the simulation of the trees alone for one byte, and more for more: the figure stands
beside the height in reports, and begins the lines that guide the search of a plan set.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from forestcoll.common.errors import ForestError
from forestcoll.graph.kernel import _kernel
from forestcoll.schedule.forest import Forest, Phase, ranges

Latencies = Mapping[tuple[str, str], Fraction]
"""(from, to) -> microseconds over a link, as `Topology.latencies` gives them."""

Way = tuple[int, int]
"""Where a tree's part of its root's data ends, and how long its longest way takes."""

LARGEST = 2**31
"""Whole units that a link may take (the kernel adds ways up in 64 bits)."""


def latency(forest: Forest, links: Latencies, hop: Fraction = Fraction(0)) -> Fraction:
    """Microseconds of the longest way over the trees' links; `hop`: what a hop costs besides.

    From a root to the last of its ranks; for reduce trees from the first rank to the root; for
    allreduce both, one after the other, of the same part of the data. Of a compact forest a tree's
    images may run over other links: each then counts as the slowest that it can be mapped to, and
    any two trees of an allreduce as carrying the same part.

    Raises ForestError where a tree does not span, or a link has no latency.
    """
    graph = forest.graph
    ends = [(graph.names[u], graph.names[v]) for u, v in graph.ends]
    if lost := next((pair for pair in ends if pair not in links), None):
        raise ForestError(f"there is no latency of the link from {lost[0]} to {lost[1]}")
    own = [links[pair] for pair in ends]
    if forest.group is not None:
        slowest: dict[int, Fraction] = {}
        for time, orbit in zip(own, forest.group.link, strict=True):
            slowest[orbit] = max(time, slowest.get(orbit, time))
        own = [slowest[orbit] for orbit in forest.group.link]
    unit = math.lcm(hop.denominator, *{time.denominator for time in own})
    if max([hop, *own]) * unit >= LARGEST:
        raise ForestError(
            f"latencies of up to {max(own)} us have no common unit that keeps them under 2^31; "
            "round them to fewer digits"
        )
    longest = _kernel.longest_ways(
        *graph.wires,
        graph.ranks,
        [int(time * unit) for time in own],
        int(hop * unit),
        [tree.root for tree in forest.trees],
        [tree.phase == "reduce" for tree in forest.trees],
        [tree.edges for tree in forest.trees],
    )
    if -1 in longest:
        raise ForestError(f"tree {longest.index(-1)} does not span over the links")
    return Fraction(max(_both_phases(forest, longest)), unit)


def _both_phases(forest: Forest, longest: Sequence[int]) -> Iterator[int]:
    """The trees' ways; of an allreduce each broadcast tree's with the sums that it has to wait for.

    What a root adds up, tree after tree, it broadcasts in this order.
    """
    by_root: dict[int, dict[Phase, list[Way]]]
    by_root = defaultdict(lambda: {"reduce": [], "broadcast": []})
    for tree, way, (_, end) in zip(forest.trees, longest, ranges(forest), strict=True):
        by_root[forest.orbit(tree.root)][tree.phase].append((end, way))
    for of_root in by_root.values():
        sums, copies = of_root["reduce"], of_root["broadcast"]
        if forest.group is not None or not sums or not copies:
            yield sum(max(way for _, way in ways) for ways in (sums, copies) if ways)
            continue
        i = j = 0
        while i < len(sums) and j < len(copies):  # they end at the same unit
            yield sums[i][1] + copies[j][1]
            done = sums[i][0], copies[j][0]
            i, j = i + (done[0] <= done[1]), j + (done[1] <= done[0])
