"""Where everything lies: one arena a GPU, with its ranks' buffers, message slots and flags.

Flags are numbers of eight bytes, each in a cache line of its own. They lie with whoever waits for
them: `posted` of a connection with its reader, `taken` with its writer, a semaphore with the rank
that takes from it, a thread block's progress and a barrier with their rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forestcoll.execute import _engine
from forestcoll.execute.contents import place as place_buffers
from forestcoll.execute.sizes import Layout, longest_message
from forestcoll.execute.tables import Tables
from forestcoll.program import Program

LINE = 128  # bytes: no two flags share a cache line on any GPU
ALIGNMENT = 512
SLOT_BYTES = 1 << 20
SLOTS = 8
"""Slots of a fifo connection: as many as let a message be sent while others are read, and no more
than ring.hpp has room for."""
SLOT_ALIGNMENT = 256
"""Bytes at whose multiples slots begin, so that messages are copied in the widest words."""

Place = tuple[int, int]
"""(GPU by position among those used, byte offset in its arena)."""


Places = list[Place]


def slot_of(program: Program, data: Layout, most: int = SLOT_BYTES) -> int:
    """Bytes of a slot: what the longest message takes, and not over `most`; whole elements."""
    longest = longest_message(program) * data.chunk_bytes
    needed = -(-longest // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
    return max(data.element, min(most, needed) // data.element * data.element)


@dataclass(slots=True)
class Arenas:
    """Places of all things but buffers, which come first, by their numbers over all ranks."""

    gpu_of: list[int]  # per rank, as a position among the GPUs used
    bytes: list[int]  # per GPU
    flags: list[tuple[int, int]]  # per GPU: (begin, bytes)
    posted: Places  # per connection
    taken: Places
    slots: Places
    sizes: Places
    mirrors: Places  # per connection between nodes: its slots at the writer
    made: Places  # per rank: packets for other nodes, of each of its blocks
    semaphores: Places  # behind each, how much of what other nodes raised it by is in it
    progress: Places  # per block
    arrived: Places  # per barrier

    def initial(self, gpu: int, tables: Tables) -> npt.NDArray[np.uint64]:
        """What the flags of a GPU hold before a launch."""
        begin, size = self.flags[gpu]
        values = np.zeros(size // 8, np.uint64)
        for (where, offset), value in zip(self.semaphores, tables.semaphores, strict=True):
            if where == gpu:
                values[(offset - begin) // 8] = value
        return values


def lay_out(
    program: Program,
    tables: Tables,
    data: Layout,
    gpu_of: list[int],
    slots: int,
    slot_bytes: int,
    nodes: list[int],
) -> Arenas:
    """The places for `program` at this size, rank r on GPU `gpu_of[r]` (0, 1, ... without gaps).

    `nodes`: the node of each rank.
    """
    gpus = max(gpu_of) + 1
    what = program, tables.scratch, data.chunk_bytes
    _, ends = place_buffers(*what, "out-of-place", gpu_of, [ALIGNMENT] * gpus, ALIGNMENT)

    def place(gpu: int, size: int, unit: int = ALIGNMENT) -> Place:
        begin = -(-ends[gpu] // unit) * unit
        ends[gpu] = begin + size
        return gpu, begin

    def flags(ranks: Iterable[int]) -> Places:
        return [place(gpu_of[r], LINE, LINE) for r in ranks]

    rank_of = [row[0] for row in tables.blocks]
    writers, readers = ([rank_of[ends[side]] for ends in tables.connections] for side in (0, 1))
    packets = _engine.RING[1] * (len(set(nodes)) > 1)
    large = {
        "slots": [place(gpu_of[r], slots * slot_bytes) for r in readers],
        "sizes": [place(gpu_of[r], slots * 8) for r in readers],
        "mirrors": [
            place(gpu_of[w], slots * slot_bytes * (nodes[w] != nodes[r]))
            for w, r in zip(writers, readers, strict=True)
        ],
        "made": [place(gpu, packets * rank_of.count(r)) for r, gpu in enumerate(gpu_of)],
    }
    begins = [place(gpu, 0)[1] for gpu in range(gpus)]
    small = {
        "posted": flags(readers),
        "taken": flags(writers),
        "semaphores": flags(r for r, _ in tables.takers),
        "progress": flags(rank_of),
        "arrived": flags(tables.barriers),
    }
    spans = [(begin, end - begin) for begin, end in zip(begins, ends, strict=True)]
    sizes = [max(end, ALIGNMENT) for end in ends]
    return Arenas(gpu_of, sizes, spans, **large, **small)
