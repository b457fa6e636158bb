"""Static routes for blocks of any size: every block leaves its box over all of the box's NICs.

Boxes of g GPUs, each GPU with NVLink v and a NIC c, between the boxes one switch or rails (a switch
for the j-th GPUs of all boxes), with nothing but the NICs to limit them. A block for another box is
cut in g pieces; piece j goes to GPU j of the own box, over its NIC to GPU j of the target's box,
and home. Whatever the sizes, nothing is solved anew, and it takes at most 1 + 2 c / v times as long
as the best for just these sizes. For with T that best time:

* NICs carry O_b / g and I_b / g of what leaves and enters box b, which takes at most T, as all
  of it has to cross the box's g NICs;
* out of GPU x into NVLink goes what x sends in its box (l), what it hands to the other NICs
  (at most o, what it sends to other boxes), and what it brings home of what its NIC takes in
  (I_b / g). l + o is at most T (v + c), as it has to leave x; I_b / g at most T c. So that is
  T (v + 2 c). The other direction is the same, turned round.

Twice uniform: a static plan for blocks of any size, on any fabric.

Every rank cuts all that it sends in as many equal shares as there are ranks, and sends each rank
one of them; then every rank delivers what it holds (Valiant's two phases). Both are all-to-alls of
equal blocks, over the same routes whatever the sizes, so nothing is solved per call:

    time <= (largest sum of a row + largest sum of a column) / algbw of equal blocks

with what stays at its rank left out. No static plan is much better for all matrices at once: the
even matrix with such rows alone takes half of that.

A process group carries it out as two calls of a plan of equal blocks: the first with the largest
row's share as block, padded, the second with the largest column's.

Routes that somebody else chose: blocks' ways over ranks, each hop the shortest way of links.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.group import symmetry_group
from forestcoll.solver.alltoall.demand import Demand
from forestcoll.solver.alltoall.flows import Optimum
from forestcoll.solver.alltoall.routes import Path, Route, Routes, check
from forestcoll.solver.walks import by_box, neighbours

if TYPE_CHECKING:
    from forestcoll.solver.alltoall.routes import Flow

MOST_PATHS = 1_000_000
"""Paths that are listed at most."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """GPUs of each box (nodes, in rank order); GB/s of a GPU's NVLink and NIC, each direction."""

    members: tuple[tuple[int, ...], ...]
    inside: Fraction
    network: Fraction

    @property
    def factor(self) -> Fraction:
        """How much longer than the best it takes at most, whatever the sizes."""
        return 1 + 2 * self.network / self.inside


def boxes_of(graph: CapacityGraph) -> Boxes:
    """The boxes; UnsupportedError where they are not two or more of equal GPUs on switches."""
    homes = by_box(graph, graph.ranks)
    sizes = {len(members) for members in homes.values()}
    if len(homes) < 2 or len(sizes) != 1 or min(sizes) < 2 or "" in homes:
        raise UnsupportedError("spread routes are for two or more boxes of as many GPUs, two each")
    rates: dict[tuple[int, bool, bool], Fraction] = defaultdict(Fraction)
    for e, (u, v) in enumerate(graph.ends):
        for gpu, other, out in ((u, v, True), (v, u, False)):
            if graph.gpu[gpu]:
                if graph.gpu[other]:
                    raise UnsupportedError("spread routes are for GPUs on switches, not on GPUs")
                rates[gpu, graph.box(gpu) == graph.box(other), out] += graph.bandwidth(e)
    inside = {rates[v, True, out] for v in graph.ranks for out in (True, False)}
    network = {rates[v, False, out] for v in graph.ranks for out in (True, False)}
    if len(inside) != 1 or len(network) != 1 or 0 in inside | network:
        raise UnsupportedError(
            "spread routes are for GPUs with NVLink and a NIC each, all alike; here some differ"
        )
    return Boxes(tuple(map(tuple, homes.values())), inside.pop(), network.pop())


def spread(best: Optimum) -> Routes:
    """The routes, with as many units as a box has GPUs. Raises UnsupportedError as `boxes_of`."""
    graph = best.demand.graph
    if not best.demand.even:
        raise UnsupportedError("spread routes are for an all-to-all among all ranks")
    boxes = boxes_of(graph)
    count = len(boxes.members[0])
    if len(graph.ranks) ** 2 * count > MOST_PATHS:
        raise UnsupportedError(f"spread routes: more than {MOST_PATHS:,} paths to list")
    ways = _Ways(graph)
    listed: list[Route] = []
    for home in boxes.members:
        for source in home:
            for other in boxes.members:
                for target in other:
                    if source == target:
                        continue
                    if home is other:
                        listed.append(Route(ways.join(source, target), count))
                        continue
                    for a, b in zip(home, other, strict=True):
                        listed.append(Route(ways.join(source, a, b, target), 1))
    routes = Routes(best, symmetry_group(graph, []), count, tuple(listed))
    check(routes)
    return routes


