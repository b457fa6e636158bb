"""Text files, read whole: their size bounded, every refusal an error that names file and reason.
Files of JSON written: some lines a record for people, or a line for each of a million trees.

Records that say what no other file can prove bear a seal, so that one that was edited is refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from os import PathLike
from typing import Any

from forestcoll.common.errors import ForestCollError
from forestcoll.common.input_limits import Limit


def read_text(
    name: str | PathLike[str], most: Limit, error: type[ForestCollError], stdin: bool = False
) -> str:
    """The text (UTF-8) of a file of at most `most` bytes; `error` is raised else.

    `stdin`: "-" is standard input.
    """
    stdin = stdin and name == "-"
    if stdin and sys.stdin is None:
        raise error("-: standard input is closed; name a file")
    try:
        # not closed at the end: "-" may be named twice, and is empty then
        with nullcontext(sys.stdin.buffer) if stdin else open(name, "rb") as stream:
            data = stream.read(most + 1)
    except ValueError:  # a null character, half of a surrogate pair
        raise error(f"{str(name)!r}: cannot be the name of a file") from None
    except OSError as wrong:
        raise error(f"{name}: cannot be read: {wrong.strerror or wrong}") from None
    if len(data) > most:
        raise error(f"{name}: larger than {most >> 20} MiB {most.note}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as wrong:
        line = data.count(b"\n", 0, wrong.start) + 1
        raise error(f"{name}:{line}: not text in UTF-8 (byte {wrong.start})") from None


def digest(data: str | bytes) -> str:
    """Returns the SHA-256 of a file's text or bytes, in hexadecimal digits."""
    from hashlib import sha256

    return sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def seal(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the record with the SHA-256 of all else that it says (as JSON) as its `sha256`."""
    rest = {name: value for name, value in record.items() if name != "sha256"}
    return {**rest, "sha256": digest(json.dumps(rest, sort_keys=True))}


def check_seal(
    record: Mapping[str, Any], source: object, error: type[ForestCollError], todo: str = ""
) -> None:
    """Raises `error` where the record is not as it was sealed; `todo`: what to do then."""
    if record.get("sha256") != seal(record)["sha256"]:
        raise error(f"{source}: was changed after it was made (its sha256){todo}")


def dump_record(record: object) -> str:
    """Returns a record as JSON for people to read, of a file of its own."""
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"


class Block(dict[str, Any]):
    """An object of which every key has a line of its own."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A list of which every entry, JSON already, has a line of its own, behind `indent` spaces."""

    texts: Iterable[str]
    indent: int


def dump_block(block: Block) -> str:
    """Returns a file of JSON: a block with the blocks and rows in it; equal ones, equal bytes."""
    return "".join((*_pieces(block, 0), "\n"))


def _pieces(block: Block, depth: int) -> Iterator[str]:
    """The text in pieces: with a line for each of a million trees it is put together once."""
    pad = " " * depth
    yield "{\n"
    for place, (key, value) in enumerate(block.items()):
        yield ",\n" * bool(place) + f'{pad} "{key}": '
        if isinstance(value, Block):
            yield from _pieces(value, depth + 1)
        elif isinstance(value, Rows):
            inner = " " * value.indent
            rows = f",\n{inner}".join(value.texts)
            yield from ("[\n", inner * bool(rows), rows, f"\n{inner[1:]}]")
        else:
            yield json.dumps(value)
    yield f"\n{pad}}}"
