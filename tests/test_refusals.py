"""What is refused, by the command line and from Python: the rows of refusals/*.txt.

A row is a command line (`$`) or a call (`>>>`), and below it the exit code and standard error, or
the error that is raised; what calls name is imported before them, or given (`let NAME = VALUE`).
Files that it is given stand before it (`file NAME`, its lines after `|`).
Every refusal is one line that says what is wrong; nothing stands on standard output, and no file is
left behind. `--update-golden` writes what is said now.

Damaged files are made of those in fixtures/ring-3: after `damage SUFFIX` stands `s|pattern|new|`
for the first match, or a statement that changes the JSON `f`. Findings of `verify` are listed on
standard output, and ranks that wait for each other in lines below the error.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from artefacts import ROOT
from command_line import Run
from graphs import machine

import forestcoll
from forestcoll.common.errors import ForestCollError

ROWS = Path(__file__).parent / "refusals"
GIVEN = {
    "forestcoll": forestcoll,
    "Path": Path,
    "nan": float("nan"),
    "RING": machine("ring gpus=4"),
    "PLAN": forestcoll.read_plan(ROOT / "schedules/dgx-a100-1/allreduce.mscclpp.json"),
}


def damaged(suffix: str, change: str) -> str:
    """The text of the good file with that suffix, changed."""
    text = (ROOT / f"tests/fixtures/ring-3/ring-3.allreduce.{suffix}").read_text()
    if change.startswith("s|"):
        _, pattern, new, _ = change.split("|")
        assert re.search(pattern, text), pattern
        return re.sub(pattern, new, text, count=1)
    f = json.loads(text)
    exec(change, {"f": f})
    return json.dumps(f)


def said_by_command(line: str, call: Run) -> str:
    """Exit code and error of a command line that must be refused."""
    code, out, err = call(*shlex.split(line.replace("ROOT/", f"{ROOT}/")))
    first, *more = err.splitlines()
    assert out == "" or line.startswith("verify"), (line, out)
    assert "stuck" in first if more else True, (line, err)
    assert all(each.startswith("  ") for each in more), (line, err)
    assert code in (1, 2), (line, code)
    assert first.startswith("forestcoll: error: "), (line, err)
    assert not re.search(r"Traceback|Error\(", err), (line, err)
    return f"{code} {first.removeprefix('forestcoll: error: ')}".replace(f"{ROOT}/", "ROOT/")


def said_by_call(line: str, names: dict[str, Any]) -> str:
    """The error that a call raises: ours, or of a compiled module."""
    with pytest.raises((ForestCollError, ValueError)) as caught:
        eval(line, names)
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize("rows", sorted(ROWS.glob("*.txt")), ids=lambda path: path.stem)
def test_refusals(rows: Path, call: Run, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    told, name, names = [], "", dict(GIVEN)
    lines = rows.read_text().splitlines()
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        sign, _, text = line.partition(" ")
        if sign == "file":
            name = text
            Path(name).write_text("")
        elif sign == "damage":
            suffix, _, change = text.partition(" ")
            Path(f"x.{suffix}").write_text(damaged(suffix, change))
        elif sign == "|":
            Path(name).write_text(f"{Path(name).read_text()}{text}\n")
        elif sign in ("$", ">>>"):
            before = set(tmp_path.iterdir())
            said = said_by_command(text, call) if sign == "$" else said_by_call(text, names)
            assert set(tmp_path.iterdir()) == before, line
            assert len(said) < 1000, said
            told += [line, said]
            assert said == below or request.config.getoption("--update-golden"), line
            continue
        elif sign == "import":
            names[text] = pytest.importorskip(text)
        elif sign in ("from", "let"):
            exec(text if sign == "let" else line, names)
        if sign in ("file", "damage", "|", "#", "from", "import", "let"):
            told.append(line)
    if request.config.getoption("--update-golden"):
        rows.write_text("\n".join(told) + "\n")
