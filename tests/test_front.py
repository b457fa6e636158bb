"""The front of trees against algbw, held against every k, and what is chosen from it."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction

import pytest
from graphs import build, dgx_a100, mi250, named, perturbed, ring, torus
from random_graphs import judge, random_graph

from forestcoll.common.clock import Clock
from forestcoll.compile.budget import Budget, different_trees
from forestcoll.compile.choose import Choice, Chooser
from forestcoll.compile.problem import Problem
from forestcoll.compile.request import Request
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import BY_TREES, Collective
from forestcoll.program.sizes import Sizes
from forestcoll.program.targets import MSCCLPP, RCCL, Target
from forestcoll.schedule import certificate
from forestcoll.schedule.forest import Forest
from forestcoll.solver import algbw_of_trees, optimum, solve
from forestcoll.solver.fixed_trees import fit_trees
from forestcoll.solver.front import GOALS, Front, Point
from forestcoll.solver.task import analyse

ALLGATHER, ALLREDUCE = Collective.ALLGATHER, Collective.ALLREDUCE
PERCENT = Fraction(1, 100)
EVERY = 40
"""k up to which all are tried by hand."""


def chosen(
    graph: CapacityGraph,
    wishes: Request,
    *targets: Target,
    collective: Collective = ALLGATHER,
) -> Choice:
    """What the chooser takes, with the forest judged by the tests' own arithmetic."""
    by_format = {target.format: target for target in targets}
    best = optimum(graph, collective)
    choice = Chooser(
        Problem(graph, collective, name="test"), by_format, wishes, best, Clock()
    ).choose()
    assert judge(choice.forest) == certificate.check(choice.forest)[0]
    assert set(choice.programs) == set(by_format)
    return choice


def share(choice: Choice, graph: CapacityGraph) -> Fraction:
    return choice.forest.algbw / optimum(graph, choice.forest.collective).algbw


# ------------------------------------------------------------------------------------- points


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_the_front_is_that_of_all_k(seed: int) -> None:
    graph, collective = random_graph(seed), BY_TREES[seed % len(BY_TREES)]
    root = seed % len(graph.ranks) if collective.has_root else None
    front = Front(graph, collective, root)
    points = front.points()
    best, expected = Fraction(0), []
    last = points[-1]
    for k in range(1, min(EVERY, last.trees - 1) + 1):
        algbw = algbw_of_trees(graph, collective, root, k)
        if algbw > best:
            expected.append((k, best := algbw))
        if algbw >= GOALS[-1] * last.algbw:
            break
    found = [(p.trees, p.algbw) for p in points if p.trees <= EVERY and p != last]
    if last.trees <= EVERY:
        assert last.share == 1
        expected = [(k, algbw) for k, algbw in expected if k < last.trees]
    assert found == expected
    assert last.algbw == optimum(graph, collective, root).algbw


@pytest.mark.parametrize("seed", range(1, 60, 9))
def test_every_point_has_a_forest_that_reaches_it(seed: int) -> None:
    graph, collective = random_graph(seed), BY_TREES[seed % len(BY_TREES)]
    root = seed % len(graph.ranks) if collective.has_root else None
    points = Front(graph, collective, root).points()
    assert [p.trees for p in points] == sorted({p.trees for p in points})
    assert [p.algbw for p in points] == sorted({p.algbw for p in points})
    for point in points[:4] + points[-1:]:
        forest = solve(graph, collective, root, "auto" if point.exact else point.trees)
        algbw, bound = certificate.check(forest)
        assert bound is not None
        assert point.algbw <= algbw <= bound


@pytest.mark.parametrize("percent", [80, 95, 99])
@pytest.mark.parametrize("seed", range(2, 60, 6))
def test_fewest_is_the_first_of_all_k(seed: int, percent: int) -> None:
    graph = random_graph(seed)
    front = Front(graph, ALLGATHER)
    point = front.fewest(percent * PERCENT)
    assert point.share >= percent * PERCENT
    for k in range(1, min(EVERY, point.trees)):
        assert algbw_of_trees(graph, ALLGATHER, None, k) < percent * PERCENT * front.best.algbw


def test_every_front_holds_the_fewest_trees_for_its_goals() -> None:
    for seed, per in ((1, "cable"), (2, "direction")):
        graph = perturbed(mi250(1), seed, per)
        front = Front(graph, ALLGATHER)
        points = front.points()
        assert front.best.trees_per_root > 2000
        assert {front.fewest(goal) for goal in GOALS} <= set(points)
        assert all(points[i].share < points[i + 1].share for i in range(len(points) - 1))


