"""Parallel switches: paths that may take any of several are dealt out evenly.

Packers fill the first spine as far as its capacity goes, which is as fast on paper; but schedules
then queue for it while the others are idle.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.schedule.forest import Path, Tree

Link = tuple[int, int]


def spread_evenly(graph: CapacityGraph, trees: list[Tree]) -> list[Tree]:
    """The same trees, with each path over the least loaded of switches that are as good.

    As good as a switch between two switches is another one that is linked with both. Trees are
    returned as they are where no path has a choice, or where a link would carry more than the
    busiest does now.
    """
    uses: Counter[Path] = Counter()
    for tree in trees:
        for path in tree.edges:
            uses[path] += tree.weight
    dealer = _Dealer(graph)
    dealt = {path: dealer.deal(path, uses[path]) for path in sorted(uses)}
    if all(path == way for path, way in dealt.items()):
        return trees
    before = _Dealer(graph)
    for path, weight in uses.items():
        before.add(path, weight)
    if dealer.busiest > before.busiest:
        return trees
    return [replace(tree, edges=tuple(dealt[path] for path in tree.edges)) for tree in trees]


class _Dealer:
    """Loads of links, as paths are dealt out one after the other."""

    def __init__(self, graph: CapacityGraph) -> None:
        ends = zip(graph.tail, graph.head, strict=True)
        self._capacity = {link: c for link, c in zip(ends, graph.capacity, strict=True) if c}
        self._loads: Counter[Link] = Counter()
        self._between: Counter[Path] = Counter()  # (switch, switch, switch): load
        self._onward: dict[int, list[int]] = defaultdict(list)  # switches, for each switch
        ranks = set(graph.ranks)
        for tail, head in self._capacity:
            if not {tail, head} & ranks:
                self._onward[tail].append(head)

    @property
    def busiest(self) -> Fraction:
        """Load of the busiest link, for its capacity."""
        loads = ((units, self._capacity[link]) for link, units in self._loads.items())
        return max((Fraction(units, c) for units, c in loads), default=Fraction(0))

    def deal(self, path: Path, weight: int) -> Path:
        """The path by the least loaded switches."""
        way = list(path)
        for i in range(2, len(path) - 2):
            before, after = way[i - 1], way[i + 1]
            choice = [v for v in self._onward[before] if (v, after) in self._capacity]
            choice = [v for v in choice if v not in way or v == way[i]]
            if way[i] in choice and len(choice) > 1:
                way[i] = min(choice, key=lambda v: self._cost((before, v, after), weight))
                self._between[before, way[i], after] += weight
        self.add(way, weight)
        return tuple(way)

    def add(self, path: Sequence[int], weight: int) -> None:
        """What takes the path as it is."""
        for link in pairwise(path):
            self._loads[link] += weight

    def _cost(self, way: tuple[int, int, int], weight: int) -> tuple[Fraction, int, int]:
        """The busier of both links with `weight` more; then what goes the same way already."""
        links = pairwise(way)
        busier = max(Fraction(self._loads[e] + weight, self._capacity[e]) for e in links)
        return busier, self._between[way], way[1]
