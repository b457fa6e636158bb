"""Optimum of one phase of trees: how fast it can be, exactly, and the cut that proves it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from forestcoll.graph.capacity_graph import CapacityGraph, is_balanced, require_size
from forestcoll.graph.kernel import _kernel
from forestcoll.schedule.forest import Bound
from forestcoll.solver.cut import least_cut
from forestcoll.solver.flows.balance import balance

PATIENT = 128
"""Ranks up to which the general packers and the joint program of an allreduce take seconds."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best that trees can do.

    `algbw` in GB/s; `rate` is GB/s per rank (algbw / N), a unit of a part where the parts of ranks
    differ (algbw / their sum), for broadcast and reduce algbw itself.
    `trees_per_root` is the least k at which the optimum is reached in whole units; for allreduce,
    where roots may have different shares, the mean of those that were found. `bound` is
    above `algbw` only where a switch copies or adds in the fabric, and for an allreduce that is too
    large for its joint optimum; then `note` says so.
    """

    algbw: Fraction
    rate: Fraction
    trees_per_root: int
    bound: Bound
    note: str = ""
    in_switches: Optimum | None = None  # where trees that let switches copy and add are faster

    def __repr__(self) -> str:
        return (
            f"<Optimum {self.algbw} GB/s, {self.trees_per_root} trees per root, bound "
            f"{self.bound.algbw} GB/s>"
        )


@dataclass(frozen=True, slots=True)
class Task:
    """One phase of broadcast trees to be packed at its optimum.

    `graph` is balanced at every node that is no rank; `given` is the same graph before that, with
    all of its capacity. `root` is None when every rank sends its part (allgather), else the rank
    number of the only root (broadcast). `rate` is in units of the capacity of `graph`: per rank
    (per unit of a part where parts differ), or for one root in all.
    """

    graph: CapacityGraph
    given: CapacityGraph
    root: int | None
    rate: Fraction
    bound: Bound

    @property
    def roots(self) -> int:
        """How many ranks are roots, or the sum of their parts where parts differ."""
        return sum(self.graph.parts) if self.root is None else 1

    @property
    def algbw(self) -> Fraction:
        """GB/s."""
        return self.rate * self.roots * self.graph.unit

    @property
    def trees_per_root(self) -> int:
        """The least k at which all links hold whole numbers of trees."""
        return self.rate.numerator // self._common

    def capacities(self) -> list[int]:
        """Per link, how many trees it carries when every root has `trees_per_root`."""
        common = self._common
        return [self.rate.denominator * (c // common) for c in self.graph.capacity]

    def supply(self, trees: int) -> list[int]:
        """Per node, how many trees are rooted there: `trees` a root, or a unit of a part."""
        supply = [0] * self.graph.n
        if self.root is not None:
            supply[self.graph.ranks[self.root]] = trees
            return supply
        for node, part in zip(self.graph.ranks, self.graph.parts, strict=True):
            supply[node] = trees * part
        return supply

    @property
    def _common(self) -> int:
        return math.gcd(self.rate.numerator, *self.graph.capacity)


@lru_cache(maxsize=4)
def analyse(graph: CapacityGraph, root: int | None) -> Task:
    """The optimum of allgather (root None) or of broadcast from rank `root`.

    A switch without copying cannot send more than it receives; where in and out differ, the best
    balanced part of the capacities takes the graph's place (`balance`).
    """
    require_size(graph.capacity, sum(graph.parts))
    task = _plain_cut(graph, root)
    if is_balanced(graph):
        return task
    trimmed = _trim(task)
    if trimmed is not None:
        return trimmed
    balanced = balance(graph, root)
    return Task(balanced.graph, graph, root, balanced.rate / balanced.graph.unit, balanced.bound)


def _trim(task: Task) -> Task | None:
    """The same rate on a balanced part of the links, or None where that is not found.

    What a switch receives or sends too much is taken away link by link, as far as every rank still
    gets everything: quick, and it keeps the cut as proof. It fails where the rate is out of reach.
    """
    graph, p, q = task.graph, task.rate.numerator, task.rate.denominator
    capacity = _kernel.trim(
        graph.n,
        graph.tail,
        graph.head,
        [c * q for c in graph.capacity],
        task.supply(p),
        graph.ranks,
    )
    if capacity is None:
        return None
    common = math.gcd(*capacity)
    kept = [e for e, units in enumerate(capacity) if units]
    trimmed = replace(
        graph,
        tail=tuple(graph.tail[e] for e in kept),
        head=tuple(graph.head[e] for e in kept),
        capacity=tuple(capacity[e] // common for e in kept),
        unit=graph.unit * Fraction(common, q),
    )
    return Task(trimmed, graph, task.root, Fraction(p, common), task.bound)


def _plain_cut(graph: CapacityGraph, root: int | None) -> Task:
    """The least cut, taking every switch for one that may copy."""
    rate, cut = least_cut(graph, root)
    roots = sum(graph.parts) if root is None else 1
    return Task(graph, graph, root, rate, Bound(rate * roots * graph.unit, "cut", (cut,)))
