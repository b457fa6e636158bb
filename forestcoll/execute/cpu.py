"""Runs a program on this machine: every rank with real memory, every output element checked.

The instruction loop is interpreter.hpp, the same source for every engine; scheduler.cpp runs
thousands of thread blocks on a few threads, or each rank's in a process (process_pool.hpp).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Literal, NamedTuple, Unpack

import numpy as np

from forestcoll.common import arguments
from forestcoll.common.errors import ExecutionError, UnsupportedError
from forestcoll.execute.result import MODES, Mode, Row, RunResult
from forestcoll.execute.sizes import (
    Geometry,
    Layout,
    geometry,
    layout,
    memory_available,
    memory_bytes,
    queue,
)
from forestcoll.program import Program
from forestcoll.verify.dataflow import dataflow
from forestcoll.verify.order import check_told

try:
    from forestcoll.execute import _engine
    from forestcoll.execute.cluster.division import check as check_division
    from forestcoll.execute.cluster.division import deal, lay_out, mark_drains
    from forestcoll.execute.contents import (
        Buffers,
        Bytes,
        Contents,
        allocate,
        common_memory,
        private,
    )
    from forestcoll.execute.deadlock_report import Status, explain
    from forestcoll.execute.epilogue import Epilogue
    from forestcoll.execute.request import DTYPES, OPS, Asked, Request
    from forestcoll.execute.tables import Tables, build
    from forestcoll.execute.user_operator import Replayed, UserOperator
    from forestcoll.execute.wire import WireType
except ImportError as error:  # pragma: no cover - needs a broken installation
    raise ExecutionError(
        f"the native engine forestcoll.execute._engine cannot be loaded ({error}); "
        "install the package again with `pip install .`"
    ) from error

if TYPE_CHECKING:
    from forestcoll.execute.cluster.group import Group

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
    group: Group | None = None,
    wire: str | None = None,
    accumulate: str | None = None,
    epilogue: str | None = None,
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
    `ranks_as`: one process for each rank, over shared memory that has no name; or `threads` threads
    for all; "auto" makes processes for at most 64. `group`: the processes among which ranks are
    dealt out; all call this alike, each runs its ranks as threads, and all get the same answer.
    `wire`: the type in which data travel and are added, float32, float16, bfloat16 or fp8 (blocks
    of 32 values, to which chunks are padded), where it is not `dtype`. `accumulate="float32"`: a
    rank adds up as float32 all that comes to it, and rounds once what leaves it.
    `epilogue`: what is done once to every complete sum before others get it ("avg,scale=0.5,bias",
    epilogue.py). `op` is also a user's C function, "LIBRARY:SYMBOL" or ctypes' (user_operator.py).

    Raises PlanError (the program is malformed or cannot run so), UnsupportedError (type, operation
    or memory) and ExecutionError (it got stuck, left messages or signals behind, or a rank died).
    """
    request, on_wire = _ask(program, size_bytes, wire, accumulate, asked)
    workers = arguments.whole_or_none("threads", threads) or len(os.sched_getaffinity(0))
    slots = arguments.whole_or_none("slots", slots)
    slot_bytes = arguments.whole_or_none("slot_bytes", slot_bytes)
    slice_bytes = arguments.whole_or_none("slice_bytes", slice_bytes)
    ranks_as = arguments.word("ranks_as", ranks_as, RANKS_AS)
    few = ranks_as == "auto" and request.program.n <= MOST_PROCESSES
    processes = group is None and (few or ranks_as == "processes")
    tables, data = on_wire.cut(build(request.program)), on_wire.lay_out(request.data)
    homes = [0] * request.program.n if group is None else deal(request.program.n, group.processes)
    here = [r for r, home in enumerate(homes) if group is None or home == group.process]
    if group is not None:
        check_division(request.program, homes)
    _check_memory(request, on_wire, tables, here)
    memory = common_memory if processes else private
    done = None if epilogue is None else Epilogue.of(epilogue, request, on_wire, memory)
    connections = len(tables.connections)
    count, slot = queue(request.program, data, connections, slots, slot_bytes, slice_bytes)
    if slots or slot_bytes:
        _check_slots(connections, count, slot)
    pattern = (*request.pattern[:4], on_wire.type)
    contents = (partial(Replayed, user=request.user) if request.user else Contents)(
        request.program, request.data, pattern, request.root, min(workers, MOST_THREADS), here
    )
    job = _Job(
        request, on_wire, data, tables, contents, geometry(data, slot, slice_bytes),
        (slot, count), processes, group, homes, done,
    )  # fmt: skip
    contents.epilogue = [done.expected] if done else []
    rows, wrong = tuple(map(job.row, request.modes)), contents.mismatches
    if group is not None:
        wrong = [text for texts in group.gather(wrong) for text in texts]
    notes = [] if epilogue is None else [f"{epilogue}: once to each sum, before others get it"]
    return RunResult(rows, (*request.notes, *on_wire.notes(request), *notes), tuple(wrong))


