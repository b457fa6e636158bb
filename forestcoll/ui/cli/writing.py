"""The one writer of files: all of them whole, or nothing changed, however the run ends.

Everything is written into a staging folder beside its place, and a journal says what goes where.
Earlier files then move into that folder, the last one (an index) first, and the new ones take their
places, the last one last. Without the journal nothing has been touched, or everything is done; with
it, what it lists is undone: at once after an error, by the next writer after `kill -9`.

One writer at a time in a folder: it claims the folder by a lock on it (`flock`), which the system
frees with the process, and by the staging folder inside it, which only one can make. Where the file
system has no locks, the process that the staging folder names has to be gone before another takes
its place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from forestcoll.common.errors import OutputError
from forestcoll.ui.cli.process import Held, hold

STAGING = ".forestcoll-writing"
"""The folder that holds what is on its way into the folder around it."""
OWNER = "owner.json"
JOURNAL = "journal.json"
"""In the staging folder while what it lists is being done."""
WAIT_SECONDS = 20.0
"""How long another writer is waited for: it has only files to rename."""
_TURN = 0.02
FORMAT: Final = "forestcoll.writing/1"
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)

Earlier = Callable[[], Mapping[Path, str]]
"""Files that the new ones replace -> their SHA-256. May raise OutputError."""


@dataclass(frozen=True)
class Change:
    """Of one path below the home folder: the staged files that it gets and that it had."""

    path: str
    new: str | None  # None: the file only goes
    sha256: str  # of the new text
    old: str | None


@dataclass(frozen=True)
class Journal:
    """What is being done; folders that it makes, outermost first."""

    changes: tuple[Change, ...]
    folders: tuple[str, ...]


def check_free(paths: Iterable[Path], force: bool) -> None:
    """Raise OutputError if a path is taken (unless `force`) or can never be a file."""
    for path in paths:
        if path.is_dir():
            raise OutputError(f"{path}: is a directory; name a file, or end it in '/'")
        if path.exists() and not path.is_file():
            raise OutputError(f"{path}: is not a regular file; use '--output -' for a pipe")
        if not force and os.path.lexists(path):
            raise OutputError(f"{path}: exists already; --force overwrites it")
        for parent in path.parents:
            if parent.exists():
                if not parent.is_dir():
                    raise OutputError(f"{path}: {parent} is not a directory")
                break


def prepare(paths: Collection[Path], force: bool) -> None:
    """Undo what a run that was killed has begun at these paths, then `check_free` them.

    What is wrong should be said before a command computes for minutes. Raises OutputError.
    """
    if paths:
        home = _home(paths)
        with _as_output_error(home), hold() as held:
            if (home / STAGING / JOURNAL).exists():
                with claim(home, held):
                    pass
    check_free(paths, force)


def _home(paths: Iterable[Path]) -> Path:
    return Path(os.path.commonpath([path.parent for path in paths]))


@contextmanager
def _as_output_error(home: Path) -> Iterator[None]:
    """OSError becomes OutputError."""
    try:
        yield
    except OSError as error:
        name = os.fsdecode(error.filename2 or error.filename or home)
        if STAGING in Path(name).parts:  # ours; the folder around it is the user's
            name = os.fspath(home)
        raise OutputError(f"cannot write {name}: {error.strerror or error}") from error


def write_all(
    texts: Mapping[Path, str | bytes], force: bool, earlier: Earlier | None = None
) -> None:
    """Write every text (or bytes) to its file: all of them, each whole, or none.

    Folders are made where missing. `earlier` is asked, once nobody else writes there, which files
    of an earlier set go; those whose SHA-256 is another by now stay. Signals wait until the files
    are whole. Raises OutputError.
    """
    from hashlib import sha256

    if not texts:
        return
    prepare(texts, force)
    home = _home(texts)
    with _as_output_error(home), hold() as held, claim(home, held) as staging:
        check_free(texts, force)
        staged: dict[Path, tuple[str | None, str]] = {}
        # the earlier files that have to go: they lie in the home folder and are what they were
        for path, digest in ({} if earlier is None else earlier()).items():
            if path in texts or not path.is_relative_to(home) or ".." in path.parts:
                continue
            with contextlib.suppress(OutputError):
                _check_folders(home, path)
                if digest_of(path) == digest:
                    staged[path] = None, ""
        for number, (path, text) in enumerate(texts.items()):
            held.check()
            _check_folders(home, path)
            data = text.encode() if isinstance(text, str) else text
            (staging / f"new-{number}").write_bytes(data)
            staged[path] = f"new-{number}", sha256(data).hexdigest()
        changes: list[Change] = []
        for path, (new, digest) in staged.items():
            old = f"old-{len(changes)}" if os.path.lexists(path) else None
            changes.append(Change(str(path.relative_to(home)), new, digest, old))
        missing = {p for path in texts for p in path.parents if p.is_relative_to(home)}
        folders = sorted(str(p.relative_to(home)) for p in missing if not p.exists())
        _carry_out(home, staging, Journal(tuple(changes), tuple(folders)))


def digest_of(path: Path) -> str | None:
    """SHA-256 of a regular file; None where there is none (links are not followed)."""
    from hashlib import file_digest

    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(file, "rb") as stream:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return None
            return file_digest(stream, "sha256").hexdigest()
    except OSError:
        return None


def _check_folders(home: Path, path: Path) -> None:
    """OutputError where a link leads out of the home folder on the way to `path`."""
    for folder in path.parents:
        if folder == home:
            return
        if folder.is_symlink():
            raise OutputError(
                f"{path}: {folder} is a symbolic link; files of one set lie in one folder: remove "
                "the link, or choose another --output"
            )


def _carry_out(home: Path, staging: Path, journal: Journal) -> None:
    """Put every file in its place and take the others away, or nothing of it.

    A file that is alone replaces the earlier one, so that there always is one.
    """
    *others, last = journal.changes
    alone = not others
    if not alone:  # the journal first, whole or not at all
        draft = staging / "draft.json"
        draft.write_text(json.dumps({"format": FORMAT, **asdict(journal)}), encoding="utf-8")
        os.replace(draft, staging / JOURNAL)
    try:
        for change in [] if alone else [last, *others]:
            if change.old is not None:
                os.replace(home / change.path, staging / change.old)
        for folder in journal.folders:
            os.mkdir(home / folder)
        for change in journal.changes:
            if change.new is not None:
                replaces = alone and change.old is not None
                place(staging / change.new, home / change.path, replaces)
        if not alone:
            os.unlink(staging / JOURNAL)  # from here on it is done
    except BaseException:
        _undo(home, staging, journal)
        raise


def place(source: Path, target: Path, replaces: bool) -> None:
    """Give the file its name; unless it `replaces` one, OutputError where the name is taken."""
    if replaces:
        os.replace(source, target)
        return
    try:
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))  # the name is ours
            os.replace(source, target)
    except FileExistsError:
        raise OutputError(
            f"{target}: another program has just made it; nothing is written"
        ) from None


def _undo(home: Path, staging: Path, journal: Journal) -> None:
    """Everything as it was: may be cut off anywhere, and done again. Raises OutputError."""
    try:
        for change in reversed(journal.changes):
            target = home / change.path
            ours = change.new is not None and digest_of(target) == change.sha256
            if change.old is not None and os.path.lexists(staging / change.old):
                if ours or not os.path.lexists(target):
                    os.replace(staging / change.old, target)
            elif change.old is None and ours:
                os.unlink(target)
        for folder in reversed(journal.folders):
            with contextlib.suppress(OSError):  # never made, or others' files are in it
                os.rmdir(home / folder)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(staging / JOURNAL)
    except OSError as error:
        raise OutputError(
            f"{home}: cannot undo what was begun ({error.strerror or error}); earlier files are in "
            f"{staging}, and the next command that writes there tries again"
        ) from error


def _read(home: Path, staging: Path) -> Journal:
    try:
        journal = json.loads((staging / JOURNAL).read_text(encoding="utf-8"))
        changes = tuple(Change(**change) for change in journal["changes"])
        folders = tuple(map(str, journal["folders"]))
        below = [c.path for c in changes] + list(folders)
        names = [n for c in changes for n in (c.new, c.old) if n is not None]
        if journal["format"] != FORMAT or any(_leads_out(home, path) for path in below):
            raise ValueError("it names what lies elsewhere")
        if any(os.sep in name or name in ("", ".", "..") for name in names):
            raise ValueError("it names what lies elsewhere")
        return Journal(changes, folders)
    except (ValueError, TypeError, KeyError) as error:
        raise OutputError(
            f"{staging / JOURNAL}: is no journal of this version ({error}); move {staging} away "
            "after a look at the files in it"
        ) from error


def _leads_out(home: Path, path: str) -> bool:
    """Whether a path of a journal is not one below the home folder, through real folders."""
    if os.path.isabs(path) or ".." in Path(path).parts:
        return True
    try:
        _check_folders(home, home / path)
    except OutputError:
        return True
    return False


@contextmanager
def claim(home: Path, held: Held) -> Iterator[Path]:
    """The staging folder of `home`, while this process alone may write there.

    `home` is made if it is missing, and taken away again if the `with` leaves it empty by an
    exception. What a run that was killed has left is undone first. Raises OutputError where another
    run holds the folder for too long, OSError.
    """
    folders: list[Path] = []
    staging = home / STAGING
    try:
        lock = _wait(home, folders, held)
        try:
            yield staging
        finally:
            if not (staging / JOURNAL).exists():  # else it holds what is yet to be undone
                remove_staging(staging)
            os.close(lock)
    except BaseException:
        for folder in reversed(folders):
            with contextlib.suppress(OSError):  # somebody else's files are in it by now
                folder.rmdir()
        raise


def remove_staging(staging: Path) -> None:
    """Delete the files in a staging folder, the owner's name last, and the folder."""
    with contextlib.suppress(OSError):
        names = sorted(os.listdir(staging), key=lambda name: name == OWNER)
        for name in names:
            os.unlink(staging / name)
        os.rmdir(staging)


