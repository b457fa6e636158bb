"""What the engine's fifo connections hold: as much as the runtime's, in smaller pieces."""

from __future__ import annotations

from forestcoll.execute.sizes import Layout
from forestcoll.program import RECEIVES, SENDS, Program
from forestcoll.program.targets import message_slots

SLOT_BYTES = 128 * 1024  # a message, its copy and its sum stay in a core's second-level cache
SLOT_LEAST = 4096
SLOT_TOTAL = 256 * 2**20  # smaller slots where there are so many


def queue(
    program: Program,
    data: Layout,
    connections: int,
    slots: int | None,
    slot_bytes: int | None,
    slice_bytes: int | None,
) -> tuple[int, int]:
    """(slots, bytes of a slot) of every connection; what is given stays.

    Whoever sends before it receives goes on only as long as its messages find room. The runtime has
    few but large slots; a piece of a message that fits one of them is several of the engine's
    pieces, and gets a slot for each. Then whatever goes on there (or in the symbolic check, which
    counts as the runtime does) goes on here: piece by piece, an engine's thread block can do the
    same.
    """
    pieces, held = _runtime(program, data)
    size = slot_bytes or SLOT_BYTES
    while True:
        sliced = min(size, slice_bytes or size) < data.chunk_bytes
        own = 1 if sliced else size // data.chunk_bytes  # chunks (or slices of one) in a piece
        count = slots or held * -(-pieces // own)
        if slot_bytes or size <= SLOT_LEAST or connections * count * size <= SLOT_TOTAL:
            return count, size
        size = max(SLOT_LEAST, size // 2)


def _runtime(program: Program, data: Layout) -> tuple[int, int]:
    """(chunks of a message that a slot of the runtime holds, slots).

    At the largest size that the plan serves: its author relied on no more. A plan for all sizes
    cannot rely on more than one chunk.
    """
    size, held = message_slots(program)
    if not program.max_bytes:
        return 1, held
    longest = longest_message(program)
    chunk = -(-program.max_bytes // (data.parts * data.chunks))
    if data.size > program.max_bytes:
        chunk = data.chunk_bytes
    return min(longest, max(1, size // chunk)), held


def longest_message(program: Program) -> int:
    """Chunks in the longest message; 1 where there is none."""
    return max(
        ((i.src or i.dst)[0].count for *_, i in program.instructions() if i.op in SENDS | RECEIVES),
        default=1,
    )
