"""Packing of equal parts under rotation: one part is packed, its images fill the others.

The tree of a root goes from its part straight to every other part, over one outside switch, and
enters each of them at one rank; inside a part it is a tree from that rank. Seen from one part this
is a small problem of its own: besides its k trees, every rank is the root of as many as enter there
for roots elsewhere, over the links of the part and what entering and sending leave of the links to
the outside. That problem is packed by `pack`, exactly. Since parts may be rotated, all that has to
be right is what each orbit of links carries in all, so it does not matter which part a tree of the
solution is used in.

Where parts have a symmetry of their own, one root an orbit will do, as long as there are trees for
it that, moved by the whole group, fill the links as evenly (`choose_units`); else all ranks of a
part are representatives.

Quotient of a packing: from all ranks of a part to one of each orbit, with equal link loads.

A part's own symmetry brings every tree of an orbit's ranks to its representative. All of them in
equal measure fill the links as evenly as before; but a representative has room for its own units
only. What matters of a tree is how much of each orbit of links it takes: trees with the same use
are one class, and whole numbers of units of each class are looked for, first in proportion and
rounded, then with one class traded for another as long as overfull orbits get emptier.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.kernel import _kernel
from forestcoll.graph.symmetry.components import Components
from forestcoll.graph.symmetry.group import Image, SymmetryGroup, symmetry_group
from forestcoll.schedule.forest import Path, Tree
from forestcoll.solver.packing import pack, trim_to_supply
from forestcoll.solver.shares import apportion, slices

EDGES = 6_000_000
"""Tree edges of all representatives together, at most."""

A = TypeVar("A")
B = TypeVar("B")
Edges = tuple[Path, ...]
Links = dict[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class Route:
    """A way from rank `path[0]` over the outside to rank `path[-1]`.

    `path[:split]` is in the part of the sender, its last node outside; the rest, written as nodes
    of part 0, is in the part of the receiver.
    """

    path: Path
    split: int


Entry = tuple[Route | None, Edges]
"""How a tree enters a part (None: it begins there), and how it goes on (in nodes of part 0)."""


def pack_parts(
    graph: CapacityGraph, parts: Components, group: SymmetryGroup, k: int, capacity: Sequence[int]
) -> tuple[list[Tree], SymmetryGroup] | None:
    """(broadcast trees of representative roots, the group that makes the others), or None.

    `group`: rotation of the parts first, and what moves all parts alike. `capacity`: trees that
    each link may carry when all ranks are roots of `k`, alike within an orbit. None where this
    scheme does not reach what is asked.
    """
    scheme = _Scheme(graph, parts, k, capacity)
    plan = scheme.plan()
    if plan is None:
        return None
    if group.size > len(parts.members):
        roots = [v for v in scheme.ranks if group.node[v] == v]
        every = {group.node[v] for v in scheme.ranks} == set(roots)
        folded = scheme.fold(plan, group) if every and scheme.affordable(roots) else None
        if folded is not None:
            return [tree for root in roots for tree in scheme.trees(root, folded)], group
    if not scheme.affordable(scheme.ranks):
        return None
    trees = [tree for root in scheme.ranks for tree in scheme.trees(root, plan)]
    return trees, symmetry_group(graph, [parts.rotation])


@dataclass(slots=True)
class _Plan:
    """Per root: its trees inside its own part, and how they enter the others; with units."""

    own: dict[int, list[tuple[Entry, int]]]
    entries: dict[int, list[tuple[Entry, int]]]


class _Scheme:
    """One part of a graph, and what goes into it and out of it."""

    def __init__(
        self, graph: CapacityGraph, parts: Components, k: int, capacity: Sequence[int]
    ) -> None:
        self.graph = graph
        self.parts = parts
        self.k = k
        self.capacity = capacity
        self.foreign = (len(parts.members) - 1) * k  # units per root that enter other parts
        ranks = set(graph.ranks)
        part, self.outside = set(parts.members[0]), set(parts.outside)
        self.ranks = [v for v in parts.members[0] if v in ranks]
        self.place = {v: i for i, v in enumerate(parts.members[0])}
        self.links: Links = {
            (u, v): c
            for u, v, c in graph.along(capacity)
            if (u in part and (v in part or v in self.outside)) or (v in part and u in self.outside)
        }

    def affordable(self, roots: Sequence[int]) -> bool:
        """Whether the trees of these roots are not too many to write down."""
        return len(roots) * self.k * len(self.graph.ranks) <= EDGES

    def plan(self) -> _Plan | None:
        """All that the trees are made of, or None where links do not suffice.

        At first each rank sends and takes in equally much, then as links allow.
        """
        total = len(self.ranks) * self.foreign
        each = self.foreign
        for out, into in ((each, each), (total, each), (each, total), (total, total)):
            routes = self.routes(out, into)
            if sum(units for _, units in routes) < total:
                continue
            inside = self.inside(routes)
            if inside is not None:
                return self.divide(routes, inside)
        return None

    # ------------------------------------------------------------------ between the parts

    def routes(self, most_out: int, most_in: int) -> list[tuple[Route, int]]:
        """Ways with units for all that enters other parts, or for as much as can be sent.

        No rank sends more than `most_out` or takes in more than `most_in`.
        """
        source, first, sink = 0, 1, 2
        nodes = [-1, -1, -1]
        number: dict[tuple[int, bool], int] = {}  # (node, whether behind the outside)

        def at(v: int, behind: bool) -> int:
            key = (v, behind and v not in self.outside)
            if key not in number:
                number[key] = len(nodes)
                nodes.append(v)
            return number[key]

        ranks = set(self.ranks)
        arcs = [(source, first, len(self.ranks) * self.foreign)]
        for v in self.ranks:
            arcs += [(first, at(v, False), most_out), (at(v, True), sink, most_in)]
        for (u, v), c in self.links.items():
            if v not in ranks and u not in self.outside:
                arcs.append((at(u, False), at(v, False), c))
            if u not in ranks and v not in self.outside:
                arcs.append((at(u, True), at(v, True), c))
        routes = []
        for walk, units in walks(len(nodes), arcs, source, sink):
            path = tuple(nodes[i] for i in walk[2:-1])
            split = next(i for i, v in enumerate(path) if v in self.outside) + 1
            routes.append((Route(path, split), units))
        return routes

    # ------------------------------------------------------------------ inside a part

    def inside(self, routes: Sequence[tuple[Route, int]]) -> dict[int, list[Tree]] | None:
        """Per rank its trees inside the part, those included that enter there; None if none fit."""
        left = dict(self.links)
        supply = dict.fromkeys(self.ranks, self.k)
        for route, units in routes:
            supply[route.path[-1]] += units
            for pair in pairwise(route.path):
                left[pair] -= units
        if min(left.values(), default=0) < 0:  # the way in and the way out share a link
            return None
        return pack_inside(self.graph, left, supply)

    # ------------------------------------------------------------------ both together

    def divide(self, routes: Sequence[tuple[Route, int]], inside: dict[int, list[Tree]]) -> _Plan:
        """Which of the trees inside a part are whose.

        The tallest stay at home: those that are entered from outside have a hop before them. A root
        sends by itself what it can; another rank of its part sends for it what it cannot.
        """
        arriving: dict[int, list[tuple[Route, int]]] = defaultdict(list)
        for route, units in routes:
            arriving[route.path[-1]].append((route, units))
        own, entered = {}, []
        for v in self.ranks:
            trees = sorted(inside[v], key=height_of, reverse=True)
            kinds: list[tuple[Entry, int]] = [((None, tree.edges), tree.weight) for tree in trees]
            own[v], kinds = split(kinds, self.k)
            for (_, edges), route, units in join(kinds, arriving[v]):
                entered.append((route.path[0], ((route, edges), units)))
        return _Plan(own, hand_out(entered, self.ranks, self.foreign))

    def fold(self, plan: _Plan, group: SymmetryGroup) -> _Plan | None:
        """The same for one root of each orbit, links filled as evenly; None if that is not found.

        `group` moves part 0 within itself by all generators but the first.
        """
        inner = symmetry_group(self.graph, group.generators[1:])
        home: dict[int, Image] = {}  # per rank the element that brings it to its representative
        for element in inner.elements():
            for v in self.ranks:
                if element[v] == group.node[v]:
                    home[v] = element
        ends = self.graph.along(group.link)
        orbit = {(u, v): e for u, v, e in ends if (u, v) in self.links}
        room = {  # of all images together, for each element of the group
            e: self.capacity[e] * count // group.size for e, count in Counter(group.link).items()
        }
        roots = [v for v in self.ranks if group.node[v] == v]
        pools = []
        for parts, wanted in ((plan.own, self.k), (plan.entries, self.foreign)):
            for root in roots:
                items: list[tuple[Entry, Use, int]] = []
                for v in self.ranks:
                    if group.node[v] == root:
                        items += [(_move(e, home[v]), _use(e, orbit), n) for e, n in parts[v]]
                pools.append((items, wanted))
        units = choose_units(pools, room)
        if units is None:
            return None
        own, entries = units[: len(roots)], units[len(roots) :]
        return _Plan(dict(zip(roots, own, strict=True)), dict(zip(roots, entries, strict=True)))

    def trees(self, root: int, plan: _Plan) -> list[Tree]:
        """The trees of `root`, `k` units in all; equal ones are one."""
        ways, rest = [plan.own[root]], plan.entries[root]
        for _ in self.parts.members[1:]:
            some, rest = split(rest, self.k)
            ways.append(some)
        weights: dict[Edges, int] = defaultdict(int)
        for entries, weight in slices(ways, self.k):
            each = zip(entries, self.parts.members, strict=True)
            edges = tuple([path for entry, part in each for path in self.enter(entry, part)])
            weights[edges] += weight
        return [Tree(root, "broadcast", weight, tree) for tree, weight in weights.items()]

    def enter(self, entry: Entry, part: Sequence[int]) -> Iterator[Path]:
        """The way into `part`, and the ways inside it."""
        route, edges = entry
        place = self.place
        if route is not None:
            way = tuple([part[place[v]] for v in route.path[route.split :]])
            yield route.path[: route.split] + way
        for path in edges:
            yield tuple([part[place[v]] if v in place else v for v in path])


def pack_inside(
    graph: CapacityGraph, left: Links, supply: Mapping[int, int]
) -> dict[int, list[Tree]] | None:
    """Per rank of `supply` so many trees over links of a part; None where they do not suffice."""
    if len(supply) == 1:
        return {v: [Tree(v, "broadcast", units, ())] for v, units in supply.items()}
    links = {pair: units for pair, units in left.items() if units}
    nodes = sorted({*supply, *(v for pair in links for v in pair)})
    inner = graph.restrict(nodes, links)
    wanted = [supply.get(v, 0) for v in nodes]
    capacity = trim_to_supply(inner, wanted)
    if capacity is None:
        return None
    trees: dict[int, list[Tree]] = {v: [] for v in supply}
    for tree in pack(inner, capacity, wanted):
        edges = tuple(tuple(nodes[v] for v in path) for path in tree.edges)
        root = nodes[tree.root]
        trees[root].append(replace(tree, root=root, edges=edges))
    return trees


def _move(entry: Entry, element: Image) -> Entry:
    """`entry` as a symmetry maps it."""
    route, edges = entry
    if route is not None:
        route = replace(route, path=tuple([element[v] for v in route.path]))
    return route, tuple([tuple([element[v] for v in path]) for path in edges])


def _use(entry: Entry, orbit: Links) -> Use:
    """How much of each orbit of links `entry` takes."""
    route, edges = entry
    paths = edges if route is None else (route.path, *edges)
    return use_of(orbit[pair] for path in paths for pair in pairwise(path))


def split(
    items: Iterable[tuple[A, int]], units: int
) -> tuple[list[tuple[A, int]], list[tuple[A, int]]]:
    """(the first `units` units of `items`, the rest)."""
    first: list[tuple[A, int]] = []
    rest: list[tuple[A, int]] = []
    for item, amount in items:
        taken = min(amount, units)
        units -= taken
        if taken:
            first.append((item, taken))
        if amount > taken:
            rest.append((item, amount - taken))
    return first, rest


def join(a: Iterable[tuple[A, int]], b: Iterable[tuple[B, int]]) -> Iterator[tuple[A, B, int]]:
    """Unit after unit of `a` with one of `b`, equal pairs together."""
    queue = list(b)[::-1]
    for item, amount in a:
        while amount and queue:
            other, most = queue.pop()
            units = min(amount, most)
            yield item, other, units
            amount -= units
            if most > units:
                queue.append((other, most - units))


def hand_out(
    entered: Iterable[tuple[int, tuple[A, int]]], roots: Sequence[int], each: int
) -> dict[int, list[tuple[A, int]]]:
    """`each` unit for every root: first of what it sends by itself, then of what mates send.

    `entered`: who sends it, what came in, and how many units of it.
    """
    sent: dict[int, list[tuple[A, int]]] = {v: [] for v in roots}
    spare: list[tuple[A, int]] = []
    for root, item in entered:
        sent[root].append(item)
    for v in roots:
        sent[v], rest = split(sent[v], each)
        spare += rest
    for v in roots:
        more, spare = split(spare, each - sum(units for _, units in sent[v]))
        sent[v] += more
    return sent


def height_of(tree: Tree) -> int:
    depth = {tree.root: 0}
    for path in tree.edges:
        depth[path[-1]] = depth[path[0]] + 1
    return max(depth.values())


def walks(
    nodes: int, arcs: Sequence[tuple[int, int, int]], source: int, sink: int
) -> Iterator[tuple[list[int], int]]:
    """(nodes from source to sink, units): a maximum flow as paths, without what goes in circles.

    `arcs`: tail, head, the most that may flow.
    """
    tail, head, limit = zip(*arcs, strict=True)
    flow = _kernel.maximum_flow(nodes, tail, head, limit, source, sink)
    left: dict[int, list[list[int]]] = defaultdict(list)  # node -> [head, units] of its arcs
    for (u, v, _), units in zip(arcs, flow, strict=True):
        if units > 0:
            left[u].append([v, units])
    while left[source]:
        walk, passed, place = [source], [], {source: 0}
        while walk[-1] != sink:
            while left[walk[-1]] and not left[walk[-1]][-1][1]:
                left[walk[-1]].pop()
            if not left[walk[-1]]:
                break
            arc = left[walk[-1]][-1]
            passed.append(arc)
            if arc[0] in place:  # a circle: take it away and go on from where it began
                start = place[arc[0]]
                units = min(a[1] for a in passed[start:])
                for a in passed[start:]:
                    a[1] -= units
                for v in walk[start + 1 :]:
                    del place[v]
                del walk[start + 1 :], passed[start:]
                continue
            place[arc[0]] = len(walk)
            walk.append(arc[0])
        if walk[-1] != sink:
            break
        units = min(arc[1] for arc in passed)
        for arc in passed:
            arc[1] -= units
        yield walk, units


T = TypeVar("T")
Use = tuple[tuple[int, int], ...]
"""(orbit of links, how often it is taken), sorted."""

WORK = 50_000
"""Exchanges of one class for another that are looked at, at most: some tenths of a second."""


Pool = tuple[Sequence[tuple[T, Use, int]], int]
"""Things to choose from, (thing, use, units at hand), and how many units are needed."""


def choose_units(
    pools: Sequence[Pool[T]], room: Mapping[int, int]
) -> list[list[tuple[T, int]]] | None:
    """Per pool (thing, units), `wanted` in all; no orbit takes more than `room`. None if not found.

    A thing may be taken more often than it is at hand: only the use counts.
    """
    classes = [_classes(items) for items, _ in pools]
    units = [
        apportion([at_hand for _, _, at_hand in pool], wanted)
        for pool, (_, wanted) in zip(classes, pools, strict=True)
    ]
    if not _trade(classes, units, room):
        return None
    return [
        [(thing, count) for (thing, _, _), count in zip(pool, counts, strict=True) if count]
        for pool, counts in zip(classes, units, strict=True)
    ]


def use_of(orbits: Iterable[int]) -> Use:
    """The use of a tree whose edges run over links of these orbits."""
    return tuple(sorted(Counter(orbits).items()))


def _classes(items: Sequence[tuple[T, Use, int]]) -> list[tuple[T, Use, int]]:
    """One thing of each use, that with the most units, and the units of all of them."""
    best: dict[Use, tuple[T, int]] = {}
    total: dict[Use, int] = defaultdict(int)
    for thing, use, units in items:
        total[use] += units
        if use not in best or units > best[use][1]:
            best[use] = (thing, units)
    return [(thing, use, total[use]) for use, (thing, _) in best.items()]


def _trade(
    classes: Sequence[Sequence[tuple[T, Use, int]]],
    units: list[list[int]],
    room: Mapping[int, int],
) -> bool:
    """Trades units of one class for another until all fits; whether it does."""
    left = defaultdict(int, room)
    for things, counts in zip(classes, units, strict=True):
        for (_, use, _), count in zip(things, counts, strict=True):
            for orbit, times in use:
                left[orbit] -= times * count
    pairs = sum(len(things) ** 2 for things in classes)
    for _ in range(1 + WORK // pairs):
        over = {orbit for orbit, spare in left.items() if spare < 0}
        if not over:
            return True
        best = None
        for pool, (things, counts) in enumerate(zip(classes, units, strict=True)):
            for i, (_, given, _) in enumerate(things):
                if not counts[i] or over.isdisjoint(orbit for orbit, _ in given):
                    continue  # nothing gets emptier
                for j, (_, taken, _) in enumerate(things):
                    gain = _gain(left, given, taken)
                    if gain > 0 and (best is None or gain > best[0]):
                        best = (gain, pool, i, j)
        if best is None:
            return False
        _, pool, i, j = best
        units[pool][i] -= 1
        units[pool][j] += 1
        for orbit, times in classes[pool][i][1]:
            left[orbit] += times
        for orbit, times in classes[pool][j][1]:
            left[orbit] -= times
    return False


def _gain(left: Mapping[int, int], given: Use, taken: Use) -> int:
    """How much less overfull orbits are when a unit of one use makes place for one of another."""
    change: dict[int, int] = dict(given)
    for orbit, times in taken:
        change[orbit] = change.get(orbit, 0) - times
    return sum(
        min(left.get(orbit, 0) + times, 0) - min(left.get(orbit, 0), 0)
        for orbit, times in change.items()
    )
