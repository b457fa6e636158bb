"""`forestcoll measure`: pairs of ranks timed over gloo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch_ranks import Late, launch, needs_gloo, run_ranks

from forestcoll.topology.calibrate import load_measurement
from forestcoll.ui import cli

pytestmark = needs_gloo
pairs = Late("forestcoll.execute.torch.pairs")


def measure_all(rank: int) -> Any:
    found = pairs.measure_pairs(pairs.choose_pairs(3, "all"), 1000, 2)
    return found.rates, found.latencies


def test_every_rank_gets_every_pair() -> None:
    results = run_ranks(3, measure_all)
    assert results[0] == results[1] == results[2]
    rates, latencies = results[0]
    assert set(rates) == set(latencies) == {(i, j) for i in range(3) for j in range(3) if i != j}
    assert all(rate > 0 for rate in [*rates.values(), *latencies.values()])


def test_pairs() -> None:
    assert pairs.choose_pairs(3, "ring") == [(0, 1), (1, 2), (2, 0)]
    assert pairs.choose_pairs(1, "ring") == pairs.choose_pairs(1, "all") == []
    assert len(pairs.choose_pairs(4, "all")) == 12


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    first, second = launch(2, "measure", "--size", "4K", "--repeat", "2", "-o", str(file))
    assert (first[2], second) == (0, ("", "", 0))
    assert first[0].splitlines()[-1] == f"{file}: 2 ranks, 2 pairs"
    found = load_measurement(file.read_text(), "f")
    assert set(found.rates) == {(0, 1), (1, 0)}
    first, second = launch(2, "measure", "--size", "1K", "--repeat", "1", "--pairs", "ring")
    assert json.loads(first[0])["ranks"] == 2
    assert "least" in first[1]


def test_without_torchrun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert cli.main(["measure"]) == 1
    assert "--no-python forestcoll measure" in capsys.readouterr().err
    assert cli.main(["measure", "--size", "0"]) == 2