class _Job(NamedTuple):
    """One call of `run`: everything that is the same in all modes."""

    request: Request
    wire: WireType
    data: Layout  # in the plan's buffers
    tables: Tables
    contents: Contents
    geometry: Geometry
    slots: tuple[int, int]  # bytes of one, how many
    processes: bool
    group: Group | None
    homes: list[int]
    epilogue: Epilogue | None

    def row(self, mode: Mode) -> Row:
        """Of a group's processes the slowest one's time, and what is wrong at any."""
        group, tables, data = self.group, self.tables, self.data
        if group is None:
            buffers, own = self.allocate(mode)
        else:
            arenas = lay_out(
                self.request.program, tables, data, mode, self.homes, group.process, self.slots
            )
            buffers = arenas.buffers
            addresses = [one.addresses(0, 1) for one in buffers]
            strict = group.strict
            tables = mark_drains(tables, addresses, data.chunk_bytes, self.homes, strict=strict)
            own = self.own(buffers, mode)
        engine = self.engine(tables, buffers, own)
        if group is not None:
            owners = [rank for rank, _ in tables.takers]
            shares = self.homes, owners, arenas.slots
            group.join(lambda way, _: engine.join(arenas.space, *shares, way))
            group.watch(lambda: activity(engine), lambda how: engine.end(Status[how.upper()]))

        def compare() -> int:
            wrong = self.contents.compare(own, mode)
            return wrong if group is None else sum(group.gather(wrong))

        try:
            row = self.request.row(
                mode,
                lambda: self.fill(buffers, own),
                lambda number: self.launch(engine, self.turn(number)),
                compare,
            )
        finally:
            engine.rest()
            if group is not None:
                group.watch(None)
        return replace(row, wire=self.wire.name, wire_bytes=data.parts * data.stride)

    def allocate(self, mode: Mode) -> tuple[list[Buffers], list[Buffers]]:
        """The plan's buffers, and what the caller has."""
        data, program = self.data, self.request.program
        memory = common_memory if self.processes else private
        try:
            buffers = allocate(program, self.tables.scratch, data.chunk_bytes, mode, memory)
            return buffers, self.own(buffers, mode)
        except (OSError, MemoryError) as error:
            raise UnsupportedError(
                f"size {data.size}: the system does not give the ranks' buffers their memory "
                f"({getattr(error, 'strerror', None) or error}); a limit of this process "
                "(ulimit -v) or of its group may hold it: choose a smaller size"
            ) from error

    @property
    def turns(self) -> int:
        """Launches that use different halves of scratch."""
        return 2 if self.request.program.double_scratch else 1

    def turn(self, number: int) -> int:
        """Of a launch; the epilogue counts it."""
        if self.epilogue:
            self.epilogue.states[0][0] += 1
        return number % self.turns

    def own(self, buffers: list[Buffers], mode: Mode) -> list[Buffers]:
        """What the caller has: the plan's `buffers`, or others where it has another type."""
        if not self.wire.converts:
            return buffers
        program, here = self.request.program, set(self.contents.ranks)

        def memory(rank: int, size: int) -> Bytes:
            return private(rank, size) if rank in here else np.broadcast_to(np.uint8(0), size)

        return allocate(program, [0] * program.n, self.request.data.chunk_bytes, mode, memory)

    def fill(self, buffers: Sequence[Buffers], own: Sequence[Buffers]) -> None:
        """Fresh data; of the wire's type what has yet to be written is NaN as well."""
        self.contents.fill(own)
        if self.epilogue:
            self.epilogue.reset()
        for r in self.contents.ranks if self.wire.converts else ():
            buffers[r].output.fill(0xFF)
            buffers[r].scratch.fill(0xFF)

    def engine(
        self, tables: Tables, buffers: Sequence[Buffers], own: Sequence[Buffers]
    ) -> _engine.Engine:
        turns, wire = self.turns, self.wire
        here, (type_, op) = self.contents.ranks, self.request.kind
        divides = self.request.average and not wire.converts
        return _engine.Engine(
            tables,
            self.request.program.n,
            [a for turn in range(turns) for b in buffers for a in b.addresses(turn, turns)],
            self.contents.sums(buffers) if divides else [],
            self.geometry,
            self.slots,
            (wire.type, op),
            self.processes,
            self.contents.threads,
            self.request.timeout,
            type_,
            wire.passages(self.request, own, buffers, here),
            wire.exact(buffers, here),
            self.request.user.address if self.request.user else 0,
            *([self.epilogue.work] if self.epilogue else []),
        )

    def launch(self, engine: _engine.Engine, turn: int) -> int:
        """The longest of all processes' nanoseconds; ExecutionError at all if it ended badly."""
        group, seconds = self.group, self.request.timeout
        try:
            status, nanoseconds, stops, leftovers, deaths = engine.launch(
                turn, *([group] if group else [])
            )
        except RuntimeError as error:
            raise ExecutionError(f"{error}; run the ranks as threads, or fewer of them") from error
        if group is None:
            if status == Status.DONE:
                return nanoseconds
            raise explain(self.tables, Status(status), stops, leftovers, deaths, seconds)
        group.check()
        told = group.gather([status, nanoseconds, stops, leftovers])
        bad = [own for own in told if own[0] != Status.DONE]
        if not bad:
            return max(int(own[1]) for own in told)
        worst = min(bad, key=lambda own: own[0] != Status.MISMATCH)  # which stalls others
        merged = worst[2]
        if worst[0] != Status.MISMATCH:  # which has one row
            merged = [
                rows[b]
                for b, row in enumerate(self.tables.blocks)
                if (rows := told[self.homes[row[0]]][2])
            ]
        left = [row for own in told for row in own[3]]
        raise explain(self.tables, Status(worst[0]), merged, left, deaths, seconds)