@pytest.mark.parametrize("seed", range(0, 30, 3))
def test_the_limit_surely_reaches_its_share(seed: int) -> None:
    """Proven for links without switches between: there no rounding has to be balanced."""
    graph = random_graph(seed, "direct")
    front = Front(graph, ALLGATHER)
    for percent in (50, 90, 99):
        limit = front.limit(percent * PERCENT)
        above = limit < front.best.trees_per_root
        for k in (limit, limit + 1, limit + 7) if above else (limit,):
            assert front.algbw(k) >= percent * PERCENT * front.best.algbw


def test_numbers_beyond_64_bits_are_no_trouble() -> None:
    """Large primes over large primes: k times what the cuts compare leaves int64."""
    primes = (1_000_000_007, 998_244_353, 2_147_483_647, 1_000_000_009)
    links = [(f"gpu{i}", f"gpu{(i + 1) % 4}", p) for i, p in enumerate(primes)]
    graph = build(links, unit=Fraction(1, 1_000_003))
    front = Front(graph, ALLGATHER)
    points = front.points()
    assert front.exact.trees > 10**6
    best = Fraction(0)
    for k in range(1, 30):
        algbw = algbw_of_trees(graph, ALLGATHER, None, k)
        assert (algbw > best) == (k in {p.trees for p in points})
        best = max(best, algbw)
        if algbw >= GOALS[-1] * front.best.algbw:
            break


def test_the_optimum_with_fewer_trees_than_its_links_have_in_common() -> None:
    """Links that are not tight may be rounded: 3 trees per root instead of 8."""
    graph = mi250(4)
    front = Front(graph, ALLGATHER)
    assert (front.best.trees_per_root, front.exact.trees) == (8, 3)
    assert judge(solve(graph, ALLGATHER, None, 3)) == front.best.algbw
    assert all(front.algbw(k) < front.best.algbw for k in (1, 2))


def test_parts_that_differ_have_a_front_too() -> None:
    graph = replace(ring(4), shares=(3, 1, 0, 2))
    front = Front(graph, ALLGATHER)
    points = front.points()
    assert points[-1].algbw == optimum(graph, ALLGATHER).algbw
    for point in points:
        forest = solve(graph, ALLGATHER, None, "auto" if point.exact else point.trees)
        assert certificate.check(forest)[0] >= point.algbw


def test_a_thousand_gpus_with_measured_links() -> None:
    """The exact optimum takes 18,955 trees per root; 99.9 % of it takes 3."""
    graph = perturbed(dgx_a100(128), 1, "cable")
    start = time.monotonic()
    front = Front(graph, ALLGATHER)
    points = front.points()
    assert front.best.trees_per_root > 1000
    assert points[-2].trees < 10
    assert points[-2].share >= GOALS[-1]
    assert time.monotonic() - start < 30


# ----------------------------------------------------------------------------------- choosing


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("per", ["cable", "direction"])
@pytest.mark.parametrize("machine", ["a100", "mi250"])
def test_measured_machines_need_eight_trees_a_root(machine: str, per: str, seed: int) -> None:
    """99 % of the exact optimum with at most 8 different trees per root, where that takes 1000s."""
    graph = perturbed(dgx_a100(2) if machine == "a100" else mi250(1), seed, per)
    wishes = Request(min_percent=Fraction(99), budget=Budget(trees=8))
    start = time.monotonic()
    choice = chosen(graph, wishes)
    assert time.monotonic() - start < 30
    assert share(choice, graph) >= Fraction(99, 100)
    assert different_trees(choice.forest) <= 8
    assert choice.forest.total <= 32 * len(graph.ranks)


def test_eight_equal_trees_a_root_are_not_enough() -> None:
    """Proof by the exact optimum of each k (links are direct): unequal weights are needed."""
    graph = perturbed(mi250(1), 0, "cable")
    front = Front(graph, ALLGATHER)
    shares = [front.point(k).share for k in range(1, 9)]
    assert max(shares) < Fraction(99, 100)
    assert all(front.algbw(k) == algbw_of_trees(graph, ALLGATHER, None, k) for k in range(1, 9))


def test_without_wishes_the_optimum_is_taken_where_it_fits() -> None:
    choice = chosen(dgx_a100(2), Request(exact=True), RCCL, MSCCLPP)
    assert (choice.forest.trees_per_root, choice.notes) == (13, [])


