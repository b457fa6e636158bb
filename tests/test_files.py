"""Where output goes, and that files appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forestcoll.cli import files
from forestcoll.errors import ForestCollError, OutputError
from forestcoll.input_limits import Limit

ALL = ("forest", "msccl-xml", "mscclpp-json")


def test_dash_is_standard_output() -> None:
    assert files.destination("-", ["forest"], ALL).stdout
    with pytest.raises(ValueError, match="standard output takes one format"):
        files.destination("-", [], ALL)
    with pytest.raises(ValueError, match="one format"):
        files.destination("-", ["forest", "msccl-xml"], ALL)


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


@pytest.mark.parametrize(
    ("output", "asked", "told"),
    [
        ("a.forest.json", [], "forest"),
        ("a.msccl.xml", [], "msccl-xml"),
        ("a.xml", [], "msccl-xml"),
        ("a.mscclpp.json", [], "mscclpp-json"),
        ("a.json", ["forest"], "forest"),
        ("a.json", ["mscclpp-json"], "mscclpp-json"),
        ("plan.txt", ["msccl-xml"], "msccl-xml"),
        ("a.forest.json", ["forest", "forest"], "forest"),
    ],
)
def test_files_tell_their_format(output: str, asked: list[str], told: str) -> None:
    assert files.destination(output, asked, ALL).paths("ignored") == {told: Path(output)}


@pytest.mark.parametrize(
    ("output", "asked", "message"),
    [
        ("a.json", [], "does not say which format"),
        ("a.json", ["forest", "mscclpp-json"], "does not say which format"),
        ("a.xml", ["forest", "msccl-xml"], "is one file, but 2 formats"),
        ("a.msccl.xml", ["forest"], "is the name of a msccl-xml file, but --format says forest"),
        ("", [], "empty"),
    ],
)
def test_contradictions(output: str, asked: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        files.destination(output, asked, ALL)


def test_write_all_writes_whole_files_and_makes_directories(tmp_path: Path) -> None:
    a, b = tmp_path / "new" / "deep" / "a", tmp_path / "new" / "b"
    files.write_all({a: "alpha\n", b: "beta\n"}, force=False)
    assert a.read_text() == "alpha\n"
    assert b.read_text() == "beta\n"
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a", "b", "deep", "new"]


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    b.write_text("old")
    with pytest.raises(OutputError, match="b: exists already; --force overwrites it"):
        files.write_all({a: "new", b: "new"}, force=False)
    assert not a.exists()
    assert b.read_text() == "old"
    files.write_all({a: "new", b: "new"}, force=True)
    assert b.read_text() == "new"


def test_a_dangling_link_is_taken(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(OutputError, match="exists already"):
        files.check_free([link], force=False)


def test_what_can_never_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="is a directory"):
        files.check_free([tmp_path], force=True)
    with pytest.raises(OutputError, match="is not a directory"):
        files.check_free([tmp_path / "file" / "x"], force=True)
    with pytest.raises(OutputError, match="not a regular file"):
        files.check_free([Path("/dev/null")], force=True)


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.replace

    def full(self: Path, target: Path) -> Path:
        if self.name.startswith(".c"):
            raise OSError(28, "No space left on device")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", full)
    out = tmp_path / "out"
    with pytest.raises(OutputError, match=r"cannot write .*: No space left on device"):
        files.write_all({out / "b": "1", out / "c": "2"}, force=False)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write_all({tmp_path / "x" / "a": "1"}, force=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="Permission denied"):
        files.write_all({tmp_path / "a": "1"}, force=False)


def test_read_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, binary = tmp_path / "good", tmp_path / "binary"
    good.write_text("häuser")
    binary.write_bytes(b"ab\xff")
    assert files.read_text(str(good)) == "häuser"
    with pytest.raises(ForestCollError, match=r"binary: not text \(byte 2 is not UTF-8\)"):
        files.read_text(str(binary))
    with pytest.raises(ForestCollError, match="No such file or directory"):
        files.read_text(str(tmp_path / "none"))
    with pytest.raises(ForestCollError, match="Is a directory"):
        files.read_text(str(tmp_path))
    monkeypatch.setattr(files, "FILE_BYTES", Limit(1 << 20, "FILE_BYTES"))
    with pytest.raises(
        ForestCollError, match=r"more than 1 MiB \(input limit FILE_BYTES: 1,048,576\)"
    ):
        files.read_text("/dev/zero")
