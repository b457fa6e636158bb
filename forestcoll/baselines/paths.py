"""The path that a baseline takes from rank to rank: over links and switches, the shortest."""

from __future__ import annotations

import heapq

from forestcoll.graph import CapacityGraph


def paths(graph: CapacityGraph) -> dict[tuple[int, int], tuple[int, ...]]:
    """(rank, rank) -> nodes from the one to the other, where only switches lie between.

    The fewest hops; among those the widest; among those the first.
    """
    out: dict[int, list[tuple[int, int]]] = {}
    for tail, head, capacity in zip(graph.tail, graph.head, graph.capacity, strict=True):
        out.setdefault(tail, []).append((head, capacity))
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    for source in graph.ranks:
        for target, path in _from(source, out, graph).items():
            found[source, target] = path
    return found


def _from(
    source: int, out: dict[int, list[tuple[int, int]]], graph: CapacityGraph
) -> dict[int, tuple[int, ...]]:
    done: dict[int, tuple[int, ...]] = {}
    queue: list[tuple[int, int, tuple[int, ...]]] = [(0, 0, (source,))]
    while queue:
        hops, width, path = heapq.heappop(queue)
        node = path[-1]
        if node in done:
            continue
        done[node] = path
        if graph.gpu[node] and node != source:
            continue
        for head, capacity in out.get(node, ()):
            if head not in done:
                narrowest = capacity if node == source else min(-width, capacity)
                heapq.heappush(queue, (hops + 1, -narrowest, (*path, head)))
    ranks = set(graph.ranks)
    return {node: path for node, path in done.items() if node != source and node in ranks}
