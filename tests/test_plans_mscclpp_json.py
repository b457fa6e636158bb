"""MSCCL++ plans: what is written is what the runtime runs, what is read is what it would run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import plan_programs as made
import programs
import pytest
from hypothesis import HealthCheck, given, settings
from plan_programs import I, O, S

from forestcoll import plans
from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.plans import mscclpp
from forestcoll.program import (
    OPERATIONS,
    Channel,
    Collective,
    Instruction,
    Op,
    Pipeline,
    Program,
    RankProgram,
    Ref,
    Step,
    ThreadBlock,
)
from forestcoll.program.targets import MSCCL, MSCCLPP

RANDOM = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def resolve(gpu: dict[str, Any], block: dict[str, Any], op: dict[str, Any]) -> dict[str, Any]:
    """An operation with its ids followed as the loader follows them, through the lists."""
    flat: dict[str, list[int]] = {"memory": [], "port": []}
    for entry in gpu["channels"]:
        flat[entry["channel_type"]] += entry["connected_to"]
    own: dict[str, list[int]] = {"memory": [], "port": []}
    for entry in block["channels"]:
        own[entry["channel_type"]] += entry["channel_ids"]
    remote: dict[str, list[int]] = {"memory": [], "port": []}
    for entry in block["remote_buffer_refs"]:
        remote[entry["access_channel_type"]] += entry["remote_buffer_ids"]
    kind = op.get("channel_type", "none")

    def peer(k: int) -> tuple[int, int]:
        place = own[kind][k]
        return flat[kind][place], flat[kind][:place].count(flat[kind][place])

    def buff(b: dict[str, Any]) -> tuple[Any, ...]:
        if "type" in b:
            return None, b["type"], b["index"], b["size"]
        buffer = gpu["remote_buffers"][remote[kind][b["buffer_id"]]]
        assert kind in buffer["access_channel_types"]
        return buffer["rank"], buffer["type"], b["index"], b["size"]

    return {
        "name": op["name"],
        "kind": kind,
        "channels": [peer(k) for k in op.get("channel_ids", [])],
        "src": [buff(b) for b in op.get("src_buff", [])],
        "dst": [buff(b) for b in op.get("dst_buff", [])],
        "semaphores": op.get("semaphore_ids", []),
        "barrier": (op.get("barrier_id", 0), op.get("num_threadblocks", 0)),
        "part": tuple(op.get("tbg_info", {"tb_id": 0, "tbg_size": 1}).values()),
    }


def expected(block: ThreadBlock, step: Instruction) -> dict[str, Any]:
    """The same of a Program's instruction."""
    channels = [block.channels[c] for c in step.channels]
    remote = any(ref.rank is not None for ref in step.src + step.dst)
    copies = len(step.dst) if step.op.value.startswith("put") and len(step.src) == 1 else 1
    flat = [(r.rank, r.buffer.value, r.offset, r.count) for r in step.src * copies]
    return {
        "name": OPERATIONS[step.op].json,
        "kind": channels[0].kind if channels else "memory" if remote else "none",
        "channels": [(c.peer, c.index) for c in channels],
        "src": flat,
        "dst": [(r.rank, r.buffer.value, r.offset, r.count) for r in step.dst],
        "semaphores": list(step.semaphores),
        "barrier": (step.ident, step.group),
        "part": step.part,
    }


def check_plan(text: str, program: Program) -> None:
    """The document says what the program says, read as the loader reads it."""
    plan = json.loads(text)
    for r, (rank, gpu) in enumerate(zip(program.ranks, plan["gpus"], strict=True)):
        assert gpu["id"] == r
        assert [s["init_value"] for s in gpu["semaphores"]] == list(rank.semaphores)
        for b, (block, entry) in enumerate(
            zip(rank.thread_blocks, gpu["threadblocks"], strict=True)
        ):
            assert entry["id"] == b
            assert len(entry["ops"]) == len(block.steps)
            for step, op in zip(block.steps, entry["ops"], strict=True):
                if isinstance(step, Pipeline):
                    unit = {"unit_size": step.unit_bytes, "num_chunks": step.chunks}
                    assert (op["name"], op["iter_context"]) == ("pipeline", unit)
                    pairs = list(zip(step.body, op["ops"], strict=True))
                else:
                    pairs = [(step, op)]
                for instruction, written in pairs:
                    assert resolve(gpu, entry, written) == expected(block, instruction)


