"""A fixed number of trees a root: the largest algbw that whole trees allow."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

from forestcoll.errors import UnsupportedError
from forestcoll.graph import CapacityGraph
from forestcoll.kernel import _kernel
from forestcoll.program import Collective
from forestcoll.solver.optimum import Task, analyse, is_balanced, is_symmetric, require_size


def fixed_capacities(task: Task, trees: int) -> tuple[list[int], Fraction]:
    """(trees that each link carries, U): U units of time for `trees` trees a root.

    Link e carries floor(U b(e)) trees, and U is the least at which `trees` a root can be packed:
    algbw = roots * trees / U * unit. Starts where nothing could be faster; every cut that objects
    names the least U at which it no longer does (discrete Newton). Where rounding unbalances a
    switch, what is too much is trimmed; U grows where that fails.
    """
    if trees < 1:
        raise UnsupportedError(f"{trees} trees a root: must be at least 1")
    graph = task.graph
    common = math.gcd(*graph.capacity)
    u = trees / task.rate
    # Here no link is rounded, so every switch is balanced: it always works.
    last = Fraction(math.ceil(u * common), common)
    supply = task.supply(trees)
    while True:
        capacity = _floors(u, graph.capacity)
        require_size(capacity, 1)
        require_size(supply, 1)
        links = (graph.n, graph.tail, graph.head, capacity, supply, graph.ranks)
        violation = _kernel.violated(*links)
        if violation is not None:
            u = _least_for(graph, frozenset(violation[1]), u, supply)
            continue
        if u >= last or _balanced(graph, capacity):
            return capacity, u
        trimmed = _kernel.trim(*links)
        if trimmed is not None:
            return trimmed, u
        u = min(last, _next_step(u, graph.capacity))


def fixed_algbw(
    graph: CapacityGraph, collective: Collective, root: int | None, trees: int
) -> Fraction:
    """GB/s that a forest with `trees` trees a root reaches at least, without packing it."""

    def phase(one_way: CapacityGraph) -> Fraction:
        task = analyse(one_way, root)
        _, u = fixed_capacities(task, trees)
        return task.roots * trees / u * task.graph.unit

    if collective is Collective.ALLREDUCE:
        gather = phase(graph)
        scatter = gather if is_symmetric(graph) else phase(graph.reverse())
        return 1 / (1 / gather + 1 / scatter)
    return phase(graph.reverse() if collective.reduces else graph)


def _floors(u: Fraction, capacity: Iterable[int]) -> list[int]:
    return [c * u.numerator // u.denominator for c in capacity]


def _next_step(u: Fraction, capacity: Iterable[int]) -> Fraction:
    """The least U above `u` at which some link carries one tree more."""
    return min(Fraction(u * c // 1 + 1, c) for c in set(capacity))


def _least_for(
    graph: CapacityGraph, cut: frozenset[int], u: Fraction, supply: list[int]
) -> Fraction:
    """The least U above `u` at which the links that leave `cut` carry all trees rooted in it."""
    wanted = sum(supply[v] for v in cut)
    leaving: dict[int, int] = {}  # capacity -> how many links
    for tail, head, capacity in zip(graph.tail, graph.head, graph.capacity, strict=True):
        if tail in cut and head not in cut:
            leaving[capacity] = leaving.get(capacity, 0) + 1
    u = max(u, Fraction(wanted, sum(c * count for c, count in leaving.items())))
    while sum(count * (c * u.numerator // u.denominator) for c, count in leaving.items()) < wanted:
        u = _next_step(u, leaving)
    return u


def _balanced(graph: CapacityGraph, capacity: list[int]) -> bool:
    from dataclasses import replace

    return is_balanced(replace(graph, capacity=tuple(capacity)))
