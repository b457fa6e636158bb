"""What is solved of a report of losses, in a file: a run that was cut off goes on from there."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from forestcoll.common.errors import ForestCollError
from forestcoll.common.input_limits import PLAN_BYTES
from forestcoll.common.text_file import check_seal, digest, dump_record, read_text, seal
from forestcoll.study.degrade.losses import New, Workload

FORMAT: Final = "forestcoll.losses/1"


class Journal(dict[str, New]):
    """Options of a failure -> what the best new forest leaves after it; each new one is written.

    `write` writes a text to a file, whole or not at all. Raises ForestCollError where the file is
    of another problem, or no such file.
    """

    def __init__(self, path: Path, workload: Workload, write: Callable[[Path, str], None]) -> None:
        self._path, self._write = path, write
        self._problem = digest("\n".join(workload.facts()))[:16]
        if not path.exists():
            return
        record = read_sealed(path, FORMAT)
        if record["problem"] != self._problem:
            raise ForestCollError(f"{path}: was made for another problem; name another file")
        for options, (algbw, reason, note) in record["solved"].items():
            new = New(None if algbw is None else Fraction(algbw), reason, note)
            super().__setitem__(options, new)

    def __setitem__(self, options: str, new: New) -> None:
        super().__setitem__(options, new)
        solved = {
            key: [value.algbw and str(value.algbw), value.reason, value.note]
            for key, value in self.items()
        }
        record = seal({"format": FORMAT, "problem": self._problem, "solved": solved})
        self._write(self._path, dump_record(record))


def read_sealed(path: Path, form: str) -> dict[str, Any]:
    """The record in a file; ForestCollError where it is none, or not as it was written."""
    try:
        record: dict[str, Any] = json.loads(read_text(path, PLAN_BYTES, ForestCollError))
        if record["format"] != form:
            raise ForestCollError(f"{path}: is not of format {form}")
        check_seal(record, path, ForestCollError)
    except (ValueError, TypeError, KeyError, RecursionError) as error:  # not JSON, no object
        what = form.partition("/")[0].rpartition(".")[2]
        raise ForestCollError(f"{path}: is no record of a {what} ({error})") from None
    return record