@pytest.mark.parametrize("program", made.ONESIDED, ids=lambda p: p.name)
def test_written_and_read_back_is_equal(program: Program) -> None:
    for target in (None, MSCCLPP):
        text = mscclpp.dumps(program, target)
        back = plans.loads(text, "t")
        assert back == program
        assert "notes" not in back.extra
        check_plan(text, program)


@RANDOM
@given(made.onesided_programs())
def test_random_programs_survive_and_resolve(program: Program) -> None:
    text = mscclpp.dumps(program, MSCCLPP)
    assert mscclpp.loads(text, "t") == program
    assert mscclpp.dumps(mscclpp.loads(text, "t")) == text
    assert max(map(len, text.splitlines())) <= 100 or program.names
    check_plan(text, program)


def test_the_text_of_a_plan() -> None:
    lines = mscclpp.dumps(made.chain_broadcast()).splitlines()
    assert lines[1].startswith('  "name": "chain.broadcast.')
    assert lines[2:14] == [
        '  "collective": "broadcast",',
        '  "protocol": "Simple",',
        '  "inplace": true,',
        '  "reuse_resources": false,',
        '  "use_double_scratch_buffer": false,',
        '  "buffer_alignment": 16,',
        '  "num_threads_per_block": 1024,',
        '  "min_message_size": 0,',
        '  "max_message_size": 4294901760,',
        '  "forestcoll": {',
        '    "name": "chain",',
        '    "in_place": true,',
    ]
    assert (
        '                {"name": "signal", "channel_type": "memory", "channel_ids": [0]}' in lines
    )
    assert (
        '      "remote_buffers": [{"rank": 1, "type": "o", "access_channel_types": ["memory"]}],'
        in lines
    )


def test_parallel_channels_keep_their_numbers() -> None:
    plan = json.loads(mscclpp.dumps(made.pair_allreduce()))
    gpu = plan["gpus"][0]
    assert gpu["channels"] == [{"channel_type": "memory", "connected_to": [1, 1]}]
    assert gpu["threadblocks"][0]["channels"] == [{"channel_type": "memory", "channel_ids": [1, 0]}]
    assert gpu["threadblocks"][0]["ops"][1]["channel_ids"] == [1, 0]


def test_one_source_is_repeated_for_every_destination() -> None:
    put = Instruction(Op.PUT, (Ref(I, 0, 1),), (Ref(O, 0, 1, 1), Ref(O, 1, 1, 1)))
    program = duo(put)
    op = json.loads(mscclpp.dumps(program))["gpus"][0]["threadblocks"][0]["ops"][0]
    assert op["src_buff"] == [{"type": "i", "index": 0, "size": 1}] * 2
    assert mscclpp.loads(mscclpp.dumps(program), "t") == program


def test_names_differ_when_plans_differ() -> None:
    def name(program: Program, **more: Any) -> str:
        return str(json.loads(mscclpp.dumps(program, **more))["name"])

    program = made.chain_broadcast()
    assert name(program) == name(program)
    assert name(program) != name(replace(program, min_bytes=16))
    assert name(program) != name(program, in_place=False)
    assert name(replace(program, name="a.broadcast")).startswith("a.broadcast.")
    assert name(replace(program, name="")).startswith("broadcast.")


def test_in_place_is_chosen_and_both_flags_survive() -> None:
    both = made.chain_broadcast()
    for choice, written in ((None, True), (True, True), (False, False)):
        text = mscclpp.dumps(both, in_place=choice)
        assert json.loads(text)["inplace"] is written
        assert mscclpp.loads(text, "t") == both
    gather = replace(duo(NOP), in_place=True, out_of_place=True)
    assert json.loads(mscclpp.dumps(gather))["inplace"] is False
    assert json.loads(mscclpp.dumps(gather, in_place=True))["inplace"] is True
    only = replace(gather, out_of_place=False)
    assert json.loads(mscclpp.dumps(only))["inplace"] is True
    with pytest.raises(PlanError, match="not right for out-of-place calls"):
        mscclpp.dumps(only, in_place=False)


