"""What commands do, one after the other in an empty folder: the rows of commands/*.txt.

file NAME, | LINE    a file that is given, and its lines
plan NAME BASE n=3   the plan of a program of programs.py or rows/bases.txt as a file
program NAME         a file that is run, which may be there: its lines follow
edit NAME EDIT       an edit of that file, as in edits.py
gone NAME            a file is deleted
$ WORDS              a command line; ROOT is the repository
2 TEXT               below it, what holds: its exit code (without such a row 0), and an error
err TEXT, only LINE  standard error holds this, or is this line (without any of these: nothing)
noerr TEXT           standard error does not hold this
out TEXT, not TEXT   standard output holds this, or does not; white space counts as one space
json a.0.*.b = VALUE the JSON on it; *: of each, every value once; len: how many
                     (`~` in place of `=`: about that; `<`: at most)
keep NAME, is NAME   standard output becomes a file; is that file
files FOLDER = NAMES what lies in a folder
in NAME TEXT         a file holds this
equal NAME NAME      two files are the same
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import programs
import pytest
from artefacts import ROOT
from command_line import Outcome, Run
from edits import edit_text

COMMANDS = Path(__file__).parent / "commands"


def pick(value: Any, path: Sequence[str]) -> Any:
    """What lies at `a.0.*.b` of a JSON value."""
    if not path:
        return value
    first, *rest = path
    if first == "*":
        found = [pick(each, rest) for each in value]
        return [each for k, each in enumerate(found) if each not in found[:k]]
    if first == "len":
        return len(value)
    return pick(value[int(first) if isinstance(value, list) else first], rest)


def holds(sign: str, text: str, outcome: Outcome) -> bool:
    """Whether a row below a command is so."""
    code, out, err = outcome
    name, _, rest = text.partition(" ")
    if sign.isdigit():
        return code == int(sign) and text in err
    if sign == "only":
        return err == f"{text}\n"
    if sign in ("err", "out", "not", "noerr"):
        where = " ".join((err if "err" in sign else out).split())
        return (" ".join(text.split()) in where) == (sign in ("err", "out"))
    if sign == "json":
        wanted, found = json.loads(rest[2:]), pick(json.loads(out), name.split("."))
        if rest[0] == "<":
            return bool(found <= wanted)
        return bool(found == (pytest.approx(wanted, rel=0.01) if rest[0] == "~" else wanted))
    if sign == "keep":
        return Path(name).write_text(out) >= 0
    if sign == "is":
        return Path(name).read_text() == out
    if sign == "files":
        return sorted(path.name for path in Path(name).iterdir()) == sorted(rest[2:].split())
    if sign == "equal":
        return Path(name).read_bytes() == Path(rest).read_bytes()
    assert sign == "in", sign
    return rest.encode() in Path(name).read_bytes()


def check(path: Path, call: Run) -> None:
    """Whether all rows of a file hold."""
    outcome, said, name = (0, "", ""), True, ""
    rows = path.read_text().splitlines()
    for number, row in enumerate([*rows, "end"], 1):
        sign, _, text = row.partition(" ")
        if sign in ("$", "end"):
            assert said or (outcome[0], outcome[2]) == (0, ""), (number, outcome)
            said = False
            if "--plot" in text:
                pytest.importorskip("matplotlib")
            if sign == "$":
                outcome = call(*shlex.split(text.replace("ROOT/", f"{ROOT}/")))
        elif sign in ("file", "program"):
            Path(name := text).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text("")
            Path(name).chmod(0o755 if sign == "program" else 0o644)
        elif sign == "|":
            Path(name).write_text(f"{Path(name).read_text()}{text}\n")
        elif sign == "plan":
            place = Path(text.split()[0])
            place.parent.mkdir(exist_ok=True)
            place.write_text(programs.text_of(*text.split()[1:]))
        elif sign == "gone":
            Path(text).unlink()
        elif sign == "edit":
            name, _, change = text.partition(" ")
            Path(name).write_text(edit_text(Path(name).read_text(), [change]))
        elif sign and sign != "#":
            assert holds(sign, text, outcome), (number, row, outcome)
            said |= sign.isdigit() or sign in ("err", "only")


@pytest.mark.parametrize("path", sorted(COMMANDS.glob("*.txt")), ids=lambda path: path.stem)
def test_commands(path: Path, call: Run) -> None:
    check(path, call)
