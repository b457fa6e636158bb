"""A part is a slice of an operand's whole range, for the checker and for the engine alike."""

from __future__ import annotations

import pytest
from notation import parse
from programs import base, lines

from forestcoll.execute.cpu import run
from forestcoll.program import Program
from forestcoll.verify import verify

SIZES = (24, 7, 4 * 3000, 4 * 100_003)


def alone(chunks: int, *steps: str) -> Program:
    """An allreduce of one rank: what it does must come to a copy of its input to its output."""
    head = f"allreduce onesided places=out\nrank {chunks} {chunks}\nblock"
    return parse(lines(head, steps))


HALVES = "copy i0:2 -> o0:2 part="
THIRDS = "copy i1:3 -> o1:3 part="


@pytest.mark.parametrize(
    "p",
    [
        alone(2, HALVES + "0/2", "copy i1 -> o1"),
        alone(2, "copy i0 -> o0", HALVES + "1/2"),
        alone(4, THIRDS + "0/3", THIRDS + "2/3", "copy i0 i2 -> o0 o2"),
        # sums: the first of two chunks by a part, the second whole
        alone(2, "reduce_to i0:2 -> o0:2 part=0/2", "reduce_to i1 -> o1"),
        # 2 chunks in 3 parts: the ends of the parts lie within chunks
        alone(2, HALVES + "0/3", HALVES + "1/3", HALVES + "2/3"),
        base("four_parts"),  # of scratch
        base("remote_parts"),  # put by two thread blocks; rank 1 waits for both
    ],
)
def test_parts_and_whole_chunks_make_up_the_data(p: Program) -> None:
    verify(p)
    for size in SIZES:
        for threads in (1, 2):
            for dtype in ("uint8", "float16"):
                result = run(p, size, dtype=dtype, threads=threads)
                assert result.wrong == 0, (size, dtype, result.mismatches)
