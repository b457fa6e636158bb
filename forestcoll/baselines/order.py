"""In which order rings go round."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from forestcoll.errors import UnsupportedError
from forestcoll.graph import CapacityGraph

Order = tuple[tuple[int, ...], int]
"""Ranks (nodes) round a ring, and its share of the data."""

TRIES = 200_000
"""Steps of one search for a ring."""


def _boxes(graph: CapacityGraph) -> dict[str, list[int]]:
    boxes: dict[str, list[int]] = {}
    for rank in graph.ranks:
        boxes.setdefault(graph.box(rank), []).append(rank)
    return boxes


def rail_orders(graph: CapacityGraph) -> list[Order]:
    """Box after box, from each to the GPU of the same number in the next: along a rail.

    A ring that enters a box by one GPU must leave it by another, so that the rail changes from box
    to box: 0, 1, 0, 1, ..., and once 2 where the number of boxes is odd. The k-th order is k rails
    on: all of them together enter and leave every box by every GPU once. None where boxes are not
    alike or have too few GPUs. It is what NCCL makes of rails: each channel keeps to one NIC's
    switch from box to box (NCCL_CROSS_NIC=2, its default, looks for that first).
    """
    boxes = list(_boxes(graph).values())
    size, count = len(boxes[0]), len(boxes)
    if count < 2 or size < 2 + count % 2 or any(len(members) != size for members in boxes):
        return []
    entered = [box % 2 for box in range(count)]
    if count % 2:
        entered[-1] = 2
    orders = []
    for k in range(size):
        order: list[int] = []
        for box, members in enumerate(boxes):
            first = members[(entered[box] + k) % size]
            last = members[(entered[(box + 1) % count] + k) % size]
            between = [rank for rank in members if rank not in (first, last)]
            order += [first, *between, last]
        orders.append((tuple(order), 1))
    return orders


def box_orders(graph: CapacityGraph) -> list[Order]:
    """Box after box; in the k-th order every box is entered by its k-th GPU and left by the one
    before it, so that all orders together use every GPU's way out of the box once."""
    boxes = _boxes(graph)
    several = len(boxes) > 1
    count = max(map(len, boxes.values())) if several else 1
    orders = []
    for k in range(count):
        order: list[int] = []
        for members in boxes.values():
            turn = k % len(members)
            order += members[turn:] + members[:turn]
        orders.append((tuple(order), 1))
    return orders


def cycles(graph: CapacityGraph, way: Mapping[tuple[int, int], tuple[int, ...]]) -> list[Order]:
    """Rings through all ranks along links that are still free, the widest first.

    The share of each is what its narrowest link has left. Raises UnsupportedError: there is none.
    """
    link = {p: k for k, p in enumerate(zip(graph.tail, graph.head, strict=True))}
    free = list(graph.capacity)
    hops = {pair: [link[step] for step in pairwise(path)] for pair, path in way.items()}
    found: list[Order] = []
    while True:
        best: tuple[tuple[int, ...], int] | None = None
        for width in sorted(set(free) - {0}, reverse=True):
            usable = {pair for pair, links in hops.items() if min(free[k] for k in links) >= width}
            order = _cycle(graph.ranks, usable)
            if order is not None:
                best = order, width
                break
        if best is None:
            break
        found.append(best)
        for pair in zip(best[0], best[0][1:] + best[0][:1], strict=True):
            for k in hops[pair]:
                free[k] -= best[1]
    if not found:
        raise UnsupportedError("the links make no ring through all ranks")
    return found


def _cycle(ranks: tuple[int, ...], usable: set[tuple[int, int]]) -> tuple[int, ...] | None:
    """A cycle through all ranks, by search; None where there is none, or none was found."""
    out: dict[int, list[int]] = {u: [] for u in ranks}
    for u, v in sorted(usable):
        out[u].append(v)
    if any(not heads for heads in out.values()):
        return None
    first, path, used = ranks[0], [ranks[0]], {ranks[0]}
    stack = [iter(_fewest_first(out, first, used))]
    for _ in range(TRIES):
        if len(path) == len(ranks) and first in out[path[-1]]:
            return tuple(path)
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
            used.discard(path.pop())
            if not stack:
                return None
            continue
        path.append(node)
        used.add(node)
        stack.append(iter(_fewest_first(out, node, used)))
    return None


def _fewest_first(out: dict[int, list[int]], node: int, used: set[int]) -> list[int]:
    """Where to go on, the hardest to reach later first."""
    nexts = [v for v in out[node] if v not in used]
    return sorted(nexts, key=lambda v: sum(w not in used for w in out[v]))
