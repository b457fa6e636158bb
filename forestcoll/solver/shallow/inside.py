"""Packing inside a box: how it spreads the trees that enter it; and the kernel's search.

Where the links hold them, all trees are stars: one hop from where a tree enters to every other rank
of the box. Else some take two hops.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.kernel import _kernel
from forestcoll.schedule.forest import Path
from forestcoll.solver.shares import slices

MOVES = 2
"""Re-hangings at most, for each box of each unit."""
MOVES_MORE = 200_000
"""And as many more whatever the size: small problems may be hard."""

ATTEMPTS = 3
"""Seeds that are tried where the first comes near."""
NEARLY = 30
"""Units over the capacities that are near."""

Link = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Hung:
    """Roots, with how many equal trees hang as one; of each how boxes hang: depth, path, ..."""

    units: list[tuple[int, int]]
    paths: list[Path]
    trees: list[list[int]]


def hang(
    nodes: int,
    links: Mapping[Link, int],
    ranks: Sequence[int],
    units: list[tuple[int, int]],
    height: int,
    box: Sequence[int],
    spread: Sequence[int],
    entries: Sequence[int],
    grow: bool = False,
    shared: bool = False,
) -> Hung | None:
    """How the boxes of every tree hang within `height` hops, or None where that is not found.

    `links`: (tail, head) -> how many trees it may carry. `units`: roots, and how many equal trees
    hang as one; where these come near, every tree for itself. `box`, `spread`, `entries`: as in
    `Boxes`. `shared`: a link and the one in the other direction, which has to be there and as wide,
    carry as many trees together.
    """
    among, more = set(ranks), nodes
    tail: list[int] = []
    head: list[int] = []
    capacity: list[int] = []
    first: dict[Link, int] = {}  # the first of the arcs that stand for a link
    for (t, h), c in links.items():
        first[t, h] = len(tail)
        if t in among and h in among:  # by way of a node that stands for the link
            tail += (t, more)
            head += (more, h)
            capacity += (c, c)
            more += 1
        else:
            tail.append(t)
            head.append(h)
            capacity.append(c)
    twin: list[int] = []
    if shared:
        twin = [-1] * len(tail)
        for (t, h), e in first.items():
            last = first[h, t] + (t in among and h in among)
            twin[e], twin[last] = last, e
    rest = [-1] * (more - nodes)
    links_given = (more, tail, head, capacity, [*box, *rest], spread, ranks, [*entries, *rest])
    for seed in range(ATTEMPTS):
        moves = MOVES * len(spread) * len(units) + MOVES_MORE
        overload, _, paths, trees = _kernel.rehang(
            *links_given, units, height, grow, moves, seed, twin
        )
        if overload == 0:
            if rest:
                paths = [tuple([v for v in path if v < nodes]) for path in paths]
            return Hung(units, paths, trees)
        if not 0 < overload < NEARLY * units[0][1]:
            break
        units = [(v, 1) for v, many in units for _ in range(many)]
    return None


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

    def move(self, to: Mapping[int, int]) -> Spread:
        """The same in a box that is alike: its node for each node of this one."""
        paths = tuple(tuple(map(to.__getitem__, path)) for path in self.paths)
        return Spread(self.weight, paths, {to[v]: far for v, far in self.depth.items()})

    @staticmethod
    def of(root: int, weight: int, paths: tuple[Path, ...]) -> Spread:
        """The trees from `root` over these paths."""
        depth = {root: 0}
        for path in paths:
            depth[path[-1]] = depth[path[0]] + 1
        return Spread(weight, paths, depth)


@dataclass(frozen=True, slots=True)
class Interior:
    """The links inside one box, and how trees spread over them."""

    graph: CapacityGraph
    ranks: Sequence[int]
    links: Mapping[Link, int]

    def spread(self, starts: Mapping[int, int]) -> dict[int, list[Spread]] | None:
        """Per rank the trees that spread what starts there, the lowest first; None: no room.

        `starts`: per rank how many trees start there, those rooted at it and those that enter.
        """
        return self._stars(starts) or self.hang(starts, self.links, 2)

    def _stars(self, starts: Mapping[int, int]) -> dict[int, list[Spread]] | None:
        """One hop to every other rank, over the links that have most room left."""
        room, among = dict(self.links), set(self.ranks)
        over: dict[int, list[int]] = defaultdict(list)  # switches, for each rank
        for t, h in self.links:
            if h not in among:
                over[t].append(h)
        stars: dict[int, list[Spread]] = {}
        for rank, units in starts.items():
            if not units:
                continue
            mates = [mate for mate in self.ranks if mate != rank]
            ways = [self._hops(room, over[rank], rank, mate, units) for mate in mates]
            if not all(ways):
                return None
            stars[rank] = [Spread.of(rank, units, star) for star, units in slices(ways, units)]
        return stars

    def _hops(
        self, room: dict[Link, int], over: Sequence[int], rank: int, mate: int, units: int
    ) -> list[tuple[Path, int]]:
        """(path, units) pairs that bring `units` from a rank to a mate, or none; takes room."""
        ways: list[tuple[Path, int]] = []
        paths: list[Path] = [(rank, mate)] if (rank, mate) in room else []
        paths += [(rank, s, mate) for s in over if (s, mate) in room]

        def free(path: Path) -> int:
            return min(room[ends] for ends in pairwise(path))

        while units and paths:
            path = max(paths, key=free)
            taken = min(units, free(path))
            if not taken:
                break
            for ends in pairwise(path):
                room[ends] -= taken
            ways.append((path, taken))
            units -= taken
        return [] if units else ways

    def hang(
        self, starts: Mapping[int, int], links: Mapping[Link, int], height: int
    ) -> dict[int, list[Spread]] | None:
        """Per rank trees of this height, the lowest first, as the search that hangs boxes finds."""
        inside = {v for ends in self.links for v in ends}
        nodes = [*self.ranks, *sorted(inside.difference(self.ranks))]
        given = self.graph.restrict(nodes, links)
        supply = [starts.get(v, 0) for v in nodes]
        if _kernel.violated(*given.wires, given.capacity, supply, range(len(self.ranks))):
            return None  # a cut says that none of any height are there
        units = [(v, 1) for v in self.ranks for _ in range(starts[v])]
        box = [-1] * self.graph.n
        for number, v in enumerate(self.ranks):
            box[v] = number
        alone, free = [0] * len(self.ranks), [-1] * len(box)
        hung = hang(len(box), links, self.ranks, units, height, box, alone, free)
        if hung is None:
            return None
        trees = Counter(
            (root, tuple(hung.paths[number] for number in tree[1::2]))
            for (root, _), tree in zip(hung.units, hung.trees, strict=True)
        )
        found: dict[int, list[Spread]] = defaultdict(list)
        for (root, paths), weight in trees.items():
            found[root].append(Spread.of(root, weight, paths))
        return {root: sorted(some, key=lambda s: s.height) for root, some in found.items()}
