"""The command `compare`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from test_comparison import published_ring

from forestcoll.ui.cli import main

SMALL = ["compare", "-t", "ring", "--set", "gpus=4", "-c", "allgather", "--sizes", "64K,1M"]


def test_table_and_plot(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plot.svg"
    again = tmp_path / "again.svg"
    assert main([*SMALL, "--against", "rings", "--against", "bruck", "--plot", str(path)]) == 0
    out = capsys.readouterr().out
    assert "compare     allgather on ring-4, 4 ranks" in out
    assert "bound       400/3 (133.333) GB/s" in out
    assert "best baseline" in out
    assert "bruck     gpu0 and gpu2 have no path over links and switches alone" in out
    assert "links  in order: a link serves one transfer after the other" in out
    assert path.read_text().startswith("<?xml")
    assert main([*SMALL, "--against", "rings", "--against", "bruck", "--plot", str(again)]) == 0
    assert again.read_bytes() == path.read_bytes()
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


def test_broken(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--against", "none", "--without", "gpu0-gpu1"]) == 0
    out = capsys.readouterr().out
    assert "old plan" in out
    assert "compare     allgather on ring-4-without" in out


def test_rows_come_as_they_are_known(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours first, before any baseline is made."""
    from forestcoll.study.comparison import play

    said = []
    add = play._Maker.add_baselines

    def watch(self: play._Maker, names: Sequence[str] | None) -> None:
        said.append(capsys.readouterr().out)
        add(self, names)

    monkeypatch.setattr(play._Maker, "add_baselines", watch)
    assert main([*SMALL, "--against", "rings"]) == 0
    lines = said[0].splitlines()
    assert lines[0] == "compare     allgather on ring-4, 4 ranks"
    head = lines.index("") + 1
    assert lines[head].split() == ["schedule", "size", "fair,", "us", "GB/s", "in", "order,", "us",
                                "GB/s", "plan"]  # fmt: skip
    assert [line.split()[:3] for line in lines[head + 1 :]] == [
        ["forestcoll", "64", "KiB"],
        ["forestcoll", "1", "MiB"],
    ]
    assert capsys.readouterr().out.startswith("rings ")


@pytest.mark.parametrize("more", [[], ["--json"], ["--csv"]])
def test_an_interrupted_comparison_keeps_what_is_known(
    more: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from forestcoll.study.comparison import play

    def stop(self: play._Maker, names: Sequence[str] | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(play._Maker, "add_baselines", stop)
    assert main([*SMALL, "--against", "rings", *more]) == 130
    out, err = capsys.readouterr()
    assert err.splitlines()[-1] == "forestcoll: interrupted"
    if more == ["--json"]:
        found = json.loads(out)
        assert found["partial"] is True
        assert {(row["schedule"], row["size"]) for row in found["rows"]} == {
            ("forestcoll", 1 << 16),
            ("forestcoll", 1 << 20),
        }
    elif more:
        assert "note: partial: what was not played yet is missing" in err
        assert out.count("\nforestcoll,ours,") == 4
    else:
        assert "partial  cut off before all was played: what is missing is left out" in out
        assert re.search(r"^64 KiB +4\.18 us ", out, re.MULTILINE)


def test_quick_says_what_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["compare", "-t", "dgx1-v100", "--sizes", "64M", "--quick"]
    assert main([*asked, "--against", "rings", "--against", "tree"]) == 0
    out = capsys.readouterr().out
    assert "what links allow" in out
    assert "note  quick: of a baseline one plan for each runtime" in out


def test_a_file_stands_in_every_table_with_factor_and_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "mine.xml"
    path.write_text(published_ring(4))
    assert main([*SMALL, "--against", "none", "--with", str(path), "--rule", "fair"]) == 0
    out = capsys.readouterr().out
    _, others = re.split(
        r"^schedule +size +time +algbw +of bound +ours +it takes\n", out, flags=re.M
    )
    first = others.splitlines()[0]
    assert re.search(r"^mine\.xml +64 KiB .* \d\.\d\d x  1 channel: \S+ of 100 GB/s a GPU$", first)
    busiest = out[out.index("busiest link") :]
    assert re.search(r"^mine\.xml +gpu\d -> gpu\d", busiest, re.MULTILINE)


def test_fifo_is_still_taken_for_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for rule in ("fifo", "in-order"):
        assert main([*SMALL, "--against", "none", "--rule", rule]) == 0
        found.append(capsys.readouterr().out)
    assert found[0] == found[1]
    assert "in order, us" in found[0]
    assert "fifo" not in found[0]
