"""Rings: what NCCL and RCCL do for much data.

A ring is a chain for each rank: data pass from each to the next, or sums towards the rank. For a
broadcast the chain begins at the root. `rings` divides the data among several (NCCL's channels),
each of which enters a box by another NIC. Where a box has one NIC, there are rings inside the boxes
and one between them.

Rings of boxes that one GPU each joins to the others: a ring inside every box, one between them.

A ring through all ranks enters a box by one GPU and leaves it by another; where a box has one NIC
left, there is no other. The GPU at the NIC is on both rings then, and hands data over.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from forestcoll.common.errors import UnsupportedError
from forestcoll.schedule.forest import Forest
from forestcoll.solver.baselines.order import (
    Order,
    boxes_of,
    ring_orders,
    rings_inside,
)
from forestcoll.solver.baselines.shapes import Edges, Problem, Shape


def lone(problem: Problem) -> Iterator[Forest]:
    """One ring: box after box, along rails where that is faster; or along the links of a mesh."""
    return _rings(problem, 1)


def several(problem: Problem) -> Iterator[Forest]:
    """Several rings that share the data: one for each way into a box, or what a mesh holds."""
    return _rings(problem, None)


def _rings(problem: Problem, most: int | None) -> Iterator[Forest]:
    """The forests of rings, `most` of each set; through ports where the ranks have no ring."""
    try:
        for orders in ring_orders(problem.graph, problem.ways, packed=most is None):
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


Chain = tuple[int, ...]
"""The ranks round a box, the one at its NIC first."""


def through_ports(problem: Problem) -> Forest | None:
    """The forest of these rings, as wide as they can be; None where the links make none."""
    boxes = boxes_of(problem.graph)
    ports = _ports(problem, boxes) if len(boxes) > 1 else None
    if ports is None:
        return None
    chains = [_chain(problem, box, port) for box, port in zip(boxes, ports, strict=True)]
    if not all(chains):
        return None
    back = [(port, *others[::-1]) for port, *others in reversed(chains)]
    spread: list[Shape] = [(root, 1, _edges(chains, root)) for root in problem.roots]
    gather: list[Shape] = [(root, 1, _edges(back, root)) for root in problem.roots]
    return problem.forest("ring", spread, gather)


def _edges(chains: list[Chain], root: int) -> Edges:
    """How data spread from `root`: round its box, from port to port, and round the other boxes."""
    own = next(k for k, chain in enumerate(chains) if root in chain)
    place = chains[own].index(root)
    turned = chains[own:] + chains[:own]
    edges = list(pairwise(turned[0][place:] + turned[0][:place]))
    edges += pairwise(chain[0] for chain in turned)
    return edges + [edge for chain in turned[1:] for edge in pairwise(chain)]


def _chain(problem: Problem, box: list[int], port: int) -> Chain:
    """The ranks of a box round a ring, from its port on; empty where the links make no ring."""
    order = next(iter(rings_inside(box, problem.ways, problem.links)), ())
    place = order.index(port) if order else 0
    return order[place:] + order[:place]


def _ports(problem: Problem, boxes: list[list[int]]) -> list[int] | None:
    """A GPU of each box, each with a way to the next box's: those whose narrowest way is widest."""
    width = {
        (u, v): min(problem.links[step] for step in pairwise(path))
        for (u, v), path in problem.ways.items()
        if problem.graph.box(u) != problem.graph.box(v)
    }
    best: tuple[int, list[int]] = 0, []
    for first in boxes[0]:
        # of the GPUs of one box after the other: how wide, and over whom, the first reaches them
        reached: dict[int, tuple[int, list[int]]] = {first: (max(width.values(), default=0), [])}
        for box in [*boxes[1:], [first]]:
            after: dict[int, tuple[int, list[int]]] = {}
            for u, (wide, way) in reached.items():
                for v in box:
                    narrowest = min(wide, width.get((u, v), 0))
                    if narrowest > after.get(v, best)[0]:
                        after[v] = narrowest, [*way, u]
            reached = after
        best = reached.get(first, best)
    return best[1] or None