def activity(engine: _engine.Engine) -> tuple[bool, bool, int, int, int]:
    """What the engine says of its launch; ConnectionError: it has lost a peer."""
    peer, why = engine.failure()
    if why:
        raise ConnectionError(f"the connection to process {peer}: {why}")
    return engine.activity()


def _ask(
    program: Program | str | PathLike[str],
    size: int,
    wire: str | None,
    accumulate: str | None,
    asked: Asked,
) -> tuple[Request, WireType]:
    """What is asked for, checked; with a user's operator chunks of whole elements of its replay."""
    user = UserOperator.of(asked.get("op"))
    given: Asked = asked if user is None else {**asked, "op": "sum"}
    request, on_wire = WireType.of(Request.of(program, size, **given), wire, accumulate)
    if user is None:
        return request, on_wire
    if on_wire.converts or on_wire.accumulates:
        raise UnsupportedError(
            f"operator {user.name}: not with a wire of another type, nor accumulate"
        )
    program = request.program
    if not program.collective.reduces:
        raise UnsupportedError(f"operator {user.name}: {program.collective} adds nothing up")
    flow = dataflow(program)
    check_told(flow)
    data = layout(program, request.wanted, request.data.element, flow.grain)
    return request._replace(data=data, user=user._replace(flow=flow)), on_wire


def _check_slots(connections: int, slots: int, slot: int) -> None:
    needed, available = max(1, connections) * slots * slot, memory_available() or MOST_SLOTS
    if needed > min(available, MOST_SLOTS):
        raise UnsupportedError(
            f"{slots} slots of {slot} bytes for each of {connections} connections need "
            f"{needed / 2**30:.1f} GiB, of which {available / 2**30:.1f} GiB are available; choose "
            "fewer or smaller slots"
        )


def _check_memory(request: Request, wire: WireType, tables: Tables, here: Sequence[int]) -> None:
    """UnsupportedError where the buffers of the ranks that are here do not fit."""
    data, modes = wire.lay_out(request.data), request.modes
    needed = memory_bytes(request.program, tables.scratch, data, modes, here)
    if wire.converts:
        program = request.program
        needed += memory_bytes(program, [0] * program.n, request.data, modes, here)
    if request.user and request.check:  # a replay: inputs, sums and outputs of all
        needed += 3 * request.program.n * data.size
    needed += wire.accumulates * needed * 4 * wire.values // wire.element
    available = memory_available()
    if available is not None and needed > available * 9 // 10:
        raise UnsupportedError(
            f"size {data.size}: the ranks' buffers need {needed / 2**30:.1f} GiB, "
            f"of which {available / 2**30:.1f} GiB are available; choose a smaller size"
        )
