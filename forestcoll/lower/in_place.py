"""MSCCL++ programs for calls in place alone: what a rank reads of its part, it reads where it lies.

In place, the input of an allgather is the rank's own part of its output. Its threads find it there
by the pointer that they are given. A port finds memory by where its allocation begins, so it has to
be told of the output; out of place nothing lies there yet. So where ports read the input, calls in
place and out of place have a program each. (The same holds for the output of a reduce-scatter and
its input.)
"""

from __future__ import annotations

from dataclasses import replace

from forestcoll.common.errors import PlanError
from forestcoll.program import Buffer, Instruction, Op, Pipeline, Program, Ref, Step


def serve(program: Program, *, in_place: bool) -> Program:
    """A program right for these calls: `program` where it is, else what follows from it.

    Raises PlanError where there is none.
    """
    if program.in_place if in_place else program.out_of_place:
        return program
    if not in_place or next(program.misplaced(), None) is None:
        raise PlanError(
            f"{program.collective} on {program.name}, {program.protocol}: the plan is right for "
            f"calls {'out of' if in_place else 'in'} place only"
            + (": sums on their way lie in the output" if program.double_scratch else "")
        )
    ranks = tuple(
        replace(
            rank,
            thread_blocks=tuple(
                replace(block, steps=tuple(_moved(program, r, block.steps)))
                for block in rank.thread_blocks
            ),
        )
        for r, rank in enumerate(program.ranks)
    )
    return replace(program, ranks=ranks, in_place=True, out_of_place=False)


def _moved(program: Program, rank: int, steps: tuple[Step, ...]) -> list[Step]:
    """The steps with the shorter buffer named as part of the longer, without copies onto itself."""
    found: list[Step] = []
    for step in steps:
        if isinstance(step, Pipeline):
            body = [_instruction(program, rank, i) for i in step.body]
            kept = tuple(i for i in body if i is not None)
            if kept:
                found.append(replace(step, body=kept))
        elif (moved := _instruction(program, rank, step)) is not None:
            found.append(moved)
    return found


def _instruction(program: Program, rank: int, i: Instruction) -> Instruction | None:
    src = tuple(_ref(program, rank, ref) for ref in i.src)
    dst = tuple(_ref(program, rank, ref) for ref in i.dst)
    if i.op is Op.COPY and src == dst:
        return None
    return replace(i, src=src, dst=dst)


def _ref(program: Program, rank: int, ref: Ref) -> Ref:
    if ref.buffer is not program.shorter:
        return ref
    longer = Buffer.OUTPUT if ref.buffer is Buffer.INPUT else Buffer.INPUT
    first = program.ranks[0]
    part = min(first.input_chunks, first.output_chunks)
    owner = rank if ref.rank is None else ref.rank
    return replace(ref, buffer=longer, offset=owner * part + ref.offset)
