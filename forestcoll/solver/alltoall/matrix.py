"""The sizes of an all-to-all-v, from a file: JSON, or numbers in lines."""

from __future__ import annotations

import json
import re

from forestcoll.common.errors import TopologyError
from forestcoll.common.input_limits import DIGITS
from forestcoll.solver.alltoall.demand import Matrix


def parse(text: str, source: str) -> Matrix:
    """The matrix in `text`: row i says how many bytes rank i sends to each rank.

    A JSON list of lists, or a line a row with numbers between commas or spaces; `#` starts a
    remark. Raises TopologyError with the line, row or column of what is wrong.
    """
    if text.lstrip()[:1] == "[":
        return _json(text, source)
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        words = re.split(r"[,;\s]+", line.partition("#")[0].strip(" \t,;"))
        if words == [""]:
            continue
        for column, word in enumerate(words, 1):
            if not re.fullmatch(r"[0-9]+", word) or len(word) > DIGITS:
                raise TopologyError(
                    f"{source}: line {number}, entry {column}: '{word[:40]}' is no whole number of "
                    "bytes"
                )
        rows.append(tuple(map(int, words)))
    if not rows:
        raise TopologyError(f"{source}: no numbers; a line a rank, the bytes it sends to each rank")
    return tuple(rows)


def _json(text: str, source: str) -> Matrix:
    try:
        rows = json.loads(text, parse_int=_integer)
    except RecursionError:
        raise TopologyError(f"{source}: nested too deeply for a matrix") from None
    except json.JSONDecodeError as e:
        raise TopologyError(f"{source}: line {e.lineno}: not JSON: {e.msg}") from None
    except ValueError as e:
        raise TopologyError(f"{source}: {e}") from None
    for i, row in enumerate(rows):
        if not isinstance(row, list):
            raise TopologyError(f"{source}: row {i} is no list")
        for j, entry in enumerate(row):
            if type(entry) is not int or entry < 0:
                raise TopologyError(f"{source}: row {i}, column {j}: no whole number of bytes")
    return tuple(map(tuple, rows))


def _integer(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"the number {digits[:20]}... has {len(digits)} digits {DIGITS.note}")
    return int(digits)
