"""MSCCL XML: `dumps` writes the subset that every current parser reads the same way, `loads` reads.

The XML is read by a hand-written parser in the runtimes (Azure/msccl-executor-nccl, ROCm/rccl), so
the writer keeps to: no prolog, one line a tag, one space between attributes, double quotes, no tab.
What a step type means, and every limit, is the runtimes'; docs/plans.md has the table.

A program that is right in itself is asked first whether the format and its runtimes,
msccl-executor-nccl and RCCL, hold it: PlanError names rank, thread block, step, the limit and the
figure. The limits of each runtime stand in targets.py, the rules that lint has for it in
rule_catalogue.py (`RCCL-...`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from forestcoll.common.errors import PlanError
from forestcoll.plans.rules import check_header
from forestcoll.program import (
    FUSED,
    OPERATIONS,
    Buffer,
    Instruction,
    Op,
    Program,
    RankProgram,
    Ref,
    ThreadBlock,
)
from forestcoll.program.program import where
from forestcoll.program.targets import Target
from forestcoll.verify.wiring import check_wiring

MAX_FUSED = 16  # sources of one device step made of `re` (MSCCL_MAX_REDUCE_FUSION)
MAX_OFFSET = 2**15 - 1  # offsets are int16 on the device
MAX_CHUNKS = MAX_OFFSET + 71  # the last that a step can reach: its count is at most 71
MAX_BLOCKS_PER_CHANNEL = 32  # thread blocks of one direction on one channel
MAX_NODES = 4095  # elements of one rank's load: algo, every gpu, its tb, their steps
MAX_CHILDREN = 1024  # elements below one element


def check_structure(program: Program) -> None:
    """PlanError unless MSCCL XML has words for all of the program."""
    if program.style != "fifo":
        raise PlanError(
            f"MSCCL XML holds fifo programs; this one is {program.style} (MSCCL++ JSON holds those)"
        )
    fine: set[int] = set()  # many steps are one object
    for *at, step in program.instructions():
        if id(step) not in fine:
            fault = _fault(step)
            if fault:
                raise PlanError(f"{where(*at)}: {fault}")
            fine.add(id(step))


def _fault(step: Instruction) -> str:
    """What of a step has no words, or ""."""
    if step.op is Op.NOP:
        return (
            "a nop by itself has no place in a plan; put what it waits for into `after` of the "
            "next step"
        )
    most = MAX_FUSED if step.op is Op.REDUCE else 1
    if max(len(step.src), len(step.dst)) > most:
        return (
            f"{step.op} has {len(step.src)} sources and {len(step.dst)} destinations; MSCCL XML "
            f"has up to {most}"
        )
    if len({ref.buffer for ref in step.src}) > 1:
        return "the sources of one reduce lie in one buffer; make a reduce per buffer"
    return ""


def lines_of(step: Instruction) -> int:
    """How many XML steps an instruction takes: a nop a dependency but the last, and itself."""
    own = len(step.src) if step.op is Op.REDUCE else 1
    return own + len(step.after) - 1 if step.after else own


def check_limits(program: Program, target: Target) -> None:
    """PlanError where the target's loader would refuse the plan, or silently run another one."""
    if program.n > MAX_CHILDREN:
        raise PlanError(f"{program.n} ranks; MSCCL XML holds at most {MAX_CHILDREN}")
    for at, words in _limit_faults(program, target):
        raise PlanError(where(*at) + words)
    check_wiring(program)


