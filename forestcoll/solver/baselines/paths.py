"""The path that a baseline takes from rank to rank: over links and switches, the shortest."""

from __future__ import annotations

import heapq

from forestcoll.graph.capacity_graph import CapacityGraph

Ways = dict[tuple[int, int], tuple[int, ...]]
"""(rank, rank) -> nodes from the one to the other, where only switches lie between."""


def paths(graph: CapacityGraph) -> Ways:
    """(rank, rank) -> nodes from the one to the other, where only switches lie between.

    The fewest hops; among those the widest; among those the first. Nobody leaves a box to reach a
    GPU that other GPUs of the box lead to, though they are in between.
    """
    out: dict[int, list[tuple[int, int]]] = {}
    for tail, head, capacity in zip(graph.tail, graph.head, graph.capacity, strict=True):
        out.setdefault(tail, []).append((head, capacity))
    found: Ways = {}
    for source in graph.ranks:
        for target, path in _from(source, out, graph).items():
            found[source, target] = path
    part = _parts(graph)
    return {
        (u, v): path
        for (u, v), path in found.items()
        if part[u] != part[v] or all(graph.box(w) == graph.box(u) for w in path)
    }


def _parts(graph: CapacityGraph) -> dict[int, tuple[str, int]]:
    """Per rank its box, and the first rank of the box that is linked to it inside."""
    near: dict[int, list[int]] = {node: [] for node in range(graph.n)}
    for tail, head in zip(graph.tail, graph.head, strict=True):
        if graph.box(tail) == graph.box(head) != "":
            near[tail].append(head)
            near[head].append(tail)
    found: dict[int, tuple[str, int]] = {}
    for rank in graph.ranks:
        if rank in found:
            continue
        seen, queue = {rank}, [rank]
        for node in queue:
            new = [v for v in near[node] if v not in seen]
            seen.update(new)
            queue += new
        found |= {node: (graph.box(rank), rank) for node in sorted(seen) if graph.gpu[node]}
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
