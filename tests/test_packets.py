"""Packets: lowering forests to them, what the check finds wrong, how plans carry and run them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import interleaving
import programs as pg
import pytest
from hand_forests import chain, of_shape, star
from hand_forests import forest as hand_made
from programs import do, inp, otb, out, rank, scr

from forestcoll import plans, solver
from forestcoll.common.errors import ExecutionError, PlanError, UnsupportedError
from forestcoll.compile import rivals
from forestcoll.compile.problem import capacity_graph, parse_root
from forestcoll.compile.synthesize import Synthesis, synthesize
from forestcoll.execute import cpu
from forestcoll.lower import lower
from forestcoll.lower.packets import MAX_BYTES
from forestcoll.program import (
    BY_TREES,
    PACKETS,
    Buffer,
    Collective,
    Instruction,
    Op,
    Pipeline,
    Program,
)
from forestcoll.program.targets import MSCCLPP
from forestcoll.schedule.forest import Forest
from forestcoll.topology import catalog
from forestcoll.verify import link_loads, verify

MACHINES: dict[str, tuple[str, dict[str, str]]] = {
    "all-to-all": ("mi300x", {}),
    "cube mesh": ("dgx1-v100", {}),
    "two boxes": ("dgx-a100", {"boxes": "2"}),
    "torus": ("torus-2d", {}),
}


@cache
def forest(machine: str, collective: Collective, trees: int = 1) -> Forest:
    name, settings = MACHINES[machine]
    topology = catalog.load(name, settings)
    graph = capacity_graph(topology)
    root = parse_root(graph, collective, None)
    return solver.solve(graph, collective, root, trees, name=topology.name)


def ops(program: Program) -> set[Op]:
    return {i.op for *_, i in program.instructions()}


# --- lowering


def test_data_waits_for_nothing_but_packets() -> None:
    """No signal stands in the way; where everybody needs everybody there is none at all."""
    for collective in BY_TREES:
        program = lower(forest("two boxes", collective), MSCCLPP, protocol="LL")
        waits = {Op.WAIT, Op.RELAXED_WAIT, Op.SIGNAL, Op.RELAXED_SIGNAL, Op.BARRIER, Op.ACQUIRE}
        assert bool(waits & ops(program)) == collective.has_root
        for rank_program in program.ranks:
            for block in rank_program.thread_blocks:
                kinds = {i.op for i in block.steps if isinstance(i, Instruction)}
                assert not (kinds & PACKETS.keys() and kinds & waits)


def test_packets_between_boxes_are_forwarded_from_scratch() -> None:
    program = lower(forest("two boxes", Collective.ALLREDUCE), MSCCLPP, protocol="LL")
    far = [
        (program.ranks[r].thread_blocks[b].channels[i.channels[0]].kind, i.op)
        for r, b, _, i in program.instructions()
        if i.channels
    ]
    assert {op for kind, op in far if kind == "port"} == {Op.FORWARD_PACKETS}
    assert {kind for kind, _ in far} == {"memory", "port"}


def test_few_trees_share_their_work_between_thread_blocks() -> None:
    program = lower(forest("all-to-all", Collective.BROADCAST), MSCCLPP, protocol="LL")
    parts = {i.part for *_, i in program.instructions() if i.op in PACKETS}
    assert parts == {(k, 8) for k in range(8)}


def test_scratch_comes_in_eights() -> None:
    for collective in BY_TREES:
        program = lower(forest("cube mesh", collective), MSCCLPP, protocol="LL")
        assert (program.protocol, program.double_scratch) == ("LL", True)
        assert program.max_bytes == MAX_BYTES
        assert {r.scratch_chunks % 8 for r in program.ranks} == {0}


def test_sums_on_their_way_make_a_reduce_scatter_out_of_place() -> None:
    inner = lower(forest("cube mesh", Collective.REDUCE_SCATTER), MSCCLPP, protocol="LL")
    assert (inner.in_place, inner.out_of_place) == (False, True)
    flat = lower(forest("all-to-all", Collective.REDUCE_SCATTER), MSCCLPP, protocol="LL")
    assert (flat.in_place, flat.out_of_place) == (True, True)


def test_what_cannot_be_packets_is_said() -> None:
    trees = forest("all-to-all", Collective.ALLREDUCE)
    with pytest.raises(PlanError, match=r"protocol LL128: mscclpp has Simple and LL \(packets\)"):
        lower(trees, MSCCLPP, protocol="LL128")
    with pytest.raises(PlanError, match=r"80000 chunks of 16 bytes are 1280000 bytes at least"):
        lower(trees, MSCCLPP, protocol="LL", instances=10_000)
    with pytest.raises(PlanError, match=r"needs \d+ thread blocks, .* holds 1;"):
        lower(
            of_shape(Collective.ALLGATHER, 24, star),
            replace(MSCCLPP, thread_blocks=1),
            protocol="LL",
        )
    with pytest.raises(PlanError, match=r"operations in one thread block, mscclpp holds 1;"):
        lower(forest("cube mesh", Collective.ALLREDUCE), replace(MSCCLPP, steps=1), protocol="LL")


def test_sums_on_their_way_are_dealt_out_to_all_places_of_the_output() -> None:
    """Chains one way round carry a rank's first chunk, stars its second: sums are of chains only.

    14 operations in one thread block, had each place the sums of its own trees.
    """
    n = 8
    chains = [chain(n, r, "reduce") for r in range(n)]
    stars = [star(n, r, "reduce") for r in range(n)]
    pairs = [tree for pair in zip(chains, stars, strict=True) for tree in pair]
    trees = hand_made(Collective.REDUCE_SCATTER, n, pairs)
    program = lower(trees, replace(MSCCLPP, steps=5), protocol="LL")
    verify(program)
    link_loads(program, trees)
    assert cpu.run(program, 8192, iterations=5).wrong == 0
    sums = [0, 0]
    places = set()
    for r, b, _, i in program.instructions():
        if PACKETS.get(i.op) and i.op.value.startswith("reduce") and r == 0:
            places.add((b, i.dst[0]))
            sums[i.dst[0].offset] += 1
    assert abs(sums[0] - sums[1]) <= 1
    # whatever is written to a place is written by one thread block, or slices of it
    assert len({(b, ref.offset) for b, ref in places}) == len({b for b, _ in places})


# --- what the check finds


def allgather(double: bool) -> Program:
    """Everybody puts packets to everybody."""
    n = 3
    ranks = []
    for r in range(n):
        peers = [p for p in range(n) if p != r]
        back = [scr(r, 1, p) for p in peers]
        steps = [do(Op.PUT_PACKETS, inp(0), back, (), range(n - 1)), do(Op.COPY, inp(0), out(r))]
        steps += [do(Op.UNPACK, scr(p), out(p)) for p in peers]
        ranks.append(rank(otb([(p, "memory", 0) for p in peers], *steps), i=1, o=n, s=8))
    return pg.ll(pg.program(Collective.ALLGATHER, "onesided", ranks), double=double)


def test_one_half_of_scratch_is_overwritten_too_early() -> None:
    assert verify(allgather(double=True)).launches == 3
    with pytest.raises(
        PlanError,
        match=r"race: rank \d, thread block 0, step \d \(unpack\) and rank \d, thread block 0, "
        r"step 0 \(put_packets\) of the next launch both use chunk \d of rank \d's scratch",
    ):
        verify(allgather(double=False))
    failures = 0
    for seed in range(40):
        try:
            interleaving.run(allgather(double=False), seed, launches=4)
        except interleaving.Failed:
            failures += 1
    assert failures  # and the check was right


def unshaken(program: Program) -> Program:
    """Without the thread blocks that tell who has begun."""
    ranks = tuple(
        replace(
            r,
            thread_blocks=tuple(
                b
                for b in r.thread_blocks
                if any(isinstance(i, Instruction) and i.op in PACKETS for i in b.steps)
            ),
        )
        for r in program.ranks
    )
    return replace(program, ranks=ranks)


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE])
def test_writers_two_launches_ahead_are_found(collective: Collective) -> None:
    program = lower(forest("all-to-all", collective), MSCCLPP, protocol="LL")
    with pytest.raises(PlanError, match=r"race: .* of the next launch both use packet chunk"):
        verify(unshaken(program))


def test_a_proxy_may_still_read_what_its_rank_has_done_with() -> None:
    """A rank that forwards over a port tells its writers late; telling early is a race."""
    program = lower(chain_of_boxes(), MSCCLPP, protocol="LL")
    verify(program)
    late = {Op.SIGNAL: Op.NOP, Op.WAIT: Op.NOP}
    early = program
    for r, b, s, i in program.instructions():
        if i.op in late:
            early = pg.edit(early, r, b, s, op=Op.NOP, channels=())
    with pytest.raises(PlanError, match=r"forward_packets\) and rank .* of the next launch"):
        verify(early)


def chain_of_boxes() -> Forest:
    """A broadcast whose tree leaves a box that it has entered."""
    topology = catalog.load("dgx-h100", {"boxes": "4"})
    graph = capacity_graph(topology)
    return solver.solve(graph, Collective.BROADCAST, 0, 1, name=topology.name)


def test_a_slot_is_written_once_a_launch() -> None:
    program = pg.packet_allreduce()
    twice = pg.edit(program, 1, 0, 0, dst=(scr(0, 2, 0),))
    other = pg.edit(twice, 2, 0, 0, dst=(scr(0, 2, 0),))
    with pytest.raises(
        PlanError,
        match=r"rank 2, thread block 0, step 0 \(put_packets\) and rank 1, thread block 0, step 0 "
        r"\(put_packets\) both write packets to packet chunk 0 of half 0 of rank 0's scratch in "
        r"one launch",
    ):
        verify(other)


def test_packets_that_nobody_writes_are_waited_for_for_ever() -> None:
    program = pg.drop(pg.packet_allreduce(), 1, 0, 0)
    with pytest.raises(
        PlanError,
        match=r"deadlock: rank 0, thread block 0, step 0 \(reduce_put_packets\) waits for packets "
        r"in packet chunk 0 of half 0 of rank 0's scratch, which nobody writes",
    ):
        verify(program)
    with pytest.raises(ExecutionError, match=r"waits for packets of this launch, which come from"):
        cpu.run(program, 4096)


def test_packets_of_a_circle_are_a_deadlock() -> None:
    program = pg.swap(pg.packet_chain(), 2, 0, 0, 1)  # unpacks the result before it sends
    with pytest.raises(PlanError, match=r"deadlock: .* waits for packets"):
        verify(program)
    with pytest.raises(ExecutionError, match=r"waits for packets of this launch, which come from"):
        cpu.run(program, 4096)


def test_packets_order_no_other_data() -> None:
    """What a rank wrote before it sent packets may not be seen by whoever has read them."""
    c = 1
    ends = [(1, "memory", 0)]
    back = [(0, "memory", 0)]
    send = otb(
        ends,
        do(Op.COPY, inp(0), out(0)),
        do(Op.NOP),
        do(Op.PUT_PACKETS, inp(0), scr(0, 1, 1), (), (0,)),
    )
    # the other rank answers, and another thread block writes the same output for that
    again = otb([], do(Op.UNPACK, scr(0), out(0)))
    answer = otb(
        back,
        do(Op.FORWARD_PACKETS, scr(0), scr(0, 1, 0), (), (0,)),
        do(Op.UNPACK, scr(0), out(0)),
    )
    ranks = [rank(send, again, i=c, o=c, s=8), rank(answer, i=c, o=c, s=8)]
    program = pg.ll(pg.program(Collective.BROADCAST, "onesided", ranks, "out", root=0))
    with pytest.raises(
        PlanError,
        match=r"race: rank 0, thread block 0, step 0 \(copy\) and rank 0, thread block 1, step 0 "
        r"\(unpack\) both use chunk 0 of rank 0's output",
    ):
        verify(program)
    # what it only read may be overwritten for them: the packets came from there
    harmless = pg.drop(pg.drop(program, 0, 0, 0), 0, 0, 0)
    verify(replace(harmless, in_place=True))


def sums_of_packets(*blocks: list[Instruction]) -> Program:
    """Rank 0 gets two chunks of packets from each of two others, and adds them up in these ways."""
    ends = [(p, "memory", 0) for p in (1, 2)]
    begin = do(Op.RELAXED_SIGNAL, (), (), (), (0, 1))
    first, *more = blocks
    ranks = [rank(otb(ends, begin, *first), *(otb([], *one) for one in more), i=2, o=2, s=4)]
    for p in (1, 2):
        put = do(Op.PUT_PACKETS, inp(0, 2), scr(2 * p - 2, 2, 0), (), (0,))
        steps = [do(Op.RELAXED_WAIT, (), (), (), (0,)), do(Op.NOP), put]
        ranks.append(rank(otb([(0, "memory", 0)], *steps), i=2, o=2, s=4))
    return pg.ll(pg.program(Collective.REDUCE, "onesided", ranks, root=0), double=False)


def test_each_thread_goes_on_with_its_own_elements() -> None:
    """Sums on just the same chunks need no barrier; those on some of them do."""
    one = do(Op.REDUCE_PACKETS, (inp(0, 2), scr(0, 2)), out(0, 2))
    two = do(Op.REDUCE_PACKETS, (out(0, 2), scr(2, 2)), out(0, 2))
    halves = [do(Op.REDUCE_PACKETS, (out(k), scr(2 + k)), out(k)) for k in range(2)]
    for right in ([one, two], [one, do(Op.NOP), *halves]):
        program = sums_of_packets(right)
        verify(program)
        assert cpu.run(program, 4096, iterations=3).wrong == 0
    with pytest.raises(
        PlanError,
        match=r"race: rank 0, thread block 0, step 1 \(reduce_packets\) and rank 0, "
        r"thread block 0, step 2 \(reduce_packets\) both use chunk 0 .* put a nop between them",
    ):
        verify(sums_of_packets([one, *halves]))
    # thread blocks have threads of their own
    with pytest.raises(PlanError, match=r"race: rank 0, thread block 0, .* thread block 1, step 0"):
        verify(sums_of_packets([one], [two]))
    copied = do(Op.COPY, inp(0, 2), out(0, 2))
    add = do(Op.REDUCE_PACKETS, (out(0, 2), scr(0, 2), scr(2, 2)), out(0, 2))
    with pytest.raises(PlanError, match=r"step 1 \(copy\) and .* step 2 \(reduce_packets\)"):
        verify(sums_of_packets([copied, add]))


BAD: list[tuple[Program, str]] = [
    (
        pg.edit(pg.packet_reduce(), 1, 0, 2, dst=(out(0, 1, 0),)),
        r"rank 1, thread block 0, step 2 \(put_packets\): packets in the output, not in scratch",
    ),
    (
        replace(pg.packet_reduce(), protocol="Simple"),
        r"packets in a program of protocol Simple",
    ),
    (
        pg.edit(pg.packet_chain("port"), 2, 0, 0, op=Op.COPY),
        r"rank 2, thread block 0, step 0 \(copy\): plain data in scratch, which holds packets",
    ),
    (
        pg.insert(
            pg.packet_reduce(), 0, 0, 2, Pipeline((do(Op.COPY_PACKETS, inp(0), scr(0)),), 1, 16)
        ),
        r"packets in a pipeline; the runtime would do all of them every round",
    ),
    (
        pg.edit(pg.packet_chain("port"), 2, 0, 1, op=Op.PUT_PACKETS, src=(inp(0),)),
        r"step 1 \(put_packets\): needs memory channels",
    ),
    (
        pg.edit(pg.packet_reduce(), 1, 0, 2, channels=(0, 0)),
        r"to ranks \[0\] over channels to ranks \[0, 0\]",
    ),
    (
        replace(pg.reading_allreduce(), double_scratch=True),
        r"two halves of scratch are for packets",
    ),
]


@pytest.mark.parametrize(("program", "message"), BAD)
def test_packets_in_the_wrong_place_are_named(program: Program, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        verify(program)


# --- plans


def plan(**changes: Any) -> Program:
    program = lower(forest("all-to-all", Collective.ALLREDUCE), MSCCLPP, protocol="LL")
    return replace(program, **changes)


def test_a_plan_says_what_it_needs() -> None:
    found = json.loads(plans.dumps(plan(), "mscclpp-json", MSCCLPP))
    assert found["protocol"] == "LL"
    assert found["use_double_scratch_buffer"] is True
    assert found["max_message_size"] == MAX_BYTES
    names = {op["name"] for op in found["gpus"][0]["threadblocks"][0]["ops"]}
    assert names == {"respkt"}
    names = {op["name"] for op in found["gpus"][0]["threadblocks"][1]["ops"]}
    assert names == {"ppkt", "upkt"}


REFUSED: list[tuple[Program, str]] = [
    (
        pg.ll(
            replace(
                pg.packet_chain(),
                ranks=tuple(replace(r, scratch_chunks=9) for r in pg.packet_chain().ranks),
            )
        ),
        r"rank 0: 9 scratch chunks; in two halves they must be a multiple of 8",
    ),
    (
        replace(pg.packet_reduce(), protocol="Simple"),
        "packets in a program of protocol Simple",
    ),
    (
        pg.edit(pg.packet_reduce(), 1, 0, 2, dst=(out(0, 1, 0),)),
        "packets in the output, not in scratch",
    ),
    (
        pg.edit(pg.packet_chain("port"), 2, 0, 1, op=Op.PUT_PACKETS, src=(inp(0),)),
        "needs memory channels",
    ),
    (
        pg.edit(pg.packet_chain("port"), 2, 0, 0, op=Op.COPY),
        "plain data in scratch, which holds packets in a program of protocol LL",
    ),
    (
        pg.insert(
            pg.packet_reduce(), 0, 0, 2, Pipeline((do(Op.COPY_PACKETS, inp(0), scr(0)),), 1, 16)
        ),
        "packets in a pipeline",
    ),
    (
        pg.edit(pg.packet_reduce(), 1, 0, 2, src=(inp(0), inp(0)), dst=(scr(0, 1, 0),)),
        "2 sources for 1 destinations",
    ),
    (
        replace(pg.reading_allreduce(), double_scratch=True),
        r"two halves of scratch are for packets",
    ),
]


@pytest.mark.parametrize(("program", "message"), REFUSED)
def test_what_the_kernel_would_do_wrong_is_not_written(program: Program, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plans.dumps(program, "mscclpp-json")


def test_a_packet_plan_of_the_dsl_is_read() -> None:
    """As MSCCL++'s language writes it: sources repeated, no fields of ours."""
    text = plans.dumps(plan(), "mscclpp-json", MSCCLPP)
    found = json.loads(text)
    del found["forestcoll"], found["min_message_size"]
    for gpu in found["gpus"]:
        for block in gpu["threadblocks"]:
            for op in block["ops"]:
                op["reduce_op"] = "sum"
    back = plans.loads(json.dumps(found), "t")
    assert back.ranks == plan().ranks
    assert (back.protocol, back.double_scratch, back.in_place) == ("LL", True, True)
    verify(back)


