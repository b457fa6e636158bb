"""Packing of equal parts under rotation: one part is packed, its images fill the others.

The tree of a root goes from its part straight to every other part, over what lies outside, and
enters each of them at one rank; inside a part it is a tree from that rank. Seen from one part this
is a small problem of its own: besides its k trees, every rank is the root of as many as enter there
for roots elsewhere, over the links of the part and what entering and sending leave of the links to
the outside. That problem is packed by `pack`, exactly. Since parts may be rotated, all that has to
be right is what each orbit of links carries in all, so it does not matter which part a tree of the
solution is used in.

Where all parts are equal and have a symmetry of their own, one root an orbit will do, as long as
there are trees for it that, moved by the whole group, fill the links as evenly (`choose_units`);
else all ranks of a part are representatives.

Where one part is like no other, equal boxes go round beside a broken one.

A rotation moves equal parts and keeps all else, the broken part and the switches between them.
Below several tiers of switches there are several kinds of equal parts: the boxes of sound leaves,
those of the leaf with the broken box. Each kind goes round on its own, by generators that keep all
others: leaves with all that hangs on them, and boxes at each of them.

A tree of a root that moves stands for its images, one for each equal part. Into what its own
rotation keeps, another kind or what stays, it comes in one way, so that each unit counts once for
every part. What keeps a root has to keep its tree: it enters all parts of another kind in the same
way, and each has one unit to take in.

So flows say where units leave and enter, between each two kinds and among the parts of each. What
the part of a kind and what stays have left of their links is packed by itself.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise, permutations, product
from typing import NamedTuple

from forestcoll.common.errors import ForestError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.kernel import _kernel
from forestcoll.graph.symmetry.components import Components
from forestcoll.graph.symmetry.group import (
    DisjointSets,
    Image,
    Rotation,
    SymmetryGroup,
    rotation_group,
    symmetry_group,
)
from forestcoll.graph.symmetry.quotient import find_rotations
from forestcoll.schedule.forest import Path, Tree
from forestcoll.solver.compact.stars import LARGE
from forestcoll.solver.compact.units import (
    EDGES,
    Edges,
    Links,
    Use,
    choose_units,
    hand_out,
    height_of,
    pack_inside,
    split,
    use_of,
    walks,
)
from forestcoll.solver.shares import slices
from forestcoll.solver.walks import neighbours

TIMES = range(1, 17)
"""Trees that are taken for one where parts of several kinds go round: to share out on spines."""

LOW = 3
"""Hops of trees that are low: out of the root's part, into another and on."""

PAIRS = 50
"""Of kinds, up to which links are shared out among them: with more, each try takes seconds."""

EIGHTHS = 8
"""Of what each rank sends and takes in where all do equally much."""

HERE, FIXED, THERE = range(3)
"""Where a node of a route is: in the part of the sender, in what stays, in that of the receiver."""


