"""Arborescence packing: links that carry whole numbers of trees become trees over real paths."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.kernel import _kernel
from forestcoll.graph.symmetry.automorphisms import find_free_group
from forestcoll.graph.symmetry.group import Image
from forestcoll.schedule.forest import Path, Tree, scan
from forestcoll.solver.preference import prefer

EXACT_TOO = 64
"""Ranks up to which exact packing is tried as well where packing by boxes has succeeded."""
SEARCHED = 4_096
"""Parents in all trees of a forest, equal ones apart, up to which lower trees are searched for."""


def pack(graph: CapacityGraph, capacity: list[int], supply: list[int]) -> list[Tree]:
    """Broadcast trees, `supply[r]` of them rooted at each node r; equal ones are one Tree.

    Every node that is no rank must be balanced in `capacity`, and every rank must be able to
    receive the whole supply: then trees always exist. Layered packing where it works, for no trees
    are lower; else box by box, and exact packing where that fails or the graph is small: the lowest
    trees found. Those of a small graph are searched for lower ones, alike where the graph is.
    """
    group = _boxes(graph)
    ways: list[_kernel.Logical] = []
    layered = _pack_layered(graph, capacity, supply, group, ways)
    if layered is not None:
        return layered[1]
    found = _pack_nested(graph, supply, group, ways)
    for logical in ways:
        if found and len(graph.ranks) > EXACT_TOO:
            break
        packed = _kernel.pack(logical, supply, graph.ranks, True)
        if packed is None:
            raise RuntimeError("internal error: no trees were packed")
        found.append((*packed, logical))
    height = min(height for height, _, _ in found)
    if sum(supply) * len(graph.ranks) <= SEARCHED:
        _, _, logical = min(found, key=lambda f: (f[0], len(f[1])))
        lower = _kernel.pack_lowest(logical, supply, graph.ranks, _elements(graph), height)
        if lower is not None:
            return _over_paths(graph, logical, lower[1])
    return _lowest(graph, found)


def pack_quickly(
    graph: CapacityGraph, capacity: list[int], supply: list[int]
) -> tuple[int, list[Tree]] | None:
    """(height, trees) as `pack` makes them in layers or box by box: None where it cannot."""
    group = _boxes(graph)
    ways: list[_kernel.Logical] = []
    layered = _pack_layered(graph, capacity, supply, group, ways)
    if layered is not None:
        return layered
    found = _pack_nested(graph, supply, group, ways)
    return (min(height for height, _, _ in found), _lowest(graph, found)) if found else None


Packed = tuple[int, list[tuple[int, int, list[int]]], _kernel.Logical]
"""Height, trees and what their paths are numbers of."""


def _pack_nested(
    graph: CapacityGraph, supply: list[int], group: list[int], ways: list[_kernel.Logical]
) -> list[Packed]:
    """What packing box by box makes of each of the ways."""
    found: list[Packed] = []
    for logical in ways:
        packed = _kernel.pack_nested(logical, supply, graph.ranks, group)
        if packed is not None:
            found.append((*packed, logical))
    return found


def _lowest(graph: CapacityGraph, found: list[Packed]) -> list[Tree]:
    """The lowest of these, as trees over real paths."""
    height = min(height for height, _, _ in found)
    lowest = [_over_paths(graph, logical, batches) for h, batches, logical in found if h == height]
    return prefer(graph, lowest)


def _pack_layered(
    graph: CapacityGraph,
    capacity: list[int],
    supply: list[int],
    group: list[int],
    ways: list[_kernel.Logical],
) -> tuple[int, list[Tree]] | None:
    """The same in layers; the ways around switches that were tried in vain are put into `ways`."""
    for logical in _ways(graph, capacity, supply, group):
        packed = _kernel.pack(logical, supply, graph.ranks, False)
        if packed is not None:
            return packed[0], _over_paths(graph, logical, packed[1])
        ways.append(logical)
    return None


def _elements(graph: CapacityGraph) -> list[Image]:
    """Symmetries under which trees may be alike; only the identity where there are switches."""
    group = None if len(graph.ranks) < graph.n else find_free_group(graph)
    return [tuple(range(graph.n))] if group is None else list(group.elements())


def _boxes(graph: CapacityGraph) -> list[int]:
    """Per node the number of its box, or -1.

    A node that its box cannot reach over links of its own, or that cannot reach the box (a failed
    link, one way or both), counts as a box of its own: trees come to it from outside.
    """
    members: dict[str, list[int]] = defaultdict(list)
    for node in range(graph.n):
        members[graph.box(node)].append(node)
    members.pop("", None)
    group = [-1] * graph.n
    for number, nodes in enumerate(members.values()):
        for node in nodes:
            group[node] = number
    out: list[list[int]] = [[] for _ in range(graph.n)]
    into: list[list[int]] = [[] for _ in range(graph.n)]
    for u, v in zip(graph.tail, graph.head, strict=True):
        if group[u] == group[v] >= 0:
            out[u].append(v)
            into[v].append(u)
    count = len(members)
    for nodes in members.values():
        left = nodes
        while left:
            together = _reach(out, left[0]) & _reach(into, left[0])
            for node in together:
                group[node] = count
            count += 1
            left = [node for node in left if node not in together]
    return group


def _reach(near: Sequence[Sequence[int]], start: int) -> set[int]:
    found = {start}
    queue = [start]
    for u in queue:
        for v in near[u]:
            if v not in found:
                found.add(v)
                queue.append(v)
    return found


def _ways(
    graph: CapacityGraph, capacity: list[int], supply: list[int], group: list[int]
) -> Iterator[_kernel.Logical]:
    """Links between ranks only that can still carry `supply`, and their way back to real paths.

    Nodes of one box count as near: what joins boxes is not spent inside one. Spare links between
    switches make trees lower, or only lead astray: with such links there is a second way, without.
    """
    links = (graph.n, graph.tail, graph.head, capacity, supply, graph.ranks, group)
    yield _kernel.remove_relays(*links, True)
    ranks = set(graph.ranks)
    if any(t not in ranks and h not in ranks for t, h in zip(graph.tail, graph.head, strict=True)):
        yield _kernel.remove_relays(*links, False)


def _over_paths(
    graph: CapacityGraph, logical: _kernel.Logical, batches: list[tuple[int, int, list[int]]]
) -> list[Tree]:
    paths: list[Path] = [tuple(path) for path in logical.paths]
    trees = [
        Tree(root, "broadcast", weight, tuple(map(paths.__getitem__, edges)))
        for root, weight, edges in batches
    ]
    rank = {node: number for number, node in enumerate(graph.ranks)}
    return sorted(trees, key=lambda tree: (rank[tree.root], -tree.weight))


def check_loads(graph: CapacityGraph, capacity: list[int], trees: list[Tree]) -> None:
    """RuntimeError where a link carries more trees than it may: a bug, caught before it leaves."""
    loads = scan(graph, trees, copying=False)[2]
    if loads is None:
        raise RuntimeError("internal error: trees over links that are not there, or too many")
    names = graph.names
    for tail, head, room, load in zip(graph.tail, graph.head, capacity, loads, strict=True):
        if load > room:
            raise RuntimeError(
                f"internal error: {names[tail]} -> {names[head]} carries {load - room} trees "
                "too many"
            )
