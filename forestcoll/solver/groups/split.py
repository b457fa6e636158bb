"""Concurrent optimum of several groups that run collectives at once on the same links.

The algbw of all groups are to have the ratios of their weights w(g), and be as large as can be.
What a group's trees take of each link is a sub-capacity of its own; together they fit the links:

    maximise  L  with, for every group g and node set S that lacks one of its N(g) ranks,
        c(g, leaving S) >= w(g) L * (ranks of g in S) / N(g)   (rooted: w(g) L if S holds the root)
        c(g, in) = c(g, out) at nodes that are no ranks of g
        sum over g of c(g, e) <= b(e)

An allreduce has two such flows a group, one of broadcast and one of reduce trees, and the parts of
the ranks are variables as well. Cuts are found by max-flow as they are missed (`exact_lp`);
the dual proves the optimum (`dual`). By Edmonds' theorem trees that take c exist.

Equal split of links among groups that are too many for the exact program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from forestcoll.common.errors import InfeasibleError, UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.schedule.dual import check_groups_bound
from forestcoll.schedule.forest import Phase
from forestcoll.schedule.group import (
    Flow,
    Group,
    GroupsBound,
    WeighedCut,
    find_group_symmetries,
    scale,
)
from forestcoll.solver.flows.model import Model
from forestcoll.solver.task import Task, analyse

LINKS = 40_000
"""Links of all groups' flows up to which the optimum is exact."""
VARIABLES = 1200
"""The same, alike ones counted once."""


@dataclass(frozen=True, slots=True)
class Split:
    """The links shared out among groups: each reaches `algbw` (GB/s) times its weight.

    Nothing beats `bound`.

    The two are equal unless `note` says why not.
    """

    algbw: Fraction
    flows: tuple[Flow, ...]
    bound: GroupsBound
    note: str = ""


def split(machine: CapacityGraph, groups: Sequence[Group]) -> Split:
    """The largest common algbw of all groups, what each may take of the links, and the proof.

    Exact up to `LINKS` links in all, and `VARIABLES` that no symmetry makes alike; beyond that,
    links are cut into equal parts for the groups that have them, and `note` says so. Raises
    InfeasibleError where the ranks of a group cannot reach each other.
    """
    for number, group in enumerate(groups):
        try:
            group.graph.check_connected()
        except InfeasibleError as error:
            raise InfeasibleError(f"group {number}: {error}") from None
    try:
        return _exact(machine, groups)
    except UnsupportedError as reason:
        algbw, flows, bound = split_equally(machine, groups)
        note = "" if bound.algbw == algbw else f"links are cut into equal parts: {reason}"
        return Split(algbw, flows, bound, note)


def _exact(machine: CapacityGraph, groups: Sequence[Group]) -> Split:
    links = sum(len(group.links) * len(group.collective.phases) for group in groups)
    if links > LINKS:
        raise UnsupportedError(f"the groups have {links} links in all, the limit is {LINKS}")
    alike = find_group_symmetries(machine, groups)
    model = Model(machine, groups, alike)
    if model.size > VARIABLES:
        raise UnsupportedError(
            f"the groups have {model.size} links that no symmetry makes alike, the "
            f"limit is {VARIABLES}"
        )
    solution = model.solve()
    bound = model.prove(solution)
    if any(group.collective.two_phases for group in groups):
        level = Model(machine, groups, alike, equal=True)
        level.pool = level.rows(model.cuts)
        other = level.solve()
        if level.algbw(other) == model.algbw(solution):  # equal parts make fewer trees
            model, solution = level, other
    algbw = model.algbw(solution)
    proven = check_groups_bound(machine, groups, bound)
    if proven != bound.algbw or algbw > proven:
        raise RuntimeError(
            f"internal error: {algbw} reached, {bound.algbw} stated, {proven} proven"
        )
    note = "" if algbw == proven else "the bound allows for copies and sums in switches"
    return Split(algbw, model.flows(solution), bound, note)


def split_equally(
    machine: CapacityGraph, groups: Sequence[Group]
) -> tuple[Fraction, tuple[Flow, ...], GroupsBound]:
    """(algbw, flows, bound): links cut into parts as the groups' weights, and the best cut found.

    The algbw (GB/s), times its weight, is what every group reaches on its part.
    """
    whole = math.lcm(*(group.weight.denominator for group in groups))
    wanted = [int(group.weight * whole) for group in groups]
    users = [0] * len(machine.tail)
    for group, share in zip(groups, wanted, strict=True):
        for e in group.links:
            users[e] += share
    common = math.lcm(*(max(1, count) for count in users))
    tasks: list[dict[Phase, Task]] = []
    rates: list[Fraction] = []
    for group, share in zip(groups, wanted, strict=True):
        capacity = [machine.capacity[e] * share * (common // users[e]) for e in group.links]
        graph = scale(group.graph, capacity, machine.unit / common)
        root = group.root if group.collective.has_root else None
        own = {
            phase: analyse(graph if phase == "broadcast" else graph.reverse(), root)
            for phase in group.collective.phases
        }
        tasks.append(own)
        rates.append(1 / sum((1 / task.algbw for task in own.values()), Fraction(0)))
    algbw = min(rate / group.weight for group, rate in zip(groups, rates, strict=True))
    sides = dict.fromkeys(s for own in tasks for task in own.values() for s in task.bound.parts)
    bounds = [plain_bound(machine, groups, side) for side in sides]
    flows = []
    for number, (own, rate) in enumerate(zip(tasks, rates, strict=True)):
        for phase, task in own.items():  # side by side, each on as much of the links as it needs
            part = replace(task.given, unit=task.given.unit * rate / task.algbw)
            each = algbw * groups[number].weight / task.roots / part.unit
            flows.append(Flow(number, phase, part, tuple(n * each for n in task.supply(1))))
    return algbw, tuple(flows), min(bounds, key=lambda b: b.algbw)


def plain_bound(
    machine: CapacityGraph, groups: Sequence[Group], side: frozenset[int]
) -> GroupsBound:
    """What one cut proves: the data of all groups that has to leave it shares the links that do.

    Of an allreduce, what starts inside leaves as broadcast, what starts outside on reduce trees.
    """
    cuts = []
    for g, group in enumerate(groups):
        ranks, collective = group.graph.ranks, group.collective
        inside = sum(v in side for v in ranks)
        if inside == len(ranks) or not inside:
            continue
        if collective.has_root and ranks[group.root] not in side:
            continue
        if collective.two_phases:
            rest = machine.outside(side)
            cuts.append(WeighedCut(g, "broadcast", side, Fraction(1)))
            cuts.append(WeighedCut(g, "reduce", rest, Fraction(1)))
        else:
            cuts.append(WeighedCut(g, collective.phases[0], side, Fraction(1)))
    loose = GroupsBound(Fraction(0), tuple(cuts))
    return replace(loose, algbw=check_groups_bound(machine, groups, loose))
