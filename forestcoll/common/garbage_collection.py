"""Python's cycle collector, made to run rarely while a command works.

A command makes millions of small objects, most of which stay to its end: looking for cycles among
them at Python's own pace takes a quarter to a third of its time.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

THRESHOLD: Final = (1_000_000, 10, 10)
"""For `gc.set_threshold`: objects before a look at the young, then how many looks a generation."""

_lock = threading.Lock()
_inside = 0
_before = gc.get_threshold()


@contextmanager
def collect_rarely() -> Iterator[None]:
    """`THRESHOLD` while inside, in any thread; when the last one leaves, what was set before."""
    global _inside, _before
    with _lock:
        if _inside == 0:
            _before = gc.get_threshold()
            gc.set_threshold(*THRESHOLD)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                gc.set_threshold(*_before)
