"""Compact forests: one tree an orbit of roots, packed against what each orbit of links carries.

If a group of symmetries moves ranks freely, a forest may be made of the images of a few trees. Then
every link of an orbit carries the same, and the packing of a fabric with thousands of GPUs becomes
a problem of a few orbits. Two schemes find such trees: `levels` for graphs without switches (tori,
cubes, meshes), `rotation` for equal parts around switches (boxes, pods). Both give exactly what is
asked or nothing; then the general solver takes over with the whole forest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Literal

from forestcoll.graph.capacity_graph import CapacityGraph, is_symmetric
from forestcoll.graph.symmetry.group import SymmetryGroup
from forestcoll.graph.symmetry.structures import find_structures
from forestcoll.program import Collective
from forestcoll.schedule.certificate import check_parts
from forestcoll.schedule.forest import Bound, Forest, Tree, check, in_order
from forestcoll.solver.compact.levels import pack_by_hops
from forestcoll.solver.compact.rotation import pack_parts
from forestcoll.solver.fixed_trees import fit_trees
from forestcoll.solver.task import Optimum, analyse

COMPACT_FROM = 2_048
"""Above that many ranks, compact forests are made where that is possible and nothing else asked."""


def pack_compact(
    graph: CapacityGraph, k: int, capacity: Sequence[int]
) -> tuple[list[Tree], SymmetryGroup] | None:
    """(broadcast trees, the group whose images of them are the forest), or None if none is found.

    Every rank is the root of `k` trees; `capacity` says how many each link may carry, alike for all
    links of an orbit.
    """
    for structure in find_structures(graph):
        group, parts = structure.group, structure.parts
        if any(capacity[e] != capacity[orbit] for e, orbit in enumerate(group.link)):
            continue
        if parts is not None:
            found = pack_parts(graph, parts, group, k, capacity)
        else:
            trees = pack_by_hops(graph, group, k, capacity)
            found = None if trees is None else (trees, group)
        if found is not None:
            return found
    return None


def solve_compact(
    graph: CapacityGraph,
    collective: Collective,
    trees: int | Literal["auto"] = "auto",
    name: str = "",
) -> Forest | None:
    """A forest of representatives and a group, as good as the whole one; None if none is found.

    For allgather, reduce-scatter, and allreduce over the same trees where links are alike in both
    directions. `trees` and errors as in `solve`.
    """
    if collective.rooted or not find_structures(graph):
        return None
    if collective is Collective.ALLREDUCE and not is_symmetric(graph):
        return None
    task = analyse(graph.reverse() if collective is Collective.REDUCE_SCATTER else graph, None)
    k, links, capacity, algbw = fit_trees(task, trees)
    if links is not task.given:
        return None  # a part of the links that is balanced at every switch may be less regular
    packed = pack_compact(links, k, capacity)
    if packed is None:
        return None
    out, group = packed
    out = [replace(t, edges=in_order(t.root, t.phase, t.edges)) for t in out]
    common = math.gcd(k * task.roots, *(tree.weight for tree in out))
    out = [replace(tree, weight=tree.weight // common) for tree in out]
    back = [tree.turned() for tree in out] if collective.reduces else []
    if collective is Collective.ALLREDUCE:
        bound, algbw = regular_bound(graph, task.bound), algbw / 2
    else:
        bound, out = task.bound, back or out
        back = []
    total = k * task.roots // common
    forest = Forest(name, graph, collective, total, (*back, *out), bound, group=group)
    reached = check(forest)
    if reached < algbw:
        raise RuntimeError(f"internal error: the forest reaches {reached} GB/s, not {algbw}")
    return forest


def regular_allreduce(graph: CapacityGraph) -> Optimum | None:
    """Reduce-scatter and allgather over the same trees on a regular graph, with a bound.

    None where another way may be better and the graph is small enough to look for it, or where
    links are not alike in both directions.
    """
    if not is_symmetric(graph) or not find_structures(graph):
        return None
    task = analyse(graph, None)
    algbw, bound = task.algbw / 2, regular_bound(graph, task.bound)
    note = ""
    if bound.algbw > algbw:
        if len(graph.ranks) <= COMPACT_FROM:
            return None
        note = (
            "reduce-scatter and allgather over the same trees; a joint optimum is not looked for "
            f"beyond {COMPACT_FROM:,} ranks"
        )
    return Optimum(algbw, algbw / len(graph.ranks), task.trees_per_root, bound, note)


def regular_bound(graph: CapacityGraph, cut: Bound) -> Bound:
    """The least bound of allreduce among ranks alone, equal parts, and the cut of allgather."""
    singles = tuple(frozenset((v,)) for v in graph.ranks)
    partitions = [singles]
    partitions += [
        tuple(frozenset(part) for part in s.parts.members)
        for s in find_structures(graph)
        if s.parts
    ]
    bounds = [Bound(Fraction(0), "cut", cut.parts)] if cut.method == "cut" else []
    bounds += [Bound(Fraction(0), "partition", parts) for parts in partitions]
    proven = [replace(b, algbw=check_parts(graph, b, Collective.ALLREDUCE)) for b in bounds]
    return min(proven, key=lambda bound: bound.algbw)
