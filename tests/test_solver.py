"""optimum() and solve(): the numbers of the design, every collective, and graphs made to hurt."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace
from fractions import Fraction

import pytest
from graphs import build, dgx_a100, mi250, ring, torus
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import judge, random_graph

from forestcoll.common.errors import InfeasibleError, UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import BY_TREES, Collective
from forestcoll.schedule.forest import Forest, Tree
from forestcoll.solver import optimum, solve
from forestcoll.solver.fixed_trees import fixed_capacities
from forestcoll.solver.task import analyse

ALLGATHER, REDUCE_SCATTER, ALLREDUCE, BROADCAST, REDUCE = (
    Collective.ALLGATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALLREDUCE,
    Collective.BROADCAST,
    Collective.REDUCE,
)


def solved(
    graph: CapacityGraph,
    collective: Collective = ALLGATHER,
    root: int | None = None,
    trees: int | str = "auto",
) -> Forest:
    """The forest, judged by the tests' own arithmetic and held against its optimum."""
    forest = solve(graph, collective, root, trees)  # type: ignore[arg-type]
    best = optimum(graph, collective, root)
    reached = judge(forest)
    assert forest.bound == best.bound
    if trees == "auto":
        assert reached == best.algbw
    assert reached <= best.bound.algbw
    return forest


TABLE = [
    ("1 A100 box", dgx_a100(1), Fraction(2400, 7), 1, 1),
    ("2 A100 boxes", dgx_a100(2), Fraction(1040, 3), 13, 2),
    ("2 A100 boxes, 2 planes", dgx_a100(2, planes=2), Fraction(1040, 3), 13, 2),
    ("4 A100 boxes", dgx_a100(4), Fraction(800, 3), 1, 2),
    ("8 A100 boxes", dgx_a100(8), Fraction(1600, 7), 1, 2),
    ("1 MI250 box", mi250(1), Fraction(2400, 7), 3, 5),
    ("2 MI250 boxes", mi250(2), Fraction(5312, 15), 83, 8),
    ("half of 2 MI250 boxes", mi250(2, dies=8), Fraction(208), 13, 7),
    ("4x4x4 torus", torus(4, 4, 4), Fraction(6400, 21), 2, 6),
]


