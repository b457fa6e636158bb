"""The three standard streams as they may be: closed, full, unread, or not made for every letter."""

from __future__ import annotations

import contextlib
import io
import os
import sys


def open_closed() -> list[str]:
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
