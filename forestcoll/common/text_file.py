"""Text files, read whole: their size bounded, every refusal an error that names file and reason.

Records that say what no other file can prove bear a seal, so that one that was edited is refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext
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


def seal(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with the SHA-256 of all else that it says (as JSON) as its `sha256`."""
    from hashlib import sha256

    rest = {name: value for name, value in record.items() if name != "sha256"}
    return {**rest, "sha256": sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()}