@pytest.mark.parametrize(
    ("graph", "algbw", "k", "height"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_the_numbers_of_the_design(
    graph: CapacityGraph, algbw: Fraction, k: int, height: int
) -> None:
    best = optimum(graph, ALLGATHER)
    assert (best.algbw, best.trees_per_root) == (algbw, k)
    assert best.rate == algbw / len(graph.ranks)
    forest = solved(graph)
    assert forest.algbw == algbw
    assert forest.total == k * len(graph.ranks)
    assert forest.height <= height


@pytest.mark.parametrize(
    ("graph", "algbw", "k"),
    [
        (dgx_a100(128), Fraction(25600, 127), 1),
        (torus(8, 8, 16), Fraction(102400, 341), 2),
    ],
    ids=["128 A100 boxes", "8x8x16 torus"],
)
def test_the_optimum_of_a_thousand_gpus(graph: CapacityGraph, algbw: Fraction, k: int) -> None:
    start = time.monotonic()
    best = optimum(graph, ALLGATHER)
    assert (best.algbw, best.trees_per_root) == (algbw, k)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("k", "algbw"), [(1, 320), (2, Fraction(1024, 3)), (5, Fraction(8000, 23)), (7, 350)]
)
def test_fixed_k_on_two_mi250_boxes(k: int, algbw: Fraction) -> None:
    forest = solved(mi250(2), trees=k)
    assert forest.algbw == algbw
    assert forest.total == 32 * k


def test_fixed_k_is_optimal_at_every_multiple_of_the_automatic_k() -> None:
    for factor in (1, 2, 5):
        assert solved(dgx_a100(2), trees=13 * factor).algbw == Fraction(1040, 3)


@pytest.mark.parametrize("seed", [s for s in range(60) if s % 5 in (0, 1)])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_fixed_k_takes_the_least_feasible_u(seed: int, k: int) -> None:
    """On direct links no rounding unbalances a switch, so any smaller U must break a cut."""
    graph = random_graph(seed, "direct")
    _, capacity, u = fixed_capacities(analyse(graph, None), k)
    assert capacity == [math.floor(u * c) for c in graph.capacity]
    before = max(Fraction(math.ceil(u * c) - 1, c) for c in graph.capacity)
    less = [math.floor(before * c) for c in graph.capacity]
    starved = min(
        sum(
            c for t, h, c in zip(graph.tail, graph.head, less, strict=True) if t in s and h not in s
        )
        - k * len(s)
        for size in range(1, graph.n)
        for s in map(frozenset, itertools.combinations(range(graph.n), size))
    )
    assert starved < 0
    assert solved(graph, trees=k).algbw >= len(graph.ranks) * k / u * graph.unit


@pytest.mark.parametrize("collective", list(BY_TREES))
@pytest.mark.parametrize("seed", range(30))
def test_fixed_k_works_everywhere(seed: int, collective: Collective) -> None:
    graph = random_graph(seed)
    root = seed % len(graph.ranks) if collective.has_root else None
    for k in (1, 3):
        forest = solved(graph, collective, root, k)
        roots = 1 if collective.has_root else len(graph.ranks)
        assert forest.total == k * roots


def test_fixed_k_survives_rounding_that_unbalances_a_switch() -> None:
    """floor(U b) of 3 + 3 + 2 in and 4 + 4 out: what is too much on one side is trimmed."""
    links = [(f"g{i}", "switch", c) for i, c in enumerate((3, 3, 2))]
    links += [("switch", "g0", 4), ("switch", "g1", 2), ("switch", "g2", 2)]
    graph = build(links, both=False)
    best = optimum(graph, ALLGATHER).algbw
    for k in range(1, 12):
        forest = solved(graph, trees=k)
        assert best / 3 <= forest.algbw <= best


@pytest.mark.parametrize(
    ("collective", "root", "algbw"),
    [
        (REDUCE_SCATTER, None, Fraction(1040, 3)),
        (ALLREDUCE, None, Fraction(520, 3)),
        (BROADCAST, 5, Fraction(200)),
        (REDUCE, 5, Fraction(200)),
    ],
)
def test_every_collective_on_two_a100_boxes(
    collective: Collective, root: int | None, algbw: Fraction
) -> None:
    forest = solved(dgx_a100(2), collective, root)
    assert forest.algbw == algbw == optimum(dgx_a100(2), collective, root).algbw
    assert forest.root == (-1 if root is None else root)
    assert forest.height <= 3


def test_allreduce_on_a_symmetric_graph_runs_the_same_trees_twice() -> None:
    forest = solved(mi250(1), ALLREDUCE)
    turned = {
        Tree(t.root, "broadcast", t.weight, tuple(p[::-1] for p in reversed(t.edges)))
        for t in forest.trees
        if t.phase == "reduce"
    }
    assert turned == {t for t in forest.trees if t.phase == "broadcast"}


def test_allreduce_where_the_two_directions_differ() -> None:
    """Allgather and reduce-scatter have different optima and k, and together they reach more."""
    links = [("a", "b", 4), ("b", "c", 4), ("c", "a", 1), ("a", "c", 3), ("b", "a", 5)]
    links.append(("c", "b", 4))
    graph = build(links, both=False)
    gather, scatter = optimum(graph, ALLGATHER), optimum(graph, REDUCE_SCATTER)
    both = optimum(graph, ALLREDUCE)
    assert (gather.algbw, gather.trees_per_root) == (Fraction(9), 3)
    assert (scatter.algbw, scatter.trees_per_root) == (Fraction(15, 2), 5)
    assert both.algbw == both.bound.algbw == 5 > 1 / (1 / gather.algbw + 1 / scatter.algbw)
    assert judge(solve(graph, ALLREDUCE)) == 5
    assert 1 / (1 / gather.algbw + 1 / scatter.algbw) <= judge(solve(graph, ALLREDUCE, None, 15))


def test_two_ranks_and_one_link_each_way() -> None:
    graph = build([("a", "b", 3), ("b", "a", 2)], both=False)
    assert solved(graph).algbw == 4  # b sends half of the data at 2 GB/s
    assert solved(graph, BROADCAST, 0).algbw == 3
    assert solved(graph, BROADCAST, 1).algbw == 2
    assert solved(graph, REDUCE, 0).algbw == 2


def test_rings() -> None:
    assert solved(ring(5)).algbw == Fraction(5, 2)
    assert solved(ring(5)).height == 2
    one_way = solved(ring(5, both=False))
    assert one_way.algbw == Fraction(5, 4)
    assert one_way.height == 4


def test_large_primes() -> None:
    """k is a large prime; nothing counts units one by one."""
    p, q = 1_000_000_007, 998_244_353
    graph = build([("a", "b", p), ("b", "c", q), ("c", "a", p), ("a", "c", q)], both=False)
    best = optimum(graph, ALLGATHER)
    assert best.trees_per_root > 10**8
    forest = solved(graph)
    assert forest.algbw == best.algbw
    assert len(forest.trees) < 20


def test_a_large_k_on_a_switch() -> None:
    links = [(f"g{i}", "switch", c) for i, c in enumerate((7919, 7907, 104729, 1299709))]
    forest = solved(build(links))
    assert forest.total == 4 * optimum(build(links), ALLGATHER).trees_per_root > 4 * 7000


def test_gpus_behind_several_layers_of_switches() -> None:
    """gpu - leaf - spine - core: paths cross up to five switches, and none twice."""
    links = []
    for g in range(8):
        links += [(f"g{g}", f"leaf{g // 2}switch", 10)]
    for leaf in range(4):
        links += [(f"leaf{leaf}switch", f"spine{leaf // 2}switch", 20)]
    for spine in range(2):
        links += [(f"spine{spine}switch", "coreswitch", 40)]
    forest = solved(build(links))
    assert forest.algbw == Fraction(80, 7)
    lengths = {len(path) for tree in forest.trees for path in tree.edges}
    assert max(lengths) <= 7
    assert all(len(set(path)) == len(path) for tree in forest.trees for path in tree.edges)


def test_rails_do_not_go_up_to_the_spine_for_nothing() -> None:
    """Each rail switch joins what hangs on it; the spine above would only send it back."""
    links = []
    for b, i in itertools.product(range(2), range(4)):
        links.append((f"box{b}/gpu{i}", f"box{b}/nvswitch", 300))
        links.append((f"box{b}/gpu{i}", f"rail{i}switch", 25))
    links += [(f"rail{i}switch", "spineswitch", 50) for i in range(4)]
    forest = solved(build(links))
    assert {len(path) for tree in forest.trees for path in tree.edges} == {3}


def test_idle_gpus_relay_like_switches() -> None:
    graph = mi250(1)
    half = replace(graph, ranks=graph.ranks[:8])
    forest = solved(half)
    alone = optimum(mi250(1, dies=8), ALLGATHER).algbw
    assert forest.algbw > alone  # the idle dies help
    inner = {v for tree in forest.trees for path in tree.edges for v in path[1:-1]}
    assert inner
    assert inner <= set(graph.ranks[8:])


def test_a_switch_with_different_directions() -> None:
    """Two links in, one out of the switch, next to direct links: the plain cut is out of reach."""
    links = [("a", "switch", 10), ("b", "switch", 10), ("switch", "c", 10), ("c", "switch", 3)]
    links += [("switch", "a", 7), ("switch", "b", 7), ("a", "b", 2), ("b", "c", 2), ("c", "a", 2)]
    graph = build(links, both=False)
    for collective in (ALLGATHER, REDUCE_SCATTER):
        solved(graph, collective)
        solved(graph, collective, trees=2)
    for root in range(3):
        solved(graph, BROADCAST, root)
        solved(graph, REDUCE, root)


def test_more_trees_make_a_broadcast_through_a_switch_lower() -> None:
    star = build([(f"g{i}", "switch", 50) for i in range(8)])
    assert solved(star, BROADCAST, 0).height == 7  # one tree: a chain
    assert solved(star, BROADCAST, 0, trees=7).height == 2
    assert solved(star, BROADCAST, 0, trees=7).algbw == 50


def test_ranks_that_cannot_reach_each_other_are_refused_with_the_cut() -> None:
    graph = build([("a", "b", 1), ("c", "d", 1)])
    text = r"cannot reach .*: no link leaves \{.*\}; add a link, or leave these ranks out"
    with pytest.raises(InfeasibleError, match=text):
        optimum(graph, ALLGATHER)
    with pytest.raises(
        InfeasibleError, match=r"ranks a, b cannot reach c, d: no link leaves \{a, b\}"
    ):
        solve(graph, BROADCAST, 0)
    one_way = build([("a", "b", 1), ("b", "c", 1)], both=False)
    with pytest.raises(InfeasibleError, match=r"ranks? (b, )?c cannot reach"):
        solve(one_way, ALLGATHER)
    assert solved(one_way, BROADCAST, 0).algbw == 1
    with pytest.raises(InfeasibleError):
        solve(one_way, REDUCE, 0)
    assert solved(one_way, REDUCE, 2).algbw == 1


def test_long_lists_of_ranks_are_cut_short() -> None:
    names = [f"g{i}" for i in range(9)]
    graph = build([(u, v, 1) for u, v in itertools.pairwise(names)] + [("x", "y", 1)])
    with pytest.raises(InfeasibleError, match="and 3 more"):
        optimum(graph, ALLGATHER)


@pytest.mark.parametrize(
    ("collective", "root", "trees", "message"),
    [
        (BROADCAST, None, "auto", "broadcast needs a root, a rank number from 0 to 7"),
        (REDUCE, 8, "auto", "reduce needs a root, a rank number from 0 to 7"),
        (BROADCAST, -1, "auto", "needs a root"),
        (ALLGATHER, 0, "auto", "allgather has no root; leave the root out"),
        (ALLGATHER, None, 0, "0 trees per root: must be at least 1"),
        (ALLREDUCE, None, -3, "-3 trees per root"),
        (ALLGATHER, None, 2**62, "too many for exact 64-bit flows"),
    ],
)
def test_wrong_requests(
    collective: Collective, root: int | None, trees: int | str, message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        solve(dgx_a100(1), collective, root, trees)  # type: ignore[arg-type]


def test_one_rank_is_refused() -> None:
    graph = replace(dgx_a100(1), ranks=(0,))
    with pytest.raises(UnsupportedError, match="at least 2 ranks, there is only 1"):
        optimum(graph, ALLGATHER)


def test_capacities_beyond_64_bits_are_refused() -> None:
    graph = build([("a", "b", 2**60), ("b", "c", 2**60 - 1)])
    with pytest.raises(UnsupportedError, match=r"give bandwidths with fewer digits"):
        optimum(graph, ALLGATHER)


@pytest.mark.parametrize("collective", [ALLGATHER, ALLREDUCE])
def test_progress_rises_from_0_to_1(collective: Collective) -> None:
    seen: list[tuple[str, float]] = []
    solve(dgx_a100(1), collective, progress=lambda *step: seen.append(step))
    parts = [part for _, part in seen]
    assert parts == sorted(parts)
    assert parts[0] == 0
    assert parts[-1] == 1
    assert {"optimum", "packing", "checking"} <= {stage for stage, _ in seen}


def test_the_same_question_has_the_same_answer() -> None:
    assert solve(mi250(1), ALLGATHER) == solve(mi250(1), ALLGATHER)


@pytest.mark.parametrize(("boxes", "graph"), [(2, mi250(2)), (8, dgx_a100(8))])
def test_speed(boxes: int, graph: CapacityGraph) -> None:
    """Two MI250 boxes and eight A100 boxes, each promised in under 2 s."""
    start = time.process_time()
    solve(graph, ALLGATHER)
    assert time.process_time() - start < 2, f"{boxes} boxes took too long"


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(500, 10**6), collective=st.sampled_from(BY_TREES))
def test_random_graphs_reach_their_bound(seed: int, collective: Collective) -> None:
    graph = random_graph(seed)
    root = seed % len(graph.ranks) if collective.has_root else None
    best = optimum(graph, collective, root)
    forest = solve(graph, collective, root)
    reached = judge(forest)
    assert reached >= best.algbw
    assert reached <= best.bound.algbw
    if collective is not ALLREDUCE:
        assert reached == best.bound.algbw
