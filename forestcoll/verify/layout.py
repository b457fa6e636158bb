"""Where every chunk of every rank lies, what it holds at first and what it must hold at the end.

One address space holds the buffers of all ranks; memory.py makes one of those that are the same
memory in place. A location is a chunk, or one of `grain` equal slices of it where pipelines or
partial instructions make a thread block work on less than a chunk.

A value is one integer: the low bits hold 1 + the logical slice, the bits above `SHIFT` say which
ranks have contributed to it; 0 is "nothing defined". Adding two values of one slice whose
contributors are disjoint is a bitwise or; everything else that is added is an error.
"""

from __future__ import annotations

import bisect

from forestcoll.program import EVERYONE, Buffer, Program, Ref
from forestcoll.program.chunks import BUFFER_NAMES, ChunkCounts

SHIFT = 32
SLICE = (1 << SHIFT) - 1


class Layout:
    """Addresses of all buffers, each by itself; one chunk is `grain` locations."""

    def __init__(self, program: Program, sizes: ChunkCounts, *, grain: int) -> None:
        self.collective = program.collective
        self.sizes = sizes
        self.grain = grain
        self.double = program.double_scratch
        self._program = program
        self._bases: list[dict[Buffer, int]] = []
        self._starts: list[int] = []  # where each buffer starts, and what it is
        self._regions: list[tuple[int, Buffer]] = []
        self.size = 0
        for r in range(sizes.ranks):
            self._bases.append({b: self._region(r, b) for b in BUFFER_NAMES})

    def _region(self, rank: int, buffer: Buffer) -> int:
        start = self.size
        self._starts.append(start)
        self._regions.append((rank, buffer))
        twice = 2 if self.double and buffer is Buffer.SCRATCH else 1
        self.size += self.sizes.of(rank, buffer) * self.grain * twice
        return start

    def halves(self, rank: int) -> tuple[tuple[int, int], ...]:
        """The two halves of `rank`'s scratch, taken by turns; nothing where there is but one."""
        low, high = self.buffer(rank, Buffer.SCRATCH)
        return ((low, high), (high, 2 * high - low)) if self.double and high > low else ()

    def base(self, rank: int, buffer: Buffer) -> int:
        """First location of `buffer` at `rank`."""
        return self._bases[rank][buffer]

    def buffer(self, rank: int, buffer: Buffer) -> tuple[int, int]:
        """Locations [from, to) of `buffer` at `rank`."""
        low = self._bases[rank][buffer]
        return low, low + self.sizes.of(rank, buffer) * self.grain

    def shared(self, rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The locations of `rank`'s input and those of its output that are one memory in place."""
        part = self.sizes.part * self.grain * rank
        low, high = self.buffer(rank, Buffer.INPUT)
        first, last = self.buffer(rank, Buffer.OUTPUT)
        if self.sizes.input > self.sizes.output:
            return (low + part, low + part + last - first), (first, last)
        if self.sizes.input < self.sizes.output:
            return (low, high), (first + part, first + part + high - low)
        return (low, high), (first, last)

    def span(self, rank: int, ref: Ref) -> tuple[int, int]:
        """First location and number of locations of `ref` as seen by `rank`."""
        owner = rank if ref.rank is None else ref.rank
        return self._bases[owner][ref.buffer] + ref.offset * self.grain, ref.count * self.grain

    def span_in_place(self, rank: int, ref: Ref, *, by_port: bool) -> tuple[int, int]:
        """The same as the runtime has it in place, where the shorter user buffer is a part.

        `by_port`: a port reads it. See `Program.part_meant`.
        """
        program, (low, length) = self._program, self.span(rank, ref)
        if ref.buffer is not program.shorter:
            return low, length
        owner = rank if ref.rank is None else ref.rank
        longer = Buffer.OUTPUT if program.shorter is Buffer.INPUT else Buffer.INPUT
        part = program.part_meant(rank, ref, by_port=by_port) * self.sizes.part
        return self._bases[owner][longer] + (part + ref.offset) * self.grain, length

    def name(self, location: int) -> str:
        """`chunk 3 of rank 1's output`."""
        i = bisect.bisect_right(self._starts, location) - 1
        rank, buffer = self._regions[i]
        chunk = (location - self._starts[i]) // self.grain
        if buffer is Buffer.SCRATCH and self.double:
            half, chunk = divmod(chunk, self.sizes.of(rank, buffer))
            return f"packet chunk {chunk} of half {half} of rank {rank}'s scratch"
        return f"chunk {chunk} of rank {rank}'s {BUFFER_NAMES[buffer]}"

    def input_value(self, rank: int, place: int) -> int:
        """What the caller of `rank` puts into its input, `place` locations from its start."""
        if self.collective.input_is_part:
            place += rank * self.sizes.part * self.grain
        return (1 << (SHIFT + rank)) | (1 + place)

    def output_value(self, rank: int, root: int, place: int) -> int | None:
        """What the output of `rank` must hold at the end, `place` locations from its start.

        None where the collective leaves it open. `root` is that of a rooted collective.
        """
        length = self.sizes.part * self.grain
        part, within = divmod(place, length)
        origin = self.collective.origin(rank, root, part)
        if origin is None:
            return None
        source, taken = origin
        if source == EVERYONE:
            return (((1 << self.sizes.ranks) - 1) << SHIFT) | (1 + taken * length + within)
        return self.input_value(source, taken * length + within)

    def describe(self, value: int) -> str:
        """A value in words: `chunk 2 of rank 1's input`, `chunk 2 added up over ranks 0, 1`."""
        if not value:
            return "nothing defined"
        chunk = ((value & SLICE) - 1) // self.grain
        ranks = contributors(value)
        if len(ranks) > 1:
            return f"chunk {chunk} added up over ranks {_short(ranks)}"
        if self.collective.input_is_part:
            chunk -= ranks[0] * self.sizes.part
        return f"chunk {chunk} of rank {ranks[0]}'s input"


def contributors(value: int) -> list[int]:
    """The ranks whose data a value holds, ascending."""
    mask, ranks = value >> SHIFT, []
    while mask:
        low = mask & -mask
        ranks.append(low.bit_length() - 1)
        mask ^= low
    return ranks


def _short(ranks: list[int], limit: int = 8) -> str:
    text = ", ".join(map(str, ranks[:limit]))
    return text if len(ranks) <= limit else f"{text}, ... ({len(ranks)} ranks)"
