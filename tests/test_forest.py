"""Forests: what check accepts and refuses, and the file that carries them."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from damages import damage, rows
from random_graphs import CHECKER, ask_stranger, stranger

from forestcoll import solver
from forestcoll.common.errors import ForestError
from forestcoll.compile.verdict import verify_text
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule import certificate, forest_file
from forestcoll.schedule.forest import Bound, Forest, Tree, check


def star(gpus: int = 3, bandwidth: int = 12, multicast: bool = False) -> CapacityGraph:
    """GPUs 0.. around one switch."""
    names = (*(f"gpu{i}" for i in range(gpus)), "switch")
    up = [((i, gpus), Fraction(bandwidth)) for i in range(gpus)]
    down = [((gpus, i), Fraction(bandwidth)) for i in range(gpus)]
    flags = (*(False for _ in range(gpus)), multicast)
    return CapacityGraph(
        names=names,
        gpu=(*(True for _ in range(gpus)), False),
        multicast=flags,
        aggregation=flags,
        ranks=tuple(range(gpus)),
    ).with_bandwidths(dict(up + down))


def chain_forest(graph: CapacityGraph, collective: Collective = Collective.ALLGATHER) -> Forest:
    """One chain a root, round the star: every link carries N - 1 shares of 1/N."""
    n = switch = len(graph.ranks)
    chains = [[(r + i) % n for i in range(n)] for r in range(n)]
    down = [
        Tree(nodes[0], "broadcast", 1, tuple((u, switch, v) for u, v in pairwise(nodes)))
        for nodes in chains
    ]
    up = [tree.reverse() for tree in down]
    trees = (
        *(up if "reduce" in collective.phases else ()),
        *(down if "broadcast" in collective.phases else ()),
    )
    bound = None
    if collective is Collective.ALLGATHER:
        bound = Bound(Fraction(12 * n, n - 1), "cut", (frozenset(range(1, n + 1)),))
    return Forest("star", graph, collective, n, trees, bound)


def test_star_allgather_is_optimal() -> None:
    forest = chain_forest(star())
    assert check(forest) == 18
    assert certificate.check(forest) == (18, 18)
    assert forest.height == 2
    assert forest.trees_per_root == 1


@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter", "allreduce"])
def test_file_round_trip(collective: str, tmp_path: Path) -> None:
    forest = chain_forest(star(), Collective(collective))
    text = forest_file.dumps(forest)
    back = forest_file.loads(text)
    assert back == forest
    assert forest_file.dumps(back) == text
    file = tmp_path / "x.forest.json"
    file.write_text(text)
    assert forest_file.load(file) == forest
    if not CHECKER.exists():
        pytest.skip("the independent checker of the forest contract is not here")
    assert f"algbw={forest.algbw} " in ask_stranger(file, "--collective", collective)


def test_multicast_counts_one_copy() -> None:
    graph = star(4, multicast=True)
    trees = tuple(
        Tree(r, "broadcast", 1, tuple((r, 4, v) for v in range(4) if v != r)) for r in range(4)
    )
    forest = Forest("star", graph, Collective.ALLGATHER, 4, trees)
    loads = dict(zip(graph.ends, forest.loads(), strict=True))
    assert loads[0, 4] == 1  # one copy up
    assert loads[4, 0] == 3
    plain = Forest("star", star(4), Collective.ALLGATHER, 4, trees)
    assert max(plain.loads()) == 3
    assert plain.loads()[0] == 3


def test_symmetry_expands_to_all_images() -> None:
    forest = chain_forest(star())
    data = json.loads(forest_file.dumps(forest))
    data["trees"] = data["trees"][:1]
    data["symmetry"] = {"generators": [{"gpu0": "gpu1", "gpu1": "gpu2", "gpu2": "gpu0"}]}
    back = forest_file.loads(json.dumps(data))
    assert {t.root for t in back.expand().trees} == {0, 1, 2}
    assert check(back) == 18


def test_schema_file_is_the_model() -> None:
    stored = json.loads(forest_file.SCHEMA_PATH.read_text())
    assert stored == forest_file.schema()


@pytest.mark.parametrize(("change", "message"), rows("forest"))
def test_false_files_are_refused(change: str, message: str) -> None:
    data = damage(json.loads(forest_file.dumps(chain_forest(star()))), change)
    with pytest.raises(ForestError, match=message):
        verify_text(json.dumps(data), "x")


def unbalanced() -> Forest:
    """One link in and two out: no cut is reachable, the dual proves the optimum."""
    bandwidths = {(0, 3): 10, (3, 1): 10, (3, 2): 10, (1, 0): 7, (2, 0): 7, (1, 2): 3, (2, 1): 3}
    graph = CapacityGraph(
        names=("g0", "g1", "g2", "w"),
        gpu=(True, True, True, False),
        multicast=(False,) * 4,
        aggregation=(False,) * 4,
        ranks=(0, 1, 2),
    ).with_bandwidths({pair: Fraction(b) for pair, b in bandwidths.items()})
    return solver.solve(graph, Collective.ALLGATHER, name="asymmetric")


@pytest.mark.parametrize(("change", "message"), rows("forest_dual"))
def test_a_cut_beside_the_optimum_is_checked_too(change: str, message: str) -> None:
    file = json.loads(forest_file.dumps(unbalanced()))
    forest_file.loads(json.dumps(file))
    with pytest.raises(ForestError, match=message):
        forest_file.loads(json.dumps(damage(file, change)))


def test_unbalanced_switch_states_a_cut_and_the_optimum(tmp_path: Path) -> None:
    forest = unbalanced()
    assert forest.bound is not None
    assert forest.bound.method == "linear-program"
    assert forest.algbw == forest.bound.algbw == 12
    text = forest_file.dumps(forest)
    stated = json.loads(text)["bound"]
    assert stated["optimum"] == "12"
    assert Fraction(stated["algbw"]) > 12
    assert forest_file.loads(text) == forest
    assert certificate.check(forest) == (12, 12)
    stranger(forest, tmp_path, "--algbw", "12")
