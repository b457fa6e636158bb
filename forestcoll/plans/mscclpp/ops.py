"""Rules of the operations of an MSCCL++ plan, one thread block at a time.

What the kernel does with each (microsoft/mscclpp 1f5f065d, execution_kernel.hpp) decides; the
loader checks names and types only.
"""

from __future__ import annotations

from typing import Any

from forestcoll.common.errors import did_you_mean
from forestcoll.plans.findings import At
from forestcoll.plans.mscclpp.op_context import OpContext, check_ids
from forestcoll.plans.mscclpp.operands import (
    DATA_WORDS,
    GROUPS,
    SEMAPHORE_WORDS,
    SYNC_WORDS,
    check_data,
    check_unused_data,
)
from forestcoll.plans.mscclpp.rules import ALIGNMENT, MAX_BARRIERS, MAX_SEMAPHORES
from forestcoll.plans.mscclpp.text import Access, kind
from forestcoll.plans.mscclpp.values import Block, Plan
from forestcoll.program.targets import Target

NAMES = (*DATA_WORDS, *SYNC_WORDS, *SEMAPHORE_WORDS, "nop", "barrier", "pipeline")
UNKNOWN = {"glre": "; the executor has the fused glres only"}


def lint_operations(
    r: int, b: int, entry: dict[str, Any], block: Block, plan: Plan, target: Target, access: Access
) -> None:
    """Note what is wrong with the operations of a thread block."""
    out = access.out
    at: At = {"rank": r, "block": b}
    ops = access.objects(entry, "ops", f"threadblocks[{b}]", at)
    inner = sum(len(op["ops"]) for op in ops if isinstance(op.get("ops"), list))
    if len(ops) + inner > target.steps:
        out.add("MPP-OPS", f"{len(ops) + inner} operations", **at)
    for s, op in enumerate(ops):
        if len(op) == 1 and op.get("name") == "nop":
            continue  # by far the most frequent
        here = OpContext({**at, "step": s}, plan, plan.ranks[r], block, r, access, f"operation {s}")
        if op.get("name") == "pipeline":
            _check_pipeline(op, here)
        else:
            _check_operation(op, here)
    _check_threads(ops, at, access)


def _check_threads(ops: list[dict[str, Any]], at: At, access: Access) -> None:
    """Between barriers, one thread alone signals on a memory channel."""
    last: dict[object, tuple[int, int]] = {}  # channel -> thread, step
    for s, op in enumerate(ops):
        body = op.get("ops") if op.get("name") == "pipeline" else [op]
        for one in 2 * body if isinstance(body, list) else ():  # a round meets the next one
            name = one.get("name") if isinstance(one, dict) else None
            if name in ("nop", "barrier"):
                last.clear()
            if name not in ("signal", "rlxsignal") or one.get("channel_type") != "memory":
                continue
            ids = one.get("channel_ids")
            for thread, channel in enumerate(ids if isinstance(ids, list) else ()):
                if not isinstance(channel, int):
                    continue
                other, step = last.setdefault(channel, (thread, s))
                if other != thread:
                    here: At = {**at, "step": s}
                    access.out.add("MPP-SIGNAL-THREADS", f"thread {thread} signals on channel "
                                   f"{channel}, as thread {other} does in operation {step}",
                                   **here)  # fmt: skip


def _check_pipeline(op: dict[str, Any], here: OpContext) -> None:
    out, at, access = here.access.out, here.at, here.access
    _check_groups(op, here)
    if here.loop:
        out.add("MPP-PIPE-NESTED", f"{here.where} is a pipeline in a pipeline", **at)
        return
    if "iter_context" not in op:
        out.add("MPP-MISSING", f"{here.where} (pipeline) has no object iter_context", **at)
        return
    chunks, unit = _check_context(op, here)
    if not isinstance(op["iter_context"], dict):
        return
    if unit is not None and chunks is not None:
        here.plan.pipelines.add((chunks, unit))
    body = access.objects(op, "ops", here.where, at)
    if "ops" in op and not body:
        out.add("MPP-PIPE-EMPTY", f"{here.where} has no operations", **at)
    for k, item in enumerate(body):
        if len(item) == 1 and item.get("name") == "nop":
            continue
        inside = OpContext(
            at, here.plan, here.rank, here.block, here.number, access,
            f"{here.where}.{k}", chunks or -1,
        )  # fmt: skip
        if item.get("name") == "pipeline":
            _check_pipeline(item, inside)
        else:
            _check_operation(item, inside)


def _read_context(op: dict[str, Any], here: OpContext) -> tuple[int | None, int | None]:
    """(num_chunks, unit_size), which the loader reads whatever the operation is."""
    out, at, access = here.access.out, here.at, here.access
    context = op["iter_context"]
    if not isinstance(context, dict):
        out.add("MPP-TYPE", f"iter_context of {here.where} is {kind(context)}, not an object",
                **at)  # fmt: skip
        return None, None
    chunks = access.integer(context, "num_chunks", here.where, at)
    unit = access.integer(context, "unit_size", here.where, at)
    if unit is not None and unit % 2**32 == 0:
        out.add("MPP-PIPE-UNIT", f"{here.where}: unit_size is {unit}: the loader divides by 0",
                **at)  # fmt: skip
        unit = None
    return chunks, unit


def _check_context(op: dict[str, Any], here: OpContext) -> tuple[int | None, int | None]:
    """The same of a pipeline, which also goes by them."""
    out, at = here.access.out, here.at
    chunks, unit = _read_context(op, here)
    if unit is not None and (unit < ALIGNMENT or unit % ALIGNMENT or unit >= 2**32):
        out.add("MPP-PIPE-UNIT", f"{here.where}: unit_size is {unit}", **at)
        unit = None
    if chunks is not None and chunks < 1:
        out.add("MPP-PIPE-CHUNKS", f"{here.where}: num_chunks is {chunks}", **at)
        chunks = None
    return chunks, unit


