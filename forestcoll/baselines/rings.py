"""Rings: what NCCL and RCCL do for much data.

A ring is a chain for each rank: data pass from each to the next, or sums towards the rank. For a
broadcast the chain begins at the root. `rings` divides the data among several (NCCL's channels),
each of which enters a box by another NIC.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from forestcoll.baselines.order import Order, ring_orders
from forestcoll.baselines.shapes import Problem
from forestcoll.forest import Forest


def lone(problem: Problem) -> Iterator[Forest]:
    """One ring: box after box, along rails where that is faster; or along the links of a mesh."""
    for orders in ring_orders(problem.graph, problem.ways):
        yield _forest(problem, orders[:1], "ring")


def several(problem: Problem) -> Iterator[Forest]:
    """Several rings that share the data: one for each way into a box, or what a mesh holds."""
    for orders in ring_orders(problem.graph, problem.ways):
        yield _forest(problem, orders, "ring" if len(orders) == 1 else f"{len(orders)}-rings")


def _forest(problem: Problem, orders: list[Order], name: str) -> Forest:
    """All data go the same way round, sums as well as copies."""
    spread, gather = [], []
    for root in problem.roots:
        for order, share in orders:
            place = order.index(root)
            turned = order[place:] + order[:place]
            spread.append((root, share, list(pairwise(turned))))
            gather.append((root, share, list(pairwise((root, *turned[:0:-1])))))
    return problem.forest(name, spread, gather)
