"""Rings: what NCCL and RCCL do for much data.

A ring is a chain for each rank: data pass from each to the next, or sums towards the rank. For a
broadcast the chain begins at the root. `rings` divides the data among several (NCCL's channels),
each of which enters a box by another NIC. Where a box has one NIC, there are rings inside the boxes
and one between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from forestcoll.common.errors import UnsupportedError
from forestcoll.schedule.forest import Forest
from forestcoll.solver.baselines.order import Order, ring_orders
from forestcoll.solver.baselines.ports import through_ports
from forestcoll.solver.baselines.shapes import Problem


def lone(problem: Problem) -> Iterator[Forest]:
    """One ring: box after box, along rails where that is faster; or along the links of a mesh."""
    return _rings(problem, 1)


def several(problem: Problem) -> Iterator[Forest]:
    """Several rings that share the data: one for each way into a box, or what a mesh holds."""
    return _rings(problem, None)


def _rings(problem: Problem, most: int | None) -> Iterator[Forest]:
    """The forests of rings, `most` of each set; through ports where the ranks have no ring."""
    try:
        for orders in ring_orders(problem.graph, problem.ways):
            kept = orders[:most]
            yield _forest(problem, kept, "ring" if len(kept) == 1 else f"{len(kept)}-rings")
    except UnsupportedError:
        forest = through_ports(problem)
        if forest is None:
            raise
        yield forest


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
