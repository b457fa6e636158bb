"""Orbits of flows: what symmetries of a machine with groups on it make alike.

A symmetry of several groups maps the machine to itself, each group to a group (roots to roots). It
is found and checked as a symmetry of a graph that has one node more for each group, linked to its
members; its image counts these nodes behind the machine's. In an allreduce it may turn links round,
which makes reduce trees of broadcast trees. Averaging a solution over symmetries changes neither
the common algbw nor whether it fits, so all that is alike may be taken to be equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from forestcoll.common.errors import ForestError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.automorphisms import find_symmetries
from forestcoll.graph.symmetry.orbits import DisjointSets, link_images, number_links
from forestcoll.program import Collective
from forestcoll.schedule.forest import Phase, Symmetry
from forestcoll.schedule.group import Group, flow_keys


@dataclass(frozen=True, slots=True)
class Orbits:
    """The least member of each one's orbit.

    `link[e]`: of the machine's links. `flow[f][e]`: of (flow, link of the group), numbered through
    all flows. `side[f][v]`: of (flow, node) as f * nodes + v. `part[g][v]`: of (group, node).
    """

    link: list[int]
    flow: list[list[int]]
    side: list[list[int]]
    part: list[list[int]]


def family(
    machine: CapacityGraph, groups: Sequence[Group], collective: Collective
) -> CapacityGraph:
    """The machine with a node for each group, linked to its members in a way of its own."""
    mark = 1 + max(machine.capacity)
    tail, head, capacity = list(machine.tail), list(machine.head), list(machine.capacity)
    for g, group in enumerate(groups):
        for rank, v in enumerate(group.graph.ranks):
            own = mark + 1 if collective.rooted and rank == group.root else mark
            tail += [machine.n + g, v]
            head += [v, machine.n + g]
            capacity += [own, own]
    more = (False,) * len(groups)
    return replace(
        machine,
        names=(*machine.names, *(f"group {g}" for g in range(len(groups)))),
        gpu=machine.gpu + more,
        multicast=machine.multicast + more,
        aggregation=machine.aggregation + more,
        tail=tuple(tail),
        head=tuple(head),
        capacity=tuple(capacity),
    )


def find_group_symmetries(
    machine: CapacityGraph, groups: Sequence[Group], collective: Collective
) -> tuple[Symmetry, ...]:
    """Generators of symmetries; those that turn links round for allreduce only."""
    every = find_symmetries(family(machine, groups, collective))
    return tuple(s for s in every if not s.turned or collective is Collective.ALLREDUCE)


def find_orbits(
    machine: CapacityGraph,
    groups: Sequence[Group],
    collective: Collective,
    given: Iterable[Symmetry],
) -> Orbits:
    """What the symmetries make alike; ForestError where one is none."""
    keys = flow_keys(groups, collective)
    number = {key: f for f, key in enumerate(keys)}
    local = [{e: i for i, e in enumerate(group.links)} for group in groups]
    base = [0]
    for g, _ in keys:
        base.append(base[-1] + len(groups[g].links))
    n = machine.n
    links, flows = DisjointSets(len(machine.tail)), DisjointSets(base[-1])
    sides, parts = DisjointSets(len(keys) * n), DisjointSets(len(groups) * n)
    maps = tuple(given)
    whole = family(machine, groups, collective) if maps else machine
    places = number_links(whole)
    for index, symmetry in enumerate(maps):
        where = f"bound: symmetry {index}"
        if symmetry.turned and not collective.two_phases:
            raise ForestError(f"{where} turns links round, which {collective} does not allow")
        image = symmetry.image
        moved = link_images(whole, symmetry, where, places)[: len(machine.tail)]
        for e, to_link in enumerate(moved):
            links.join(e, to_link)
        for f, (g, phase) in enumerate(keys):
            to_group = image[n + g] - n
            to = number[to_group, _other(phase) if symmetry.turned else phase]
            for i, e in enumerate(groups[g].links):
                flows.join(base[f] + i, base[to] + local[to_group][moved[e]])
            for v in range(n):
                sides.join(f * n + v, to * n + image[v])
                parts.join(g * n + v, to_group * n + image[v])
    roots = flows.roots()
    return Orbits(
        link=links.roots(),
        flow=[roots[base[f] : base[f + 1]] for f in range(len(keys))],
        side=_rows(sides.roots(), n),
        part=_rows(parts.roots(), n),
    )


def _other(phase: Phase) -> Phase:
    return "reduce" if phase == "broadcast" else "broadcast"


def _rows(flat: list[int], length: int) -> list[list[int]]:
    return [flat[i : i + length] for i in range(0, len(flat), length)]
