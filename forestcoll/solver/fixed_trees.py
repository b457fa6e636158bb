"""Fixed number of trees per root: the largest algbw that whole trees allow."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph, is_balanced, require_size
from forestcoll.graph.kernel import _kernel
from forestcoll.program import Collective
from forestcoll.schedule.dual import link_worth
from forestcoll.solver.flows.max_flow import cut_off
from forestcoll.solver.task import Task

REFINEMENTS = 5
"""Halvings of the last step of U, where trimming had failed before it."""


def fit_capacities(task: Task, trees: int) -> tuple[CapacityGraph, list[int], Fraction]:
    """(links, trees that each carries, U): U units of time for `trees` trees per root.

    Link e carries floor(U b(e)) trees, and U is the least at which `trees` a root can be packed:
    algbw = roots * trees / U * unit. Starts where nothing could be faster; every cut that objects
    names the least U at which it no longer does (discrete Newton), as does a dual. Where switches
    are unbalanced, by rounding or from the start, what is too much is trimmed from all that the
    links hold; U grows where that fails, at most to where the balanced part of the links
    (`task.graph`) needs no rounding.
    """
    if trees < 1:
        raise UnsupportedError(f"{trees} trees per root: must be at least 1")
    graph, supply = task.given, task.supply(trees)
    require_size(supply, 1)
    u = trees * graph.unit / (task.rate * task.graph.unit)
    if task.bound.method == "linear-program":
        u = grow(rate_worth(task), u, trees)
    while True:
        capacity = floors(u, graph.capacity)
        require_size(capacity, 1)
        violation = cut_off(graph, capacity, supply, graph.ranks)
        if violation is None:
            break
        u = _least_for(graph, violation, u, supply)
    return _balance(task, supply, u)


def _balance(
    task: Task, supply: list[int], u: Fraction
) -> tuple[CapacityGraph, list[int], Fraction]:
    """(links, trees that each carries, U) for a U near the least from `u` on that is found.

    No cut objects to `u`. As long as trimming fails, U grows by more and more, and then comes back.
    """
    given, graph = task.given, task.graph
    scale = graph.unit / given.unit
    common = math.gcd(*graph.capacity)
    last = Fraction(math.ceil(u * scale * common), common) / scale  # there no link is rounded

    def attempt(u: Fraction) -> tuple[CapacityGraph, list[int]] | None:
        whole = _trim(given, floors(u, given.capacity), supply)
        if whole is not None:
            return given, whole
        if graph is given:
            return None
        capacity = floors(u * scale, graph.capacity)
        if cut_off(graph, capacity, supply, graph.ranks) is not None:
            return None
        whole = _trim(graph, capacity, supply)
        return None if whole is None else (graph, whole)

    balanced, failed, step = attempt(u), u, Fraction(0)
    while balanced is None:
        if u >= last:
            raise RuntimeError("internal error: links without rounding cannot hold the trees")
        failed, step = u, max(2 * step, next_step(u, given.capacity) - u)
        u = min(last, u + step)
        balanced = attempt(u)
    for _ in range(REFINEMENTS if u > failed else 0):
        middle = (failed + u) / 2
        nearer = attempt(middle)
        if nearer is None:
            failed = middle
        else:
            balanced, u = nearer, middle
    links, capacity = balanced
    # trimming may have lowered the very links that U was made for
    return links, capacity, max(map(Fraction, capacity, links.capacity))


@dataclass(frozen=True, slots=True)
class Fit:
    """`trees` a root, whole numbers on every link: `capacity` on those of `links`, at `algbw`."""

    trees: int
    links: CapacityGraph
    capacity: list[int]
    algbw: Fraction  # GB/s


def fit_trees(task: Task, trees: int | Literal["auto"]) -> Fit:
    """The task with so many trees a root, "auto": as many as its optimum takes."""
    if trees == "auto":
        capacity = task.capacities()
        require_size(capacity, 1)
        return Fit(task.trees_per_root, task.graph, capacity, task.algbw)
    links, capacity, u = fit_capacities(task, trees)
    return Fit(trees, links, capacity, task.roots * trees / u * links.unit)


def floors(u: Fraction, capacity: Iterable[int]) -> list[int]:
    """Whole trees that links carry in time u."""
    return [c * u.numerator // u.denominator for c in capacity]


def next_step(u: Fraction, capacity: Iterable[int]) -> Fraction:
    """The least U above `u` at which some link carries one tree more."""
    return min(Fraction(u * c // 1 + 1, c) for c in set(capacity))


def _least_for(
    graph: CapacityGraph, cut: frozenset[int], u: Fraction, supply: list[int]
) -> Fraction:
    """The least U above `u` at which the links that leave `cut` carry all trees rooted in it."""
    leaving = Counter(graph.crossing(cut, graph.capacity))
    return grow(leaving, u, sum(supply[v] for v in cut))


def grow(worth: Mapping[int, Fraction | int], u: Fraction, wanted: int) -> Fraction:
    """The least U from `u` on at which links worth so much, by capacity, carry what is wanted."""
    u = max(u, Fraction(wanted) / sum(c * z for c, z in worth.items()))
    while sum(z * (c * u.numerator // u.denominator) for c, z in worth.items()) < wanted:
        u = next_step(u, worth)
    return u


def rate_worth(task: Task) -> dict[int, Fraction]:
    """What the dual of a task pays for links, by capacity: holds for whole trees as well."""
    alone = Collective.ALLGATHER if task.root is None else Collective.BROADCAST
    worth = link_worth(task.given, task.bound, alone, task.root)
    return by_capacity(task.given, [z / task.roots for z in worth])


def by_capacity(graph: CapacityGraph, worth: Sequence[Fraction]) -> dict[int, Fraction]:
    """What links are worth, those of equal capacity together: the same k trees fit on each."""
    values: dict[int, Fraction] = defaultdict(Fraction)
    for c, z in zip(graph.capacity, worth, strict=True):
        if z:
            values[c] += z
    return values


def _trim(graph: CapacityGraph, capacity: list[int], supply: list[int]) -> list[int] | None:
    """`capacity`, lowered until switches are balanced and no cut objects; None if no way is found.

    No cut objects to `capacity` itself.
    """
    if is_balanced(replace(graph, capacity=tuple(capacity))):
        return capacity
    return _kernel.trim(*graph.wires, capacity, supply, graph.ranks)