class Route(NamedTuple):
    """A way from rank to rank; nodes of the receiver's part as those of the first of its kind."""

    path: Path
    sides: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Two kinds of parts between which units go, or one and parts that are as far from each other.

    `parts`: the numbers of the parts of the target. `own`: the generators that move either;
    `apart`: those that bring a part of the source to one of the target, where both are of one kind.
    `images`: how many ways a way between them stands for.
    """

    source: int
    target: int
    parts: range
    own: frozenset[int]
    apart: frozenset[int]
    images: int

    @property
    def within(self) -> bool:
        """Whether both are parts of one kind."""
        return self.source == self.target


Entries = list[tuple[Route, int]]
Entry = tuple[Edges, Route | None]
"""How what came over a route spreads in a part; without a route where it starts there."""
Shares = dict[int, list[tuple[Entry, int]]]
"""Per root its entries, one after the other, with their units."""
Plan = tuple[Shares, dict[Pair, Shares]]
"""How trees start in the part of their root, and how they enter others."""
Unit = tuple[int, range, Entry]
"""How a tree goes on in parts of a kind, by their numbers."""


def pack_parts(
    graph: CapacityGraph, parts: Components, group: SymmetryGroup, k: int, capacity: Sequence[int]
) -> tuple[list[Tree], SymmetryGroup] | None:
    """(broadcast trees of representative roots, the group that makes the others), or None.

    `group`: rotation of the parts first, and what moves all parts alike. `capacity`: trees that
    each link may carry when all ranks are roots of `k`, alike within an orbit. None where this
    scheme does not reach what is asked.
    """
    turning = symmetry_group(graph, [parts.rotation])
    around = _Around(graph, turning)
    (ranks,) = around.members
    many = EIGHTHS * len(ranks)
    tries = product((EIGHTHS, many), repeat=2)
    plans = (around.plan(k, capacity, [(out, into)]) for into, out in tries)
    plan = next((plan for plan in plans if plan is not None), None)
    if plan is None:
        return None
    most = EDGES // (k * len(graph.ranks))  # roots whose trees are not too many to write down
    if group.size > len(parts.members):
        roots = [v for v in ranks if group.node[v] == v]
        every = {group.node[v] for v in ranks} == set(roots)
        folded = around.fold(plan, group, capacity) if every and len(roots) <= most else None
        if folded is not None:
            return _merge(around.write(folded)), group
    return (_merge(around.write(plan)), turning) if len(ranks) <= most else None


def _merge(trees: Iterable[Tree]) -> list[Tree]:
    """Equal trees as one."""
    weights: Counter[tuple[int, Edges]] = Counter()
    for tree in trees:
        weights[tree.root, tree.edges] += tree.weight
    return [Tree(root, "broadcast", units, edges) for (root, edges), units in weights.items()]


def pack_around(
    graph: CapacityGraph, k: int, capacity: Sequence[int]
) -> tuple[list[Tree], Rotation] | None:
    """(broadcast trees, the rotation whose images of them are the forest), or None.

    Every rank is the root of `k` trees, or of some times as many where units that count for every
    part fill links only so; `capacity`: how many of `k` each link may carry. Of the first rotation
    whose trees have LOW hops, or the lowest.
    """
    packed: list[tuple[int, list[Tree], Rotation]] = []
    for group in _groups(graph):
        if any(capacity[e] != capacity[orbit] for e, orbit in enumerate(group.link)):
            continue
        size = Counter(group.link)
        stays = [c for c, orbit in zip(capacity, group.link, strict=True) if size[orbit] == 1]
        full, whole = (group.size // math.gcd(group.size, *units) for units in (stays, (k,)))
        around, several = _Around(graph, group), len(group.generators) > 1
        tries = TIMES if several else sorted({1, full, math.lcm(full, whole)})
        shared = (False, True) if len(around.pairs) <= PAIRS else (False,)
        for even, times in product(shared, tries):
            trees = around.trees(k * times, [c * times for c in capacity], even)
            if trees is not None:
                packed.append((max(map(height_of, trees)), trees, group))
                break
        if packed and packed[-1][0] <= LOW:
            break
    return min(packed, key=lambda one: one[0])[1:] if packed else None


def _groups(graph: CapacityGraph) -> Iterator[Rotation]:
    """Rotations of equal parts; then of parts in them, too, each kind by generators of its own."""
    images = find_rotations(graph)
    for image in images:
        with suppress(ForestError):  # parts of several kinds
            yield rotation_group(graph, [image])
    groups: list[Rotation] = []
    for image in sorted(images, key=lambda image: -sum(image[v] == v for v in graph.ranks)):
        if any(v != w and graph.box(v) == graph.box(w) != "" for v, w in enumerate(image)):
            continue
        for part in _kinds(graph, image, groups[-1:]):
            with suppress(ForestError):
                earlier = groups[-1].generators if groups else ()
                groups.append(rotation_group(graph, [*earlier, part]))
    yield from (group for group in reversed(groups) if len(group.generators) > 1)


def _kinds(graph: CapacityGraph, image: Image, groups: Sequence[Rotation]) -> list[Image]:
    """What the image does to each kind of the parts that it moves, all else fixed.

    Of one kind are parts that hang together or that these groups make alike.
    """
    kinds = DisjointSets(graph.n)
    moved = {v for v, to in enumerate(image) if v != to}
    for v in moved:
        kinds.join(v, image[v])
        for group in groups:
            kinds.join(v, group.node[v])
    for u, v in graph.ends:
        if u in moved and v in moved:
            kinds.join(u, v)
    kind = kinds.roots()
    return [
        tuple([to if kind[v] == least else v for v, to in enumerate(image)])
        for least in sorted({kind[v] for v in moved})
    ]


class _Around:
    """A part of each kind of equal parts, what stays, and what their links have left.

    What stays counts as the last kind, where ranks do.
    """

    k: int
    left: Links
    full: Links
    known: dict[tuple[int, int], list[Path]]

    def __init__(self, graph: CapacityGraph, group: SymmetryGroup) -> None:
        self.graph = graph
        self.ranks = set(graph.ranks)
        movers = list(zip(*group.generators, strict=True))
        self.moved = [
            tuple(i for i, to in enumerate(images) if to != v) for v, images in enumerate(movers)
        ]
        """Per node the generators that move it."""
        held: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for v in graph.ranks:
            held[self.moved[v]].append(v)
        self.own = sorted(held, key=lambda own: (not own, held[own][0]))
        """Per kind the generators that move it."""
        several = len(self.own) > 1
        nodes = range(graph.n) if several else dict.fromkeys((*graph.ranks, *range(graph.n)))
        self.count = [math.prod(group.orders[i] for i in own) for own in self.own]
        self.members: list[list[int]] = []
        self.nodes: list[list[int]] = []
        self.kind = [-1] * graph.n  # of a node in the part of a kind that moves
        for number, own in enumerate(self.own):
            label = _kernel.components(
                *graph.wires, [v for v in range(graph.n) if own and self.moved[v] != own]
            )
            first = label[held[own][0]]
            part = [v for v in nodes if (label[v] == first if own else not self.moved[v])]
            for v in part if own else ():
                self.kind[v] = number
            if not several:  # over what stays, which has no ranks, too
                part += [v for v in range(graph.n) if not self.moved[v]]
            self.nodes.append(part)
            self.members.append([v for v in part if v in self.ranks])
        among = self._domain(group)
        size = Counter(group.link)
        orbit = {
            (u, v): e
            for u, v, e in graph.along(group.link)
            if u in among and v in among and (several or max(self.kind[u], self.kind[v]) >= 0)
        }
        self.size = {pair: size[e] for pair, e in orbit.items()}
        """Per link how many there are of its kind."""
        each = zip(self.members, self.count, self.own, strict=True)
        self.whole = (
            several
            and max(map(len, self.members)) <= LARGE
            and sum(map(len, self.own)) == len(group.generators)
            and len(size) == len({*orbit.values()})
            and all(len(part) * count == len(held[own]) for part, count, own in each)
        )
        self.elements = [self._elements(group, own, among) for own in self.own]
        self.pairs = self._pairs(group)

    def _domain(self, group: SymmetryGroup) -> set[int]:
        """Those parts, what stays, and one of each other kind of switches, next to them."""
        near = neighbours(self.graph.n, self.graph.ends, both=True)
        stays = [v for v, own in enumerate(self.moved) if not own]
        parts = [v for v, kind in enumerate(self.kind) if kind >= 0]
        among = {*parts, *stays}
        others = {group.node[v] for v, own in enumerate(self.moved) if own not in self.own}
        for queue in (parts, stays):
            for u in queue:
                for v in near[u]:
                    if v not in among and group.node[v] in others:
                        others.remove(group.node[v])
                        among.add(v)
                        queue.append(v)
        return among

    def _elements(
        self, group: SymmetryGroup, own: Sequence[int], among: set[int]
    ) -> list[dict[int, int]]:
        """Where each product of these generators brings what they move, the last one first."""
        nodes = [v for v in sorted(among) if not set(own).isdisjoint(self.moved[v])]
        rows = [nodes]
        for i in own:
            turned = []
            for row in rows:
                for _ in range(group.orders[i]):
                    turned.append(row)
                    row = [group.generators[i][v] for v in row]
            rows = turned
        return [dict(zip(nodes, row, strict=True)) for row in rows]

    def _pairs(self, group: SymmetryGroup) -> list[Pair]:
        """Between whom units go, those first of which one counts most often."""
        own, count = self.own, self.count
        turning = [s for s, generators in enumerate(own) if generators]
        still = [s for s, generators in enumerate(own) if not generators]
        between = [*product(turning, still), *product(still, turning), *permutations(turning, 2)]
        pairs = [
            Pair(
                s, t, range(count[t]), frozenset(own[s] + own[t]), frozenset(), count[s] * count[t]
            )
            for s, t in between
        ]
        for s in turning:
            far = 1
            for at in reversed(range(len(own[s]))):
                near, far = far, far * group.orders[own[s][at]]
                parts, apart = range(near, far), frozenset(own[s][at:])
                pairs.append(Pair(s, s, parts, frozenset(own[s]), apart, count[s]))
        return sorted(pairs, key=lambda pair: -pair.images)

    def trees(self, k: int, capacity: Sequence[int], even: bool) -> list[Tree] | None:
        """`k` trees of each rank of each kind's part; None where links do not suffice."""
        if not self.whole or any(
            len(self.members[pair.source]) * k * len(pair.parts) > EDGES
            for pair in self.pairs
            if pair.within
        ):
            return None
        eighths = (EIGHTHS, 9, 10, 16, EIGHTHS * len(self.ranks))
        plan = self.plan(k, capacity, list(zip(eighths, eighths, strict=True)), even)
        if plan is None:
            return None
        count = sum(1 for _ in self.plans(plan))
        return None if count > EDGES // len(self.ranks) else self.write(plan)

    def plan(
        self,
        k: int,
        capacity: Sequence[int],
        tries: Sequence[tuple[int, int]],
        even: bool = False,
    ) -> Plan | None:
        """What `k` trees of each rank are made of; None where links do not suffice.

        `tries`: eighths of their even shares that ranks may send and take in. `even`: each pair has
        its share of the links of ranks, so that all together may fill them to the last unit.
        """
        self.k, self.known = k, {}
        self.left = {(u, v): c for u, v, c in self.graph.along(capacity) if (u, v) in self.size}
        self.full = dict(self.left) if even else {}
        routes: dict[Pair, Entries] = {}
        for pair in self.pairs:
            ways = self.routes(pair, tries)
            if ways is None:
                return None
            routes[pair] = ways
        if min(self.left.values()) < 0:
            return None
        own: Shares = {}
        sent: dict[Pair, Shares] = {}
        for kind in range(len(self.own)):
            entered = self.spread(kind, routes, own)
            if entered is None:
                return None
            for pair, items in entered.items():
                sent[pair] = hand_out(items, self.members[pair.source], self.each(pair))
        return own, sent

    def plans(self, plan: Plan) -> Iterator[tuple[int, int, tuple[Unit, ...]]]:
        """(root, weight, what they are made of) of all trees."""
        own, sent = plan
        for kind, ranks in enumerate(self.members):
            for v in ranks:
                if v in own:
                    for weight, units in self.units(kind, v, own[v], sent):
                        yield v, weight, units

    def write(self, plan: Plan) -> list[Tree]:
        """The trees."""
        return [
            Tree(root, "broadcast", weight, tuple(self.edges(units)))
            for root, weight, units in self.plans(plan)
        ]

    def fold(self, plan: Plan, group: SymmetryGroup, capacity: Sequence[int]) -> Plan | None:
        """The same for one root of each orbit, links filled as evenly; None if that is not found.

        `group` moves the only kind's part within itself by all generators but the first.
        """
        inner = symmetry_group(self.graph, group.generators[1:])
        home: dict[int, Image] = {}  # per rank the element that brings it to its representative
        (ranks,), (pair,) = self.members, self.pairs
        for element in inner.elements():
            for v in ranks:
                if element[v] == group.node[v]:
                    home[v] = element
        ends = self.graph.along(group.link)
        orbit = {(u, v): e for u, v, e in ends if (u, v) in self.size}
        room = {  # of all images together, for each element of the group
            e: capacity[e] * count // group.size for e, count in Counter(group.link).items()
        }
        roots = [v for v in ranks if group.node[v] == v]
        pools = []
        for shares, wanted in ((plan[0], self.k), (plan[1][pair], self.each(pair))):
            for root in roots:
                items: list[tuple[Entry, Use, int]] = []
                for v in ranks:
                    if group.node[v] == root:
                        items += [(_move(e, home[v]), _use(e, orbit), n) for e, n in shares[v]]
                pools.append((items, wanted))
        units = choose_units(pools, room)
        if units is None:
            return None
        own, entries = units[: len(roots)], units[len(roots) :]
        return (
            dict(zip(roots, own, strict=True)),
            {pair: dict(zip(roots, entries, strict=True))},
        )

    def each(self, pair: Pair) -> int:
        """Units of each rank: into every part of its own kind one apart, into others in one way."""
        return self.k * (len(pair.parts) if pair.within else 1)

    def routes(self, pair: Pair, tries: Iterable[tuple[int, int]]) -> Entries | None:
        """Ways for the units of a pair; takes their room.

        At first each rank sends and takes in equally much, then more and more as links allow.
        """
        starts, ends, each = self.members[pair.source], self.members[pair.target], self.each(pair)
        total = len(starts) * each
        even = -(-total // len(ends))
        for out, into in tries:
            ways = self.flow(pair, total, each * out // EIGHTHS, even * into // EIGHTHS)
            if sum(units for _, units in ways) == total:
                for route, units in ways:
                    for link in pairwise(route.path):
                        self.left[link] -= units * pair.images // self.size[link]
                return ways
        return None

    def flow(self, pair: Pair, total: int, most_out: int, most_in: int) -> Entries:
        number: dict[tuple[int, int], int] = {}
        side = HERE if self.own[pair.source] else FIXED
        end = THERE if self.own[pair.target] else FIXED
        for v in (-1, -2, -3):
            number[v, side] = len(number)
        source, first, sink = range(3)

        def at(v: int, where: int) -> int:
            return number.setdefault((v, where), len(number))

        arcs = [(source, first, total)]
        arcs += [(first, at(v, side), most_out) for v in self.members[pair.source]]
        arcs += [(at(v, end), sink, most_in) for v in self.members[pair.target]]
        sides = {v: self.sides(pair, v) for link in self.left for v in link}
        load = {p: len(self.members[p.source]) * self.each(p) * p.images for p in self.pairs}
        out = sum(n for p, n in load.items() if p.source == pair.source)
        into = sum(n for p, n in load.items() if p.target == pair.target)
        for (u, v), c in self.left.items():
            if self.full and not self.ranks.isdisjoint((u, v)):
                c = min(c, self.full[u, v] * load[pair] // (into if v in self.ranks else out))
            room = c * self.size[u, v] // pair.images
            for a, b in product(sides[u], sides[v]):
                outward = u not in self.ranks or a == side
                inward = v not in self.ranks or b == end
                if outward and inward and a <= b and (a == b or FIXED in (a, b)) and room > 0:
                    arcs.append((at(u, a), at(v, b), room))
        nodes = list(number)
        ways = []
        for walk, units in walks(len(nodes), arcs, source, sink):
            way = [nodes[i] for i in walk[2:-1]]
            ways.append((Route(tuple(v for v, _ in way), tuple(side for _, side in way)), units))
        return ways

    def sides(self, pair: Pair, v: int) -> tuple[int, ...]:
        """Where a node may be on a way of the pair."""
        if not pair.own.issuperset(self.moved[v]):
            return ()
        if pair.within:
            return (FIXED,) if pair.apart.isdisjoint(self.moved[v]) else (HERE, THERE)
        if self.kind[v] < 0:
            return (FIXED,)
        return (HERE,) if self.kind[v] == pair.source else (THERE,)

    def spread(
        self, kind: int, routes: dict[Pair, Entries], own: Shares
    ) -> dict[Pair, list[tuple[int, tuple[Entry, int]]]] | None:
        """How what the routes bring to a kind's part spreads; into `own` what its ranks keep.

        The highest trees stay with their ranks. None where the links do not suffice. What comes
        from another kind comes from all of its parts, and in the same way: where all units count so
        often, `times`, they are packed as one.
        """
        into = sorted((pair for pair in routes if pair.target == kind), key=lambda p: not p.within)
        many = {pair: 1 if pair.within else self.count[pair.source] for pair in into}
        times = math.gcd(*many.values())
        supply = dict.fromkeys(self.members[kind], -(-self.k // times))
        come: dict[int, list[tuple[Pair, Route, int]]] = defaultdict(list)
        for pair in into:
            for route, units in routes[pair]:
                supply[route.path[-1]] += units * many[pair] // times
                come[route.path[-1]].append((pair, route, units))
        nodes = set(self.nodes[kind])
        links = {(u, v): c // times for (u, v), c in self.left.items() if {u, v} <= nodes}
        inside = pack_inside(self.graph, links, supply)
        if inside is None:
            return None
        entered: dict[Pair, list[tuple[int, tuple[Entry, int]]]] = {pair: [] for pair in into}
        for v in self.members[kind]:
            trees = sorted(inside[v], key=height_of, reverse=True)
            mine, rest = split([(t.edges, t.weight) for t in trees], -(-self.k // times))
            kept: list[tuple[Entry, int]]
            kept = [((edges, None), units * times) for edges, units in mine]
            own[v], _ = split(kept, self.k)
            rest.reverse()
            for pair, route, units in come[v]:
                one = many[pair] // times
                while units:
                    edges, amount = rest.pop()
                    taken = min(units, amount // one)
                    if not taken:
                        return None
                    entered[pair].append((route.path[0], ((edges, route), taken)))
                    units -= taken
                    if amount > taken * one:
                        rest.append((edges, amount - taken * one))
        return entered

    def units(
        self,
        kind: int,
        root: int,
        own: list[tuple[Entry, int]],
        sent: dict[Pair, Shares],
    ) -> Iterator[tuple[int, tuple[Unit, ...]]]:
        """The trees of a root, equal ones together: how it spreads at home, how it enters parts."""
        ways: list[list[tuple[Unit, int]]]
        ways = [[((kind, range(1), item), units) for item, units in own]]
        for pair in sorted(sent, key=lambda pair: (pair.within, pair.target, pair.parts.start)):
            if pair.source != kind:
                continue
            rest = sent[pair][root]
            for parts in [range(p, p + 1) for p in pair.parts] if pair.within else [pair.parts]:
                some, rest = split(rest, self.k)
                ways.append([((pair.target, parts, item), units) for item, units in some])
        looks: dict[tuple[int, ...], tuple[int, tuple[Unit, ...]]] = {}
        for unit, weight in slices(ways, self.k):
            look = tuple([id(item) for _, _, item in unit])
            before = looks[look][0] if look in looks else 0
            looks[look] = before + weight, unit
        yield from looks.values()

    def edges(self, units: Sequence[Unit]) -> Iterator[Path]:
        """The ways into parts, and on from where these end."""
        for kind, parts, item in units:
            for part in parts:
                ways = self.known.get((id(item), part))
                if ways is None:
                    ways = self.enter(item, self.elements[kind][part])
                    self.known[id(item), part] = ways
                yield from ways

    def enter(self, entry: Entry, to: Mapping[int, int]) -> list[Path]:
        """The way into a part, and those in it, where `to` brings the first of its kind."""
        edges, route = entry
        ways = [tuple([to.get(v, v) for v in path]) for path in edges]
        if route is None:
            return ways
        hops = zip(*route, strict=True)
        return [tuple([v if side == HERE else to.get(v, v) for v, side in hops]), *ways]


def _move(entry: Entry, element: Image) -> Entry:
    """`entry` as a symmetry maps it."""
    edges, route = entry
    if route is not None:
        route = route._replace(path=tuple([element[v] for v in route.path]))
    return tuple([tuple([element[v] for v in path]) for path in edges]), route


def _use(entry: Entry, orbit: Links) -> Use:
    """How much of each orbit of links `entry` takes."""
    edges, route = entry
    paths = edges if route is None else (route.path, *edges)
    return use_of(orbit[pair] for path in paths for pair in pairwise(path))
