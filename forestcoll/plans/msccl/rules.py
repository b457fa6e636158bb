"""What MSCCL XML and its runtimes, msccl-executor-nccl and RCCL, hold: checks of fifo programs.

The writer asks them of a program that is right in itself; the limits of each runtime stand in
targets.py, the rules that lint has for it in rule_catalogue.py (`RCCL-...`).

Both return nothing; PlanError names rank, thread block, step, the limit and the figure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from forestcoll.common.errors import PlanError
from forestcoll.program import (
    FUSED,
    Instruction,
    Op,
    Program,
    RankProgram,
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
