"""Files: what `--output` means, output that appears whole or not at all, input of bounded size."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forestcoll.errors import ForestCollError, OutputError
from forestcoll.input_limits import FILE_BYTES
from forestcoll.pipeline import FORMATS, Format

"""Bytes of a file that are read at most: a plan or forest beyond this is none."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where `--output` sends which formats: standard output, one file, or files in a directory."""

    formats: tuple[Format, ...]
    stdout: bool = False
    file: Path | None = None
    directory: Path | None = None

    def paths(self, stem: str) -> dict[Format, Path]:
        """Format -> file, for a schedule called `stem` (`dgx-a100-2.allreduce`)."""
        if self.file is not None:
            return {self.formats[0]: self.file}
        if self.directory is not None:
            return {f: self.directory / f"{stem}{FORMATS[f]}" for f in self.formats}
        return {}


def destination(output: str, asked: Sequence[Format], default: Sequence[Format]) -> Destination:
    """What `--output` means, given the formats `asked` for (none: `default`, or by the suffix).

    "-" is standard output; an existing directory, a name that ends in "/" and a name without a
    suffix that says otherwise are directories; the rest are files. Raises ValueError with the
    contradiction.
    """
    formats = tuple(dict.fromkeys(asked))
    if output == "-":
        if len(formats) != 1:
            raise ValueError("standard output takes one format: name one with --format")
        return Destination(formats, stdout=True)
    if not output:
        raise ValueError("the name is empty")
    path = Path(output)
    if output.endswith("/") or path.is_dir():
        return Destination(formats or tuple(default), directory=path)
    told = format_of(path.name)
    if told is None and len(formats) != 1:
        if path.suffix in (".json", ".xml"):
            raise ValueError(
                f"'{output}' does not say which format it is to hold: name one with --format, "
                f"or end it in {', '.join(FORMATS.values())}"
            )
        return Destination(formats or tuple(default), directory=path)
    if told is None and not path.suffix:
        return Destination(formats, directory=path)
    if len(formats) > 1:
        raise ValueError(f"'{output}' is one file, but {len(formats)} formats are asked for")
    if told is not None and formats and formats[0] != told:
        raise ValueError(f"'{output}' is the name of a {told} file, but --format says {formats[0]}")
    return Destination(formats if told is None else (told,), file=path)


def read_text(name: str) -> str:
    """The text of a file, or of standard input for "-". Raises ForestCollError."""
    try:
        with sys.stdin.buffer if name == "-" else open(name, "rb") as stream:
            data = stream.read(FILE_BYTES + 1)
    except OSError as error:
        raise ForestCollError(f"{name}: {error.strerror or error}") from error
    if len(data) > FILE_BYTES:
        raise ForestCollError(f"{name}: more than {FILE_BYTES >> 20} MiB {FILE_BYTES.note}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ForestCollError(f"{name}: not text (byte {error.start} is not UTF-8)") from error


def format_of(name: str) -> Format | None:
    """The format that a file name tells, or None."""
    if name.endswith(".xml"):
        return "msccl-xml"
    return next((f for f, suffix in FORMATS.items() if name.endswith(suffix)), None)


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


def write_all(texts: Mapping[Path, str], force: bool) -> None:
    """Write every text to its file: all of them, each whole, or none.

    Directories are made where missing. Everything is written beside its place first and renamed
    last, so that no reader ever sees half a file. Raises OutputError.
    """
    check_free(texts, force)
    waiting: dict[Path, Path] = {}
    new = [path for path in texts if not path.exists()]
    made: list[Path] = []
    try:
        for path, text in texts.items():
            missing = [p for p in (path.parent, *path.parent.parents) if not p.exists()]
            path.parent.mkdir(parents=True, exist_ok=True)
            made.extend(missing)
            temporary = path.with_name(f".{path.name[:200]}.{os.getpid()}.part")
            waiting[path] = temporary
            with temporary.open("w", encoding="utf-8", newline="\n") as stream:
                stream.write(text)
        for path, temporary in waiting.items():
            temporary.replace(path)
    except OSError as error:
        _clean_up([*waiting.values(), *new], made)
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    except BaseException:
        _clean_up([*waiting.values(), *new], made)
        raise


def _clean_up(files: Iterable[Path], directories: Iterable[Path]) -> None:
    """Remove what was only on its way; a directory that is in use by now stays."""
    for file in files:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
    for directory in directories:
        with contextlib.suppress(OSError):
            directory.rmdir()
