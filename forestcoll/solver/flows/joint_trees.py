"""Joint allreduce with few trees: links that carry whole numbers of them.

In U units of time link e carries floor(U b(e)) trees of both phases together. The linear program
with links rounded so gives the most trees for a U, and its dual the least U that is not ruled out.
Whether its vertex is whole is another matter. Where every link is as wide as its opposite, the
reduce trees may be the broadcast trees turned round; how many of these run each way over a pair of
links is then an orientation of that pair's trees. Without switches the node sets that they have to
leave make it a submodular flow (Frank: orientations that meet a crossing supermodular demand),
whose vertices are whole. With switches, halves may be left over (three links with one tree each
cannot go half up and half down), and other symmetries may ask for fractions; another vertex, or a
little more time, makes them whole.
"""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.automorphisms import find_symmetries
from forestcoll.solver.flows import exact_lp
from forestcoll.solver.flows.joint import (
    Carried,
    Joint,
    joint_model,
    raise_carried,
    read_units,
    shares,
)
from forestcoll.solver.flows.model import Model

STEPS = 60
"""Values of U that are tried at most until enough trees fit, and then until all are whole."""
HURRY = 8
"""Values of U that are tried one by one before the steps grow."""
VARIABLES = 2000
"""Size of a program up to which it is solved for each of these U."""


def fixed_joint(graph: CapacityGraph, trees: int, best: Joint, exact: bool = False) -> Joint | None:
    """`trees` trees per root on the average, in each phase, in the least time found.

    `best` is an optimum of the graph. All roots have the same number of trees where that costs
    nothing. None where no whole numbers were found, and with `exact` where these do not reach the
    optimum. Raises UnsupportedError where the program is too large or cannot be proven.
    """
    wanted = trees * len(graph.ranks)
    u = wanted * graph.unit / best.algbw
    models = _models(graph)
    u, first = _least_time(models[0], u, wanted, 1 if exact else STEPS)
    if first.value < wanted:
        return None
    for step in range(1 if exact else STEPS):
        for model in models:
            for most in (trees,) if model.equal else (trees, None):
                found = _solve_whole(model, u, wanted, most)
                if found is not None:
                    supply, carried = found
                    algbw = wanted / u * graph.unit
                    return Joint(algbw, supply, raise_carried(graph, carried, u), best.bound)
        for _ in range(max(1, step - HURRY)):
            u = min(Fraction(math.floor(u * c) + 1, c) for c in set(graph.capacity))
    return None


def _models(graph: CapacityGraph) -> list[Model]:
    """Programs of the graph: the smallest, and one whose vertices are more likely to be whole."""
    found = find_symmetries(graph)
    mirror = tuple(s for s in found if s.turned and s.image == tuple(range(graph.n)))
    models = [joint_model(graph, found, equal=False)]
    if models[0].size > VARIABLES:
        raise UnsupportedError(f"{models[0].size} links and flows are too many to be made whole")
    if mirror != found:
        models.append(joint_model(graph, mirror, equal=False))
    models.append(joint_model(graph, mirror, equal=True))
    return [model for model in models if model.size <= VARIABLES]


def _least_time(
    model: Model, u: Fraction, wanted: int, steps: int
) -> tuple[Fraction, exact_lp.Solution]:
    """(least U from `u` on at which `wanted` trees are not ruled out, what is reached there)."""
    while True:
        _limit(model, u, None)
        solution = model.solve()
        steps -= 1
        if solution.value >= wanted or not steps:
            return u, solution
        worth: dict[int, Fraction] = defaultdict(Fraction)  # capacity -> of all links that have it
        for j, y in zip(dict.fromkeys(model.link), solution.dual, strict=False):
            if y:
                worth[model.machine.capacity[model.link.index(j)]] += y
        u = max(u, wanted / sum((c * y for c, y in worth.items()), Fraction(0)))
        while sum((y * math.floor(u * c) for c, y in worth.items()), Fraction(0)) < wanted:
            u = min(Fraction(math.floor(u * c) + 1, c) for c in worth)


def _limit(model: Model, u: Fraction, most: int | None) -> None:
    """Rounds the links for time `u`; no root has more than `most` trees."""
    for e, j in enumerate(model.link):
        if j is not None:
            model.program.upper[j] = math.floor(u * model.machine.capacity[e])
    for j in shares(model).values():
        model.program.upper[j] = most


def _solve_whole(
    model: Model, u: Fraction, wanted: int, most: int | None
) -> tuple[tuple[int, ...], Carried] | None:
    """(supply, carried) with `wanted` trees in all; None where they are fewer, or not whole."""
    _limit(model, u, most)
    solution = model.solve()
    if solution.value < wanted or any(z.denominator != 1 for z in solution.primal):
        return None
    whole, carried = read_units(model, solution, 1)
    supply = list(whole)
    for _ in range(sum(supply) - wanted):  # fewer trees always fit
        supply[supply.index(max(supply))] -= 1
    return tuple(supply), carried
