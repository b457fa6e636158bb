"""Compact forests where one part is like no other: equal boxes go round beside a broken one.

A rotation moves the equal parts and keeps all else, the broken part and the switches between them.
A tree of a root that moves stands for its images under the rotation, one for each equal part. Where
it enters what stays, its images enter there in the same way, so that each unit of it counts once
for every part. A tree of a root that stays goes to every equal part in the same way: the rotation
keeps it, it is written once, and each part has one unit to take in.

So three flows say where units leave and enter: from equal parts to what stays, back, and among
equal parts. What a part and what stays have left of their links is packed by itself.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, islice, pairwise
from typing import NamedTuple

from forestcoll.common.errors import ForestError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.kernel import _kernel
from forestcoll.graph.symmetry.group import Rotation, rotation_group
from forestcoll.graph.symmetry.quotient import find_rotations
from forestcoll.schedule.forest import Path, Tree
from forestcoll.solver.compact.rotation import (
    EDGES,
    Edges,
    Links,
    height_of,
    join,
    pack_inside,
    split,
    walks,
)

HERE, FIXED, THERE = range(3)
"""Where a node of a route is: in the part of the sender, in what stays, in that of the receiver."""


class Route(NamedTuple):
    """A way from rank to rank; nodes of equal parts as those of part 0, `sides` says of which."""

    path: Path
    sides: tuple[int, ...]


Entries = list[tuple[Route, int]]
Spreads = list[tuple[Edges, int]]
Entered = tuple[Edges, Route]
"""How what came over a route spreads where it enters."""


def pack_around(
    graph: CapacityGraph, k: int, capacity: Sequence[int]
) -> tuple[list[Tree], Rotation] | None:
    """(broadcast trees, the rotation whose images of them are the forest), or None.

    Every rank is the root of `k` trees, or of some times as many where units that count for every
    part fill links only so; `capacity`: how many of `k` each link may carry.
    """
    for image in find_rotations(graph):
        try:
            group = rotation_group(graph, [image])
        except ForestError:  # parts of several kinds
            continue
        if any(capacity[e] != capacity[orbit] for e, orbit in enumerate(group.link)):
            continue
        stays = [c for u, v, c in graph.along(capacity) if group.images_of((u, v)) == 1]
        full, whole = (group.size // math.gcd(group.size, *units) for units in (stays, (k,)))
        for times in sorted({1, full, math.lcm(full, whole)}):
            around = _Around(graph, group, k * times, [c * times for c in capacity])
            trees = around.trees()
            if trees is not None:
                return trees, group
    return None


class _Around:
    """Part 0 of the equal parts, what stays, and what their links have left."""

    def __init__(
        self, graph: CapacityGraph, group: Rotation, k: int, capacity: Sequence[int]
    ) -> None:
        (image,) = group.generators
        stays = [v for v in range(graph.n) if image[v] == v]
        label = _kernel.components(*graph.wires, stays)
        first = next(v for v in graph.ranks if image[v] != v)
        part = [v for v in range(graph.n) if label[v] == label[first]]
        self.graph, self.k, self.count = graph, k, group.size
        self.ranks = set(graph.ranks)
        self.whole = len(part) * self.count + len(stays) == graph.n
        self.parts = [part]
        for _ in range(self.count - 1):
            self.parts.append([image[v] for v in self.parts[-1]])
        self.place = {v: i for i, v in enumerate(part)}
        self.moving = [v for v in part if v in self.ranks]
        self.staying = [v for v in stays if v in self.ranks]
        among = {*part, *stays}
        self.left: Links = {
            (u, v): c for u, v, c in graph.along(capacity) if u in among and v in among
        }

    def trees(self) -> list[Tree] | None:
        """The trees of part 0's ranks and of those that stay; None where links do not suffice."""
        if not self.whole or not self.staying:
            return None
        each = (self.count - 1) * self.k
        if len(self.moving) * each > EDGES:
            return None
        out = self.routes(self.moving, HERE, FIXED, self.k)
        back = self.routes(self.staying, FIXED, THERE, self.k)
        among = self.routes(self.moving, HERE, THERE, each)
        if out is None or back is None or among is None or min(self.left.values()) < 0:
            return None
        own, entered = self.spread(self.moving, self.k, [*among, *back])
        # what stays has units that count for every part, of which its own roots need not all
        rest, settled = self.spread(self.staying, -(-self.k // self.count), out)
        if not own or not rest:
            return None
        arrive = hand_out([e for e in entered if e[0][1].sides[0] == HERE], self.moving, each)
        come = hand_out([e for e in entered if e[0][1].sides[0] == FIXED], self.staying, self.k)
        leave = hand_out(settled, self.moving, self.k)
        trees = chain(
            *(self.turning(v, own[v], arrive[v], leave[v]) for v in self.moving),
            *(self.still(v, rest[v], come[v]) for v in self.staying),
        )
        most = EDGES // len(self.ranks)
        some = list(islice(trees, most + 1))
        return some if len(some) <= most else None

    def routes(self, starts: Sequence[int], side: int, end: int, each: int) -> Entries | None:
        """Ways for `each` unit of the starts on one side to ranks on the other; takes their room.

        At first each rank sends and takes in equally much, then more and more as links allow.
        """
        total = len(starts) * each
        even = -(-total // len(self.ends(end)))
        for eighths in (8, 9, 10, 16, 8 * len(self.ranks)):
            most_out, most_in = each * eighths // 8, even * eighths // 8
            ways = self.flow(starts, side, end, total, most_out, most_in)
            if sum(units for _, units in ways) == total:
                for route, units in ways:
                    for pair in pairwise(route.path):
                        self.left[pair] -= units * self.times(pair)
                return ways
        return None

    def times(self, pair: tuple[int, int]) -> int:
        """How often a unit counts on a link: for every part on those between nodes that stay."""
        return 1 if pair[0] in self.place or pair[1] in self.place else self.count

    def flow(
        self, starts: Sequence[int], side: int, end: int, total: int, most_out: int, most_in: int
    ) -> Entries:
        number: dict[tuple[int, int], int] = {}
        for v in (-1, -2, -3):
            number[v, side] = len(number)
        source, first, sink = range(3)

        def at(v: int, where: int) -> int:
            return number.setdefault((v, where), len(number))

        arcs = [(source, first, total)]
        arcs += [(first, at(v, side), most_out) for v in starts]
        arcs += [(at(v, end), sink, most_in) for v in self.ends(end)]
        for (u, v), c in self.left.items():
            room = c // self.times((u, v))
            for a, b in self.sides(u, v):
                outward = u not in self.ranks or a == side
                inward = v not in self.ranks or b == end
                if outward and inward and side <= a and b <= end and room > 0:
                    arcs.append((at(u, a), at(v, b), room))
        tail, head, limit = ([arc[i] for arc in arcs] for i in range(3))
        flow = _kernel.maximum_flow(len(number), tail, head, limit, source, sink)
        nodes = list(number)
        ways = []
        for walk, units in walks(tail, head, flow, source, sink):
            path, sides = zip(*(nodes[i] for i in walk[2:-1]), strict=True)
            ways.append((Route(path, sides), units))
        return ways

    def ends(self, side: int) -> Sequence[int]:
        """The ranks on a side."""
        return self.staying if side == FIXED else self.moving

    def sides(self, u: int, v: int) -> list[tuple[int, int]]:
        """The sides between which a link leads."""
        if u in self.place and v in self.place:
            return [(HERE, HERE), (THERE, THERE)]
        if u in self.place:
            return [(HERE, FIXED)]
        return [(FIXED, THERE if v in self.place else FIXED)]

    def spread(
        self, ranks: Sequence[int], own: int, routes: Entries
    ) -> tuple[dict[int, Spreads], list[tuple[Entered, int]]]:
        """(per rank `own` units that spread from it, how what the routes bring spreads).

        The highest trees stay with their ranks. Nothing where the links do not suffice.
        """
        moves = ranks is self.moving
        supply = dict.fromkeys(ranks, own)
        come: dict[int, Entries] = defaultdict(list)
        for route, units in routes:
            supply[route.path[-1]] += units
            come[route.path[-1]].append((route, units))
        links = {
            pair: c // (1 if moves else self.count)
            for pair, c in self.left.items()
            if moves == (pair[0] in self.place and pair[1] in self.place)
            and moves == (pair[0] in self.place or pair[1] in self.place)
        }
        inside = pack_inside(self.graph, links, supply)
        mine: dict[int, Spreads] = {}
        entered: list[tuple[Entered, int]] = []
        for v in ranks if inside is not None else ():
            trees = sorted((inside or {})[v], key=height_of, reverse=True)
            mine[v], rest = split([(tree.edges, tree.weight) for tree in trees], own)
            for edges, route, units in join(rest, come[v]):
                entered.append(((edges, route), units))
        return mine, entered

    def turning(
        self,
        root: int,
        own: Spreads,
        arrive: list[tuple[Entered, int]],
        leave: list[tuple[Entered, int]],
    ) -> Iterator[Tree]:
        """The trees of a root in part 0, equal ones together."""
        mine = [edges for edges, units in own for _ in range(units)]
        out = [item for item, units in leave for _ in range(units)]
        units = [number for number, (_, most) in enumerate(arrive) for _ in range(most)]
        k = self.k
        looks = [(id(mine[t]), id(out[t]), tuple(units[t::k])) for t in range(k)]
        weights = Counter(looks)
        for t, look in enumerate(looks):
            weight = weights.pop(look, 0)
            if weight:
                edges = [*mine[t], *self.enter(out[t], 0)]
                for part, number in enumerate(look[2], 1):
                    edges += self.enter(arrive[number][0], part)
                yield Tree(root, "broadcast", weight, tuple(edges))

    def still(self, root: int, own: Spreads, come: list[tuple[Entered, int]]) -> Iterator[Tree]:
        """The trees of a root that stays: into every part in the same way."""
        many, _ = split([(edges, units * self.count) for edges, units in own], self.k)
        for edges, entered, units in join(many, come):
            way = list(edges)
            for part in range(self.count):
                way += self.enter(entered, part)
            yield Tree(root, "broadcast", units, tuple(way))

    def enter(self, entered: Entered, part: int) -> Iterator[Path]:
        """The ways over a route into a part, and on from where it ends."""
        edges, route = entered
        place, nodes = self.place, self.parts[part]
        yield tuple(
            [nodes[place[v]] if side == THERE else v for v, side in zip(*route, strict=True)]
        )
        for path in edges:
            yield tuple([nodes[place[v]] if v in place else v for v in path])


def hand_out(
    entered: Sequence[tuple[Entered, int]], roots: Sequence[int], each: int
) -> dict[int, list[tuple[Entered, int]]]:
    """`each` unit for every root: first of what it sends by itself, then of what mates send."""
    sent: dict[int, list[tuple[Entered, int]]] = {v: [] for v in roots}
    spare: list[tuple[Entered, int]] = []
    for item in entered:
        sent[item[0][1].path[0]].append(item)
    for v in roots:
        sent[v], rest = split(sent[v], each)
        spare += rest
    for v in roots:
        more, spare = split(spare, each - sum(units for _, units in sent[v]))
        sent[v] += more
    return sent
