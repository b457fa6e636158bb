"""Clock: seconds of each stage, and the caller's progress display."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forestcoll.common import arguments

Progress = Callable[[str, float], None]


class Clock:
    """`seconds` of each stage so far; `progress` is told the stage and how much of it is done.

    `subject`: what the stages are about, "candidate 3 of 6", told behind their names.
    """

    def __init__(self, progress: Progress | None = None) -> None:
        if progress is not None and not callable(progress):
            raise arguments.ArgumentError("progress must be a function of a stage and a share")
        self.seconds: dict[str, float] = {}
        self.subject = ""
        self._progress = progress

    def report(self, stage: str, fraction: float) -> None:
        if self._progress is not None:
            self._progress(f"{stage}, {self.subject}" if self.subject else stage, fraction)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.report(name, 0.0)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
