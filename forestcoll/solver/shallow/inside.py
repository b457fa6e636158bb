"""Packing inside a box: how it spreads the trees that enter it.

Where the links hold them, all trees are stars: one hop from where a tree enters to every other rank
of the box. Else the general packers say what is possible.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from forestcoll.graph.capacity_graph import CapacityGraph, is_balanced
from forestcoll.graph.kernel import _kernel
from forestcoll.schedule.forest import Path
from forestcoll.solver.shallow.hanging import search_trees

TWO_HOPS = 2


@dataclass(frozen=True, slots=True)
class Spread:
    """`weight` equal trees inside a box, from where they enter to its other ranks.

    `paths` in an order in which each one's first node has been reached; `depth`: hops to each rank.
    """

    weight: int
    paths: tuple[Path, ...]
    depth: Mapping[int, int]

    @property
    def height(self) -> int:
        """Hops to the farthest rank."""
        return max(self.depth.values())

    @staticmethod
    def of(root: int, weight: int, paths: tuple[Path, ...]) -> Spread:
        """The trees from `root` over these paths."""
        depth = {root: 0}
        for path in paths:
            depth[path[-1]] = depth[path[0]] + 1
        return Spread(weight, paths, depth)


class Interior:
    """The links inside one box, and how trees spread over them."""

    def __init__(
        self, graph: CapacityGraph, ranks: Sequence[int], links: Mapping[tuple[int, int], int]
    ) -> None:
        self.ranks = ranks
        among = set(ranks)
        self._nodes = [*ranks, *sorted({v for ends in links for v in ends} - among)]
        self._links = links
        self._graph = graph

    def spread(
        self, starts: Mapping[int, int], onward: Mapping[int, int]
    ) -> dict[int, list[Spread]] | None:
        """Per rank the trees that spread what starts there, the lowest first; None: no room.

        `starts`: per rank how many trees start there, those rooted at it and those that enter.
        `onward`: how many of them other ranks of the box send on, so that they should be stars.
        """
        if len(self.ranks) == 1:
            return {v: [Spread.of(v, units, ())] for v, units in starts.items() if units}
        whole = self._stars(starts, dict(self._links))
        if whole is not None:
            return whole
        for stars in (onward, {}) if any(onward.values()) else ({},):
            room = dict(self._links)
            low = self._stars(stars, room)
            if low is None:
                continue
            links = {ends: c for ends, c in room.items() if c}
            rest = {v: units - stars.get(v, 0) for v, units in starts.items()}
            others = self._hung(rest, links) or self._packed(rest, links)
            if others is not None:
                return {v: [*low.get(v, ()), *others.get(v, ())] for v in self.ranks}
        return None

    def _stars(
        self, starts: Mapping[int, int], room: dict[tuple[int, int], int]
    ) -> dict[int, list[Spread]] | None:
        """One hop to every other rank, over the links that have most room left; takes the room."""
        out: dict[int, list[int]] = defaultdict(list)
        for t, h in self._links:
            out[t].append(h)
        found: dict[int, list[Spread]] = {}
        for rank, units in starts.items():
            if not units:
                continue
            ways = []
            for mate in self.ranks:
                if mate == rank:
                    continue
                taken = self._hops(room, out[rank], rank, mate, units)
                if taken is None:
                    return None
                ways.append(taken)
            found[rank] = [Spread.of(rank, *star) for star in _slices(ways, units)]
        return found

    def _hops(
        self,
        room: dict[tuple[int, int], int],
        near: Sequence[int],
        rank: int,
        mate: int,
        units: int,
    ) -> list[tuple[int, Path]] | None:
        """(units, path) pairs that bring `units` from a rank to a mate; takes their room."""
        ways: list[tuple[int, Path]] = []
        paths: list[Path] = [(rank, mate)] if (rank, mate) in room else []
        among = set(self.ranks)
        paths += [(rank, s, mate) for s in near if s not in among and (s, mate) in room]

        def free(path: Path) -> int:
            return min(room[ends] for ends in pairwise(path))

        while units:
            path = max(paths, key=free, default=None)
            if path is None or not free(path):
                return None
            taken = min(units, free(path))
            for ends in pairwise(path):
                room[ends] -= taken
            ways.append((taken, path))
            units -= taken
        return ways

    def _hung(
        self, starts: Mapping[int, int], links: Mapping[tuple[int, int], int]
    ) -> dict[int, list[Spread]] | None:
        """Two hops at most, where the search that hangs boxes finds that for ranks."""
        supply = [0] * self._graph.n
        for v, units in starts.items():
            supply[v] = units
        hung = search_trees(self._graph.n, links, self.ranks, supply, TWO_HOPS)
        if hung is None:
            return None
        found: dict[int, list[Spread]] = defaultdict(list)
        for (root, paths), weight in hung.items():
            found[root].append(Spread.of(root, weight, paths))
        for spreads in found.values():
            spreads.sort(key=lambda s: s.height)
        return dict(found)

    def _packed(
        self, starts: Mapping[int, int], links: Mapping[tuple[int, int], int]
    ) -> dict[int, list[Spread]] | None:
        """The general packers on the box alone."""
        number = {v: i for i, v in enumerate(self._nodes)}
        count = len(self.ranks)
        box = CapacityGraph(
            names=tuple(self._graph.names[v] for v in self._nodes),
            gpu=tuple(i < count for i in range(len(self._nodes))),
            multicast=(False,) * len(self._nodes),
            aggregation=(False,) * len(self._nodes),
            ranks=tuple(range(count)),
            tail=tuple(number[t] for t, _ in links),
            head=tuple(number[h] for _, h in links),
            capacity=tuple(links.values()),
            unit=Fraction(1),
        )
        supply = [starts.get(v, 0) for v in self._nodes]
        ends = (box.n, box.tail, box.head)
        if _kernel.violated(*ends, box.capacity, supply, box.ranks) is not None:
            return None
        if not is_balanced(box):
            trimmed = _kernel.trim(*ends, box.capacity, supply, box.ranks)
            if trimmed is None:
                return None
            box = replace(box, capacity=tuple(trimmed))
        group = [0] * box.n
        logical = _kernel.remove_relays(*ends, box.capacity, supply, box.ranks, group, True)
        packed = _kernel.pack(logical, supply, box.ranks, False)
        if packed is None:
            packed = _kernel.pack(logical, supply, box.ranks, True)
        if packed is None:
            return None
        paths = [tuple(self._nodes[v] for v in path) for path in logical.paths]
        found: dict[int, list[Spread]] = defaultdict(list)
        for root, weight, edges in packed[1]:
            tree = tuple(paths[e] for e in edges)
            found[self._nodes[root]].append(Spread.of(self._nodes[root], weight, tree))
        for spreads in found.values():
            spreads.sort(key=lambda s: s.height)
        return dict(found)


def _slices(
    ways: Sequence[list[tuple[int, Path]]], units: int
) -> list[tuple[int, tuple[Path, ...]]]:
    """`units` stars out of the ways to each mate, as few different ones as their amounts allow."""
    left = [list(reversed(way)) for way in ways]
    found = []
    while units:
        weight = min(way[-1][0] for way in left)
        found.append((weight, tuple(way[-1][1] for way in left)))
        for way in left:
            amount, path = way.pop()
            if amount > weight:
                way.append((amount - weight, path))
        units -= weight
    return found
