"""Where everything lies: one arena a GPU, with its ranks' buffers, flags and message slots.

Flags are numbers of eight bytes, each in a cache line of its own. They lie with whoever waits for
them: `posted` of a connection with its reader, `taken` with its writer, a semaphore with the rank
that takes from it, a thread block's progress and a barrier with their rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from forestcoll.execute.sizes import Layout, longest_message
from forestcoll.execute.tables import Tables
from forestcoll.program import Program

LINE = 128  # bytes: no two flags share a cache line on any GPU
ALIGNMENT = 512
SLOT_BYTES = 1 << 20
SLOTS = 8
"""Slots of a fifo connection: as many as let a message be sent while others are read."""
SLOT_ALIGNMENT = 256
"""Bytes at whose multiples slots begin, so that messages are copied in the widest words."""

Place = tuple[int, int]
"""(GPU by position among those used, byte offset in its arena)."""


def slot_of(program: Program, data: Layout, most: int = SLOT_BYTES) -> int:
    """Bytes of a slot: what the longest message takes, and not over `most`; whole elements."""
    longest = longest_message(program) * data.chunk_bytes
    needed = -(-longest // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
    return max(data.element, min(most, needed) // data.element * data.element)


@dataclass(slots=True)
class Arenas:
    """Places of all things, by their numbers over all ranks (tables.py)."""

    gpu_of: list[int]  # per rank, as a position among the GPUs used
    bytes: list[int] = field(default_factory=list)  # per GPU
    input: list[Place] = field(default_factory=list)  # per rank, out of place
    output: list[Place] = field(default_factory=list)
    scratch: list[Place] = field(default_factory=list)
    scratch_bytes: list[int] = field(default_factory=list)
    posted: list[Place] = field(default_factory=list)  # per connection
    taken: list[Place] = field(default_factory=list)
    slots: list[Place] = field(default_factory=list)
    sizes: list[Place] = field(default_factory=list)
    semaphores: list[Place] = field(default_factory=list)
    progress: list[Place] = field(default_factory=list)  # per block
    arrived: list[Place] = field(default_factory=list)  # per barrier
    flags: list[tuple[int, int]] = field(default_factory=list)  # per GPU: (begin, bytes)

    def initial(self, gpu: int, tables: Tables) -> npt.NDArray[np.uint64]:
        """What the flags of a GPU hold before a launch."""
        begin, size = self.flags[gpu]
        values = np.zeros(size // 8, np.uint64)
        for (where, offset), value in zip(self.semaphores, tables.semaphores, strict=True):
            if where == gpu:
                values[(offset - begin) // 8] = value
        return values


def lay_out(
    program: Program, tables: Tables, data: Layout, gpu_of: list[int], slots: int, slot_bytes: int
) -> Arenas:
    """The places for `program` at this size, rank r on GPU `gpu_of[r]` (0, 1, ... without gaps)."""
    arenas = Arenas(gpu_of)
    count = max(gpu_of) + 1
    ends = [0] * count

    def place(gpu: int, size: int, unit: int = ALIGNMENT) -> Place:
        begin = -(-ends[gpu] // unit) * unit
        ends[gpu] = begin + size
        return gpu, begin

    chunk, factor = data.chunk_bytes, program.scratch_factor
    for r, rank in enumerate(program.ranks):
        gpu = gpu_of[r]
        arenas.input.append(place(gpu, rank.input_chunks * chunk))
        arenas.output.append(place(gpu, rank.output_chunks * chunk))
        arenas.scratch_bytes.append(tables.scratch[r] * chunk * factor)
        arenas.scratch.append(place(gpu, arenas.scratch_bytes[r]))
    rank_of = [row[0] for row in tables.blocks]
    for _, reader in tables.connections:
        gpu = gpu_of[rank_of[reader]]
        arenas.slots.append(place(gpu, slots * slot_bytes))
        arenas.sizes.append(place(gpu, slots * 8))
    begins = [place(gpu, 0)[1] for gpu in range(count)]
    for writer, reader in tables.connections:
        arenas.posted.append(place(gpu_of[rank_of[reader]], LINE, LINE))
        arenas.taken.append(place(gpu_of[rank_of[writer]], LINE, LINE))
    for r, _ in tables.takers:
        arenas.semaphores.append(place(gpu_of[r], LINE, LINE))
    for r in rank_of:
        arenas.progress.append(place(gpu_of[r], LINE, LINE))
    for r in tables.barriers:
        arenas.arrived.append(place(gpu_of[r], LINE, LINE))
    arenas.bytes = [max(end, ALIGNMENT) for end in ends]
    arenas.flags = [(begins[gpu], ends[gpu] - begins[gpu]) for gpu in range(count)]
    return arenas
