"""Bounds of allreduce: sound against the joint linear program, tight where they should be."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction

import pytest
import reference
from graphs import build, dgx_a100, mi250, ring, torus
from random_graphs import random_graph, starved_graph
from random_problems import optimum_written_out

from forestcoll import solver
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule.certificate import check_parts
from forestcoll.schedule.forest import Bound
from forestcoll.solver.partitions import allreduce_bound


def proven(graph: CapacityGraph) -> Bound:
    bound = allreduce_bound(graph)
    assert check_parts(graph, bound, Collective.ALLREDUCE) == bound.algbw
    return bound


def both_phases(graph: CapacityGraph) -> Fraction:
    """GB/s of a reduce-scatter and then an allgather, each at its own optimum."""
    out, back = reference.plain_cut(graph)[0], reference.plain_cut(graph.reverse())[0]
    return graph.unit * len(graph.ranks) / (1 / out + 1 / back)


@pytest.mark.parametrize(
    ("graph", "algbw"),
    [
        (dgx_a100(1), Fraction(1200, 7)),
        (dgx_a100(2), Fraction(520, 3)),
        (dgx_a100(2, planes=2), Fraction(520, 3)),
        (dgx_a100(4), Fraction(400, 3)),
        (dgx_a100(8), Fraction(800, 7)),
        (mi250(1), Fraction(1200, 7)),
        (mi250(2), Fraction(2656, 15)),
        (torus(4, 4), Fraction(8 * 200, 15)),
        (ring(6), Fraction(6, 5)),
        (ring(2), Fraction(2)),
    ],
    ids=[
        "a100",
        "a100x2",
        "planes",
        "a100x4",
        "a100x8",
        "mi250",
        "mi250x2",
        "torus",
        "ring",
        "pair",
    ],
)
def test_tight_for_the_same_trees_both_ways(graph: CapacityGraph, algbw: Fraction) -> None:
    """Reduce-scatter and allgather, one after the other, reach the bound: it is the optimum."""
    assert both_phases(graph) == algbw
    assert proven(graph).algbw == algbw


def test_a_cut_bounds_where_ranks_can_add_in_the_middle() -> None:
    """The inner nodes of a line add up what passes: only one link's width counts."""
    bound = proven(build([("a", "b", 3), ("b", "c", 3)]))
    assert bound.algbw == 3
    assert bound.method == "cut"


def test_1024_gpus_take_no_more_than_a_few_seconds() -> None:
    graph = dgx_a100(128, planes=8)
    start = time.perf_counter()
    assert proven(graph).algbw == Fraction(12800, 127)
    assert time.perf_counter() - start < 10  # 1 s on an idle core


# --------------------------------------------------------------------------- soundness


def test_never_below_the_joint_optimum_and_mostly_equal() -> None:
    tried = reached = 0
    for seed in range(200):
        graph = random_graph(seed) if seed % 4 else starved_graph(seed)
        if graph.n > 7:
            continue
        best, bound = optimum_written_out(graph, Collective.ALLREDUCE), float(proven(graph).algbw)
        assert best <= bound * (1 + 1e-7), seed
        tried += 1
        reached += best == pytest.approx(bound, rel=1e-7)
    assert tried >= 75
    assert reached >= 0.8 * tried


@pytest.mark.parametrize("seed", [553, 683, 823, 1583])
def test_the_program_proves_what_no_likely_partition_does(seed: int) -> None:
    graph = random_graph(seed)
    best = solver.optimum(graph, Collective.ALLREDUCE)
    assert best.algbw == best.bound.algbw < proven(graph).algbw
    assert optimum_written_out(graph, Collective.ALLREDUCE) == pytest.approx(
        float(best.algbw), rel=1e-7
    )


def test_switches_that_copy_and_add_raise_the_bound() -> None:
    """One star of 8: each GPU's link carries all data once up and once down, and no more."""
    graph = dgx_a100(1)
    able = tuple(not gpu for gpu in graph.gpu)
    both = proven(replace(graph, multicast=able, aggregation=able))
    assert both.algbw == 300
    one = proven(replace(graph, multicast=able))
    assert Fraction(1200, 7) <= one.algbw < 300


def test_such_switches_inside_a_box_do_not_raise_it() -> None:
    graph = dgx_a100(4)
    able = tuple(name.endswith("nvswitch") for name in graph.names)
    assert proven(replace(graph, multicast=able, aggregation=able)).algbw == Fraction(400, 3)


# ------------------------------------------------------------------------- the certificate


def uneven() -> CapacityGraph:
    links = [
        ("a", "b", 2),
        ("b", "a", 3),
        ("b", "c", 5),
        ("c", "b", 7),
        ("c", "a", 1),
        ("a", "c", 1),
    ]
    return build(links, both=False)


def cut_bound(*nodes: int) -> Bound:
    return Bound(Fraction(0), "cut", (frozenset(nodes),))


def test_a_cut_is_recomputed_for_each_collective() -> None:
    graph, bound = uneven(), cut_bound(0, 1)  # leaving 1 + 5, entering 1 + 7
    assert check_parts(graph, bound, Collective.ALLGATHER) == Fraction(6 * 3, 2)
    assert check_parts(graph, bound, Collective.REDUCE_SCATTER) == Fraction(8 * 3, 2)
    assert check_parts(graph, bound, Collective.ALLREDUCE) == 6
    assert check_parts(graph, bound, Collective.BROADCAST, 0) == 6
    assert check_parts(graph, bound, Collective.REDUCE, 1) == 8


def test_a_partition_is_recomputed() -> None:
    graph = uneven()
    singles = tuple(frozenset([v]) for v in range(3))
    bound = Bound(Fraction(0), "partition", singles)
    assert check_parts(graph, bound, Collective.ALLREDUCE) == Fraction(19, 4)
    two = Bound(Fraction(0), "partition", (frozenset([0]), frozenset([1, 2])))
    assert check_parts(graph, two, Collective.ALLREDUCE) == Fraction(7, 2)


def test_a_rank_outside_all_parts_would_make_a_partition_lie() -> None:
    """All data can meet at the hub: 1 GB/s, where three parts without the hub would "prove" 3/4.

    That partition is refused (refusals/bounds.txt).
    """
    graph = build([("hub", leaf, 1) for leaf in "abc"])
    assert optimum_written_out(graph, Collective.ALLREDUCE) == pytest.approx(1)
    assert proven(graph).algbw == 1
