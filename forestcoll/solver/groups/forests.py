"""Forests of several groups: one for each, on its share of the links, valid together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Literal

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph, Relays
from forestcoll.program import Collective
from forestcoll.schedule.forest import Forest, Phase, check
from forestcoll.schedule.group import Flow, Group, Together, check_together
from forestcoll.solver.fixed_trees import Fit, fit_trees
from forestcoll.solver.groups.split import Split
from forestcoll.solver.optimum import optimum
from forestcoll.solver.packing import rename
from forestcoll.solver.partitions import allreduce_bound
from forestcoll.solver.phase_packing import pack_part
from forestcoll.solver.task import Packed, Task, analyse, assemble
from forestcoll.solver.walks import neighbours

TRIED = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
"""Trees a root that are tried before as many as the optimum of a group's share takes."""


def pack_forests(
    machine: CapacityGraph,
    views: Sequence[Group],
    shares: Split,
    relays: Relays = "none",
    trees: int | Literal["auto"] = "auto",
    name: str = "",
) -> Together:
    """Forests of all groups for links that are shared out (`split`), called `<name>-group0`, ...

    They reach the common algbw, times their weights, at the same time. With a number of `trees` a
    root, each group uses so many on its share: the algbw may be lower. `name` is the topology's.
    Raises InfeasibleError and UnsupportedError.
    """
    weights = [views[flow.group].weight for flow in shares.flows]
    each = list(zip(shares.flows, weights, strict=True))
    alike: dict[object, tuple[list[int], Packed]] = {}
    packed = [_pack_once(alike, flow, shares.algbw * weight, trees) for flow, weight in each]
    reached = [one.algbw / weight for one, weight in zip(packed, weights, strict=True)]
    algbw = min(shares.algbw, *reached)
    own: list[dict[Phase, Packed]] = [{} for _ in views]
    for flow, one in zip(shares.flows, packed, strict=True):
        own[flow.group][flow.phase] = one
    forests = [
        _forest(group, phases, algbw * group.weight, f"{name}-group{g}")
        for g, (group, phases) in enumerate(zip(views, own, strict=True))
    ]
    done = Together(machine, tuple(views), relays, algbw, tuple(forests), shares.bound, shares.note)
    check_together(done)
    return done


def form(graph: CapacityGraph) -> tuple[object, list[int]]:
    """(the same for links that differ in the names of nodes alone, nodes in the order of it).

    Ranks come first, in their order; nodes that data of none reaches are left away.
    """
    near, order = neighbours(graph.n, graph.ends), dict.fromkeys(graph.ranks)
    for v in (todo := list(order)):
        todo += [w for w in near[v] if w not in order]
        order |= dict.fromkeys(near[v])
    number = {v: i for i, v in enumerate(order)}
    boxes = dict.fromkeys(map(graph.box, order))
    homes = tuple(map([*boxes].index, map(graph.box, order)))
    kinds = tuple((graph.gpu[v], graph.multicast[v], graph.aggregation[v]) for v in order)
    links = sorted((number[u], number[v], c) for u, v, c in graph.arcs if u in number)
    return (homes, kinds, tuple(links), graph.unit), list(order)


def _pack_once(
    alike: dict[object, tuple[list[int], Packed]],
    flow: Flow,
    algbw: Fraction,
    trees: int | Literal["auto"],
) -> Packed:
    """`pack_flow`; of flows that differ in the names of nodes alone, the first one's trees."""
    links, order = form(flow.graph)
    key = links, tuple(flow.supply[v] for v in order), algbw
    if key not in alike:
        alike[key] = order, pack_flow(flow, algbw, trees)
        return alike[key][1]
    first, packed = alike[key]
    place = dict(zip(first, order, strict=True))
    return replace(packed, trees=rename(packed.trees, place))


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
        supply, capacity = _units(flow)
        return Packed(pack_part(graph, capacity, supply), sum(supply), algbw)
    task = analyse(graph, root)
    if trees != "auto":
        return _pack(task, fit_trees(task, trees))
    for k in TRIED:
        if k >= task.trees_per_root:
            break
        fit = fit_trees(task, k)
        if fit.algbw >= algbw:
            return _pack(task, fit)
    if task.algbw < algbw:
        raise RuntimeError(f"internal error: a share of {task.algbw} GB/s, {algbw} promised")
    supply, capacity = _units(flow)
    if sum(supply) < task.trees_per_root * task.roots:
        return Packed(pack_part(graph, capacity, supply), sum(supply), algbw)
    return _pack(task, fit_trees(task, "auto"))


def _pack(task: Task, fit: Fit) -> Packed:
    trees = pack_part(fit.links, fit.capacity, task.supply(fit.trees))
    return Packed(trees, fit.trees * task.roots, fit.algbw)


def _units(flow: Flow) -> tuple[list[int], list[int]]:
    """(supply, capacity) in the whole units in which all that starts and all links are."""
    scale = math.lcm(*(amount.denominator for amount in flow.supply))
    supply = [int(amount * scale) for amount in flow.supply]
    capacity = [units * scale for units in flow.graph.capacity]
    common = math.gcd(*supply, *capacity)
    return [amount // common for amount in supply], [units // common for units in capacity]


def _forest(
    group: Group,
    phases: Mapping[Phase, Packed],
    algbw: Fraction,
    name: str,
) -> Forest:
    """The group's forest on the bandwidth that its trees take at `algbw`."""
    collective = group.collective
    whole = assemble(name, group.graph, collective, phases)
    loads = {
        ends: Fraction(load, whole.total) * algbw
        for ends, load in zip(group.graph.ends, whole.loads(), strict=True)
        if load
    }
    graph, place = reserve(group.graph, loads, name)
    root = group.root if collective.has_root else None
    if collective is Collective.ALLREDUCE:
        bound = allreduce_bound(graph)
    else:
        bound = optimum(graph, collective, root).bound
    at = -1 if root is None else root
    forest = replace(whole, graph=graph, trees=rename(whole.trees, place), bound=bound, root=at)
    reached = check(forest)
    if reached != algbw:
        raise RuntimeError(f"internal error: {name} reaches {reached} GB/s, not {algbw}")
    return forest


def reserve(
    graph: CapacityGraph, loads: Mapping[tuple[int, int], Fraction], name: str
) -> tuple[CapacityGraph, dict[int, int]]:
    """(the links in use with these bandwidths, GB/s, the new number of each node that is kept)."""
    used = {v for pair in loads for v in pair} | set(graph.ranks)
    place = {v: i for i, v in enumerate(sorted(used))}
    rates = {(place[u], place[v]): load for (u, v), load in loads.items()}
    return graph.restrict(list(place), {}).with_bandwidths(rates, name), place
