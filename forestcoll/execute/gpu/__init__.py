"""Runs a program on the GPUs of this machine, every output element checked.

    compiler.py  the native half, compiled on first use by nvcc or hipcc, kept in a cache
    engine.cu    kernel and host side; layer.hpp is the interpreter's layer for CUDA and HIP
    native.py    its C interface
    arena.py     where buffers, flags and message slots lie
    worker.py    one process per GPU, and why a launch did not end well; team.py: all of them
    communicator.py  the same for processes that bring device pointers of their own
    far.py       ranks of other nodes: ring.hpp is the kernel's word to its host, relay.hpp the host

All ranks of a GPU run in one kernel, for they wait for each other; GPUs reach each other's memory
by IPC handles. Several ranks may share a GPU, which is for trying plans, not for speed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from typing import Unpack

from forestcoll.common import arguments
from forestcoll.common.errors import UnsupportedError
from forestcoll.execute.contents import Contents
from forestcoll.execute.gpu.arena import SLOT_BYTES, SLOTS
from forestcoll.execute.gpu.compiler import find_library
from forestcoll.execute.gpu.native import Library, Seen
from forestcoll.execute.gpu.team import Processes, Team
from forestcoll.execute.gpu.worker import Job, explain, staging
from forestcoll.execute.request import Asked, Request
from forestcoll.execute.result import Mode, Row, RunResult
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
    devices: Sequence[int] | None = None,
    slots: int = SLOTS,
    slot_bytes: int = SLOT_BYTES,
    built: Path | None = None,
    processes: Processes | None = None,
    **asked: Unpack[Asked],
) -> RunResult:
    """As `cpu.run`, on GPUs; `asked` are those of its arguments that every engine has.

    `devices`: numbers of the GPUs, which the ranks are dealt out to. Without, rank i takes the GPU
    that its name ends in, or GPU i. `built`: a library of engine.cu in place of the cached one.
    `processes`: kept from run to run. Raises as `cpu.run` does, and UnsupportedError where ranks
    sit in different nodes, or GPUs cannot reach each other.
    """
    request = Request.of(program, size_bytes, **asked)
    slots = arguments.whole("slots", slots)
    slot_bytes = arguments.whole("slot_bytes", slot_bytes)
    n, path = request.program.n, built or find_library()
    with Processes() if processes is None else nullcontext(processes) as kept:
        numbers = _devices(request.program, devices, kept.count(path))
        used = sorted(set(numbers))
        job = Job.of(request, [used.index(d) for d in numbers], slots, slot_bytes)
        workers = len(os.sched_getaffinity(0))
        contents = Contents(
            request.program, request.data, request.pattern, request.root, workers, range(n)
        )
        with Team(path, used, job, kept) as team:
            rows = tuple(_row(job, team, contents, mode) for mode in request.modes)
    notes = request.notes
    if len(used) < n:
        words = f"{len(used)} GPU{'s' if len(used) > 1 else ''}"
        notes += (f"{n} ranks share {words}: right or wrong shows, speed does not",)
    return RunResult(rows, notes, tuple(contents.mismatches))


def _row(job: Job, team: Team, contents: Contents, mode: Mode) -> Row:
    """All launches of a mode."""
    request = job.request
    buffers, _ = staging(request, mode, team.memory.ctypes.data)

    def fill() -> None:
        contents.fill(buffers)
        team.ask("move", mode, True)

    def launch(number: int) -> int:
        """Nanoseconds of the slowest GPU; ExecutionError if it did not end well."""
        team.ask("prepare", mode, number)
        done = team.launch(request.timeout, mode)
        explain(job, team.ask("end_state"), None if done else request.timeout)
        return max(int(taken) for taken in team.ask("nanoseconds"))

    def compare() -> int:
        team.ask("move", mode, False)
        return contents.compare(buffers, mode)

    return request.row(mode, fill, launch, compare)


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
