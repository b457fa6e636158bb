"""The command `compare`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forestcoll.cli import main

SMALL = ["compare", "-t", "ring", "--set", "gpus=4", "-c", "allgather", "--sizes", "64K,1M"]


def test_table_and_plot(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plot.svg"
    again = tmp_path / "again.svg"
    assert main([*SMALL, "--against", "rings", "--against", "bruck", "--plot", str(path)]) == 0
    out = capsys.readouterr().out
    assert "compare  allgather on ring-4, 4 ranks" in out
    assert "bound    400/3 (133.333) GB/s" in out
    assert "best baseline" in out
    assert "bruck     gpu0 and gpu2 have no path over links and switches alone" in out
    assert "links  fifo: a link serves one transfer after the other" in out
    assert path.read_text().startswith("<?xml")
    assert main([*SMALL, "--against", "rings", "--against", "bruck", "--plot", str(again)]) == 0
    assert "2 ranks" not in out
    capsys.readouterr()
    assert main([*SMALL, "--against", "none", "--plot", str(path)]) == 1
    assert "exists already; --force overwrites it" in capsys.readouterr().err


def test_json_and_csv(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--against", "rings", "--rule", "fair", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bound"] == "400/3"
    assert {row["schedule"] for row in found["rows"]} == {"forestcoll", "rings"}
    assert main([*SMALL, "--against", "rings", "--rule", "fair", "--csv"]) == 0
    assert capsys.readouterr().out.startswith("schedule,kind,links,size,time_us,")


@pytest.mark.parametrize(
    ("more", "code", "text"),
    [
        (["--against", "none", "--against", "ring"], 2, "--against none goes alone"),
        (["--on", "ring", "--without", "gpu0-gpu1"], 2, "leave --without and --scale away"),
        (["--json", "--csv"], 2, "--csv or --json, not both"),
        (["--plot", "x.pdf"], 1, "x.pdf: a plot is a file of .svg or .png"),
        (["--sizes", "many"], 1, "'many' is no size such as 64K, 1M or 4G"),
        (["--against", "rigns"], 2, "rigns"),
        (["--with", "/no/such.xml", "--against", "none"], 1, "No such file"),
    ],
)
def test_usage(more: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, *more]) == code
    assert text in capsys.readouterr().err


def test_broken(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--against", "none", "--without", "gpu0-gpu1"]) == 0
    out = capsys.readouterr().out
    assert "old plan" in out
    assert "compare  allgather on ring-4-without" in out
