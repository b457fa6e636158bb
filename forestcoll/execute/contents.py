"""The ranks' buffers, what goes into them and what must come out.

Both are drawn from the definition of the collective alone (data.cpp), never from the plan.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from forestcoll.execute import _engine
from forestcoll.execute.result import Mode
from forestcoll.execute.sizes import Layout
from forestcoll.program import Collective, Program

Bytes = npt.NDArray[np.uint8]
Memory = Callable[[int], Bytes]
"""Gives that many bytes."""

SHOWN = 4  # wrong elements described per buffer
ADDRESSES = 6  # that the engines take of a rank
HUGE = 4 << 20  # bytes from which large pages are asked for


@dataclass(frozen=True, slots=True)
class Buffers:
    """One rank's memory. In place, input and output overlap as NCCL defines it."""

    input: npt.NDArray[np.uint8]
    output: npt.NDArray[np.uint8]
    scratch: npt.NDArray[np.uint8]

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
    found = []
    for r, rank in enumerate(program.ranks):
        i, o = rank.input_chunks * chunk, rank.output_chunks * chunk
        own = r * min(i, o)  # where in the longer buffer the own part lies
        if mode == "out-of-place":
            first, second = memory(i), memory(o)
        elif i == o:
            first = second = memory(i)
        elif i < o:
            second = memory(o)
            first = second[own : own + i]
        else:
            first = memory(i)
            second = first[own : own + o]
        size = scratch[r] * chunk * program.scratch_factor
        found.append(Buffers(first, second, memory(size)))
    return found


def shared(size: int) -> Bytes:
    """Memory that processes which are forked later see as well.

    It has no name and is gone with the last process that has it.
    """
    if not size:
        return private(size)
    region = mmap.mmap(-1, size)  # anonymous and shared
    if size >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        region.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(region, np.uint8)


def private(size: int) -> Bytes:
    """Memory of this process at a page boundary, so that no element straddles one."""
    page = mmap.PAGESIZE
    block = np.empty(size + page, np.uint8)
    start = -block.ctypes.data % page
    return block[start : start + size]


@dataclass(slots=True)
class Contents:
    """The data of one run. `threads` of this process fill and compare."""

    program: Program
    data: Layout
    pattern: _engine.Pattern
    root: int
    threads: int
    mismatches: list[str] = field(default_factory=list)

    def fill(self, buffers: Sequence[Buffers]) -> None:
        """Input data in every input; what has yet to be written is all ones, NaN in floats."""
        for r, b in enumerate(buffers):
            b.scratch.fill(0xFF)
            b.output.fill(0xFF)
            if self.data.padded:
                b.input.fill(0)
            for start, first, count in self.input_parts():
                address = b.input.ctypes.data + start
                _engine.fill(self.pattern, r, first, count, address, self.threads)

    def input_parts(self) -> list[tuple[int, int, int]]:
        """(byte offset, position of the first element, elements) of the data in an input."""
        data = self.data
        if self.program.collective is not Collective.REDUCE_SCATTER:
            return [(0, 0, data.part)]
        if not data.padded:
            return [(0, 0, data.parts * data.part)]
        return [(p * data.stride, p * data.part, data.part) for p in range(data.parts)]

    def sums(self, buffers: Sequence[Buffers]) -> list[tuple[int, int, int]]:
        """(rank, address, bytes) of every output that holds a reduction over all ranks."""
        collective = self.program.collective
        ranks = [self.root] if collective is Collective.REDUCE else range(self.program.n)
        if not collective.reduces:
            return []
        return [(r, buffers[r].output.ctypes.data, buffers[r].output.nbytes) for r in ranks]

    def compare(self, buffers: Sequence[Buffers], mode: Mode) -> int:
        """Wrong elements of all that the collective defines; the first few go to `mismatches`."""
        data, everyone = self.data, range(self.program.n)
        outputs = [b.output.ctypes.data for b in buffers]
        wrong = 0
        match self.program.collective:
            case Collective.ALLGATHER:
                for p in range(data.parts):
                    at = [start + p * data.stride for start in outputs]
                    wrong += self._compare("output", p, 0, data.part, at, everyone, p)
            case Collective.REDUCE_SCATTER:
                for r in everyone:
                    first, at = r * data.part, [outputs[r]]
                    wrong += self._compare("output", _engine.REDUCED, first, data.part, at, [r])
            case Collective.ALLREDUCE:
                wrong += self._compare("output", _engine.REDUCED, 0, data.part, outputs, everyone)
            case Collective.BROADCAST:
                wrong += self._compare("output", self.root, 0, data.part, outputs, everyone)
            case Collective.REDUCE:
                at = [outputs[self.root]]
                wrong += self._compare("output", _engine.REDUCED, 0, data.part, at, [self.root])
        if mode == "out-of-place":
            for r in everyone:
                for start, first, count in self.input_parts():
                    at = [buffers[r].input.ctypes.data + start]
                    wrong += self._compare("input", r, first, count, at, [r])
        return wrong

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
            self.pattern, source, first, count, addresses, SHOWN, self.threads
        )
        data = self.data
        for k, element, expected, found in examples:
            number = part * data.part + element + (first if buffer == "input" else 0)
            chunk = part * data.chunks + element // data.chunk
            self.mismatches.append(
                f"rank {ranks[k]}, {buffer} element {number} (chunk {chunk}): expected {expected}, "
                f"{'it was changed to' if buffer == 'input' else 'got'} {found}"
            )
        return sum(wrong)
