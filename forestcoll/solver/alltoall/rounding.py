"""Whole units: routes near the optimum, with few units per pair.

A linear program over a free group says how much of each source's flow each link carries. A vertex
of it splits few pairs. Flow from one source with whole demands rounds to whole numbers within one
of what it was, link by link (a flow between floor and ceiling exists and is found by max-flow);
only what all sources together load on an orbit of links may then be a little too much. That is
repaired path by path: units that cross the fullest orbits take another way, by prices that rise
steeply with the load.

Floating point proposes here; what comes out is counted exactly.

Repair of routes: units leave the fullest links for ways that cost less.

A price on each orbit of links rises steeply with its load. One unit after another that crosses the
fullest orbits is taken off and put on its cheapest way; the move stays where the loads, from the
fullest on, have become smaller.

Free groups: symmetries that commute and leave no rank in place, as large a group as is found.

Routes are written for one source of each orbit, and moved by the group. Where the graph is regular
in an obvious way (`find_structures`) its group is taken. Otherwise members are drawn from all
symmetries that were found: random products of them and powers of those. A power of a map that turns
and shifts is often a mere shift, so shifts of tori are found whatever the nodes are called.

Groups for routes of a fabric that is regular but for a few boxes.

Where a box has lost a NIC no large group moves every rank. But what is left of the fabric without
the odd ranks is as regular as before (`find_structures`), and symmetries of that which keep the
rest in place are symmetries of the whole. The odd ranks among themselves (three boxes with a NIC
out) are looked at in the same way, all at once: where a symmetry moves some of them and keeps
another in place, that one's paths over those that move could not be told from their images.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from forestcoll.common.errors import ForestError, UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.components import find_structures
from forestcoll.graph.symmetry.group import (
    AbelianGroup,
    Image,
    SymmetryGroup,
    abelian_group,
    symmetry_group,
)
from forestcoll.program.sizes import is_power
from forestcoll.solver.alltoall.flows import Optimum
from forestcoll.solver.alltoall.fold import Folding, find_generators
from forestcoll.solver.alltoall.routes import (
    MOST_PATHS,
    Group,
    Path,
    Route,
    Routes,
    check,
    even_out,
)
from forestcoll.solver.flows.exact_lp import glop
from forestcoll.solver.walks import hops, links_out, neighbours, without_loops
from forestcoll.topology.numbers import percent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forestcoll.solver.alltoall.demand import Demand

    Array = NDArray[np.int64]

MOST_UNITS = 8
"""Units a pair that are tried where none are asked for."""
ENOUGH = Fraction(99, 100)
"""Of the optimum: what fewer units have to reach where none are asked for."""
MOST_VARIABLES = 400_000
"""Sources times links of the program; beyond, routes are out of reach."""
NEAR = 1e-5
"""Floats this near to a whole number are meant to be it."""
NARROW = 0.05
"""Hops that the narrowest link counts as beyond its own: what breaks ties between ways."""
PRIMAL = 2**15
"""Variables of the program from which on the primal simplex is faster behind switches (16 boxes of
DGX A100, a NIC out: 2.0 in place of 8.6 s)."""
PRICE_STEPS = 1000
"""Whole costs for a price of 1."""

Flow = dict[int, float]


def route(
    best: Optimum,
    units: int | None = None,
    min_share: Fraction | None = None,
    powers: bool = False,
) -> Routes:
    """Routes with `units` a pair, or with the fewest that reach `min_share` of the optimum.

    By default that is 99 %, with MOST_UNITS at most: then the best found. `powers`: where powers of
    two (ranks and units) reach it, the fewest of those: plans then serve every power of two.
    Raises UnsupportedError for matrices and groups, where the program is too large, and where
    `min_share` is not reached.
    """
    if not best.demand.even:
        raise UnsupportedError(
            "routes with equal units are for an all-to-all among all ranks; the flows of "
            "'forestcoll optimum --output' hold groups and matrices"
        )
    net = _Net(best, _group(best))
    flows = net.solve()
    routes: Routes | None = None
    reached = Fraction(0)
    wanted = min_share or ENOUGH
    for k in _units_to_try(len(best.demand.graph.ranks), powers) if units is None else (units,):
        rounded = net.round(flows, k)
        algbw = rounded.algbw
        if routes is None or algbw > reached:
            routes, reached = rounded, algbw
        if units is None and algbw >= wanted * best.bound:
            break
    assert routes is not None
    if units is None and min_share is not None and reached < min_share * best.bound:
        raise UnsupportedError(
            f"{MOST_UNITS} units per pair reach {percent(reached / best.bound)} of "
            f"the optimum, not {percent(min_share)}; --units takes more"
        )
    check(routes)
    return even_out(routes) if routes.total <= MOST_PATHS else routes


def _group(best: Optimum) -> Group:
    """A free group; where that leaves too many sources, one that keeps some ranks in place."""
    graph = best.demand.graph
    group = free_group(best.demand) or symmetry_group(graph, [])
    sources = len(graph.ranks) // group.size
    if sources * len(graph.tail) <= MOST_VARIABLES:
        return group
    return partial_group(graph, best.folding) or group


def _units_to_try(ranks: int, powers: bool) -> list[int]:
    """Numbers of units, the first choice first."""
    every = list(range(1, MOST_UNITS + 1))
    if powers and is_power(ranks):
        every.sort(key=lambda k: not is_power(k))
    return every


def _commodities(graph: CapacityGraph, group: Group, source: int) -> Iterator[Commodity]:
    """What is routed of a source: to each rank, or to one of those that are alike from it.

    Symmetries that keep a pair in place have to keep its paths too, or each of their images would
    be one more path of the same pair. So nodes that these move are closed to it.
    """
    others = tuple(v for v in graph.ranks if v != source)
    if not isinstance(group, AbelianGroup):
        yield Commodity(source, others, frozenset(range(graph.n)), 1)
        return
    seen = group.least_images(source)
    alike: dict[bytes, list[int]] = defaultdict(list)
    for v in others:
        if seen[v] == v:
            alike[group.keeping((source, v)).tobytes()].append(v)
    for targets in alike.values():
        pair = source, targets[0]
        open_ = frozenset(group.nodes_in_place(pair))
        yield Commodity(source, tuple(targets), open_, group.images_of(pair) / group.size)


class _Net:
    """The graph as the program sees it: commodities of a group, orbits of links by number."""

    def __init__(self, best: Optimum, group: Group) -> None:
        self.best, self.group = best, group
        self.graph = graph = best.demand.graph
        sizes = Counter(group.link)
        self.first = list(sizes)
        place = {o: i for i, o in enumerate(self.first)}
        self.orbit = [place[o] for o in group.link]
        # crossings of an orbit by listed paths, per unit of rate
        self.room = [sizes[o] * graph.capacity[o] / group.size for o in self.first]
        sources = list({group.node[v]: v for v in reversed(graph.ranks)}.values())[::-1]
        self.commodities = [c for source in sources for c in _commodities(graph, group, source)]
        self.of = {(c.source, target): c for c in self.commodities for target in c.targets}
        self.number = graph.numbers
        self.crossed: dict[Path, list[int]] = {}
        self.variables = sum(c.links(graph) for c in self.commodities)
        if self.variables > MOST_VARIABLES:
            raise UnsupportedError(
                f"routes of {len(sources)} sources (no symmetry makes them alike) over "
                f"{len(graph.tail)} links take a program of {self.variables:,} variables, over "
                f"{MOST_VARIABLES:,}; 'forestcoll optimum --output' writes flows without this limit"
            )

    # ------------------------------------------------------------------------ fractional

    def solve(self) -> list[Flow]:
        """Per commodity, what each link carries at the optimum, one unit to every target.

        Of all flows that reach it, those that cross the fewest links, wide ones before narrow ones;
        where the optimum was mixed out of trees, these.
        """
        best = self.best
        if best.proven is not None and len(best.flows) == len(self.commodities):
            flow_of = dict(zip(best.folding.sources, best.flows, strict=True))
            return [
                {e: float(amount / best.rate) for e, amount in flow_of[c.source].items()}
                for c in self.commodities
            ]
        graph = self.graph
        # no link costs less than nothing: shortest ways are where the dual simplex starts; behind
        # switches many are as short, and many variables take it four times as long
        dual = graph.n == len(graph.ranks) or self.variables < PRIMAL
        solver = glop(f"use_dual_simplex: {dual}")
        inf = solver.infinity()
        unit = (1 + NEAR / 100) / float(self.best.rate)
        rows = [solver.Constraint(-inf, room * unit) for room in self.room]
        links = list(enumerate(graph.along(self.orbit)))
        least = min(graph.capacity)
        cost = [1 + NARROW * least / c for c in graph.capacity]
        amounts: list[dict[int, Any]] = []
        for commodity in self.commodities:
            wanted = [0.0] * graph.n
            for v in commodity.targets:
                wanted[v] = 1.0
            wanted[commodity.source] = -float(len(commodity.targets))
            balance = [
                solver.Constraint(amount, amount) if v in commodity.open else None
                for v, amount in enumerate(wanted)
            ]
            mine: dict[int, Any] = {}
            for e, (u, v, orbit) in links:
                leaves, enters = balance[u], balance[v]
                if v == commodity.source or leaves is None or enters is None:
                    continue
                mine[e] = x = solver.NumVar(0, inf, "")
                rows[orbit].SetCoefficient(x, commodity.weight)
                leaves.SetCoefficient(x, -1)
                enters.SetCoefficient(x, 1)
                solver.Objective().SetCoefficient(x, cost[e] * commodity.weight)
            amounts.append(mine)
        solver.Objective().SetMinimization()
        if solver.Solve() != solver.OPTIMAL:
            raise UnsupportedError("the program of routes was not solved in floating point")
        values = [{e: x.solution_value() for e, x in mine.items()} for mine in amounts]
        return [{e: x for e, x in mine.items() if x > NEAR} for mine in values]

    # ------------------------------------------------------------------------ whole

    def round(self, flows: Sequence[Flow], units: int) -> Routes:
        """Routes with `units` a pair, near the flows."""
        load = Load(self.room, units / float(self.best.rate))
        routes: dict[Path, int] = {}
        for commodity, flow in zip(self.commodities, flows, strict=True):
            whole = self._whole(commodity, flow, units, load)
            for e, count in whole.items():
                load.count[self.orbit[e]] += commodity.weight * count
            routes |= self._paths(commodity, whole, units)
        load.count = [0] * len(self.room)  # circles are gone
        for path, count in routes.items():
            weight = self.of[path[0], path[-1]].weight
            for orbit in self.orbits(path):
                load.count[orbit] += weight * count
        Repair(self.graph, self.orbit, self.orbits, self.of, routes, load).run()
        listed = tuple(Route(path, count) for path, count in sorted(routes.items()))
        return Routes(self.best, self.group, units, listed)

    def orbits(self, path: Path) -> list[int]:
        """The orbits that a path crosses, link by link."""
        orbits = self.crossed.get(path)
        if orbits is None:
            orbits = self.crossed[path] = [self.orbit[self.number[hop]] for hop in pairwise(path)]
        return orbits

    def _whole(self, commodity: Commodity, flow: Flow, units: int, load: Load) -> dict[int, int]:
        """Whole numbers within one of `units` times the flow, and right at every node.

        Of the links that may carry one more, those whose orbits have room are taken.
        """
        from ortools.graph.python.min_cost_flow import SimpleMinCostFlow

        graph = self.graph
        whole = {e: math.floor(units * x + NEAR) for e, x in flow.items()}
        missing = [0] * graph.n
        for v in commodity.targets:
            missing[v] = units
        missing[commodity.source] = -units * len(commodity.targets)
        for e, count in whole.items():
            missing[graph.head[e]] -= count
            missing[graph.tail[e]] += count
        open_ = [e for e, x in flow.items() if units * x - whole[e] > NEAR]
        if not any(missing):
            return {e: count for e, count in whole.items() if count}
        solver = SimpleMinCostFlow()
        for e in open_:
            price = load.price(self.orbit[e], whole[e])
            cost = round(PRICE_STEPS * min(price, 1e3))
            solver.add_arc_with_capacity_and_unit_cost(graph.tail[e], graph.head[e], 1, cost)
        for v, count in enumerate(missing):
            solver.set_node_supply(v, -count)
        if solver.solve() != solver.OPTIMAL:
            raise UnsupportedError("internal: a flow could not be rounded")
        for arc, e in enumerate(open_):
            whole[e] += solver.flow(arc)
        return {e: count for e, count in whole.items() if count}

    def _paths(self, commodity: Commodity, whole: dict[int, int], units: int) -> dict[Path, int]:
        """Paths of whole units, from every target back to the source; circles are dropped."""
        graph, source = self.graph, commodity.source
        into: list[dict[int, int]] = [{} for _ in range(graph.n)]
        for e, count in whole.items():
            into[graph.head[e]][graph.tail[e]] = count
        paths: Counter[Path] = Counter()
        for target in commodity.targets:
            for _ in range(units):
                path = [target]
                while path[-1] != source:
                    near = into[path[-1]]
                    u = max(near, key=lambda u: (near[u], -u))
                    near[u] -= 1
                    if not near[u]:
                        del near[u]
                    path.append(u)
                paths[without_loops(path)[::-1]] += 1
        return dict(paths)


STEEPNESS = 30.0
"""Prices are exp(STEEPNESS * (load / room - 1))."""
HOP = 0.02
"""Price of a link whatever its load: no long way round for nothing."""
TRIES = 2000
"""Units that are taken off and put on again at most."""
FULL = 1e-9
"""Loads are equal to the room where they differ by less, as a share."""


@dataclass(frozen=True, slots=True)
class Commodity:
    """What one source sends to targets that the same symmetries keep in place with it.

    `open`: the nodes that its paths may use. `weight`: images of a path, as a share of the group.
    """

    source: int
    targets: tuple[int, ...]
    open: frozenset[int]
    weight: float

    def links(self, graph: CapacityGraph) -> int:
        """How many links its paths may use."""
        return sum(u in self.open and v in self.open for u, v in graph.ends)


class Load:
    """Crossings of each orbit, beside how many it has room for at the optimum."""

    def __init__(self, room: Sequence[float], units: float) -> None:
        self.room = [r * units for r in room]
        self.count: list[float] = [0] * len(self.room)

    def price(self, orbit: int, more: float = 0) -> float:
        """What one further crossing costs, with `more` there already."""
        over = (self.count[orbit] + more + 1) / self.room[orbit] - 1
        return math.exp(min(STEEPNESS * over, 200.0))

    def share(self, orbit: int) -> float:
        """How full an orbit is: 1 at the optimum."""
        return self.count[orbit] / self.room[orbit]

    def worst(self) -> float:
        """The largest share."""
        return max(map(self.share, range(len(self.room))))


class Repair:
    """The work on one set of routes: `routes` (path -> units) and `load` are changed in place."""

    def __init__(
        self,
        graph: CapacityGraph,
        orbit: Sequence[int],
        orbits: Callable[[Path], list[int]],
        of: Mapping[tuple[int, int], Commodity],
        routes: dict[Path, int],
        load: Load,
    ) -> None:
        self.graph, self.orbits, self.of = graph, orbits, of
        self.routes, self.load = routes, load
        self.near = links_out(graph.n, graph.along(orbit))
        self.into: list[set[int]] = [set() for _ in range(graph.n)]
        for v, entered in zip(graph.head, orbit, strict=True):
            self.into[v].add(entered)

    def run(self) -> None:
        """Until nothing is over its room, or nothing helps."""
        tries = TRIES
        while tries > 0:
            worst = self.load.worst()
            if worst <= 1 + FULL:
                return
            full = {o for o in range(len(self.load.room)) if self.load.share(o) > worst - FULL}
            moved = False
            for path in self.routes:  # which a move changes, and ends the loop
                if full.isdisjoint(self.orbits(path)):
                    continue
                tries -= 1
                if self._move(path):
                    moved = True
                    break
                if tries <= 0:
                    return
            if not moved:
                return

    def _move(self, path: Path) -> bool:
        """Whether one unit of `path` found a better way."""
        before, load = self.orbits(path), self.load
        commodity = self.of[path[0], path[-1]]
        weight = commodity.weight
        for orbit in before:
            load.count[orbit] -= weight
        other = self._cheapest(path, commodity.open)
        after = self.orbits(other)
        for orbit in after:
            load.count[orbit] += weight
        touched = set(before) | set(after)
        if other != path and self._better(before, after, touched, weight):
            self._shift(path, -1)
            self._shift(other, 1)
            return True
        for orbit in after:
            load.count[orbit] -= weight
        for orbit in before:
            load.count[orbit] += weight
        return False

    def _better(
        self, before: list[int], after: list[int], touched: set[int], weight: float
    ) -> bool:
        """Whether the fullest of the orbits that a move has touched were fuller before it."""
        load = self.load
        new = sorted((load.share(o) for o in touched), reverse=True)
        old = sorted(
            (
                (load.count[o] + weight * (before.count(o) - after.count(o))) / load.room[o]
                for o in touched
            ),
            reverse=True,
        )
        for a, b in zip(new, old, strict=True):
            if abs(a - b) > FULL:
                return a < b
        return False

    def _shift(self, path: Path, units: int) -> None:
        count = self.routes.get(path, 0) + units
        if count:
            self.routes[path] = count
        else:
            del self.routes[path]

    def _cheapest(self, path: Path, open_: frozenset[int]) -> Path:
        """The cheapest way at the present prices (Dijkstra), no dearer than the path itself."""
        source, target = path[0], path[-1]
        prices = [HOP + self.load.price(o) for o in range(len(self.load.room))]
        most = sum(prices[o] for o in self.orbits(path)) * (1 + FULL)
        most_before = most - min(prices[o] for o in self.into[target]) * (1 - FULL)
        best, parent = {source: 0.0}, {source: source}
        heap, done = [(0.0, source)], set()
        while heap:
            d, u = heapq.heappop(heap)
            if u in done:
                continue
            done.add(u)
            if u == target:
                break
            for v, orbit in self.near[u]:
                to = d + prices[orbit]
                if to > (most if v == target else most_before) or v in done or v not in open_:
                    continue  # the last link is still to come
                if to < best.get(v, math.inf):
                    best[v], parent[v] = to, u
                    heapq.heappush(heap, (to, v))
        if target not in parent:
            return path
        nodes = [target]
        while nodes[-1] != source:
            nodes.append(parent[nodes[-1]])
        return tuple(reversed(nodes))


DRAWN = 120
"""Random symmetries of which powers are tried."""
POWERS = (1, 2, 3, 4, 6)
ORDERS = 12
"""Orders in which they are put together; the largest group counts."""
ELEMENTS = 2**24
"""Nodes times random symmetries that are drawn at most."""


def free_group(demand: Demand) -> SymmetryGroup | None:
    """A large group that is free on the ranks and keeps what is sent; None where none is found."""
    graph = demand.graph
    best: SymmetryGroup | None = None
    for structure in find_structures(graph):
        group = structure.group
        if all(map(demand.keeps, group.generators)) and (best is None or group.size > best.size):
            best = group
    images = [image for image in find_generators(graph) if demand.keeps(image)]
    most = _most(demand, images)
    if best is not None and best.size >= most:
        return best
    pool = _draw(demand, images)
    dice = random.Random(0)
    for _ in range(ORDERS):
        if best is not None and best.size >= most:
            break
        drawn = _greedy(demand, pool, most)
        if drawn is not None and (best is None or drawn.size > best.size):
            best = drawn
        dice.shuffle(pool)
    return best


def _most(demand: Demand, images: list[tuple[int, ...]]) -> int:
    """No free group is larger than what divides the size of every orbit of ranks."""
    from forestcoll.solver.alltoall.fold import orbits

    return math.gcd(*orbits(demand, images).images)


def _draw(demand: Demand, images: list[tuple[int, ...]]) -> list[Array]:
    """Symmetries without a fixed rank, all of whose powers are so or the identity; largest order
    first."""
    ranks = np.asarray(demand.graph.ranks)
    dice = random.Random(1)
    maps = [np.asarray(image) for image in images]
    members = list(maps)
    for _ in range(min(DRAWN, ELEMENTS // demand.graph.n) if maps else 0):
        a, b = dice.choice(members), dice.choice(maps)
        members.append(a[b] if dice.random() < 0.5 else b[a])
    symmetries: dict[bytes, tuple[int, Array]] = {}
    for member in members:
        image = member
        for power in range(1, max(POWERS) + 1):
            if power in POWERS:
                order = _order(image, ranks)
                if order > 1:
                    symmetries.setdefault(image.tobytes(), (order, image))
            image = image[member]
    return [image for _, image in sorted(symmetries.values(), key=lambda f: -f[0])]


def _order(image: Array, ranks: Array) -> int:
    """The length of all cycles of ranks where they are equal, and the map's order; else 0."""
    at, lengths = image.tolist(), set()
    seen: set[int] = set()
    for rank in ranks.tolist():
        if rank in seen:
            continue
        length, v = 0, rank
        while v not in seen:
            seen.add(v)
            v = at[v]
            length += 1
        lengths.add(length)
        if len(lengths) > 1:
            return 0
    return lengths.pop()


