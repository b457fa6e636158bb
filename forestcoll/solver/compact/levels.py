"""Level packing under a group: every node hangs one hop farther from the root than its parent.

Any choice of such parents is a tree, so all that has to be right is how much each orbit of links
carries: one transportation problem for the whole forest, from "k units for node v of the tree of
representative root r" to the orbits of the links that enter v from the level above. Nodes with the
same choice are one row. Only for graphs without switches; height is the eccentricity of the ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.kernel import _kernel
from forestcoll.graph.symmetry.group import SymmetryGroup
from forestcoll.schedule.forest import Tree

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
    into: list[list[int]] = [[] for _ in range(graph.n)]
    out: list[list[int]] = [[] for _ in range(graph.n)]
    for e, (u, v) in enumerate(zip(graph.tail, graph.head, strict=True)):
        if capacity[e]:
            into[v].append(e)
            out[u].append(v)
    rows: list[tuple[int, int, Row]] = []
    for number, root in enumerate(roots):
        order, level = _levels(out, root)
        if len(order) < graph.n:
            return []
        for v in order[1:]:
            row = {
                group.link[e]: graph.tail[e]
                for e in into[v]
                if level[graph.tail[e]] == level[v] - 1
            }
            rows.append((number, v, row))
    return rows


def _levels(out: Sequence[Sequence[int]], root: int) -> tuple[list[int], list[int]]:
    """(nodes in order of their distance from `root`, distance of each node)."""
    level = [-1] * len(out)
    level[root] = 0
    order = [root]
    for u in order:
        for v in out[u]:
            if level[v] < 0:
                level[v] = level[u] + 1
                order.append(v)
    return order, level


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
    tail, head, limit = ([arc[i] for arc in arcs] for i in range(3))
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
