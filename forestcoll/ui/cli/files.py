"""Files: what `--output` means, input of bounded size. `writing` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forestcoll.common import text_file
from forestcoll.common.errors import ForestCollError
from forestcoll.common.input_limits import FILE_BYTES
from forestcoll.compile.formats import FORMATS, Format


@dataclass(frozen=True, slots=True)
class Destination:
    """Where `--output` sends which formats: standard output, one file, or files in a directory.

    Without any of them nowhere: what is asked for is a report.
    """

    formats: tuple[Format, ...]
    stdout: bool = False
    file: Path | None = None
    directory: Path | None = None

    @property
    def nowhere(self) -> bool:
        """Whether nothing is to be written."""
        return not self.stdout and self.file is None and self.directory is None

    def paths(self, stem: str) -> dict[Format, Path]:
        """Format -> file, for a schedule called `stem` (`dgx-a100-2.allreduce`)."""
        if self.file is not None:
            return {self.formats[0]: self.file}
        if self.directory is not None:
            return {f: self.directory / f"{stem}{FORMATS[f]}" for f in self.formats}
        return {}


def destination(
    output: str | None, asked: Sequence[Format], default: Sequence[Format]
) -> Destination:
    """What `--output` means, given the formats `asked` for (none: `default`, or by the suffix).

    None is nowhere; "-" is standard output; an existing directory, a name that ends in "/" and a
    name without a suffix that says otherwise are directories; the rest are files. Raises ValueError
    with the contradiction.
    """
    formats = tuple(dict.fromkeys(asked))
    if output is None:
        return Destination(formats or tuple(default))
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
    return text_file.read_text(name, FILE_BYTES, ForestCollError, stdin=True)


def format_of(name: str) -> Format | None:
    """The format that a file name tells, or None."""
    whole = [f for f, suffix in FORMATS.items() if name.endswith(suffix)]
    kind = Path(name).suffix
    alike = [f for f, suffix in FORMATS.items() if kind and suffix.endswith(kind)]
    return next(iter(whole), alike[0] if len(alike) == 1 else None)
