"""How chunks are cut into messages for the slots of fifo connections."""

from __future__ import annotations

from forestcoll.execute.sizes import Layout, longest_message
from forestcoll.program import Program

SLOT_BYTES = 1 << 20
SLOTS = 8
"""Slots of a fifo connection: as many as let a message be sent while others are read."""

ALIGNED = 256
"""Bytes at whose multiples slots begin, so that messages are copied in the widest words."""


def slot_of(program: Program, data: Layout, most: int = SLOT_BYTES) -> int:
    """Bytes of a slot: what the longest message takes, and not over `most`; whole elements."""
    longest = longest_message(program) * data.chunk_bytes
    needed = -(-longest // ALIGNED) * ALIGNED
    return max(data.element, min(most, needed) // data.element * data.element)


def geometry(data: Layout, slot: int) -> tuple[int, int, int, int, int]:
    """interpreter.hpp's Geometry: a message holds whole chunks if one fits a slot, else a slice."""
    piece = min(slot, data.chunk_bytes) // data.element * data.element
    slices = -(-data.chunk_bytes // piece)
    return (
        data.chunk_bytes,
        data.element,
        piece,
        slices,
        1 if slices > 1 else slot // data.chunk_bytes,
    )
