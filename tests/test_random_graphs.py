"""500 random graphs: the solver, its plain twin and an independent max-flow must agree, exactly."""

from __future__ import annotations

from fractions import Fraction

import networkx as nx
import pytest
from random_graphs import KINDS, judge, random_graph, starved_graph

from forestcoll.forest import Bound
from forestcoll.graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.solver import optimum, reference, solve
from forestcoll.solver.balance import balance, check_dual, is_balanced
from forestcoll.solver.bounds import check_parts

SEEDS = 500
BLOCK = 25
"""Seeds of one kind a test: KINDS x BLOCK x BLOCKS = SEEDS."""
BLOCKS = SEEDS // (BLOCK * len(KINDS))


def feeds_everybody(graph: CapacityGraph, rate: Fraction, root: int | None) -> bool:
    """Whether networkx finds room for `rate` (GB/s a root) from all roots to every rank."""
    scale = (rate / graph.unit).denominator
    units = int(rate / graph.unit * scale)
    network = nx.DiGraph()
    for u, v, capacity in zip(graph.tail, graph.head, graph.capacity, strict=True):
        network.add_edge(u, v, capacity=capacity * scale)
    roots = graph.ranks if root is None else (graph.ranks[root],)
    for r in roots:
        network.add_edge("source", r, capacity=units)
    need = units * len(roots)
    return all(nx.maximum_flow_value(network, "source", v) == need for v in graph.ranks)


def proven_bound(
    graph: CapacityGraph, bound: Bound, collective: Collective, root: int | None
) -> Fraction:
    """What the certificate proves. A lone cut is counted here, not by the package."""
    if bound.method == "linear-program":
        return check_dual(graph, bound, collective, root)
    if bound.method == "partition":
        return check_parts(graph, bound, collective, root)
    (cut,) = bound.parts
    inside = sum(v in cut for v in graph.ranks)
    assert 0 < inside < len(graph.ranks)
    links = list(zip(graph.tail, graph.head, graph.capacity, strict=True))
    leaving = sum(c for u, v, c in links if u in cut and v not in cut) * graph.unit
    entering = sum(c for u, v, c in links if u not in cut and v in cut) * graph.unit
    if collective is Collective.ALLREDUCE:
        return min(leaving, entering)
    crossing = entering if collective.reduces else leaving
    if collective.rooted:
        assert graph.ranks[root or 0] in cut
        return crossing
    return crossing * Fraction(len(graph.ranks), inside)


def agree(graph: CapacityGraph, collective: Collective, root: int | None) -> str:
    """Checks everything about one optimum and its forest; the method of its proof."""
    best = optimum(graph, collective, root)
    assert proven_bound(graph, best.bound, collective, root) == best.bound.algbw == best.algbw
    forward = graph.reverse() if collective.reduces else graph
    balanced = forward if is_balanced(forward) else balance(forward, root).graph
    assert feeds_everybody(balanced, best.rate, root)

    twin = reference.forest(balanced, Collective(_FORWARD[collective]), root)
    assert twin.bound is not None
    assert judge(twin) == twin.bound.algbw == best.algbw

    forest = solve(graph, collective, root)
    assert judge(forest) == best.algbw
    return best.bound.method


_FORWARD = {
    Collective.ALLGATHER: Collective.ALLGATHER,
    Collective.REDUCE_SCATTER: Collective.ALLGATHER,
    Collective.BROADCAST: Collective.BROADCAST,
    Collective.REDUCE: Collective.BROADCAST,
}


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.parametrize("kind", KINDS)
def test_solver_twin_and_flows_agree_on_allgather(kind: str, block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        agree(random_graph(1000 * KINDS.index(kind) + seed, kind), Collective.ALLGATHER, None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("collective", ["reduce-scatter", "broadcast", "reduce"])
def test_solver_twin_and_flows_agree_on_the_others(collective: str, kind: str) -> None:
    for seed in range(12):
        graph = random_graph(1000 * KINDS.index(kind) + seed, kind)
        root = seed % len(graph.ranks) if Collective(collective).rooted else None
        agree(graph, Collective(collective), root)


@pytest.mark.parametrize("kind", KINDS)
def test_allreduce_stays_below_a_proven_bound(kind: str) -> None:
    for seed in range(20):
        graph = random_graph(1000 * KINDS.index(kind) + seed, kind)
        best = optimum(graph, Collective.ALLREDUCE)
        proven = proven_bound(graph, best.bound, Collective.ALLREDUCE, None)
        assert proven == best.bound.algbw >= best.algbw
        forest = solve(graph, Collective.ALLREDUCE)
        assert best.algbw <= judge(forest) <= proven


def test_starved_switches() -> None:
    methods = []
    for seed in range(80):
        collective = list(_FORWARD)[seed % 4]
        root = 1 if collective.rooted else None
        methods.append(agree(starved_graph(seed), collective, root))
    assert methods.count("linear-program") >= 10


@pytest.mark.parametrize("kind", KINDS)
def test_fixed_numbers_of_trees_stay_below_the_optimum(kind: str) -> None:
    for seed in range(12):
        graph = random_graph(1000 * KINDS.index(kind) + seed, kind)
        best = optimum(graph, Collective.ALLGATHER).algbw
        for k in (1, 2, 5):
            forest = solve(graph, Collective.ALLGATHER, trees=k)
            assert forest.total == k * len(graph.ranks)
            assert 0 < judge(forest) <= best
