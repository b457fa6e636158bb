"""Memory that the runtime takes for other than a onesided program means.

In place: operands in the shorter user buffer (`explain_misplaced`).

Two halves of scratch (protocol LL): packets that miss their reader (`check_halves`). Launches take
the halves by turns. In the second one's turn a rank begins all its packets half its own scratch
further, those that it puts into a peer's scratch too; the peer reads half of *its* scratch further.
Where the two have unequal scratch, packets then miss their reader, who waits for ever, or go beyond
the peer's scratch. (microsoft/mscclpp 1f5f065d, executor.cc: launchKernelHelper;
execution_kernel.hpp: the operations on packets add `scratchOffset_`.)
"""

from __future__ import annotations

from collections.abc import Iterator

from forestcoll.common.errors import PlanError
from forestcoll.program import PACKETS, Instruction, Program, Ref
from forestcoll.program.chunks import BUFFER_NAMES, ChunkCounts
from forestcoll.program.program import where

CURE = "give all ranks the largest scratch_chunks"
Span = tuple[int, int]  # chunks [from, to)


def explain_misplacements(
    program: Program, sizes: ChunkCounts, faults: Iterator[PlanError]
) -> Iterator[PlanError]:
    """The faults of a run in place; where there are such operands, these in their place.

    What follows from them, the first one says with the first fault.
    """
    first = next(faults, None)
    if first is None:
        return
    misplaced = False
    for r, b, s, i, ref in program.misplacements():
        text = f"{where(r, b, s, i.op)}: {_words(program, sizes, r, ref)} (in place)"
        yield PlanError(
            text if misplaced else f"{text}; then: {first}", rule="MPP-PLACE", at=(r, b, s)
        )
        misplaced = True
    if not misplaced:
        yield first
        yield from faults


def _words(program: Program, sizes: ChunkCounts, rank: int, ref: Ref) -> str:
    assert program.shorter is not None
    short = BUFFER_NAMES[program.shorter]
    long = "output" if short == "input" else "input"
    owner = rank if ref.rank is None else ref.rank
    meant = owner * sizes.part + ref.offset
    local = ref.rank in (None, rank)
    taken = (0 if local else rank) * sizes.part + ref.offset
    how = (
        f"a port reads rank {owner}'s {short} from where its allocation begins"
        if local
        else f"rank {owner}'s {short} is sought as far from where its allocation begins as rank "
        f"{rank}'s own {short} lies from where its own does"
    )
    return (
        f"{how}, so takes chunk {taken} of the {long} for chunk {meant}; name the {long} itself "
        f"(chunk {meant}) in a plan for calls in place, or serve calls out of place only"
    )


def check_halves(program: Program) -> None:
    """PlanError where packets miss whoever reads them, or leave scratch, in the second half's turn.

    What nobody reads may lie anywhere in scratch but where something else is read.
    """
    if not program.double_scratch or len({r.scratch_chunks for r in program.ranks}) == 1:
        return
    read = _read(program)
    for r, b, s, i, ref in _put(program):
        if not program.lead(r, ref) or ref.rank is None:
            continue
        own, size = program.ranks[r].scratch_chunks, program.ranks[ref.rank].scratch_chunks
        first, end = ref.offset, ref.offset + ref.count
        says = f"{where(r, b, s, i.op)}: puts packets into rank {ref.rank}'s scratch, of two halves"
        says += f" of {size} chunks; in every other launch the runtime begins them half of rank "
        says += f"{r}'s own scratch ({own} chunks) further, at chunk {first + own}"
        if end + own > 2 * size:
            raise PlanError(
                f"{says}: beyond the {2 * size} that there are, in other memory; {CURE}",
                rule="MPP-SCRATCH-UNEQUAL",
                at=(r, b, s),
            )
        if _meet(read[ref.rank], first, end):
            why = f"and rank {ref.rank} waits for them at chunk {first + size}, for ever"
        elif any(_meet(read[ref.rank], first + x, end + x) for x in (own, own - size)):
            why = f"where rank {ref.rank} waits for others"
        else:
            continue
        raise PlanError(f"{says}, {why}; {CURE}", rule="MPP-SCRATCH-UNEQUAL", at=(r, b, s))


def _meet(read: list[Span], low: int, high: int) -> bool:
    return any(low < y and x < high for x, y in read)


def _put(program: Program) -> Iterator[tuple[int, int, int, Instruction, Ref]]:
    """Every operand that is packets in a peer's scratch, and where."""
    for r, b, s, i in program.instructions():
        if i.op in PACKETS:
            for ref in i.dst[PACKETS[i.op].remote_dst :]:
                yield r, b, s, i, ref


def _read(program: Program) -> list[list[Span]]:
    """Per rank the chunks of scratch whose packets it waits for."""
    read_spans: list[set[Span]] = [set() for _ in program.ranks]
    for r, _, _, i in program.instructions():
        if i.op in PACKETS:
            for ref in i.src[PACKETS[i.op].packet_src :]:
                read_spans[r].add((ref.offset, ref.offset + ref.count))
    return [sorted(spans) for spans in read_spans]
