"""Slips of the command line, the examples of `--help`, and `--quiet`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import pytest
from command_line import Run

from forestcoll.common.errors import did_you_mean
from forestcoll.ui import cli


def test_case_and_underscores_make_no_difference() -> None:
    assert did_you_mean("GPU_7", ["gpu6", "gpu7"]) == "; did you mean 'gpu7'?"
    assert did_you_mean("xyz", ["gpu0"]) == ""


def commands(
    command: click.Command = cli.cli, name: str = "forestcoll"
) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from commands(inner, f"{name} {inner.name}")


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_every_help_has_examples_that_parse(
    name: str, call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each example is a command line whose options exist (files that it names may not)."""
    code, out, err = call(*name.split()[1:], "--help")
    assert (code, err) == (0, "")
    _, _, text = out.partition("Examples:\n")
    lines = text.replace("\\\n", " ").splitlines()
    shown = [
        line.strip() for line in lines if " forestcoll " in f" {line}" and "_COMPLETE" not in line
    ]
    assert shown
    monkeypatch.setattr(click.Command, "invoke", lambda self, context: 0)
    for line in shown:
        words = shlex.split(line, comments=True)
        words = words[words.index("forestcoll") + 1 :]
        for end in (">", "&&", "|"):
            words = words[: words.index(end)] if end in words else words
        assert call(*words) == (0, "", ""), line
