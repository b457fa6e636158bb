"""In place: operands that the runtime takes for other memory than a onesided program means."""

from __future__ import annotations

from collections.abc import Iterator

from forestcoll.common.errors import PlanError
from forestcoll.program import Program, Ref
from forestcoll.program.chunks import BUFFER_NAMES, ChunkCounts
from forestcoll.program.program import where

RULE = "MPP-PLACE"


def explain_misplaced(
    program: Program, sizes: ChunkCounts, faults: Iterator[PlanError]
) -> Iterator[PlanError]:
    """The faults of a run in place; where there are such operands, these in their place.

    What follows from them, the first one says with the first fault.
    """
    first = next(faults, None)
    if first is None:
        return
    misplaced = False
    for r, b, s, i, ref in program.misplaced():
        text = f"{where(r, b, s, i.op)}: {_words(program, sizes, r, ref)} (in place)"
        yield PlanError(text if misplaced else f"{text}; then: {first}", rule=RULE, at=(r, b, s))
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
