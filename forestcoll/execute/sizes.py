"""From a size in bytes to elements, chunks and memory, as nccl-tests defines sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from forestcoll.program import RECEIVES, SENDS, Program
from forestcoll.program.targets import message_slots

PACKET_BYTES = 16
"""Chunks of programs with packets are multiples of it, as the runtime asks of all plans."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How `size` bytes lie in a program's buffers.

    The data consist of `parts` parts of `part` elements (`Collective.parts`). In the buffers each
    takes `chunks` chunks of `chunk` elements; the rest is padding.
    """

    size: int  # bytes, as nccl-tests counts them: the whole of the collective
    count: int  # elements, as nccl-tests prints them
    element: int  # bytes
    parts: int
    part: int
    chunks: int
    chunk: int

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk, padding included."""
        return self.chunk * self.element

    @property
    def stride(self) -> int:
        """Bytes from one part to the next."""
        return self.chunks * self.chunk_bytes

    @property
    def has_padding(self) -> bool:
        """Whether chunks hold more than the data."""
        return self.chunks * self.chunk != self.part


def layout(program: Program, size: int, element: int, whole: int = 1) -> Layout:
    """The layout of the largest data of at most `size` bytes, or of one element (a part).

    `whole`: a chunk has a multiple of so many elements.
    """
    first = program.ranks[0]
    parts = program.collective.parts(program.n)
    chunks = max(first.input_chunks, first.output_chunks) // parts
    part = max(1, size // (parts * element))
    chunk = -(-part // chunks)
    if has_packets(program):  # which hold whole words, and slices of 16 bytes
        whole = max(whole, PACKET_BYTES // element)
    chunk = -(-chunk // whole) * whole
    return Layout(
        size=parts * part * element,
        count=part,
        element=element,
        parts=parts,
        part=part,
        chunks=chunks,
        chunk=chunk,
    )


def has_packets(program: Program) -> bool:
    """Whether data and the number of their launch travel in one word (MSCCL++'s LL)."""
    return program.protocol == "LL" and program.style == "onesided"


Geometry = tuple[int, int, int, int, int]
"""interpreter.hpp's: bytes of a chunk, an element and a slice, slices, chunks of a message."""


def geometry(data: Layout, slot: int, slice_bytes: int | None = None) -> Geometry:
    """A message holds whole chunks if one fits a slot (and a slice, where given), else a slice."""
    piece = min(slice_bytes or slot, slot, data.chunk_bytes)
    piece = max(data.element, piece // data.element * data.element)
    slices = -(-data.chunk_bytes // piece)
    chunks = slot // data.chunk_bytes if slices == 1 else 1
    return data.chunk_bytes, data.element, piece, slices, chunks


def memory_bytes(
    program: Program,
    scratch: Sequence[int],
    data: Layout,
    modes: Sequence[str],
    ranks: Iterable[int],
) -> int:
    """Bytes of the buffers of `ranks`, `scratch` chunks each, in the mode that needs most."""
    total = 0
    for r in ranks:
        rank, extra = program.ranks[r], scratch[r]
        user = max(rank.input_chunks, rank.output_chunks)
        if "out-of-place" in modes:
            user = rank.input_chunks + rank.output_chunks
        total += (user + extra * program.scratch_factor) * data.chunk_bytes
    return total


def memory_available() -> int | None:
    """Bytes that can be had without swapping, within the control group's limit; None: unknown."""
    limits = [machine_memory().get("MemAvailable"), _group_memory(Path("/sys/fs/cgroup"))]
    stated = [bytes_ for bytes_ in limits if bytes_ is not None]
    return min(stated) if stated else None


def machine_memory() -> dict[str, int]:
    """Bytes of each kind, as the kernel calls them; nothing where that is not Linux."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    words = (line.split() for line in lines)
    return {name.rstrip(":"): int(kib) * 1024 for name, kib, *_ in words}


def _group_memory(group: Path) -> int | None:
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None  # no control group, or none of version 2
    # Inactive file pages count as used but are given up at once.
    return None if limit == "max" else int(limit) - used + int(stat.get("inactive_file", 0))


# --- fifo connections: as much as the runtime's hold, in smaller pieces

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
    size = max(data.element, (slot_bytes or SLOT_BYTES) // data.element * data.element)
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