def _limit_faults(program: Program, target: Target) -> Iterator[tuple[tuple[int, ...], str]]:
    """A place, and the words behind it."""
    fine: set[int] = set()  # steps that are within limits, wherever they stand
    name = target.name
    for r, rank in enumerate(program.ranks):
        blocks = rank.thread_blocks
        lines = [sum([lines_of(step) for _, step in block.instructions()]) for block in blocks]
        if not blocks:
            yield (r,), " has no thread block; the runtime cannot launch an empty rank"
        if len(blocks) > target.thread_blocks:
            yield (
                (r,),
                f" has {len(blocks)} thread blocks; {name} holds {target.thread_blocks} per rank: "
                "use fewer trees",
            )
        nodes = 1 + program.n + len(blocks) + sum(lines)
        if nodes > MAX_NODES:
            yield (
                (r,),
                f": {nodes} XML elements to load (algo, {program.n} gpu, {len(blocks)} tb, "
                f"{sum(lines)} step); the loaders hold {MAX_NODES}: use fewer trees",
            )
        # The loader keeps a counter per channel and direction and touches the entry behind the last
        # one for every thread block of the channel, with or without a step that uses it.
        load: Counter[tuple[int, bool]] = Counter()
        for b, block in enumerate(blocks):
            c = block.channel
            if max(load[c, True], load[c, False]) >= MAX_BLOCKS_PER_CHANNEL:
                yield (
                    (r, b),
                    f": channel {c} already serves {MAX_BLOCKS_PER_CHANNEL} thread blocks of one "
                    "direction, the most it can; use another channel",
                )
            load[c, True] += block.send >= 0
            load[c, False] += block.recv >= 0
        for b, block in enumerate(blocks):
            if block.channel >= target.channels:
                most = target.channels - 1
                yield (r, b), f": channel {block.channel}; {name} has channels 0 to {most}"
            if lines[b] > target.steps:
                yield (
                    (r, b),
                    f": {lines[b]} steps in XML (nops for dependencies counted); {name} holds "
                    f"{target.steps}: use fewer trees or more thread blocks",
                )
            for s, step in block.instructions():
                if id(step) not in fine:
                    fine.add(id(step))
                    yield from (((r, b, s), words) for words in _step_faults(step, target))


def _step_faults(step: Instruction, target: Target) -> Iterator[str]:
    if step.op in FUSED and not target.fused:
        yield (
            f": {target.name} does not run {step.op}; lower the plan for it (only send, recv, copy "
            "and reduce)"
        )
    for ref in step.src + step.dst:
        if ref.count > target.count:
            yield (
                f": {ref.count} chunks in one step; {target.name} holds {target.count}: split the "
                "step"
            )
        if ref.offset > MAX_OFFSET:
            yield (
                f": chunk offset {ref.offset}; the device keeps offsets in 16 bits, at most "
                f"{MAX_OFFSET}: use fewer chunks"
            )
    for other, _ in step.after:
        if other >= target.dependency_blocks:
            yield (
                f": waits for thread block {other}; {target.name} can only wait for thread blocks "
                f"0 to {target.dependency_blocks - 1}: order them first"
            )


def melts(first: Instruction, second: Instruction) -> bool:
    """Whether the loader would fuse two neighbouring reduces unless a flag is set between them."""
    return (
        first.op is second.op is Op.REDUCE
        and not second.after
        and first.src[0].buffer is second.src[0].buffer
        and (first.dst[0].buffer, first.dst[0].offset)
        == (second.dst[0].buffer, second.dst[0].offset)
    )


def flags_of(rank: RankProgram) -> list[set[int]]:
    """Per thread block, the steps that must raise their flag: those that others wait for.

    And those reduces that the loader would otherwise fuse with the next one.
    """
    flags: list[set[int]] = [set() for _ in rank.thread_blocks]
    for b, block in enumerate(rank.thread_blocks):
        steps = [step for _, step in block.instructions()]
        for other, s in (pair for step in steps for pair in step.after):
            flags[other].add(s)
        sums = [s for s, step in enumerate(steps[1:]) if step.op is Op.REDUCE]
        flags[b].update(s for s in sums if melts(steps[s], steps[s + 1]))
    return flags


# What the parser itself can hold; a target narrows it to what runs on its devices.
FORMAT_LIMITS = Target("MSCCL XML", "msccl-xml", "fifo", 1024, 64, 32, 71, 128, True)
MAX_NAME = 99  # bytes of the algo's name
MAX_VALUE = 255  # bytes of any attribute value: the parsers' buffers, which they do not guard
_NO_CHARS = frozenset((0xFFFE, 0xFFFF))  # the two that XML 1.0 forbids beside controls


def dumps(program: Program, target: Target | None = None, *, in_place: bool | None = None) -> str:
    """The plan as XML text, ending in a newline; `loads` gives back an equal Program.

    A plan serves all calls that the program is right for: `in_place` chooses nothing here.
    Raises PlanError, naming limit, figure, rank and thread block, for what the loaders would refuse
    or silently run as something else: on `target`, or on the widest parser where it is None.
    """
    del in_place
    limits = FORMAT_LIMITS if target is None else target
    if limits.format != "msccl-xml":
        raise PlanError(f"target {limits.name} reads {limits.format}, not MSCCL XML")
    total = check_header(program)
    check_structure(program)
    check_limits(program, limits)
    lines = [_algo(program, total)]
    words: Words = {}
    for r, rank in enumerate(program.ranks):
        name = ""
        if program.names:
            name = f' name="{_quote(program.names[r], MAX_VALUE, f"rank {r}")}"'
        lines.append(
            f'  <gpu id="{r}" i_chunks="{rank.input_chunks}" o_chunks="{rank.output_chunks}" '
            f's_chunks="{rank.scratch_chunks}"{name}>'
        )
        lines.extend(_rank(rank, words))
        lines.append("  </gpu>")
    lines.append("</algo>")
    return "\n".join(lines) + "\n"


