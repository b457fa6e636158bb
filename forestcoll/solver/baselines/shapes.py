"""From edges to forests: the trees of every phase of a collective, over the shortest ways.

Every baseline says how data spread from a root; sums come in the same way turned round.

The path that a baseline takes from rank to rank: over links and switches, the shortest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective, Phase
from forestcoll.schedule.forest import Forest, Tree, in_order
from forestcoll.schedule.routes import shortest_ways, wide_links
from forestcoll.solver.walks import hops, neighbours

Ways = dict[tuple[int, int], tuple[int, ...]]
"""(rank, rank) -> nodes from the one to the other, where only switches lie between."""


def paths(graph: CapacityGraph) -> Ways:
    """(rank, rank) -> nodes from the one to the other, where only switches lie between.

    The fewest hops; among those the widest; among those the first. Nobody leaves a box to reach a
    GPU that other GPUs of the box lead to, though they are in between.
    """
    out = wide_links(graph)
    ranks = set(graph.ranks)
    ways = {
        (source, target): path
        for source in graph.ranks
        for target, path in shortest_ways(graph, out, source, over_gpus=False).items()
        if target != source and target in ranks
    }
    part = _parts(graph)
    return {
        (u, v): path
        for (u, v), path in ways.items()
        if part[u] != part[v] or all(graph.box(w) == graph.box(u) for w in path)
    }


def _parts(graph: CapacityGraph) -> dict[int, tuple[str, int]]:
    """Per rank its box, and the first rank of the box that is linked to it inside."""
    ends = ((u, v) for u, v in graph.ends if graph.box(u) == graph.box(v) != "")
    near = neighbours(graph.n, ends, both=True)
    parts: dict[int, tuple[str, int]] = {}
    for rank in graph.ranks:
        if rank not in parts:
            parts |= {v: (graph.box(rank), rank) for v in hops(near, [rank]) if graph.gpu[v]}
    return parts


Edges = Sequence[tuple[int, ...]]
"""(nearer to the root, farther) of a tree's edges; ranks as nodes of the graph. Or the whole path
between the two, where it is not to be the shortest way."""

Shape = tuple[int, int, Edges]
"""(root, weight, edges) of a tree."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What a baseline is asked for. `root`: a rank number for broadcast and reduce, else -1."""

    graph: CapacityGraph
    collective: Collective
    root: int
    ways: Ways
    links: Mapping[tuple[int, int], int]  # (node, node) -> units of capacity

    @staticmethod
    def of(graph: CapacityGraph, collective: Collective, root: int | None = None) -> Problem:
        """The problem with the ways between its ranks; the root of a rooted one is 0 by default."""
        rooted = collective.has_root
        ends = graph.ends
        links = dict(zip(ends, graph.capacity, strict=True))
        return Problem(graph, collective, (root or 0) if rooted else -1, paths(graph), links)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The nodes of the ranks."""
        return self.graph.ranks

    @property
    def roots(self) -> tuple[int, ...]:
        """The nodes at which trees may be rooted."""
        return (self.ranks[self.root],) if self.collective.has_root else self.ranks

    def forest(
        self, name: str, shapes: Iterable[Shape], sums: Iterable[Shape] | None = None
    ) -> Forest:
        """The forest of trees (root, weight, edges), in all phases of the collective.

        `sums`: the trees that add up, of the same roots and weights; by default the same turned.

        Raises UnsupportedError where two ranks of an edge have no way over links and switches.
        """
        shapes = list(shapes)
        ways = {"broadcast": shapes, "reduce": shapes if sums is None else list(sums)}
        unit = math.gcd(*(weight for _, weight, _ in shapes))
        trees = [
            self._tree(root, phase, weight // unit, edges)
            for phase in self.collective.phases
            for root, weight, edges in ways[phase]
        ]
        total = sum(weight for _, weight, _ in shapes) // unit
        return Forest(name, self.graph, self.collective, total, tuple(trees), None, self.root)

    def _tree(self, root: int, phase: Phase, weight: int, edges: Edges) -> Tree:
        turned = edges if phase == "broadcast" else [edge[::-1] for edge in edges]
        return Tree(root, phase, weight, in_order(root, phase, [self._way(e) for e in turned]))

    def _way(self, edge: tuple[int, ...]) -> tuple[int, ...]:
        """The nodes from the first of the edge to its last."""
        names = self.graph.names
        if len(edge) > 2:
            for u, v in pairwise(edge):
                if (u, v) not in self.links:
                    raise UnsupportedError(
                        f"there is no link from {names[u]} to {names[v]}: this baseline uses links "
                        "both ways"
                    )
            return edge
        if edge not in self.ways:
            raise UnsupportedError(
                f"{names[edge[0]]} and {names[edge[1]]} have no path over links and switches "
                "alone: this baseline needs one"
            )
        return self.ways[edge[0], edge[1]]
