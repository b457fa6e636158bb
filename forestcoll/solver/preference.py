"""Preference among forests of one rate: the lowest, then the fewest trees, then least fan-out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.schedule.forest import Path, Tree, scan


def prefer(graph: CapacityGraph, ways: Sequence[list[Tree]]) -> list[Tree]:
    """The lowest of these; of several the one with the fewest trees, then the least `fan_out`.

    The first of those that are alike in all. Broadcast trees, each list of them a whole forest.
    """
    if len(ways) == 1:
        return ways[0]
    height = [scan(graph, trees)[1] for trees in ways]
    best = min(zip(height, map(len, ways), strict=True))
    left = [t for h, t in zip(height, ways, strict=True) if (h, len(t)) == best]
    return left[0] if len(left) == 1 else min(left, key=lambda trees: fan_out(graph, trees))


def fan_out(graph: CapacityGraph, trees: Sequence[Tree]) -> int:
    """How many copies, at most, a rank sends in one broadcast tree over links slower than its best.

    They leave one after the other, so the last of them waits for all others. A path is as fast as
    the slowest of its links, a rank's best is the fastest link that leaves it.
    """
    capacity = dict(zip(zip(graph.tail, graph.head, strict=True), graph.capacity, strict=True))
    best = [0] * graph.n
    for (tail, _), units in capacity.items():
        best[tail] = max(best[tail], units)
    slow: dict[Path, bool] = {}
    most = 0
    for tree in trees:
        copies: Counter[int] = Counter()
        for path in tree.edges:
            if path not in slow:
                slow[path] = min(capacity[ends] for ends in pairwise(path)) < best[path[0]]
            if slow[path]:
                copies[path[0]] += 1
        most = max([most, *copies.values()])
    return most