def test_without_wishes_the_optimum_is_rounded_so_that_powers_of_two_are_served() -> None:
    graph = dgx_a100(2)
    choice = chosen(graph, Request(), RCCL, MSCCLPP)
    assert choice.forest.trees_per_root == 16
    assert share(choice, graph) >= Fraction(995, 1000)
    assert all(Sizes.of(program).powers for program in choice.programs.values())
    assert different_trees(choice.forest) == 2  # as of the optimum: no more steps
    assert choice.notes == [
        "shares are rounded to 1/16 of a rank's part, so that every power of two is served; "
        "--exact takes 1/13 and 346.667 GB/s (0.21 % more)"
    ]


def test_without_wishes_and_plans_the_optimum_is_taken_always() -> None:
    graph = perturbed(dgx_a100(2), 1, "cable")
    choice = chosen(graph, Request())
    assert share(choice, graph) == 1
    assert choice.forest.trees_per_root > 1000


def test_what_does_not_fit_gives_way_to_the_fewest_powers_of_two_at_99_percent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("forestcoll.verify.simulate.RANKS", 8)  # no other start is played
    graph = perturbed(dgx_a100(2), 1, "cable")
    choice = chosen(graph, Request(), RCCL)
    front = Front(graph, ALLGATHER)
    assert front.fewest(Fraction(99, 100)).trees == 7
    assert front.point(4).share < Fraction(99, 100)
    assert choice.forest.trees_per_root == 8
    (note,) = choice.notes
    assert "8 trees per root" in note
    assert "% of the optimum, which takes 4912 per root (" in note
    assert "rccl holds" in note


def test_fewest_trees_for_a_percentage() -> None:
    graph = mi250(2)
    for percent, k in ((90, 1), (96, 2), (98, 5), (99, 9), (100, 83)):
        choice = chosen(graph, Request(min_percent=Fraction(percent)))
        assert choice.forest.trees_per_root == k
        assert share(choice, graph) >= percent * PERCENT


def test_the_best_of_a_height() -> None:
    graph = mi250(1)
    choice = chosen(graph, Request(max_height=5))
    assert choice.forest.height <= 5
    assert share(choice, graph) >= Fraction(14, 15)


def test_a_budget_of_thread_blocks_and_channels() -> None:
    graph = dgx_a100(2)
    roomy = chosen(graph, Request(trees=7, instances=1), MSCCLPP).programs["mscclpp-json"]
    blocks = max(len(r.thread_blocks) for r in roomy.ranks) - 1
    choice = chosen(graph, Request(budget=Budget(blocks=blocks), instances=1), MSCCLPP)
    program = choice.programs["mscclpp-json"]
    assert max(len(r.thread_blocks) for r in program.ranks) <= blocks


def test_where_no_weights_are_good_enough_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forestcoll.compile.choose.most_chunks", lambda n: n)
    graph = torus(3, 2)
    choice = chosen(graph, Request(), MSCCLPP, collective=Collective.ALLREDUCE)
    assert not Sizes.of(choice.programs["mscclpp-json"]).powers
    (note,) = choice.notes
    assert note.startswith("no power of two is served (multiples of ")


def test_different_trees_are_counted_in_each_phase() -> None:
    forest: Forest = solve(dgx_a100(2), ALLREDUCE, None, 7)
    counts = [
        sum(t.root == root and t.phase == phase for t in forest.trees)
        for root in forest.graph.ranks
        for phase in ("broadcast", "reduce")
    ]
    assert different_trees(forest) == max(counts)


def test_the_same_call_takes_the_same_forest() -> None:
    graph = perturbed(mi250(1), 3, "cable")
    wishes = Request(min_percent=Fraction(99), budget=Budget(trees=8))
    assert chosen(graph, wishes).forest == chosen(graph, wishes).forest


def test_one_box_has_one_point() -> None:
    assert Front(dgx_a100(1), ALLGATHER).points() == (
        Point(1, Fraction(2400, 7), Fraction(1), True),
    )


@pytest.mark.parametrize("lost", ["box0/gpu0->fabric", "fabric->box0/gpu0"])
def test_whole_trees_after_a_one_way_failure_are_as_fast_as_whole_links_allow(lost: str) -> None:
    """A little faster, links in whole trees have an optimum that is too little, by the program."""
    graph = named(f"dgx-a100 boxes=4 -{lost}")
    task = analyse(graph, None)
    for k in (1, 2, 3):
        fit = fit_trees(task, k)
        u = len(graph.ranks) * k * graph.unit / fit.algbw
        less = [-(-c * u.numerator // u.denominator) - 1 for c in graph.capacity]
        kept = [e for e, c in enumerate(less) if c]
        faster = analyse(graph.keep(kept, less), None)
        assert faster.rate * faster.graph.unit / graph.unit < k
