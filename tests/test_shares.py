"""Parts of different size per rank: allgatherv and reduce-scatterv, exactly and with proof.

(test_random_graphs.py: graphs of all kinds; refusals/shares.txt: what is refused.)
"""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from damages import damage, rows
from graphs import build, dgx_a100, mi250, ring

from forestcoll import solver
from forestcoll.common.errors import ForestError, InfeasibleError, UnsupportedError
from forestcoll.program import Collective
from forestcoll.schedule import certificate, forest_file
from forestcoll.schedule.dual import check_dual
from forestcoll.schedule.forest import Bound, Forest, Symmetry
from forestcoll.solver.shares import with_shares

PARTED = (Collective.ALLGATHER, Collective.REDUCE_SCATTER)


def test_each_root_sends_its_own_part() -> None:
    graph = with_shares(dgx_a100(2), [5, 1, 0, 0, 2, 2, 2, 3] + [1] * 8)
    forest = solver.solve(graph, Collective.ALLGATHER)
    sums = dict.fromkeys(graph.ranks, Fraction(0))
    for tree in forest.trees:
        sums[tree.root] += forest.share(tree)
    assert list(sums.values()) == [Fraction(part, 23) for part in graph.parts]


def test_a_large_part_makes_its_rank_the_bottleneck() -> None:
    """One box: a GPU takes in what is not its own, and nobody sends more than 300 GB/s."""
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


def test_a_rank_that_cannot_be_reached() -> None:
    graph = build([("a", "b", 1), ("b", "c", 1), ("c", "b", 1)], both=False)
    with pytest.raises(InfeasibleError, match="ranks b, c cannot reach a: no link leaves"):
        solver.solve(with_shares(graph, [1, 2, 3]), Collective.ALLGATHER)
    # with all data at a, nothing has to reach a
    only = solver.solve(with_shares(graph, [1, 0, 0]), Collective.ALLGATHER)
    assert certificate.check(only) == (1, 1)


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
        assert algbw == solver.algbw_of_trees(graph, Collective.ALLGATHER, None, trees)


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


@pytest.mark.parametrize(("change", "message"), rows("shares"))
def test_files_with_wrong_parts(change: str, message: str) -> None:
    """Equal parts are well formed, and not what the trees carry."""
    forest = solver.solve(with_shares(ring(3), [1, 1, 2]), Collective.ALLGATHER, name="ring")
    with pytest.raises(ForestError, match=message):
        certificate.check(forest_file.parse(json.dumps(damage(written(forest), change)))[0])


def test_a_bound_by_symmetries_keeps_the_parts() -> None:
    """What leaves the rank with most is no mean of what leaves others: one link carries all."""
    links = [("a-switch", "b-switch", 6)]
    for i in range(3):
        links += [(f"gpu{i}", "a-switch", 100), ("b-switch", f"gpu{i}", 100)]
    equal = build(links, both=False)
    shared = with_shares(equal, ["*=1", "gpu2=8"])
    assert solver.optimum(shared, Collective.ALLGATHER).algbw == 3
    node, turned = equal.names.index, list(range(equal.n))
    for i in range(3):
        turned[node(f"gpu{i}")] = node(f"gpu{(i + 1) % 3}")
    for graph, weight in ((equal, Fraction(1)), (shared, Fraction(1, 8))):
        claim = Bound(
            Fraction(0),
            "linear-program",
            (frozenset([node("gpu2")]),),
            (weight,),
            potentials=((node("a-switch"), weight / 3),),
            symmetries=(Symmetry(tuple(turned)),),
        )
        if graph is equal:
            assert check_dual(graph, claim, Collective.ALLGATHER) == 6
            continue
        with pytest.raises(ForestError, match="maps gpu1 to gpu2, which is of another kind"):
            check_dual(graph, claim, Collective.ALLGATHER)  # 5/2 GB/s, below what there is
