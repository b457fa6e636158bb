"""What MSCCL XML and its runtimes, msccl-executor-nccl and RCCL, hold: checks of fifo programs.

The writer asks them of a program that is right in itself; the limits of each runtime stand in
targets.py, the rules that lint has for it in rule_catalogue.py (`RCCL-...`).

Both return nothing; PlanError names rank, thread block, step, the limit and the figure.
"""

from __future__ import annotations

from collections import Counter

from forestcoll.common.errors import PlanError
from forestcoll.plans.rules import place
from forestcoll.program import (
    FUSED,
    Instruction,
    Op,
    Program,
    RankProgram,
    ThreadBlock,
)
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
    for r, rank in enumerate(program.ranks):
        for b, block in enumerate(rank.thread_blocks):
            for s, step in enumerate(block.steps):
                if isinstance(step, Instruction) and id(step) not in fine:
                    _check_step(step, (r, b, s))
                    fine.add(id(step))


def _check_step(step: Instruction, at: tuple[int, int, int]) -> None:
    if step.op is Op.NOP:
        raise PlanError(
            f"{place(*at)}: a nop by itself has no place in a plan; put what it waits for into "
            f"`after` of the next step"
        )
    most = MAX_FUSED if step.op is Op.REDUCE else 1
    if max(len(step.src), len(step.dst)) > most:
        raise PlanError(
            f"{place(*at)}: {step.op} has {len(step.src)} sources and {len(step.dst)} "
            f"destinations; MSCCL XML has up to {most}"
        )
    if len({ref.buffer for ref in step.src}) > 1:
        raise PlanError(
            f"{place(*at)}: the sources of one reduce lie in one buffer; make a reduce per buffer"
        )


def lines_of(step: Instruction) -> int:
    """How many XML steps an instruction takes: a nop a dependency but the last, and itself."""
    own = len(step.src) if step.op is Op.REDUCE else 1
    return own + len(step.after) - 1 if step.after else own


def check_limits(program: Program, target: Target) -> None:
    """PlanError where the target's loader would refuse the plan, or silently run another one."""
    if program.n > MAX_CHILDREN:
        raise PlanError(f"{program.n} ranks; MSCCL XML holds at most {MAX_CHILDREN}")
    fine: set[int] = set()
    for r, rank in enumerate(program.ranks):
        lines = [
            sum([lines_of(step) for step in block.steps if isinstance(step, Instruction)])
            for block in rank.thread_blocks
        ]
        _check_rank_limits(program, r, rank, sum(lines), target)
        _check_channel_load(r, rank)
        for b, block in enumerate(rank.thread_blocks):
            _check_block_limits(r, b, block, lines[b], target, fine)
    check_wiring(program)


def _check_rank_limits(
    program: Program, r: int, rank: RankProgram, steps: int, target: Target
) -> None:
    blocks = rank.thread_blocks
    if not blocks:
        raise PlanError(f"rank {r} has no thread block; the runtime cannot launch an empty rank")
    if len(blocks) > target.thread_blocks:
        raise PlanError(
            f"rank {r} has {len(blocks)} thread blocks; {target.name} holds "
            f"{target.thread_blocks} per rank: use fewer trees"
        )
    nodes = 1 + program.n + len(blocks) + steps
    if nodes > MAX_NODES:
        raise PlanError(
            f"rank {r}: {nodes} XML elements to load (algo, {program.n} gpu, {len(blocks)} tb, "
            f"{steps} step); the loaders hold {MAX_NODES}: use fewer trees"
        )


def _check_channel_load(r: int, rank: RankProgram) -> None:
    # The loader keeps a counter per channel and direction and touches the entry behind the last
    # one for every thread block of the channel, with or without a step that uses it.
    sends: Counter[int] = Counter()
    recvs: Counter[int] = Counter()
    for b, block in enumerate(rank.thread_blocks):
        c = block.channel
        if max(sends[c], recvs[c]) >= MAX_BLOCKS_PER_CHANNEL:
            raise PlanError(
                f"{place(r, b)}: channel {c} already serves {MAX_BLOCKS_PER_CHANNEL} thread "
                f"blocks of one direction, the most it can; use another channel"
            )
        sends[c] += block.send >= 0
        recvs[c] += block.recv >= 0


def _check_block_limits(
    r: int, b: int, block: ThreadBlock, lines: int, target: Target, fine: set[int]
) -> None:
    """`fine`: steps that are within limits, wherever they stand."""
    if block.channel >= target.channels:
        raise PlanError(
            f"{place(r, b)}: channel {block.channel}; {target.name} has channels 0 to "
            f"{target.channels - 1}"
        )
    if lines > target.steps:
        raise PlanError(
            f"{place(r, b)}: {lines} steps in XML (nops for dependencies counted); "
            f"{target.name} holds {target.steps}: use fewer trees or more thread blocks"
        )
    for s, step in enumerate(block.steps):
        if not isinstance(step, Instruction) or id(step) in fine:
            continue
        fine.add(id(step))
        if step.op in FUSED and not target.fused:
            raise PlanError(
                f"{place(r, b, s)}: {target.name} does not run {step.op}; lower the plan for it "
                f"(only send, recv, copy and reduce)"
            )
        for ref in step.src + step.dst:
            if ref.count > target.count:
                raise PlanError(
                    f"{place(r, b, s)}: {ref.count} chunks in one step; {target.name} holds "
                    f"{target.count}: split the step"
                )
            if ref.offset > MAX_OFFSET:
                raise PlanError(
                    f"{place(r, b, s)}: chunk offset {ref.offset}; the device keeps offsets in "
                    f"16 bits, at most {MAX_OFFSET}: use fewer chunks"
                )
        for other, _ in step.after:
            if other >= target.dependency_blocks:
                raise PlanError(
                    f"{place(r, b, s)}: waits for thread block {other}; {target.name} can only "
                    f"wait for thread blocks 0 to {target.dependency_blocks - 1}: order them first"
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
        steps = [s for s in block.steps if isinstance(s, Instruction)]
        for other, s in (pair for step in steps for pair in step.after):
            flags[other].add(s)
        sums = [s for s, step in enumerate(steps[1:]) if step.op is Op.REDUCE]
        flags[b].update(s for s in sums if melts(steps[s], steps[s + 1]))
    return flags
