"""The processes of a run, one a GPU, as one thing: started, asked all together, ended."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import TracebackType
from typing import Any

from forestcoll.errors import ExecutionError
from forestcoll.execute.gpu.worker import Job, staging_bytes

GRACE = 10.0  # seconds for a process to end by itself


def count(library: Path) -> int:
    """How many GPUs a process sees; asked in another one, for whoever asks is bound to them."""
    file, _ = _shared(mmap.PAGESIZE)
    pipe, process = _spawn(file)
    try:
        pipe.send(("count", (str(library),)))
        kind, answer = pipe.recv()
    except (EOFError, OSError):
        raise ExecutionError("the process that counts the GPUs died") from None
    finally:
        pipe.close()
        os.close(file)
        process.wait()
    if kind is not None:
        raise kind(answer)
    return int(answer)


def _shared(size: int) -> tuple[int, mmap.mmap]:
    """Memory without a name that processes share: its file, and the mapping."""
    file = os.memfd_create("forestcoll", os.MFD_CLOEXEC)
    os.ftruncate(file, size)
    return file, mmap.mmap(file, size)


def _spawn(file: int) -> tuple[Connection, subprocess.Popen[bytes]]:
    ours, theirs = Pipe()
    root = str(Path(__file__).parents[3])
    known = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": f"{root}:{known}" if known else root}
    numbers = (theirs.fileno(), file)
    start = f"from forestcoll.execute.gpu.worker import main; main{numbers}"
    command = [sys.executable, "-c", start]
    process = subprocess.Popen(command, pass_fds=numbers, env=environment, stdin=subprocess.DEVNULL)
    theirs.close()
    return ours, process


class Team:
    """A process for each GPU in `devices` (numbers on this machine), ready to launch."""

    def __init__(self, library: Path, devices: Sequence[int], job: Job) -> None:
        self.devices = list(devices)
        self._pipes: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._file, self.memory = _shared(staging_bytes(job.program, job.data))
        try:
            for gpu, device in enumerate(devices):
                self._spawn()
                self._pipes[gpu].send(("open", (str(library), gpu, device, job)))
            self._answers()
            handles = self.ask("export") if len(self.devices) > 1 else [b""]
            self.ask("connect", handles, self.devices)
        except BaseException:
            self.kill()
            raise

    def _spawn(self) -> None:
        pipe, process = _spawn(self._file)
        self._pipes.append(pipe)
        self._processes.append(process)

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        """Every process's answer to one command. Raises what any of them raised."""
        for gpu, pipe in enumerate(self._pipes):
            try:
                pipe.send((name, arguments))
            except OSError:
                raise self._lost(gpu) from None
        return self._answers()

    def _answers(self) -> list[Any]:
        found = []
        failed: Exception | None = None
        for gpu, pipe in enumerate(self._pipes):
            try:
                kind, answer = pipe.recv()
            except (EOFError, OSError):
                raise self._lost(gpu) from None
            if kind is not None:
                failed = failed or kind(answer)
            found.append(answer)
        if failed:
            raise failed
        return found

    def _lost(self, gpu: int) -> ExecutionError:
        try:
            code = self._processes[gpu].wait(GRACE)
        except subprocess.TimeoutExpired:
            code = None
        how = "answers no more" if code is None else f"ended with status {code}"
        if code is not None and code < 0:
            how = f"was killed by signal {-code}"
        return ExecutionError(f"the process of GPU {self.devices[gpu]} {how}")

    def launch(self, patience: float, in_place: bool, number: int) -> bool:
        """Runs the kernels; False: nothing moved for `patience` seconds and they were given up."""
        self.ask("start", in_place, number)
        seen, since, pause, given_up = -1, time.monotonic(), 0.0005, False
        while True:
            polled = self.ask("poll")
            if not any(running for running, _ in polled):
                return not given_up
            ticks = sum(ticks for _, ticks in polled)
            now = time.monotonic()
            if ticks != seen:
                seen, since = ticks, now
            elif now - since > patience + (GRACE if given_up else 0):
                if given_up:
                    raise ExecutionError("the GPUs do not end a launch that was given up")
                self.ask("abort")
                given_up = True
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def kill(self) -> None:
        """Ends all processes, whatever they do, and waits for them."""
        os.close(self._file)
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.ask("close")
                for process in self._processes:
                    process.wait(GRACE)
        except subprocess.TimeoutExpired:
            pass  # its work is done
        finally:
            self.kill()
