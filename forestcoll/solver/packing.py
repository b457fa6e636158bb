"""From links that carry whole numbers of trees to the trees themselves, over real paths."""

from __future__ import annotations

from forestcoll.forest import Path, Tree
from forestcoll.graph import CapacityGraph
from forestcoll.kernel import _kernel


def remove_switches(
    graph: CapacityGraph, capacity: list[int], supply: list[int]
) -> _kernel.Logical:
    """Links between ranks only that can still carry `supply`, and their way back to real paths.

    Every node that is no rank must be balanced in `capacity`. Nodes of one box count as near: what
    joins boxes is not spent inside one.
    """
    number: dict[str, int] = {}
    group = []
    for node in range(graph.n):
        box = graph.box(node)
        group.append(number.setdefault(box, len(number)) if box else -1)
    return _kernel.remove_relays(
        graph.n, graph.tail, graph.head, capacity, supply, graph.ranks, group
    )


def pack(graph: CapacityGraph, logical: _kernel.Logical, supply: list[int]) -> list[Tree]:
    """Broadcast trees, `supply[r]` of them rooted at each node r; equal ones are one Tree."""
    paths: list[Path] = [tuple(path) for path in logical.paths]
    merged: dict[tuple[int, tuple[int, ...]], tuple[int, list[int]]] = {}
    for root, weight, edges in _kernel.pack(logical, supply, graph.ranks):
        key = (root, tuple(sorted(edges)))
        before, order = merged.get(key, (0, edges))
        merged[key] = (before + weight, order)
    trees = [
        Tree(root, "broadcast", weight, tuple(paths[e] for e in order))
        for (root, _), (weight, order) in merged.items()
    ]
    rank = {node: number for number, node in enumerate(graph.ranks)}
    return sorted(trees, key=lambda tree: (rank[tree.root], -tree.weight))


def check_loads(graph: CapacityGraph, capacity: list[int], trees: list[Tree]) -> None:
    """RuntimeError where some link carries more trees than it may: a bug, caught before it leaves."""
    room = dict(zip(zip(graph.tail, graph.head, strict=True), capacity, strict=True))
    for tree in trees:
        for path in tree.edges:
            for i in range(len(path) - 1):
                room[path[i], path[i + 1]] -= tree.weight
    for (tail, head), left in room.items():
        if left < 0:
            names = graph.names
            raise RuntimeError(
                f"internal error: {names[tail]} -> {names[head]} carries {-left} trees too many"
            )
