"""Runs a program on this machine: every rank with real memory, every output element checked.

The instruction loop is interpreter.hpp, the same source for every engine; scheduler.cpp runs
thousands of thread blocks on a few threads, or each rank's in a process (process_pool.cpp).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from os import PathLike
from typing import Literal, Unpack

from forestcoll.common import arguments
from forestcoll.common.errors import ExecutionError, UnsupportedError
from forestcoll.execute import deadlock_report
from forestcoll.execute.result import MODES, Mode, Row, RunResult
from forestcoll.execute.sizes import memory_available, memory_needed, queue
from forestcoll.program import Program

try:
    from forestcoll.execute import _engine
    from forestcoll.execute.contents import Buffers, Contents, allocate, private, shared
    from forestcoll.execute.request import DTYPES, OPS, Asked, Request
    from forestcoll.execute.tables import Tables, build
except ImportError as error:  # pragma: no cover - needs a broken installation
    raise ExecutionError(
        f"the native engine forestcoll.execute._engine cannot be loaded ({error}); "
        "install the package again with `pip install .`"
    ) from error

RanksAs = Literal["threads", "processes", "auto"]
RANKS_AS: tuple[RanksAs, ...] = ("threads", "processes", "auto")
MOST_THREADS = 4096
MOST_SLOTS = 2**45  # bytes of all slots, where nobody knows how much memory there is
MOST_PROCESSES = 64  # that "auto" makes

__all__ = ["DTYPES", "MODES", "OPS", "Mode", "RanksAs", "Row", "RunResult", "run"]


def run(
    program: Program | str | PathLike[str],
    size_bytes: int,
    *,
    threads: int | None = None,
    slots: int | None = None,
    slot_bytes: int | None = None,
    slice_bytes: int | None = None,
    ranks_as: RanksAs = "threads",
    **asked: Unpack[Asked],
) -> RunResult:
    """The table of `modes` (those that the program allows), each launched `iterations` times.

    `program`: a Program, or the path of a plan file. `size_bytes` is nccl-tests' size; where it is
    no multiple of the plan's, parts are padded to whole chunks and a note says so. `asked`: what
    every engine takes: dtype, op, iterations, warmup, modes, check, timeout, root (`Asked`). With
    `check`, `wrong` counts the elements that are not as they should be, and `mismatches` describes
    the first.
    `slots`, `slot_bytes`: what a fifo connection holds (by default enough for what the plan's
    runtime holds); `slice_bytes`: bytes of each chunk handled per iteration (at most a slot).
    `ranks_as`: one process for each rank, over shared
    memory that has no name; or `threads` threads for all; "auto" makes processes for at most 64.

    Raises PlanError (the program is malformed or cannot run so), UnsupportedError (type, operation
    or memory) and ExecutionError (it got stuck, left messages or signals behind, or a rank died).
    """
    request = Request.of(program, size_bytes, **asked)
    workers = arguments.whole_or_none("threads", threads) or len(os.sched_getaffinity(0))
    job = _job(
        request,
        min(workers, MOST_THREADS),
        arguments.whole_or_none("slots", slots),
        arguments.whole_or_none("slot_bytes", slot_bytes),
        arguments.whole_or_none("slice_bytes", slice_bytes),
        _ranks_as(ranks_as, request.program.n),
    )
    rows = tuple(job.row(mode) for mode in request.modes)
    return RunResult(rows, request.notes, tuple(job.contents.mismatches))


def _job(
    request: Request,
    workers: int,
    slots: int | None,
    slot_bytes: int | None,
    slice_bytes: int | None,
    processes: bool,
) -> _Job:
    """The program laid out in tables, and slots, if there is memory for it all."""
    program, data = request.program, request.data
    tables = build(program)
    needed = memory_needed(program, tables.scratch, data.chunk_bytes, request.modes)
    _check_memory(needed, data.size)
    connections = len(tables.connections)
    count, slot = queue(program, data, connections, slots, slot_bytes, slice_bytes)
    if slots is not None or slot_bytes is not None:
        _check_slots(connections, count, slot)
    element = data.element
    type_, op_ = request.kind
    options = _engine.Options(
        chunk_bytes=data.chunk_bytes,
        slice_bytes=max(element, min(slice_bytes or slot, slot) // element * element),
        slot_bytes=max(element, slot // element * element),
        slots=count,
        type=type_,
        op=op_,
        processes=processes,
        threads=workers,
        patience=request.timeout,
    )
    contents = Contents(program, data, request.pattern, request.root, workers)
    return _Job(request, tables, contents, options, processes)


@dataclass(frozen=True, slots=True)
class _Job:
    """One call of `run`: everything that does not change between launches."""

    request: Request
    tables: Tables
    contents: Contents
    options: _engine.Options
    processes: bool

    def row(self, mode: Mode) -> Row:
        data = self.contents.data
        memory = shared if self.processes else private
        program = self.request.program
        try:
            buffers = allocate(program, self.tables.scratch, data.chunk_bytes, mode, memory)
        except (OSError, MemoryError) as error:
            raise UnsupportedError(
                f"size {data.size}: the system does not give the ranks' buffers their memory "
                f"({getattr(error, 'strerror', None) or error}); a limit of this process "
                "(ulimit -v) or of its group may hold it: choose a smaller size"
            ) from error
        engine = self.tables.engine()
        try:
            return self.request.row(
                mode,
                lambda: self.contents.fill(buffers),
                lambda number: self.launch(engine, buffers, number),
                lambda: self.contents.compare(buffers, mode),
            )
        finally:
            engine.rest()

    def launch(self, engine: _engine.Engine, buffers: list[Buffers], number: int) -> int:
        """Nanoseconds; ExecutionError if it did not end well. `number`: launches before it."""
        turns = 2 if self.request.program.double_scratch else 1
        addresses = [a for turn in range(turns) for b in buffers for a in b.addresses(turn, turns)]
        averages = self.contents.sums(buffers) if self.request.average else []
        try:
            status, nanoseconds, stops, leftovers, deaths = engine.launch(
                addresses, self.options, averages, number % turns, turns
            )
        except RuntimeError as error:
            raise ExecutionError(f"{error}; run the ranks as threads, or fewer of them") from error
        match deadlock_report.Status(status):
            case deadlock_report.Status.DONE:
                return nanoseconds
            case deadlock_report.Status.STUCK:
                text = deadlock_report.explain_stuck(self.tables, stops)
            case deadlock_report.Status.MISMATCH:
                text = deadlock_report.explain_mismatch(self.tables, stops[0])
            case deadlock_report.Status.LEFTOVER:
                text = deadlock_report.explain_leftovers(self.tables, leftovers)
            case deadlock_report.Status.DIED:
                text = deadlock_report.explain_death(self.tables, stops, deaths[0])
            case _:
                text = deadlock_report.explain_stalled(
                    self.tables, stops, deaths, self.request.timeout
                )
        raise ExecutionError(text)


def _ranks_as(wanted: RanksAs, ranks: int) -> bool:
    """Whether ranks are processes."""
    wanted = arguments.word("ranks_as", wanted, RANKS_AS)
    return wanted == "processes" or (wanted == "auto" and ranks <= MOST_PROCESSES)


def _check_slots(connections: int, slots: int, slot: int) -> None:
    needed = max(1, connections) * slots * slot
    available = memory_available() or MOST_SLOTS
    if needed > min(available, MOST_SLOTS):
        raise UnsupportedError(
            f"{slots} slots of {slot} bytes for each of {connections} connections need "
            f"{needed / 2**30:.1f} GiB, of which {available / 2**30:.1f} GiB are available; choose "
            "fewer or smaller slots"
        )


def _check_memory(needed: int, size: int) -> None:
    available = memory_available()
    if available is not None and needed > available * 9 // 10:
        raise UnsupportedError(
            f"size {size}: the ranks' buffers need {needed / 2**30:.1f} GiB, "
            f"of which {available / 2**30:.1f} GiB are available; choose a smaller size"
        )
