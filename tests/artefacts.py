"""What tests compile, kept in pytest's cache: once for each state of the package's sources.

Workers of a session, and later sessions, find it there. Tests ask conftest's fixture `compiled`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import forestcoll
from forestcoll import plans
from forestcoll.program import Program
from forestcoll.schedule import forest_file
from forestcoll.schedule.forest import Forest

ROOT = Path(__file__).parents[1]
KEPT = 3
"""States of the sources whose artefacts are kept."""
DAYS = 7
"""How long what is made of other sources stays after it was last asked for."""


@dataclass(frozen=True)
class Artefact:
    """The files that a `synthesize` wrote, read when they are first asked for."""

    folder: Path

    def file(self, end: str) -> Path:
        """The only file whose name ends so."""
        (found,) = self.folder.rglob(f"*{end}")
        return found

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What `--json` said."""
        told = self.folder.with_name(f"{self.folder.name}.json")
        found: dict[str, Any] = json.loads(told.read_text())
        return found

    @cached_property
    def forest(self) -> Forest:
        """The forest."""
        return forest_file.load(self.file(".forest.json"))

    @cached_property
    def programs(self) -> dict[str, Program]:
        """The plans that were written, by format."""
        ends = {form: f"*{row.suffix}" for form, row in plans.FORMATS.items()}
        files = {form: [*self.folder.rglob(end)] for form, end in ends.items()}
        return {form: plans.read_plan(*found) for form, found in files.items() if found}

    def copy(self, folder: Path) -> Path:
        """A copy of the files that a test may change."""
        return Path(shutil.copytree(self.folder, folder, dirs_exist_ok=True))


class Artefacts:
    """The store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[str, Artefact] = {}

    def once(self, name: str, make: Callable[[Path], object], *sources: Path) -> Path:
        """The file or folder `name` that `make(path)` writes, for whoever comes first.

        `sources`: the files that it is made from, where that is not the whole package: it stays
        as long as they do.
        """
        folder = self.folder
        if sources:
            folder = folder.parent / "of-files"
            folder.mkdir(exist_ok=True)
            name = f"{digest(sources)}-{name}"
        place = folder / name
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.exists():
                unfinished = folder / f"unfinished-{name}"
                shutil.rmtree(unfinished, ignore_errors=True)
                make(unfinished)
                unfinished.rename(place)
        place.touch()
        return place

    @classmethod
    def inside(cls, home: Path) -> Artefacts:
        """The store of the present sources in a folder with those of others, of which old ones
        go."""
        folder = home / state()
        folder.mkdir(parents=True, exist_ok=True)
        folder.touch()
        newest = sorted(home.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in [path for path in newest if path.name != "of-files"][KEPT:]:
            shutil.rmtree(path, ignore_errors=True)
        for path in (home / "of-files").glob("*"):
            if path.stat().st_mtime < time.time() - DAYS * 86400:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        return cls(folder)

    def __call__(self, machine: str, collective: str, *options: str) -> Artefact:
        """What `synthesize` makes of `machine`, a name with settings: `"dgx-a100 boxes=2"`."""
        name, *settings = machine.split()
        words = ["-t", name, *(word for pair in settings for word in ("--set", pair))]
        words += ["-c", str(collective), *options]
        asked = " ".join(words)
        if asked not in self.known:
            label = re.sub(r"[^\w.=-]+", "_", f"{machine}.{collective}")
            name = f"{label}-{hashlib.sha256(asked.encode()).hexdigest()[:8]}"
            folder = self.once(name, lambda path: synthesize(words, path, self.folder / name))
            self.known[asked] = Artefact(folder)
        return self.known[asked]


def synthesize(words: list[str], folder: Path, place: Path) -> None:
    """Has the command line write into `folder`, and its summary beside `place`."""
    from forestcoll.ui import cli

    with redirect_stdout(StringIO()) as out:
        code = cli.main(["synthesize", *words, "-o", f"{folder}/", "--json"])
    assert code == 0, words
    place.with_name(f"{place.name}.json").write_text(out.getvalue())


def digest(files: Iterable[Path]) -> str:
    """One hash of what the files hold."""
    whole = hashlib.sha256()
    for file in sorted(files):
        whole.update(file.read_bytes())
    return whole.hexdigest()[:12]


def state() -> str:
    """A name of the package's sources and of its compiled modules."""
    ends = {".py", ".cpp", ".hpp", ".cu", ".js", ".css", ".html"}
    package = ROOT / "forestcoll"
    sources = [path for path in package.rglob("*") if path.suffix in ends]
    sources += (ROOT / "topologies").rglob("*.yaml")
    compiled = [path for home in forestcoll.__path__ for path in Path(home).rglob("*.so")]
    stamps = sorted(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in compiled)
    return hashlib.sha256("\n".join([digest(sources), *stamps]).encode()).hexdigest()[:12]
