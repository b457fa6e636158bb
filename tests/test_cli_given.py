"""Machines given the same way everywhere, reports without files, and what is said of failures."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from forestcoll.ui.cli import main


def test_a_folder_that_is_only_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named is the folder that was asked for, not what is made in it on the way."""
    make = os.mkdir

    def refuse(path: str | Path, mode: int = 0o777) -> None:
        if Path(path).parent == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        make(path, mode)

    monkeypatch.setattr(os, "mkdir", refuse)
    assert main(["view", "ring", "-o", str(tmp_path / "page.html")]) == 1
    said = f"forestcoll: error: cannot write {tmp_path}: Permission denied\n"
    assert capsys.readouterr().err == said


def test_errors_of_verify_stand_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal in the list; where that goes into a file, on standard error as well."""
    monkeypatch.setenv("COLUMNS", "1000")  # a terminal wraps longer lines
    path = tmp_path / "plan.xml"
    path.write_text('<algo name="x" proto="Simple" nchannels="1" nchunksperloop="1" ngpus="2"/>')
    assert main(["verify", str(path)]) == 1
    out, err = capsys.readouterr()
    assert "error XML-" in out
    assert "error: " in err
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(["verify", str(path)]) == 1
    again, err = capsys.readouterr()
    assert again == out
    assert err == ""


def test_stages_say_what_and_how_far() -> None:
    from forestcoll.compile import plan_set
    from forestcoll.topology.catalog import load
    from forestcoll.ui.report.progress import StageProgress

    told: list[str] = []
    topology = load("ring", {"gpus": "4"})
    plan_set.make(topology, "allgather", 1 << 16, 1 << 20, progress=lambda s, _: told.append(s))
    assert "lower, msccl-xml, candidate 1 of 9 at most" in told
    assert any(text.startswith("write, mscclpp-json") for text in told)
    progress = StageProgress()
    progress("lower, msccl-xml, candidate 1 of 2", 0.0)
    assert progress._words() == "spreading plans over thread blocks, msccl-xml, candidate 1 of 2"


def test_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    from forestcoll.ui.report.progress import StageProgress

    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = StageProgress()
    progress("ring, size 1 of 4", 0.0)
    now[0] = 110.0
    progress("ring, size 2 of 4", 0.25)
    assert progress._words() == "ring, size 2 of 4 25%, about 30 s left"
    progress("verifying", 0.0)
    assert progress._words() == "verifying"
