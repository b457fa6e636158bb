"""Forests that add up in one order: every part of the data by the same expression over ranks.

An expression is a binary tree over ranks, such as ((0, 1), (2, 3)). Where two sides meet, one hands
its sum to the other; which of them, and between whom, is free, for a + b = b + a to the last bit.
So there are trees of one expression for many roots, often for all: of the binary tree over 2^k
ranks, the rounds of recursive halving, near ranks first. Where a side reaches the other by links of
few ranks only, fewer roots are left, and less bandwidth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, reduce
from typing import Any

from forestcoll import solver
from forestcoll.common.errors import ForestCollError, UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule.forest import Forest, sum_of
from forestcoll.solver.baselines.order import boxes_of
from forestcoll.solver.baselines.shapes import Problem, Shape

Expression = Any
"""A rank (node), or a pair of expressions."""

SPREADS = (1, 2, 4)
"""Trees a root of the broadcasts that are solved for, beside the sums turned round."""
RANKS = 32
"""Ranks up to which the trees of an optimum are tried as expressions."""


def _pair(one: Expression, other: Expression) -> Expression:
    return one, other


def binary(parts: Sequence[Expression]) -> Expression:
    """Neighbours in pairs, then pairs of pairs; who has no partner waits."""
    while len(parts) > 1:
        pairs = (tuple(parts[k : k + 2]) for k in range(0, len(parts), 2))
        parts = [pair if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]


class _Trees:
    """The in-trees of an expression over the ways of a problem."""

    def __init__(self, problem: Problem) -> None:
        self.ways = problem.ways
        self.place = problem.graph.rank_of
        self.uses = Counter[tuple[Expression, int]]()
        self.roots = cache(self._roots)

    def _roots(self, part: Expression) -> dict[int, tuple[int, list[int]]]:
        """Per rank that may have the sum: its side, and those who may hand it the other side's."""
        if not isinstance(part, tuple):
            return {part: (0, [])}
        sides = {}
        for side in (0, 1):
            others = self.roots(part[1 - side])
            for root in self.roots(part[side]):
                if linked := [b for b in others if (b, root) in self.ways]:
                    sides[root] = side, linked
        return sides

    def edges(self, part: Expression, root: int) -> list[tuple[int, int]]:
        """(parent, child) of a tree towards `root`, in the order in which it adds up."""
        side, others = self.roots(part)[root]
        if not others:
            return []

        def cost(other: int) -> tuple[int, int, int]:
            turn = (self.place[root] - self.place[other]) % len(self.place)
            return len(self.ways[other, root]), self.uses[part, other], turn

        other = min(others, key=cost)
        self.uses[part, other] += 1
        return [*self.edges(part[side], root), *self.edges(part[1 - side], other), (root, other)]


def forests(
    graph: CapacityGraph, collective: Collective, root: int | None, name: str, order: str
) -> list[Forest]:
    """Those of the order "binary" or "uniform", the fastest first.

    Raises UnsupportedError where links leave no trees, or too few.
    """
    problem = Problem.of(graph, collective, root)
    candidates: list[Forest] = []
    whole = False
    for expression in _expressions(problem, order):
        trees = _Trees(problem)
        roots = [node for node in problem.roots if node in trees.roots(expression)]
        if (
            (whole and not collective.has_root)
            or not roots
            or (collective.has_parts and len(roots) < len(problem.roots))
        ):
            continue
        whole = len(roots) == len(problem.roots)
        sums: list[Shape] = [(node, 1, trees.edges(expression, node)) for node in roots]
        for spread in _spreads(problem, sums):
            with suppress(UnsupportedError):  # no way back
                weight = sum(w for node, w, _ in spread if node == roots[0])
                own = [(node, weight, edges) for node, _, edges in sums]
                forest = problem.forest(name, spread, own)
                tree = next(tree for tree in forest.trees if tree.phase == "reduce")
                candidates.append(replace(forest, sums=sum_of(tree, graph.rank_of)))
    if not candidates:
        raise UnsupportedError(
            f"--reduction-order {order}: the links of {name} lead the sums of {collective} in one "
            f"order to {'some ranks only' if collective.has_parts else 'no root'}; a plan of "
            "recorded sums is there"
        )
    return sorted(candidates, key=lambda forest: -forest.plain_algbw)


def _expressions(problem: Problem, order: str) -> Iterator[Expression]:
    graph = problem.graph
    yield binary(problem.ranks)
    if order == "binary":
        return
    yield binary([binary(box) for box in boxes_of(graph)])
    if problem.collective.has_parts or len(problem.ranks) > RANKS:
        return
    root = problem.root if problem.collective.has_root else None
    if root is not None:  # a chain that ends there: everybody sends, and receives, once
        end = problem.ranks[root]
        boxes = sorted(boxes_of(graph), key=lambda box: end in box)
        yield reduce(_pair, sorted((v for box in boxes for v in box), key=lambda v: v == end))
    with suppress(ForestCollError):
        for tree in solver.solve(graph, problem.collective, root, 1).trees:
            if tree.phase == "reduce":
                parts: dict[int, Expression] = {node: node for node in problem.ranks}
                for path in tree.edges:
                    parts[path[-1]] = parts[path[-1]], parts[path[0]]
                yield parts[tree.root]


def _spreads(problem: Problem, sums: Sequence[Shape]) -> Iterator[Sequence[Shape]]:
    """How results go out: as the sums come in, or by the best trees of the same roots."""
    yield sums
    if not problem.collective.two_phases:
        return
    graph, roots = problem.graph, [node for node, _, _ in sums]
    one = graph.rank_of[roots[0]] if len(roots) == 1 else None
    if one is None and len(roots) < len(problem.ranks):
        graph = replace(graph, shares=tuple(int(node in roots) for node in problem.ranks))
    kind = Collective.ALLGATHER if one is None else Collective.BROADCAST
    for trees in SPREADS:
        with suppress(ForestCollError):
            forest = solver.solve(graph, kind, one, trees)
            yield [(tree.root, tree.weight, tree.edges) for tree in forest.trees]
