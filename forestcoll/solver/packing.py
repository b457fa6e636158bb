"""Arborescence packing: links that carry whole numbers of trees become trees over real paths.

Preference among forests of one rate: the lowest, then the fewest trees.

Parallel switches: paths that may take any of several are dealt out evenly.

Packers fill the first spine as far as its capacity goes, which is as fast on paper; but schedules
then queue for it while the others are idle.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from forestcoll.graph.capacity_graph import CapacityGraph, is_balanced
from forestcoll.graph.kernel import _kernel
from forestcoll.graph.symmetry.automorphisms import find_free_group
from forestcoll.graph.symmetry.group import Image
from forestcoll.schedule.forest import Path, Tree, scan
from forestcoll.solver.walks import by_box, hops, neighbours

EXACT_TOO = 64
"""Ranks up to which exact packing is tried as well where packing by boxes has succeeded."""
SEARCHED = 4_096
"""Parents in all trees of a forest, equal ones apart, up to which lower trees are searched for."""


def pack(graph: CapacityGraph, capacity: list[int], supply: list[int]) -> list[Tree]:
    """Broadcast trees, `supply[r]` of them rooted at each node r; equal ones are one Tree.

    Every node that is no rank must be balanced in `capacity`, and every rank must be able to
    receive the whole supply: then trees always exist. Layered packing where it works, for no trees
    are lower; else box by box, and exact packing where that fails or the graph is small: the lowest
    trees found. Those of a small graph are searched for lower ones, alike where the graph is.
    """
    layered, candidates, ways = _pack_low(graph, capacity, supply)
    if layered is not None:
        return layered[1]
    for logical in ways:
        if candidates and len(graph.ranks) > EXACT_TOO:
            break
        packed = _kernel.pack(logical, supply, graph.ranks, True)
        if packed is None:
            raise RuntimeError("internal error: no trees were packed")
        candidates.append((*packed, logical))
    height = min(height for height, _, _ in candidates)
    if sum(supply) * len(graph.ranks) <= SEARCHED:
        _, _, logical = min(candidates, key=lambda f: (f[0], len(f[1])))
        lower = _kernel.pack_lowest(logical, supply, graph.ranks, _elements(graph), height)
        if lower is not None:
            return _over_paths(graph, logical, lower[1])
    return _lowest(graph, candidates)


def pack_quickly(
    graph: CapacityGraph, capacity: list[int], supply: list[int]
) -> tuple[int, list[Tree]] | None:
    """(height, trees) as `pack` makes them in layers or box by box: None where it cannot."""
    layered, packed, _ = _pack_low(graph, capacity, supply)
    if layered is not None:
        return layered
    return (min(height for height, _, _ in packed), _lowest(graph, packed)) if packed else None


Packed = tuple[int, list[tuple[int, int, list[int]]], _kernel.Logical]
"""Height, trees and what their paths are numbers of."""


def _pack_low(
    graph: CapacityGraph, capacity: list[int], supply: list[int]
) -> tuple[tuple[int, list[Tree]] | None, list[Packed], list[_kernel.Logical]]:
    """(height and trees in layers, or None; else what boxes make of each way; the ways tried)."""
    group = _boxes(graph)
    ways: list[_kernel.Logical] = []
    for logical in _ways(graph, capacity, supply, group):
        layered = _kernel.pack(logical, supply, graph.ranks, False)
        if layered is not None:
            return (layered[0], _over_paths(graph, logical, layered[1])), [], ways
        ways.append(logical)
    nested = [(_kernel.pack_nested(way, supply, graph.ranks, group), way) for way in ways]
    return None, [(*packed, way) for packed, way in nested if packed is not None], ways


def _lowest(graph: CapacityGraph, packings: list[Packed]) -> list[Tree]:
    """The lowest of these, as trees over real paths."""
    height = min(height for height, _, _ in packings)
    lowest = [
        _over_paths(graph, logical, batches) for h, batches, logical in packings if h == height
    ]
    return prefer(graph, lowest)


def _elements(graph: CapacityGraph) -> list[Image]:
    """Symmetries under which trees may be alike; only the identity where there are switches."""
    group = None if len(graph.ranks) < graph.n else find_free_group(graph)
    return [tuple(range(graph.n))] if group is None else list(group.elements())


def _boxes(graph: CapacityGraph) -> list[int]:
    """Per node the number of its box, or -1.

    A node that its box cannot reach over links of its own, or that cannot reach the box (a failed
    link, one way or both), counts as a box of its own: trees come to it from outside.
    """
    members = by_box(graph)
    members.pop("", None)
    box = {v: name for name, nodes in members.items() for v in nodes}
    inside = [(u, v) for u, v in graph.ends if u in box and box[u] == box.get(v)]
    out = neighbours(graph.n, inside)
    into = neighbours(graph.n, ((v, u) for u, v in inside))
    group, count = [-1] * graph.n, 0
    for v in box:
        if group[v] < 0:
            for mate in hops(out, [v]).keys() & hops(into, [v]).keys():
                group[mate] = count
            count += 1
    return group


def _ways(
    graph: CapacityGraph, capacity: list[int], supply: list[int], group: list[int]
) -> Iterator[_kernel.Logical]:
    """Links between ranks only that can still carry `supply`, and their way back to real paths.

    Nodes of one box count as near: what joins boxes is not spent inside one. Spare links between
    switches make trees lower, or only lead astray: with such links there is a second way, without.
    """
    links = (*graph.wires, capacity, supply, graph.ranks, group)
    first = _kernel.remove_relays(*links, True)
    yield first
    ranks = set(graph.ranks)
    if any(t not in ranks and h not in ranks for t, h in graph.ends):
        second = _kernel.remove_relays(*links, False)
        if (second.paths, second.units) != (first.paths, first.units):
            yield second


def _over_paths(
    graph: CapacityGraph, logical: _kernel.Logical, batches: list[tuple[int, int, list[int]]]
) -> list[Tree]:
    paths: list[Path] = [tuple(path) for path in logical.paths]
    trees = [
        Tree(root, "broadcast", weight, tuple(map(paths.__getitem__, edges)))
        for root, weight, edges in batches
    ]
    rank = graph.rank_of
    return sorted(trees, key=lambda tree: (rank[tree.root], -tree.weight))


def rename(trees: Iterable[Tree], place: Mapping[int, int] | Sequence[int]) -> tuple[Tree, ...]:
    """The trees where each node is another one."""
    return tuple(
        replace(
            tree,
            root=place[tree.root],
            edges=tuple(tuple(place[v] for v in path) for path in tree.edges),
        )
        for tree in trees
    )


def trim_to_supply(graph: CapacityGraph, supply: list[int]) -> list[int] | None:
    """Capacities that are balanced at every switch and carry `supply` to all ranks, or None."""
    links = (*graph.wires, graph.capacity, supply, graph.ranks)
    if _kernel.violated(*links) is not None:
        return None
    return list(graph.capacity) if is_balanced(graph) else _kernel.trim(*links)


def prefer(graph: CapacityGraph, ways: Sequence[list[Tree]]) -> list[Tree]:
    """The lowest of these; of several the one with the fewest trees, of these the first.

    Broadcast trees, each list of them a whole forest.
    """
    return min(ways, key=lambda trees: (scan(graph, trees)[1], len(trees))) if ways[1:] else ways[0]


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
        ends = graph.ends
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
