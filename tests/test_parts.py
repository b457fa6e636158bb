"""A part is a slice of an operand's whole range, for the checker and for the engine alike."""

from __future__ import annotations

import pytest
from notation import parse
from programs import lines

from forestcoll.common.errors import PlanError
from forestcoll.execute.cpu import run
from forestcoll.program import Program
from forestcoll.verify import verify

SIZES = (24, 7, 4 * 3000, 4 * 100_003)


def alone(chunks: int, *steps: str, scratch: int = 0) -> Program:
    """An allreduce of one rank: what it does must come to a copy of its input to its output."""
    head = f"allreduce onesided places=out\nrank {chunks} {chunks} {scratch}\nblock"
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
    p = alone(2, HALVES + "0/2", "copy i1 -> o1 part=1/2")
    with pytest.raises(PlanError, match="chunk 1 of rank 0's output holds nothing defined"):
        verify(p)
    result = run(p, 4 * 1000, dtype="float32")
    assert result.wrong == 250
    assert "chunk 1" in result.mismatches[0]


def test_a_part_of_a_remote_range() -> None:
    """Rank 0 puts two chunks in two parts by two thread blocks; rank 1 waits for both."""
    text = ["broadcast onesided places=out root=0\nrank 2 2"]
    for k in (0, 1):
        text += [f"block channels=memory:1:{k}\nrelaxed_wait over=0\nnop"]
        text += [f"put i0:2 -> o0:2@1 over=0 part={k}/2\nnop\nsignal over=0"]
    text += ["block\ncopy i0:2 -> o0:2\nrank 2 2"]
    text += [f"block channels=memory:0:{k}\nrelaxed_signal over=0\nwait over=0" for k in (0, 1)]
    p = parse(lines(text))
    verify(p)
    for size in SIZES:
        assert run(p, size, dtype="float16").wrong == 0


def test_scratch_may_be_filled_part_by_part() -> None:
    steps = [f"copy i0:2 -> s0:2 part={k}/4" for k in range(4)]
    p = alone(2, *steps, "nop", "copy s0:2 -> o0:2", scratch=2)
    verify(p)
    assert run(p, 999, dtype="int8").wrong == 0