def test_the_largest_size_is_what_the_device_can_count() -> None:
    program = duo(NOP, scratch=3)  # scratch holds 3 chunks, the data 2
    assert mscclpp.largest_size(program) == (2**32 - 1) // 3 // 16 * 16 * 2
    tight = duo(Pipeline((NOP,), 1, 1024))
    assert mscclpp.largest_size(tight) == 65535 * 1024 * 2
    text = mscclpp.dumps(tight)
    assert json.loads(text)["max_message_size"] == 65535 * 1024 * 2
    assert mscclpp.loads(text, "t") == tight
    exact = replace(tight, max_bytes=65535 * 1024 * 2)
    assert mscclpp.loads(mscclpp.dumps(exact), "t") == exact
    with pytest.raises(PlanError, match="end this plan at 134215680 bytes; lower max_bytes"):
        mscclpp.dumps(replace(tight, max_bytes=134215681))


NOP = Instruction(Op.NOP)
COPY = Instruction(Op.COPY, (Ref(I, 0, 1),), (Ref(O, 0, 1),))
MEMORY = tuple(Channel(1, "memory", k) for k in range(17))
PORTS = tuple(Channel(1, "port", k) for k in range(3))


def duo(*steps: Step, scratch: int = 0, channels: tuple[Channel, ...] = (), **rank: Any) -> Program:
    """An allgather of two ranks; rank 0 has one thread block with `steps`."""
    first = RankProgram((ThreadBlock(steps, channels=channels),), 1, 2, scratch, **rank)
    second = RankProgram((ThreadBlock((NOP,)),), 1, 2, scratch)
    return Program(
        "p", Collective.ALLGATHER, "onesided", (first, second), in_place=False, out_of_place=True
    )


def put(
    *dst: Ref, op: Op = Op.PUT, src: tuple[Ref, ...] = (Ref(I, 0, 1),), **more: Any
) -> Instruction:
    """A put of chunk 0 of the input."""
    return Instruction(op, src, dst or (Ref(O, 0, 1, 1),), **more)


def wide(count: int) -> Program:
    """Rank 0 reaches `count` remote buffers in one thread block."""
    steps = tuple(put(Ref(O, 0, 1, r)) for r in range(1, count + 1))
    ranks = [RankProgram((ThreadBlock(steps),), count + 1, count + 1, 0)]
    ranks += [RankProgram((ThreadBlock((NOP,)),), count + 1, count + 1, 0)] * count
    return Program("p", Collective.ALLREDUCE, "onesided", tuple(ranks), True, False)


