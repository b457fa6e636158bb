"""What MSCCL++ asks of switches that copy and add (NVLS), and the words that refuse a program.

`check_block` is for a thread block, `check_switched` for an operation, `check_groups` for the whole
program; all return nothing and raise PlanError. Source: microsoft/mscclpp 1f5f065d (executor.cc,
execution_kernel.hpp).
"""

from __future__ import annotations

from forestcoll.errors import PlanError
from forestcoll.plans.rules import BUFFER_WORDS, check_ref, place
from forestcoll.program import (
    OPERATIONS,
    Instruction,
    Program,
    RankProgram,
    Switch,
    ThreadBlock,
)

MAX_SWITCHES = 16
"""Switch channels of a thread block."""

At = tuple[int, int, int]


def switches_of(rank: RankProgram) -> list[Switch]:
    """The rank's switches, each once, in the order in which all ranks set theirs up."""
    found = {switch for block in rank.thread_blocks for switch in block.switches}
    return sorted(found, key=lambda switch: (switch.ranks, switch.buffer.value))


def check_block(program: Program, r: int, b: int, block: ThreadBlock) -> None:
    """PlanError unless the thread block's switches have this rank and others in their groups."""
    for switch in block.switches:
        group = switch.ranks
        if not all(0 <= peer < program.n for peer in group):
            raise PlanError(
                f"{place(r, b)}: a switch of ranks {list(group)}; ranks are 0 to {program.n - 1}"
            )
        if r not in group or len(group) < 2 or len(set(group)) < len(group):
            raise PlanError(
                f"{place(r, b)}: a switch of ranks {list(group)}; its group is this rank and "
                f"others, each once"
            )


def check_groups(program: Program) -> None:
    """PlanError unless all ranks of a group have its switch, which they set up together."""
    known = [set(switches_of(rank)) for rank in program.ranks]
    for r, switches in enumerate(known):
        for switch in sorted(switches, key=lambda s: (s.ranks, s.buffer.value)):
            for peer in switch.ranks:
                if switch not in known[peer]:
                    raise PlanError(
                        f"rank {r}: a switch to the {BUFFER_WORDS[switch.buffer]} buffers of ranks "
                        f"{list(switch.ranks)}, which rank {peer} has not: the runtime would wait "
                        f"for it before the first launch"
                    )


def check_switched(program: Program, block: ThreadBlock, step: Instruction, at: At) -> None:
    """PlanError unless the operation's switches are there and lead to the buffers it names."""
    needs = OPERATIONS[step.op].switches
    if len(step.switches) != needs:
        raise PlanError(
            f"{place(*at)}: {step.op} goes through {len(step.switches)} switches; it needs {needs}"
        )
    refs = step.dst if needs == 1 else (*step.src, *step.dst)
    for number, ref in zip(step.switches, refs, strict=False):
        if not 0 <= number < len(block.switches):
            raise PlanError(
                f"{place(*at)}: switch {number}; the thread block has {len(block.switches)}"
            )
        switch = block.switches[number]
        if ref.buffer is not switch.buffer:
            raise PlanError(
                f"{place(*at)}: the {BUFFER_WORDS[ref.buffer]} buffer through a switch to the "
                f"{BUFFER_WORDS[switch.buffer]} one"
            )
    if needs:
        for some in block.operands(at[0], step):
            for ref in some:
                check_ref(program, at[0], ref, at)


def check_number(r: int, b: int, block: ThreadBlock) -> None:
    """PlanError where the thread block has more switches than the device has room for."""
    if len(block.switches) > MAX_SWITCHES:
        raise PlanError(
            f"{place(r, b)}: {len(block.switches)} switches; the runtime holds {MAX_SWITCHES} in a "
            f"thread block: use more thread blocks"
        )
