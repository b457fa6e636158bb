"""Files that real machines wrote, where they are at hand: tests that read them skip elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "shared" / "topologies-real"


def real(name: str) -> Path:
    """The path of that file; skips the test where it is absent."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path
