"""MSCCL++ plans: what is written is what the runtime runs, what is read is what it would run."""

from __future__ import annotations

import json
import re
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
    (lambda p: p.update(protocol="simple"), "takes any word but 'LL' for 'Simple'"),
    (lambda p: p.update(protocol="LL"), "protocol 'LL' without packets"),
    (lambda p: p.update(min_message_size=2**31), "reads only 31 bits"),
    (lambda p: op_of(p).update(name="flush"), "operation 0: flush does nothing"),
    (
        lambda p: block_of(p)["ops"].extend([{"name": "nop"}] * 60),
        "cannot run it: .* 66 operations",
    ),
]


@pytest.mark.parametrize(("change", "note"), NOTED)
def test_what_the_runtime_does_differently_is_noted(change: Change, note: str) -> None:
    program = mscclpp.loads(changed(change), "t")
    assert re.search(note, program.extra["notes"])


@pytest.mark.parametrize("word", ["gstorepkt", "glre"])
def test_some_of_switches_is_unsupported_with_their_place(word: str) -> None:
    text = changed(lambda p: op_of(p, 2).update(name=word))
    with pytest.raises(
        UnsupportedError,
        match=f"^t: rank 0, thread block 0, operation 2: '{word}' \\(.*not supported",
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


WRONG: list[tuple[Change, str]] = [
    (lambda p: op_of(p).update(channel_type="switch"), "cannot go over a channel of type 'switch'"),
    (lambda p: op_of(p, 3)["src_buff"][0].update(switch_channel_id=0), "needs either type"),
    (lambda p: op_of(p, 2).update(name="glres"), "'glres' needs a channel of type 'switch'"),
    (lambda p: p.pop("name"), "^t: no 'name'"),
    (lambda p: p.pop("protocol"), "no 'protocol'"),
    (lambda p: p.pop("inplace"), "no 'inplace'"),
    (lambda p: p.pop("gpus"), "no 'gpus', so it is no MSCCL.. plan"),
    (lambda p: p.update(name=3), "name is an integer; it must be a string"),
    (lambda p: p.update(name=None), "name is null; it must be a string"),
    (lambda p: p.update(inplace=1), "inplace is an integer; it must be true or false"),
    (lambda p: p.update(inplace=False), "forestcoll: contradicts the plan's inplace: false"),
    (lambda p: p.update(collective="allredcue"), "did you mean 'allreduce'"),
    (lambda p: p.update(gpus=[]), "0 ranks"),
    (lambda p: p.update(gpus={}), "gpus is an object; it must be a list"),
    (lambda p: p.update(gpus=[1]), "entry 0 is an integer; it must be an object"),
    (lambda p: p.update(min_message_size=1.5), "min_message_size is a number with a point"),
    (lambda p: p.update(min_message_size=-1), "min_message_size -1 is out of range"),
    (lambda p: p.update(min_message_size=2**40), "is larger than max_message_size"),
    (lambda p: p.update(max_message_size=0), "max_message_size 0 serves no size"),
    (lambda p: p.update(buffer_alignment=0), "buffer_alignment 0 is out of range"),
    (lambda p: p["forestcoll"].update(names=["a"]), "forestcoll, names: 1 names for 2 ranks"),
    (lambda p: p["gpus"][0].update(id=1), "rank 0: id 1 at position 0"),
    (lambda p: p["gpus"][0].update(id=True), "rank 0: id is true; it must be an integer"),
    (lambda p: p["gpus"][0].update(input_chunks=0), "rank 0: input_chunks 0 is out of range"),
    (
        lambda p: p["gpus"][0].update(output_chunks=10**9),
        "output_chunks 1000000000 is out of range",
    ),
    (lambda p: p["gpus"][0].update(scratch_chunks=10**9), "scratch_chunks 1000000000"),
    (lambda p: p["gpus"][0].update(input_chunks=3), "needs 3 input and 3 output chunks"),
    (lambda p: p["gpus"][0].pop("channels"), "rank 0: no 'channels'"),
    (lambda p: p["gpus"][0]["channels"][0].update(channel_type="tcp"), "channel type 'tcp'"),
    (lambda p: p["gpus"][0]["channels"][0].update(connected_to=[2, 1]), "entry 0 is 2"),
    (
        lambda p: p["gpus"][0]["channels"][0].update(connected_to=[0, 1]),
        "channel 1 leads to rank 0",
    ),
    (lambda p: p["gpus"][0]["channels"][0].update(connected_to=[1]), "memory 1 does not exist"),
    (lambda p: p["gpus"][0]["channels"][0].update(connected_to=[1] * 1025), "more than 1024"),
    (lambda p: p["gpus"][0]["remote_buffers"][0].update(type="x"), "'x' is no buffer"),
    (
        lambda p: p["gpus"][0]["remote_buffers"][0].update(access_channel_types=["port"]),
        "not listed for access by memory channels",
    ),
    (lambda p: block_of(p).update(id=10**9), "thread block 0: id 1000000000 at position 0"),
    (lambda p: block_of(p)["channels"][0].update(channel_ids=[2, 0]), "memory 2 does not exist"),
    (lambda p: block_of(p)["remote_buffer_refs"][0].update(remote_buffer_ids=[9]), "buffer 9 does"),
    (lambda p: block_of(p).update(ops=[1]), "entry 0 is an integer"),
    (lambda p: op_of(p).update(name="sginal"), "did you mean 'signal'"),
    (lambda p: op_of(p).update(channel_ids=[2]), "operation 0, channel_ids: memory channel 2"),
    (lambda p: op_of(p).update(channel_ids=[-1]), "entry 0 is -1"),
    (lambda p: op_of(p).update(channel_ids="0"), "channel_ids is a string; it must be a list"),
    (lambda p: op_of(p).pop("channel_type"), "channel_ids without channel_type"),
    (lambda p: op_of(p).update(src_buff=[{"type": "i", "index": 0, "size": 1}]), "has no buffers"),
    (lambda p: op_of(p).update(semaphore_ids=[0]), "takes no semaphores"),
    (
        lambda p: op_of(p, 3)["src_buff"][0].update(index=2),
        "1 chunks at offset 2 of rank 0's input",
    ),
    (lambda p: op_of(p, 3)["src_buff"][0].update(index=10**9), "index 1000000000 is out of range"),
    (lambda p: op_of(p, 3)["src_buff"][0].update(size=0), "size 0 is out of range"),
    (lambda p: op_of(p, 3)["src_buff"][0].update(size=2), "operands have 2, 1|chunks"),
    (lambda p: op_of(p, 3)["src_buff"][0].update(buffer_id=0), "either type .* or buffer_id"),
    (lambda p: op_of(p, 3)["src_buff"][1].update(buffer_id=7), "list that it points into has 2"),
    (lambda p: op_of(p, 3).update(channel_type="none"), "buffer_id in an operation without"),
    (lambda p: op_of(p, 3).update(tbg_info={"tb_id": 2, "tbg_size": 2}), "part 2 of 2"),
    (lambda p: op_of(p, 3).update(tbg_info={"tb_id": 2}), "no 'tbg_size'"),
    (lambda p: op_of(p, 4).update(num_threadblocks=3), "barrier 2 of 3 thread blocks"),
    (lambda p: op_of(p, 5).update(semaphore_ids=[2]), "semaphore 2; rank 0 has 2"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
@pytest.mark.timeout(10)
def test_wrong_plans_are_refused_in_words(change: Change, message: str) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        mscclpp.loads(changed(change), "t")
    assert str(caught.value).startswith("t: ")


PIPELINES: list[tuple[Change, str]] = [
    (lambda p: pipelined(p).pop("ops"), "operation 2: no 'ops'"),
    (lambda p: pipelined(p).update(ops=[]), "a pipeline needs a body of plain instructions"),
    (lambda p: pipelined(p).pop("iter_context"), "no 'iter_context'"),
    (lambda p: pipelined(p)["iter_context"].update(unit_size=0), "unit_size 0 is out of range"),
    (lambda p: pipelined(p)["iter_context"].update(unit_size=2**32), "unit_size 4294967296"),
    (lambda p: pipelined(p)["iter_context"].update(num_chunks=1), "2 chunks in a pipeline over 1"),
    (
        lambda p: pipelined(p)["ops"].append({"name": "pipeline"}),
        "operation 2.3: a pipeline in a pipe",
    ),
    (lambda p: pipelined(p)["ops"][0].pop("channel_type"), "put without channel_type|buffer_id in"),
    (lambda p: pipelined(p)["ops"][0].update(src_buff=[]), "0 sources for 1 destinations"),
]


@pytest.mark.parametrize(("change", "message"), PIPELINES)
def test_wrong_pipelines_are_refused_in_words(change: Change, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        mscclpp.loads(changed(change, made.chain_broadcast()), "t")


GOOD = mscclpp.dumps(made.pair_allreduce())
TEXTS = [
    ("", "t:1: not well-formed JSON"),
    ("[]", "holds a list; a plan is an object"),
    ("{}", "no 'gpus', so it is no MSCCL"),
    ('{"trees": []}', "this looks like a forest file"),
    (GOOD.replace('"id": 0', '"id": 0, "id": 0', 1), "the key 'id' stands twice in one object"),
    (GOOD.replace('"id": 0', '"id": NaN', 1), "NaN is no JSON"),
    (GOOD.replace('"id": 0', '"id": -Infinity', 1), "-Infinity is no JSON"),
    (GOOD.replace('"id": 0', '"id": 0.0', 1), "id is a number with a point"),
    (GOOD.replace('"id": 0', '"id": ' + "1" * 5000, 1), "has 5000 digits"),
    ('{"gpus":' + "[" * 200000 + "]" * 200000 + "}", "nested too deep"),
    ('{"gpus":' + '{"a":' * 200000 + "1" + "}" * 200001, "nested too deep"),
    ('{"gpus": [' + "1," * 2**23 + "1]}", "more than 8388608 values"),
]


@pytest.mark.parametrize(("text", "message"), TEXTS, ids=range(len(TEXTS)))
@pytest.mark.timeout(20)
def test_texts_that_are_no_plan_are_refused_quickly(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        mscclpp.loads(text, "t")


def test_a_get_between_chunks_is_noted() -> None:
    get = Instruction(Op.GET, (Ref(O, 0, 1, 1),), (Ref(O, 0, 1),))
    text = changed(lambda p: op_of(p)["dst_buff"][0].update(index=1), duo(get))
    assert "the runtime swaps the two" in mscclpp.loads(text, "t").extra["notes"]


def test_rooted_plans_of_others_start_at_rank_0() -> None:
    text = changed(lambda p: p.pop("forestcoll"), made.chain_broadcast())
    program = mscclpp.loads(text, "t")
    assert program.root == 0
    assert "rank 0 is assumed" in program.extra["notes"]
