"""What is solved of a report of losses, in a file: a run that was cut off goes on from there."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from forestcoll.common.errors import ForestCollError
from forestcoll.common.input_limits import PLAN_BYTES
from forestcoll.common.text_file import check_seal, digest, read_text, seal
from forestcoll.study.degrade.losses import New, Workload

FORMAT: Final = "forestcoll.losses/1"


class Journal(dict[str, New]):
    """Options of a failure -> what the best new forest leaves after it; each new one is a line.

    Raises ForestCollError where the file is of another problem, no such file, or cannot be written.
    A last line that was cut off goes.
    """

    def __init__(self, path: Path, workload: Workload) -> None:
        self._path = path
        self._head = {"format": FORMAT, "problem": digest("\n".join(workload.facts()))[:16]}
        self._append("")
        text = read_text(path, PLAN_BYTES, ForestCollError)
        for line in text.splitlines(keepends=True):
            if text != line and not line.endswith("\n"):
                os.truncate(path, len(text.encode()) - len(line.encode()))
                break
            record = _parse(line, path, FORMAT)
            if record["problem"] != self._head["problem"]:
                raise ForestCollError(f"{path}: was made for another problem; name another file")
            algbw, reason, note = record["solved"]
            new = New(None if algbw is None else Fraction(algbw), reason, note)
            super().__setitem__(record["failure"], new)

    def __setitem__(self, options: str, new: New) -> None:
        super().__setitem__(options, new)
        solved = [new.algbw and str(new.algbw), new.reason, new.note]
        self._append(json.dumps(seal({**self._head, "failure": options, "solved": solved})) + "\n")

    def _append(self, text: str) -> None:
        try:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(text)
        except OSError as error:
            why = error.strerror or error
            raise ForestCollError(f"{self._path}: cannot be written: {why}") from None


def read_sealed(path: Path, form: str) -> dict[str, Any]:
    """The record in a file; ForestCollError where it is none, or not as it was written."""
    return _parse(read_text(path, PLAN_BYTES, ForestCollError), path, form)


def _parse(text: str, path: Path, form: str) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(text)
        if record["format"] != form:
            raise ForestCollError(f"{path}: is not of format {form}")
        check_seal(record, path, ForestCollError)
    except (ValueError, TypeError, KeyError, RecursionError) as error:  # not JSON, no object
        what = form.partition("/")[0].rpartition(".")[2]
        raise ForestCollError(f"{path}: is no record of a {what} ({error})") from None
    return record
