"""Shortest-path trees: fastest for few bytes, where every hop costs more than its bytes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule.forest import Forest, Path, Phase, Tree
from forestcoll.schedule.routes import shortest_ways, wide_links
from forestcoll.solver.task import Optimum


def pack_lowest(
    graph: CapacityGraph, collective: Collective, root: int | None, best: Optimum, name: str
) -> Forest | None:
    """One tree per root that reaches every rank in the fewest hops, switches being no hops.

    Of the ranks one hop nearer to the root, the parent is the one whose way is widest and then the
    one with the fewest children so far, so that no rank has more to do than it must. `best` is what
    such trees may fall short of by far: its bound goes with the forest. None where only GPUs that
    are no ranks lead to some rank.
    """
    roots = [root or 0] if collective.has_root else list(range(len(graph.ranks)))
    trees: list[Tree] = []
    for phase in collective.phases:
        ways = _ways(graph if phase == "broadcast" else graph.reverse())
        load: dict[tuple[int, int], int] = defaultdict(int)
        trees += [_tree(ways, graph.ranks[r], phase, load) for r in roots]
    if any(len(tree.edges) < len(graph.ranks) - 1 for tree in trees):
        return None
    return Forest(
        name, graph, collective, len(roots), tuple(trees), best.bound, -1 if root is None else root
    )


def central(forest: Forest) -> Forest | None:
    """Its trees of those roots alone that are nearest to all ranks; None: all are as near.

    For an allreduce, which any root may serve: up and down one low tree takes the fewest hops.
    """
    if not forest.collective.two_phases:
        return None
    heights: dict[int, int] = defaultdict(int)
    for tree in forest.trees:
        heights[tree.root] += replace(forest, trees=(tree,)).height
    least = min(heights.values())
    kept = tuple(tree for tree in forest.trees if heights[tree.root] == least)
    if len(kept) == len(forest.trees):
        return None
    return replace(forest, trees=kept, total=len({tree.root for tree in kept}))


Ways = dict[int, dict[int, tuple[int, Path]]]  # rank -> rank -> (capacity, path through switches)


def _ways(graph: CapacityGraph) -> Ways:
    """Per rank those that it reaches through switches alone, each by the widest, shortest path."""
    ranks, out, capacity = set(graph.ranks), wide_links(graph), graph.links
    return {
        rank: {
            v: (min(map(capacity.__getitem__, pairwise(path))), path)
            for v, path in shortest_ways(graph, out, rank, over_gpus=False).items()
            if v in ranks and v != rank
        }
        for rank in graph.ranks
    }


def _tree(ways: Ways, root: int, phase: Phase, load: dict[tuple[int, int], int]) -> Tree:
    """By levels from the root; `load` counts the trees that each rank's way to another carries."""
    edges: list[Path] = []
    level = [root]
    seen = {root}
    while level:
        reached: dict[int, list[int]] = defaultdict(list)
        for parent in level:
            for child in ways[parent]:
                if child not in seen:
                    reached[child].append(parent)
        children: dict[int, int] = defaultdict(int)
        for child in sorted(reached):
            parent = min(
                reached[child],
                key=lambda p, c=child: (-ways[p][c][0], children[p], load[p, c], p),  # type: ignore[misc]
            )
            children[parent] += 1
            load[parent, child] += 1
            edges.append(ways[parent][child][1])
        level = sorted(reached)
        seen.update(level)
    if phase == "reduce":
        edges = [tuple(reversed(path)) for path in reversed(edges)]
    return Tree(root, phase, 1, tuple(edges))
