"""Watch over a file while it is read and checked: `input_limits.SECONDS` and `MEMORY`.

A timer of the process looks every fifth of a processor second, so that a loop which no count bounds
ends too. Waiting costs nothing: other programs that keep the machine busy change no verdict.
"""

from __future__ import annotations

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

from forestcoll.common.errors import ForestCollError
from forestcoll.common.input_limits import MEMORY, SECONDS

INTERVAL = 0.2
MEGABYTE = 10**6


@contextmanager
def guarded(source: str, size: int) -> Iterator[None]:
    """Within: ForestCollError once `source`, of `size` bytes, costs more than a file of it may.

    Does nothing in other threads than the main one, which alone gets signals, and within another
    guard, which then counts.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getitimer(signal.ITIMER_PROF)[0]:
        yield
        return
    parts = max(1, -(-size // MEGABYTE))
    began, before = time.process_time(), memory()
    watching = True

    def look(number: int, frame: FrameType | None) -> None:
        if not watching:
            return
        if time.process_time() - began > SECONDS * parts:
            raise ForestCollError(
                f"{source}: takes more than {SECONDS * parts} s of processor time to check, too "
                f"long for {size:,} bytes {SECONDS.note}"
            )
        if memory() - before > MEMORY * parts:
            raise ForestCollError(
                f"{source}: takes more than {MEMORY * parts >> 20:,} MiB of memory to check, too "
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


def size_of(*names: str | Path) -> int:
    """Bytes of the files of these names together; what is no file counts nothing."""
    total = 0
    for name in names:
        try:
            total += os.stat(name).st_size
        except (OSError, ValueError):  # missing; a name that no file can have
            continue
    return total


def memory() -> int:
    """Bytes that this process holds; where the system does not say, the most that it has held."""
    try:
        with open("/proc/self/statm", "rb") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
