"""Box by box: reduce-scatter inside, a ring, a tree or all at once between, allgather inside.

Every GPU of a box has its part of the data, which goes between boxes over GPUs of its number alone:
each NIC carries what its own GPU needs (BlueConnect, Horovod's hierarchical allreduce; between with
trees, NCCL's way on many boxes).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from forestcoll.common.errors import UnsupportedError
from forestcoll.schedule.forest import Forest
from forestcoll.solver.baselines.exchange import two_trees
from forestcoll.solver.baselines.order import boxes_of, links_inside, pack_cycles
from forestcoll.solver.baselines.shapes import Edges, Problem

BETWEEN = ("ring", "tree", "direct")


def hierarchical(problem: Problem, ways_between: Sequence[str] = BETWEEN) -> Iterator[Forest]:
    """Every way to spread inside boxes with each of these ways between them."""
    boxes = boxes_of(problem.graph)
    if len(boxes) < 2:
        raise UnsupportedError("the ranks are in one box: there is nothing to do between boxes")
    size = len(boxes[0])
    if any(len(box) != size for box in boxes):
        raise UnsupportedError("the boxes have different numbers of ranks")
    if size < 2:
        raise UnsupportedError("the boxes have one rank each: there is nothing to do inside")
    refused = UnsupportedError("the links inside a box make no ring through its ranks")
    count = 0
    for inside, spreads in _insides(problem, boxes):
        for between in ways_between:
            if between == "tree" and problem.collective.has_parts:
                continue  # every GPU is the root of its own part
            name = f"hierarchical, {inside} inside, {between} between"
            try:
                yield problem.forest(name, _shapes(problem, boxes, spreads, between))
                count += 1
            except UnsupportedError as error:
                refused = error
    if not count:
        raise refused


Spreads = dict[int, list[tuple[int, Edges]]]
"""GPU -> (weight, edges) of the trees by which it reaches the others of its box."""


def _insides(problem: Problem, boxes: list[list[int]]) -> Iterator[tuple[str, Spreads]]:
    joined = all((u, v) in problem.ways for box in boxes for u in box for v in box if u != v)
    if joined:
        yield (
            "direct",
            {u: [(1, [(u, v) for v in box if v != u])] for box in boxes for u in box},
        )
        rings = [[(tuple(box), 1)] for box in boxes]
    else:
        found = [pack_cycles(box, links_inside(box, problem.ways, problem.links)) for box in boxes]
        count = min(map(len, found))
        if not count:
            return
        rings = [[(order, 1) for order, _ in cycles[:count]] for cycles in found]
    chains: Spreads = {}
    for cycles in rings:
        for rank in cycles[0][0]:
            chains[rank] = [(share, _chain(order, rank)) for order, share in cycles]
    yield "ring", chains


def _chain(order: tuple[int, ...], first: int) -> Edges:
    place = order.index(first)
    return list(pairwise(order[place:] + order[:place]))


def _shapes(
    problem: Problem, boxes: list[list[int]], spreads: Spreads, between: str
) -> Iterator[tuple[int, int, Edges]]:
    """(root, weight, edges) of all trees: over the GPUs of a rail, then inside of every box."""
    rooted = problem.roots[0] if problem.collective.has_root else None
    for k in range(len(boxes[0])):
        rail = [box[k] for box in boxes]
        first = next((u for u, box in zip(rail, boxes, strict=True) if rooted in box), None)
        for root, edges in _over_rail(rail, between, first, k):
            for turn, (weight, _) in enumerate(spreads[rail[0]]):
                inside = [edge for u in rail if u != first for edge in spreads[u][turn][1]]
                if rooted is not None and first is not None:
                    inside += _from_root(spreads, rooted, first, turn)
                yield (root if rooted is None else rooted), weight, [*edges, *inside]


def _from_root(spreads: Spreads, root: int, gpu: int, turn: int) -> Edges:
    """How a root reaches its box for the tree of one of its GPUs: over that, where it can."""
    edges = spreads[root][turn][1]
    if any(near != root for near, _ in edges):
        return edges  # a chain
    return [(root, gpu)] * (gpu != root) + [(gpu, far) for _, far in edges if far != gpu]


def _over_rail(
    rail: list[int], between: str, first: int | None, turn: int
) -> Iterator[tuple[int, Edges]]:
    """(root, edges) of the trees over the GPUs of a rail; `first`: the only root."""
    if between == "tree":
        yield from two_trees(rail, first, turn)
        return
    for place, root in enumerate(rail):
        if first in (None, root):
            turned = rail[place:] + rail[:place]
            near = turned if between == "ring" else [root] * len(rail)
            yield root, list(zip(near, turned[1:], strict=False))
