"""Views of a machine: what each of several groups has of it, and what flows may take of links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph, Relays
from forestcoll.schedule.forest import Phase
from forestcoll.schedule.group import Group


@dataclass(frozen=True, slots=True)
class Flow:
    """The trees of one phase of a group, and what they may take of each link.

    `graph` is the group's, turned round for reduce trees, so that data flows from the roots; its
    capacities are what the flow may take. `supply[v]` is what starts at node v, in the same unit:
    the common algbw in all.
    """

    group: int
    phase: Phase
    graph: CapacityGraph
    supply: tuple[Fraction, ...]


def view_groups(
    machine: CapacityGraph, groups: Sequence[Sequence[int]], roots: Sequence[int], relays: Relays
) -> list[Group]:
    """What each group has of the machine: its members, switches, and GPUs that may relay.

    `groups` are nodes of `machine`, `roots` rank numbers in each group (used where the collective
    is rooted). `relays`: "none"; "idle": GPUs in no group; "all": GPUs of other groups too. Raises
    UnsupportedError for a group of one, or that names a node twice.
    """
    busy = {v for group in groups for v in group}
    out = []
    for number, members in enumerate(groups):
        if len(members) < 2:
            raise UnsupportedError(f"group {number} has {len(members)} rank: it needs at least two")
        if len(set(members)) < len(members):
            raise UnsupportedError(f"group {number} names a rank twice")
        own = set(members)
        nodes = frozenset(
            v
            for v in range(machine.n)
            if v in own
            or not machine.gpu[v]
            or (relays == "all")
            or (relays == "idle" and v not in busy)
        )
        kept = [
            e
            for e, ends in enumerate(zip(machine.tail, machine.head, strict=True))
            if ends[0] in nodes and ends[1] in nodes
        ]
        graph = replace(
            machine,
            ranks=tuple(members),
            tail=tuple(machine.tail[e] for e in kept),
            head=tuple(machine.head[e] for e in kept),
            capacity=tuple(machine.capacity[e] for e in kept),
        )
        out.append(Group(graph, tuple(kept), roots[number]))
    return out


def scale(graph: CapacityGraph, capacity: Sequence[int], unit: Fraction) -> CapacityGraph:
    """`graph` with other capacities, in as coarse a unit as they allow; empty links left out."""
    common = math.gcd(*capacity) or 1
    kept = [e for e, units in enumerate(capacity) if units]
    return replace(
        graph,
        tail=tuple(graph.tail[e] for e in kept),
        head=tuple(graph.head[e] for e in kept),
        capacity=tuple(capacity[e] // common for e in kept),
        unit=unit * common,
    )


def span_switches(graph: CapacityGraph) -> CapacityGraph:
    """`graph` whose switches that copy are ranks without a part: trees span them, too.

    The graph itself where there is none.
    """
    ranks = set(graph.ranks)
    more = tuple(v for v in range(graph.n) if graph.multicast[v] and v not in ranks)
    if not more:
        return graph
    return replace(graph, ranks=graph.ranks + more, shares=graph.parts + (0,) * len(more))
