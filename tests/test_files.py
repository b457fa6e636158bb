"""Where output goes, and what is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from forestcoll.common.errors import ForestCollError
from forestcoll.common.input_limits import Limit
from forestcoll.ui.cli import files

ALL = ("forest", "msccl-xml", "mscclpp-json")


@pytest.mark.parametrize("output", ["out/", "out", "a/b/c", "deep.d/out"])
def test_directories(output: str) -> None:
    where = files.destination(output, [], ALL)
    assert where.paths("t.allgather") == {
        "forest": Path(output) / "t.allgather.forest.json",
        "msccl-xml": Path(output) / "t.allgather.msccl.xml",
        "mscclpp-json": Path(output) / "t.allgather.mscclpp.json",
    }


def test_an_existing_directory_is_one_whatever_its_name(tmp_path: Path) -> None:
    odd = tmp_path / "x.xml"
    odd.mkdir()
    assert files.destination(str(odd), [], ALL).directory == odd


TOLD = """
a.forest.json -> forest
a.msccl.xml -> msccl-xml
a.xml -> msccl-xml
a.mscclpp.json -> mscclpp-json
a.json forest -> forest
a.json mscclpp-json -> mscclpp-json
plan.txt msccl-xml -> msccl-xml
a.forest.json forest forest -> forest
"""
"""A file and the formats that are asked for; its format, or what is wrong."""


@pytest.mark.parametrize("row", TOLD.strip().splitlines())
def test_files_tell_their_format(row: str) -> None:
    stated, _, told = row.partition(" -> ")
    output, *asked = stated.split()
    assert files.destination(output, asked, ALL).paths("ignored") == {told: Path(output)}


def test_read_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, binary = tmp_path / "good", tmp_path / "binary"
    good.write_text("häuser")
    binary.write_bytes(b"ab\xff")
    assert files.read_text(str(good)) == "häuser"
    with pytest.raises(ForestCollError, match=r"binary:1: not text in UTF-8 \(byte 2\)"):
        files.read_text(str(binary))
    with pytest.raises(ForestCollError, match="No such file or directory"):
        files.read_text(str(tmp_path / "none"))
    with pytest.raises(ForestCollError, match="Is a directory"):
        files.read_text(str(tmp_path))
    monkeypatch.setattr(files, "FILE_BYTES", Limit(1 << 20, "FILE_BYTES"))
    with pytest.raises(
        ForestCollError, match=r"larger than 1 MiB \(input limit FILE_BYTES: 1,048,576\)"
    ):
        files.read_text("/dev/zero")
