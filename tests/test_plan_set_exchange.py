"""Plan sets of an all-to-all: which way serves which size, and what the index says of it."""

from __future__ import annotations

from functools import cache

import pytest

from forestcoll.common.errors import PlanError
from forestcoll.compile import plan_set
from forestcoll.compile.plan_set.candidates import find_ways
from forestcoll.compile.plan_set.contest import where_of
from forestcoll.execute import cpu
from forestcoll.lower.alltoall.filling import fill
from forestcoll.lower.alltoall.lowering import Lanes, lower
from forestcoll.program import Program
from forestcoll.program.targets import MSCCLPP, RCCL
from forestcoll.solver.alltoall.demand import uniform
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.rounding import route
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.solver.alltoall.spread import routes_over
from forestcoll.solver.baselines.alltoall import direct, two_level
from forestcoll.topology import Topology, catalog
from forestcoll.verify import simulate, verify


def machine() -> Topology:
    return catalog.load("rail", {"boxes": 2, "gpus": 4, "rails": 4})


@cache
def made() -> plan_set.PlanSet:
    return plan_set.make(machine(), "alltoall", 1024, 2**30)


def test_ranges_follow_each_other() -> None:
    for plans in made().plans:
        assert plans.entries[0].low == 1024
        for before, after in zip(plans.entries, plans.entries[1:], strict=False):
            assert after.low == before.high + 1
        assert plans.entries[-1].high == 2**30
        assert not plans.unserved


def test_few_bytes_go_straight_and_without_signals() -> None:
    for plans in made().plans:
        first, last = plans.entries[0], plans.entries[-1]
        assert (first.candidate.protocol, last.candidate.protocol) == ("LL", "Simple")
        source = first.candidate.origin
        assert isinstance(source, Routes)
        assert source.hops == 1
        for entry in plans.entries:
            size = max(entry.low, 2**16)
            assert [row.wrong for row in cpu.run(entry.program, min(size, 2**20)).rows] == [0]


@pytest.mark.parametrize("size", [2**12, 2**18, 2**21, 2**28])
def test_nothing_simulated_is_much_faster(size: int) -> None:
    """All candidates lowered and simulated here, beside the one that the set has for the size."""
    topology = machine()
    best = solve(uniform(topology))
    graph = best.demand.graph
    ways = [routes_over(best, direct(graph)), routes_over(best, two_level(graph)), route(best)]
    for plans, target in zip(made().plans, (RCCL, MSCCLPP), strict=True):
        chosen = next(e for e in plans.entries if e.low <= size <= e.high)
        mine = slower(chosen.program, topology, size)
        for way in ways:
            for protocol in simulate.HOP:
                try:
                    program, _ = fill(way, target, "rail", protocol)
                except PlanError:
                    continue
                if not program.max_bytes or size <= program.max_bytes:
                    # a plan that is nowhere 1 % faster is left out, borders are near
                    assert mine <= 1.08 * slower(program, topology, size), (way, protocol)


def slower(program: Program, topology: Topology, size: int) -> float:
    """Microseconds under the worse rule of links."""
    return max(timing.time for timing in simulate.run_each(program, topology, size))


def test_powers_of_two_are_served_where_they_can_be() -> None:
    """Three units are the box's optimum; plans of them serve no power of two, and are left out."""
    box = catalog.load("dgx1-v100", {})
    units = {way.units for plans in plan_set.make(box, "alltoall", 1024, 2**24).plans
             for way in [e.candidate.origin for e in plans.entries]
             if isinstance(way, Routes)}  # fmt: skip
    assert units <= {1, 2, 4, 8}


def test_plans_run_over_the_ways_of_their_routes() -> None:
    """Two ways through a dragonfly carry half of a block each; a topology alone has one."""
    topology = catalog.load("dragonfly")
    best = solve(uniform(topology))
    ways = route(best, powers=True)
    assert (ways.units, ways.algbw) == (2, best.bound)
    program, _ = fill(ways, RCCL, topology.name, "Simple")
    size = 2**30
    apart = simulate.run(program, where_of(ways, topology), size, rule="fifo", links=topology)
    alone = simulate.run(program, topology, size, rule="fifo")
    assert alone.algbw < 0.9 * best.bound < apart.algbw <= best.bound
    fair = simulate.run(program, where_of(ways, topology), size, rule="fair", links=topology)
    assert 0.999 * best.bound < fair.algbw <= best.bound  # neighbours begin with different ways


def test_of_routes_that_switches_tell_apart_the_fastest_is_kept() -> None:
    """A fat tree's one hop over one spine carries 50 GB/s, over both 66.7: the same plan."""
    best = solve(uniform(catalog.load("fat-tree")))
    straight = [way for way in find_ways(best) if way.hops == 1]
    assert routes_over(best, direct(best.demand.graph)).algbw == 50
    assert [way.algbw for way in straight] == [best.bound]


def test_small_pieces_fill_the_links_of_all_hops_soon() -> None:
    """A hypercube's three hops: at 64 MiB its plainest plan is 11 % behind the links alone."""
    topology = catalog.load("hypercube")
    way = route(solve(uniform(topology)), powers=True)
    alone = 2**26 / float(way.algbw) / 1000
    slowest = []
    for times in (1, 16):
        program, note = fill(way, RCCL, topology.name, "Simple", times)
        verify(program)
        runs = simulate.run_each(program, where_of(way, topology), 2**26, links=topology)
        slowest.append(max(timing.time for timing in runs))
        assert note == ""
    assert slowest[0] > 1.1 * alone
    assert alone < slowest[1] < 1.05 * alone
    sets = plan_set.make(topology, "alltoall", 2**25, 2**26, formats=("msccl-xml",)).plans
    assert {entry.candidate.times for plans in sets for entry in plans.entries} <= {8, 16}


def test_puts_in_pieces_let_others_on_a_link_in_order() -> None:
    """In one put each, all ranks of a box queue at one rank of the other: 1.8 times as long."""
    topology = catalog.load("dgx-a100", {"boxes": "2"})
    best = solve(uniform(topology))
    way = routes_over(best, direct(best.demand.graph))
    times = {}
    for lanes in (Lanes(), Lanes(stages=16)):
        program = lower(way, MSCCLPP, topology.name, "Simple", lanes)
        verify(program)
        runs = simulate.run_each(program, topology, 2**22, ("fifo", "fair"), links=topology)
        times[lanes.stages] = [timing.time for timing in runs]
    assert times[1][0] > 1.8 * times[1][1]
    assert times[16][0] < 1.06 * times[16][1]
    assert times[16][1] == pytest.approx(times[1][1], rel=0.01)
    program, note = fill(way, MSCCLPP, topology.name, "Simple")
    puts = [sum(i.op.value.startswith("put") for i in block.steps)
            for block in program.ranks[0].thread_blocks]  # fmt: skip
    assert (max(puts), note) == (16, "")
