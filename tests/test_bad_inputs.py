"""Bad inputs that no row of refusals/ holds: bytes, deep nesting, amounts of memory, processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Outcome, Run
from test_refusals import ROOT, damaged

GOOD = ROOT / "tests" / "fixtures" / "ring-3"
RING = ("synthesize", "-t", "ring", "--set", "gpus=3", "-c", "allreduce", "-o")
DEEP = "[" * 100_000 + "]" * 100_000


def refused(outcome: Outcome, code: int, *words: str) -> None:
    """One error that says what is wrong, the right exit code, and nothing else."""
    got, out, err = outcome
    first, *more = err.splitlines()
    assert first.startswith("forestcoll: error: "), err
    assert all(line.startswith("  ") for line in more), err
    assert (got, out) == (code, ""), err
    assert "Traceback" not in err
    assert len(err) < 1000, err
    for word in words:
        assert word in err, err


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", bytes(range(256)) * 4], ids=["bom", "bytes"])
def test_bytes_are_no_topology_forest_or_plan(data: bytes, call: Run, tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(data)
    for command in (("optimum", "-c", "allgather", "-t"), ("verify",), ("run",)):
        refused(call(*command, "bytes"), 1, "bytes")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deep.yaml", f"format: forestcoll.topology/1\nnodes: {DEEP[95_000:105_000]}\n"),
        ("tabs.yaml", "format:\tx\n\tname: y\n"),
    ],
)
def test_topologies_of_odd_text(name: str, text: str, call: Run, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    refused(call("synthesize", "-t", name, "-c", "allgather", "-o", "out/"), 1, name)
    refused(call("topology", "check", name), 1, name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_nothing_is_overwritten(call: Run, tmp_path: Path) -> None:
    (tmp_path / "ring-3.allreduce.msccl.xml").write_text("old")
    refused(call(*RING, "./"), 1, "exists already", "--force")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        ("msccl.xml", damaged("msccl.xml", r"s|(?s)^(.{2500}).*|\1|")),
        ("msccl.xml", damaged("msccl.xml", r's|.*type="s".*\n||')),
        ("msccl.xml", damaged("msccl.xml", r's|(type="s"[^>]*srcoff=)"\d+"|\1"5000"|')),
        ("mscclpp.json", damaged("mscclpp.json", r"s|(?s)^(.{2500}).*|\1|")),
        ("mscclpp.json", damaged("mscclpp.json", 's|"name": "signal"|"name": "nop"|')),
        ("mscclpp.json", DEEP),
    ],
    ids=["cut-xml", "send-gone", "offset", "cut-json", "signal-gone", "deep"],
)
def test_run_refuses_or_stops(suffix: str, text: str, call: Run, tmp_path: Path) -> None:
    (tmp_path / f"x.{suffix}").write_text(text)
    refused(call("run", f"x.{suffix}", "--size", "64K", "--timeout", "2"), 1)


def test_a_plan_of_deep_json(call: Run, tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text(DEEP)
    code, _, err = call("verify", "deep.json")
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("forestcoll: error: deep.json: ")


def test_run_beyond_memory(call: Run) -> None:
    plan = str(GOOD / "ring-3.allreduce.msccl.xml")
    refused(call("run", plan, "--size", "900T"), 1, "GiB", "choose a smaller size")


def test_verify_goes_on_after_a_bad_file(call: Run) -> None:
    right = str(GOOD / "ring-3.allreduce.msccl.xml")
    code, out, err = call("verify", "nosuch.json", right)
    assert code == 1
    assert f"{right}: ok" in out
    assert err == "forestcoll: error: nosuch.json: cannot be read: No such file or directory\n"


@pytest.mark.parametrize(
    ("line", "code", "word"),
    [
        ("synthesize -t nosuch -c allreduce -o out", 1, "nosuch"),
        ("synthesize -t ring -c allredcue -o out", 2, "allredcue"),
    ],
)
def test_as_a_process(line: str, code: int, word: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "forestcoll", *line.split()]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=60
    )
    refused((done.returncode, done.stdout, done.stderr), code, word)
    assert list(tmp_path.iterdir()) == []
