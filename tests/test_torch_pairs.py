"""`forestcoll measure`: pairs of ranks timed over gloo."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch_ranks import run_ranks  # noqa: E402

from forestcoll.execute.torch.pairs import choose_pairs, measure_pairs  # noqa: E402
from forestcoll.topology.calibrate import loads_measured  # noqa: E402
from forestcoll.ui import cli  # noqa: E402


def measure_all(rank: int) -> Any:
    found = measure_pairs(choose_pairs(3, "all"), 1000, 2)
    return found.rates, found.latencies


def test_every_rank_gets_every_pair() -> None:
    results = run_ranks(3, measure_all)
    assert results[0] == results[1] == results[2]
    rates, latencies = results[0]
    assert set(rates) == set(latencies) == {(i, j) for i in range(3) for j in range(3) if i != j}
    assert all(rate > 0 for rate in [*rates.values(), *latencies.values()])


def test_pairs() -> None:
    assert choose_pairs(3, "ring") == [(0, 1), (1, 2), (2, 0)]
    assert choose_pairs(1, "ring") == choose_pairs(1, "all") == []
    assert len(choose_pairs(4, "all")) == 12


def launch(n: int, *arguments: str) -> list[tuple[str, str, int]]:
    """As torchrun would start it; what each process came to."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(n):
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "MASTER_PORT": port}
        env = {**os.environ, **{k: str(v) for k, v in places.items()}, "MASTER_ADDR": "127.0.0.1"}
        command = [sys.executable, "-m", "forestcoll", "measure", *arguments]
        processes.append(subprocess.Popen(command, env=env, text=True, stdout=-1, stderr=-1))
    return [(*p.communicate(timeout=100), p.returncode) for p in processes]


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    first, second = launch(2, "--size", "4K", "--repeat", "2", "-o", str(file))
    assert (first[2], second) == (0, ("", "", 0))
    assert first[0].splitlines()[-1] == f"{file}: 2 ranks, 2 pairs"
    found = loads_measured(file.read_text(), "f")
    assert set(found.rates) == {(0, 1), (1, 0)}
    first, second = launch(2, "--size", "1K", "--repeat", "1", "--pairs", "ring")
    assert json.loads(first[0])["ranks"] == 2
    assert "least" in first[1]


def test_without_torchrun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert cli.main(["measure"]) == 1
    assert "--no-python forestcoll measure" in capsys.readouterr().err
    assert cli.main(["measure", "--size", "0"]) == 2
