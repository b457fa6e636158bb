"""Signals that end a command. Each unwinds it as Ctrl-C does, so that nothing is left half done."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

WORDS: Final = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "terminated",
    signal.SIGHUP: "hung up",
}
REPEAT_SECONDS = 2.0
"""`timeout` and others signal a process and then its group: the second signal is no news."""


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
