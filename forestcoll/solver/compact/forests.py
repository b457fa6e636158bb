"""Compact forests: one tree an orbit of roots, packed against what each orbit of links carries.

If a group of symmetries moves ranks freely, a forest may be made of the images of a few trees. Then
every link of an orbit carries the same, and the packing of a fabric with thousands of GPUs becomes
a problem of a few orbits. Two schemes find such trees: `levels` for graphs without switches (tori,
cubes, meshes), `rotation` for equal parts around switches (boxes, pods). Both give exactly what is
asked or nothing; then the general solver takes over with the whole forest.

Level packing under a group: every node hangs one hop farther from the root than its parent.

Any choice of such parents is a tree, so all that has to be right is how much each orbit of links
carries: one transportation problem for the whole forest, from "k units for node v of the tree of
representative root r" to the orbits of the links that enter v from the level above. Nodes with the
same choice are one row. Only for graphs without switches; height is the eccentricity of the ranks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Literal

from forestcoll.graph.capacity_graph import CapacityGraph, is_symmetric
from forestcoll.graph.kernel import _kernel
from forestcoll.graph.symmetry.components import find_structures
from forestcoll.graph.symmetry.group import SymmetryGroup
from forestcoll.program import Collective
from forestcoll.schedule.certificate import check_parts
from forestcoll.schedule.forest import Bound, Forest, Tree, in_order
from forestcoll.solver.compact.rotation import pack_around, pack_parts
from forestcoll.solver.compact.stars import LARGE, pack_stars
from forestcoll.solver.fixed_trees import fit_trees
from forestcoll.solver.task import COMPACT_FROM, Packed, analyse, assemble, check_promise, forward
from forestcoll.solver.walks import hops, neighbours


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
        trees = None
        if parts is None:
            trees = pack_by_hops(graph, group, k, capacity)
        elif len(graph.ranks) > LARGE * len(parts.members):
            trees = pack_stars(graph, group, k, capacity)
        packed = None if trees is None else (trees, group)
        if packed is None and parts is not None:
            packed = pack_parts(graph, parts, group, k, capacity)
        if packed is not None:
            return packed
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
    if collective.has_root or graph.shares:
        return None
    if collective is Collective.ALLREDUCE and not is_symmetric(graph):
        return None
    task = analyse(forward(graph, collective), None)
    fit = fit_trees(task, trees)
    if fit.links is not task.given:
        return None  # a part of the links that is balanced at every switch may be less regular
    asked = fit.links, fit.trees, fit.capacity
    packed = pack_compact(*asked)
    # of an allreduce only where its joint optimum is out of reach
    if packed is None and (collective.has_parts or len(graph.ranks) > COMPACT_FROM):
        packed = pack_around(*asked)
    if packed is None:
        return None
    out, group = packed
    total = sum(tree.weight * group.images_of([tree.root]) for tree in out)
    common = math.gcd(total, *(tree.weight for tree in out))
    out = [
        replace(t, edges=in_order(t.root, t.phase, t.edges), weight=t.weight // common) for t in out
    ]
    bound, algbw = task.bound, fit.algbw
    if collective is Collective.ALLREDUCE:
        bound, algbw = regular_bound(graph, bound), algbw / 2
    phase = Packed(out, total // common, algbw)
    phases = dict.fromkeys(collective.phases, phase)
    forest = assemble(name, graph, collective, phases, bound, group=group)
    check_promise(forest, algbw)
    return forest


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


UNITS = 8_000_000
"""Tree edges of all representatives together, at most."""

Row = dict[int, int]  # orbit of a link into a node -> tail of that link


def pack_by_hops(
    graph: CapacityGraph, group: SymmetryGroup, k: int, capacity: Sequence[int]
) -> list[Tree] | None:
    """Broadcast trees, `k` units of weight a representative root; None where levels do not do.

    `capacity`: trees that each link may carry when all ranks are roots, alike within an orbit. The
    roots are the least rank of each orbit.
    """
    roots = sorted({group.node[v] for v in graph.ranks})
    rows = _rows(graph, group, roots, capacity)
    chosen = _divide(rows, k, capacity) if rows and k * len(rows) <= UNITS else None
    if chosen is None:
        return None
    parents: list[list[list[tuple[int, int]]]] = [[[] for _ in range(k)] for _ in roots]
    for (number, v, row), orbits in zip(rows, chosen, strict=True):
        for unit, orbit in enumerate(orbits):
            parents[number][unit].append((row[orbit], v))
    trees = []
    for root, units in zip(roots, parents, strict=True):
        weights: dict[tuple[tuple[int, int], ...], int] = defaultdict(int)
        for unit_edges in units:
            weights[tuple(unit_edges)] += 1
        trees += [Tree(root, "broadcast", weight, edges) for edges, weight in weights.items()]
    return trees


def _rows(
    graph: CapacityGraph, group: SymmetryGroup, roots: Sequence[int], capacity: Sequence[int]
) -> list[tuple[int, int, Row]]:
    """(number of the root, node, its choice) for all but the roots; parents come first.

    Empty where some node cannot be reached.
    """
    used = [e for e, c in enumerate(capacity) if c]
    into = neighbours(graph.n, ((graph.head[e], e) for e in used))
    out = neighbours(graph.n, ((graph.tail[e], graph.head[e]) for e in used))
    rows: list[tuple[int, int, Row]] = []
    for number, root in enumerate(roots):
        level = hops(out, [root])
        if len(level) < graph.n:
            return []
        for v in [*level][1:]:
            row = {
                group.link[e]: graph.tail[e]
                for e in into[v]
                if level[graph.tail[e]] == level[v] - 1
            }
            rows.append((number, v, row))
    return rows


def _divide(
    rows: Sequence[tuple[int, int, Row]], k: int, capacity: Sequence[int]
) -> list[list[int]] | None:
    """Per row the orbits of its k units, such that no orbit carries more than it may."""
    classes: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for place, (_, _, row) in enumerate(rows):
        classes[tuple(sorted(row))].append(place)
    orbits = sorted({orbit for choice in classes for orbit in choice})
    node = {orbit: 2 + len(classes) + i for i, orbit in enumerate(orbits)}
    arcs: list[tuple[int, int, int]] = []
    options: list[tuple[tuple[int, ...], int, int]] = []  # class, orbit, number of its arc
    for i, (choice, places) in enumerate(classes.items()):
        arcs.append((0, 2 + i, k * len(places)))
        for orbit in choice:
            options.append((choice, orbit, len(arcs)))
            arcs.append((2 + i, node[orbit], k * len(places)))
    for orbit in orbits:
        arcs.append((node[orbit], 1, capacity[orbit]))
    tail, head, limit = zip(*arcs, strict=True)
    flow = _kernel.maximum_flow(2 + len(classes) + len(orbits), tail, head, limit, 0, 1)
    if sum(f for f, t in zip(flow, tail, strict=True) if t == 0) < k * len(rows):
        return None
    units: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
    for choice, orbit, arc in options:
        if flow[arc]:
            units[choice].append((flow[arc], orbit))
    chosen: list[list[int]] = [[] for _ in rows]
    for choice, places in classes.items():
        slots = iter([orbit for amount, orbit in sorted(units[choice]) for _ in range(amount)])
        for place in places:
            chosen[place] = [next(slots) for _ in range(k)]
    return chosen