def _greedy(demand: Demand, pool: list[Array], most: int) -> SymmetryGroup | None:
    """Each of the pool that commutes with those before and keeps the group free."""
    graph, group = demand.graph, None
    chosen: list[Array] = []
    for image in pool:
        if group is not None and group.size >= most:
            break
        if any(not np.array_equal(image[other], other[image]) for other in chosen):
            continue
        generators = () if group is None else group.generators
        try:
            larger = symmetry_group(graph, [*generators, tuple(image.tolist())])
        except ForestError:  # some product of them keeps a rank in place
            continue
        if group is None or larger.size > group.size:
            group = larger
            chosen.append(image)
    return group


def partial_group(graph: CapacityGraph, folding: Folding) -> AbelianGroup | None:
    """A large abelian group that may keep some ranks in place; None where none is found.

    `folding`: orbits of the ranks under all symmetries that are known.
    """
    sizes = Counter(folding.node[rank] for rank in graph.ranks)
    largest = max(sizes.values())
    regular = [rank for rank in graph.ranks if sizes[folding.node[rank]] == largest]
    odd = [rank for rank in graph.ranks if sizes[folding.node[rank]] < largest]
    generators: list[Image] = []
    best: AbelianGroup | None = None
    for chosen in (regular, odd):
        if len(chosen) < 2:
            continue
        for image in _symmetries(graph, chosen):
            try:
                best = abelian_group(graph, [*generators, image])
            except ForestError:  # not of the whole graph, or not with those before
                continue
            generators.append(image)
    return best


def _symmetries(graph: CapacityGraph, ranks: Sequence[int]) -> list[Image]:
    """Generators of the largest group of the graph without the other ranks, which stay in place."""
    kept, part = restrict(graph, ranks)
    groups = [structure.group for structure in find_structures(part)]
    if not groups:
        return []
    images = []
    for generator in max(groups, key=lambda group: group.size).generators:
        image = list(range(graph.n))
        for v, to in enumerate(generator):
            image[kept[v]] = kept[to]
        images.append(tuple(image))
    return images


def restrict(graph: CapacityGraph, ranks: Sequence[int]) -> tuple[list[int], CapacityGraph]:
    """(nodes that are kept, the graph of them): `ranks`, and switches that any of them is joined to
    without the others."""
    gone = set(graph.ranks) - set(ranks)
    ends = ((u, v) for u, v in graph.ends if u not in gone and v not in gone)
    reached = hops(neighbours(graph.n, ends, both=True), ranks)
    kept = sorted(reached)
    return kept, graph.induce(kept)
