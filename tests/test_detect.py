"""`topology detect` where so many tools are on the path: the rows of commands/detect/*.txt.

A file is called like the machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Run
from test_commands import COMMANDS, check

from forestcoll.topology import detect


@pytest.mark.parametrize("path", sorted((COMMANDS / "detect").iterdir()), ids=lambda p: p.stem)
def test_detect(path: Path, call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(detect, "ADAPTERS", tmp_path / "infiniband")
    monkeypatch.setattr(detect, "_has_torch", lambda: False)
    monkeypatch.setattr("socket.gethostname", lambda: path.stem)
    if path.stem == "nothing":
        monkeypatch.setattr(detect, "SECONDS", 0.3)
    check(path, call)
    if path.stem == "ports":
        topology = detect.detect({}).topology
        assert topology is not None
        assert [port.bandwidth for port in topology.adapters] == [50]
