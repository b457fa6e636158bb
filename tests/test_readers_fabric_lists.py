"""Lists of cables: CSV of any kind, SONiC's, NetQ's graph, and models that are no list at all."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from real_files import read_as, real

from forestcoll.common.errors import TopologyError
from forestcoll.topology import Link, Topology, catalog, check_connected, readers
from forestcoll.topology.readers.fabric import Fabric, Port

SONIC = "fabric/sonic_lab_links.csv"
NETQ = "fabric/netq-topologyGraph.json"


def fabric(text: str, **settings: str) -> Fabric:
    found = read_as("csv", text, "links.csv", settings)
    assert isinstance(found, Fabric)
    return found


def test_sonics_lab() -> None:
    path = real(SONIC)
    with pytest.raises(
        TopologyError, match=r"which devices are hosts is not in the list \(str-msn"
    ):
        catalog.load(path)
    with pytest.raises(TopologyError, match=r"1 host \(str-acs-serv-01\) in it"):
        catalog.load(path, {"devices": str(real("fabric/sonic_lab_devices.csv"))})
    topology = catalog.load(path, {"hosts": "vnut-tg-01,vnut-l2snk-tg,str-msn2700-01,str-acs-*"})
    assert topology.gpus == ("str-msn2700-01", "str-acs-serv-01", "vnut-tg-01", "vnut-l2snk-tg")
    rates = {link.bandwidth for link in topology.links}
    assert rates == {Fraction(5), Fraction(5, 4)}  # 40000 and 10000 Mb/s
    down = topology.directed()["str-msn2700-01", "str-7260-10"]
    assert down == 32 * 5
    assert any("lead from a device to itself and are left out" in n for n in topology.notes)
    with pytest.raises(TopologyError, match="a list of devices, not of links: give the list of li"):
        catalog.load(real("fabric/sonic_lab_devices.csv"))


def test_netqs_graph() -> None:
    with pytest.raises(
        TopologyError, match=r"has no rates: give what a cable carries, --set rate="
    ):
        catalog.load(real(NETQ))
    topology = catalog.load(real(NETQ), {"rate": "50"})
    assert len(topology.gpus) == 8
    switches = [name for name, node in topology.nodes.items() if node.kind == "switch"]
    assert switches == ["net-unit-l1", "net-unit-l2", "net-unit-s1"]
    assert {link.bandwidth for link in topology.links} == {50}
    check_connected(topology)


def test_a_model_of_racks_is_refused_with_what_to_take_instead() -> None:
    with pytest.raises(TopologyError, match=r"for a job scheduler.*gb200-nvl72 --set boxes=N"):
        catalog.load(real("fabric/nvl72.yaml"))


LLDP = """\
Device,Interface,Neighbor,Neighbor Port,Speed
node1,eth0,leaf1,swp1,400G
leaf1,swp1,node1,eth0,400G
node2,eth0,leaf1,swp2,100Gb/s
node2,eth1,leaf2,swp2,200000
leaf1,swp30,leaf2,swp30,400G
leaf1,swp31,leaf2,swp31,400G
leaf2,swp40,leaf2,swp41,400G
"""


def test_an_lldp_table() -> None:
    found = fabric(LLDP, hosts="node*")
    assert found.switches == ("leaf1", "leaf2")
    assert found.ports() == {
        "node1": [Port("node1", "eth0")],
        "node2": [Port("node2", "eth0"), Port("node2", "eth1")],
    }
    assert Counter(cable.bandwidth for cable in found.cables) == {
        Fraction(50): 3,  # the first cable stands there twice, once from each end
        Fraction(25, 2): 1,
        Fraction(25): 1,
    }
    assert "line 3 of line 2" in found.notes[0]
    assert "1 cables lead from a device to itself" in found.notes[-1]
    check_connected(found.to_topology())


def test_a_list_with_gpus_is_a_topology() -> None:
    text = (
        "# ours\nsrc,dst,bandwidth,count,latency\n"
        "box0/gpu0,box0/nvswitch,450,1,0.35\nbox0/gpu1,box0/nvswitch,450,,\n"
        "box0/gpu0,box0/gpu1,20.6,4,\n"
    )
    topology = read_as("csv", text, "links.csv")
    assert isinstance(topology, Topology)
    assert topology.gpus == ("box0/gpu0", "box0/gpu1")
    assert topology.links[0] == Link("box0/gpu0", "box0/nvswitch", Fraction(450), Fraction("0.35"))
    assert topology.links[2].count == 4


ONCE = """\
src,src_port,dst,dst_port,speed
gpu0,p0,sw0,p0,400000
gpu1,p0,sw0,p1,400000
gpu2,p0,sw1,p0,400000
sw0,u0,sw1,u0,800000
sw0,u1,sw1,u1,800000
"""


def again(text: str) -> str:
    """The rows of `text` from their other ends."""
    rows = [row.split(",") for row in text.splitlines()[1:]]
    return "".join(",".join([*row[2:4], *row[:2], *row[4:]]) + "\n" for row in rows)


def test_a_cable_counts_once_from_whichever_end() -> None:
    once = read_as("csv", ONCE, "links.csv")
    both = read_as("csv", ONCE + again(ONCE), "links.csv")
    twice = read_as("csv", ONCE + "gpu0,p0,sw0,p0,400000\n", "links.csv")
    assert both == twice == once
    assert once.directed()["sw0", "sw1"] == 200  # two ports, two cables
    assert any("5 rows name a cable again" in note and "line 7 of line 2" in note
               for note in both.notes)  # fmt: skip
    assert any("line 7 of line 2" in note for note in twice.notes)
    with pytest.raises(
        TopologyError, match=r"links\.csv:7: gpu0 p0 has a cable already, in line 2; a port has one"
    ):
        read_as("csv", ONCE + "gpu0,p0,sw1,p9,400000\n", "links.csv")
    with pytest.raises(
        TopologyError,
        match=r"links\.csv:7: 25 GB/s for gpu0 - sw0, and 50 GB/s in line 2 for the same cable",
    ):
        read_as("csv", ONCE + "sw0,p0,gpu0,p0,200000\n", "links.csv")


def test_rows_without_ports() -> None:
    head = "src,dst,bandwidth\n"
    rows = "gpu0,sw,50\ngpu1,sw,50\n"
    parallel = read_as("csv", head + rows + rows, "f")
    assert parallel.directed()["gpu0", "sw"] == 100
    assert any("4 rows are like another and name no ports" in note for note in parallel.notes)
    both = read_as("csv", head + rows + "sw,gpu0,50\nsw,gpu1,50\n", "f")
    assert both == read_as("csv", head + rows, "f")
    assert any("every pair of devices in both directions" in note for note in both.notes)
    some = read_as("csv", head + rows + "sw,gpu0,50\n", "f")
    assert some.directed()["gpu0", "sw"] == 100
    assert any("gpu0 - sw" in n and "count as parallel links" in n for n in some.notes)
    with pytest.raises(TopologyError, match=r"f:4: 25 GB/s for gpu0 - sw, and 50 GB/s in line 2"):
        read_as("csv", head + rows + "sw,gpu0,25\nsw,gpu1,50\n", "f")


def test_rates_in_the_unit_of_another_column() -> None:
    def rate(head: str, cell: str) -> Fraction:
        text = f"src,dst,{head}\ngpu0,sw,{cell}\ngpu1,sw,{cell}\n"
        return Fraction(read_as("csv", text, "f").links[0].bandwidth)

    assert rate("speed", "400000") == rate("gbps", "400") == rate("bandwidth", "50") == 50
    assert rate("speed", "400Gb/s") == rate("speed", "50GB/s") == rate("gbps", "0.4T") == 50
    for head, cell, says in (
        ("speed", "400", "400 Mb/s"),
        ("bandwidth", "400000", "400,000 GB/s"),
        ("gbps", "400000", "50,000 GB/s"),
    ):
        with pytest.raises(TopologyError, match=rf"f:2: rate '{cell}' is {says} in this column"):
            rate(head, cell)


def test_a_row_unlike_its_siblings_is_named() -> None:
    found = read_as("csv", ONCE.replace("p1,400000", "p1,200000"), "f")
    assert any("gpu1 - sw0 in line 3 25 GB/s; 2 of 3 have 50 GB/s" in n for n in found.notes)
    assert not [n for n in read_as("csv", ONCE, "f").notes if "alike" in n]


def test_sonics_unit_and_its_list_of_devices(tmp_path: Path) -> None:
    text = "StartDevice,StartPort,EndDevice,EndPort,BandWidth\na,E0,t,E1,40000\nb,E0,t,E2,\n"
    devices = tmp_path / "devices.csv"
    devices.write_text("Hostname,HwSku,Type\na,x,Server\nb,x,server\nt,y,FanoutLeaf\n")
    found = fabric(text, devices=str(devices), rate="1")
    assert found.hosts == ("a", "b")
    assert [cable.bandwidth for cable in found.cables] == [5, 1]
    with pytest.raises(
        TopologyError, match=r"links\.csv:3: no rate; fill the column, or give --set"
    ):
        fabric(text, devices=str(devices))
    devices.write_text("Hostname,Type\nc,Server\n")
    with pytest.raises(TopologyError, match="none of its devices is a server in"):
        fabric(text, devices=str(devices), rate="1")
    devices.write_text("a,b\n")
    with pytest.raises(TopologyError, match="not a list of devices: no columns Hostname and Type"):
        fabric(text, devices=str(devices), rate="1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,c\n1,2,3\n", "links.csv:1: 'a,b,c' names no two devices: the header of a list"),
        ("src,dst,bandwidth\n", "links.csv: a header and no link below it"),
        ("", "links.csv: empty; a list of links starts with src,dst,bandwidth"),
        ("src,dst,bandwidth\na,,1\n", "links.csv:2: no device in column 2"),
        ("src,dst,bandwidth\na,b,0\n", "links.csv:2: rate '0' must be more than 0"),
        ("src,dst,bandwidth\na,b,fast\n", "links.csv:2: 'fast' is not a number"),
        ("src,dst,bandwidth,count\na,b,1,0\n", "links.csv:2: count '0' is not a number of links"),
        ("src,dst,bandwidth,count\na,b,1,1000000\nb,c,1,1000000\n", "more than 1,000,000 cables"),
        ("src,dst,bandwidth\ngpu0,gpu0,1\n", "links.csv:2: 'gpu0' is linked to itself"),
        (
            "src,src_port,dst,dst_port,speed\na,1,b,1,100G\na,1,b,2,100G\n",
            "links.csv:3: a 1 has a cable already, in line 2; a port has one",
        ),
        ("src,dst\na,b\n", "links.csv:2: no rate"),
        ('src,dst\n"a,b\n', "no device in column 2"),
    ],
)
def test_bad_lists(text: str, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        read_as("csv", text, "links.csv", {"hosts": "a"})
    assert message in str(caught.value)


def graph() -> Any:
    """A switch and two hosts; each call a fresh one."""

    def cable(port: str, host: str) -> Any:
        ends = [{"node": "n0", "interface": port}, {"node": host, "interface": "eth0"}]
        return {"compounded_links": [{"interfaces": ends}]}

    devices = [("n0", "leaf", "switch"), ("n1", "a", "lldp"), ("n2", "b", "lldp")]
    nodes = [{"id": key, "name": name, "device_type": kind} for key, name, kind in devices]
    return [
        {
            "nodes": [{"compounded_nodes": nodes}],
            "links": [cable("swp1", "n1"), cable("swp2", "n2")],
        }
    ]


def netq(value: Any) -> Fabric:
    return read_as("netq", json.dumps(value), "netq.json", {"rate": "50"})


def test_a_small_graph() -> None:
    found = netq(graph())
    assert (found.switches, found.hosts) == (("leaf",), ("a", "b"))
    assert [str(cable.two) for cable in found.cables] == ["a eth0", "b eth0"]
    detected = readers.format_of(json.dumps(graph()))
    assert detected is not None
    assert detected.name == "netq"


def test_bad_graphs() -> None:
    def bad(value: Any, message: str) -> None:
        with pytest.raises(TopologyError, match=message):
            netq(value)

    bad(7, r"netq\.json: the graph: an object with 'nodes' and 'links' as NetQ writes it")
    bad([{"links": []}], "'nodes' is missing or no list")
    changed = graph()
    changed[0]["links"][1]["compounded_links"][0]["interfaces"][1]["node"] = "n9"
    bad(changed, "a link to 'n9', which is no node")
    changed = graph()
    changed[0]["links"][1]["compounded_links"][0]["interfaces"].pop()
    bad(changed, "a link with 1 ends; it has two")
    changed = graph()
    changed[0]["links"][1]["compounded_links"][0]["interfaces"][0]["interface"] = "swp1"
    bad(changed, "leaf swp1 has two cables; a port has one")
    changed = graph()
    changed[0]["nodes"][0]["compounded_nodes"][1]["id"] = "n0"
    bad(changed, "two devices have the id 'n0'")
    changed = graph()
    changed[0]["nodes"][0]["compounded_nodes"][1]["name"] = 5
    bad(changed, "'name' is missing or no name")
    changed = graph()
    changed[0]["links"] = 5
    bad(changed, "'links' is missing or no list")
    for text in ("[" * 100_000, "{", '[1e999, "compounded_'):
        with pytest.raises(TopologyError, match=r"netq\.json: "):
            read_as("netq", text, "netq.json", {"rate": "50"})
