"""Among forests of one rate: height, then the number of trees, then copies over slow links."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import networkx as nx
import pytest
from graphs import build, dgx_a100
from random_graphs import random_graph

from forestcoll import solver
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule.forest import Tree
from forestcoll.solver.packing import fan_out, prefer
from forestcoll.topology import catalog


def tree(*edges: tuple[int, ...], root: int = 0, weight: int = 1) -> Tree:
    return Tree(root, "broadcast", weight, edges)


FLAT = tree((0, 1), (0, 2), (0, 3))  # two copies over slow links
VIA = tree((0, 1), (0, 2), (2, 3))  # one
SPREAD = tree((0, 1), (0, 2), (1, 3))  # one of each of two ranks
CHAIN = tree((0, 1), (1, 2), (2, 3))


def pairs() -> CapacityGraph:
    """Two pairs of ranks, 10 inside a pair, 1 between pairs."""
    some = [("gpu0", "gpu1"), ("gpu2", "gpu3"), ("gpu0", "gpu2"), ("gpu0", "gpu3")]
    some += [("gpu1", "gpu2"), ("gpu1", "gpu3")]
    return build((u, v, 10 if n < 2 else 1) for n, (u, v) in enumerate(some))


def test_height_goes_before_trees_before_copies() -> None:
    graph = pairs()
    low, few = [FLAT], [CHAIN]
    assert prefer(graph, [few, low]) is low
    split = [VIA, SPREAD]
    assert prefer(graph, [split, [VIA]]) == [VIA]
    assert prefer(graph, [[VIA, SPREAD], [CHAIN]]) == split
    deep = [tree((0, 2), (2, 3), (0, 1))]
    wide = [tree((0, 2), (0, 3), (2, 1))]
    assert prefer(graph, [wide, deep]) is deep
    first, second = [VIA], [SPREAD]
    assert prefer(graph, [first, second]) is first


def test_random_trees_agree_with_networkx() -> None:
    rng = random.Random(5)
    for seed in range(80):
        graph = random_graph(seed)
        links = nx.DiGraph()
        for u, v, units in graph.arcs:
            links.add_edge(u, v, units=units)
        trees, counts = [], []
        for made in solver.solve(graph, Collective.ALLGATHER).trees[:4]:
            edges = rng.sample(made.edges, len(made.edges))  # their order does not matter
            copies = Counter(
                path[0]
                for path in edges
                if min(links.edges[ends]["units"] for ends in pairwise(path))
                < max(links.edges[path[0], v]["units"] for v in links.successors(path[0]))
            )
            trees.append(Tree(made.root, made.phase, made.weight, tuple(edges)))
            counts.append(max([0, *copies.values()]))
        assert [fan_out(graph, [tree]) for tree in trees] == counts
        assert fan_out(graph, trees) == max(counts)


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
