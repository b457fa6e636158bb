"""Whole units: routes near the optimum, with few units per pair.

A linear program over a free group says how much of each source's flow each link carries. A vertex
of it splits few pairs. Flow from one source with whole demands rounds to whole numbers within one
of what it was, link by link (a flow between floor and ceiling exists and is found by max-flow);
only what all sources together load on an orbit of links may then be a little too much. That is
repaired path by path: units that cross the fullest orbits take another way, by prices that rise
steeply with the load.

Floating point proposes here; what comes out is counted exactly.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.abelian import AbelianGroup
from forestcoll.graph.symmetry.group import SymmetryGroup
from forestcoll.program.sizes import is_power
from forestcoll.solver.alltoall.flows import Optimum
from forestcoll.solver.alltoall.free import free_group
from forestcoll.solver.alltoall.levels import even_out
from forestcoll.solver.alltoall.partial import partial_group
from forestcoll.solver.alltoall.repair import Commodity, Load, Repair
from forestcoll.solver.alltoall.routes import MOST_PATHS, Path, Route, Routes, check, orbit_of
from forestcoll.topology.numbers import percent

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
    if best.demand.matrix is not None or best.demand.groups:
        raise UnsupportedError(
            "routes with equal units are for an all-to-all among all ranks; the flows of "
            "'forestcoll optimum --output' hold groups and matrices"
        )
    net = _Net(best, _group(best))
    flows = net.solve()
    found: Routes | None = None
    reached = Fraction(0)
    wanted = min_share or ENOUGH
    for k in _tried(len(best.demand.graph.ranks), powers) if units is None else (units,):
        made = net.round(flows, k)
        algbw = made.algbw
        if found is None or algbw > reached:
            found, reached = made, algbw
        if units is None and algbw >= wanted * best.bound:
            break
    assert found is not None
    if units is None and min_share is not None and reached < min_share * best.bound:
        raise UnsupportedError(
            f"{MOST_UNITS} units per pair reach {percent(reached / best.bound)} of "
            f"the optimum, not {percent(min_share)}; --units takes more"
        )
    check(found)
    return even_out(found) if found.total <= MOST_PATHS else found


def _group(best: Optimum) -> SymmetryGroup | AbelianGroup | None:
    """A free group; where that leaves too many sources, one that keeps some ranks in place."""
    graph = best.demand.graph
    group = free_group(best.demand)
    sources = len(graph.ranks) // (1 if group is None else group.size)
    if sources * len(graph.tail) <= MOST_VARIABLES:
        return group
    return partial_group(graph, best.folding) or group


def _tried(ranks: int, powers: bool) -> list[int]:
    """Numbers of units, the first choice first."""
    every = list(range(1, MOST_UNITS + 1))
    if powers and is_power(ranks):
        every.sort(key=lambda k: not is_power(k))
    return every


def _commodities(
    graph: CapacityGraph, group: SymmetryGroup | AbelianGroup | None, source: int
) -> Iterator[Commodity]:
    """What is routed of a source: to each rank, or to one of those that are alike from it.

    Symmetries that keep a pair in place have to keep its paths too, or each of their images would
    be one more path of the same pair. So nodes that these move are closed to it.
    """
    others = tuple(v for v in graph.ranks if v != source)
    if not isinstance(group, AbelianGroup):
        yield Commodity(source, others, frozenset(range(graph.n)), 1)
        return
    seen = group.seen_from(source)
    alike: dict[bytes, list[int]] = defaultdict(list)
    for v in others:
        if seen[v] == v:
            alike[group.keeping((source, v)).tobytes()].append(v)
    for targets in alike.values():
        pair = source, targets[0]
        open_ = frozenset(group.kept_with(pair))
        yield Commodity(source, tuple(targets), open_, group.images_of(pair) / group.size)


class _Net:
    """The graph as the program sees it: commodities of a group, orbits of links by number."""

    def __init__(self, best: Optimum, group: SymmetryGroup | AbelianGroup | None) -> None:
        self.best, self.group = best, group
        self.graph = graph = best.demand.graph
        self.images = 1 if group is None else group.size
        names = orbit_of(graph, group)
        sizes = Counter(names)
        self.first = list(sizes)
        place = {o: i for i, o in enumerate(self.first)}
        self.orbit = [place[o] for o in names]
        # crossings of an orbit by listed paths, per unit of rate
        self.room = [sizes[o] * graph.capacity[o] / self.images for o in self.first]
        home = group.node if group is not None else tuple(range(graph.n))
        sources = list({home[v]: v for v in reversed(graph.ranks)}.values())[::-1]
        self.commodities = [c for source in sources for c in _commodities(graph, group, source)]
        self.of = {(c.source, target): c for c in self.commodities for target in c.targets}
        self.number = {p: e for e, p in enumerate(zip(graph.tail, graph.head, strict=True))}
        self.crossed: dict[Path, list[int]] = {}
        variables = sum(c.links(graph) for c in self.commodities)
        if variables > MOST_VARIABLES:
            raise UnsupportedError(
                f"routes of {len(sources)} sources (no symmetry makes them alike) over "
                f"{len(graph.tail)} links take a program of {variables:,} variables, over "
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
            known = dict(zip(best.folding.sources, best.flows, strict=True))
            return [
                {e: float(amount / best.rate) for e, amount in known[c.source].items()}
                for c in self.commodities
            ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from ortools.linear_solver import pywraplp
        graph = self.graph
        solver = pywraplp.Solver.CreateSolver("GLOP")
        # no link costs less than nothing: shortest ways are where the dual simplex starts
        solver.SetSolverSpecificParametersAsString("use_dual_simplex: true")
        inf = solver.infinity()
        unit = (1 + NEAR / 100) / float(self.best.rate)
        rows = [solver.Constraint(-inf, room * unit) for room in self.room]
        links = list(enumerate(zip(graph.tail, graph.head, self.orbit, strict=True)))
        least = min(graph.capacity)
        cost = [1 + NARROW * least / c for c in graph.capacity]
        found: list[dict[int, Any]] = []
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
            found.append(mine)
        solver.Objective().SetMinimization()
        if solver.Solve() != pywraplp.Solver.OPTIMAL:
            raise UnsupportedError("the program of routes was not solved in floating point")
        values = [{e: x.solution_value() for e, x in mine.items()} for mine in found]
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
        found = self.crossed.get(path)
        if found is None:
            found = self.crossed[path] = [self.orbit[self.number[hop]] for hop in pairwise(path)]
        return found

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
        found: Counter[Path] = Counter()
        for target in commodity.targets:
            for _ in range(units):
                path, place = [target], {target: 0}
                while path[-1] != source:
                    near = into[path[-1]]
                    u = max(near, key=lambda u: (near[u], -u))
                    near[u] -= 1
                    if not near[u]:
                        del near[u]
                    if u in place:  # a circle
                        for v in path[place[u] + 1 :]:
                            del place[v]
                        del path[place[u] + 1 :]
                    else:
                        place[u] = len(path)
                        path.append(u)
                found[tuple(reversed(path))] += 1
        return dict(found)
