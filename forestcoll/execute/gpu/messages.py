"""How chunks are cut into messages for the slots of fifo connections."""

from __future__ import annotations

from forestcoll.execute.sizes import Layout

SLOT_BYTES = 1 << 20
SLOTS = 8
"""Slots of a fifo connection: as many as let a message be sent while others are read."""


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
