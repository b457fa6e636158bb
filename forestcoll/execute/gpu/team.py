"""The processes of a run, one a GPU, as one thing: started, asked all together, ended."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import numpy as np

from forestcoll.common.errors import ExecutionError
from forestcoll.execute.gpu.worker import GRACE, PAGE, Job, staging, watch
from forestcoll.execute.result import Mode


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
