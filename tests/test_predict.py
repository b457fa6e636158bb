"""A plan's simulated figures: the same in every command, whoever knows the links' latencies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from artefacts import Artefacts
from command_line import Run, as_json, fine

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


def times(band: dict[str, Any]) -> tuple[float, float]:
    """Microseconds over links in order, and over links that share."""
    return band["in_order"]["time_us"], band["fair"]["time_us"]


def timed(file: str, size: str, *words: str) -> tuple[float, float]:
    """The same as the command `time` has them."""
    rules = as_json("time", file, "--size", size, *words)["timings"]
    found = {each["rule"]: each["time_us"] for each in rules}
    return found["fifo"], found["fair"]


@pytest.mark.parametrize("words", ["ring allreduce", "star alltoall"])
def test_a_set_says_the_same(words: str, call: Run) -> None:
    """The table of a set that is made, and of one that is verified."""
    name, collective = words.split()
    machine = ("-t", name, "--set", "gpus=4")
    asked = ("synthesize", *machine, "-c", collective, "--sizes", "1K:1G")
    text = fine(call(*asked, "-o", "set"))
    table = text[text.index("plans  ") : text.index("wall time")].strip()
    assert table.count("msccl") > 3
    made = as_json(*asked, "-o", "again")
    plans = [plan for r in made["index"]["runtimes"] for plan in r["plans"]]
    sizes = [(plan["min_bytes"], min(plan["max_bytes"], 1 << 26)) for plan in plans]
    assert [(e["from"]["size"], e["to"]["size"]) for e in made["simulated"]] == sizes
    for topology in ((), machine):
        assert table in fine(call("verify", "set", *topology))
        (entry,) = as_json("verify", "set", *topology)
        assert entry["simulated"] == made["simulated"]


def test_a_machine_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its latencies are in no file of the plan: whoever is told them says the same."""
    known = tmp_path / "mine.yaml"
    known.write_text(MINE)
    machine = ("-t", str(known))
    out = tmp_path / "out"
    made = as_json("synthesize", *machine, "-c", "allgather", "--target", "rccl", "-o", str(out))
    (band,) = (plan["simulated"] for plan in made["plans"].values())
    file, forest = str(out / "mine.allgather.msccl.xml"), str(out / "mine.allgather.forest.json")
    (entry,) = as_json("verify", file, *machine)
    assert entry["simulated"] == band
    assert timed(file, GB, *machine) == times(band)
    told = times(as_json("run", file, "--size", str(SMALL), *machine)["simulated"])
    assert told == timed(file, str(SMALL), *machine)
    capsys.readouterr()
    for command in ("verify", "time", "run"):
        assert cli.main([command, file, *(["--size", "64K"] if command == "run" else [])]) == 0
        assert NO_LATENCIES in capsys.readouterr().err
    bare = timed(file, GB)
    assert max(bare) < max(times(band))
    assert timed(file, GB, "--latency", "0") == bare
    (alone,) = as_json("verify", forest, *machine)
    assert timed(forest, GB, *machine) == times(alone["simulated"])
    (entry,) = as_json("verify", forest)
    assert times(entry["simulated"]) == timed(forest, GB)
    assert NO_LATENCIES in capsys.readouterr().err


def test_a_forest_of_other_links_leads_nowhere(compiled: Artefacts) -> None:
    """As if there were none beside the plan (commands/time.txt: what is said)."""
    beside, alone = (
        compiled("ring", "allgather", "--target", "rccl", *more).file(".msccl.xml")
        for more in ((), ("--format", "msccl-xml"))
    )
    assert timed(str(beside), GB, "-t", "star") == timed(str(alone), GB, "-t", "star")
