"""Joint optimum of allreduce: both phases share the links, and roots need not be alike.

Reduce-scatter, then allgather over the same trees is not the best in general. With x(v) the data
whose sums are made at rank v, and bc and re what broadcast and reduce trees take of each link:

    maximise  X = sum of x(v)  with  bc(e) + re(e) <= b(e),  in = out at non-ranks in each half,
        bc(leaving S) >= x(S)  and  re(entering S) >= x(S)  for every S that lacks a rank

By Edmonds' theorem trees that take bc (and re, turned round) exist. The cuts are found by max-flow
as they are needed; the dual proves the optimum (`dual`). Where the graph has symmetries, all that
they make alike is one variable: averaging a solution over them changes neither rows nor X.

Joint allreduce with few trees: links that carry whole numbers of them.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph, require_size
from forestcoll.graph.symmetry.automorphisms import find_symmetries
from forestcoll.graph.symmetry.group import is_symmetry
from forestcoll.graph.symmetry.quotient import ALIKE_FROM, find_rotations
from forestcoll.program import Collective
from forestcoll.schedule.dual import as_bound, check_dual
from forestcoll.schedule.forest import Bound, Symmetry, Tree
from forestcoll.schedule.group import whole_group
from forestcoll.solver.fixed_trees import grow, next_step
from forestcoll.solver.flows import exact_lp
from forestcoll.solver.flows.max_flow import fill
from forestcoll.solver.flows.model import Model

VARIABLES = 20_000
"""Links, flows and ranks, alike ones counted once, up to which the program is solved."""
EVEN = 2
"""How many times its share of the sums a rank may make where there is another way."""
ALTERNATIVES = 600
"""The same, up to which solutions in other, perhaps larger units are looked for."""

HALVES = (0, 1)
"""Broadcast, reduce."""

Carried = tuple[tuple[int, ...], tuple[int, ...]]  # per half and link


@dataclass(frozen=True, slots=True)
class Joint:
    """An exact optimum in whole units: `supply[v]` trees rooted at each node v in each phase.

    `carried[half][e]`: how many trees link e is given, broadcast trees and reduce trees apart;
    balanced at every non-rank. `algbw` in GB/s. `trees`: broadcast trees that serve both phases,
    where these are known; then `carried` is empty.
    """

    algbw: Fraction
    supply: tuple[int, ...]
    carried: Carried
    bound: Bound
    trees: tuple[Tree, ...] = ()

    def times(self, factor: int) -> Joint:
        """The same with `factor` trees for each."""
        out, back = (tuple(units * factor for units in half) for half in self.carried)
        return replace(
            self, supply=tuple(units * factor for units in self.supply), carried=(out, back)
        )


def joint(graph: CapacityGraph, patient: bool = True) -> Joint:
    """The joint optimum of allreduce, in as few whole units as was found, with its dual.

    Of solutions with the same algbw those come first that spread the sums: no rank makes more than
    EVEN times its share of them, by the bandwidth of its links; unless `patient`, the first.

    Raises UnsupportedError where the program is too large, or its numbers are too long, to be
    solved exactly here.
    """
    large = len(graph.ranks) > ALIKE_FROM
    model = joint_model(graph, _fold(graph) if large else find_symmetries(graph), equal=False)
    if model.size > VARIABLES:
        raise UnsupportedError(
            f"{model.size} links and flows that no symmetry makes alike are too many "
            f"for the joint optimum (limit {VARIABLES})"
        )
    solution = model.solve()
    bound = _bound(model, solution)
    candidates = [in_units(model, solution)]
    for again in (
        () if large or graph.shares or not patient else _alternatives(model, solution.value)
    ):
        again.start()
        again.pool += again.rows(model.cuts)
        try:
            other = again.solve()
            if other.value == solution.value:
                candidates.append(in_units(again, other))
        except UnsupportedError:  # an answer is there already; this one could have been nicer
            continue
    supply, carried = min(
        candidates, key=lambda c: (not _is_spread(graph, c[0]), sum(c[0]), max(c[0]))
    )
    common = sum(supply) / solution.value  # trees for each unit of capacity
    require_size([math.ceil(c * common) for c in graph.capacity], 2)
    return Joint(solution.value * graph.unit, supply, raise_carried(graph, carried, common), bound)


def _fold(graph: CapacityGraph) -> list[Symmetry]:
    """Rotations of what is alike, and the turn of all links where it is a symmetry."""
    turn = Symmetry(tuple(range(graph.n)), turned=True)
    rotations = [Symmetry(image) for image in find_rotations(graph, tiers=True)]
    return [*rotations, turn] if is_symmetry(graph, turn) else rotations


def _is_spread(graph: CapacityGraph, supply: Sequence[int]) -> bool:
    """Whether no rank makes more than EVEN times as much of the sums as it has of the links in."""
    into = [0] * graph.n
    for head, capacity in zip(graph.head, graph.capacity, strict=True):
        into[head] += capacity
    ingress = sum(into[v] for v in graph.ranks)
    return all(supply[v] * ingress <= EVEN * into[v] * sum(supply) for v in graph.ranks)


def _alternatives(model: Model, value: Fraction) -> Iterator[Model]:
    """Programs with other solutions of the same value: equal shares, no symmetries, small shares.

    Those of few variables only.
    """
    graph, symmetries = model.machine, model.symmetries
    for others, equal in ((symmetries, True), ((), False), (symmetries, False)):
        again = joint_model(graph, others, equal)
        if again.size > ALTERNATIVES:
            continue
        if others and not equal:  # no share above the even one, in whole units of the links
            for j in shares(again).values():
                again.program.upper[j] = math.ceil(value / len(graph.ranks))
        yield again


def _bound(model: Model, solution: exact_lp.Solution) -> Bound:
    """The dual, in which switches that copy or add are free to do so."""
    graph = model.machine
    bound = as_bound(graph, model.prove(solution), Collective.ALLREDUCE)
    proven = check_dual(graph, bound, Collective.ALLREDUCE)
    if proven != bound.algbw:
        raise RuntimeError(f"internal error: the dual proves {proven}, not {bound.algbw}")
    return bound


def in_units(model: Model, solution: exact_lp.Solution) -> tuple[tuple[int, ...], Carried]:
    """(supply, carried): shares and flows in the largest unit in which all of them are whole."""
    share, flows = shares(model), [*model.flow[0], *model.flow[1]]
    values = [solution.primal[j] for j in (*share.values(), *flows)]
    parts = math.lcm(*(value.denominator for value in values))
    common = Fraction(parts, math.gcd(*(int(value * parts) for value in values)))
    return read_units(model, solution, common)


def read_units(
    model: Model, solution: exact_lp.Solution, common: Fraction | int
) -> tuple[tuple[int, ...], Carried]:
    """(supply, carried) of a solution whose values times `common` are whole."""
    supply = [0] * model.machine.n
    for v, (j, part) in model.parts[0].items():
        supply[v] = int(solution.primal[j] * common) * part
    out, back = (tuple(int(solution.primal[j] * common) for j in flow) for flow in model.flow)
    return tuple(supply), (out, back)


def shares(model: Model) -> dict[int, int]:
    """Per rank (node) the variable of what starts there."""
    return {v: j for v, (j, _) in model.parts[0].items()}


def joint_model(graph: CapacityGraph, symmetries: Sequence[Symmetry], equal: bool) -> Model:
    """The program of all ranks as one group."""
    n = graph.n
    alike = [replace(s, image=(*s.image[:n], n)) for s in symmetries]  # the group stays where it is
    return Model(graph, [whole_group(graph, Collective.ALLREDUCE)], alike, equal)


def raise_carried(graph: CapacityGraph, carried: Carried, common: Fraction) -> Carried:
    """`carried`, and of what is left of the links as much as in = out allows: room for low trees.

    What is left is halved, such that mirror images stay mirror images.
    """
    out = []
    for half in HALVES:
        used = {}
        room = []
        for e, (u, v) in enumerate(graph.ends):
            left = math.floor(graph.capacity[e] * common) - carried[0][e] - carried[1][e]
            more = left - left // 2 if (u < v) == (half == 0) else left // 2
            room.append(carried[half][e] + more)
            used[u, v] = carried[half][e]
        filled = fill(replace(graph, capacity=tuple(room)), used)
        out.append(tuple(filled.get(p, 0) for p in graph.ends))
    return out[0], out[1]


STEPS = 60
"""Values of U that are tried at most until enough trees fit, and then until all are whole."""
HURRY = 8
"""Values of U that are tried one by one before the steps grow."""
WHOLE_VARIABLES = 2000
"""Size of a program up to which it is solved for each of these U."""


def fit_joint(graph: CapacityGraph, trees: int, best: Joint, exact: bool = False) -> Joint | None:
    """`trees` trees per root on the average, in each phase, in the least time found.

    `best` is an optimum of the graph. All roots have the same number of trees where that costs
    nothing. None where no whole numbers were found, and with `exact` where these do not reach the
    optimum. Raises UnsupportedError where the program is too large or cannot be proven.
    """
    wanted = trees * sum(graph.parts)
    u = wanted * graph.unit / best.algbw
    models = _models(graph)
    u, first = _least_time(models[0], u, wanted, 1 if exact else STEPS)
    if first.value < wanted:
        return None
    for step in range(1 if exact else STEPS):
        for model in models:
            for most in (trees,) if model.equal else (trees, None):
                whole = _solve_whole(model, u, wanted, most)
                if whole is not None:
                    supply, carried = whole
                    algbw = wanted / u * graph.unit
                    return Joint(algbw, supply, raise_carried(graph, carried, u), best.bound)
        for _ in range(max(1, step - HURRY)):
            u = next_step(u, graph.capacity)
    return None


def _models(graph: CapacityGraph) -> list[Model]:
    """Programs of the graph: the smallest, and one whose vertices are more likely to be whole."""
    symmetries = find_symmetries(graph)
    mirror = tuple(s for s in symmetries if s.turned and s.image == tuple(range(graph.n)))
    models = [joint_model(graph, symmetries, equal=False)]
    if models[0].size > WHOLE_VARIABLES:
        raise UnsupportedError(f"{models[0].size} links and flows are too many to be made whole")
    if mirror != symmetries:
        models.append(joint_model(graph, mirror, equal=False))
    models.append(joint_model(graph, mirror, equal=True))
    return [model for model in models if model.size <= WHOLE_VARIABLES]


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
        u = grow(worth, u, wanted)


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