REFUSED = [
    (duo(*[NOP] * 65), "rank 0, thread block 0: 65 operations .*holds 64"),
    (duo(Pipeline((NOP,) * 63, 1, 16), NOP), "65 operations \\(pipelines and what is in them"),
    (duo(NOP, channels=MEMORY), "17 memory channels; .* holds 16 of a kind"),
    (
        duo(Instruction(Op.SIGNAL, channels=tuple(range(9))), channels=MEMORY[:9]),
        "over 9 channels; .* 8",
    ),
    (wide(17), "reaches 17 remote buffers by memory channels; .* 16"),
    (
        duo(Instruction(Op.ACQUIRE, semaphores=tuple(range(17))), semaphores=(0,) * 17),
        "17 semaphores; .* 16",
    ),
    (duo(Instruction(Op.ACQUIRE, semaphores=(1,)), semaphores=(0,)), "semaphore 1; rank 0 has 1"),
    (duo(NOP, semaphores=(-1,)), "semaphore 0 starts at -1"),
    (duo(Instruction(Op.BARRIER, ident=16, group=1)), "barrier 16; .* 0 to 15"),
    (
        duo(Instruction(Op.BARRIER, ident=0, group=2)),
        "barrier 0 of 2 thread blocks; the rank has 1",
    ),
    (duo(Instruction(Op.FLUSH, channels=(0,)), channels=PORTS), "flush does nothing"),
    (
        duo(Instruction(Op.GET, (Ref(O, 1, 1, 1),), (Ref(O, 0, 1),))),
        "get from one chunk number to another",
    ),
    (duo(Pipeline((NOP,), 1, 100)), "unit of 100 bytes; .* blocks of 16"),
    (duo(Pipeline((NOP,), 1, 0)), "a pipeline over 1 chunks in units of 0 bytes"),
    (duo(Pipeline((NOP,), 0, 16)), "over 0 chunks"),
    (duo(Pipeline((), 1, 16)), "a pipeline needs a body of plain instructions"),
    (duo(Pipeline((COPY,), 2, 16)), "1 chunks in a pipeline over 2"),
    (
        duo(Pipeline((replace(COPY, part=(0, 2)),), 1, 16)),
        "a part inside a pipeline",
    ),
    (duo(replace(COPY, part=(2, 2))), "part 2 of 2 does not exist"),
    (duo(replace(NOP, part=(0, 2))), "only onesided data instructions"),
    (duo(replace(COPY, semaphores=(0,)), semaphores=(0,)), "takes no semaphores"),
    (duo(replace(COPY, channels=(0,)), channels=MEMORY[:1]), "takes no channels"),
    (duo(replace(COPY, ident=1)), "takes no barrier"),
    (
        duo(Instruction(Op.SIGNAL, COPY.src, channels=(0,)), channels=PORTS),
        "1 sources; it takes no sources",
    ),
    (duo(Instruction(Op.SIGNAL)), "names no channel"),
    (duo(Instruction(Op.RELEASE)), "names no semaphore"),
    (
        duo(Instruction(Op.WAIT, channels=(1,)), channels=MEMORY[:1]),
        "channel 1; the thread block has 1",
    ),
    (
        duo(Instruction(Op.WAIT, channels=(0, 1)), channels=(MEMORY[0], PORTS[0])),
        "mixes memory and port",
    ),
    (
        duo(replace(COPY, after=((0, 0),))),
        "'after' has no meaning in onesided programs",
    ),
    (duo(Instruction(Op.REDUCE, COPY.src, COPY.dst)), "reduce is a fifo operation"),
    (
        duo(replace(COPY, src=(Ref(I, 1, 1),))),
        "1 chunks at offset 1 of rank 0's input",
    ),
    (duo(put(Ref(S, 0, 1, 1))), "1 chunks at offset 0 of rank 1's scratch, which has 0 chunks"),
    (duo(put(Ref(O, 0, 1, 2))), "a buffer of rank 2"),
    (duo(put(Ref(O, 0, 1, 0))), "a buffer of rank 0"),
    (duo(put(Ref(O, 0, 1))), "a local operand where one at a peer is needed"),
    (duo(put(Ref(O, 0, 2, 1))), "operands of 1 and 2 chunks"),
    (duo(put(src=(Ref(I, 0, 1, 1),))), "an operand at rank 1 that must be local"),
    (duo(put(src=(Ref(I, 0, 1),) * 2)), "2 sources for 1 destinations"),
    (
        duo(put(Ref(O, 0, 1, 1), Ref(O, 1, 1, 1), src=(Ref(I, 0, 1),) * 2)),
        "names one source 2 times",
    ),
    (duo(put(*[Ref(O, 0, 1, 1)] * 11)), "put has 11 destinations; it needs 1 to 10"),
    (
        duo(put(Ref(O, 0, 1, 1), Ref(O, 1, 1, 1), src=(Ref(I, 0, 1), Ref(O, 0, 1)))),
        "lie in one buffer",
    ),
    (duo(put(op=Op.PUT_SIGNAL)), "names no channel"),
    (
        duo(put(op=Op.PUT_SIGNAL, channels=(0,)), channels=MEMORY[:1]),
        r"works on port channels only",
    ),
    (
        duo(put(op=Op.PUT_SIGNAL, channels=(0, 1)), channels=PORTS),
        r"channels to ranks \[1, 1\] for destinations at ranks \[1\]",
    ),
    (
        duo(Instruction(Op.READ_REDUCE, COPY.src, COPY.dst)),
        "1 sources; it takes at least 2 sources",
    ),
    (
        duo(
            Instruction(Op.READ_REDUCE, (Ref(I, 0, 1), Ref(I, 0, 1, 1)), COPY.dst, channels=(0,)),
            channels=PORTS,
        ),
        "needs memory channels",
    ),
    (
        duo(Instruction(Op.GET, (Ref(O, 0, 1, 1), Ref(O, 1, 1, 1)), (Ref(O, 0, 1),))),
        "2 sources for 1 destinations",
    ),
    (
        duo(NOP, channels=(Channel(0, "memory", 0),)),
        "channel 0 leads to rank 0",
    ),
    (
        duo(NOP, channels=(Channel(2, "memory", 0),)),
        "channel 0 leads to rank 2",
    ),
    (duo(NOP, channels=(Channel(1, "memory", 1024),)), "at most 1024 run side by side"),
    (replace(duo(NOP), protocol="LL"), "protocol LL, but the program has no packet operations"),
    (replace(duo(NOP), min_bytes=2**31), "min_bytes 2147483648: the loader reads it as a 32-bit"),
    (replace(duo(NOP), name="\ud800"), "a character outside Unicode"),
    (made.ring_allgather(), "holds onesided programs; this one is fifo"),
    (
        replace(duo(NOP), ranks=(RankProgram((), 1, 2, 0), *duo(NOP).ranks[1:])),
        "rank 0 has no thread block",
    ),
    (
        replace(
            duo(NOP),
            ranks=(RankProgram((ThreadBlock((NOP,), send=1),), 1, 2, 0), *duo(NOP).ranks[1:]),
        ),
        "a fifo connection in a onesided program; use channels",
    ),
    (
        replace(
            duo(NOP),
            ranks=(RankProgram((ThreadBlock((NOP,)),) * 109, 1, 2, 0), *duo(NOP).ranks[1:]),
        ),
        "109 thread blocks; mscclpp holds 108",
    ),
]


