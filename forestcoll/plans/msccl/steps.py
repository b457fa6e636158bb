"""Rules of <step>: types, buffers and bounds, and what waits for what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from forestcoll.common.errors import did_you_mean
from forestcoll.plans.findings import At, Findings
from forestcoll.plans.msccl.algo import Buffers
from forestcoll.plans.msccl.blocks import RECEIVING, SENDING, Block
from forestcoll.plans.msccl.rules import MAX_OFFSET
from forestcoll.plans.msccl.tags import Numbers, Tag
from forestcoll.plans.msccl.text import STEP_TYPES
from forestcoll.program import BY_XML, FUSED, OPERATIONS
from forestcoll.program.targets import Target

READS = frozenset(word for word, op in BY_XML.items() if OPERATIONS[op].src[1])
WRITES = frozenset(word for word, op in BY_XML.items() if OPERATIONS[op].dst[1])
# Which sides the loader looks at, and only at the offset (msccl_parser.cc 270-288).
CHECKED = {"s": "s", "rrs": "s", "r": "d", "rcs": "d", "rrcs": "sd", "cpy": "sd", "re": "sd"}
MAX_WAITED_FOR = 127
MAX_JOINED = 15  # re, and the place itself: operands of one addition
KEYS = ("srcoff", "dstoff", "cnt", "depid", "deps", "hasdep", "s")


class Step(NamedTuple):
    """A step as far as it could be read."""

    line: int
    type: str
    srcbuf: str
    srcoff: int | None
    dstbuf: str
    dstoff: int | None
    cnt: int | None
    depid: int | None
    deps: int | None
    hasdep: int | None
    s: int | None


@dataclass(slots=True)
class Lane:
    """A thread block's steps, and where each stands in the device's count (None: dropped)."""

    block: Block
    steps: list[Step]
    position: list[int | None]


def read_lane(
    rank: int, block: Block, buffers: Buffers, target: Target, reach: dict[str, int],
    numbers: Numbers,
) -> Lane:  # fmt: skip
    """The steps of a thread block, each checked for itself; `reach` grows by what they touch."""
    out = numbers.out
    at: At = {"rank": rank, "block": block.id, "line": block.tag.line}
    tags = block.tag.children
    if len(tags) > target.steps:
        out.add("XML-STEP-COUNT", f"{len(tags)} steps", **at)
    steps: list[Step] = []
    position: list[int | None] = []
    count = 0
    for k, tag in enumerate(tags):
        step = _read_step(rank, block.id, k, tag, numbers)
        steps.append(step)
        dropped = step.type == "nop" and step.depid == -1
        position.append(None if dropped else count)
        count += not dropped
        _check_step(rank, block, k, step, buffers, target, reach, out)
    return Lane(block, steps, position)


def _read_step(rank: int, b: int, k: int, tag: Tag, numbers: Numbers) -> Step:
    found = tag.attributes
    values: dict[str, int | None] = {}
    for key in KEYS:
        values[key] = numbers.get(tag, key, rank, b)
    words = []
    for key in ("type", "srcbuf", "dstbuf"):
        word = found.get(key)
        if word is None:
            numbers.out.add("XML-MISSING", f"<step> has no {key}",
                            rank=rank, block=b, step=k, line=tag.line)  # fmt: skip
        words.append(word or "")
    return Step(
        tag.line, words[0], words[1], values["srcoff"], words[2], values["dstoff"],
        values["cnt"], values["depid"], values["deps"], values["hasdep"], values["s"],
    )  # fmt: skip


def _check_step(
    rank: int, block: Block, k: int, step: Step, buffers: Buffers, target: Target,
    reach: dict[str, int], out: Findings,
) -> None:  # fmt: skip
    at: At = {"rank": rank, "block": block.id, "step": k, "line": step.line}
    kind = step.type
    if kind and kind not in STEP_TYPES:
        out.add(
            "XML-STEP-TYPE", f"type is {kind[:40]!r}{did_you_mean(kind[:40], STEP_TYPES)}", **at
        )
        return
    if BY_XML.get(kind) in FUSED and not target.fused:
        out.add("RCCL-FUSED", f"{kind} is refused at the first call", **at)
    for key, peer, ops in (("send", block.send, SENDING), ("recv", block.recv, RECEIVING)):
        if kind in ops and peer == -1:
            out.add("XML-DIRECTION", f"{kind}, but {key} of the thread block is -1", **at)
    if step.hasdep not in (0, 1, None):
        out.add("XML-FLAG", f"hasdep is {step.hasdep}", **at)
    for key, word in (("srcbuf", step.srcbuf), ("dstbuf", step.dstbuf)):
        if word and word not in ("i", "o", "s"):
            out.add("XML-BUFFER", f"{key} is {word[:40]!r}", **at)
    if kind == "nop":
        return
    count = step.cnt
    if count is not None and not 1 <= count <= target.count:
        out.add("XML-COUNT", f"cnt is {count}", **at)
        count = None
    for side, used, letter, offset in (
        ("src", kind in READS, step.srcbuf, step.srcoff),
        ("dst", kind in WRITES, step.dstbuf, step.dstoff),
    ):
        if used and letter in ("i", "o", "s") and offset is not None:
            checked = side[0] in CHECKED.get(kind, "")
            text = _beyond(letter, offset, count or 1, buffers, checked)
            if text:
                out.add("XML-BOUNDS", f"{side} of {kind}: {text}", **at)
            elif offset > MAX_OFFSET:
                out.add("XML-OFFSET-16", f"{side}off is {offset}; 16 bits hold {MAX_OFFSET}", **at)
            if offset + (count or 1) > reach.get(letter, 0):
                reach[letter] = offset + (count or 1)


def _beyond(letter: str, offset: int, count: int, buffers: Buffers, checked: bool) -> str:
    """What is wrong with chunks [offset, offset + count) of a buffer, or nothing."""
    real, told = buffers.real.get(letter), buffers.told.get(letter)
    if offset < 0:
        return f"offset {offset}"
    if real is not None and offset + count > real:
        return f"chunks {offset} to {offset + count - 1} of buffer {letter!r}, which holds {real}"
    if checked and told is not None and offset >= told:
        return f"offset {offset}, but the gpu says that buffer {letter!r} holds {told}: refused"
    return ""


# --- what waits for what --------------------------------------------------------------------------


def check_dependencies(rank: int, lanes: dict[int, Lane], target: Target, out: Findings) -> None:
    """Dependencies of all thread blocks of a rank: their targets, flags, nops, and numbering."""
    wanted: dict[int, set[int]] = {}  # thread block -> positions that others wait for
    for b, lane in sorted(lanes.items()):
        for k, step in enumerate(lane.steps):
            _check_wait(rank, b, k, step, lanes, wanted, out)
        _check_nops(rank, b, lane, out)
        _check_reductions(rank, b, lane, out)
        _check_joined(rank, b, lane, target, out)
    for b, lane in sorted(lanes.items()):
        _check_numbering(rank, b, lane, wanted.get(b, set()), out)
        _check_flags(rank, b, lane, wanted.get(b, set()), out)


def _check_wait(
    rank: int, b: int, k: int, step: Step, lanes: dict[int, Lane],
    wanted: dict[int, set[int]], out: Findings,
) -> None:  # fmt: skip
    other, position = step.depid, step.deps
    if other is None or position is None or (other == -1 and position == -1):
        return
    at: At = {"rank": rank, "block": b, "step": k, "line": step.line}
    if other == -1:
        out.add("XML-DEP-HALF", f"deps is {position}, but depid -1: it waits for nothing", **at)
        return
    if other < -1 or other not in lanes:
        out.add("XML-DEP", f"depid is {other}; the rank has thread blocks 0 to {len(lanes) - 1}",
                **at)  # fmt: skip
        return
    if other > MAX_WAITED_FOR:
        out.add("XML-DEP-WRAP", f"it waits for thread block {other}, which becomes {other - 256} "
                f"on the device", **at)  # fmt: skip
    count = sum(p is not None for p in lanes[other].position)
    if not 0 <= position < count:
        out.add("XML-DEP", f"deps is {position}, but thread block {other} has {count} steps", **at)
    elif other == b and (lanes[b].position[k] or 0) <= position:
        out.add("XML-DEP", f"it waits for step {position} of its own thread block, which does not "
                f"come before it", **at)  # fmt: skip
    else:
        wanted.setdefault(other, set()).add(position)


def _check_nops(rank: int, b: int, lane: Lane, out: Findings) -> None:
    waiting: int | None = None  # a nop whose dependency the next step has to carry on
    for k, step in enumerate(lane.steps):
        at: At = {"rank": rank, "block": b, "step": k, "line": step.line}
        if step.type == "nop":
            if step.depid == -1:
                later = any(s.type != "nop" for s in lane.steps[k:])
                out.add("XML-NOP-EMPTY", "a nop that waits for nothing", **at,
                        severity="error" if later else "warning")  # fmt: skip
            elif waiting is None:
                waiting = k
        elif waiting is not None:
            if step.depid == -1:
                out.add("XML-NOP-BARE", f"{step.type} waits for nothing, though the nop before it "
                        f"does", **at)  # fmt: skip
            waiting = None
    if waiting is not None:
        out.add("XML-NOP-TAIL", "no step follows this nop", rank=rank, block=b, step=waiting,
                line=lane.steps[waiting].line)  # fmt: skip


def _check_reductions(rank: int, b: int, lane: Lane, out: Findings) -> None:
    for k in range(1, len(lane.steps)):
        first, second = lane.steps[k - 1], lane.steps[k]
        if not first.type == second.type == "re" or first.hasdep != 0 or second.depid != -1:
            continue
        same = (first.dstbuf, first.dstoff, first.srcbuf) == (
            second.dstbuf, second.dstoff, second.srcbuf,
        )  # fmt: skip
        if same and first.cnt != second.cnt:
            out.add("XML-RE-COUNT", f"re of {second.cnt} chunks after re of {first.cnt} on the "
                    f"same place", rank=rank, block=b, step=k, line=second.line)  # fmt: skip


def _check_joined(rank: int, b: int, lane: Lane, target: Target, out: Findings) -> None:
    """Reductions that the loader joins: it parts them at the sixteenth of a thread block alone."""
    last: tuple[object, ...] | None = None
    joined = 0
    total = 0
    for k, step in enumerate(lane.steps):
        if step.type == "nop":
            continue
        place = (step.dstbuf, step.dstoff, step.srcbuf)
        joined = joined + 1 if place == last and step.depid == -1 else 1
        total += step.type == "re"
        if step.type == "re" and joined == MAX_JOINED + 1:
            out.add("XML-RE-JOINED", f"it is number {joined} of neighbouring re on one place",
                    rank=rank, block=b, step=k, line=step.line,
                    severity="error" if target.fused else "warning")  # fmt: skip
        parted = step.type != "re" or step.hasdep == 1 or total == MAX_JOINED + 1
        last = None if parted else place


def _check_numbering(rank: int, b: int, lane: Lane, wanted: set[int], out: Findings) -> None:
    for k, step in enumerate(lane.steps):
        if step.s is None or step.s == k:
            continue
        serious = bool(wanted) or not 0 <= step.s < 64
        out.add("XML-STEP-NUMBER", f"s is {step.s} at position {k}", rank=rank, block=b, step=k,
                line=step.line, severity="error" if serious else "warning")  # fmt: skip
        return  # the rest of the thread block is off by as much


def _check_flags(rank: int, b: int, lane: Lane, wanted: set[int], out: Findings) -> None:
    raised = {p for p, s in zip(lane.position, lane.steps, strict=True)
              if p is not None and s.hasdep == 1}  # fmt: skip
    for position in sorted(wanted - raised):
        k = lane.position.index(position)
        at: At = {"rank": rank, "block": b, "step": k, "line": lane.steps[k].line}
        if any(p > position for p in raised):
            out.add("XML-DEP-LATE", "others wait for it, but hasdep is 0", **at)
        else:
            out.add("XML-DEP-FLAG", "others wait for it, but neither it nor a later step has "
                    "hasdep 1: they wait for ever", **at)  # fmt: skip
    for k, step in enumerate(lane.steps):
        place = lane.position[k]
        if step.hasdep != 1 or place is None or place in wanted or _keeps_apart(lane, k):
            continue
        if not any(p < place for p in wanted - raised):
            out.add("XML-FLAG-SPARE", "nobody waits for its flag", rank=rank, block=b, step=k,
                    line=step.line)  # fmt: skip


def _keeps_apart(lane: Lane, k: int) -> bool:
    """Whether the flag keeps two `re` from being joined."""
    return k + 1 < len(lane.steps) and lane.steps[k].type == lane.steps[k + 1].type == "re"
