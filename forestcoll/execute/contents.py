"""The ranks' buffers, what goes into them and what must come out.

Both are drawn from the definition of the collective alone (data.cpp), never from the plan.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from forestcoll.execute import _engine
from forestcoll.execute.result import Mode
from forestcoll.execute.sizes import Layout
from forestcoll.program import EVERYONE, Program

Bytes = npt.NDArray[np.uint8]
Memory = Callable[[int, int], Bytes]
"""Gives a rank so many bytes."""

SHOWN = 4  # wrong elements described per buffer
HUGE = 4 << 20  # bytes from which large pages are asked for


class Buffers(NamedTuple):
    """One rank's memory. In place, input and output overlap as NCCL defines it."""

    input: Bytes
    output: Bytes
    scratch: Bytes

    def addresses(self, turn: int, turns: int) -> tuple[int, ...]:
        """Of input, output and scratch, of which every one of `turns` launches has a share.

        Then those of the allocations that they lie in: in place the longer of both user buffers.
        """
        scratch = self.scratch.ctypes.data
        share = scratch + turn * (self.scratch.size // turns)
        user = self.input.ctypes.data, self.output.ctypes.data
        return *user, share, *allocations(user, (self.input.size, self.output.size)), scratch


def allocations(user: tuple[int, int], sizes: tuple[int, int]) -> tuple[int, int]:
    """Where the memory begins in which input and output (`user`: their addresses) lie.

    In place the shorter one (`sizes`: bytes) is a part of the longer one.
    """
    longer = 0 if sizes[0] > sizes[1] else 1
    begin, end = user[longer], user[longer] + sizes[longer]
    first, second = (begin if begin <= place < end else place for place in user)
    return first, second


def allocate(
    program: Program, scratch: Sequence[int], chunk: int, mode: Mode, memory: Memory
) -> list[Buffers]:
    """Buffers of all ranks, `scratch` chunks each, a chunk of `chunk` bytes.

    `memory`: where they come from (`private`, `shared`).
    """
    buffers = []
    for r, rank in enumerate(program.ranks):
        i, o = rank.input_chunks * chunk, rank.output_chunks * chunk
        own = r * min(i, o)  # where in the longer buffer the own part lies
        if mode == "out-of-place":
            first, second = memory(r, i), memory(r, o)
        elif i == o:
            first = second = memory(r, i)
        elif i < o:
            second = memory(r, o)
            first = second[own : own + i]
        else:
            first = memory(r, i)
            second = first[own : own + o]
        size = scratch[r] * chunk * program.scratch_factor
        buffers.append(Buffers(first, second, memory(r, size)))
    return buffers


def place(
    program: Program,
    scratch: Sequence[int],
    chunk: int,
    mode: Mode,
    homes: Sequence[int],
    bases: Sequence[int],
    unit: int,
) -> tuple[list[Buffers], list[int]]:
    """As `allocate`, one after the other in arenas that begin at the addresses `bases`; their ends.

    `homes`: the arena of each rank; buffers begin at multiples of `unit` bytes.
    """
    ends = [0] * len(bases)

    def memory(rank: int, size: int) -> Bytes:
        home = homes[rank]
        begin = -(-ends[home] // unit) * unit
        ends[home] = begin + size
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(bases[home] + begin))

    return allocate(program, scratch, chunk, mode, memory), ends


def common_memory(rank: int, size: int) -> Bytes:
    """Memory that processes which are forked later see as well.

    It has no name and is gone with the last process that has it.
    """
    if not size:
        return private(rank, size)
    region = mmap.mmap(-1, size)  # anonymous and shared
    if size >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        region.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(region, np.uint8)


def private(_: int, size: int) -> Bytes:
    """Memory of this process at a page boundary, so that no element straddles one."""
    page = mmap.PAGESIZE
    block = np.empty(size + page, np.uint8)
    start = -block.ctypes.data % page
    return block[start : start + size]


@dataclass(slots=True)
class Contents:
    """The data of one run. `threads` of this process fill and compare, those of `ranks` alone."""

    program: Program
    data: Layout
    pattern: _engine.Pattern
    root: int
    threads: int
    ranks: Sequence[int]
    epilogue: Sequence[_engine.Epilogue] = ()  # none, or that of what is reduced
    mismatches: list[str] = field(default_factory=list)

    def fill(self, buffers: Sequence[Buffers]) -> None:
        """Input data in every input; what has yet to be written is all ones, NaN in floats."""
        for r in self.ranks:
            b = buffers[r]
            b.scratch.fill(0xFF)
            b.output.fill(0xFF)
            if self.data.has_padding:
                b.input.fill(0)
            for start, first, count in self.input_parts():
                address = b.input.ctypes.data + start
                _engine.fill(self.pattern, r, first, count, address, self.threads)

    def input_parts(self) -> list[tuple[int, int, int]]:
        """(byte offset, position of the first element, elements) of the data in an input."""
        data, parts = self.data, self.program.collective.input_parts(self.program.n)
        if not data.has_padding:
            return [(0, 0, parts * data.part)]
        return [(p * data.stride, p * data.part, data.part) for p in range(parts)]

    def sums(self, buffers: Sequence[Buffers]) -> list[tuple[int, int]]:
        """(address, bytes) of every output of a reduction."""
        origin = self.program.collective.origin
        return [
            (buffers[r].output.ctypes.data, buffers[r].output.nbytes)
            for r in self.ranks
            if origin(r, self.root, 0) is not None
        ]

    def compare(self, buffers: Sequence[Buffers], mode: Mode) -> int:
        """Wrong elements of all that the collective defines; the first few go to `mismatches`."""
        data, wrong = self.data, 0
        for (part, source, taken), ranks in self._alike().items():
            at = [buffers[r].output.ctypes.data + part * data.stride for r in ranks]
            wrong += self._compare("output", source, taken * data.part, data.part, at, ranks, part)
        if mode == "out-of-place":
            for r in self.ranks:
                for start, first, count in self.input_parts():
                    at = [buffers[r].input.ctypes.data + start]
                    wrong += self._compare("input", r, first, count, at, [r])
        return wrong

    def _alike(self) -> dict[tuple[int, int, int], list[int]]:
        """The ranks whose part of the output comes from the same part of the same source.

        By (part of the output, source rank or REDUCED, part of its input).
        """
        collective, n = self.program.collective, self.program.n
        alike: dict[tuple[int, int, int], list[int]] = {}
        for part in range(collective.output_parts(n)):
            for rank in self.ranks:
                origin = collective.origin(rank, self.root, part)
                if origin is not None:
                    source = _engine.REDUCED if origin[0] == EVERYONE else origin[0]
                    alike.setdefault((part, source, origin[1]), []).append(rank)
        return alike

    def _compare(
        self,
        buffer: str,
        source: int,
        first: int,
        count: int,
        addresses: list[int],
        ranks: Sequence[int],
        part: int = 0,
    ) -> int:
        wrong, examples = _engine.compare(
            self.pattern, source, first, count, addresses, SHOWN, self.threads, *self.epilogue
        )
        data = self.data
        for k, element, expected, got in examples:
            number = part * data.part + element + (first if buffer == "input" else 0)
            chunk = part * data.chunks + element // data.chunk
            self.mismatches.append(
                f"rank {ranks[k]}, {buffer} element {number} (chunk {chunk}): expected {expected}, "
                f"{'it was changed to' if buffer == 'input' else 'got'} {got}"
            )
        return sum(wrong)
