"""Transcripts in pages: their commands, what they print, and writing them anew.

A transcript is a block ```console; a line that begins with `$ ` is a command (to which lines that
follow one ending in a backslash belong), the others are what it prints. `...` alone stands for the
rest of what is printed. Figures that differ from run to run are no part of the comparison.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from forestcoll.ui import cli

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
REST = "..."
SECONDS = 400
UNWANTED = ("COLUMNS", "LINES", "FORCE_COLOR", "_FORESTCOLL_COMPLETE")
"""Of the environment, what would change what commands print."""
WORDS = 'forestcoll() { printf "%s\\0" "$@"; }; '
"""In front of a command it prints the words that the shell gives the program."""


@dataclass(frozen=True, slots=True)
class Step:
    """A command as it is typed, and the lines that it is said to print."""

    command: str
    printed: tuple[str, ...]


def steps(page: str) -> list[Step]:
    """All transcripts of a page, in order."""
    return [step for block in BLOCK.findall(page) for step in _steps(block)]


def _steps(block: str) -> list[Step]:
    found: list[tuple[str, list[str]]] = []
    goes_on = False
    for line in block.splitlines():
        if goes_on:
            command, printed = found[-1]
            found[-1] = f"{command}\n{line}", printed
            goes_on = line.endswith("\\")
        elif line.startswith("$ "):
            found.append((line[2:], []))
            goes_on = line.endswith("\\")
        else:
            found[-1][1].append(line)
    return [Step(command, tuple(printed)) for command, printed in found]


def masked(line: str) -> str:
    """The line without what differs from run to run: times, and what this processor reaches."""
    if re.match(r"(wall )?time\s", line):
        return "time"
    if line.startswith("# Avg bus bandwidth"):
        return "# Avg bus bandwidth"
    row = line.split()
    if re.fullmatch(
        r"\s+\d+\s+\d+\s+\w+\s+\w+\s+-?\d+(\s+[\d.]+){3}\s+\d+(\s+[\d.-]+){3}\s+(\d+|N/A)", line
    ):
        return " ".join([*row[:5], row[8], row[12]])
    return line


def agree(printed: list[str], stated: tuple[str, ...]) -> bool:
    """Whether what was printed is what the page says."""
    if stated and stated[-1] == REST:
        stated = stated[:-1]
        printed = printed[: len(stated)]
    return _comparable(printed) == _comparable(stated)


def _comparable(lines: Iterable[str]) -> list[str]:
    """The lines masked; how many a list of times is folded into hangs on the times."""
    found: list[str] = []
    for line in lines:
        if not (found and found[-1] == "time" and re.match(r" {10}", line)):
            found.append(masked(line))
    return found


def restated(page: str, printed: list[list[str]]) -> str:
    """The page with what its commands really print; what only figures differ in stays."""
    news = iter(printed)

    def block(match: re.Match[str]) -> str:
        lines = []
        for step in _steps(match[1]):
            lines.append(f"$ {step.command}")
            now = next(news)
            if agree(now, step.printed):
                lines += step.printed
            elif step.printed and step.printed[-1] == REST:
                lines += [*now[: len(step.printed) - 1], REST]
            else:
                lines += now
        return "```console\n" + "".join(f"{line}\n" for line in lines) + "```"

    return BLOCK.sub(block, page)


class Shell:
    """Runs commands in a folder as a user's shell would, with this package's `forestcoll`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "clone"
        self.folder.mkdir()
        for name in ("examples", "schedules"):
            (self.folder / name).symlink_to(ROOT / name)
        programs = folder / "bin"
        programs.mkdir()
        program = programs / "forestcoll"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m forestcoll "$@"\n')
        program.chmod(0o755)
        self._environment = {k: v for k, v in os.environ.items() if k not in UNWANTED}
        self._environment |= {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }

    def run(self, command: str) -> list[str]:
        """What it prints, errors and notes among the rest, in the order of their writing.

        A command of `forestcoll` alone, whose words the shell tells, runs in this process: one of
        its own would import all anew.
        """
        tokens = shlex.shlex(command, posix=True, punctuation_chars=True)
        if not command.startswith("forestcoll ") or any(set(t) <= set("();<>|&") for t in tokens):
            return self._printed(command).splitlines()
        words = self._printed(WORDS + command).split("\0")[:-1]
        raw = io.BytesIO()  # some print bytes
        said = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(said):
            patch.chdir(self.folder)
            for name in UNWANTED:
                patch.delenv(name, raising=False)
            cli.main(words)
        return raw.getvalue().decode().splitlines()

    def _printed(self, command: str) -> str:
        """What bash prints."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
        return done.stdout


def quickstart() -> list[str]:
    """What scripts/quickstart does once the package is installed: its commands."""
    script = (ROOT / "scripts" / "quickstart").read_text()
    return re.findall(r"^(?:forestcoll |schedule=).*$", script, re.MULTILINE)
