"""A progress line on standard error, for a person who waits longer than a second."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from forestcoll.common.escape import escape

if TYPE_CHECKING:
    from rich.progress import Progress

DELAY = 1.0
"""Seconds before anything is shown."""
TOLD = 3.0
"""Seconds of a stage after which it is told how long the rest takes."""


STAGES = {
    "graph": "reading the links",
    "solve": "packing trees",
    "front": "trees against bandwidth",
    "round": "rounding shares",
    "lower": "spreading plans over thread blocks",
    "play": "simulating",
    "simulate": "simulating",
    "check": "checking trees",
    "write": "writing plans",
    "verify": "proving plans",
}
"""What the stages of work are called for people, where their names do not say it."""


class StageProgress:
    """`with StageProgress() as progress: work(progress)`, work calls `progress(stage, share)`.

    Shows nothing where standard error is no terminal, nor in the first second. A timer shows the
    line, so that a stage which reports nothing for long is seen too. `shown`: False shows nothing.
    """

    def __init__(self, start: str = "starting", shown: bool = True) -> None:
        self._shown = shown
        self._stage, self._fraction = start, 0.0
        self._begun = time.monotonic(), 0.0  # when, and what was done then
        self._lock = threading.Lock()
        self._display: Progress | None = None
        self._done = False
        self._timer: threading.Timer | None = None

    def __enter__(self) -> StageProgress:
        if self._shown and sys.stderr.isatty():
            self._timer = threading.Timer(DELAY, self._show)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __call__(self, stage: str, fraction: float) -> None:
        with self._lock:
            if not fraction or fraction < self._fraction:  # something else begins
                self._begun = time.monotonic(), fraction
            self._stage, self._fraction = stage, fraction
            if self._display is not None:
                self._display.update(self._display.task_ids[0], description=self._words())

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._done = True
            if self._display is not None:
                self._display.stop()
                self._display = None

    @contextmanager
    def hide(self) -> Iterator[None]:
        """Within, the line is away: for results that are printed while work goes on."""
        with self._lock:
            if self._display is not None:
                self._display.stop()
            try:
                yield
            finally:
                if self._display is not None:
                    self._display.start()

    def _words(self) -> str:
        name, comma, subject = escape(self._stage).partition(",")
        stage, (begun, before) = STAGES.get(name, name) + comma + subject, self._begun
        if not self._fraction:
            return stage
        text = f"{stage} {self._fraction:.0%}"
        spent = time.monotonic() - begun
        if self._fraction <= before or spent < TOLD:
            return text
        left = spent / (self._fraction - before) * (1 - self._fraction)
        return f"{text}, about {max(1, round(left))} s left"

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._done:
                return
            self._display = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                TimeElapsedColumn(),
                console=Console(file=sys.stderr),
                transient=True,
            )
            self._display.add_task(self._words(), total=None)
            self._display.start()
