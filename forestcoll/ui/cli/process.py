"""The process of a command: its streams, the signals that end it, what reading a file may cost.

A signal unwinds a command as Ctrl-C does, so that nothing is left half done. The watch over a file
is a timer of the process that looks every fifth of a processor second, so that a loop which no
count bounds ends too; waiting costs nothing: other programs that keep the machine busy change no
verdict.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from forestcoll.common.errors import ForestCollError
from forestcoll.common.input_limits import MEMORY, SECONDS

WORDS: Final = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "terminated",
    signal.SIGHUP: "hung up",
}
REPEAT_SECONDS = 2.0
"""`timeout` and others signal a process and then its group: the second signal is no news."""
INTERVAL = 0.2
MEGABYTE = 10**6


def open_standard_files() -> list[str]:
    """Make 0, 1 and 2 open files, so that no file of ours becomes one of them.

    Returns the names of those that were closed. Text that a stream cannot encode is escaped.
    """
    names = ("standard input", "standard output", "standard error")
    closed = []
    for number, name in enumerate(names):
        try:
            os.fstat(number)
        except OSError:
            closed.append(name)
            # The lowest free number is this one: those below are open by now.
            os.open(os.devnull, os.O_RDWR)
    if names[2] in closed:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (for good)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return closed


def settle() -> OSError | None:
    """Flush standard output; the error if that cannot be, after which output goes nowhere.

    Python flushes once more on its way out, and would then talk of it and choose the exit code.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
        return error
    return None


class Stopped(KeyboardInterrupt):
    """The command is to end because of signal `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = signal.Signals(number)

    @property
    def code(self) -> int:
        """The exit code that shells give a process that the signal ended."""
        return 128 + self.number


class Stops:
    """Raises Stopped in the main thread for the first signal of WORDS; a later one kills."""

    def __init__(self) -> None:
        self.first: Stopped | None = None
        self._at = 0.0

    def listen(self) -> None:
        """Take over from Python's and the system's defaults; what is ignored stays so (nohup)."""
        for number in WORDS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._take)
        sys.unraisablehook = self._unraisable

    def leave(self) -> None:
        """At the end there is nothing left to unwind: a signal ends the process at once."""
        for number in WORDS:
            if signal.getsignal(number) == self._take:
                signal.signal(number, signal.SIG_DFL)

    def _take(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first, self._at = Stopped(number), now
            raise self.first
        if now - self._at > REPEAT_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def _unraisable(self, problem: sys.UnraisableHookArgs, /) -> None:
        """Where Python drops an exception (a finalizer), it must not drop the wish to end."""
        if isinstance(problem.exc_value, Stopped):
            self.first, number = None, problem.exc_value.number
            # once more when the finalizer is done: what is raised in here is dropped as well
            signal.signal(signal.SIGALRM, lambda _, frame: self._take(number, frame))
            signal.setitimer(signal.ITIMER_REAL, 0.01)
        else:
            sys.__unraisablehook__(problem)


class Held:
    """Signals that arrived while they were held."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def take(self, number: int, frame: FrameType | None) -> None:
        """The handler: only note it."""
        self.numbers.append(number)

    def check(self) -> None:
        """Raise for a signal that has arrived: here it may end the command."""
        if self.numbers:
            raise Stopped(self.numbers[0])


@contextmanager
def hold() -> Iterator[Held]:
    """Hold the signals of WORDS back for the length of the `with`, which they end afterwards.

    Handlers run in the main thread: in another one there is nothing to hold.
    """
    held = Held()
    before = {}
    try:
        for number in WORDS:
            try:
                handler = signal.getsignal(number)
                if handler is not signal.SIG_IGN and handler is not None:
                    before[number] = signal.signal(number, held.take)
            except ValueError:  # not the main thread
                break
        yield held
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in dict.fromkeys(held.numbers):
            signal.raise_signal(late)


@contextmanager
def guard(source: str | Path, *parts: int | str | Path | None) -> Iterator[None]:
    """Within: ForestCollError once `source` costs more than a file of its size may.

    `parts`: bytes, and files whose bytes count, in place of those of `source`.
    Does nothing in other threads than the main one, which alone gets signals, and within another
    guard, which then counts.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getitimer(signal.ITIMER_PROF)[0]:
        yield
        return
    size = sum(part if isinstance(part, int) else _size_of(part) for part in parts or (source,))
    allowed = max(1, -(-size // MEGABYTE))
    began, before = time.process_time(), memory()
    watching = True

    def look(number: int, frame: FrameType | None) -> None:
        if not watching:
            return
        if time.process_time() - began > SECONDS * allowed:
            raise ForestCollError(
                f"{source}: takes more than {SECONDS * allowed} s of processor time to check, too "
                f"long for {size:,} bytes {SECONDS.note}"
            )
        if memory() - before > MEMORY * allowed:
            raise ForestCollError(
                f"{source}: takes more than {MEMORY * allowed >> 20:,} MiB of memory to check, too "
                f"much for {size:,} bytes {MEMORY.note}"
            )

    earlier = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)
    try:
        yield
    finally:
        watching = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        # Another thread may still get a last signal, by which the default would end the process.
        if earlier is signal.SIG_IGN or callable(earlier):
            signal.signal(signal.SIGPROF, earlier)


def _size_of(name: str | Path | None) -> int:
    """Bytes of a file; what is none counts nothing."""
    try:
        return 0 if name is None else os.stat(name).st_size
    except (OSError, ValueError):  # missing; a name that no file can have
        return 0


def memory() -> int:
    """Bytes that this process holds; where the system does not say, the most that it has held."""
    try:
        with open("/proc/self/statm", "rb") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
