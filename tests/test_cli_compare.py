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
