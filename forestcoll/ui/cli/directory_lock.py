"""One writer at a time in a folder, and a staging folder in it that outlives `kill -9`.

The claim is a lock on the folder itself (`flock`), which the system frees with the process, and the
staging folder inside it, which only one can make. Where the file system has no locks, the process
that the staging folder names has to be gone before another takes its place.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from forestcoll.common.errors import OutputError
from forestcoll.ui.cli.signals import Held

STAGING = ".forestcoll-writing"
"""The folder that holds what is on its way into the folder around it."""
OWNER = "owner.json"
JOURNAL = "journal.json"
"""In the staging folder while what it lists is being done."""
WAIT_SECONDS = 20.0
"""How long another writer is waited for: it has only files to rename."""
_TURN = 0.02


@contextmanager
def claim(home: Path, held: Held, recover: Callable[[Path, Path], None]) -> Iterator[Path]:
    """The staging folder of `home`, while this process alone may write there.

    `home` is made if it is missing, and taken away again if the `with` leaves it empty by an
    exception. `recover(home, staging)` clears what a run that was killed has left. Raises
    OutputError where another run holds the folder for too long, OSError.
    """
    made: list[Path] = []
    lock, staging = None, home / STAGING
    try:
        lock = _wait(home, made, held, recover)
        yield staging
    except BaseException:
        _clear(staging, lock)
        for folder in reversed(made):
            with contextlib.suppress(OSError):  # somebody else's files are in it by now
                folder.rmdir()
        raise
    else:
        _clear(staging, lock)
    finally:
        if lock is not None:
            os.close(lock)


def _clear(staging: Path, lock: int | None) -> None:
    """Take the staging folder away, unless it is another's or holds what is yet to be undone."""
    if lock is not None and not (staging / JOURNAL).exists():
        remove_staging(staging)


def remove_staging(staging: Path) -> None:
    """Delete the files in a staging folder, the owner's name last, and the folder."""
    with contextlib.suppress(OSError):
        names = sorted(os.listdir(staging), key=lambda name: name == OWNER)
        for name in names:
            os.unlink(staging / name)
        os.rmdir(staging)


def _wait(home: Path, made: list[Path], held: Held, recover: Callable[[Path, Path], None]) -> int:
    """A file descriptor of `home`, locked if that can be, with a staging folder of our own."""
    began = time.monotonic()
    while True:
        held.check()
        _make(home, made)
        with contextlib.suppress(FileNotFoundError):  # another run took its empty folder away
            folder = _open(home)
            taken = False
            try:
                taken = _take(home, folder, recover, time.monotonic() - began)
            finally:
                if not taken:
                    os.close(folder)
            if taken:
                return folder
        if time.monotonic() - began > WAIT_SECONDS:
            raise OutputError(_told(home))
        time.sleep(_TURN)


def _open(home: Path) -> int:
    try:
        return os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # may be written, not listed: there is no lock on it then
        return os.open(home, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY)


def _make(home: Path, made: list[Path]) -> None:
    """Make the folder and those above it; `made` gets what was missing, outermost first."""
    missing = [p for p in (home, *home.parents) if not p.exists()]
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
            if folder not in made:
                made.append(folder)


def _take(home: Path, folder: int, recover: Callable[[Path, Path], None], waited: float) -> bool:
    """Whether the folder is ours now, after so many seconds."""
    locked = True
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks on this file system
        locked = False
    if not os.path.samestat(os.fstat(folder), os.stat(home)):
        return False
    staging = home / STAGING
    try:
        os.mkdir(staging, 0o700)
    except FileExistsError:
        if _left_behind(staging, locked, waited > WAIT_SECONDS / 2):
            recover(home, staging)
        return False
    except FileNotFoundError:
        if home.is_dir() and os.path.samestat(os.fstat(folder), os.stat(home)):
            raise OutputError(f"cannot write {home}: this file system makes no files") from None
        raise
    owner = {"process": os.getpid(), "host": os.uname().nodename}
    try:
        (staging / OWNER).write_text(json.dumps(owner), encoding="utf-8")
    except OSError:
        remove_staging(staging)
        raise
    return True


def _left_behind(staging: Path, locked: bool, late: bool) -> bool:
    """Whether the process that made the staging folder is certainly gone."""
    owner = _owner(staging)
    if owner is None:  # it is just being made, or being taken away
        return locked or late
    process, host = owner
    if host != os.uname().nodename:
        return False
    if locked:
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _owner(staging: Path) -> tuple[int, str] | None:
    try:
        found = json.loads((staging / OWNER).read_text(encoding="utf-8"))
        return int(found["process"]), str(found["host"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _told(home: Path) -> str:
    owner = _owner(home / STAGING)
    if owner is None:
        return f"{home}: another run is writing there; try again when it has ended"
    process, host = owner
    return (
        f"{home}: process {process} on {host} is writing there; if it is gone, remove "
        f"{home / STAGING / OWNER} and try again"
    )


def left_in(folder: Path) -> str:
    """What to do about a run that was killed while it wrote into `folder`, or nothing."""
    if not (folder / STAGING / JOURNAL).exists():
        return ""
    return (
        f"a run that was killed, or still writes, has left {folder / STAGING}; the next command "
        "that writes into this folder undoes what it had begun"
    )
