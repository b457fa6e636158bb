"""`forestcoll topology import` and `compose` from outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Run
from test_compose import DUMP, FABRIC

from forestcoll.topology import load_topology


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    (tmp_path / "node.xml").write_text(DUMP)
    (tmp_path / "fabric.out").write_text(FABRIC)


def test_import_writes_a_topology(call: Run) -> None:
    code, out, err = call("topology", "import", "node.xml", "-o", "my.yaml")
    assert (code, out) == (0, "my.yaml: node: 2 GPUs, 1 switch, 36 links\n")
    assert "note: NVLink counts 20.6 GB/s per link" in err
    assert "note: 2 network ports are left aside" in err
    text = Path("my.yaml").read_text()
    assert text.startswith("# written by: forestcoll topology import node.xml\n# NVLink counts")
    assert load_topology("my.yaml").gpus == ("gpu0", "gpu1")
    code, _, err = call("topology", "import", "node.xml", "-o", "my.yaml")
    assert code == 1
    assert "my.yaml: exists already" in err
    code, out, _ = call("topology", "import", "node.xml")
    assert (code, out) == (0, text)


def test_compose_and_plan(call: Run) -> None:
    words = "topology compose node.xml --fabric rail --boxes 2 -o 2.yaml"
    assert call(*words.split())[0] == 0
    code, out, _ = call("optimum", "-t", "2.yaml", "-c", "allgather")
    assert code == 0
    assert "allgather on node-2-rail, 4 ranks" in out
    direct_words = "optimum -t node.xml --set boxes=2 --set fabric=rail -c allgather"
    code, direct, err = call(*direct_words.split())
    assert direct.splitlines()[:4] == out.splitlines()[:4]
    assert "forestcoll: note: 2 boxes of node, 2 ports each" in err
    code, out, err = call("topology", "show", "node.xml")
    assert "NVLink counts" in out
    assert err == ""  # the notes are in the table


def test_compose_on_a_fabric(call: Run) -> None:
    words = ("topology", "compose", "node.xml", "--fabric", "fabric.out")
    code, out, err = call(*words, "--hosts", "n*", "-o", "c.yaml")
    assert (code, out) == (0, "c.yaml: fabric-node: 4 GPUs, 3 switches, 76 links\n")
    assert "2 hosts of node, 4 ports in use" in err
    code, _, err = call(*words, "--hosts", "m*")
    assert code == 1
    assert "fabric.out: hosts: 'm*' matches nothing" in err
