"""optimum() and solve(): the numbers of the design, every collective, and graphs made to hurt."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import edits
import graphs
import pytest
from graphs import build, dgx_a100, mi250, star
from random_graphs import judge, random_graph

from forestcoll.common import errors
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import BY_TREES, Collective
from forestcoll.schedule.forest import Forest, Tree
from forestcoll.solver import optimum, solve
from forestcoll.solver.fixed_trees import fit_capacities
from forestcoll.solver.task import analyse

ALLGATHER, REDUCE_SCATTER, ALLREDUCE = (
    Collective.ALLGATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALLREDUCE,
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


ROWS = (edits.ROWS / "solver.txt").read_text().splitlines()


def request(text: str) -> tuple[CapacityGraph, Collective, int | None, Any]:
    """Graph, collective, root and trees of `GRAPH; COLLECTIVE root=N trees=N`."""
    made, _, words = text.partition("; ")
    collective, *more = words.split()
    given = {name: int(value) for name, value in (word.split("=") for word in more)}
    graph = eval(made, {**vars(graphs), "replace": replace})
    return graph, Collective(collective), given.get("root"), given.get("trees", "auto")


@pytest.mark.parametrize("row", [row for row in ROWS if row.endswith(("hop", "hops"))])
def test_the_numbers_of_the_design(row: str) -> None:
    asked, _, told = row.partition(" -> ")
    algbw, _, _, k, *_, height, _ = told.split()
    graph, collective, root, trees = request(asked)
    forest, best = solved(graph, collective, root, trees), optimum(graph, collective, root)
    roots = 1 if collective.has_root else len(graph.ranks)
    assert forest.algbw == Fraction(algbw)
    assert forest.total == int(k) * roots
    assert forest.height <= int(height)
    assert forest.root == (-1 if root is None else root)
    if trees == "auto":
        assert best.algbw == forest.algbw == best.rate * roots
        assert best.trees_per_root == int(k)


@pytest.mark.parametrize(
    ("act", "graph", "algbw", "k", "seconds"),
    [
        (optimum, dgx_a100(128), Fraction(25600, 127), 1, 10),
        (optimum, graphs.torus(8, 8, 16), Fraction(102400, 341), 2, 10),
        (solve, mi250(2), Fraction(5312, 15), 83, 2),
        (solve, dgx_a100(8), Fraction(1600, 7), 1, 2),
    ],
    ids=["128 A100 boxes", "8x8x16 torus", "2 MI250 boxes", "8 A100 boxes"],
)
def test_speed(
    act: Callable[..., Any], graph: CapacityGraph, algbw: Fraction, k: int, seconds: float
) -> None:
    """A thousand GPUs, and forests that are promised in under 2 s."""
    start = time.process_time()
    best = act(graph, ALLGATHER)
    assert time.process_time() - start < seconds
    assert (best.algbw, best.trees_per_root) == (algbw, k)


@pytest.mark.parametrize("seed", range(0, 60, 10))
@pytest.mark.parametrize("k", [1, 2, 5])
def test_fixed_k_takes_the_least_feasible_u(seed: int, k: int) -> None:
    """On direct links no rounding unbalances a switch, so any smaller U must break a cut."""
    graph = random_graph(seed, "direct")
    _, capacity, u = fit_capacities(analyse(graph, None), k)
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


@pytest.mark.parametrize("seed", range(30))
def test_fixed_k_works_everywhere(seed: int) -> None:
    graph, collective = random_graph(seed), BY_TREES[seed % len(BY_TREES)]
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
    graph = star(7919, 7907, 104729, 1299709)
    assert solved(graph).total == 4 * optimum(graph, ALLGATHER).trees_per_root > 4 * 7000


def test_gpus_behind_several_layers_of_switches() -> None:
    """gpu - leaf - spine - core: paths cross up to five switches, and none twice."""
    links = [(f"g{g}", f"leaf{g // 2}switch", 10) for g in range(8)]
    links += [(f"leaf{leaf}switch", f"spine{leaf // 2}switch", 20) for leaf in range(4)]
    links += [(f"spine{spine}switch", "coreswitch", 40) for spine in range(2)]
    forest = solved(build(links))
    assert forest.algbw == Fraction(80, 7)
    assert max(len(path) for tree in forest.trees for path in tree.edges) <= 7


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


@pytest.mark.parametrize("row", [row for row in ROWS if "Error: " in row])
def test_what_cannot_be_done_is_refused(row: str) -> None:
    asked, _, told = row.partition(" -> ")
    kind, _, words = told.partition(": ")
    graph, collective, root, trees = request(asked)
    with pytest.raises(getattr(errors, kind), match=f"^{words}"):
        solve(graph, collective, root, trees)


@pytest.mark.parametrize("collective", [ALLGATHER, ALLREDUCE])
def test_progress_rises_from_0_to_1(collective: Collective) -> None:
    seen: list[tuple[str, float]] = []
    solve(dgx_a100(1), collective, progress=lambda *step: seen.append(step))
    parts = [part for _, part in seen]
    assert parts == sorted(parts)
    assert parts[0] == 0
    assert parts[-1] == 1
    assert {"optimum", "packing", "checking"} <= {stage for stage, _ in seen}
