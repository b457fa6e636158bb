"""Joint allreduce over the same low trees in both phases: fast, low, and within every link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import pytest
from graphs import build, dgx_a100
from irregular_fabrics import small
from random_graphs import validate
from test_rehanging import ASKED, one_each

from forestcoll import solver
from forestcoll.graph.kernel import _kernel
from forestcoll.program import Collective
from forestcoll.schedule import certificate
from forestcoll.schedule.forest import Tree
from forestcoll.solver.allreduce import fix_joint, plan
from forestcoll.solver.flows.joint import joint
from forestcoll.solver.joint_boxes import _Machine, joint_of_boxes
from forestcoll.solver.partitions import allreduce_bound
from forestcoll.solver.shallow.boxes import find_boxes
from forestcoll.solver.shallow.height import least_height
from forestcoll.solver.shallow.rehanging import rehang_mirrored
from forestcoll.solver.shares import apportion


def both_ways(trees: Sequence[Tree]) -> Counter[tuple[int, int]]:
    """How many trees cross each link, as they are and turned round together."""
    loads: Counter[tuple[int, int]] = Counter()
    for tree in trees:
        for path in tree.edges:
            loads.update(dict.fromkeys(pairwise(path), tree.weight))
            loads.update(dict.fromkeys(pairwise(path[::-1]), tree.weight))
    return loads


def test_boxes_with_fewer_adapters_sum_less_and_nobody_waits_for_them() -> None:
    """Reduce-scatter, then allgather is as slow as the slowest box; together they are not."""
    graph = small("mixed-generations", seed=1)
    bound = allreduce_bound(graph)
    found = joint_of_boxes(graph, bound)
    assert found is not None
    same = solver.optimum(graph, Collective.ALLGATHER).algbw / 2
    assert same < Fraction(3, 4) * bound.algbw
    assert Fraction(99, 100) * bound.algbw <= found.algbw <= bound.algbw
    supply = list(found.supply)
    u = sum(supply) * graph.unit / found.algbw
    capacity = [int(c * u) for c in graph.capacity]
    assert validate(graph, capacity, supply, found.trees) <= 3
    limits = dict(zip(graph.ends, capacity, strict=True))
    assert all(load <= limits[ends] for ends, load in both_ways(found.trees).items())


@pytest.mark.parametrize("seed", [1, 2])
def test_the_forest_has_the_same_trees_in_both_phases(seed: int) -> None:
    graph = small("mixed-generations", seed)
    forest = solver.solve(graph, Collective.ALLREDUCE)
    algbw, bound = certificate.check(forest)
    chosen = plan(graph)
    assert chosen.joint is not None
    assert algbw == chosen.algbw == chosen.joint.algbw
    assert bound is not None
    assert algbw >= Fraction(99, 100) * bound
    assert ("both phases over the same" in chosen.note) == (algbw < bound)
    down = {tree for tree in forest.trees if tree.phase == "broadcast"}
    up = {tree.reverse() for tree in forest.trees if tree.phase == "reduce"}
    assert up == down
    few = sum(chosen.joint.supply) // len(graph.ranks)
    assert fix_joint(graph, few + 1) == chosen.joint
    assert fix_joint(graph, few) in (None, chosen.joint)


def test_what_boxes_reach_is_the_joint_optimum() -> None:
    """The program with a node for each box, against the one with all GPUs and links."""
    links = [(f"box{b}/gpu{i}", f"box{b}/nvswitch", 400) for b in range(4) for i in range(4)]
    links += [
        (f"box{b}/gpu{i}", "fabric", 20)
        for b in range(4)
        for i in range(4)
        if (b, i) not in ((0, 0), (1, 2))
    ]
    graph = build(links)
    machine = _Machine(graph, find_boxes(graph, graph.capacity, (0,) * graph.n))
    found = machine.shares()
    assert found is not None
    assert found[0] * graph.unit == joint(graph).algbw
    assert found[1][0] < found[1][2]
    assert sum(found[1]) == 1
    wanted = machine.supplies(*found)
    assert wanted is not None
    _, supply = wanted
    names = {graph.names[v] for v, units in enumerate(supply) if units}
    assert not names & {"box0/gpu0", "box1/gpu2"}  # they have no way out of their own
    assert sum(supply) >= 12


@pytest.mark.parametrize("total", [1, 7, 100])
def test_parts_are_rounded_to_whole_units(total: int) -> None:
    parts = [Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)]
    units = apportion(parts, total)
    assert sum(units) == total
    assert all(abs(u - part * total) < 1 for u, part in zip(units, parts, strict=True))


def test_small_and_switchless_fabrics_are_left_to_the_general_program() -> None:
    for graph in (dgx_a100(2), small("torus")):
        assert joint_of_boxes(graph, allreduce_bound(graph)) is None


def test_a_link_that_lacks_its_way_back_serves_neither_phase() -> None:
    graph = small("rails")
    cut = next(e for e, (t, h) in enumerate(graph.ends) if graph.gpu[t] and graph.box(h) == "")
    keep = [e for e in range(len(graph.tail)) if e != cut]
    oneway = graph.keep(keep)
    supply = one_each(graph)
    supply[graph.tail[cut]] = 0
    room = [4 * len(graph.ranks)] * len(keep)
    trees = rehang_mirrored(oneway, room, supply, 3)
    assert trees is not None
    back = (graph.head[cut], graph.tail[cut])
    assert back not in both_ways(trees)


def test_links_that_share_a_capacity_hold_no_more_together() -> None:
    """Two ranks, a switch: a tree each way is two over each cable."""
    asked = ASKED | {"tail": [0, 2, 1, 2], "head": [2, 1, 2, 0], "units": [(0, 1), (1, 1)]}
    for room, twin, overload in ((1, [], 0), (1, [3, 2, 1, 0], 2), (2, [3, 2, 1, 0], 0)):
        given = asked | {"capacity": [room] * 4, "twin": twin}
        assert _kernel.rehang(*given.values())[0] == overload


def test_height_counts_from_roots_only() -> None:
    """A GPU behind another one that has no data of its own is near enough to everybody."""
    graph = build(
        [
            ("a/gpu0", "a/gpu1", 99),
            ("b/gpu0", "b/gpu1", 99),
            ("a/gpu1", "fabric", 9),
            ("b/gpu1", "fabric", 9),
        ]
    )
    every = one_each(graph)
    ends = [int(graph.names[v].endswith("gpu1")) for v in range(graph.n)]
    assert least_height(graph, graph.capacity, every) == 3
    assert least_height(graph, graph.capacity, ends) == 2
