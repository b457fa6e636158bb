"""NCCL_GRAPH_FILE: rings on rails, and what the library would not survive."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from graphs import machine
from real_files import real

import forestcoll
from forestcoll.common.errors import UnsupportedError
from forestcoll.plans.findings import Findings
from forestcoll.plans.stock import graph
from forestcoll.solver.stock.rails import Rails, choose
from forestcoll.topology import Link, Node, Topology
from forestcoll.topology.edit import edit, parse_scale
from forestcoll.ui.export import Settings
from forestcoll.ui.export.stock import nccl_graph
from forestcoll.ui.view import Subject


def rails_of(machine: Topology, without: Sequence[str] = (), scale: Sequence[str] = ()) -> Rails:
    """Those of the machine with something out; every channel has all GPUs of every box."""
    broken = edit(machine, list(without), [parse_scale(text) for text in scale])
    rails = choose(broken, machine)
    boxes = [tuple(sorted(order)) for order in rails.channels[0].orders]
    assert [rank for box in boxes for rank in box] == list(range(len(broken.gpus)))
    for channel in rails.channels:
        assert [tuple(sorted(order)) for order in channel.orders] == boxes
    for k in range(len(boxes)):
        assert len({channel.devices[k] for channel in rails.channels}) == len(rails.channels)
    return rails


@pytest.mark.parametrize("boxes", [2, 3, 4, 8])
def test_an_adapter_out_leaves_the_common_rails(boxes: int) -> None:
    machine = forestcoll.load_topology("rail", {"boxes": boxes})
    rails = rails_of(machine, ["box1/gpu3-rail3"])
    assert (len(rails.channels), rails.speed, rails.changes) == (7, 50, 0)
    assert [channel.adapters[1] for channel in rails.channels] == [0, 1, 2, 4, 5, 6, 7]
    # the library does not count the adapter that is down: in that box the others move up
    assert [channel.devices[1] for channel in rails.channels] == [0, 1, 2, 3, 4, 5, 6]
    assert [channel.devices[0] for channel in rails.channels] == [0, 1, 2, 4, 5, 6, 7]


def test_the_adapter_of_a_gpu_that_is_out_is_counted() -> None:
    """No channel takes it, but the library lists it: it is up. With its link out too it is not."""
    machine = forestcoll.load_topology("rail", {"boxes": 4})
    rails = rails_of(machine, ["box1/gpu3"])
    assert (len(rails.channels), rails.changes) == (7, 0)
    assert [channel.devices[1] for channel in rails.channels] == [0, 1, 2, 4, 5, 6, 7]
    assert [channel.devices for channel in rails.channels][3] == (4, 4, 4, 4)
    down = rails_of(machine, ["box1/gpu3", "rail5"])
    assert [channel.devices[1] for channel in down.channels] == [0, 1, 2, 4, 5, 6]
    assert [channel.adapters[1] for channel in down.channels] == [0, 1, 2, 4, 6, 7]


def pcie_boxes() -> Topology:
    """Two boxes of four GPUs and two adapters, all at one PCIe switch."""
    names = [f"box{b}/gpu{k}" for b in range(2) for k in range(4)]
    nodes = {name: Node("gpu") for name in names}
    nodes |= {"fabric": Node("switch"), "box0/pcie": Node("switch"), "box1/pcie": Node("switch")}
    links = [Link(name, f"{name[:4]}/pcie", Fraction(24)) for name in names]
    links += [Link(f"box{b}/pcie", "fabric", Fraction(12), count=2) for b in range(2)]
    return Topology("pcie", nodes, tuple(links))


@pytest.mark.parametrize(
    ("machine", "direct", "types"),
    [
        ("dgx-h100", True, ("NVL", "PXN")),
        ("dgx1-v100", True, ("NVL", "PXN")),
        ("mi250", True, ("NVL", "SYS")),
        ("", False, ("SYS", "SYS")),
    ],
)
def test_a_file_says_of_links_only_what_is_so(
    machine: str, direct: bool, types: tuple[str, str]
) -> None:
    """The library takes LL128, which mixes data and flags, where they are said to be good."""
    topology = forestcoll.load_topology(machine, {"boxes": 2}) if machine else pcie_boxes()
    rails = rails_of(topology)
    assert rails.direct == direct
    files = nccl_graph(Subject(topology.name, "topology", topology), Settings())
    texts = [data.decode() for name, data in files.items() if name.endswith(".xml")]
    said = {text for one in texts for text in re.findall('typeintra="(.*)" typeinter="(.*?)"', one)}
    assert said == {types}


def check_files(machine: Topology, without: Sequence[str], adapters: int) -> Rails:
    """What is written for each box is read back: its ranks, and adapters that are there."""
    rails = rails_of(machine, without)
    broken = edit(machine, without, [])
    files = nccl_graph(Subject("m", "topology", broken, whole=machine), Settings())
    assert [*files] == [f"m.{k}.nccl-graph.xml" for k in range(len(rails.boxes))] + [
        "m.nccl-graph.env"
    ]
    for k, data in enumerate([*files.values()][:-1]):
        out, text = Findings(), data.decode()
        orders = [[*channel.orders[k]] for channel in rails.channels]
        assert graph.read(text, "g.xml", out) == {0: orders, 1: orders}
        assert not out.kept
        devices = [int(word, 16) for word in re.findall(r'<net dev="(\w+)"', text)]
        assert devices[::2] == devices[1::2] == [one.devices[k] for one in rails.channels] * 2
        assert max(devices) < adapters - sum(f"box{k}/" in name for name in without)
        assert [int(n) for n in re.findall('nchannels="(.*?)"', text)] == [len(orders)] * 2
    return rails


@pytest.mark.parametrize(
    ("dump", "boxes", "adapters", "step"),
    [
        *(("oracle/H100-topology", boxes, 16, 1 if boxes == 2 else 7) for boxes in range(2, 9)),
        ("aws/p5.48xl-topo", 2, 32, 9),
        ("azure/ndv5-topo", 3, 8, 1),
    ],
)
def test_any_port_of_a_real_machine_may_be_out(
    dump: str, boxes: int, adapters: int, step: int
) -> None:
    parameters = {"boxes": boxes, "fabric": "rail", "spine": 0}
    machine = forestcoll.load_topology(real(f"nccl-xml/{dump}.xml"), parameters)
    ends = [(link.src, link.dst) for link in machine.links if "box1/" in link.src + link.dst]
    ports = [(src, dst) for src, dst in ends if "rail" in src + dst]
    assert len(ports) == adapters
    for src, dst in ports[::step]:
        rails = check_files(machine, [f"{src}<->{dst}"], adapters)
        assert (len(rails.channels), rails.changes) == (adapters - 1, 0)


@pytest.mark.parametrize("network", ["single", "rail"])
def test_adapters_have_the_numbers_of_the_dump(network: str, tmp_path: Path) -> None:
    """A dump whose library lists the adapters the other way round than its GPUs."""
    text = real("nccl-xml/oracle/H100-topology.xml").read_text()
    text = re.sub(r'(<net .*?dev=)"(\d+)"', lambda m: f'{m[1]}"{15 - int(m[2])}"', text)
    gpus = [m.start() for m in re.finditer(r'<gpu dev="(\d+)"', text)]
    near = {
        int(net[1]): sum(place < net.start() for place in gpus) - 1
        for net in re.finditer(r'<net .*?dev="(\d+)"', text)
    }
    assert (near[15], near[14], near[0]) == (0, 0, 7)
    dump = tmp_path / "m.xml"
    dump.write_text(text)
    machine = forestcoll.load_topology(dump, {"boxes": 2, "fabric": network})
    files = nccl_graph(Subject("m", "topology", machine), Settings())
    for name in ("m.0.nccl-graph.xml", "m.1.nccl-graph.xml"):
        channels = re.findall(r'<net dev="(\w+)"/>\s*<gpu dev="(\w+)"', files[name].decode())
        assert {int(net, 16): int(gpu, 16) for net, gpu in channels} == near


def test_one_of_two_ports_on_one_link_is_out_or_both_are_slow() -> None:
    dump = real("nccl-xml/oracle/H100-topology.xml")
    machine = forestcoll.load_topology(dump, {"boxes": 4})
    rails = rails_of(machine, scale=["box1/gpu3<->fabric=1/2"])
    assert (len(rails.channels), float(rails.speed)) == (15, 22.5)
    rails = rails_of(machine, scale=["box1/gpu3<->fabric=0.98"])
    assert (len(rails.channels), float(rails.speed)) == (16, 22.05)


@pytest.mark.parametrize(("factor", "channels", "speed"), [("0.5", 7, 50), ("0.9", 8, 45)])
def test_a_slow_adapter_is_left_out_where_that_is_faster(
    factor: str, channels: int, speed: int
) -> None:
    machine = forestcoll.load_topology("dgx-h100", {"boxes": 4})
    rails = rails_of(machine, scale=[f"box1/gpu3-fabric={factor}"])
    assert (len(rails.channels), rails.speed) == (channels, Fraction(speed))


def test_with_a_spine_other_rails_meet_and_on_rails_alone_they_do_not() -> None:
    out = ["box1/gpu3-{}", "box2/gpu5-{}"]
    spine = machine("dgx-h100 boxes=4")
    rails = rails_of(spine, [name.format("fabric") for name in out])
    assert (len(rails.channels), rails.common, rails.changes) == (7, 6, 2)
    lone = machine("rail boxes=4 spine=0")
    rails = rails_of(lone, ["box1/gpu3-rail3", "box2/gpu5-rail5"])
    assert (len(rails.channels), rails.changes) == (6, 0)


def test_what_has_no_rails_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="one box alone has no rails"):
        rails_of(forestcoll.load_topology("dgx-h100"))
    machine = forestcoll.load_topology("dgx-h100", {"boxes": 2})
    with pytest.raises(UnsupportedError, match="no channel has a working adapter in every box"):
        rails_of(machine, scale=(), without=["box0/gpu*->fabric"])


CHANNEL = graph.Channel(((1, 9), (0, 8)), 3)
GOOD = graph.dumps([CHANNEL, CHANNEL], Fraction(50), "NVL", "PXN")


def rules_of(text: str) -> list[str]:
    out = Findings()
    graph.read(text, "g.xml", out)
    return [finding.rule.removeprefix("GRAPH-") for finding in out.kept]


def test_a_graph_without_channels_is_none() -> None:
    bare = re.sub(
        "<channel>.*?</channel>", "", GOOD.replace('nchannels="2"', 'nchannels="0"'), flags=re.S
    )
    assert rules_of(bare) == ["CHANNELS", "GPUS"]


def test_what_is_written_is_read_back() -> None:
    out = Findings()
    assert graph.read(GOOD, "g.xml", out) == {0: [[9, 8], [9, 8]], 1: [[9, 8], [9, 8]]}
    assert not out.kept
    plain = GOOD.replace(' rank="9"', "").replace(' rank="8"', "")
    assert graph.read(plain, "g.xml", out)[0] == [[1, 0], [1, 0]]


@pytest.mark.parametrize(
    ("old", "new", "rules"),
    [
        ("</graphs>", "", ["SYNTAX"]),
        ('version="1"', 'version="2"', ["VERSION"]),
        ("graphs", "system", ["VERSION"]),
        ('nchannels="2" ', "", ["MISSING", "CHANNELS"]),
        (' crossnic="0"', "", ["MISSING"]),
        ('nchannels="2"', 'nchannels="3"', ["CHANNELS"]),
        ('nchannels="2"', 'nchannels="x"', ["NUMBER", "CHANNELS"]),
        ("<gpu ", "<gap ", ["ELEMENT", "GPUS"]),
        ('dev="0x1" rank="9"', 'dev="0x1" rank="8"', ["TWICE"]),
        ('dev="0x1" rank="9"', 'dev="0x1" rank="77"', ["GPUS", "GPUS"]),
        ('<gpu dev="0x1" rank="9"/>', "", ["GPUS"]),
        ('<net dev="0x3"/>', "", ["NET"]),
        ('<gpu dev="0x1" rank="9"/>', '<gpu rank="9"/>', ["MISSING"]),
        ('<net dev="0x3"/>', '<net dev="eth"/>', ["NUMBER"]),
        ('typeinter="PXN"', 'typeinter="WAN"', ["TYPE"]),
        ('id="1"', 'id="7"', ["ID"]),
        ('id="1"', 'id="0"', ["ID"]),
        ('id="0"', 'id="2"', ["RINGS"]),
        ("<channel>", "<channel><nic/>", ["ELEMENT", "NET"]),
    ],
)
def test_what_the_library_would_not_survive(old: str, new: str, rules: list[str]) -> None:
    count = {"graphs": -1, "<gpu ": 4}.get(old, 1)
    assert sorted(rules_of(GOOD.replace(old, new, count))) == sorted(rules)
