"""Equal split of links among groups that are too many for the exact program."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule.dual import check_groups_bound
from forestcoll.schedule.flow_views import Flow, scale
from forestcoll.schedule.forest import Phase
from forestcoll.schedule.group import Group, GroupsBound, WeighedCut
from forestcoll.solver.optimum import optimum


def split_equally(
    machine: CapacityGraph, groups: Sequence[Group], collective: Collective
) -> tuple[Fraction, tuple[Flow, ...], GroupsBound]:
    """(algbw, flows, bound): links cut into equal parts, and the best cut that was found.

    The algbw (GB/s) is what every group reaches on its part.
    """
    users = [0] * len(machine.tail)
    for group in groups:
        for e in group.links:
            users[e] += 1
    common = math.lcm(*(max(1, count) for count in users))
    shares = []
    for number, group in enumerate(groups):
        capacity = [machine.capacity[e] * (common // users[e]) for e in group.links]
        graph = scale(group.graph, capacity, machine.unit / common)
        shares.append(_Alone(number, graph, group.root, collective))
    algbw = min(share.algbw for share in shares)
    sides = dict.fromkeys(side for share in shares for side in share.sides)
    bounds = [_plain_bound(machine, groups, collective, side) for side in sides]
    bound = min(bounds, key=lambda b: b.algbw)
    return algbw, tuple(flow for share in shares for flow in share.flows(algbw)), bound


class _Alone:
    """A group on links of its own."""

    def __init__(self, number: int, graph: CapacityGraph, root: int, collective: Collective):
        self.number = number
        self.graph = graph
        self.root = root if collective.rooted else None
        self.best: dict[Phase, Fraction] = {}  # per phase, GB/s alone on all of the links
        self.sides: list[frozenset[int]] = []
        for phase in collective.phases:
            turned = graph if phase == "broadcast" else graph.reverse()
            alone = Collective.BROADCAST if collective.rooted else Collective.ALLGATHER
            found = optimum(turned, alone, self.root)
            self.best[phase] = found.algbw
            self.sides += found.bound.parts
        self.algbw = 1 / sum((1 / rate for rate in self.best.values()), Fraction(0))

    def flows(self, algbw: Fraction) -> Iterable[Flow]:
        """The phases side by side, each on as much of the links as it needs."""
        for phase, rate in self.best.items():
            turned = self.graph if phase == "broadcast" else self.graph.reverse()
            turned = replace(turned, unit=turned.unit * self.algbw / rate)
            ranks = turned.ranks
            roots = list(ranks) if self.root is None else [ranks[self.root]]
            supply = [Fraction(0)] * turned.n
            for v in roots:
                supply[v] = algbw / len(roots) / turned.unit
            yield Flow(self.number, phase, turned, tuple(supply))


def _plain_bound(
    machine: CapacityGraph, groups: Sequence[Group], collective: Collective, side: frozenset[int]
) -> GroupsBound:
    """What one cut proves: the data of all groups that has to leave it shares the links that do.

    Of an allreduce, what starts inside leaves as broadcast, what starts outside on reduce trees.
    """
    cuts = []
    for g, group in enumerate(groups):
        ranks = group.graph.ranks
        inside = sum(v in side for v in ranks)
        if inside == len(ranks) or not inside:
            continue
        if collective.rooted and ranks[group.root] not in side:
            continue
        if collective is Collective.ALLREDUCE:
            rest = frozenset(range(machine.n)) - side
            cuts.append(WeighedCut(g, "broadcast", side, Fraction(1)))
            cuts.append(WeighedCut(g, "reduce", rest, Fraction(1)))
        else:
            cuts.append(WeighedCut(g, collective.phases[0], side, Fraction(1)))
    loose = GroupsBound(Fraction(0), tuple(cuts))
    return replace(loose, algbw=check_groups_bound(machine, groups, collective, loose))