def _wait(home: Path, folders: list[Path], held: Held) -> int:
    """A file descriptor of `home`, locked if that can be, with a staging folder of our own.

    Makes the folder and those above it; `folders` gets what was missing, outermost first.
    """
    began = time.monotonic()
    while True:
        held.check()
        for above in reversed([p for p in (home, *home.parents) if not p.exists()]):
            with contextlib.suppress(FileExistsError):
                os.mkdir(above)
                folders += [] if above in folders else [above]
        with contextlib.suppress(FileNotFoundError):  # another run took its empty folder away
            try:
                folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
            except PermissionError:  # may be written, not listed: there is no lock on it then
                folder = os.open(home, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY)
            try:
                if _take(home, folder, time.monotonic() - began):
                    return folder
            except BaseException:
                os.close(folder)
                raise
            os.close(folder)
        if time.monotonic() - began > WAIT_SECONDS:
            raise OutputError(_words_of_owner(home))
        time.sleep(_TURN)


def _take(home: Path, folder: int, waited: float) -> bool:
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
        if _is_abandoned(staging, locked, waited > WAIT_SECONDS / 2):
            if (staging / JOURNAL).is_file():  # of a run that was killed
                _undo(home, staging, _read(home, staging))
            remove_staging(staging)
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


def _is_abandoned(staging: Path, locked: bool, late: bool) -> bool:
    """Whether the process that made the staging folder is certainly gone."""
    owner = _owner(staging)
    if owner is None:  # it is just being made, or being taken away
        return locked or late
    process, host = owner
    if host != os.uname().nodename:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return locked


def _owner(staging: Path) -> tuple[int, str] | None:
    try:
        owner = json.loads((staging / OWNER).read_text(encoding="utf-8"))
        return int(owner["process"]), str(owner["host"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _words_of_owner(home: Path) -> str:
    owner = _owner(home / STAGING)
    if owner is None:
        return f"{home}: another run is writing there; try again when it has ended"
    process, host = owner
    return (
        f"{home}: process {process} on {host} is writing there; if it is gone, remove "
        f"{home / STAGING / OWNER} and try again"
    )


def explain_remains(folder: Path) -> str:
    """What to do about a run that was killed while it wrote into `folder`, or nothing."""
    if not (folder / STAGING / JOURNAL).exists():
        return ""
    return (
        f"a run that was killed, or still writes, has left {folder / STAGING}; the next command "
        "that writes into this folder undoes what it had begun"
    )
