"""The twice-uniform plan: its promise, counted on the links of routes."""

from __future__ import annotations

import random
from collections import defaultdict
from fractions import Fraction
from itertools import pairwise

import pytest
from graphs import dgx_a100, mi250, ring, torus
from test_alltoall_spread import random_matrix

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.solver.alltoall.demand import Demand
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.rounding import route
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.solver.alltoall.spread import twice_uniform


def carried(found: Routes, matrix: list[list[int]]) -> Fraction:
    """Nanoseconds of both phases by link loads: shares of the rows out, then of the columns in."""
    graph, n = found.graph, len(found.graph.ranks)
    rank = {v: i for i, v in enumerate(graph.ranks)}
    rows = [sum(row) for row in matrix]
    columns = [sum(row[j] for row in matrix) for j in range(n)]
    first: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    then: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    for path in found.expand():
        share = Fraction(path.units, found.units * n)
        for hop in pairwise(path.path):
            first[hop] += share * rows[rank[path.path[0]]]
            then[hop] += share * columns[rank[path.path[-1]]]
    ends = list(graph.ends)
    phases = (first, then)
    return sum(
        (max(p.get(pair, Fraction(0)) / graph.bandwidth(e) for e, pair in enumerate(ends)))
        for p in phases
    ) + Fraction(0)


@pytest.mark.parametrize(
    "graph", [dgx_a100(2), mi250(1), torus(3, 3), ring(5)], ids=["a100", "mi250", "3x3", "ring"]
)
def test_never_above_the_promise(graph: CapacityGraph) -> None:
    best = solve(Demand(graph))
    found = route(best, min_share=Fraction(1))
    dice = random.Random(3)
    for _ in range(20):
        matrix = random_matrix(len(graph.ranks), dice)
        promised = twice_uniform(best, matrix)
        least = 1 / solve(Demand(graph, tuple(map(tuple, matrix)))).theta
        assert least <= carried(found, matrix) <= promised.nanoseconds


def test_even_blocks_take_twice_the_optimum() -> None:
    best = solve(Demand(mi250(1)))
    even = [[int(i != j) * 1000 for j in range(16)] for i in range(16)]
    promised = twice_uniform(best, even)
    assert promised.spreading == promised.delivering
    assert promised.nanoseconds == 2 * 15 * promised.shares[0] / 15 / best.theta
    assert promised.shares == (Fraction(15000, 16), Fraction(15000, 16))


def test_what_stays_is_left_out() -> None:
    best = solve(Demand(ring(4)))
    matrix = [[9 if i == j else 1 for j in range(4)] for i in range(4)]
    assert twice_uniform(best, matrix).shares == (Fraction(3, 4), Fraction(3, 4))


def test_only_of_equal_blocks() -> None:
    table = ((0, 1), (1, 0))
    with pytest.raises(UnsupportedError, match="the optimum of equal blocks"):
        twice_uniform(solve(Demand(ring(2), table)), table)
