"""Parts of different size per rank: allgatherv and reduce-scatterv, exactly and with proof."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from fractions import Fraction

import pytest
from graphs import build, dgx_a100, mi250, ring
from random_graphs import random_graph, starved_graph

from forestcoll import solver
from forestcoll.common.errors import ForestError, InfeasibleError, TopologyError, UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule import certificate, forest_file
from forestcoll.schedule.forest import Forest, Tree, check
from forestcoll.solver.shares import LARGEST, with_shares

PARTED = (Collective.ALLGATHER, Collective.REDUCE_SCATTER)


def brute(graph: CapacityGraph) -> Fraction:
    """The least sum of parts * leaving(S) / parts in S over every node set there is, in GB/s."""
    found = []
    for bits in range(1, 2**graph.n):
        nodes = frozenset(v for v in range(graph.n) if bits >> v & 1)
        if graph.parts_in(nodes) and not set(graph.ranks) <= nodes:
            found.append(graph.leaving(nodes) / graph.parts_in(nodes))
    return min(found) * sum(graph.parts)


def parted(graph: CapacityGraph, seed: int) -> CapacityGraph:
    rng = random.Random(seed)
    shares = [rng.choice((0, 0, 1, 2, 3, 7)) for _ in graph.ranks]
    shares[rng.randrange(len(shares))] += 1
    return with_shares(graph, shares)


@pytest.mark.parametrize("block", range(6))
def test_random_graphs_reach_the_least_cut(block: int) -> None:
    proven = 0
    for seed in range(30 * block, 30 * block + 30):
        graph = random_graph(seed) if seed % 3 else starved_graph(seed)
        if graph.n > 10:
            continue
        graph = parted(graph, seed)
        for collective in PARTED:
            forest = solver.solve(graph, collective)
            algbw, bound = certificate.check(forest)
            assert algbw == bound == solver.optimum(graph, collective).algbw
            cut = brute(graph if collective is Collective.ALLGATHER else graph.reverse())
            assert forest.bound is not None
            # only a switch that sends more than it receives keeps trees from reaching the cut
            assert algbw == cut if forest.bound.method == "cut" else algbw < cut
            proven += 1
    assert proven > 20


def test_each_root_sends_its_own_part() -> None:
    graph = with_shares(dgx_a100(2), [5, 1, 0, 0, 2, 2, 2, 3] + [1] * 8)
    forest = solver.solve(graph, Collective.ALLGATHER)
    sums = dict.fromkeys(graph.ranks, Fraction(0))
    for tree in forest.trees:
        sums[tree.root] += forest.share(tree)
    assert list(sums.values()) == [Fraction(part, 23) for part in graph.parts]


def test_a_large_part_makes_its_rank_the_bottleneck() -> None:
    """One box: a GPU takes in what is not its own, and nobody sends more than 300 GB/s."""
    equal = solver.optimum(dgx_a100(1), Collective.ALLGATHER)
    assert equal.algbw == Fraction(2400, 7)
    skewed = with_shares(dgx_a100(1), [9, 1, 1, 1, 1, 1, 1, 1])
    # a GPU with part 1 receives 15 of 16 parts
    assert solver.optimum(skewed, Collective.ALLGATHER).algbw == 300 * Fraction(16, 15)
    alone = with_shares(dgx_a100(1), [0, 0, 0, 4, 0, 0, 0, 0])
    broadcast = solver.optimum(dgx_a100(1), Collective.BROADCAST, 3)
    assert solver.optimum(alone, Collective.ALLGATHER).algbw == broadcast.algbw == 300


def test_equal_parts_are_no_parts() -> None:
    graph = mi250(1)
    assert with_shares(graph, [4] * 16) == graph
    assert with_shares(graph, None) == graph
    assert with_shares(with_shares(graph, [1] + [2] * 15), None) == graph


def test_parts_lose_what_they_have_in_common() -> None:
    graph = with_shares(ring(4), [300, 0, 600, 900])
    assert graph.shares == (1, 0, 2, 3)
    assert graph.reverse().shares == graph.shares
    assert solver.optimum(graph, Collective.ALLGATHER).trees_per_root >= 1


def test_names_and_globs() -> None:
    graph = dgx_a100(2)
    got = with_shares(graph, ["*=1", "box1/*=2", "box0/gpu3 = 7"]).shares
    assert got == (1, 1, 1, 7, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        (["1", "2"], "2 amounts for 4 ranks"),
        (["1", "2", "x", "4"], "'x' has no whole number"),
        (["1", "-2", "3", "4"], "'-2' has no whole number"),
        (["1.5", "2", "3", "4"], "'1.5' has no whole number"),
        (["0", "0", "0", "0"], "all parts are 0"),
        ([str(LARGEST + 1), "1", "1", "1"], "is more than"),
        (["g0=1"], "no part is given for rank 'g1' and 2 more; start with '*=0'"),
        (["*=1", "gg1=2"], "no rank is called or matches 'gg1'; did you mean 'g1'?"),
        (["*=1", "2"], "'2' stands among entries of the form id=amount"),
        (["*="], "'*=' has no whole number"),
        (["=3"], "'=3' stands among entries"),
    ],
)
def test_shares_that_are_refused(shares: list[str], message: str) -> None:
    with pytest.raises(TopologyError) as error:
        with_shares(ring(4), shares)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "collective", [Collective.ALLREDUCE, Collective.BROADCAST, Collective.REDUCE]
)
def test_other_collectives_have_no_parts(collective: Collective) -> None:
    graph = with_shares(ring(3), [1, 2, 3])
    root = 0 if collective.has_root else None
    for call in (solver.optimum, solver.solve):
        with pytest.raises(UnsupportedError, match="shares are for allgather and reduce-scatter"):
            call(graph, collective, root)


def test_a_rank_that_cannot_be_reached() -> None:
    graph = build([("a", "b", 1), ("b", "c", 1), ("c", "b", 1)], both=False)
    with pytest.raises(InfeasibleError, match="ranks b, c cannot reach a: no link leaves"):
        solver.solve(with_shares(graph, [1, 2, 3]), Collective.ALLGATHER)
    # with all data at a, nothing has to reach a
    only = solver.solve(with_shares(graph, [1, 0, 0]), Collective.ALLGATHER)
    assert certificate.check(only) == (Fraction(1), Fraction(1))


def test_numbers_too_large_for_the_kernel() -> None:
    graph = with_shares(ring(3, capacity=2**40), [2**40, 1, 1])
    with pytest.raises(UnsupportedError, match="too many for exact 64-bit flows"):
        solver.optimum(graph, Collective.ALLGATHER)


def test_a_fixed_number_of_trees() -> None:
    graph = with_shares(mi250(1), [3, 1] + [2] * 14)
    best = solver.optimum(graph, Collective.ALLGATHER)
    for trees in (1, 2):
        forest = solver.solve(graph, Collective.ALLGATHER, None, trees)
        algbw, bound = certificate.check(forest)
        assert algbw <= best.algbw == bound
        assert algbw == solver.fixed_algbw(graph, Collective.ALLGATHER, None, trees)


def test_check_notices_wrong_parts() -> None:
    forest = solver.solve(with_shares(ring(3), [1, 1, 2]), Collective.ALLGATHER)
    swapped = replace(forest, graph=replace(forest.graph, shares=(1, 2, 1)))
    with pytest.raises(ForestError, match="shares of root g1 add up to 1/4, not 1/2"):
        check(swapped)
    first: Tree = forest.trees[0]
    heavier = replace(forest, trees=(replace(first, weight=first.weight + 1), *forest.trees[1:]))
    with pytest.raises(ForestError, match="shares of root"):
        check(heavier)


def written(forest: Forest) -> dict[str, object]:
    found: dict[str, object] = json.loads(forest_file.dumps(forest))
    return found


@pytest.mark.parametrize("collective", PARTED)
def test_files_carry_the_parts(collective: Collective) -> None:
    forest = solver.solve(with_shares(dgx_a100(1), [0, 2, *range(6)]), collective, name="dgx")
    text = forest_file.dumps(forest)
    assert written(forest)["shares"] == {
        f"box0/gpu{i}": part for i, part in enumerate((0, 2, 0, 1, 2, 3, 4, 5))
    }
    back = forest_file.loads(text)
    assert back.graph.shares == forest.graph.shares
    assert certificate.check(back) == certificate.check(forest)
    assert written(back)["shares"] == written(forest)["shares"]
    plain = solver.solve(dgx_a100(1), collective, name="dgx")
    assert "shares" not in written(plain)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"g0": 1, "g1": 1}, "must name every rank and nothing else, see 'g2'"),
        ({"g0": 1, "g1": 1, "g2": 2, "g9": 1}, "must name every rank and nothing else, see 'g9'"),
        ({"g0": 0, "g1": 0, "g2": 0}, "all parts are 0"),
        ({"g0": 1, "g1": -1, "g2": 2}, "shares.g1"),
        ({"g0": 1, "g1": 1, "g2": 1}, ""),
    ],
)
def test_files_with_wrong_parts(shares: dict[str, int], message: str) -> None:
    forest = solver.solve(with_shares(ring(3), [1, 1, 2]), Collective.ALLGATHER, name="ring")
    model = written(forest) | {"shares": shares}
    if message:
        with pytest.raises(ForestError) as error:
            forest_file.loads(json.dumps(model))
        assert message in str(error.value)
    else:  # equal parts are well formed, and not what the trees carry
        with pytest.raises(ForestError, match="add up to"):
            certificate.check(forest_file.parse(json.dumps(model))[0])


def test_files_of_other_collectives_have_no_parts() -> None:
    forest = solver.solve(ring(3), Collective.ALLREDUCE, name="ring")
    model = written(forest) | {"shares": {"g0": 1, "g1": 1, "g2": 2}}
    with pytest.raises(ForestError, match="allreduce has no parts that could differ"):
        forest_file.loads(json.dumps(model))


def test_a_bound_that_no_part_supports() -> None:
    forest = solver.solve(with_shares(ring(3), [0, 1, 2]), Collective.ALLGATHER)
    assert forest.bound is not None
    empty = replace(forest.bound, parts=(frozenset([forest.graph.ranks[0]]),))
    with pytest.raises(ForestError, match="the cut holds no rank with a part"):
        certificate.check_bound(forest, empty)
