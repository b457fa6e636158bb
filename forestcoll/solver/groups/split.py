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
from forestcoll.graph.symmetry.group import DisjointSets
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

LINKS = 400_000
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


def split(machine: CapacityGraph, groups: Sequence[Group], most: int = 0) -> Split:
    """The largest common algbw of all groups, what each may take of the links, and the proof.

    Exact up to `LINKS` links in all, and `most` (0: `VARIABLES`) not made alike; beyond that,
    links are cut into equal parts for the groups that have them, and `note` says so. Raises
    InfeasibleError where the ranks of a group cannot reach each other.
    """
    return _split(machine, groups, most or VARIABLES, range(len(groups)))


def split_apart(machine: CapacityGraph, groups: Sequence[Group], most: int) -> Split:
    """The same for very many groups: those that share no links are solved by themselves."""
    parts = _components(groups)
    if len(parts) > 1:
        done = _join(machine, groups, parts, most)
        if not done.note:
            return done
    return split(machine, groups, most)


def _split(
    machine: CapacityGraph,
    groups: Sequence[Group],
    most: int,
    numbers: Sequence[int],
    apart: bool = False,
) -> Split:
    """The same of groups that share links; `numbers` are what they are called in errors.

    `apart`: the machine is a part of another, of which its symmetries are none.
    """
    for number, group in zip(numbers, groups, strict=True):
        try:
            group.graph.check_connected()
        except InfeasibleError as error:
            raise InfeasibleError(f"group {number}: {error}") from None
    try:
        return _exact(machine, groups, most, apart)
    except UnsupportedError as reason:
        algbw, flows, bound = split_equally(machine, groups)
        note = "" if bound.algbw == algbw else f"links are cut into equal parts: {reason}"
        return Split(algbw, flows, bound, note)


def _components(groups: Sequence[Group]) -> list[list[int]]:
    """The numbers of groups that share links with each other, and none with the rest."""
    sets = DisjointSets(len(groups))
    first: dict[int, int] = {}
    for g, group in enumerate(groups):
        for e in group.links:
            sets.join(first.setdefault(e, g), g)
    parts: dict[int, list[int]] = {}
    for g, home in enumerate(sets.roots()):
        parts.setdefault(home, []).append(g)
    return list(parts.values())


def _join(
    machine: CapacityGraph, groups: Sequence[Group], parts: Sequence[Sequence[int]], most: int
) -> Split:
    """Components, each by itself: the slowest gives the common algbw, and its bound is that of all.

    Those that differ in the numbers of nodes alone are solved once.
    """
    solved: dict[object, Split] = {}
    flows: list[Flow] = []
    own: list[tuple[Split, Sequence[int], list[int]]] = []
    for numbers in parts:
        chosen = [groups[g] for g in numbers]
        ends = {v for g in chosen for u, w in g.graph.ends for v in (u, w)}
        nodes = sorted(ends | {v for g in chosen for v in g.graph.ranks})
        small, local = _cut_out(machine, chosen, nodes)
        key = tuple((g.graph.ranks, g.graph.tail, g.graph.head, g.graph.capacity) for g in local)
        more = tuple((g.root, g.collective, g.weight, g.links) for g in local)
        kinds = small.ranks, small.gpu, small.multicast, small.aggregation
        if (key, more, kinds) not in solved:
            solved[key, more, kinds] = _split(small, local, most, numbers, apart=True)
        own.append((solved[key, more, kinds], numbers, nodes))
    slowest, numbers, nodes = min(own, key=lambda one: one[0].algbw)
    for part, names, places in own:
        pace = slowest.algbw / part.algbw
        for flow in part.flows:
            supply = [Fraction(0)] * machine.n
            for v, amount in zip(places, flow.supply, strict=True):
                supply[v] = amount * pace
            graph = _put_back(machine, flow.graph, places)
            flows.append(Flow(names[flow.group], flow.phase, graph, tuple(supply)))
    tightest, numbers, nodes = min(own, key=lambda one: one[0].bound.algbw)
    bound = replace(
        tightest.bound,
        cuts=tuple(
            replace(cut, group=numbers[cut.group], side=frozenset(nodes[v] for v in cut.side))
            for cut in tightest.bound.cuts
        ),
        potentials=tuple(
            (numbers[g], of, nodes[v], p) for g, of, v, p in tightest.bound.potentials
        ),
    )
    if check_groups_bound(machine, groups, bound) != bound.algbw:
        raise RuntimeError("internal error: the bound of a component is none of all groups")
    flows.sort(key=lambda flow: (flow.group, flow.phase))
    return Split(slowest.algbw, tuple(flows), bound, slowest.note)


