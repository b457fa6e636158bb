"""As many thread blocks between two ranks as keep the links busy."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest

from forestcoll import plans
from forestcoll.common.errors import PlanError
from forestcoll.compile.alltoall_plans import check, make
from forestcoll.execute import cpu
from forestcoll.lower.alltoall.filling import fill, needed_blocks, shares_of
from forestcoll.lower.alltoall.lowering import Lanes, lower
from forestcoll.lower.instances import BLOCK
from forestcoll.program import Op, Program
from forestcoll.program.targets import MSCCLPP, RCCL, Target
from forestcoll.solver.alltoall.demand import uniform
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.rounding import route
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.topology import catalog
from forestcoll.verify import simulate

pytestmark = pytest.mark.usefixtures("links_alone")

TARGETS = pytest.mark.parametrize("target", [RCCL, MSCCLPP], ids=lambda target: target.name)


@cache
def routes(name: str) -> Routes:
    return route(solve(uniform(catalog.load(name))), powers=True)


def reached(program: Program, name: str) -> float:
    """Of the bound, with much data, where a thread block moves BLOCK."""
    options = simulate.Options(block_rate=float(BLOCK))
    found = simulate.run(program, catalog.load(name), 1 << 30, rule="fair", options=options)
    return found.algbw / float(routes(name).algbw)


def test_blocks_that_a_rate_needs() -> None:
    """Links carry four fifths, nine tenths of which suffice; a block moves 24 GB/s."""
    assert [needed_blocks(Fraction(rate)) for rate in (0, 1, 33, 34, 66, 67, 133, 134)] == [
        *(1, 1, 1, 2, 2, 4, 4, 8)
    ]


@TARGETS
@pytest.mark.parametrize("name", ["mi300x", "dgx-a100", "dgx-h100", "dgx-b200"])
def test_links_are_busy(name: str, target: Target) -> None:
    """With one thread block for a peer they are not."""
    limits = target.on(108)
    narrow = lower(routes(name), limits, name)
    plan = make(routes(name), target.format, limits, name)
    assert plan.note == ""
    assert reached(plan.program, name) > 0.7
    assert reached(narrow, name) < 0.7


@TARGETS
@pytest.mark.parametrize("name", ["dgx1-v100", "mi250", "dgx-a100"])
def test_parts_are_dealt_out_at_random(name: str, target: Target) -> None:
    """Whatever the lanes, also over relays: right, over the routes, no message in two lanes."""
    found, dice = routes(name), random.Random(5)
    of = {pair: dice.choice((1, 2, 4)) for pair in shares_of(found)}
    program = lower(found, target, name, lanes=Lanes(4, 2, of))
    check(found, program)
    assert program.ranks[0].input_chunks == len(found.graph.ranks) * found.units * 4
    assert [row.wrong for row in cpu.run(program, 100_000).rows] == [0]
    peers: dict[int, int] = {}
    for block in program.ranks[0].thread_blocks:
        peer = block.send if target is RCCL else (block.channels or [None])[0]
        peer = peer if isinstance(peer, int) else getattr(peer, "peer", -1)
        if peer >= 0:
            peers[peer] = peers.get(peer, 0) + 1
    assert all(count >= of[0, peer] for peer, count in peers.items())


@TARGETS
def test_several_copy_what_a_rank_keeps(target: Target) -> None:
    found = routes("dgx-b200")
    plan = make(found, target.format, target.on(108), "b200")
    copies = [
        sum(step.op is Op.COPY for step in block.steps)
        for block in plan.program.ranks[0].thread_blocks
    ]
    assert sorted(copies)[-4:] == [1, 1, 1, 1]
    assert sum(copies) == 4
    again = plans.loads(plan.text, "plan")
    assert again.ranks == plan.program.ranks


def test_what_keeps_it_from_more() -> None:
    found = routes("mi300x")
    program, note = fill(found, replace(RCCL, thread_blocks=12), "box", None)
    assert len(program.ranks[0].thread_blocks) == 12
    assert note == (
        "msccl-xml: 1 of the 2 thread blocks that 64 GB/s between two ranks take (each moves some "
        "24): with 2 rank 0 (box0/gpu0) needs 15 thread blocks, rccl holds 12"
    )
    assert fill(found, RCCL, "box", "LL")[1] == ""
    assert fill(found, RCCL, "box", "LL")[0].ranks[0].input_chunks == 8
    with pytest.raises(PlanError, match="rccl holds 3"):
        fill(found, replace(RCCL, thread_blocks=3), "box", None)


@pytest.mark.parametrize(("name", "share"), [("mi250", 0.92), ("dgx1-v100", 0.97)])
def test_hops_of_onesided_plans_overlap(name: str, share: float) -> None:
    """Parts follow one another through the hops; in a single stage links wait for each other."""
    found = routes(name)
    limits = MSCCLPP.on(104)
    plan = make(found, limits.format, limits, name)
    whole = lower(found, limits, name)
    assert plan.program.ranks[0].input_chunks > whole.ranks[0].input_chunks

    def reach(program: Program) -> float:
        timing = simulate.run(program, catalog.load(name), 1 << 30, rule="fair")
        return timing.algbw / float(found.algbw)

    assert reach(plan.program) > share > reach(whole)
    assert [row.wrong for row in cpu.run(plan.program, 100_000).rows] == [0]


@TARGETS
def test_stages_and_lanes_together(target: Target) -> None:
    found, dice = routes("mi250"), random.Random(8)
    of = {pair: dice.choice((1, 2)) for pair in shares_of(found)}
    program = lower(found, target.on(304), "mi250", lanes=Lanes(2, 1, of, 3))
    check(found, program)
    assert program.ranks[0].input_chunks == 16 * found.units * 6
    assert [row.wrong for row in cpu.run(program, 100_000).rows] == [0]
