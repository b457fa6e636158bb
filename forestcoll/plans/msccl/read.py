"""From the elements of an MSCCL XML file to the Program that the runtimes would run.

The runtimes' rules, not the file's labels, decide (Azure/msccl-executor-nccl, msccl_parser.cc and
msccl_kernel.cu): steps run in document order; a dependency means a position in that order; nops
hand their dependency to the next real step; neighbouring `re` on one place become one; a step
without `hasdep` raises no flag, so whoever waits for it waits for the next flag of that thread
block.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from forestcoll.common.errors import PlanError, UnsupportedError, did_you_mean
from forestcoll.common.input_limits import RANKS
from forestcoll.plans.msccl.rules import MAX_FUSED, MAX_OFFSET, check_structure
from forestcoll.plans.msccl.text import Algo, Block, Gpu, Step, Tag, scan
from forestcoll.plans.rules import (
    MAX_BYTES,
    OLD_WORDS,
    OTHER_COLLECTIVES,
    Notes,
    check_header,
    place,
)
from forestcoll.program import (
    BY_PLAN_WORD,
    BY_XML,
    OPERATIONS,
    Buffer,
    Collective,
    Instruction,
    Op,
    Program,
    Protocol,
    RankProgram,
    Ref,
    ThreadBlock,
)

# The last chunk that a step can reach: its offset has 16 bits, its count is at most 71.
MAX_CHUNKS = MAX_OFFSET + 71
STEPS_OF_CURRENT = 64


@dataclass(slots=True)
class _Draft:
    """A step of the device while its thread block is read; `last` is the position of its flag."""

    op: Op
    src: list[Ref]
    dst: tuple[Ref, ...]
    waits: list[tuple[int, int, int]]  # (thread block, position, line)
    last: int
    line: int
    flagged: bool


@dataclass(slots=True)
class _Header:
    """The attributes of <algo> that decide how the rest is read."""

    collective: Collective
    n: int
    total: int
    # equal references share one object
    refs: dict[tuple[Buffer, int, int], Ref] = field(default_factory=dict)


def loads(
    text: str, source: str, *, check: bool = True, collective: Collective | None = None
) -> Program:
    """The Program that the runtimes would run for this text; `source` names it in errors.

    Lenient where the runtimes are, and with files of older tools; `Program.extra["notes"]` then
    says, a line each, what a current runtime would refuse. PlanError with line numbers otherwise.

    Without `check` it may hold ranges and wiring that no runtime would survive; a linter says more
    about those. `collective` stands in for what the file says.
    """
    notes = Notes()
    algo = scan(text, source, notes)
    header = _read_header(algo.tag, notes, collective)
    ranks, names = _read_ranks(algo, header, notes)
    tag = algo.tag
    in_place, out_of_place = _read_places(tag, notes)
    root = -1
    if header.collective.rooted:
        if "root" in tag.attributes:
            root = tag.number("root", 0, header.n - 1)
        else:
            root = 0
            notes.add("<algo> does not say the root; rank 0 is assumed")
    top = 1 + max((b.channel for rank in ranks for b in rank.thread_blocks), default=-1)
    _remark_channels(tag, top, notes)
    program = Program(
        name=tag.attributes.get("name", ""),
        collective=header.collective,
        style="fifo",
        ranks=ranks,
        in_place=in_place,
        out_of_place=out_of_place,
        root=root,
        protocol=_read_protocol(tag),
        names=names,
        min_bytes=_optional(tag, "minBytes", notes),
        max_bytes=_optional(tag, "maxBytes", notes),
        extra=notes.extra("msccl-xml"),
    )
    if not check:
        return program
    try:
        check_header(program)
        check_structure(program)
    except PlanError as error:
        raise PlanError(f"{source}: {error}") from None
    return program


def _read_header(tag: Tag, notes: Notes, told: Collective | None) -> _Header:
    word = tag.text("coll") if told is None else told.definition.plan_word
    if word in OLD_WORDS:
        notes.add(f"coll={word!r} is refused by current runtimes; they say {OLD_WORDS[word]!r}")
        word = OLD_WORDS[word]
    if word in OTHER_COLLECTIVES:
        raise UnsupportedError(f"{tag.source}:{tag.line}: coll={word!r} is not supported; the "
                               f"collectives are {', '.join(BY_PLAN_WORD)}")  # fmt: skip
    if word not in BY_PLAN_WORD:
        hint = did_you_mean(word[:40], BY_PLAN_WORD)
        raise tag.fail(f"coll={word[:40]!r} is no collective{hint}")
    n = tag.number("ngpus", 1, RANKS)
    total = tag.number("nchunksperloop", 1, MAX_CHUNKS)
    collective = BY_PLAN_WORD[word]
    try:
        collective.chunks(n, total)
    except PlanError as error:
        raise tag.fail(str(error)) from None
    return _Header(collective, n, total)


def _read_protocol(tag: Tag) -> Protocol:
    word = tag.text("proto")
    if word not in ("Simple", "LL", "LL128"):
        raise tag.fail(f"proto={word[:40]!r} is no protocol; they are Simple, LL and LL128")
    return cast("Protocol", word)


def _read_places(tag: Tag, notes: Notes) -> tuple[bool, bool]:
    known = [key for key in ("inplace", "outofplace") if key in tag.attributes]
    flags = {key: bool(tag.number(key, 0, 1)) for key in known}
    for key in ("inplace", "outofplace"):
        if key not in flags:
            notes.add(f"<algo> has no {key!r}, which current runtimes ask for")
    # Files of the first MSCCL only say `inplace`, and serve exactly the calls that it names.
    in_place = flags.get("inplace", not flags.get("outofplace", True))
    out_of_place = flags.get("outofplace", not in_place)
    return in_place, out_of_place


def _optional(tag: Tag, key: str, notes: Notes) -> int:
    if key in tag.attributes:
        return tag.number(key, 0, MAX_BYTES)
    notes.add(f"<algo> has no {key!r}, which current runtimes ask for; no limit is assumed")
    return 0


def _remark_channels(tag: Tag, used: int, notes: Notes) -> None:
    if "nchannels" not in tag.attributes:
        notes.add("<algo> has no 'nchannels', which current runtimes ask for")
        return
    told = tag.number("nchannels", 0, 2**31 - 1)
    if told < used:
        raise tag.fail(
            f"nchannels={told}, but thread blocks use channels up to {used - 1}: the runtimes "
            f"would never connect those"
        )


def _read_ranks(
    algo: Algo, header: _Header, notes: Notes
) -> tuple[tuple[RankProgram, ...], tuple[str, ...]]:
    gpus: dict[int, Gpu] = {}
    for gpu in algo.gpus:
        r = gpu.tag.number("id", 0, header.n - 1)
        if r in gpus:
            raise gpu.tag.fail(f"gpu {r} stands twice, first on line {gpus[r].tag.line}")
        gpus[r] = gpu
    share = header.collective.chunks(header.n, header.total)
    empty = RankProgram((), share[0], share[1], 0)
    ranks = []
    for r in range(header.n):
        if r in gpus:
            ranks.append(_read_rank(r, gpus[r], header, share, notes))
        else:
            notes.add(f"gpu {r} is missing: it does nothing, which runtimes cannot launch", "gpu")
            ranks.append(empty)
    names = [gpus[r].tag.attributes.get("name") for r in range(header.n) if r in gpus]
    known = tuple(name for name in names if name is not None)
    return tuple(ranks), known if len(known) == header.n else ()


def _read_rank(
    r: int, gpu: Gpu, header: _Header, share: tuple[int, int], notes: Notes
) -> RankProgram:
    tag = gpu.tag
    for key, size in zip(("i_chunks", "o_chunks"), share, strict=True):
        told = tag.number(key, 0, 2**31 - 1)
        if told != size:
            # The runtimes size a chunk by nchunksperloop alone, so these two only bound offsets.
            notes.add(f"{key} of gpu {r} is {told}, but nchunksperloop makes it {size}", key)
    blocks: dict[int, Block] = {}
    for block in gpu.blocks:
        b = block.tag.number("id", 0, 2**31 - 1)
        if b in blocks:
            raise block.tag.fail(f"tb {b} of gpu {r} stands twice, first on line "
                                 f"{blocks[b].tag.line}")  # fmt: skip
        blocks[b] = block
    for b in range(len(blocks)):
        if b not in blocks:
            raise tag.fail(f"gpu {r} has {len(blocks)} tbs, but none with id {b}; ids count from 0")
    drafts = [_read_steps(r, b, blocks[b], header, notes) for b in range(len(blocks))]
    return RankProgram(
        tuple(_finish(r, b, blocks[b], drafts, header.n, notes) for b in range(len(blocks))),
        share[0],
        share[1],
        tag.number("s_chunks", 0, MAX_CHUNKS),
    )


def _read_steps(r: int, b: int, block: Block, header: _Header, notes: Notes) -> list[_Draft]:
    """The device steps of one thread block, in order, as the loader would build them."""
    drafts: list[_Draft] = []
    waits: list[tuple[int, int, int]] = []  # of nops, for the next real step
    position = -1
    labels_differ = False
    if len(block.steps) > STEPS_OF_CURRENT:
        notes.add(f"tb {b} of gpu {r} has {len(block.steps)} steps; runtimes hold 64", "64")
    for step in block.steps:
        if step.type == "nop" and step.depid < 0:
            notes.add(
                f"line {step.line}: nop that waits for nothing; runtimes do not count it", "n"
            )
            continue
        position += 1
        labels_differ |= step.s != position
        if step.depid >= 0:
            waits.append((step.depid, step.deps, step.line))
        if step.type == "nop":
            continue
        source = block.tag.source
        if waits and step.depid < 0:
            raise PlanError(
                f"{source}:{step.line}: the nops before this step wait for others, so the step "
                f"must wait for one too (depid, deps), or the runtimes refuse the file"
            )
        if not _extend(drafts, step, position, header, source):
            drafts.append(_draft(step, waits, position, header, source))
            waits = []
    if waits:
        notes.add(f"tb {b} of gpu {r} ends with nops that wait; runtimes drop them", "end")
    if labels_differ:
        notes.add(
            f"tb {b} of gpu {r} does not number its steps 0, 1, 2 ...; runtimes go by position",
            "labels",
        )
    return drafts


def _draft(
    step: Step, waits: list[tuple[int, int, int]], position: int, header: _Header, source: str
) -> _Draft:
    op = BY_XML[step.type]
    if step.cnt < 1:
        raise PlanError(f"{source}:{step.line}: cnt=0 moves nothing; it must be at least 1")
    src = [_ref(step, "src", header, source)] if OPERATIONS[op].src[1] else []
    dst = (_ref(step, "dst", header, source),) if OPERATIONS[op].dst[1] else ()
    return _Draft(op, src, dst, waits, position, step.line, step.hasdep)


def _ref(step: Step, side: str, header: _Header, source: str) -> Ref:
    offset = step.srcoff if side == "src" else step.dstoff
    if offset < 0:
        raise PlanError(f"{source}:{step.line}: {side}off={offset}, but {step.type!r} uses it")
    place = (step.srcbuf if side == "src" else step.dstbuf, offset, step.cnt)
    found = header.refs.get(place)
    if found is None:
        found = header.refs[place] = Ref(*place)
    return found


def _extend(drafts: list[_Draft], step: Step, position: int, header: _Header, source: str) -> bool:
    """Whether the step is a `re` that continues the one before it; if so, it is added there."""
    if step.type != "re" or step.depid >= 0 or not drafts or drafts[-1].op is not Op.REDUCE:
        return False
    before = drafts[-1]
    same = (
        not before.flagged
        and before.src[0].buffer is step.srcbuf
        and (before.dst[0].buffer, before.dst[0].offset) == (step.dstbuf, step.dstoff)
    )
    if not same or len(before.src) == MAX_FUSED:
        return False
    if before.dst[0].count != step.cnt:
        raise PlanError(
            f"{source}:{step.line}: re with cnt={step.cnt} after re with "
            f"cnt={before.dst[0].count} on the same place: runtimes join the two and use the last "
            f"cnt for both; give both the same cnt, or the first hasdep=1"
        )
    before.src.append(_ref(step, "src", header, source))
    before.last, before.flagged = position, step.hasdep
    return True


def _finish(
    r: int, b: int, block: Block, drafts: list[list[_Draft]], n: int, notes: Notes
) -> ThreadBlock:
    tag = block.tag
    steps = tuple(
        Instruction(
            draft.op,
            tuple(draft.src),
            draft.dst,
            tuple(_target(r, b, tag.source, wait, drafts, notes) for wait in draft.waits),
        )
        for draft in drafts[b]
    )
    return ThreadBlock(
        steps,
        recv=tag.number("recv", -1, n - 1),
        send=tag.number("send", -1, n - 1),
        channel=tag.number("chan", 0, 2**15 - 1),
    )


def _target(
    r: int,
    b: int,
    source: str,
    wait: tuple[int, int, int],
    drafts: list[list[_Draft]],
    notes: Notes,
) -> tuple[int, int]:
    """(thread block, step of the Program) whose flag ends a wait for (thread block, position)."""
    other, position, line = wait
    if other >= len(drafts):
        raise PlanError(f"{source}:{line}: depid={other}, but gpu {r} has {len(drafts)} tbs")
    if position < 0:
        raise PlanError(f"{source}:{line}: depid={other} needs a step to wait for; deps={position}")
    steps = drafts[other]
    first = next((k for k, draft in enumerate(steps) if draft.last >= position), len(steps))
    if first == len(steps):
        raise PlanError(
            f"{source}:{line}: deps={position}, but tb {other} of gpu {r} has no such step"
        )
    flagged = next((k for k in range(first, len(steps)) if steps[k].flagged), None)
    if flagged is None:
        raise PlanError(
            f"{source}:{line}: waits for step {position} of tb {other}, but neither that step nor "
            f"a later one has hasdep=1: {place(r, b)} would wait for ever"
        )
    if flagged != first:
        notes.add(
            f"line {line}: step {position} of tb {other} has no hasdep=1; runtimes wait until the "
            f"next one that has it is done",
            "hasdep",
        )
    return other, flagged