class _Ways:
    """Ways through switches from GPU to GPU, inside the box where both are in one."""

    def __init__(self, graph: CapacityGraph) -> None:
        self.graph = graph
        self.near = neighbours(graph.n, graph.ends)
        self.known: dict[tuple[int, int], Path] = {}

    def join(self, *stops: int) -> Path:
        """One path over these GPUs, those that stand twice in a row once."""
        path = [stops[0]]
        for u, v in pairwise(stops):
            if u != v:
                path.extend(self.way(u, v)[1:])
        return tuple(path)

    def way(self, source: int, target: int) -> Path:
        """The first of the shortest."""
        way = self.known.get((source, target))
        if way is not None:
            return way
        graph = self.graph
        box = graph.box(source) if graph.box(source) == graph.box(target) else None
        parent, queue = {source: source}, [source]
        for u in queue:
            if u != source and graph.gpu[u]:
                continue
            for v in self.near[u]:
                if v not in parent and (box is None or graph.box(v) == box):
                    parent[v] = u
                    queue.append(v)
        if target not in parent:
            raise UnsupportedError(
                f"spread routes: no switches lead from {graph.names[source]} to "
                f"{graph.names[target]}"
            )
        path = [target]
        while path[-1] != source:
            path.append(parent[path[-1]])
        if len(path) > 3:  # then links between switches would have a say in the promise
            raise UnsupportedError(
                f"spread routes are for one switch between two GPUs; from {graph.names[source]} to "
                f"{graph.names[target]} it takes {len(path) - 2}"
            )
        self.known[source, target] = tuple(reversed(path))
        return self.known[source, target]


def waits(
    routes: Routes, matrix: Sequence[Sequence[int]]
) -> tuple[Fraction, tuple[tuple[Fraction, int], ...]]:
    """(nanoseconds in all, per rank those until its own blocks are through and the slowest link).

    A rank's own blocks are what it sends and what it takes in; the slowest link of those that any
    of them crosses is what it waits for. A rank without blocks waits 0 for link -1.
    """
    graph = routes.graph
    number = graph.numbers
    rank = graph.rank_of
    times = _link_times(routes, matrix)
    order = sorted(range(len(times)), key=lambda e: (times[e], -e))
    place = [0] * len(order)  # fractions are slow to compare for each path
    for number_of_faster, e in enumerate(order):
        place[e] = number_of_faster
    slowest = [-1] * len(rank)
    for route in routes.routes:
        source, target = rank[route.path[0]], rank[route.path[-1]]
        if matrix[source][target]:
            last = max(place[number[hop]] for hop in pairwise(route.path))
            for end in (source, target):
                slowest[end] = max(slowest[end], last)
    links = [order[last] if last >= 0 else -1 for last in slowest]
    return max(times), tuple((times[e] if e >= 0 else Fraction(0), e) for e in links)


def _link_times(routes: Routes, matrix: Sequence[Sequence[int]]) -> list[Fraction]:
    """Nanoseconds that each link is busy."""
    graph = routes.graph
    number = graph.numbers
    rank = graph.rank_of
    load = [0] * len(graph.tail)
    for route in routes.routes:
        amount = matrix[rank[route.path[0]]][rank[route.path[-1]]] * route.units
        for hop in pairwise(route.path):
            load[number[hop]] += amount
    return [Fraction(amount, routes.units) / graph.bandwidth(e) for e, amount in enumerate(load)]


def least_time(demand: Demand, boxes: Boxes, matrix: Sequence[Sequence[int]]) -> Fraction:
    """Nanoseconds that nothing beats: what each GPU, and each box, has to send and to take in."""
    rank = demand.graph.rank_of
    best = Fraction(0)
    singles = [(v,) for members in boxes.members for v in members]
    for members in (*singles, *boxes.members):
        inside = {rank[v] for v in members}
        outside = set(rank.values()) - inside
        out = sum(matrix[i][j] for i in inside for j in outside)
        into = sum(matrix[j][i] for i in inside for j in outside)
        rate = boxes.network * len(members) + (boxes.inside if len(members) == 1 else 0)
        best = max(best, Fraction(max(out, into)) / rate)
    return best


@dataclass(frozen=True, slots=True)
class Twice:
    """Nanoseconds that spreading and delivering take at most, one after the other.

    `shares`: bytes of a block in each of the two, exact (a call rounds up).
    """

    spreading: Fraction
    delivering: Fraction
    shares: tuple[Fraction, Fraction]

    @property
    def nanoseconds(self) -> Fraction:
        """Both."""
        return self.spreading + self.delivering


def twice_uniform(even: Optimum, matrix: Sequence[Sequence[int]]) -> Twice:
    """What two all-to-alls of equal blocks take for `matrix` (bytes from rank to rank).

    `even`: the optimum of equal blocks among the same ranks; routes of whole units take longer by
    what they stay below it. Raises UnsupportedError where it is one of a matrix or of groups.
    """
    if not even.demand.even:
        raise UnsupportedError("twice uniform takes the optimum of equal blocks among all ranks")
    n = len(even.demand.graph.ranks)
    rows = [sum(amount for j, amount in enumerate(row) if j != i) for i, row in enumerate(matrix)]
    columns = [sum(matrix[i][j] for i in range(n) if i != j) for j in range(n)]
    shares = Fraction(max(rows), n), Fraction(max(columns), n)
    return Twice(shares[0] / even.theta, shares[1] / even.theta, shares)


def routes_over(best: Optimum, flows: Sequence[Flow], units: int = 1) -> Routes:
    """The same as listed routes. Where no switches lead from rank to rank, others pass on.

    Raises InfeasibleError where a hop has no way at all, ForestError where the flows do not give
    every pair its units.
    """
    from forestcoll.schedule.routes import routes

    graph = best.demand.graph
    ways = routes(graph).ways
    listed: Counter[tuple[int, ...]] = Counter()
    for flow in flows:
        path = [graph.ranks[flow.ranks[0]]]
        for hop in pairwise(flow.ranks):
            for node in ways[hop][1:]:
                if graph.gpu[node] and node in path:  # it was here before: it stays
                    del path[path.index(node) :]
                path.append(node)
        listed[tuple(path)] += flow.count
    every = tuple(Route(*pair) for pair in listed.items())
    result = Routes(best, symmetry_group(graph, []), units, every)
    check(result)
    return result
