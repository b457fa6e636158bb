"""Forests of several groups: one for each, on its share of the links, valid together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph, Relays
from forestcoll.program import Collective
from forestcoll.schedule.forest import Forest, Tree, check
from forestcoll.schedule.group import Flow, Group, Together, check_together, view_groups
from forestcoll.solver.fixed_trees import fixed_capacities
from forestcoll.solver.groups.split import Split, split
from forestcoll.solver.optimum import optimum
from forestcoll.solver.partitions import allreduce_bound
from forestcoll.solver.phase_packing import pack_part
from forestcoll.solver.task import Task, analyse

TRIED = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
"""Trees a root that are tried before as many as the optimum of a group's share takes."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Broadcast trees of a flow, `total` units of weight in all, at `algbw` on its share."""

    trees: list[Tree]
    total: int
    algbw: Fraction


def solve_together(
    machine: CapacityGraph,
    groups: Sequence[Sequence[int]],
    collective: Collective,
    roots: Sequence[int] | None = None,
    relays: Relays = "none",
    trees: int | Literal["auto"] = "auto",
    name: str = "",
) -> Together:
    """Forests of all groups that reach the same algbw at the same time, as high as can be.

    `groups` are lists of nodes of `machine` (in rank order), `roots` a rank number for each. With a
    number of `trees` a root, each group uses so many on its share: the algbw may be lower. `name`
    is the topology's; the forests are called `<name>-group0`, ... Raises InfeasibleError and
    UnsupportedError.
    """
    views = view_groups(machine, groups, roots or [0] * len(groups), relays)
    shares = split(machine, views, collective)
    return pack_forests(machine, views, shares, collective, relays, trees, name)


def pack_forests(
    machine: CapacityGraph,
    views: Sequence[Group],
    shares: Split,
    collective: Collective,
    relays: Relays = "none",
    trees: int | Literal["auto"] = "auto",
    name: str = "",
) -> Together:
    """The second half of `together`: trees for links that are shared out."""
    found = [pack_flow(flow, shares.algbw, trees) for flow in shares.flows]
    algbw = min(shares.algbw, *(one.algbw for one in found))
    made = []
    for g, group in enumerate(views):
        own = [
            (flow, one) for flow, one in zip(shares.flows, found, strict=True) if flow.group == g
        ]
        made.append(_forest(group, own, collective, algbw, f"{name}-group{g}"))
    done = Together(
        machine, tuple(views), collective, relays, algbw, tuple(made), shares.bound, shares.note
    )
    check_together(done)
    return done


def pack_flow(flow: Flow, algbw: Fraction, trees: int | Literal["auto"]) -> Packed:
    """Trees on the flow's share: few that reach `algbw`, or as many as are asked for."""
    graph = flow.graph
    roots = [v for v, amount in enumerate(flow.supply) if amount]
    root = graph.ranks.index(roots[0]) if len(roots) == 1 else None
    sending = {v for v, part in zip(graph.ranks, graph.parts, strict=True) if part}
    if root is None and len({flow.supply[v] for v in sending}) > 1:
        if trees != "auto":
            raise UnsupportedError(
                "the groups share the links best with parts that differ from rank to rank, so a "
                "number of trees per root cannot be chosen: leave --trees away"
            )
        return _pack_exactly(flow, algbw)
    task = analyse(graph, root)
    if trees != "auto":
        return _trees(task, trees, *fixed_capacities(task, trees))
    for k in TRIED:
        if k >= task.trees_per_root:
            break
        links, capacity, u = fixed_capacities(task, k)
        if task.roots * k / u * links.unit >= algbw:
            return _trees(task, k, links, capacity, u)
    if task.algbw < algbw:
        raise RuntimeError(f"internal error: a share of {task.algbw} GB/s, {algbw} promised")
    k = task.trees_per_root
    if _pack_exactly(flow, algbw, dry=True).total < k * task.roots:
        return _pack_exactly(flow, algbw)
    return _trees(task, k, task.graph, task.capacities(), k / task.rate)


def _trees(task: Task, k: int, links: CapacityGraph, capacity: list[int], u: Fraction) -> Packed:
    """`k` trees per root in links that carry `capacity` of them in time u."""
    trees = pack_part(links, capacity, task.supply(k))
    return Packed(trees, k * task.roots, task.roots * k / u * links.unit)


def _pack_exactly(flow: Flow, algbw: Fraction, dry: bool = False) -> Packed:
    """Trees in the whole units in which all that starts and all links are; `dry` only counts."""
    scale = math.lcm(*(amount.denominator for amount in flow.supply))
    supply = [int(amount * scale) for amount in flow.supply]
    capacity = [units * scale for units in flow.graph.capacity]
    common = math.gcd(*supply, *capacity)
    supply = [amount // common for amount in supply]
    capacity = [units // common for units in capacity]
    if dry:
        return Packed([], sum(supply), algbw)
    return Packed(pack_part(flow.graph, capacity, supply), sum(supply), algbw)


def _forest(
    group: Group,
    flows: Sequence[tuple[Flow, Packed]],
    collective: Collective,
    algbw: Fraction,
    name: str,
) -> Forest:
    """The group's forest on the bandwidth that its trees take at `algbw`."""
    total = math.lcm(*(half.total for _, half in flows))
    trees = []
    for flow, half in flows:
        for tree in half.trees:
            heavy = replace(tree, weight=tree.weight * (total // half.total))
            trees.append(heavy.turned() if flow.phase == "reduce" else heavy)
    whole = Forest(name, group.graph, collective, total, tuple(trees))
    loads = {
        (u, v): Fraction(load, total) * algbw
        for u, v, load in zip(group.graph.tail, group.graph.head, whole.loads(), strict=True)
        if load
    }
    graph, place = _reserve(group.graph, loads, name)
    moved = tuple(
        Tree(
            place[tree.root],
            tree.phase,
            tree.weight,
            tuple(tuple(place[v] for v in path) for path in tree.edges),
        )
        for tree in trees
    )
    root = group.root if collective.rooted else None
    if collective is Collective.ALLREDUCE:
        bound = allreduce_bound(graph)
    else:
        bound = optimum(graph, collective, root).bound
    forest = Forest(name, graph, collective, total, moved, bound, -1 if root is None else root)
    reached = check(forest)
    if reached != algbw:
        raise RuntimeError(f"internal error: {name} reaches {reached} GB/s, not {algbw}")
    return forest


def _reserve(
    graph: CapacityGraph, loads: Mapping[tuple[int, int], Fraction], name: str
) -> tuple[CapacityGraph, dict[int, int]]:
    """(the links in use with these bandwidths, the new number of each node that is kept)."""
    used = {v for pair in loads for v in pair} | set(graph.ranks)
    place = {v: i for i, v in enumerate(sorted(used))}
    reserved = CapacityGraph.from_bandwidths(
        names=tuple(graph.names[v] for v in place),
        gpu=tuple(graph.gpu[v] for v in place),
        multicast=tuple(graph.multicast[v] for v in place),
        aggregation=tuple(graph.aggregation[v] for v in place),
        ranks=tuple(place[v] for v in graph.ranks),
        bandwidths={(place[u], place[v]): load for (u, v), load in loads.items()},
        name=name,
    )
    return reserved, place
