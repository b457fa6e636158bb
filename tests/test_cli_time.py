"""The command `time`: plans and forests, rules, sizes, what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forestcoll.ui import cli

SCHEDULES = Path(__file__).parents[1] / "schedules" / "mi300x-1"
PLAN = str(SCHEDULES / "allgather.msccl.xml")


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["time", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_plan_with_its_forest(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, PLAN, "--size", "64M", "--links", "1")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert ["algbw", "512", "GB/s"] in rows
    assert ["of", "optimal", "100", "%"] in rows
    assert [row[2:4] for row in rows if row[:2] == ["64", "MiB"]] == [
        ["own,", "fair,"],
        ["own,", "fair,"],
    ]
    assert out.count("own, fair, in order") == 2
    assert "box0/gpu0 -> box0/gpu1 and 55 alike" in out


def test_what_is_equal_stands_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Two sizes, one rule for all links: 56 links alike are one row a size."""
    code, out, _ = call(capsys, PLAN, "--size", "64M", "--size", "1G", "--rule", "in-order")
    assert code == 0
    busiest = out[out.index("busiest") :].splitlines()[1:]
    assert [line.split()[:4] for line in busiest] == [
        ["64", "MiB", "in", "order"],
        ["1", "GiB", "in", "order"],
    ]


def test_json_of_several_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--json", "--rule", "fair", "--size", "1M", "--size", "1G"]
    code, out, err = call(capsys, PLAN, *arguments)
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


def test_latencies_come_from_the_topology(capsys: pytest.CaptureFixture[str]) -> None:
    def time(*arguments: str) -> float:
        code, out, _ = call(capsys, PLAN, "--rule", "fair", "--size", "64K", "--json", *arguments)
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


def test_messages_are_those_of_the_machine_or_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """LL128 takes other messages on RCCL, which no A100 runs; Simple the same."""
    boxes = SCHEDULES.parent / "dgx-a100-2"

    def time(plan: Path, *arguments: str) -> float:
        more = ("--rule", "fifo", "--size", "16M", "--json", *arguments)
        code, out, _ = call(capsys, str(plan), *more)
        assert code == 0
        return float(json.loads(out)["timings"][0]["time_us"])

    flagged, plain = boxes / "broadcast.msccl.xml", boxes / "allgather.msccl.xml"
    assert time(flagged) == time(flagged, "--target", "msccl") != time(flagged, "--target", "rccl")
    assert time(plain) == time(plain, "--target", "rccl")
    code, _, err = call(capsys, str(plain), "--target", "mscclpp")
    assert code == 2
    assert "msccl" in err


def test_a_forest_alone(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(
        capsys, str(SCHEDULES / "allgather.forest.json"), "--json", "--latency", "0"
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["simulated"].endswith("the trees alone")
    assert [t["rule"] for t in found["timings"]] == ["by link", "fair", "fifo"]
    assert all(timing["percent"] == pytest.approx(100) for timing in found["timings"])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--set", "boxes=2"], 2, "--set is for a --topology"),
        (["-t", "dgx-a100", "--set", "boxes=2"], 1, "dgx-a100-2 has 16 GPUs"),
        (["--block-rate", "0"], 1, "block_rate 0.0: GB/s, more than 0"),
        (["--latency", "-1"], 1, "latency -1.0: microseconds"),
        (["--rule", "first"], 2, "'first'"),
        (["--size", "0"], 2, "out of range"),
    ],
)
def test_what_is_wrong(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    found, out, err = call(capsys, PLAN, *arguments)
    assert (found, out) == (code, "")
    assert words in err


def test_a_plan_alone_needs_a_topology(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    alone = tmp_path / "allgather.msccl.xml"
    alone.write_text(Path(PLAN).read_text())
    code, _, err = call(capsys, str(alone))
    assert code == 1
    assert "no forest file beside it" in err
    assert "--topology" in err
    assert call(capsys, str(alone), "-t", "mi300x", "--size", "1M")[0] == 0
    other = (SCHEDULES / "allreduce.forest.json").read_text()
    (tmp_path / "allgather.forest.json").write_text(other)
    code, _, err = call(capsys, str(alone))
    assert code == 1
    assert "a forest for allreduce over 8 ranks, not for the plan's allgather over 8" in err
