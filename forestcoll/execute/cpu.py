"""Runs a program on this machine: every rank with real memory, every output element checked.

The instruction loop is interpreter.hpp, the same source for every engine; engine.cpp runs
thousands of thread blocks on a few threads. What goes in and what must come out is drawn from the
definition of the collective alone (data.cpp), never from the plan.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from forestcoll.errors import ExecutionError, PlanError, UnsupportedError, did_you_mean
from forestcoll.execute import stuck
from forestcoll.execute.check import check as check_structure
from forestcoll.execute.sizes import (
    Layout,
    bus_factor,
    layout,
    memory_available,
    memory_needed,
    scratch_factor,
)
from forestcoll.execute.slots import queue
from forestcoll.program import Collective, Pipeline, Program

try:
    from forestcoll.execute import _engine
    from forestcoll.execute.tables import Tables, build
except ImportError as error:  # pragma: no cover - needs a broken installation
    raise ExecutionError(
        f"the native engine forestcoll.execute._engine cannot be loaded ({error}); "
        "install the package again with `pip install .`"
    ) from error

Mode = Literal["out-of-place", "in-place"]
MODES: tuple[Mode, ...] = ("out-of-place", "in-place")
DTYPES = tuple(_engine.type_names())
OPS = tuple(_engine.reduction_names())

SHOWN = 4  # wrong elements described per buffer


@dataclass(frozen=True, slots=True)
class Row:
    """One line of nccl-tests' table. GB/s of 10^9 bytes; `wrong`: elements, None if not checked."""

    mode: Mode
    size: int  # bytes
    count: int  # elements
    dtype: str
    op: str  # "none" where nothing is added
    root: int  # -1 where there is none
    time_us: float
    algbw: float
    busbw: float
    wrong: int | None


@dataclass(frozen=True, slots=True)
class RunResult:
    """The table, what a user should know about the sizes, and the first wrong elements in words."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    mismatches: tuple[str, ...] = ()

    @property
    def wrong(self) -> int:
        """Wrong elements of all rows."""
        return sum(row.wrong or 0 for row in self.rows)


def run(
    program: Program,
    size_bytes: int,
    *,
    dtype: str = "float32",
    op: str = "sum",
    iterations: int = 1,
    warmup: int = 0,
    modes: Sequence[Mode] = MODES,
    check: bool = True,
    timeout: float = 60.0,
    root: int | None = None,
    threads: int | None = None,
    slots: int | None = None,
    slot_bytes: int | None = None,
    slice_bytes: int | None = None,
) -> RunResult:
    """The table of `modes` (those that the program allows), each launched `iterations` times.

    `size_bytes` is nccl-tests' size; where it is no multiple of the plan's, parts are padded to
    whole chunks and a note says so. With `check`, the first and the last launch of each mode begin
    with fresh data, and every element that they must produce or must leave alone is compared:
    `wrong` counts them, and `mismatches` describes the first.
    `slots`, `slot_bytes`: what a fifo connection holds (by default enough for what the plan's
    runtime holds); `slice_bytes`: bytes of each chunk handled per iteration (at most a slot).
    `timeout`: seconds without any progress.

    Raises PlanError (the program is malformed or cannot run so), UnsupportedError (type, operation
    or memory) and ExecutionError (it got stuck, or left messages or signals behind).
    """
    check_structure(program)
    type_, op_ = _index(DTYPES, dtype, "data type"), _index(OPS, op, "operation")
    _check_positive(size=size_bytes, iterations=iterations, timeout=timeout)
    if slots is not None:
        _check_positive(slots=slots)
    chosen = _modes(program, modes)
    element = _engine.element_bytes(type_)
    data = layout(program, size_bytes, element)
    _check_units(program, element)
    tables = build(program)
    _check_memory(memory_needed(program, tables.scratch, data.chunk_bytes, chosen), data.size)
    connections = len(tables.connections)
    slots, slot = queue(program, data, connections, slots, slot_bytes, slice_bytes)
    pattern = _engine.Pattern(type_, op_, program.collective.reduces, program.n)
    job = _Job(
        program=program,
        tables=tables,
        data=data,
        pattern=pattern,
        root=_root(program, root),
        threads=threads or len(os.sched_getaffinity(0)),
        launches=(warmup, iterations),
        check=check,
    )
    job.options = _engine.Options(
        chunk_bytes=data.chunk_bytes,
        slice_bytes=max(element, (slice_bytes or slot) // element * element),
        slot_bytes=max(element, slot // element * element),
        slots=slots,
        type=type_,
        op=op_,
        threads=job.threads,
        patience=timeout,
    )
    rows = tuple(job.row(mode, dtype, op, timeout) for mode in chosen)
    return RunResult(rows, _notes(program, size_bytes, data), tuple(job.mismatches))


@dataclass(slots=True)
class _Buffers:
    """One rank's memory. In place, input and output overlap as NCCL defines it."""

    input: npt.NDArray[np.uint8]
    output: npt.NDArray[np.uint8]
    scratch: npt.NDArray[np.uint8]


