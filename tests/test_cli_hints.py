"""Slips of the command line, the examples of `--help`, and `--quiet`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from command_line import Run

from forestcoll.common.errors import did_you_mean
from forestcoll.ui import cli

RING = ("-t", "ring", "--set", "gpus=4")


@pytest.mark.parametrize("line", ["deploy x --boxes 2", "optimum -t ring -c allreduce --frob 2"])
def test_no_hint_where_there_is_nothing_to_hint_at(line: str, call: Run) -> None:
    code, _, err = call(*line.split())
    assert code == 2
    assert "--set" not in err


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


def test_quiet_synthesize_says_nothing(call: Run, tmp_path: Path) -> None:
    assert call("synthesize", *RING, "-c", "allreduce", "-o", "out/", "--quiet") == (0, "", "")
    assert len(list((tmp_path / "out").iterdir())) == 3
    assert call("verify", "out/", "-q") == (0, "", "")
    code, out, err = call(
        "synthesize", *RING, "-c", "allgather", "--format", "forest", "-o", "-", "-q"
    )
    assert (code, err) == (0, "")
    assert json.loads(out)["collective"] == "allgather"
    plan = "out/ring-4.allreduce.mscclpp.json"
    code, out, err = call("run", plan, "--size", "1004", "--op", "max", "-q")
    assert (code, err) == (0, "")  # without: two notes
    assert "# Out of bounds values : 0 OK" in out
    assert "note" in call("run", plan, "--size", "1004", "--op", "max")[2]
    assert call("deploy", plan, "--runtime", "mscclpp", "-o", "there", "-q") == (0, "", "")
    code, out, err = call("deploy", plan, "--runtime", "mscclpp", "-q")
    assert (code, err) == (0, "")
    assert "proof" in out


def test_quiet_still_says_what_is_wrong(call: Run) -> None:
    code, out, err = call("verify", "none.xml", "-q")
    assert (code, out) == (1, "")
    assert err.startswith("forestcoll: error: none.xml: ")
    assert call("optimum", *RING, "-c", "allgather", "-q")[1].startswith("optimum ")


def test_a_processor_is_not_held_against_links(call: Run) -> None:
    """Percent of what a machine's links reach, measured in this one's memory, reads as failure."""
    assert call("synthesize", *RING, "-c", "allgather", "-o", "out/", "-q")[0] == 0
    plan = "out/ring-4.allgather.msccl.xml"
    code, out, _ = call("run", plan, "--size", "64K")
    assert code == 0
    assert "of predicted" not in out
    assert (
        "# Allowed by links     : 400/3 (133.333) GB/s, ring-4.allgather.forest.json (on its" in out
    )
    code, out, _ = call("run", plan, "--size", "64K", "-t", "ring", "--set", "gpus=4", "--json")
    assert code == 0
    told = json.loads(out)
    assert told["predicted"] == "400/3 (133.333) GB/s, ring-4.allgather.forest.json"
    assert {row["percent_of_predicted"] for row in told["rows"]} == {None}
