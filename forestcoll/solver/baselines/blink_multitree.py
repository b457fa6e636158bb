"""Trees of other compilers: packed from one root (Blink), and grown greedily (MultiTree)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import pairwise

from forestcoll import solver
from forestcoll.common.errors import UnsupportedError
from forestcoll.program import Collective
from forestcoll.schedule.forest import Forest
from forestcoll.solver.baselines.shapes import Edges, Problem

RANKS = 64
"""Ranks up to which trees are grown link by link."""


def blink(problem: Problem) -> Iterator[Forest]:
    """Blink's way: the most spanning trees that the links hold from one root; all data over them.

    An allreduce adds up towards that root and broadcasts from it; for allgather and reduce-scatter
    every rank's part takes the same trees, hung up at that rank. (Wang et al., "Blink: Fast and
    Generic Collectives for Distributed ML", 2020.)
    """
    packed = solver.solve(problem.graph, Collective.BROADCAST, max(problem.root, 0))
    shapes: list[tuple[int, int, Edges]] = [
        (root, tree.weight, _hang(tree.edges, root))
        for tree in packed.trees
        for root in (problem.ranks if problem.collective.has_parts else (tree.root,))
    ]
    yield problem.forest("blink", shapes)


def _hang(paths: Edges, root: int) -> Edges:
    """The tree of these paths, hung up at another rank."""
    near: dict[int, list[tuple[int, ...]]] = {}
    for path in paths:
        near.setdefault(path[0], []).append(path)
        near.setdefault(path[-1], []).append(path[::-1])
    paths_hung, seen, queue = [], {root}, deque([root])
    while queue:
        for path in near.get(queue.popleft(), ()):
            if path[-1] not in seen:
                seen.add(path[-1])
                paths_hung.append(path)
                queue.append(path[-1])
    return paths_hung


def multitree(problem: Problem) -> Iterator[Forest]:
    """MultiTree's way: a tree per root, all grown at once, a link a tree and step.

    In each step the trees take turns; each adds a rank over a link that this step still has free,
    from the rank that it reached first; wide links have room for several. (Huang et al.,
    "Communication Algorithm-Architecture Co-Design for Distributed Deep Learning", 2021.)
    """
    if len(problem.ranks) > RANKS:
        raise UnsupportedError(f"{len(problem.ranks)} ranks: trees are grown for {RANKS} at most")
    near = _neighbours(problem)
    links = problem.links
    least = min(links.values())
    reached = {root: [root] for root in problem.roots}
    edges: dict[int, list[tuple[int, int]]] = {root: [] for root in problem.roots}
    n = len(problem.ranks)
    while any(len(ranks_reached) < n for ranks_reached in reached.values()):
        free = {link: units // least for link, units in links.items()}
        before = {root: list(ranks_reached) for root, ranks_reached in reached.items()}
        alive, grown = list(reached), False
        while alive:
            rest = []
            for root in alive:
                inside = set(reached[root])
                open_edges = (
                    (u, v)
                    for u in before[root]
                    for v in near[u]
                    if v not in inside
                    and all(free[link] > 0 for link in pairwise(problem.ways[u, v]))
                )
                if edge := next(open_edges, None):
                    for link in pairwise(problem.ways[edge]):
                        free[link] -= 1
                    reached[root].append(edge[1])
                    edges[root].append(edge)
                    rest.append(root)
                    grown = True
            alive = rest
        if not grown:
            raise UnsupportedError("the links make no trees through all ranks")
    yield problem.forest(
        "multitree", [(root, 1, ranks_reached) for root, ranks_reached in edges.items()]
    )


def _neighbours(problem: Problem) -> dict[int, list[int]]:
    """Ranks that each reaches over links and switches: those next to it first, then in turn."""
    ranks, number = problem.ranks, problem.graph.rank_of
    neighbours: dict[int, list[int]] = {rank: [] for rank in ranks}
    for u, v in problem.ways:
        neighbours[u].append(v)
    for u, others in neighbours.items():
        others.sort(key=lambda v: (len(problem.ways[u, v]), (number[v] - number[u]) % len(ranks)))
    return neighbours
