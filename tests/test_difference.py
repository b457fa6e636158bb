"""What differs between two topologies, and how it is told."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from forestcoll.topology import Node, catalog, dumps_topology
from forestcoll.topology.difference import Change, compare, group
from forestcoll.topology.edit import Scale, edit
from forestcoll.ui import cli


def test_equal_topologies() -> None:
    one = catalog.load("dgx-a100", {"boxes": "2"})
    assert compare(one, replace(one, name="other")) == []


def test_slower_links_are_told_by_class() -> None:
    one, two = (catalog.load("dgx-a100", {"boxes": "2", "network": n}) for n in ("25", "12.5"))
    changes = compare(one, two)
    assert len(changes) == 16
    assert changes[0] == Change("bandwidth", "box0/gpu0 - fabric", "25 GB/s", "12.5 GB/s")
    (found,) = group(changes)
    assert (found.pattern, len(found.names)) == ("box*/gpu* - fabric", 16)


def test_the_only_box_has_no_name_in_a_dump() -> None:
    one, dump = catalog.load("dgx-a100"), catalog.machine("dgx-a100")
    assert compare(one, dump) == compare(dump, one) == []
    assert compare(catalog.load("dgx-a100", {"boxes": "2"}), dump)


def test_one_direction_alone() -> None:
    one = catalog.load("dgx-a100")
    two = edit(one, scale=[Scale("box0/gpu3->box0/nvswitch", Fraction(1, 2))])
    assert compare(one, two) == [
        Change("bandwidth", "box0/gpu3 -> box0/nvswitch", "300 GB/s", "150 GB/s")
    ]


def test_nodes_and_links_that_are_gone() -> None:
    one = catalog.load("dgx-a100", {"boxes": "2"})
    two = edit(one, without=["box1/gpu7"])
    assert compare(one, two) == [
        Change("node", "box1/gpu7", "gpu", ""),
        Change("link", "box1/gpu7 - box1/nvswitch", "300 GB/s", ""),
        Change("link", "box1/gpu7 - fabric", "25 GB/s", ""),
    ]
    assert [c.after for c in compare(two, one)] == ["gpu", "300 GB/s", "25 GB/s"]


def test_kinds_latencies_and_rank_order() -> None:
    one = catalog.load("dgx-a100")
    nodes = {**one.nodes, "box0/nvswitch": Node("switch", multicast=True)}
    assert compare(one, replace(one, nodes=nodes)) == [
        Change("kind", "box0/nvswitch", "switch", "switch multicast")
    ]
    slow = replace(one, links=(replace(one.links[0], latency=Fraction(2)), *one.links[1:]))
    (late,) = compare(one, slow)
    assert (late.kind, late.after) == ("latency", "2 us")
    turned = replace(one, nodes=dict(reversed(one.nodes.items())))
    assert compare(one, turned) == [Change("order", "rank 0", "box0/gpu0", "box0/gpu7")]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(dumps_topology(catalog.load("dgx-a100", {"boxes": "2", "network": "20"})))
    words = ["topology", "diff", "dgx-a100", str(mine), "--set-a", "boxes=2"]
    assert cli.main(words) == 1
    said = capsys.readouterr().out
    assert "differs" in said
    assert "box*/gpu* - fabric" in said
    assert "25 GB/s" in said
    assert "20 GB/s" in said
    assert cli.main([*words, "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert found["class"] == "box*/gpu* - fabric"
    assert len(found["names"]) == 16
    assert cli.main([*words, "--set-a", "network=20"]) == 0
    assert "are equal: 16 GPUs" in capsys.readouterr().out
    assert cli.main(["topology", "diff", "dgx-a100", str(tmp_path / "no.xml")]) == 1
    assert "no such file" in capsys.readouterr().err