@dataclass(slots=True)
class _Job:
    """One call of `run`: everything that does not change between launches."""

    program: Program
    tables: Tables
    data: Layout
    pattern: _engine.Pattern
    root: int
    threads: int
    launches: tuple[int, int]  # not timed, timed
    check: bool
    options: _engine.Options = field(init=False)
    mismatches: list[str] = field(default_factory=list)

    def row(self, mode: Mode, dtype: str, op: str, timeout: float) -> Row:
        buffers = self.allocate(mode)
        engine = self.tables.engine()
        warmup, iterations = self.launches
        nanoseconds = wrong = 0
        for k in range(warmup + iterations):
            fresh = k in (0, warmup + iterations - 1)
            if fresh:
                self.fill(buffers, mode)
            elapsed = self.launch(engine, buffers, timeout, k)
            nanoseconds += elapsed if k >= warmup else 0
            if fresh and self.check:
                wrong = max(wrong, self.compare(buffers, mode))
        seconds = max(nanoseconds, 1) / iterations / 1e9
        collective = self.program.collective
        algbw = self.data.size / seconds / 1e9
        return Row(
            mode=mode,
            size=self.data.size,
            count=self.data.count,
            dtype=dtype,
            op=op if collective.reduces else "none",
            root=self.root,
            time_us=seconds * 1e6,
            algbw=algbw,
            busbw=algbw * float(bus_factor(self.program)),
            wrong=wrong if self.check else None,
        )

    def allocate(self, mode: Mode) -> list[_Buffers]:
        found = []
        chunk = self.data.chunk_bytes
        for r, rank in enumerate(self.program.ranks):
            i, o = rank.input_chunks * chunk, rank.output_chunks * chunk
            own = r * min(i, o)  # where in the longer buffer the own part lies
            if mode == "out-of-place":
                first, second = _memory(i), _memory(o)
            elif i == o:
                first = second = _memory(i)
            elif i < o:
                second = _memory(o)
                first = second[own : own + i]
            else:
                first = _memory(i)
                second = first[own : own + o]
            scratch = self.tables.scratch[r] * chunk * scratch_factor(self.program)
            found.append(_Buffers(first, second, _memory(scratch)))
        return found

    def fill(self, buffers: list[_Buffers], mode: Mode) -> None:
        """Input data in every input; what has yet to be written is all ones, NaN in floats."""
        data = self.data
        for r, b in enumerate(buffers):
            b.scratch.fill(0xFF)
            b.output.fill(0xFF)
            if data.padded:
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

    def launch(
        self, engine: _engine.Engine, buffers: list[_Buffers], timeout: float, number: int
    ) -> int:
        """Nanoseconds; ExecutionError if it did not end well. `number`: launches before it."""
        addresses = []
        for b in buffers:
            half = b.scratch.size // 2 if self.program.double_scratch and number % 2 else 0
            addresses += [b.input.ctypes.data, b.output.ctypes.data, b.scratch.ctypes.data + half]
        status, nanoseconds, stops, leftovers = engine.launch(addresses, self.options)
        match stuck.Status(status):
            case stuck.Status.DONE:
                return nanoseconds
            case stuck.Status.STUCK:
                text = stuck.explain_stuck(self.tables, stops)
            case stuck.Status.MISMATCH:
                text = stuck.explain_mismatch(self.tables, stops[0])
            case stuck.Status.LEFTOVER:
                text = stuck.explain_leftovers(self.tables, leftovers)
            case _:
                text = stuck.explain_stalled(self.tables, stops, timeout)
        raise ExecutionError(text)

    def compare(self, buffers: list[_Buffers], mode: Mode) -> int:
        """Wrong elements of all that the collective defines; the first few go to `mismatches`."""
        data, everyone = self.data, range(self.program.n)
        outputs = [b.output.ctypes.data for b in buffers]
        wrong = 0
        match self.program.collective:
            case Collective.ALLGATHER:
                for p in range(data.parts):
                    at = [start + p * data.stride for start in outputs]
                    wrong += self.compare_one("output", p, 0, data.part, at, everyone, p)
            case Collective.REDUCE_SCATTER:
                for r in everyone:
                    at = [outputs[r]]
                    wrong += self.compare_one(
                        "output", _engine.REDUCED, r * data.part, data.part, at, [r]
                    )
            case Collective.ALLREDUCE:
                wrong += self.compare_one(
                    "output", _engine.REDUCED, 0, data.part, outputs, everyone
                )
            case Collective.BROADCAST:
                wrong += self.compare_one("output", self.root, 0, data.part, outputs, everyone)
            case Collective.REDUCE:
                at = [outputs[self.root]]
                wrong += self.compare_one("output", _engine.REDUCED, 0, data.part, at, [self.root])
        if mode == "out-of-place":
            for r in everyone:
                for start, first, count in self.input_parts():
                    at = [buffers[r].input.ctypes.data + start]
                    wrong += self.compare_one("input", r, first, count, at, [r])
        return wrong

    def compare_one(
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


def _memory(size: int) -> npt.NDArray[np.uint8]:
    """`size` bytes at a page boundary, so that no element straddles one."""
    page = 4096
    block = np.empty(size + page, np.uint8)
    start = -block.ctypes.data % page
    return block[start : start + size]


def _index(known: tuple[str, ...], word: str, what: str) -> int:
    if word in known:
        return known.index(word)
    if word == "avg":
        raise UnsupportedError(
            "operation 'avg': it is rounded differently by every runtime; run 'sum' instead"
        )
    hint = did_you_mean(word, known) or f"; there are {', '.join(known)}"
    raise UnsupportedError(f"unknown {what} {word!r}{hint}")


def _check_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if number <= 0:
            raise UnsupportedError(f"{name} must be above 0, not {number}")


def _modes(program: Program, wanted: Sequence[Mode]) -> tuple[Mode, ...]:
    allowed = {"out-of-place": program.out_of_place, "in-place": program.in_place}
    for mode in wanted:
        if mode not in allowed:
            raise UnsupportedError(f"unknown mode {mode!r}{did_you_mean(mode, allowed)}")
    chosen = tuple(mode for mode in MODES if mode in wanted and allowed[mode])
    if not chosen:
        raise PlanError(f"the plan serves none of these: {', '.join(wanted)}")
    return chosen


def _root(program: Program, root: int | None) -> int:
    if not program.collective.rooted:
        if root not in (None, -1):
            raise UnsupportedError(f"{program.collective} has no root")
        return -1
    if program.root >= 0 and root not in (None, program.root):
        raise PlanError(f"the plan's root is rank {program.root}, not {root}")
    found = program.root if root is None else root
    if not 0 <= found < program.n:
        raise PlanError(f"{program.collective}: the root must be a rank from 0 to {program.n - 1}")
    return found


def _check_units(program: Program, element: int) -> None:
    for r, rank in enumerate(program.ranks):
        for b, block in enumerate(rank.thread_blocks):
            for s, step in enumerate(block.steps):
                if isinstance(step, Pipeline) and step.unit_bytes % element:
                    raise PlanError(
                        f"rank {r}, thread block {b}, step {s}: a pipeline unit of "
                        f"{step.unit_bytes} bytes splits elements of {element}"
                    )


def _check_memory(needed: int, size: int) -> None:
    available = memory_available()
    if available is not None and needed > available * 9 // 10:
        raise UnsupportedError(
            f"size {size}: the ranks' buffers need {needed / 2**30:.1f} GiB, "
            f"of which {available / 2**30:.1f} GiB are available; choose a smaller size"
        )


def _notes(program: Program, wanted: int, data: Layout) -> tuple[str, ...]:
    notes = []
    if data.size != wanted:
        notes.append(
            f"{wanted} bytes are not a whole number of elements on each rank; ran {data.size} bytes"
        )
    if data.padded:
        notes.append(
            f"without padding the plan serves multiples of {data.multiple} bytes; each part of "
            f"{data.part} elements was padded to {data.chunks} chunks of {data.chunk}"
        )
    low, high = program.min_bytes, program.max_bytes
    if data.size < low or (high and data.size > high):
        notes.append(f"the plan says that it serves {low} to {high or 'any number of'} bytes")
    return tuple(notes)
