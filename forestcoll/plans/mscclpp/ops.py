"""Rules of the operations of an MSCCL++ plan, one thread block at a time.

What the kernel does with each (microsoft/mscclpp 1f5f065d, execution_kernel.hpp) decides; the
loader checks names and types only.
"""

from __future__ import annotations

from typing import Any

from forestcoll.errors import did_you_mean
from forestcoll.plans.findings import At
from forestcoll.plans.mscclpp.operands import (
    DATA_WORDS,
    GROUPS,
    SEMAPHORE_WORDS,
    SYNC_WORDS,
    check_data,
    check_unused_data,
)
from forestcoll.plans.mscclpp.rules import ALIGNMENT, MAX_BARRIERS, MAX_SEMAPHORES
from forestcoll.plans.mscclpp.scene import Scene, check_ids
from forestcoll.plans.mscclpp.text import Access, kind
from forestcoll.plans.mscclpp.values import Block, Plan
from forestcoll.targets import Target

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
        scene = Scene({**at, "step": s}, plan, plan.ranks[r], block, r, access, f"operation {s}")
        if op.get("name") == "pipeline":
            _check_pipeline(op, scene)
        else:
            _check_operation(op, scene)


def _check_pipeline(op: dict[str, Any], scene: Scene) -> None:
    out, at, access = scene.access.out, scene.at, scene.access
    _check_groups(op, scene)
    if scene.loop:
        out.add("MPP-PIPE-NESTED", f"{scene.where} is a pipeline in a pipeline", **at)
        return
    if "iter_context" not in op:
        out.add("MPP-MISSING", f"{scene.where} (pipeline) has no object iter_context", **at)
        return
    chunks, unit = _check_context(op, scene)
    if not isinstance(op["iter_context"], dict):
        return
    if unit is not None and chunks is not None:
        scene.plan.pipelines.add((chunks, unit))
    body = access.objects(op, "ops", scene.where, at)
    if "ops" in op and not body:
        out.add("MPP-PIPE-EMPTY", f"{scene.where} has no operations", **at)
    for k, item in enumerate(body):
        if len(item) == 1 and item.get("name") == "nop":
            continue
        inside = Scene(
            at, scene.plan, scene.rank, scene.block, scene.number, access,
            f"{scene.where}.{k}", chunks or -1,
        )  # fmt: skip
        if item.get("name") == "pipeline":
            _check_pipeline(item, inside)
        else:
            _check_operation(item, inside)


def _read_context(op: dict[str, Any], scene: Scene) -> tuple[int | None, int | None]:
    """(num_chunks, unit_size), which the loader reads whatever the operation is."""
    out, at, access = scene.access.out, scene.at, scene.access
    context = op["iter_context"]
    if not isinstance(context, dict):
        out.add("MPP-TYPE", f"iter_context of {scene.where} is {kind(context)}, not an object",
                **at)  # fmt: skip
        return None, None
    chunks = access.integer(context, "num_chunks", scene.where, at)
    unit = access.integer(context, "unit_size", scene.where, at)
    if unit is not None and unit % 2**32 == 0:
        out.add("MPP-PIPE-UNIT", f"{scene.where}: unit_size is {unit}: the loader divides by 0",
                **at)  # fmt: skip
        unit = None
    return chunks, unit


def _check_context(op: dict[str, Any], scene: Scene) -> tuple[int | None, int | None]:
    """The same of a pipeline, which also goes by them."""
    out, at = scene.access.out, scene.at
    chunks, unit = _read_context(op, scene)
    if unit is not None and (unit < ALIGNMENT or unit % ALIGNMENT or unit >= 2**32):
        out.add("MPP-PIPE-UNIT", f"{scene.where}: unit_size is {unit}", **at)
        unit = None
    if chunks is not None and chunks < 1:
        out.add("MPP-PIPE-CHUNKS", f"{scene.where}: num_chunks is {chunks}", **at)
        chunks = None
    return chunks, unit


def _check_operation(op: dict[str, Any], scene: Scene) -> None:
    out, at = scene.access.out, scene.at
    name = scene.access.text(op, "name", scene.where, at)
    if name is None:
        return
    if name not in GROUPS:
        hint = UNKNOWN.get(name) or did_you_mean(name[:40], NAMES)
        out.add("MPP-OP-NAME", f"{scene.where} is {name[:40]!r}{hint}", **at)
        return
    _check_groups(op, scene)
    _check_unused(op, name, scene)
    if name in DATA_WORDS:
        check_data(op, name, scene)
    elif name in SYNC_WORDS:
        _check_sync(op, name, scene)
    elif name in SEMAPHORE_WORDS:
        _check_semaphores(op, name, scene)
    elif name == "barrier":
        _check_barrier(op, scene)


