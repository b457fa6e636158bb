"""What takes long to make and is the same for all tests of a session, on however many workers."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The file `name` of this session, which `make(path)` writes: whoever comes first calls it."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # the workers' common one; without them it is all sessions'
    found = folder / name
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            unfinished = folder / f"unfinished-{name}"
            make(unfinished)
            unfinished.rename(found)
    return found
