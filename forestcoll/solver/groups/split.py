"""Concurrent optimum of several groups that run one collective at once on the same links.

All groups are to reach the same algbw, as large as can be. What a group's trees take of each link
is a sub-capacity of its own; together they fit the links:

    maximise  L  with, for every group g and node set S that lacks one of its N(g) ranks,
        c(g, leaving S) >= L * (ranks of g in S) / N(g)    (rooted: >= L where S holds the root)
        c(g, in) = c(g, out) at nodes that are no ranks of g
        sum over g of c(g, e) <= b(e)

An allreduce has two such flows a group, one of broadcast and one of reduce trees, and the parts of
the ranks are variables as well. Cuts are found by max-flow as they are missed (`cutting_planes`);
the dual proves the optimum (`dual`). By Edmonds' theorem trees that take c exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from forestcoll.common.errors import InfeasibleError, UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule.dual import check_groups_bound
from forestcoll.schedule.flow_views import Flow
from forestcoll.schedule.group import Group, GroupsBound
from forestcoll.schedule.group_orbits import find_group_symmetries
from forestcoll.solver.flows.model import Model
from forestcoll.solver.groups.equal_split import split_equally

LINKS = 40_000
"""Links of all groups' flows up to which the optimum is exact."""
VARIABLES = 1200
"""The same, alike ones counted once."""


@dataclass(frozen=True, slots=True)
class Split:
    """The links shared out among groups: all reach `algbw` (GB/s), and nothing beats `bound`.

    The two are equal unless `note` says why not.
    """

    algbw: Fraction
    flows: tuple[Flow, ...]
    bound: GroupsBound
    note: str = ""


def split(machine: CapacityGraph, groups: Sequence[Group], collective: Collective) -> Split:
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
        return _exact(machine, groups, collective)
    except UnsupportedError as reason:
        algbw, flows, bound = split_equally(machine, groups, collective)
        note = "" if bound.algbw == algbw else f"links are cut into equal parts: {reason}"
        return Split(algbw, flows, bound, note)


def _exact(machine: CapacityGraph, groups: Sequence[Group], collective: Collective) -> Split:
    links = sum(len(group.links) for group in groups) * len(collective.phases)
    if links > LINKS:
        raise UnsupportedError(f"the groups have {links} links in all, the limit is {LINKS}")
    alike = find_group_symmetries(machine, groups, collective)
    model = Model(machine, groups, collective, alike)
    if model.size > VARIABLES:
        raise UnsupportedError(
            f"the groups have {model.size} links that no symmetry makes alike, the "
            f"limit is {VARIABLES}"
        )
    solution = model.solve()
    bound = model.prove(solution)
    if collective is Collective.ALLREDUCE:
        level = Model(machine, groups, collective, alike, equal=True)
        level.pool = level.rows(model.cuts)
        other = level.solve()
        if level.algbw(other) == model.algbw(solution):  # equal parts make fewer trees
            model, solution = level, other
    algbw = model.algbw(solution)
    proven = check_groups_bound(machine, groups, collective, bound)
    if proven != bound.algbw or algbw > proven:
        raise RuntimeError(
            f"internal error: {algbw} reached, {bound.algbw} stated, {proven} proven"
        )
    note = "" if algbw == proven else "the bound allows for copies and sums in switches"
    return Split(algbw, model.flows(solution), bound, note)