def _check_unused(op: dict[str, Any], name: str, scene: Scene) -> None:
    """What the loader reads although the operation does not use it: wrong, it aborts too.

    Behind an array's end it writes over other fields (execution_plan.cc:478-599).
    """
    out, at, access = scene.access.out, scene.at, scene.access
    own = GROUPS[name]
    if "iter_context" in op:
        _read_context(op, scene)
        access.objects(op, "ops", scene.where, at)
    if own != "data":
        check_unused_data(op, name, scene)
    if own != "barrier":
        for key in ("barrier_id", "num_threadblocks"):
            access.optional(op, key, 0, scene.where, at)
    if own != "semaphore" and "semaphore_ids" in op:
        ids = access.integers(op, "semaphore_ids", scene.where, at)
        if len(ids) > MAX_SEMAPHORES:
            out.add("MPP-SEMAPHORES", f"{scene.where} ({name}) names {len(ids)} semaphores", **at)


_FIELDS = {
    "channel_ids": "data", "src_buff": "data", "dst_buff": "data", "tbg_info": "data",
    "iter_context": "loop", "ops": "loop", "barrier_id": "barrier", "num_threadblocks": "barrier",
    "semaphore_ids": "semaphore",
}  # fmt: skip


def _check_groups(op: dict[str, Any], scene: Scene) -> None:
    """The loader writes every group of fields that is there into the same bytes."""
    found = {_FIELDS[key] for key in op if key in _FIELDS and key not in ("ops", "tbg_info")}
    own = GROUPS.get(str(op.get("name")), "")
    if len(found) > 1:
        keys = ", ".join(key for key in op if key in _FIELDS)
        scene.access.out.add(
            "MPP-UNION", f"{scene.where} ({op.get('name')}) has {keys}", **scene.at
        )
    elif found and found != {own}:
        keys = ", ".join(key for key in op if key in _FIELDS)
        scene.access.out.add(
            "MPP-FIELD-UNUSED", f"{scene.where} ({op.get('name')}) has {keys}", **scene.at
        )


def _check_sync(op: dict[str, Any], name: str, scene: Scene) -> None:
    out, at = scene.access.out, scene.at
    kind = op.get("channel_type")
    if kind not in ("memory", "port"):
        out.add("MPP-OP-CHANNEL-TYPE" if "channel_type" in op else "MPP-OP-INCOMPLETE",
                f"{scene.where} ({name}) works over memory or port channels, not "
                f"{str(kind)[:40]!r}", **at)  # fmt: skip
        return
    ids = check_ids(op, name, kind, scene)
    if not ids:
        out.add("MPP-OP-INCOMPLETE", f"{scene.where} ({name}) names no channel", **at)
    if len(set(ids)) < len(ids):
        out.add("MPP-CHANNEL-TWICE", f"{scene.where} ({name}) names a channel twice", **at)
    if name == "flush":
        out.add("MPP-FLUSH", f"{scene.where} is a flush", **at)


def _check_semaphores(op: dict[str, Any], name: str, scene: Scene) -> None:
    out, at = scene.access.out, scene.at
    ids = []
    if "semaphore_ids" in op:
        ids = scene.access.integers(op, "semaphore_ids", scene.where, at)
    if not ids:
        out.add("MPP-OP-INCOMPLETE", f"{scene.where} ({name}) names no semaphore", **at)
    if len(ids) > MAX_SEMAPHORES or len(set(ids)) < len(ids):
        out.add("MPP-SEMAPHORES", f"{scene.where} ({name}) names {len(ids)} semaphores, "
                f"{len(set(ids))} of them different", **at)  # fmt: skip
    for number in ids:
        if not 0 <= number < scene.rank.semaphores:
            out.add("MPP-SEMAPHORE-ID", f"{scene.where} ({name}): semaphore {number}; the rank has "
                    f"{scene.rank.semaphores}", **at)  # fmt: skip


def _check_barrier(op: dict[str, Any], scene: Scene) -> None:
    out, at, access = scene.access.out, scene.at, scene.access
    for key in ("barrier_id", "num_threadblocks"):
        if key not in op:
            out.add("MPP-OP-INCOMPLETE", f"{scene.where} (barrier) has no {key}", **at)
    number = access.optional(op, "barrier_id", 0, scene.where, at)
    if not 0 <= number < MAX_BARRIERS:
        out.add("MPP-BARRIER-ID", f"{scene.where} is barrier {number}", **at)
    count = access.optional(op, "num_threadblocks", 1, scene.where, at)
    if count < 1:
        out.add("MPP-BARRIER-UNMATCHED", f"{scene.where} is for {count} thread blocks", **at)
