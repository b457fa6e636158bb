"""Whole units: routes near the optimum, with few units a pair.

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
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from forestcoll.alltoall.flows import Optimum
from forestcoll.alltoall.free import free_group
from forestcoll.alltoall.repair import Load, Repair
from forestcoll.alltoall.routes import Path, Route, Routes, check, orbit_of
from forestcoll.errors import UnsupportedError
from forestcoll.sizes import is_power
from forestcoll.symmetry.group import SymmetryGroup

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
    group = free_group(best.demand)
    net = _Net(best, group)
    flows = net.solve()
    found: Routes | None = None
    wanted = min_share or ENOUGH
    for k in _tried(len(best.demand.graph.ranks), powers) if units is None else (units,):
        made = net.round(flows, k)
        if found is None or made.algbw > found.algbw:
            found = made
        if units is None and made.algbw >= wanted * best.algbw:
            break
    assert found is not None
    if units is None and min_share is not None and found.algbw < min_share * best.algbw:
        raise UnsupportedError(
            f"{MOST_UNITS} units a pair reach {float(100 * found.algbw / best.algbw):.2f} % of the "
            f"optimum, not {float(100 * min_share):.2f} %; --units takes more"
        )
    check(found)
    return found


def _tried(ranks: int, powers: bool) -> list[int]:
    """Numbers of units, the first choice first."""
    every = list(range(1, MOST_UNITS + 1))
    if powers and is_power(ranks):
        every.sort(key=lambda k: not is_power(k))
    return every


class _Net:
    """The graph as the program sees it: sources of a free group, orbits of links by number."""

    def __init__(self, best: Optimum, group: SymmetryGroup | None) -> None:
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
        self.sources = list({home[v]: v for v in reversed(graph.ranks)}.values())[::-1]
        self.number = {p: e for e, p in enumerate(zip(graph.tail, graph.head, strict=True))}
        variables = len(self.sources) * len(graph.tail)
        if variables > MOST_VARIABLES:
            raise UnsupportedError(
                f"routes of {len(self.sources)} sources (no symmetry makes them alike) over "
                f"{len(graph.tail)} links take a program of {variables:,} variables, over "
                f"{MOST_VARIABLES:,}; 'forestcoll optimum --output' writes flows without this limit"
            )

    # ------------------------------------------------------------------------ fractional

    def solve(self) -> list[Flow]:
        """Per source, what each link carries at the optimum, one unit to every target.

        Of all flows that reach it, those that cross the fewest links, wide ones before narrow ones.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from ortools.linear_solver import pywraplp
        graph = self.graph
        solver = pywraplp.Solver.CreateSolver("GLOP")
        inf = solver.infinity()
        unit = (1 + NEAR / 100) / float(self.best.rate)
        rows = [solver.Constraint(-inf, room * unit) for room in self.room]
        links = list(enumerate(zip(graph.tail, graph.head, self.orbit, strict=True)))
        least = min(graph.capacity)
        cost = [1 + NARROW * least / c for c in graph.capacity]
        found: list[dict[int, Any]] = []
        for source in self.sources:
            wanted = [0.0] * graph.n
            for v in graph.ranks:
                wanted[v] = 1.0
            wanted[source] = 1.0 - len(graph.ranks)
            balance = [solver.Constraint(amount, amount) for amount in wanted]
            mine: dict[int, Any] = {}
            for e, (u, v, orbit) in links:
                if v == source:
                    continue
                mine[e] = x = solver.NumVar(0, inf, "")
                rows[orbit].SetCoefficient(x, 1)
                balance[u].SetCoefficient(x, -1)
                balance[v].SetCoefficient(x, 1)
                solver.Objective().SetCoefficient(x, cost[e])
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
        for source, flow in zip(self.sources, flows, strict=True):
            whole = self._whole(source, flow, units, load)
            for e, count in whole.items():
                load.count[self.orbit[e]] += count
            routes |= self._paths(source, whole, units)
        load.count = [0] * len(self.room)  # circles are gone
        for path, count in routes.items():
            for orbit in self.orbits(path):
                load.count[orbit] += count
        Repair(self.graph, self.orbit, self.orbits, routes, load).run()
        listed = tuple(Route(path, count) for path, count in sorted(routes.items()))
        return Routes(self.best, self.group, units, listed)

    def orbits(self, path: Path) -> list[int]:
        """The orbits that a path crosses, link by link."""
        return [self.orbit[self.number[hop]] for hop in pairwise(path)]

    def _whole(self, source: int, flow: Flow, units: int, load: Load) -> dict[int, int]:
        """Whole numbers within one of `units` times the flow, and right at every node.

        Of the links that may carry one more, those whose orbits have room are taken.
        """
        from ortools.graph.python.min_cost_flow import SimpleMinCostFlow

        graph = self.graph
        whole = {e: math.floor(units * x + NEAR) for e, x in flow.items()}
        missing = [0] * graph.n
        for v in graph.ranks:
            missing[v] = units
        missing[source] = -units * (len(graph.ranks) - 1)
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

    def _paths(self, source: int, whole: dict[int, int], units: int) -> dict[Path, int]:
        """Paths of whole units, from every target back to the source; circles are dropped."""
        graph = self.graph
        into: list[dict[int, int]] = [{} for _ in range(graph.n)]
        for e, count in whole.items():
            into[graph.head[e]][graph.tail[e]] = count
        found: Counter[Path] = Counter()
        for target in graph.ranks:
            if target == source:
                continue
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
