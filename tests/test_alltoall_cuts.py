"""Sparse cuts as bounds of an all-to-all, and the program that is held at them."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest
from graphs import dgx_a100, mi250, torus
from test_alltoall import agree, random_demand

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.solver.alltoall import columns, flows
from forestcoll.solver.alltoall.columns import sparse_cut
from forestcoll.solver.alltoall.demand import Demand
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.fold import fold, orbits
from forestcoll.solver.flows import exact_lp


def uneven(graph: CapacityGraph, seed: int) -> CapacityGraph:
    """Every cable up to 10 % slower, each by its own amount."""
    dice = random.Random(seed)
    width: dict[frozenset[int], int] = {}
    for u, v in graph.ends:
        width.setdefault(frozenset((u, v)), dice.randint(900, 1000))
    return replace(
        graph,
        capacity=tuple(c * width[frozenset((u, v))] for u, v, c in graph.arcs),
        unit=graph.unit / 1000,
    )


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of any size look for a cut first."""
    monkeypatch.setattr(flows, "LARGE", 0)


@pytest.mark.parametrize("start", range(0, 60, 20))
@pytest.mark.usefixtures("held")
def test_random_graphs_from_their_cuts(start: int) -> None:
    """The same optimum as that of the whole program, whether a cut is found or not."""
    for seed in range(start, start + 20):
        agree(seed)


def test_cuts_are_bounds_and_often_the_optimum() -> None:
    met = 0
    for seed in range(60):
        demand = random_demand(seed)
        found = sparse_cut(demand, fold(demand))
        if found is not None:
            rate = solve(demand).rate
            assert found[0] >= rate
            met += found[0] == rate
    assert met >= 20


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "graph", [torus(5, 4), torus(6, 3), dgx_a100(3), mi250(2)], ids=["5x4", "6x3", "a100", "mi250"]
)
def test_uneven_cables(graph: CapacityGraph, seed: int) -> None:
    """Slabs of a torus and boxes are found without any symmetry."""
    demand = Demand(uneven(graph, seed))
    folding = fold(demand)
    assert len(folding.sources) == len(graph.ranks)
    found = sparse_cut(demand, folding)
    assert found is not None
    assert found[0] == solve(demand).rate


def test_the_program_is_held_at_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """One program, which needs no dual of its own: the cut proves it."""
    demand = Demand(uneven(torus(6, 4), 1))
    rate = solve(demand).rate
    monkeypatch.setattr(flows, "LARGE", 0)
    monkeypatch.setattr(exact_lp, "solve", None)
    monkeypatch.setattr(exact_lp, "prove", None)
    best = solve(demand)
    assert set(best.lengths) == {0, 1}
    assert best.rate == rate


@pytest.mark.usefixtures("held")
def test_a_cut_that_symmetries_move() -> None:
    """Its lengths are averaged over its images; the optimum is the same."""
    demand = Demand(dgx_a100(3))
    plain, folded = orbits(demand, []), fold(demand)
    assert len(folded.sources) == 1
    first, second = sparse_cut(demand, plain), sparse_cut(demand, folded)
    assert first is not None
    assert second is not None
    assert first[0] == second[0] == solve(demand).rate
    assert sum(second[1]) == 3 * sum(first[1])


@pytest.mark.usefixtures("held")
def test_a_cut_that_is_not_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound that is too high does no harm: the program goes on below it."""
    demand = Demand(uneven(torus(3, 3), 2))
    best = solve(demand)
    real = columns.sparse_cut(demand, fold(demand))
    assert real is not None
    loose = real[0] * Fraction(3, 2), real[1]
    monkeypatch.setattr(flows, "sparse_cut", lambda *_: loose)
    assert solve(demand).rate == best.rate