def _algo(program: Program, total: int) -> str:
    channels = 1 + max(block.channel for rank in program.ranks for block in rank.thread_blocks)
    attributes = {
        "name": _quote(program.name, MAX_NAME, "the plan"),
        "proto": program.protocol,
        "nchannels": channels,
        "nchunksperloop": total,
        "ngpus": program.n,
        "coll": program.collective.definition.plan_word,
        "inplace": int(program.in_place),
        "outofplace": int(program.out_of_place),
        "minBytes": program.min_bytes,
        "maxBytes": program.max_bytes,
        "redop": "sum",
    }
    if program.collective.has_root:
        attributes["root"] = program.root
    if "sums" in program.extra:
        attributes["sums"] = program.extra["sums"]
    return "<algo " + " ".join(f'{key}="{value}"' for key, value in attributes.items()) + ">"


Words = dict[tuple[object, ...], str]
"""What lines say of operation and operands, which many steps share."""


def _rank(rank: RankProgram, words: Words) -> Iterator[str]:
    flags = flags_of(rank)
    numbers = [_numbers(block) for block in rank.thread_blocks]
    for b, block in enumerate(rank.thread_blocks):
        tag = f'    <tb id="{b}" send="{block.send}" recv="{block.recv}" chan="{block.channel}"'
        if not block.steps:
            yield tag + "/>"
            continue
        yield tag + ">"
        for s, step in enumerate(block.steps):
            assert isinstance(step, Instruction)  # check_structure saw to it
            waits = [(other, numbers[other][t]) for other, t in step.after]
            yield from _step(step, numbers[b][s], waits, s in flags[b], words)
        yield "    </tb>"


def _numbers(block: ThreadBlock) -> list[int]:
    """Per step, the number of its last XML line: the one that others wait for."""
    numbers: list[int] = []
    last = -1
    for step in block.steps:
        assert isinstance(step, Instruction)
        last += lines_of(step)
        numbers.append(last)
    return numbers


def _step(
    step: Instruction, last: int, waits: list[tuple[int, int]], flagged: bool, words: Words
) -> Iterator[str]:
    """The lines of one instruction: nops for all waits but one, then the operation."""
    number = last - lines_of(step) + 1
    for block, s in waits[:-1]:
        what = _words("nop", _IDLE, _IDLE)
        yield f'      <step s="{number}" {what} depid="{block}" deps="{s}" hasdep="0"/>'
        number += 1
    block, s = waits[-1] if waits else (-1, -1)
    for source in step.src or step.dst:
        key = step.op, id(source), id(step.dst)
        what = words.get(key, "")
        if not what:
            # A side that the operation does not use repeats the other one: always a legal place.
            target = step.dst[0] if step.dst else source
            words[key] = what = _words(OPERATIONS[step.op].xml, source, target)
        flag = int(flagged and number == last)
        yield f'      <step s="{number}" {what} depid="{block}" deps="{s}" hasdep="{flag}"/>'
        number, block, s = number + 1, -1, -1


_IDLE = Ref(Buffer.INPUT, 0, 1)


def _words(word: str, src: Ref, dst: Ref) -> str:
    return (
        f'type="{word}" srcbuf="{src.buffer.value}" srcoff="{src.offset}" '
        f'dstbuf="{dst.buffer.value}" dstoff="{dst.offset}" cnt="{src.count}"'
    )


def _quote(text: str, limit: int, what: str) -> str:
    """`text` as an attribute value of plain ASCII without quotes, signs of tags or line breaks."""
    out = []
    for char in text:
        code = ord(char)
        if (code < 32 and char not in "\t\n\r") or 0xD800 <= code <= 0xDFFF or code in _NO_CHARS:
            raise PlanError(f"{what}: the name {text!r} has a character that XML cannot hold")
        plain = 32 <= code < 127 and char not in "\"&<>'"
        out.append(char if plain else f"&#{code};")
    value = "".join(out)
    if len(value) > limit:
        raise PlanError(
            f"{what}: the name {text!r} takes {len(value)} bytes as XML; the limit is {limit}"
        )
    return value
