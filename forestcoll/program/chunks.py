"""How many chunks the buffers of a program hold, checked against what its collective says."""

from __future__ import annotations

from typing import NamedTuple

from forestcoll.common.errors import PlanError
from forestcoll.program.collective import Collective
from forestcoll.program.program import Buffer, Program

BUFFER_NAMES = {Buffer.INPUT: "input", Buffer.OUTPUT: "output", Buffer.SCRATCH: "scratch"}


class ChunkCounts(NamedTuple):
    """Chunk counts: buffers of each rank, the collective's whole data and one rank's part of it."""

    ranks: int
    input: int
    output: int
    scratch: tuple[int, ...]
    total: int
    parts: int  # equal ones, of the data

    @property
    def part(self) -> int:
        """Chunks of one part of the data (allgather's input, reduce-scatter's output)."""
        return self.total // self.parts

    def of(self, rank: int, buffer: Buffer) -> int:
        """Chunks of `buffer` at `rank`."""
        if buffer == Buffer.INPUT:
            return self.input
        return self.output if buffer == Buffer.OUTPUT else self.scratch[rank]


def count_chunks(program: Program) -> ChunkCounts:
    """The program's buffer sizes, checked against what its collective says about them.

    A plan that is only ever run in place may leave one of the two user buffers at 0 chunks: it is
    the other one, so its size follows. Raises PlanError with the first rank that disagrees.
    """
    n = program.n
    for r, rank in enumerate(program.ranks):
        for what in ("input_chunks", "output_chunks", "scratch_chunks"):
            count = getattr(rank, what)
            if count < 0:
                raise PlanError(f"rank {r}: {what} is {count}; a buffer cannot be negative")
    first = program.ranks[0]
    shape = (first.input_chunks, first.output_chunks)
    for r, rank in enumerate(program.ranks):
        if (rank.input_chunks, rank.output_chunks) != shape:
            raise PlanError(
                f"rank {r}: input of {rank.input_chunks} and output of {rank.output_chunks} "
                f"chunks, but rank 0 has {shape[0]} and {shape[1]}; all ranks need the same"
            )
    size_in, size_out = shape
    to_in, to_out = program.collective.input_parts(n), program.collective.output_parts(n)
    if program.in_place and not program.out_of_place and (size_in == 0) != (size_out == 0):
        if size_in:
            size_out = size_in * to_out // to_in
        else:
            size_in = size_out * to_in // to_out
    if size_in <= 0 or size_out <= 0 or size_in * to_out != size_out * to_in:
        raise PlanError(
            f"rank 0: input of {shape[0]} and output of {shape[1]} chunks; "
            f"{_rule(program.collective, n)}"
        )
    scratch = tuple(rank.scratch_chunks for rank in program.ranks)
    parts = program.collective.parts(n)
    return ChunkCounts(n, size_in, size_out, scratch, max(size_in, size_out), parts)


def _rule(collective: Collective, n: int) -> str:
    if collective.input_is_part:
        return f"{collective} of {n} ranks needs an output of {n} times the input (at least 1)"
    if collective.output_is_part:
        return f"{collective} of {n} ranks needs an input of {n} times the output (at least 1)"
    return f"{collective} needs an output as large as the input (both at least 1)"
