"""A plan's simulated figures: the same in every command, whoever knows the links' latencies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from artefacts import Artefacts
from command_line import as_json as call

from forestcoll.study.predict import NO_LATENCIES
from forestcoll.ui import cli

GB = "1000000000"
SMALL = 15 << 12
MINE = """
format: forestcoll.topology/1
name: mine
nodes:
  gpu0: {kind: gpu}
  gpu1: {kind: gpu}
  gpu2: {kind: gpu}
  gpu3: {kind: gpu}
  near: {kind: switch}
  far: {kind: switch}
links:
  - {src: gpu0, dst: near, bandwidth: 50, latency: 2}
  - {src: gpu1, dst: near, bandwidth: 50, latency: 2}
  - {src: gpu2, dst: near, bandwidth: 50, latency: 2}
  - {src: gpu3, dst: near, bandwidth: 50, latency: 2}
  - {src: gpu0, dst: far, bandwidth: 20, latency: 9}
  - {src: gpu1, dst: far, bandwidth: 20, latency: 9}
  - {src: gpu2, dst: far, bandwidth: 20, latency: 9}
  - {src: gpu3, dst: far, bandwidth: 20, latency: 9}
"""
"""Two switches between the same GPUs: trees take ways that are not the shortest."""


def index_of(directory: Path) -> Any:
    """The index of a plan set."""
    return json.loads((directory / "index.json").read_text())


def times(band: dict[str, Any]) -> tuple[float, float]:
    """Microseconds over links in order, and over links that share."""
    return band["in_order"]["time_us"], band["fair"]["time_us"]


def timed(file: str, size: str, *words: str) -> tuple[float, float]:
    """The same as the command `time` has them."""
    rules = call("time", file, "--size", size, *words)["timings"]
    found = {each["rule"]: each["time_us"] for each in rules}
    return found["fifo"], found["fair"]


@pytest.mark.parametrize(
    ("machine", "collective", "ranks"),
    [
        ("hypercube dimension=2", "reduce-scatter", ()),
        ("fat-tree hosts=1 gpus=2", "allreduce", ()),
        ("dgx-a100", "allgather", ("--ranks", "box0/gpu[0-4]")),
        ("dgx-a100 boxes=2", "alltoall", ()),
        ("dgx-a100", "alltoall", ("--ranks", "box0/gpu[0-4]")),
    ],
    ids=str,
)
def test_all_commands_say_the_same(
    machine: str, collective: str, ranks: tuple[str, ...], compiled: Artefacts
) -> None:
    made = compiled(machine, collective, *ranks)
    name, *settings = machine.split()
    chosen = ("-t", name, *(word for pair in settings for word in ("--set", pair)))
    topologies = [()] if ranks else [(), chosen]
    assert len(made.summary["plans"]) == 2
    for form, plan in made.summary["plans"].items():
        file = str(made.file(f".{form.replace('-', '.')}"))
        for topology in topologies:
            (entry,) = call("verify", file, *topology)
            assert entry["simulated"] == plan["simulated"]
            assert timed(file, GB, *topology) == times(plan["simulated"])
        once = [times(call("run", file, "--size", str(SMALL), *t)["simulated"]) for t in topologies]
        assert set(once) == {timed(file, str(SMALL))}


@pytest.mark.parametrize(
    ("machine", "collective"),
    [(("ring", "--set", "gpus=4"), "allreduce"), (("star", "--set", "gpus=4"), "alltoall")],
)
def test_a_set_says_the_same(
    machine: tuple[str, ...],
    collective: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The table of a set that is made, and of one that is verified."""
    asked = ("synthesize", "-t", *machine, "-c", collective, "--sizes", "1K:1G")
    assert cli.main([*asked, "-o", str(tmp_path / "set")]) == 0
    text = capsys.readouterr().out
    table = text[text.index("plans  ") : text.index("wall time")].strip()
    assert table.count("msccl") > 3
    made = call(*asked, "-o", str(tmp_path / "again"))["simulated"]
    plans = [plan for r in index_of(tmp_path / "set")["runtimes"] for plan in r["plans"]]
    sizes = [(plan["min_bytes"], min(plan["max_bytes"], 1 << 26)) for plan in plans]
    assert [(each["from"]["size"], each["to"]["size"]) for each in made] == sizes
    for topology in ((), ("-t", *machine)):
        assert cli.main(["verify", str(tmp_path / "set"), *topology]) == 0
        said = capsys.readouterr()
        assert table in said.out
        assert not said.err
        (entry,) = call("verify", str(tmp_path / "set"), *topology)
        assert entry["simulated"] == made
    assert cli.main(["verify", str(tmp_path / "set"), "--no-simulate"]) == 0
    assert "simulated" not in capsys.readouterr().out
    (entry,) = call("verify", str(tmp_path / "set"), "--no-simulate")
    assert entry["simulated"] is None
    assert cli.main(["verify", str(tmp_path / "set"), "-t", "dgx-a100"]) == 0
    said = capsys.readouterr()
    assert "GB/s at to" not in said.out
    assert "not simulated: the plan is for 4 ranks; dgx-a100-1 has 8 GPUs" in said.err


def test_a_machine_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its latencies are in no file of the plan: whoever is told them says the same."""
    known = tmp_path / "mine.yaml"
    known.write_text(MINE)
    machine = ("-t", str(known))
    out = tmp_path / "out"
    made = call("synthesize", *machine, "-c", "allgather", "--target", "rccl", "-o", str(out))
    (band,) = (plan["simulated"] for plan in made["plans"].values())
    file, forest = str(out / "mine.allgather.msccl.xml"), str(out / "mine.allgather.forest.json")
    (entry,) = call("verify", file, *machine)
    assert entry["simulated"] == band
    assert timed(file, GB, *machine) == times(band)
    told = times(call("run", file, "--size", str(SMALL), *machine)["simulated"])
    assert told == timed(file, str(SMALL), *machine)
    capsys.readouterr()
    for command in ("verify", "time", "run"):
        assert cli.main([command, file, *(["--size", "64K"] if command == "run" else [])]) == 0
        assert NO_LATENCIES in capsys.readouterr().err
    bare = timed(file, GB)
    assert max(bare) < max(times(band))
    assert timed(file, GB, "--latency", "0") == bare
    (alone,) = call("verify", forest, *machine)
    assert timed(forest, GB, *machine) == times(alone["simulated"])
    (entry,) = call("verify", forest)
    assert times(entry["simulated"]) == timed(forest, GB)
    assert NO_LATENCIES in capsys.readouterr().err


def test_a_forest_of_other_links_leads_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("synthesize", "-t", "ring", "-c", "allgather", "--target", "rccl", "-o", str(tmp_path))
    file = str(tmp_path / "ring-8.allgather.msccl.xml")
    for command in ("verify", "time"):
        assert cli.main([command, file, "-t", "star"]) == 0
        said = capsys.readouterr().err
        assert "ring-8.allgather.forest.json: its links are not those of star-8" in said
    alone = tmp_path / "other" / "ring-8.allgather.msccl.xml"
    alone.parent.mkdir()
    alone.write_bytes(Path(file).read_bytes())
    assert timed(file, GB, "-t", "star") == timed(str(alone), GB, "-t", "star")
