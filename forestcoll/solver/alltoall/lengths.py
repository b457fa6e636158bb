"""Proof by lengths of links: why no all-to-all is faster.

Give every link a length l >= 0. Whatever goes from s to t uses up at least dist(s, t) of length for
each byte, and the links have sum of c(e) l(e) to give. So at theta units of demand a second

    theta <= sum of c(e) l(e) / sum over s, t of d(s, t) dist(s, t)

with the shortest distances under l. Whole-number lengths make both sums whole numbers.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

from forestcoll.common.errors import ForestError
from forestcoll.solver.alltoall.demand import Demand
from forestcoll.solver.alltoall.fold import Folding


def whole(lengths: Sequence[Fraction]) -> list[int]:
    """The same lengths as the least whole numbers in proportion."""
    lcm = math.lcm(*(length.denominator for length in lengths))
    numbers = [int(length * lcm) for length in lengths]
    common = math.gcd(*numbers) or 1
    return [number // common for number in numbers]


def bound(demand: Demand, folding: Folding, lengths: Sequence[int]) -> Fraction:
    """Units of capacity for a unit of demand that nothing beats; `lengths` per link.

    They have to be alike on every orbit of `folding` (ForestError), whose sources then stand for
    all. ForestError too where no demand has a length.
    """
    graph = demand.graph
    least: dict[int, int] = {}
    for orbit, length in zip(folding.link.tolist(), lengths, strict=True):
        if length < 0 or least.setdefault(orbit, length) != length:
            raise ForestError("bound: lengths are negative, or differ between links that are alike")
    room = sum(c * length for c, length in zip(graph.capacity, lengths, strict=True))
    near: list[list[tuple[int, int]]] = [[] for _ in range(graph.n)]
    for u, v, length in zip(graph.tail, graph.head, lengths, strict=True):
        near[u].append((v, length))
    need = 0
    for source, images in zip(folding.sources, folding.images, strict=True):
        far = distances(near, source, demand.barred(source))
        amounts = demand.amounts(source)
        for v in amounts.nonzero()[0].tolist():
            if v not in far:
                raise ForestError(f"nothing leads to {graph.names[v]}")
            need += images * int(amounts[v]) * far[v]
    if need == 0:
        raise ForestError("bound: every way has length 0: it bounds nothing")
    return Fraction(room, need)


def distances(
    near: Sequence[Sequence[tuple[int, int]]], source: int, barred: frozenset[int] = frozenset()
) -> dict[int, int]:
    """Shortest distances from `source` (Dijkstra); `near`: per node (neighbour, length)."""
    far: dict[int, int] = {}
    heap = [(0, source)]
    best = {source: 0}
    while heap:
        d, u = heapq.heappop(heap)
        if u in far:
            continue
        far[u] = d
        for v, length in near[u]:
            to = d + length
            if v not in barred and (v not in best or to < best[v]):
                best[v] = to
                heapq.heappush(heap, (to, v))
    return far
