"""The command `time`: plans and forests, rules, sizes, what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Run

SCHEDULES = Path(__file__).parents[1] / "schedules" / "mi300x-1"
PLAN = str(SCHEDULES / "allgather.msccl.xml")


def test_json_of_several_sizes(call: Run) -> None:
    arguments = ["--json", "--rule", "fair", "--size", "1M", "--size", "1G"]
    code, out, err = call("time", PLAN, *arguments)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["algbw"] == "512"
    small, large = found["timings"]
    assert (small["size"], small["rule"]) == (2**20, "fair")
    assert 99 < large["percent"] <= 100
    assert large["algbw"] == pytest.approx(large["size"] / large["time_us"] / 1000)
    assert large["busbw"] == pytest.approx(large["algbw"] * 7 / 8)
    assert len(large["links"]) == 56
    assert {link["bytes"] for link in large["links"]} == {2**30 / 8}


def test_latencies_come_from_the_topology(call: Run) -> None:
    def time(*arguments: str) -> float:
        code, out, _ = call("time", PLAN, "--rule", "fair", "--size", "64K", "--json", *arguments)
        assert code == 0
        return float(json.loads(out)["timings"][0]["time_us"])

    bare = time("--latency", "0")
    assert time("-t", "mi300x", "--latency", "0") == pytest.approx(bare)
    assert time("-t", "mi300x") == time() > bare  # the file's links are the catalogue's
    assert time("--latency", "5") == pytest.approx(bare + 5)
    still = time("--signal", "0")
    assert time("--signal", "2") == pytest.approx(still + 2)
    assert time() == pytest.approx(still + 3.4)  # a hop of Simple
    assert time("--block-rate", "1") > 10 * (bare - 3.4)


def test_messages_are_those_of_the_machine_or_as_asked(call: Run) -> None:
    """LL128 takes other messages on RCCL, which no A100 runs; Simple the same."""
    boxes = SCHEDULES.parent / "dgx-a100-2"

    def time(plan: Path, *arguments: str) -> float:
        more = ("--rule", "fifo", "--size", "16M", "--json", *arguments)
        code, out, _ = call("time", str(plan), *more)
        assert code == 0
        return float(json.loads(out)["timings"][0]["time_us"])

    flagged, plain = boxes / "broadcast.msccl.xml", boxes / "allgather.msccl.xml"
    assert time(flagged) == time(flagged, "--target", "msccl") != time(flagged, "--target", "rccl")
    assert time(plain) == time(plain, "--target", "rccl")


def test_a_forest_alone(call: Run) -> None:
    code, out, err = call(
        "time", str(SCHEDULES / "allgather.forest.json"), "--json", "--latency", "0"
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["simulated"].endswith("the trees alone")
    assert [t["rule"] for t in found["timings"]] == ["by link", "fair", "fifo"]
    assert all(timing["percent"] == pytest.approx(100) for timing in found["timings"])


def test_a_plan_alone_needs_a_topology(call: Run, tmp_path: Path) -> None:
    alone = tmp_path / "allgather.msccl.xml"
    alone.write_text(Path(PLAN).read_text())
    code, _, err = call("time", str(alone))
    assert code == 1
    assert "no forest file beside it" in err
    assert "--topology" in err
    assert call("time", str(alone), "-t", "mi300x", "--size", "1M")[0] == 0
    other = (SCHEDULES / "allreduce.forest.json").read_text()
    (tmp_path / "allgather.forest.json").write_text(other)
    code, _, err = call("time", str(alone))
    assert code == 1
    assert "a forest for allreduce over 8 ranks, not for the plan's allgather over 8" in err
