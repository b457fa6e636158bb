"""`scripts/bench --peers`: others' programs beside ours, where the user has them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from artefacts import ROOT
from command_line import script

peers = script("peers")


def test_a_folder_that_is_not_given_is_a_row_that_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("FORESTCOLL", "TACOS", "MSCCL_TOOLS", "RCCL", "MSCCLPP"):
        monkeypatch.delenv(f"PEER_{name}", raising=False)
    monkeypatch.setattr(sys, "argv", ["peers.py", "--rccl", str(tmp_path / "none")])
    assert peers.main() == 0
    told = capsys.readouterr().out
    assert "| forestcoll | no folder given |" in told
    assert "| rccl | no folder |" in told
    assert "| mscclpp | no folder given |" in told


def test_a_plan_of_theirs_is_played_beside_ours_and_a_wrong_one_is_a_row_with_its_error(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "tools" / "msccl-algorithms"
    folder.mkdir(parents=True)
    shipped = ROOT / "schedules" / "mi300x-1" / "allreduce.msccl.xml"
    right, wrong = peers.SHIPPED[:2]
    (folder / right.file).write_text(shipped.read_text())
    (folder / wrong.file).write_text("<algo/>")
    rows = list(peers.compared("RCCL", [right, wrong], peers.text_of_file, "64M,1G")(tmp_path))
    assert rows[0][:4] == ["RCCL", right.file, "mi300x-1", "allreduce"]
    assert sum(map(int, rows[0][4:7])) == 4  # two sizes, two rules of links
    assert rows[1][4].startswith("not compared: ")
