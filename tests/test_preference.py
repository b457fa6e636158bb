"""Among forests of one rate: height, then the number of trees; copies over slow links are few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from graphs import build, dgx_a100

from forestcoll import solver
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule.forest import Tree
from forestcoll.solver.packing import prefer
from forestcoll.topology import catalog


def tree(*edges: tuple[int, ...], root: int = 0, weight: int = 1) -> Tree:
    return Tree(root, "broadcast", weight, edges)


FLAT = tree((0, 1), (0, 2), (0, 3))
VIA = tree((0, 1), (0, 2), (2, 3))
SPREAD = tree((0, 1), (0, 2), (1, 3))
CHAIN = tree((0, 1), (1, 2), (2, 3))


def pairs() -> CapacityGraph:
    """Two pairs of ranks, 10 inside a pair, 1 between pairs."""
    some = [("gpu0", "gpu1"), ("gpu2", "gpu3"), ("gpu0", "gpu2"), ("gpu0", "gpu3")]
    some += [("gpu1", "gpu2"), ("gpu1", "gpu3")]
    return build((u, v, 10 if n < 2 else 1) for n, (u, v) in enumerate(some))


def test_height_goes_before_trees() -> None:
    graph = pairs()
    low, few = [FLAT], [CHAIN]
    assert prefer(graph, [few, low]) is low
    split = [VIA, SPREAD]
    assert prefer(graph, [split, [VIA]]) == [VIA]
    assert prefer(graph, [[VIA, SPREAD], [CHAIN]]) == split
    first, second = [VIA], [SPREAD]
    assert prefer(graph, [first, second]) is first


def fan_out(graph: CapacityGraph, trees: Sequence[Tree]) -> int:
    """Copies, at most, that a rank sends in one tree over links slower than its widest."""
    links = graph.links
    widest = {v: max(units for (u, _), units in links.items() if u == v) for v in graph.ranks}
    most = 0
    for each in trees:
        slow = (p for p in each.edges if min(map(links.__getitem__, pairwise(p))) < widest[p[0]])
        most = max(most, *Counter(path[0] for path in slow).values(), 0)
    return most


def test_boxes_at_height_two_cannot_send_fewer_copies() -> None:
    """What enters a box once has to come from the root itself: a copy a box, and no fewer."""
    for boxes in (2, 4, 8):
        forest = solver.solve(dgx_a100(boxes), Collective.ALLGATHER)
        assert forest.height == 2
        assert fan_out(forest.graph, forest.trees) == boxes - 1


@pytest.mark.parametrize(
    ("name", "height", "trees", "copies"),
    [("fat-tree", 3, 64, 2), ("mi250", 5, 44, 3), ("dgx1-v100", 2, 30, 2)],
)
def test_forests_of_the_catalogue_are_no_worse(
    name: str, height: int, trees: int, copies: int
) -> None:
    graph = CapacityGraph.from_topology(catalog.load(name, {}))
    forest = solver.solve(graph, Collective.ALLGATHER)
    assert forest.height <= height
    assert len(forest.trees) <= trees
    assert fan_out(graph, forest.trees) <= copies