@pytest.mark.parametrize(("program", "message"), REFUSED)
def test_dumps_refuses_what_the_runtime_would_break(program: Program, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        mscclpp.dumps(program, MSCCLPP)


def test_dumps_refuses_a_put_over_a_channel_to_another_rank() -> None:
    program = wide(2)
    block = ThreadBlock((put(Ref(O, 0, 1, 2), channels=(0,)),), channels=MEMORY[:1])
    rank = replace(program.ranks[0], thread_blocks=(block,))
    with pytest.raises(PlanError, match="none of its channels leads to rank 2"):
        mscclpp.dumps(replace(program, ranks=(rank, *program.ranks[1:])))


def test_dumps_wants_the_right_target() -> None:
    with pytest.raises(PlanError, match="target msccl reads msccl-xml"):
        mscclpp.dumps(made.chain_broadcast(), MSCCL)


# Reading ------------------------------------------------------------------------------------------

Change = Callable[[dict[str, Any]], object]


def changed(change: Change, program: Program | None = None) -> str:
    """The text of a plan after `change` of its document."""
    plan = json.loads(mscclpp.dumps(program or made.pair_allreduce()))
    change(plan)
    return json.dumps(plan)


def block_of(plan: dict[str, Any]) -> dict[str, Any]:
    """Thread block 0 of rank 0."""
    return plan["gpus"][0]["threadblocks"][0]  # type: ignore[no-any-return]


def op_of(plan: dict[str, Any], k: int = 0) -> dict[str, Any]:
    """An operation of thread block 0 of rank 0."""
    return block_of(plan)["ops"][k]  # type: ignore[no-any-return]


def test_a_foreign_plan_is_read_without_our_fields() -> None:
    def strip(plan: dict[str, Any]) -> None:
        del plan["forestcoll"], plan["min_message_size"], plan["buffer_alignment"]
        plan["max_message_size"] = 2**64 - 1
        for gpu in plan["gpus"]:
            for block in gpu["threadblocks"]:
                for op in block["ops"]:
                    op["reduce_op"] = "sum"

    back = mscclpp.loads(changed(strip), "t")
    want = made.pair_allreduce()
    assert back == replace(want, name=back.name)
    assert (back.in_place, back.out_of_place, back.max_bytes) == (True, False, 0)
    assert back.extra == {
        "format": "mscclpp-json",
        "buffer_alignment": "16",
        "num_threads_per_block": "1024",
    }


NOTED: list[tuple[Change, str]] = [
    (lambda p: p.update(protocol="simple"), "protocol is 'simple'"),
    (
        lambda p: p.update(protocol="LL"),
        "protocol 'LL' without packets: the runtime does the same as for 'Simple'",
    ),
    (lambda p: p.update(min_message_size=2**31), "min_message_size is 2147483648"),
    (
        lambda p: op_of(p).update(name="flush"),
        "rank 0, thread block 0, step 0: operation 0 is a flush",
    ),
    (
        lambda p: block_of(p)["ops"].extend([{"name": "nop"}] * 60),
        "rank 0, thread block 0: 66 operations",
    ),
]


@pytest.mark.parametrize(("change", "note"), NOTED)
def test_what_the_runtime_does_differently_is_noted(change: Change, note: str) -> None:
    program = mscclpp.loads(changed(change), "t")
    assert note in program.extra["notes"]


@pytest.mark.parametrize("word", ["gstorepkt", "glre"])
def test_some_of_switches_is_unsupported_with_their_place(word: str) -> None:
    text = changed(lambda p: op_of(p, 2).update(name=word))
    with pytest.raises(
        UnsupportedError,
        match=f"^t: rank 0, thread block 0, step 2: operation 2: '{word}' \\(.*not supported",
    ):
        mscclpp.loads(text, "t")


UNSUPPORTED: list[tuple[Change, str]] = [
    (lambda p: p.update(reuse_resources=True), "reuse_resources .* set it false"),
    (lambda p: p.update(collective="gather"), "collective 'gather' is not supported"),
]


def test_halves_of_scratch_that_others_reach_are_not_supported() -> None:
    text = mscclpp.dumps(programs.reduce_to_root())
    plan = json.loads(text) | {"use_double_scratch_buffer": True}
    with pytest.raises(UnsupportedError, match=r"use_double_scratch_buffer .* puts ignore"):
        mscclpp.loads(json.dumps(plan), "t")


def test_halves_of_scratch_that_nobody_reaches_are_noted() -> None:
    found = mscclpp.loads(changed(lambda p: p.update(use_double_scratch_buffer=True)), "t")
    assert not found.double_scratch
    assert "use_double_scratch_buffer: it doubles scratch" in found.extra["notes"]


@pytest.mark.parametrize(("change", "message"), UNSUPPORTED)
def test_what_this_version_cannot_do_is_said(change: Change, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        mscclpp.loads(changed(change), "t")


def pipelined(p: dict[str, Any]) -> dict[str, Any]:
    """The pipeline of a plan of chain_broadcast."""
    return op_of(p, 2)


WRONG: list[tuple[Change, str, str]] = [
    (
        lambda p: op_of(p).update(channel_type="switch"),
        "MPP-OP-CHANNEL-TYPE",
        "t: rank 0, thread block 0, step 0: operation 0 (signal) works over memory or port channe",
    ),
    (
        lambda p: op_of(p, 3)["src_buff"][0].update(switch_channel_id=0),
        "MPP-OP-OPERANDS",
        "t: rank 0, thread block 0, step 3: src_buff[0] of operation 3 (rres) names type and swit",
    ),
    (
        lambda p: op_of(p, 2).update(name="glres"),
        "MPP-OP-INCOMPLETE",
        "t: rank 0, thread block 0, step 2: operation 2 (glres) works over switch channels, not '",
    ),
    (lambda p: p.pop("name"), "MPP-MISSING", "t: the plan has no 'name'"),
    (lambda p: p.update(name=3), "MPP-TYPE", "t: name of the plan is an integer, not a string"),
    (
        lambda p: p.update(inplace=False),
        "RUN-REFUSED",
        "t: forestcoll contradicts the plan's inplace: false",
    ),
    (
        lambda p: p.update(collective="allredcue"),
        "MPP-COLLECTIVE",
        "t: collective is 'allredcue'; did you mean 'allreduce'?",
    ),
    (lambda p: p.update(gpus=[]), "MPP-RANKS", "t: gpus is empty"),
    (lambda p: p.update(min_message_size=-1), "MPP-MIN-SIZE", "t: min_message_size is -1"),
    (
        lambda p: p.update(min_message_size=2**40),
        "MPP-SIZE-RANGE",
        "t: min_message_size 1099511627776 is above max_message_size 4294967264",
    ),
    (lambda p: p.update(buffer_alignment=0), "MPP-ALIGNMENT", "t: buffer_alignment is 0"),
    (
        lambda p: p["gpus"][0].update(input_chunks=0),
        "MPP-CHUNKS-ZERO",
        "t: rank 0: input_chunks is 0",
    ),
    (
        lambda p: p["gpus"][0].update(output_chunks=10**9),
        "RUN-REFUSED",
        "t: rank 0: output_chunks is 1000000000; at most 262144 (input limit CHUNKS: 262,144)",
    ),
    (
        lambda p: p["gpus"][0].update(scratch_chunks=10**9),
        "RUN-REFUSED",
        "t: rank 0: scratch_chunks is 1000000000; at most 262144 (input limit CHUNKS: 262,144)",
    ),
    (
        lambda p: p["gpus"][0].update(input_chunks=3),
        "MPP-CHUNKS",
        "t: rank 0: 3 input and 2 output chunks do not make a allreduce over 2 ranks",
    ),
    (
        lambda p: p["gpus"][0]["channels"][0].update(channel_type="tcp"),
        "MPP-CHANNEL-TYPE",
        "t: rank 0: channels[0] is of type 'tcp'",
    ),
    (
        lambda p: p["gpus"][0]["channels"][0].update(connected_to=[2, 1]),
        "MPP-PEER",
        "t: rank 0: channels[0] leads to rank 2",
    ),
    (
        lambda p: p["gpus"][0]["channels"][0].update(connected_to=[1]),
        "MPP-TB-CHANNEL-ID",
        "t: rank 0, thread block 0: memory channel 1; the rank has 1",
    ),
    (
        lambda p: p["gpus"][0]["remote_buffers"][0].update(type="x"),
        "MPP-BUFFER-TYPE",
        "t: rank 0: remote_buffers[0] is of type 'x'",
    ),
    (
        lambda p: p["gpus"][0]["remote_buffers"][0].update(access_channel_types=["port"]),
        "MPP-REMOTE-ACCESS",
        "t: rank 0, thread block 0: remote_buffer_refs[0] names remote buffer 0, which is not acc",
    ),
    (
        lambda p: block_of(p).update(id=10**9),
        "MPP-TB-ID",
        "t: rank 0, thread block 0: threadblocks[0] has id 1000000000",
    ),
    (
        lambda p: block_of(p)["remote_buffer_refs"][0].update(remote_buffer_ids=[9]),
        "MPP-REMOTE-ID",
        "t: rank 0, thread block 0: remote_buffer_refs[0] names remote buffer 9; the rank has 2",
    ),
    (
        lambda p: op_of(p).update(name="sginal"),
        "MPP-OP-NAME",
        "t: rank 0, thread block 0, step 0: operation 0 is 'sginal'; did you mean 'signal'?",
    ),
    (
        lambda p: op_of(p).update(channel_ids=[2]),
        "MPP-OP-CHANNEL-ID",
        "t: rank 0, thread block 0, step 0: operation 0 (signal): memory channel 2",
    ),
    (
        lambda p: op_of(p).update(semaphore_ids=[0]),
        "MPP-UNION",
        "t: rank 0, thread block 0, step 0: operation 0 (signal) has channel_ids, semaphore_ids",
    ),
    (
        lambda p: op_of(p, 3)["src_buff"][0].update(index=2),
        "MPP-BOUNDS",
        "t: rank 0, thread block 0, step 3: src_buff[0] of operation 3 (rres): chunks 2 to 2 of b",
    ),
    (
        lambda p: op_of(p, 3)["src_buff"][0].update(size=0),
        "MPP-SIZE-ZERO",
        "t: rank 0, thread block 0, step 3: src_buff[0] of operation 3 (rres) covers 0 chunks",
    ),
    (
        lambda p: op_of(p, 3)["src_buff"][0].update(size=2),
        "MPP-OP-SIZES",
        "t: rank 0, thread block 0, step 3: operation 3 (rres) works on 1, 2 chunks",
    ),
    (
        lambda p: op_of(p, 3)["src_buff"][1].update(buffer_id=7),
        "MPP-BUFFER-ID",
        "t: rank 0, thread block 0, step 3: src_buff[1] of operation 3 (rres): remote buffer 7",
    ),
    (
        lambda p: op_of(p, 3).update(tbg_info={"tb_id": 2, "tbg_size": 2}),
        "MPP-TBG",
        "t: rank 0, thread block 0, step 3: operation 3 (rres): tb_id 2 of tbg_size 2",
    ),
    (
        lambda p: op_of(p, 4).update(num_threadblocks=3),
        "",
        "t: rank 0, thread block 0, step 4 (barrier): barrier 2 of 3 thread blocks",
    ),
    (
        lambda p: op_of(p, 5).update(semaphore_ids=[2]),
        "MPP-SEMAPHORE-ID",
        "t: rank 0, thread block 0, step 5: operation 5 (sem_release): semaphore 2; the rank has 2",
    ),
]


def check_refused(text: str, rule: str, words: str) -> None:
    """It is refused by that rule, in a text that begins so."""
    with pytest.raises(PlanError) as caught:
        mscclpp.loads(text, "t")
    assert (caught.value.rule, str(caught.value)[: len(words)]) == (rule, words)


@pytest.mark.timeout(60)
def test_wrong_plans_are_refused_in_words() -> None:
    for change, rule, words in WRONG:
        check_refused(changed(change), rule, words)


PIPELINES: list[tuple[Change, str, str]] = [
    (
        lambda p: pipelined(p).pop("ops"),
        "MPP-MISSING",
        "t: rank 0, thread block 0, step 2: operation 2 has no 'ops'",
    ),
    (
        lambda p: pipelined(p).update(ops=[]),
        "MPP-PIPE-EMPTY",
        "t: rank 0, thread block 0, step 2: operation 2 has no operations",
    ),
    (
        lambda p: pipelined(p)["iter_context"].update(unit_size=0),
        "MPP-PIPE-UNIT",
        "t: rank 0, thread block 0, step 2: operation 2: unit_size is 0: the loader divides by 0",
    ),
    (
        lambda p: pipelined(p)["iter_context"].update(num_chunks=1),
        "MPP-PIPE-SHORT",
        "t: rank 0, thread block 0, step 2: src_buff[0] of operation 2.0 (put) covers 2 chunks in",
    ),
    (
        lambda p: pipelined(p)["ops"].append({"name": "pipeline"}),
        "MPP-PIPE-NESTED",
        "t: rank 0, thread block 0, step 2: operation 2.3 is a pipeline in a pipeline",
    ),
    (
        lambda p: pipelined(p)["ops"][0].pop("channel_type"),
        "MPP-OP-INCOMPLETE",
        "t: rank 0, thread block 0, step 2: operation 2.0 (put) works over memory or port channel",
    ),
    (
        lambda p: pipelined(p)["ops"][0].update(src_buff=[]),
        "MPP-OP-OPERANDS",
        "t: rank 0, thread block 0, step 2: operation 2.0 (put) has 0 entries in src_buff",
    ),
]


def test_wrong_pipelines_are_refused_in_words() -> None:
    for change, rule, words in PIPELINES:
        check_refused(changed(change, made.chain_broadcast()), rule, words)


GOOD = mscclpp.dumps(made.pair_allreduce())
TEXTS = [
    ("", "MPP-SYNTAX", "t:1: not well-formed JSON: Expecting value"),
    ("[]", "MPP-SYNTAX", "t: the file holds a list; a plan is an object"),
    ("{}", "MPP-MISSING", "t: no 'gpus', so it is no MSCCL++ plan"),
    (
        '{"trees": []}',
        "MPP-MISSING",
        "t: no 'gpus', so it is no MSCCL++ plan; this looks like a forest file",
    ),
    (
        GOOD.replace('"id": 0', '"id": 0, "id": 0', 1),
        "MPP-DUPLICATE-KEY",
        "t: the key 'id' stands twice in one object",
    ),
    (GOOD.replace('"id": 0', '"id": NaN', 1), "MPP-SYNTAX", "t: NaN is no JSON"),
    (GOOD.replace('"id": 0', '"id": -Infinity', 1), "MPP-SYNTAX", "t: -Infinity is no JSON"),
    (
        GOOD.replace('"id": 0', '"id": 0.0', 1),
        "MPP-TYPE",
        "t: rank 0: id of gpus[0] is a number with a point, not an integer",
    ),
    (
        GOOD.replace('"id": 0', '"id": ' + "1" * 5000, 1),
        "MPP-TYPE",
        "t: the number 11111111111111111111... has 5000 digits (input limit PLAN_DIGITS: 25)",
    ),
    (
        '{"gpus":' + "[" * 200000 + "]" * 200000 + "}",
        "MPP-SYNTAX",
        "t: nested too deep to be a plan",
    ),
    (
        '{"gpus":' + '{"a":' * 200000 + "1" + "}" * 200001,
        "MPP-SYNTAX",
        "t: nested too deep to be a plan",
    ),
    (
        '{"gpus": [' + "1," * 2**23 + "1]}",
        "MPP-SYNTAX",
        "t: more than 8388608 values (input limit PLAN_VALUES: 8,388,608)",
    ),
]


@pytest.mark.timeout(60)
def test_texts_that_are_no_plan_are_refused_quickly() -> None:
    for text, rule, words in TEXTS:
        check_refused(text, rule, words)


def test_a_get_between_chunks_is_noted() -> None:
    get = Instruction(Op.GET, (Ref(O, 0, 1, 1),), (Ref(O, 0, 1),))
    text = changed(lambda p: op_of(p)["dst_buff"][0].update(index=1), duo(get))
    assert "the kernel swaps the offsets" in mscclpp.loads(text, "t").extra["notes"]


def test_rooted_plans_of_others_start_at_rank_0() -> None:
    text = changed(lambda p: p.pop("forestcoll"), made.chain_broadcast())
    program = mscclpp.loads(text, "t")
    assert program.root == 0
    assert "rank 0 is assumed" in program.extra["notes"]
