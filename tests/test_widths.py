"""Tables, lines and help on narrow terminals: no word or number is split, nothing is too wide."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click
import pytest

from forestcoll.ui.cli import cli, main
from forestcoll.ui.cli import messages as said
from forestcoll.ui.report import table

BOX = "a-box-in-rack-17-of-the-hall-behind-the-river"
NAMED = f"""
format: forestcoll.topology/1
name: a-machine-with-a-name-as-long-as-those-that-dumps-of-clusters-have
nodes:
  {BOX}-1/gpu0: {{kind: gpu}}
  {BOX}-1/gpu1: {{kind: gpu}}
  {BOX}-2/gpu0: {{kind: gpu}}
  {BOX}-2/gpu1: {{kind: gpu}}
  fabric: {{kind: switch}}
links:
  - {{src: {BOX}-1/gpu0, dst: {BOX}-1/gpu1, bandwidth: 266.667}}
  - {{src: {BOX}-2/gpu0, dst: {BOX}-2/gpu1, bandwidth: 266.667}}
  - {{src: {BOX}-1/gpu0, dst: fabric, bandwidth: 25}}
  - {{src: {BOX}-1/gpu1, dst: fabric, bandwidth: 25}}
  - {{src: {BOX}-2/gpu0, dst: fabric, bandwidth: 25}}
  - {{src: {BOX}-2/gpu1, dst: fabric, bandwidth: 25}}
"""
COMMANDS = (
    "topology list",
    "topology show {file}",
    "optimum -t {file} -c allgather --explain",
    "front -t {file} -c allgather",
    "synthesize -t {file} -c allreduce -o {out}",
    "synthesize -t {file} -c allreduce --sizes 1K:64M -o {out}/set",
    "synthesize -t ring --set gpus=4 -c alltoall -o {out}/exchange",
    "verify {out}",
    "time {plan}",
    "compare -t {file} --sizes 1K,1G --against ring --against bruck --with {own}",
    "degrade -t {file} -c allgather",
    "deploy {plan} --runtime mscclpp -o {out}/deployed",
    "view {plan} -o {out}/a-page-with-a-long-name.html",
    "run {plan} -b 4K -e 16K -f 2",
)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The tables and lines of the commands, as they are given to be drawn."""
    folder = tmp_path_factory.mktemp("wide")
    file, out = folder / "machine.yaml", folder / "out"
    file.write_text(NAMED)
    found: dict[str, list[Any]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "write", lambda made, stream: found[command].append(made))
        patch.setattr(said, "say", lambda line, err=False: found[command].append(line))
        for command in COMMANDS:
            found[command] = []
            plans = {
                "plan": next(out.glob("*allreduce.mscclpp.json"), ""),
                "own": next(out.glob("*allreduce.msccl.xml"), ""),
            }
            words = command.format(file=file, out=out, **plans)
            assert main(words.split()) == 0, (command, found[command])
    return found


def at(made: Any, width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of a table or text where there are so many columns."""
    if isinstance(made, str):
        return table.wrap(made, width, 2)
    monkeypatch.setattr(table, "WIDTH", width)
    stream = io.StringIO()
    table.write(made, stream)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 110, 200])
@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_split_or_too_wide(
    command: str, width: int, drawn: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert drawn[command]
    for made in drawn[command]:
        lines = at(made, width, monkeypatch)
        for line in lines:
            assert len(line) <= width or len(line.split()) == 1, line
        whole = Counter(" ".join(at(made, 100_000 - 1, monkeypatch)).split())
        assert Counter(" ".join(lines).split()) == whole


@pytest.mark.parametrize("width", [40, 80, 120])
def test_columns_go_to_further_lines(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row's parts stay in their columns, under the heads that stand there too."""
    heads = ["size", "time", "algbw", "plan", "best", "faster"]
    rows = [["64 MiB", "266.667 us", "1234.5", "mscclpp-json", f"b{i}", "1.25 x"] for i in range(2)]
    lines = at(table.columns(heads, rows, (1, 2, 5)), width, monkeypatch)
    if width == 120:
        assert lines[1] == "64 MiB  266.667 us  1234.5  mscclpp-json  b0    1.25 x"
    if width == 40:
        assert lines == [
            "size          time   algbw  plan",
            "  best  faster",
            "64 MiB  266.667 us  1234.5  mscclpp-json",
            "  b0    1.25 x",
            "64 MiB  266.667 us  1234.5  mscclpp-json",
            "  b1    1.25 x",
        ]


def test_a_lone_long_word_stands_whole_below_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/a/folder" * 10
    lines = at(table.facts([("written", f"{path} (12 bytes)")]), 60, monkeypatch)
    assert lines == ["written", f"  {path}", "  (12 bytes)"]


def test_lines_wrap_on_terminals_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "  a fact of forty words, " + "and one more word " * 10
    monkeypatch.setenv("COLUMNS", "80")
    said.say(text)  # into a pipe: one line, for grep
    assert capsys.readouterr().out == text + "\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    said.say(text)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1
    assert all(len(line) <= 80 for line in lines)
    assert all(line.startswith("    ") for line in lines[1:])


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, (*path, name))


@pytest.mark.parametrize("path", list(commands(cli)), ids=" ".join)
@pytest.mark.parametrize("columns", ["80", "200"])
def test_help_is_at_most_80_wide(
    path: tuple[str, ...],
    columns: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main([*path, "--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
