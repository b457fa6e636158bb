"""Packets: lowering forests to them, and how plans of them run.

What is said of wrong ones: rows/, by test_spoilt.py and test_execute_cpu.py; refusals/lower.txt.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import interleaving
import programs as pg
import pytest
from graphs import named
from hand_forests import chain, instructions, star
from hand_forests import forest as hand_made

from forestcoll import solver
from forestcoll.common.errors import PlanError
from forestcoll.compile import rivals
from forestcoll.compile.synthesize import Synthesis, synthesize
from forestcoll.execute import cpu
from forestcoll.lower import lower
from forestcoll.lower.packets import MAX_BYTES
from forestcoll.program import BY_TREES, PACKETS, Buffer, Collective, Instruction, Op, Program
from forestcoll.program.targets import MSCCLPP
from forestcoll.schedule.forest import Forest
from forestcoll.verify import link_loads, verify


@cache
def forest(machine: str, collective: Collective, boxes: str = "") -> Forest:
    graph = named(machine, **({"boxes": boxes} if boxes else {}))
    return solver.solve(graph, collective, 0 if collective.has_root else None, 1, name=machine)


def packets(machine: str, collective: Collective, boxes: str = "") -> Program:
    return lower(forest(machine, collective, boxes), MSCCLPP, protocol="LL")


# --- lowering


@pytest.mark.parametrize("collective", BY_TREES)
def test_data_waits_for_nothing_but_packets(collective: Collective) -> None:
    """No signal stands in the way; where everybody needs everybody there is none at all."""
    program = packets("dgx-a100", collective, "2")
    assert (program.protocol, program.double_scratch, program.max_bytes) == ("LL", True, MAX_BYTES)
    assert {r.scratch_chunks % 8 for r in program.ranks} == {0}
    waits = {Op.WAIT, Op.RELAXED_WAIT, Op.SIGNAL, Op.RELAXED_SIGNAL, Op.BARRIER, Op.ACQUIRE}
    assert bool(waits & {i.op for i in instructions(program)}) == collective.has_root
    for block in (block for rank in program.ranks for block in rank.thread_blocks):
        kinds = {i.op for i in block.steps if isinstance(i, Instruction)}
        assert not (kinds & PACKETS.keys() and kinds & waits)


def test_packets_between_boxes_are_forwarded_from_scratch() -> None:
    program = packets("dgx-a100", Collective.ALLREDUCE, "2")
    far = [
        (program.ranks[r].thread_blocks[b].channels[i.channels[0]].kind, i.op)
        for r, b, _, i in program.instructions()
        if i.channels
    ]
    assert {op for kind, op in far if kind == "port"} == {Op.FORWARD_PACKETS}
    assert {kind for kind, _ in far} == {"memory", "port"}


def test_few_trees_share_their_work_between_thread_blocks() -> None:
    program = packets("mi300x", Collective.BROADCAST)
    parts = {i.part for i in instructions(program) if i.op in PACKETS}
    assert parts == {(k, 8) for k in range(8)}


@pytest.mark.parametrize(("machine", "in_place"), [("dgx1-v100", False), ("mi300x", True)])
def test_sums_on_their_way_make_a_reduce_scatter_out_of_place(machine: str, in_place: bool) -> None:
    program = packets(machine, Collective.REDUCE_SCATTER)
    assert (program.in_place, program.out_of_place) == (in_place, True)


def test_sums_on_their_way_are_dealt_out_to_all_places_of_the_output() -> None:
    """Chains one way round carry a rank's first chunk, stars its second: sums are of chains only.

    14 operations in one thread block, had each place the sums of its own trees.
    """
    n = 8
    pairs = [shape(n, r, "reduce") for r in range(n) for shape in (chain, star)]
    trees = hand_made(Collective.REDUCE_SCATTER, n, pairs)
    program = lower(trees, replace(MSCCLPP, steps=5), protocol="LL")
    verify(program)
    link_loads(program, trees)
    assert cpu.run(program, 8192, iterations=5).wrong == 0
    sums = [
        (b, i.dst[0])
        for r, b, _, i in program.instructions()
        if PACKETS.get(i.op) and i.op.value.startswith("reduce") and r == 0
    ]
    first = sum(ref.offset == 0 for _, ref in sums)
    assert abs(2 * first - len(sums)) <= 1
    # whatever is written to a place is written by one thread block, or slices of it
    assert len({(b, ref.offset) for b, ref in sums}) == len({b for b, _ in sums})


# --- what the check finds


def test_one_half_of_scratch_is_overwritten_too_early() -> None:
    """As the check says (rows/programs.txt): in some order of events a launch goes wrong."""
    failures = 0
    for seed in range(40):
        try:
            interleaving.run(pg.base("packet_allgather"), seed, launches=4)
        except interleaving.Failed:
            failures += 1
    assert failures


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE])
def test_writers_two_launches_ahead_are_found(collective: Collective) -> None:
    """Without the thread blocks that tell who has begun."""
    program = packets("mi300x", collective)
    ranks = [
        replace(
            rank,
            thread_blocks=tuple(
                block
                for block in rank.thread_blocks
                if any(isinstance(i, Instruction) and i.op in PACKETS for i in block.steps)
            ),
        )
        for rank in program.ranks
    ]
    with pytest.raises(PlanError, match=r"race: .* of the next launch both use packet chunk"):
        verify(replace(program, ranks=tuple(ranks)))


def test_a_proxy_may_still_read_what_its_rank_has_done_with() -> None:
    """A rank that forwards over a port tells its writers late; telling early is a race.

    The tree of a broadcast leaves a box that it has entered.
    """
    program = packets("dgx-h100", Collective.BROADCAST, "4")
    verify(program)
    told = [at for *at, i in program.instructions() if i.op in (Op.SIGNAL, Op.WAIT)]
    early = pg.edit(program, *("{}.{}.{} = nop".format(*at) for at in told))
    with pytest.raises(PlanError, match=r"forward_packets\) and rank .* of the next launch"):
        verify(early)


# --- running


@pytest.mark.parametrize(
    ("dtype", "op"), [("float16", "sum"), ("int8", "sum"), ("float64", "sum"), ("float32", "max")]
)
def test_packets_of_every_width(dtype: str, op: str) -> None:
    program = packets("mi300x", Collective.ALLREDUCE)
    for size in (8, 1000, 65_536):
        assert cpu.run(program, size, dtype=dtype, op=op, iterations=3).wrong == 0


# --- the pipeline


def test_the_pipeline_takes_the_lowest_trees() -> None:
    made = synthesize("dgx-a100", "allreduce", protocol="LL", target="mscclpp")
    assert made.forest.height == 1
    check_packets(made)


@pytest.mark.usefixtures("links_alone")
def test_a_broadcast_takes_trees_by_its_longest_call() -> None:
    """Packets go up to 1 MiB. Seven trees are lower there, but four are faster over fair links."""
    made, lowest = (
        synthesize("dgx-a100", "broadcast", protocol="LL", target="mscclpp", trees=trees)
        for trees in ("auto", 7)
    )
    check_packets(made)
    assert (made.forest.height, lowest.forest.height) == (3, 2)
    assert made.forest.plain_algbw == lowest.forest.plain_algbw == made.optimum.algbw
    band, other = made.bands["mscclpp-json"], lowest.bands["mscclpp-json"]
    assert band.size == other.size == made.programs["mscclpp-json"].max_bytes == 2**20
    assert band.least > rivals.GAIN * other.least
    told = f"plans of them reach {band.least:.1f} GB/s, of 7 trees per root"
    assert any(told in note for note in made.notes)


def check_packets(made: Synthesis) -> None:
    """The plan is of packets, says so, and takes them from the scratch buffer."""
    program = made.programs["mscclpp-json"]
    assert any("of packets (LL), for up to 1024 KiB" in note for note in made.notes)
    assert program.protocol == "LL"
    assert Buffer.SCRATCH in {ref.buffer for i in instructions(program) for ref in i.src}
