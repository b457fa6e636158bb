"""Files that real machines wrote, where they are at hand: tests that read them skip elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from forestcoll.topology import readers

FOLDER = Path(__file__).parents[2] / "shared" / "topologies-real"


def real(name: str) -> Path:
    """The path of that file; skips the test where it is absent."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


def read_as(
    form: str,
    text: str,
    source: str,
    settings: Mapping[str, str] | None = None,
) -> Any:
    """What the reader of that format makes of a file: a Topology or a Fabric."""
    return readers.read(text, source, settings or {}, readers.find_format(form))
