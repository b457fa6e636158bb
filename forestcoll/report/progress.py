"""A progress line on standard error, for a person who waits longer than a second."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from forestcoll.escape import escape

if TYPE_CHECKING:
    from rich.progress import Progress

DELAY = 1.0
"""Seconds before anything is shown."""


class StageProgress:
    """`with StageProgress() as progress: work(progress)`, work calls `progress(stage, share)`.

    Shows nothing where standard error is no terminal, nor in the first second. A timer shows the
    line, so that a stage which reports nothing for long is seen too. `shown`: False shows nothing.
    """

    def __init__(self, start: str = "starting", shown: bool = True) -> None:
        self._shown = shown
        self._stage, self._fraction = start, 0.0
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
            self._stage, self._fraction = stage, fraction
            if self._display is not None:
                self._display.update(self._display.task_ids[0], description=self._words())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._done = True
            if self._display is not None:
                self._display.stop()
                self._display = None

    def _words(self) -> str:
        stage = escape(self._stage)
        return f"{stage} {self._fraction:.0%}" if self._fraction else stage

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
