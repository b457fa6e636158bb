"""A percentage of the optimum, asked of a forest alone where switches copy and add."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from graphs import changed, machine

from forestcoll.compile.optimum import optimum
from forestcoll.compile.synthesize import synthesize
from forestcoll.compile.verdict import matches_catalogue, verify_forest
from forestcoll.program import Collective
from forestcoll.solver.front import Front
from forestcoll.topology import Topology


@pytest.fixture(scope="module")
def pair() -> Topology:
    return machine("dgx-h100 boxes=2")


@pytest.fixture(scope="module")
def degraded(pair: Topology) -> Topology:
    """A link of one GPU to its switch 1/18 slower, an adapter of another at half of its rate."""
    return changed(pair, ["box0/gpu0-box0/nvswitch=17/18", "box0/gpu3-fabric=1/2"])


@pytest.mark.parametrize("percent", [60, 67, 99, 100])
def test_the_percentage_is_that_of_the_bound_in_the_file(pair: Topology, percent: int) -> None:
    made = synthesize(pair, "allreduce", min_percent=percent, formats=("forest",))
    assert made.forest.bound is not None
    assert made.optimum.bound == made.forest.bound
    assert made.forest.algbw >= Fraction(percent, 100) * made.forest.bound.algbw
    assert not any("of the optimum, which takes" in note for note in made.notes)


def test_no_bound_is_below_the_optimum(pair: Topology) -> None:
    some = [f"box{b}/gpu{g}" for b in range(2) for g in range(3)]
    best = optimum(pair, "broadcast", ranks=some, fabric=False)
    assert best.bound.algbw >= best.algbw


def test_plans_have_their_percentage_of_what_gpus_reach(pair: Topology) -> None:
    made = synthesize(pair, "allreduce", min_percent=99, formats=("msccl-xml",))
    assert made.forest.plain_algbw >= Fraction(99, 100) * made.plain_bound.algbw
    assert not any("of any schedule" in note for note in made.notes)


def test_a_degraded_pair_has_one_number_of_trees_and_spreads_its_sums(degraded: Topology) -> None:
    best = optimum(degraded, "allreduce", fabric=False)
    assert best.algbw == 265
    made = synthesize(degraded, "allreduce", exact=True, instances=1, formats=("msccl-xml",))
    forest = made.forest
    assert forest.plain_algbw == 265
    graph = forest.graph
    exact = Front(graph, Collective.ALLREDUCE).exact
    numbers = (forest.trees_per_root, made.optimum.trees_per_root, exact.trees)
    assert numbers == (best.trees_per_root,) * 3
    weights = dict.fromkeys(graph.ranks, 0)
    for tree in forest.trees:
        weights[tree.root] += tree.weight * (tree.phase == "reduce")
    assert sum(weights.values()) == forest.total
    assert min(weights.values()) > 0
    assert max(weights.values()) <= Fraction(2 * forest.total, forest.n)


def test_the_file_says_what_the_plan_uses() -> None:
    """GPUs copy and add: so do they in the graph that is written, and in all who read it."""
    rail = machine("rail boxes=4")
    made = synthesize(rail, "allreduce", target="mscclpp")
    best = optimum(rail, "allreduce")
    algbw, bound = Fraction(1800, 7), Fraction(8000, 31)
    assert (made.forest.algbw, made.optimum.bound.algbw, made.in_switches) == (
        algbw,
        bound,
        Fraction(800, 3),
    )
    assert best.in_switches is not None
    assert (best.bound.algbw, best.in_switches.algbw) == (bound, made.in_switches)
    forest, found = verify_forest(made.texts["forest"], "a.forest.json")
    assert not forest.graph.copies
    assert forest.bound == best.bound
    assert (found.figures["algbw"], found.figures["bound"]) == (str(algbw), str(bound))
    assert found.figures["catalogue"] is True
    other = replace(forest.graph, multicast=tuple(not gpu for gpu in forest.graph.gpu))
    assert matches_catalogue(other, forest.name) is False


def test_trees_alone_may_use_the_switches() -> None:
    """Then the graph says so, and the bound is that of all schedules."""
    made = synthesize(machine("rail boxes=4"), "allreduce", formats="forest")
    assert made.forest.graph.copies
    assert made.forest.algbw == made.optimum.bound.algbw == Fraction(800, 3)
    assert made.in_switches is None
    alike = synthesize(machine("dgx-h100"), "allgather", formats="forest")
    assert not alike.forest.graph.copies
