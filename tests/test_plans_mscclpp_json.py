"""MSCCL++ plans: what is written is what the runtime runs. (rows/: what is read.)"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from programs import base, edit, write_random

from forestcoll import plans
from forestcoll.plans import mscclpp
from forestcoll.program import OPERATIONS, Instruction, Pipeline, Program, ThreadBlock
from forestcoll.program.targets import MSCCLPP


def duo(*edits: str) -> Program:
    """An allgather of two ranks that do nothing, edited."""
    return edit(base("duo"), *edits)


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


@pytest.mark.parametrize("name", ["chain", "sums", "duo", "reduce_to_root"])
def test_written_and_read_back_is_equal(name: str) -> None:
    program = base(name)
    for target in (None, MSCCLPP):
        text = mscclpp.dumps(program, target)
        back = plans.loads(text, "t")
        assert back == program
        assert "notes" not in back.extra
        check_plan(text, program)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**40))
def test_random_programs_survive_and_resolve(seed: int) -> None:
    made = write_random(seed, "onesided")
    assume(made is not None)
    program, text = made  # type: ignore[misc]
    assert mscclpp.loads(text, "t") == program
    assert mscclpp.dumps(mscclpp.loads(text, "t")) == text
    assert max(map(len, text.splitlines())) <= 100 or program.names
    check_plan(text, program)


def test_names_differ_when_plans_differ() -> None:
    def name(program: Program, **more: Any) -> str:
        return str(json.loads(mscclpp.dumps(program, **more))["name"])

    program = base("chain")
    assert name(program) == name(program)
    assert name(program) != name(replace(program, min_bytes=16))
    assert name(program) != name(program, in_place=False)
    assert name(replace(program, name="a.broadcast")).startswith("a.broadcast.")
    assert name(replace(program, name="")).startswith("broadcast.")


def test_in_place_is_chosen_and_both_flags_survive() -> None:
    both = base("chain")
    for choice, written in ((None, True), (True, True), (False, False)):
        text = mscclpp.dumps(both, in_place=choice)
        assert json.loads(text)["inplace"] is written
        assert mscclpp.loads(text, "t") == both
    gather = replace(duo(), in_place=True, out_of_place=True)
    assert json.loads(mscclpp.dumps(gather))["inplace"] is False
    assert json.loads(mscclpp.dumps(gather, in_place=True))["inplace"] is True
    only = replace(gather, out_of_place=False)
    assert json.loads(mscclpp.dumps(only))["inplace"] is True


def test_the_largest_size_is_what_the_device_can_count() -> None:
    program = duo("*.scratch = 3")  # scratch holds 3 chunks, the data 2
    assert mscclpp.largest_size(program) == (2**32 - 1) // 3 // 16 * 16 * 2
    tight = duo('0.0.0 = {"chunks": 1, "unit": 1024, "steps": ["nop"]}')
    assert mscclpp.largest_size(tight) == 65535 * 1024 * 2
    text = mscclpp.dumps(tight)
    assert json.loads(text)["max_message_size"] == 65535 * 1024 * 2
    assert mscclpp.loads(text, "t") == tight
    exact = replace(tight, max_bytes=65535 * 1024 * 2)
    assert mscclpp.loads(mscclpp.dumps(exact), "t") == exact