def test_halves_without_packets_are_not_read_where_others_reach_them() -> None:
    text = plans.dumps(pg.reduce_to_root(), "mscclpp-json")
    text = text.replace('"use_double_scratch_buffer": false', '"use_double_scratch_buffer": true')
    with pytest.raises(UnsupportedError, match=r"not supported without packets"):
        plans.loads(text, "t")


def test_sizes_count_both_halves_and_both_words() -> None:
    from forestcoll.plans.mscclpp.write import largest_size

    program = pg.packet_chain()
    chunks = program.ranks[0].scratch_chunks
    assert largest_size(program) == (2**32 - 1) // (4 * chunks) // 16 * 16


# --- running


@pytest.mark.parametrize("dtype", ["float16", "int8", "float64"])
def test_packets_of_every_width(dtype: str) -> None:
    for size in (8, 1000, 65_536):
        result = cpu.run(plan(), size, dtype=dtype, iterations=3)
        assert result.wrong == 0


def test_other_operations_than_sums_run_here() -> None:
    assert cpu.run(plan(), 4096, op="max", iterations=2).wrong == 0


def test_stale_packets_are_not_taken(tmp_path: Path) -> None:
    """A rank that forgets its packets leaves the last but one launch's there: nobody takes them."""
    whole = pg.packet_reduce()
    assert cpu.run(whole, 64, iterations=4).wrong == 0
    without = pg.drop(whole, 2, 0, 2)
    with pytest.raises(ExecutionError, match=re.compile(r"reduce_packets\) waits for packets")):
        cpu.run(without, 64, iterations=4)


# --- command line


def test_the_pipeline_takes_the_lowest_trees() -> None:
    made = synthesize(catalog.load("dgx-a100"), "allreduce", protocol="LL", target="mscclpp")
    assert made.forest.height == 1
    check_packets(made)


@pytest.mark.usefixtures("links_alone")
def test_a_broadcast_takes_trees_by_its_longest_call() -> None:
    """Packets go up to 1 MiB. Seven trees are lower there, but four are faster over fair links."""
    topology = catalog.load("dgx-a100")
    made, lowest = (
        synthesize(topology, "broadcast", protocol="LL", target="mscclpp", trees=trees)
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
    used = {ref.buffer for *_, i in program.instructions() for ref in (*i.src, *i.dst)}
    assert Buffer.SCRATCH in used
