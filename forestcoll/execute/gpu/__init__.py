"""Runs a program on the GPUs of this machine, every output element checked.

    compiler.py  the native half, compiled on first use by nvcc or hipcc, kept in a cache
    engine.cu    kernel and host side; layer.hpp is the interpreter's layer for CUDA and HIP
    native.py    its C interface
    arena.py     where buffers, flags and message slots lie
    worker.py    one process per GPU, and why a launch did not end well
    communicator.py  the same for processes that bring device pointers of their own, and ranks of
                 other nodes: ring.hpp is the kernel's word to its host, relay.hpp the host

All ranks of a GPU run in one kernel, for they wait for each other; GPUs reach each other's memory
by IPC handles. Several ranks may share a GPU, which is for trying plans, not for speed.
"""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from multiprocessing.connection import Connection, Pipe
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from forestcoll.common import arguments
from forestcoll.common.errors import ExecutionError, UnsupportedError
from forestcoll.execute.contents import Contents
from forestcoll.execute.gpu.arena import SLOT_BYTES, SLOTS
from forestcoll.execute.gpu.compiler import find_library
from forestcoll.execute.gpu.native import Library, Seen
from forestcoll.execute.gpu.worker import GRACE, PAGE, Job, explain, staging, watch
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


class Processes:
    """Processes that drive GPUs: as many as a run needs, kept for the next one.

    To start one and to reach a GPU takes a second. Use it in a `with`: they are ended at its end.
    """

    def __init__(self) -> None:
        self.pipes: list[Connection] = []
        self.children: list[subprocess.Popen[bytes]] = []
        self._file = os.memfd_create("forestcoll", os.MFD_CLOEXEC)
        self._bytes = mmap.PAGESIZE
        os.ftruncate(self._file, self._bytes)

    def need(self, count: int, bytes_: int) -> mmap.mmap:
        """So many processes at least; memory without a name that they and the caller share."""
        if bytes_ > self._bytes:
            self._bytes = bytes_
            os.ftruncate(self._file, bytes_)
        while len(self.children) < count:
            pipe, process = _spawn(self._file)
            self.pipes.append(pipe)
            self.children.append(process)
        return mmap.mmap(self._file, self._bytes)

    def count(self, library: Path) -> int:
        """How many GPUs a process sees; asked of another one, for whoever asks is bound to them."""
        self.need(1, 0)
        try:
            self.pipes[0].send(("count", (str(library),)))
            kind, answer = self.pipes[0].recv()
        except (EOFError, OSError):
            self.kill()
            raise ExecutionError("the process that counts the GPUs died") from None
        if kind is not None:
            raise kind(answer)
        return int(answer)

    def _part(self) -> list[subprocess.Popen[bytes]]:
        """Closes the pipes, by which a process that waits for a command ends; all of them."""
        for pipe in self.pipes:
            pipe.close()
        ended, self.pipes, self.children = self.children, [], []
        return ended

    def kill(self) -> None:
        """Ends all processes, whatever they do, and waits for them. More can be had after that."""
        ended = self._part()
        for process in ended:
            process.kill()
        for process in ended:
            process.wait()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is not None:
                self.kill()
            for process in self._part():
                try:
                    process.wait(GRACE)
                except subprocess.TimeoutExpired:
                    process.kill()  # its work is done
                    process.wait()
        finally:
            os.close(self._file)


def _spawn(file: int) -> tuple[Connection, subprocess.Popen[bytes]]:
    ours, theirs = Pipe()
    root = str(Path(__file__).parents[3])
    search_path = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": f"{root}:{search_path}" if search_path else root}
    numbers = (theirs.fileno(), file)
    start = f"from forestcoll.execute.gpu.worker import main; main{numbers}"
    command = [sys.executable, "-c", start]
    process = subprocess.Popen(command, pass_fds=numbers, env=environment, stdin=subprocess.DEVNULL)
    theirs.close()
    return ours, process


class Team:
    """A process for each GPU in `devices` (numbers on this machine), ready to launch."""

    def __init__(
        self, library: Path, devices: Sequence[int], job: Job, processes: Processes
    ) -> None:
        self.devices = list(devices)
        self._processes = processes
        _, most = staging(job.request, "out-of-place", PAGE)
        self.memory = np.frombuffer(processes.need(len(self.devices), most), np.uint8)
        try:
            for gpu, device in enumerate(devices):
                processes.pipes[gpu].send(("open", (str(library), gpu, device, job)))
            self._answers()
            handles = self.ask("export") if len(self.devices) > 1 else [b""]
            self.ask("connect", handles, self.devices)
            self.ask("load")
        except BaseException:
            processes.kill()
            raise

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        """Every process's answer to one command. Raises what any of them raised."""
        for gpu, pipe in enumerate(self._pipes()):
            try:
                pipe.send((name, arguments))
            except OSError:
                raise self._loss(gpu) from None
        return self._answers()

    def _answers(self) -> list[Any]:
        answers = []
        failed: Exception | None = None
        for gpu, pipe in enumerate(self._pipes()):
            try:
                kind, answer = pipe.recv()
            except (EOFError, OSError):
                raise self._loss(gpu) from None
            if kind is not None:
                failed = failed or kind(answer)
            answers.append(answer)
        if failed:
            raise failed
        return answers

    def _loss(self, gpu: int) -> ExecutionError:
        try:
            code = self._processes.children[gpu].wait(GRACE)
        except subprocess.TimeoutExpired:
            code = None
        how = "answers no more" if code is None else f"ended with status {code}"
        if code is not None and code < 0:
            how = f"was killed by signal {-code}"
        return ExecutionError(f"the process of GPU {self.devices[gpu]} {how}")

    def launch(self, patience: float, mode: Mode) -> bool:
        """Runs the kernels; False: nothing moved for `patience` seconds and they were given up."""
        self.ask("start", mode)
        return watch(lambda: self.ask("poll"), lambda: self.ask("abort"), patience)

    def _pipes(self) -> list[Connection]:
        return self._processes.pipes[: len(self.devices)]

    def __enter__(self) -> Team:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._processes.kill()
            return
        self.ask("call", "detach")  # all, before any memory goes that another one has mapped
        self.ask("close")
