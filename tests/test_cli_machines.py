"""`forestcoll topology import` and `compose` from outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_compose import DUMP, FABRIC

from forestcoll.topology import load_topology
from forestcoll.ui import cli


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("node.xml").write_text(DUMP)
    Path("fabric.out").write_text(FABRIC)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(list(words))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_import_writes_a_topology(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "topology", "import", "node.xml", "-o", "my.yaml")
    assert (code, out) == (0, "my.yaml: node: 2 GPUs, 1 switch, 36 links\n")
    assert "note: NVLink counts 20.6 GB/s per link" in err
    assert "note: 2 network ports are left aside" in err
    text = Path("my.yaml").read_text()
    assert text.startswith("# written by: forestcoll topology import node.xml\n# NVLink counts")
    assert load_topology("my.yaml").gpus == ("gpu0", "gpu1")
    code, _, err = run(capsys, "topology", "import", "node.xml", "-o", "my.yaml")
    assert code == 1
    assert "my.yaml: exists already" in err
    code, out, _ = run(capsys, "topology", "import", "node.xml")
    assert (code, out) == (0, text)


def test_compose_and_plan(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "topology",
        "compose",
        "node.xml",
        "--fabric",
        "rail",
        "--boxes",
        "2",
        "-o",
        "2.yaml",
    )
    assert run(capsys, *words)[0] == 0
    code, out, _ = run(capsys, "optimum", "-t", "2.yaml", "-c", "allgather")
    assert code == 0
    assert "allgather on node-2-rail, 4 ranks" in out
    code, direct, err = run(
        capsys, "optimum", "-t", "node.xml", "--set", "boxes=2", "--set", "fabric=rail",
        "-c", "allgather",
    )  # fmt: skip
    assert direct.splitlines()[:4] == out.splitlines()[:4]
    assert "forestcoll: note: 2 boxes of node, 2 ports each" in err
    code, out, err = run(capsys, "topology", "show", "node.xml")
    assert "NVLink counts" in out
    assert err == ""  # the notes are in the table


def test_compose_on_a_fabric(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("topology", "compose", "node.xml", "--fabric", "fabric.out")
    code, out, err = run(capsys, *words, "--hosts", "n*", "-o", "c.yaml")
    assert (code, out) == (0, "c.yaml: fabric-node: 4 GPUs, 3 switches, 76 links\n")
    assert "2 hosts of node, 4 ports in use" in err
    code, _, err = run(capsys, *words, "--hosts", "m*")
    assert code == 1
    assert "fabric.out: hosts: 'm*' matches nothing" in err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("compose", "node.xml"), 2, "--fabric single takes --boxes: how many machines"),
        (("compose", "node.xml", "--boxes", "2", "--hosts", "a"), 2, "--hosts is for a fabric's f"),
        (
            ("import", "node.xml", "--machine", "x", "--set", "machine=y"),
            2,
            "are the same: give",
        ),
        (("import", "node.xml", "--from", "ncl-xml"), 2, "did you mean 'nccl-xml'"),
        (("import", "nothing.xml"), 1, "nothing.xml: cannot be read: No such file"),
        (("import", "fabric.out", "--from", "nccl-xml"), 1, "fabric.out:1: not XML: "),
        (("import", "node.xml", "--machine", "mi250"), 1, "2 GPUs, but machine 'mi250' has 16"),
        (("compose", "nothing", "--boxes", "2"), 1, "no machine of the catalogue is called 'nothi"),
    ],
)
def test_wrong_words(
    files: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    found, out, err = run(capsys, "topology", *words, "-o", "out.yaml")
    assert (found, out) == (code, "")
    assert message in err
    assert not Path("out.yaml").exists()