def _cut_out(
    machine: CapacityGraph, groups: Sequence[Group], nodes: Sequence[int]
) -> tuple[CapacityGraph, list[Group]]:
    """A machine of these nodes and the groups' links alone, and the groups on it."""
    place = {v: i for i, v in enumerate(nodes)}
    used = sorted({e for group in groups for e in group.links})
    links = {(machine.tail[e], machine.head[e]): machine.capacity[e] for e in used}
    number = {e: i for i, e in enumerate(used)}
    small = machine.restrict(nodes, links)
    local = []
    for group in groups:
        mine = [number[e] for e in group.links]
        graph = replace(small.keep(mine), ranks=tuple(place[v] for v in group.graph.ranks))
        local.append(replace(group, graph=graph, links=tuple(mine)))
    return small, local


def _put_back(machine: CapacityGraph, graph: CapacityGraph, nodes: Sequence[int]) -> CapacityGraph:
    """A graph of some nodes, as one of the whole machine's."""
    return replace(
        graph,
        names=machine.names,
        gpu=machine.gpu,
        multicast=machine.multicast,
        aggregation=machine.aggregation,
        ranks=tuple(nodes[v] for v in graph.ranks),
        tail=tuple(nodes[v] for v in graph.tail),
        head=tuple(nodes[v] for v in graph.head),
    )


def _exact(machine: CapacityGraph, groups: Sequence[Group], most: int, apart: bool) -> Split:
    links = sum(len(group.links) * len(group.collective.phases) for group in groups)
    if links > LINKS:
        raise UnsupportedError(f"the groups have {links} links in all, the limit is {LINKS}")
    alike = () if apart else find_group_symmetries(machine, groups)
    model = Model(machine, groups, alike)
    if model.size > most:
        raise UnsupportedError(
            f"the groups have {model.size} links that no symmetry makes alike, the limit is {most}"
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
    tightest = min(bounds, key=lambda b: b.algbw)
    proven = check_groups_bound(machine, groups, tightest)
    return algbw, tuple(flows), replace(tightest, algbw=proven)


def plain_bound(
    machine: CapacityGraph, groups: Sequence[Group], side: frozenset[int]
) -> GroupsBound:
    """What one cut proves: the data of all groups that has to leave it shares the links that do.

    Its algbw is what that comes to where parts are equal; it is not counted again from the cuts,
    as many are looked at. Of an allreduce, what starts inside leaves as broadcast, what starts
    outside on reduce trees.
    """
    cuts, held = [], Fraction(0)
    for g, group in enumerate(groups):
        ranks, collective = group.graph.ranks, group.collective
        inside = sum(v in side for v in ranks)
        if inside == len(ranks) or not inside:
            continue
        if collective.has_root and ranks[group.root] not in side:
            continue
        whole = collective.two_phases or collective.has_root
        held += group.weight * (1 if whole else Fraction(inside, len(ranks)))
        if collective.two_phases:
            rest = machine.outside(side)
            cuts.append(WeighedCut(g, "broadcast", side, Fraction(1)))
            cuts.append(WeighedCut(g, "reduce", rest, Fraction(1)))
        else:
            cuts.append(WeighedCut(g, collective.phases[0], side, Fraction(1)))
    ways = {cut.phase for cut in cuts if cut.side is side}
    arcs = ((u in side, v in side, c) for u, v, c in machine.arcs)
    room = sum(c for u, v, c in arcs if u != v and ("broadcast" if u else "reduce") in ways)
    return GroupsBound(room * machine.unit / held, tuple(cuts))
