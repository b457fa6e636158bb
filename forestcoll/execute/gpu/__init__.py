"""Runs a program on the GPUs of this machine, every output element checked.

    compiler.py  the native half, compiled on first use by nvcc or hipcc, kept in a cache
    engine.cu    kernel and host side; layer.hpp is the interpreter's layer for CUDA and HIP
    native.py    its C interface
    arena.py     where buffers, flags and message slots lie
    worker.py    one process a GPU; team.py: all of them together
    explained.py why a launch did not end well
    communicator.py  the same for processes that bring device pointers of their own

All ranks of a GPU run in one kernel, for they wait for each other; GPUs reach each other's memory
by IPC handles. Several ranks may share a GPU, which is for trying plans, not for speed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from forestcoll import arguments
from forestcoll.errors import UnsupportedError
from forestcoll.execute import _engine
from forestcoll.execute.check import check as check_structure
from forestcoll.execute.contents import Contents
from forestcoll.execute.gpu.arena import lay_out
from forestcoll.execute.gpu.compiler import find_library
from forestcoll.execute.gpu.explained import explain
from forestcoll.execute.gpu.messages import SLOT_BYTES, SLOTS, geometry, slot_of
from forestcoll.execute.gpu.native import Library, Seen
from forestcoll.execute.gpu.team import Processes, Team
from forestcoll.execute.gpu.worker import Job, staging
from forestcoll.execute.request import (
    check_units,
    kind,
    modes_of,
    notes_of,
    program_of,
    root_of,
)
from forestcoll.execute.result import MODES, Mode, Row, RunResult
from forestcoll.execute.sizes import layout
from forestcoll.execute.tables import build
from forestcoll.program import Program

__all__ = ["Processes", "gpus", "run"]


def gpus() -> list[Seen]:
    """The GPUs of this machine; builds the native half if it is not there yet.

    Raises UnsupportedError where there is none, or no compiler for them.
    """
    native = Library(find_library())
    return [native.describe(number) for number in range(native.count())]


def run(
    program: Program | str | PathLike[str],
    size_bytes: int,
    *,
    dtype: str = "float32",
    op: str = "sum",
    iterations: int = 1,
    warmup: int = 0,
    modes: Mode | Iterable[Mode] = MODES,
    check: bool = True,
    timeout: float = 60.0,
    root: int | None = None,
    devices: Sequence[int] | None = None,
    slots: int = SLOTS,
    slot_bytes: int = SLOT_BYTES,
    built: Path | None = None,
    processes: Processes | None = None,
) -> RunResult:
    """As `cpu.run`, on GPUs. `devices`: numbers of the GPUs, which the ranks are dealt out to.

    Without `devices` rank i takes the GPU that its name ends in, or GPU i. `built`: a library of
    engine.cu in place of the cached one. `processes`: kept from run to run. Raises as `cpu.run`
    does, and UnsupportedError where ranks sit in different nodes, or GPUs cannot reach each other.
    """
    program = program_of(program)
    check_structure(program)
    type_, op_ = kind(dtype, op)
    size_bytes = arguments.whole("size_bytes", size_bytes)
    iterations = arguments.whole("iterations", iterations)
    warmup = arguments.whole("warmup", warmup, 0)
    timeout = arguments.positive("timeout", timeout)
    slots, slot_bytes = (
        arguments.whole("slots", slots),
        arguments.whole("slot_bytes", slot_bytes),
    )
    chosen = modes_of(program, modes)
    element = _engine.element_bytes(type_)
    data = layout(program, size_bytes, element)
    check_units(program, element)
    path = built or find_library()
    with Processes() if processes is None else nullcontext(processes) as kept:
        numbers = _devices(program, devices, kept.count(path))
        used = sorted(set(numbers))
        tables = build(program)
        slot = slot_of(program, data, slot_bytes)
        arenas = lay_out(program, tables, data, [used.index(d) for d in numbers], slots, slot)
        job = Job(
            program=program,
            tables=tables,
            data=data,
            arenas=arenas,
            geometry=geometry(data, slot),
            slots=(slot, slots),
            type=type_,
            op=op_,
            average=op == "avg" and program.collective.reduces,
            root=root_of(program, root),
        )
        pattern = _engine.Pattern(type_, op_, program.collective.reduces, program.n)
        contents = Contents(program, data, pattern, job.root, len(os.sched_getaffinity(0)))
        with Team(path, used, job, kept) as team:
            runner = _Runner(job, team, contents, (warmup, iterations), check, timeout)
            rows = tuple(runner.row(mode, dtype, op) for mode in chosen)
    notes = notes_of(program, size_bytes, data, dtype)
    if len(used) < program.n:
        words = f"{len(used)} GPU{'s' if len(used) > 1 else ''}"
        notes += (f"{program.n} ranks share {words}: right or wrong shows, speed does not",)
    return RunResult(rows, notes, tuple(contents.mismatches))


@dataclass(frozen=True, slots=True)
class _Runner:
    """One call of `run`, mode by mode."""

    job: Job
    team: Team
    contents: Contents
    launches: tuple[int, int]  # not timed, timed
    check: bool
    timeout: float

    def row(self, mode: Mode, dtype: str, op: str) -> Row:
        in_place = mode == "in-place"
        buffers = staging(self.job.program, self.job.data, mode, self.team.memory)
        warmup, iterations = self.launches
        nanoseconds = wrong = 0
        for k in range(warmup + iterations):
            fresh = k in (0, warmup + iterations - 1)
            if fresh:
                self.contents.fill(buffers)
                self.team.ask("upload", in_place)
            elapsed = self.launch(in_place, k)
            nanoseconds += elapsed if k >= warmup else 0
            if fresh and self.check:
                self.team.ask("download", in_place)
                wrong = max(wrong, self.contents.compare(buffers, mode))
        program, data = self.job.program, self.job.data
        seconds = max(nanoseconds, 1) / iterations / 1e9
        algbw = data.size / seconds / 1e9
        return Row(
            mode=mode,
            size=data.size,
            count=data.count,
            dtype=dtype,
            op=op if program.collective.reduces else "none",
            root=self.job.root,
            time_us=seconds * 1e6,
            algbw=algbw,
            busbw=algbw * float(program.collective.bus_factor(program.n)),
            wrong=wrong if self.check else None,
        )

    def launch(self, in_place: bool, number: int) -> int:
        """Nanoseconds of the slowest GPU; ExecutionError if it did not end well."""
        self.team.ask("prepare", in_place, number)
        done = self.team.launch(self.timeout, in_place)
        ended = self.team.ask("ended")
        explain(self.job, ended, None if done else self.timeout)
        return max(int(taken) for taken in self.team.ask("nanoseconds"))


def _devices(program: Program, asked: Sequence[int] | None, count: int) -> list[int]:
    """The GPU of every rank."""
    if asked:
        return [asked[r * len(asked) // program.n] for r in range(program.n)]
    names = program.names if len(program.names) == program.n else ()
    boxes = {name.rpartition("/")[0] for name in names}
    if len(boxes) > 1:
        raise UnsupportedError(
            f"the ranks sit in {len(boxes)} nodes ({', '.join(sorted(boxes)[:3])}, ...), and this "
            "engine reaches one node's GPUs: use --engine torch under torchrun, or try the plan "
            "here with its ranks on GPUs of your choice (--gpus 0,1)"
        )
    ends = [re.search(r"(\d+)$", name) for name in names]
    told = [int(match[1]) for match in ends if match]
    if len(set(told)) == program.n and max(told) < count:
        return told
    if program.n <= count:
        return list(range(program.n))
    return [r * count // program.n for r in range(program.n)]
