"""Rounded weights: whole, with the sums that are asked for, and as fast as they are said to be."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, pairwise

import pytest
from graphs import build, dgx_a100, mi250, torus
from random_graphs import random_graph

from forestcoll.common.errors import ForestCollError
from forestcoll.compile.choose import why_rounded
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import BY_TREES, Collective
from forestcoll.schedule.forest import Forest, check
from forestcoll.solver import solve
from forestcoll.solver.rounding import round_to_power, round_weights

ALL = pytest.mark.parametrize("collective", list(BY_TREES), ids=str)


def solved(graph: CapacityGraph, collective: Collective, trees: int | None = None) -> Forest:
    return solve(graph, collective, 0 if collective.has_root else None, trees or "auto")


def slowest(forest: Forest, weights: tuple[int, ...], total: int) -> Fraction:
    """GB/s of the forest's trees with these weights, counted here."""
    loads: dict[tuple[int, int], int] = defaultdict(int)
    for tree, weight in zip(forest.trees, weights, strict=True):
        for path in tree.edges:
            for hop in pairwise(path):
                loads[hop] += weight
    graph = forest.graph
    return min(
        graph.bandwidth(e) * total / load
        for e, hop in enumerate(graph.ends)
        if (load := loads[hop])
    )


def splits(units: int, trees: int) -> Iterator[tuple[int, ...]]:
    """All ways to deal `units` out to so many trees."""
    if trees == 1:
        yield (units,)
        return
    for first in range(units + 1):
        for rest in splits(units - first, trees - 1):
            yield (first, *rest)


@ALL
@pytest.mark.parametrize(
    "graph", [dgx_a100(2), mi250(1), torus(3, 3)], ids=["a100", "mi250", "3x3"]
)
def test_the_roots_get_powers_of_two_within_a_percent(
    collective: Collective, graph: CapacityGraph
) -> None:
    forest = solved(graph, collective)
    least = Fraction(99, 100) * forest.plain_algbw
    found = round_to_power(forest, forest.plain_algbw, least, 2**14)
    assert found is not None
    assert check(found) == found.plain_algbw >= least
    parts = forest.n if collective in (Collective.ALLGATHER, Collective.REDUCE_SCATTER) else 1
    units = found.total // parts
    assert (found.total % parts, units & (units - 1)) == (0, 0)
    assert found.height <= forest.height
    assert found.bound == forest.bound
    shapes = {(t.root, t.phase, t.edges) for t in forest.trees}
    assert {(t.root, t.phase, t.edges) for t in found.trees} <= shapes


@pytest.mark.parametrize("units", [2, 4, 8])
def test_nothing_that_is_possible_is_missed_on_a_few_trees(units: int) -> None:
    """A mesh of four, held against every way to deal the units out."""
    pairs = list(combinations("abcd", 2))
    forest = solved(build((u, v, 3 + (u == "a")) for u, v in pairs), Collective.BROADCAST)
    assert len(forest.trees) > 1
    best = max(slowest(forest, w, units) for w in splits(units, len(forest.trees)))
    found = round_weights(forest, units, best)
    assert found is not None
    assert found.plain_algbw == best
    assert round_weights(forest, units, best * Fraction(1001, 1000)) is None


def test_phases_of_an_allreduce_keep_carrying_the_same_chunks() -> None:
    forest = solved(dgx_a100(2), Collective.ALLREDUCE)
    found = round_weights(forest, 256, Fraction(99, 100) * forest.plain_algbw)
    assert found is not None
    by: dict[str, list[tuple[int, int, frozenset[tuple[int, ...]]]]] = defaultdict(list)
    for tree in found.trees:
        edges = tree.reverse().edges if tree.phase == "reduce" else tree.edges
        by[tree.phase].append((tree.root, tree.weight, frozenset(edges)))
    assert sorted(by["reduce"], key=repr) == sorted(by["broadcast"], key=repr)


def test_random_forests() -> None:
    rounded = 0
    for seed in range(60):
        graph = random_graph(seed)
        collective = random.Random(seed).choice(list(BY_TREES))
        try:
            forest = solved(graph, collective)
        except ForestCollError:
            continue
        least = Fraction(98, 100) * forest.plain_algbw
        found = round_to_power(forest, forest.plain_algbw, least, 2**14)
        if found is None:
            continue
        rounded += 1
        check(found)
        weights = tuple(tree.weight for tree in found.trees)
        assert slowest(found, weights, found.total) == found.plain_algbw >= least
    assert rounded > 30


def test_more_than_the_forest_has_is_not_looked_for() -> None:
    forest = solved(mi250(1), Collective.ALLGATHER)
    assert round_weights(forest, 3, forest.plain_algbw * 2) is None
    again = round_weights(forest, 3, forest.plain_algbw)
    assert again is not None
    assert again.plain_algbw == forest.plain_algbw


def test_too_few_units_are_given_up() -> None:
    forest = solved(mi250(1), Collective.ALLGATHER)
    least = Fraction(99, 100) * forest.plain_algbw
    assert round_to_power(forest, forest.plain_algbw, least, 16 * 16) is None
    assert round_to_power(forest, forest.plain_algbw, least, 16 * 32) is not None


def test_what_rounding_costs_is_said_only_where_it_costs() -> None:
    exact = solved(dgx_a100(2), Collective.ALLGATHER)
    rounded = round_to_power(exact, exact.plain_algbw, Fraction(99, 100) * exact.plain_algbw, 2**14)
    assert rounded is not None
    assert rounded.plain_algbw < exact.plain_algbw
    assert why_rounded(rounded, exact, "--exact") == (
        "shares are rounded to 1/16 of a rank's part, so that every power of two is served; "
        "--exact takes 1/13 and 346.667 GB/s (0.21 % more)"
    )
    assert why_rounded(exact, rounded, "--exact") == (
        "shares are rounded to 1/13 of a rank's part, so that every power of two is served"
    )
