"""The joint allreduce with few trees: links that carry whole numbers of them.

In U units of time link e carries floor(U b(e)) trees of both phases together. Where every link is
as wide as its opposite, the reduce trees may be the broadcast trees turned round; how many of these
run each way over a pair of links is then an orientation of that pair's trees. Without switches the
node sets that they have to leave make it a submodular flow (Frank: orientations that meet a
crossing supermodular demand), whose vertices are whole numbers. So the linear program with rounded
links gives the most trees for a U, and its dual the least U that is not ruled out. With switches,
halves may be left over (three links with one tree each cannot go half up and half down); a little
more time makes them whole.
"""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction

from forestcoll.forest import Symmetry
from forestcoll.graph import CapacityGraph
from forestcoll.solver import exact_lp
from forestcoll.solver.joint import Carried, Joint, Model, raised
from forestcoll.solver.orbits import is_symmetry

STEPS = 60
"""Values of U that are tried at most until enough trees fit, and then until all are whole."""
HURRY = 8
"""Values of U that are tried one by one before the steps grow."""


def fixed_joint(graph: CapacityGraph, trees: int, best: Joint, exact: bool = False) -> Joint | None:
    """`trees` trees a root on the average, in each phase, in the least time found.

    `best` is an optimum of the graph. All roots have the same number of trees where that costs
    nothing. None where links and their opposites differ, where no whole numbers were found, and
    with `exact` where the optimum is not reached.
    """
    mirror = Symmetry(tuple(range(graph.n)), turned=True)
    if not is_symmetry(graph, mirror):
        return None
    wanted = trees * len(graph.ranks)
    u = wanted * graph.unit / best.algbw
    free = Model(graph, (mirror,), equal=False)
    equal = Model(graph, (mirror,), equal=True)
    equal.program.upper[next(iter(equal.share.values()))] = trees
    for _ in range(STEPS):
        _limit(free, u)
        solution = free.solve()
        if solution.value >= wanted:
            break
        if exact:
            return None
        u = _least_time(free, solution, u, wanted)
    equal.pool = equal.rows(free.cuts)
    for step in range(1 if exact else STEPS):
        for model in (equal, free):
            _limit(model, u)
            found = _supplied(model, model.solve(), wanted)
            if found is not None:
                supply, carried = found
                algbw = wanted / u * graph.unit
                return Joint(algbw, supply, raised(graph, carried, u), best.bound)
        for _ in range(max(1, step - HURRY)):
            u = min(Fraction(math.floor(u * c) + 1, c) for c in set(graph.capacity))
    return None


def _limit(model: Model, u: Fraction) -> None:
    for e, j in enumerate(model.link):
        model.program.upper[j] = math.floor(u * model.graph.capacity[e])


def _least_time(model: Model, solution: exact_lp.Solution, u: Fraction, wanted: int) -> Fraction:
    """The least U above `u` at which the dual of `solution` no longer rules `wanted` trees out."""
    weights: dict[int, Fraction] = defaultdict(Fraction)  # capacity -> what a unit is worth
    for j, y in zip(dict.fromkeys(model.link), solution.dual, strict=False):
        weights[model.graph.capacity[model.link.index(j)]] += y
    worth = {c: y for c, y in weights.items() if y}
    u = max(u, wanted / sum((c * y for c, y in worth.items()), Fraction(0)))
    while sum((y * math.floor(u * c) for c, y in worth.items()), Fraction(0)) < wanted:
        u = min(Fraction(math.floor(u * c) + 1, c) for c in worth)
    return u


def _supplied(
    model: Model, solution: exact_lp.Solution, wanted: int
) -> tuple[tuple[int, ...], Carried] | None:
    """(supply, carried) with `wanted` trees in all; None where they are fewer, or not whole."""
    if solution.value < wanted or any(z.denominator != 1 for z in solution.primal):
        return None
    supply = [0] * model.graph.n
    for v, j in model.share.items():
        supply[v] = int(solution.primal[j])
    for _ in range(sum(supply) - wanted):  # fewer trees always fit
        supply[supply.index(max(supply))] -= 1
    flow = tuple(int(solution.primal[j]) for j in model.flow)
    return tuple(supply), (flow[: model.count], flow[model.count :])
