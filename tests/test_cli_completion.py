"""Shell completion as a shell asks for it: the script, and the words that may follow."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Outcome, fine, finished

import forestcoll
from forestcoll.ui.cli import _run, hints

SOURCE = Path(forestcoll.__file__).parents[1]
CASES: dict[str, tuple[str, list[str]]] = {
    # the line up to the cursor, and what may stand there
    "command": ("forestcoll sy", ["synthesize"]),
    "topology": ("forestcoll optimum -t dgx-", ["dgx-a100", "dgx-b200", "dgx-h100"]),
    "shown": ("forestcoll topology show mi", ["mi250", "mi300x"]),
    "collective": (
        "forestcoll optimum -t ring -c al",
        ["allgather", "allreduce", "alltoall", "alltoallv"],
    ),
    "setting": ("forestcoll optimum -t torus-2d --set x", ["x=4"]),
    "root": ("forestcoll optimum -t ring --set gpus=3 --root gpu", ["gpu0", "gpu1", "gpu2"]),
    "ranks": ("forestcoll optimum -t ring --set gpus=3 --ranks gpu1,", ["gpu1,gpu0", "gpu1,gpu2"]),
    "option": ("forestcoll synthesize --min", ["--min-percent"]),
    "engine": ("forestcoll run x.xml --engine g", ["gpu"]),
    "unknown": ("forestcoll optimum -t no-such --ranks gpu", []),
    "wrong": ("forestcoll optimum -t ring --set gpus=zero --ranks gpu", []),
}


Ask = Callable[..., Outcome]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """What the program answers to a shell, whose cursor is at the end of the line."""

    def run(line: str, what: str = "bash_complete") -> Outcome:
        words = line.split(" ")
        asked = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
        for name, value in {**asked, hints.VARIABLE: what}.items():
            monkeypatch.setenv(name, value)
        code = _run([], own=True)
        return (code, *capsys.readouterr())

    return run


@pytest.mark.parametrize("case", CASES)
def test_what_may_follow(case: str, ask: Ask) -> None:
    line, expected = CASES[case]
    offered = [row.partition(",") for row in fine(ask(line)).splitlines()]
    assert [word for kind, _, word in offered if kind == "plain"] == expected


@pytest.mark.parametrize(
    "line", ["forestcoll verify out/", "forestcoll run out/", "forestcoll optimum -t o"]
)
def test_files_follow(line: str, ask: Ask) -> None:
    assert fine(ask(line)).startswith("file,")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(shell: str, ask: Ask) -> None:
    out = fine(ask("forestcoll", f"{shell}_source"))
    assert f"_FORESTCOLL_COMPLETE={shell}_complete" in out
    assert "Usage" not in out


def test_another_shell_is_named(ask: Ask) -> None:
    code, out, err = ask("forestcoll", "tcsh_source")
    assert (code, out) == (1, "")
    assert err.startswith("forestcoll: error: _FORESTCOLL_COMPLETE=tcsh_source: is none of")
    assert "bash_source" in err


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes(tmp_path: Path) -> None:
    """The page's line in a real bash: names of the catalogue, and files where none begins so."""
    program = tmp_path / "forestcoll"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m forestcoll "$@"\n')
    program.chmod(0o755)
    page = (SOURCE / "docs" / "tour.md").read_text()
    line = 'eval "$(_FORESTCOLL_COMPLETE=bash_source forestcoll)"'
    assert line in page
    script = (
        f"export PATH={tmp_path}:$PATH\n{line}\n"
        "COMP_WORDS=(forestcoll optimum -t gb); COMP_CWORD=3\n"
        "_forestcoll_completion forestcoll 2> /dev/null\n"  # compopt is for a line that is typed
        'echo "${COMPREPLY[@]}"; complete -p forestcoll\n'
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = finished("bash", "-c", script, env=environment, check=True)
    assert done.stdout.splitlines()[0] == "gb200-nvl72"
    assert "_forestcoll_completion" in done.stdout
