"""Native code that is compiled on first use, against what this machine has, and kept.

A library lies in a cache folder under a key of all that went into it: sources, compiler and flags.
`FORESTCOLL_CACHE` names another folder.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from forestcoll.common.errors import ExecutionError

PATIENCE = 900  # seconds for the compiler


def build(
    what: str,
    version: str,
    command: Callable[[Path], list[str]],
    sources: Sequence[Path],
    folder: Path,
    environment: Mapping[str, str] = os.environ,
) -> Path:
    """The library that `command(target)` makes of the sources. Several processes may do so at once.

    `version`: of the compiler, and of what it compiles against. ExecutionError with the compiler's
    words where it fails.
    """
    digest = hashlib.sha256()
    for part in (version, *command(Path("library"))):
        digest.update(part.encode() + b"\0")
    for path in sources:
        digest.update(path.read_bytes() + b"\0")
    target = folder / f"{digest.hexdigest()[:32]}.so"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        built = Path(scratch) / "library.so"
        try:
            done = subprocess.run(
                command(built), capture_output=True, text=True, timeout=PATIENCE, env=environment
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ExecutionError(f"compiling {what}: {error}") from None
        if done.returncode:
            words = (done.stderr or done.stdout).strip().splitlines()[:20]
            failed = ExecutionError(f"compiling {what} failed")
            failed.add_note("\n".join(words))
            raise failed
        built.rename(target)
    return target


def cache_folder() -> Path:
    """Where built libraries are kept."""
    own = os.environ.get("FORESTCOLL_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forestcoll"
