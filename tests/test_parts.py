"""A part is a slice of an operand's whole range, for the checker and for the engine alike."""

from __future__ import annotations

from dataclasses import replace

import programs as pg
import pytest
from programs import do, inp, out, scr

from forestcoll.common.errors import PlanError
from forestcoll.execute.cpu import run
from forestcoll.program import Collective, Instruction, Op, Program
from forestcoll.verify import verify

SIZES = (24, 7, 4 * 3000, 4 * 100_003)


def alone(*steps: Instruction, chunks: int, scratch: int = 0) -> Program:
    """An allreduce of one rank: what it does must come to a copy of its input to its output."""
    block = pg.otb([], *steps)
    ranks = [pg.rank(block, i=chunks, o=chunks, s=scratch)]
    return pg.program(Collective.ALLREDUCE, "onesided", ranks, modes="out")


def parts(i: Instruction, *some: tuple[int, int]) -> list[Instruction]:
    return [replace(i, part=part) for part in some]


HALVES = do(Op.COPY, inp(0, 2), out(0, 2))
THIRDS = do(Op.COPY, inp(1, 3), out(1, 3))


@pytest.mark.parametrize(
    "p",
    [
        alone(*parts(HALVES, (0, 2)), do(Op.COPY, inp(1), out(1)), chunks=2),
        alone(do(Op.COPY, inp(0), out(0)), *parts(HALVES, (1, 2)), chunks=2),
        alone(
            *parts(THIRDS, (0, 3), (2, 3)),
            do(Op.COPY, [inp(0), inp(2)], [out(0), out(2)]),
            chunks=4,
        ),
        # sums: the first of two chunks by a part, the second whole
        alone(
            *parts(do(Op.REDUCE_TO, [inp(0, 2)], out(0, 2)), (0, 2)),
            do(Op.REDUCE_TO, [inp(1)], out(1)),
            chunks=2,
        ),
        # 2 chunks in 3 parts: the ends of the parts lie within chunks
        alone(*parts(HALVES, (0, 3), (1, 3), (2, 3)), chunks=2),
    ],
)
def test_parts_and_whole_chunks_make_up_the_data(p: Program) -> None:
    verify(p)
    for size in SIZES:
        for threads in (1, 2):
            result = run(p, size, dtype="uint8", threads=threads)
            assert result.wrong == 0, (size, result.mismatches)


def test_half_of_every_chunk_is_not_half_of_the_range() -> None:
    """Two halves that would be everything if they were halves of each chunk."""
    p = alone(*parts(HALVES, (0, 2)), *parts(do(Op.COPY, inp(1), out(1)), (1, 2)), chunks=2)
    with pytest.raises(PlanError, match="chunk 1 of rank 0's output holds nothing defined"):
        verify(p)
    result = run(p, 4 * 1000, dtype="float32")
    assert result.wrong == 250
    assert "chunk 1" in result.mismatches[0]


def test_a_part_of_a_remote_range() -> None:
    """Rank 0 puts two chunks in two parts by two thread blocks; rank 1 waits for both."""
    put = do(Op.PUT, inp(0, 2), out(0, 2, rank=1), channels=[0])
    tell = [do(Op.NOP), do(Op.SIGNAL, channels=[0])]
    hello = do(Op.RELAXED_WAIT, channels=[0]), do(Op.NOP)
    here = [pg.otb([(1, "memory", k)], *hello, replace(put, part=(k, 2)), *tell) for k in range(2)]
    own = pg.otb([], do(Op.COPY, inp(0, 2), out(0, 2)))
    there = [
        pg.otb([(0, "memory", k)], do(Op.RELAXED_SIGNAL, channels=[0]), do(Op.WAIT, channels=[0]))
        for k in range(2)
    ]
    ranks = [pg.rank(*here, own, i=2, o=2), pg.rank(*there, i=2, o=2)]
    p = pg.program(Collective.BROADCAST, "onesided", ranks, modes="out", root=0)
    verify(p)
    for size in SIZES:
        assert run(p, size, dtype="float16").wrong == 0


def test_scratch_may_be_filled_part_by_part() -> None:
    steps = [
        *parts(do(Op.COPY, inp(0, 2), scr(0, 2)), (0, 4), (1, 4), (2, 4), (3, 4)),
        do(Op.NOP),
        do(Op.COPY, scr(0, 2), out(0, 2)),
    ]
    p = alone(*steps, chunks=2, scratch=2)
    verify(p)
    assert run(p, 999, dtype="int8").wrong == 0
