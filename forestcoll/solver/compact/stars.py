"""Stars through boxes: one tree an orbit of roots where parts are too large to be packed.

The root sends straight to one rank of every other box, over whatever orbits of links have room
left, and each of these to its mates. Two hops, and none of the parts' own packing; where that does
not fit, the other schemes say what is possible.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from itertools import pairwise

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.group import SymmetryGroup
from forestcoll.schedule.forest import Path, Tree
from forestcoll.solver.compact.units import EDGES
from forestcoll.solver.walks import by_box, neighbours

LARGE = 512
"""Ranks in a part above which its own packing takes minutes."""


def pack_stars(
    graph: CapacityGraph, group: SymmetryGroup, k: int, capacity: Sequence[int]
) -> list[Tree] | None:
    """`k` broadcast trees of each representative root; None where orbits have too little room."""
    roots = sorted({group.node[v] for v in graph.ranks})
    if k * len(roots) * len(graph.ranks) > EDGES:
        return None
    stars = _Stars(graph, group, capacity)
    trees = []
    for root in roots:
        for _ in range(k):
            edges = stars.edges(root)
            if edges is None:
                return None
            trees.append(Tree(root, "broadcast", 1, edges))
    return trees


class _Stars:
    """Boxes, what leads between them, and the room that is left for trees of one root."""

    def __init__(self, graph: CapacityGraph, group: SymmetryGroup, capacity: Sequence[int]) -> None:
        self.ranks = set(graph.ranks)
        self.orbit = dict(zip(graph.ends, group.link, strict=True))
        self.room: Counter[int] = Counter()
        for orbit, units in zip(group.link, capacity, strict=True):
            self.room[orbit] += units
        for orbit in self.room:
            self.room[orbit] //= group.size
        named = by_box(graph)
        lone = named.pop("", [])
        boxes = [*named.values(), *([v] for v in lone)]
        self.boxes = [held for box in boxes if (held := [v for v in box if v in self.ranks])]
        self.outer = set(lone) - self.ranks
        self.near = neighbours(graph.n, graph.ends)
        self.back = neighbours(graph.n, zip(graph.head, graph.tail, strict=True))

    def edges(self, root: int) -> tuple[Path, ...] | None:
        """The edges of one tree, whose room is taken; the farthest boxes have the least choice."""
        ways = self.search(root)
        edges: list[Path] = []
        far = [min(map(len, self.ways_into(ranks, ways)), default=0) for ranks in self.boxes]
        for number in sorted(range(len(far)), key=lambda box: -far[box]):
            ranks = self.boxes[number]
            entry = root
            if root not in ranks:
                path = self.enter(ranks, ways)
                if path is None:
                    ways = self.search(root)
                    path = self.enter(ranks, ways)
                if path is None:
                    return None
                edges.append(path)
                entry = path[-1]
            for mate in ranks:
                if mate != entry:
                    path = self.take(self.inside(entry, mate))
                    if path is None:
                        return None
                    edges.append(path)
        return tuple(edges)

    def search(self, root: int) -> dict[int, Path]:
        """Shortest ways from the root to switches between boxes, over what has room."""
        ways: dict[int, Path] = {root: (root,)}
        queue = deque([root])
        while queue:
            u = queue.popleft()
            for v in self.near[u]:
                if v in self.outer and v not in ways and self.room[self.orbit[u, v]]:
                    ways[v] = (*ways[u], v)
                    queue.append(v)
        return ways

    def enter(self, ranks: Sequence[int], ways: dict[int, Path]) -> Path | None:
        """A shortest way into a box that has room; takes it."""
        return self.take(sorted(self.ways_into(ranks, ways), key=len))

    def ways_into(self, ranks: Sequence[int], ways: dict[int, Path]) -> list[Path]:
        return [(*ways[s], v) for v in ranks for s in self.back[v] if s in ways]

    def inside(self, entry: int, mate: int) -> list[Path]:
        """Ways from a rank to a mate over at most one switch of their box."""
        over = [(entry, s, mate) for s in self.near[entry] if s not in self.ranks]
        return [(entry, mate), *over]

    def take(self, paths: Sequence[Path]) -> Path | None:
        """The first of these paths that has room on all of its links; takes it."""
        for path in paths:
            uses = Counter(self.orbit.get(pair, -1) for pair in pairwise(path))
            if all(self.room[orbit] >= units for orbit, units in uses.items()):
                self.room -= uses
                return path
        return None
