"""How long the first byte is under way through a forest: its height in microseconds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction

from forestcoll.errors import ForestError
from forestcoll.forest import Forest, Phase
from forestcoll.kernel import _kernel

Latencies = Mapping[tuple[str, str], Fraction]
"""(from, to) -> microseconds over a link, as `Topology.latencies` gives them."""

LARGEST = 2**31
"""Whole units that a link may take (the kernel adds ways up in 64 bits)."""


def latency(forest: Forest, links: Latencies, hop: Fraction = Fraction(0)) -> Fraction:
    """Microseconds of the longest way over the trees' links; `hop`: what a hop costs besides.

    From a root to the last of its ranks; for reduce trees from the first rank to the root; for
    allreduce both, one after the other, of the same root. Of a compact forest a tree's images may
    run over other links: each then counts as the slowest that it can be mapped to.

    Raises ForestError where a tree does not span, or a link has no latency.
    """
    graph = forest.graph
    ends = [(graph.names[u], graph.names[v]) for u, v in zip(graph.tail, graph.head, strict=True)]
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
        graph.n,
        graph.tail,
        graph.head,
        graph.ranks,
        [int(time * unit) for time in own],
        int(hop * unit),
        [tree.root for tree in forest.trees],
        [tree.phase == "reduce" for tree in forest.trees],
        [tree.edges for tree in forest.trees],
    )
    if -1 in longest:
        raise ForestError(f"tree {longest.index(-1)} does not span over the links")
    ways: dict[int, dict[Phase, int]] = defaultdict(dict)
    for tree, way in zip(forest.trees, longest, strict=True):
        of_root = ways[forest.orbit(tree.root)]
        of_root[tree.phase] = max(way, of_root.get(tree.phase, 0))
    return Fraction(max(sum(of_root.values()) for of_root in ways.values()), unit)