def _check_operation(op: dict[str, Any], here: OpContext) -> None:
    out, at = here.access.out, here.at
    name = here.access.text(op, "name", here.where, at)
    if name is None:
        return
    if name not in GROUPS:
        hint = UNKNOWN.get(name) or did_you_mean(name[:40], NAMES)
        out.add("MPP-OP-NAME", f"{here.where} is {name[:40]!r}{hint}", **at)
        return
    _check_groups(op, here)
    _check_unused(op, name, here)
    if name in DATA_WORDS:
        check_data(op, name, here)
    elif name in SYNC_WORDS:
        _check_sync(op, name, here)
    elif name in SEMAPHORE_WORDS:
        _check_semaphores(op, name, here)
    elif name == "barrier":
        _check_barrier(op, here)


def _check_unused(op: dict[str, Any], name: str, here: OpContext) -> None:
    """What the loader reads although the operation does not use it: wrong, it aborts too.

    Behind an array's end it writes over other fields (execution_plan.cc:478-599).
    """
    out, at, access = here.access.out, here.at, here.access
    own = GROUPS[name]
    if "iter_context" in op:
        _read_context(op, here)
        access.objects(op, "ops", here.where, at)
    if own != "data":
        check_unused_data(op, name, here)
    if own != "barrier":
        for key in ("barrier_id", "num_threadblocks"):
            access.optional(op, key, 0, here.where, at)
    if own != "semaphore" and "semaphore_ids" in op:
        ids = access.integers(op, "semaphore_ids", here.where, at)
        if len(ids) > MAX_SEMAPHORES:
            out.add("MPP-SEMAPHORES", f"{here.where} ({name}) names {len(ids)} semaphores", **at)


_FIELDS = {
    "channel_ids": "data", "src_buff": "data", "dst_buff": "data", "tbg_info": "data",
    "iter_context": "loop", "ops": "loop", "barrier_id": "barrier", "num_threadblocks": "barrier",
    "semaphore_ids": "semaphore",
}  # fmt: skip


def _check_groups(op: dict[str, Any], here: OpContext) -> None:
    """The loader writes every group of fields that is there into the same bytes."""
    found = {_FIELDS[key] for key in op if key in _FIELDS and key not in ("ops", "tbg_info")}
    own = GROUPS.get(str(op.get("name")), "")
    if len(found) > 1:
        keys = ", ".join(key for key in op if key in _FIELDS)
        here.access.out.add("MPP-UNION", f"{here.where} ({op.get('name')}) has {keys}", **here.at)
    elif found and found != {own}:
        keys = ", ".join(key for key in op if key in _FIELDS)
        here.access.out.add(
            "MPP-FIELD-UNUSED", f"{here.where} ({op.get('name')}) has {keys}", **here.at
        )


def _check_sync(op: dict[str, Any], name: str, here: OpContext) -> None:
    out, at = here.access.out, here.at
    kind = op.get("channel_type")
    if kind not in ("memory", "port"):
        out.add("MPP-OP-CHANNEL-TYPE" if "channel_type" in op else "MPP-OP-INCOMPLETE",
                f"{here.where} ({name}) works over memory or port channels, not "
                f"{str(kind)[:40]!r}", **at)  # fmt: skip
        return
    ids = check_ids(op, name, kind, here)
    if not ids:
        out.add("MPP-OP-INCOMPLETE", f"{here.where} ({name}) names no channel", **at)
    if len(set(ids)) < len(ids):
        out.add("MPP-CHANNEL-TWICE", f"{here.where} ({name}) names a channel twice", **at)
    if name == "flush":
        out.add("MPP-FLUSH", f"{here.where} is a flush", **at)


def _check_semaphores(op: dict[str, Any], name: str, here: OpContext) -> None:
    out, at = here.access.out, here.at
    ids = []
    if "semaphore_ids" in op:
        ids = here.access.integers(op, "semaphore_ids", here.where, at)
    if not ids:
        out.add("MPP-OP-INCOMPLETE", f"{here.where} ({name}) names no semaphore", **at)
    if len(ids) > MAX_SEMAPHORES or len(set(ids)) < len(ids):
        out.add("MPP-SEMAPHORES", f"{here.where} ({name}) names {len(ids)} semaphores, "
                f"{len(set(ids))} of them different", **at)  # fmt: skip
    for number in ids:
        if not 0 <= number < here.rank.semaphores:
            out.add("MPP-SEMAPHORE-ID", f"{here.where} ({name}): semaphore {number}; the rank has "
                    f"{here.rank.semaphores}", **at)  # fmt: skip


def _check_barrier(op: dict[str, Any], here: OpContext) -> None:
    out, at, access = here.access.out, here.at, here.access
    for key in ("barrier_id", "num_threadblocks"):
        if key not in op:
            out.add("MPP-OP-INCOMPLETE", f"{here.where} (barrier) has no {key}", **at)
    number = access.optional(op, "barrier_id", 0, here.where, at)
    if not 0 <= number < MAX_BARRIERS:
        out.add("MPP-BARRIER-ID", f"{here.where} is barrier {number}", **at)
    count = access.optional(op, "num_threadblocks", 1, here.where, at)
    if count < 1:
        out.add("MPP-BARRIER-UNMATCHED", f"{here.where} is for {count} thread blocks", **at)
