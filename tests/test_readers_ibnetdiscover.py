"""InfiniBand fabrics: a real one where it is at hand, and every trap in small ones."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from real_files import read_as, real

from forestcoll.common.errors import TopologyError
from forestcoll.topology import Link, Topology, catalog, check_connected, readers
from forestcoll.topology.readers.fabric import Fabric, Port

NDR = "ibnetdiscover/dgx-ndr-fabric.out"

SMALL = """\
#
# Topology file: generated on Mon Jan  5 10:00:00 2026
#
vendid=0x2c9
devid=0xd2f2
sysimgguid=0xa0
switchguid=0xa0(a0)
Switch\t65 "S-00a0"\t\t# "MF0;leaf-1:MQM9700/U1" enhanced port 0 lid 1 lmc 0
[1]\t"H-00c1"[1](c1) \t\t# "node1 mlx5_0" lid 11 4xNDR
[2]\t"H-00c2"[1](c2) \t\t# "node1 mlx5_1" lid 12 4xNDR
[3]\t"H-00c3"[1](c3) \t\t# "node2 mlx5_0" lid 13 4xHDR
[4]\t"H-00c4"[2](c4) \t\t# "MT4129 ConnectX7   Mellanox Technologies" lid 14 4xNDR
[33]\t"S-00b0"[1]\t\t# "MF0;leaf-1:MQM9700/U1" lid 2 4xNDR
[34]\t"S-00b0"[2]\t\t# "MF0;leaf-1:MQM9700/U1" lid 2 4xNDR
[65]\t"H-00a1"[1](a1) \t\t# "Mellanox Technologies Aggregation Node" lid 3 4xNDR

switchguid=0xb0(b0)
Switch\t65 "S-00b0"\t\t# "MF0;leaf-1:MQM9700/U1" enhanced port 0 lid 2 lmc 0
[1]\t"S-00a0"[33]\t\t# "MF0;leaf-1:MQM9700/U1" lid 1 4xNDR
[2]\t"S-00a0"[34]\t\t# "MF0;leaf-1:MQM9700/U1" lid 1 2xNDR
[5]\t"H-00c5"[1](c5) \t\t# "node3 HCA-1" lid 15 1xXDR

caguid=0xc1
Ca\t1 "H-00c1"\t\t# "node1 mlx5_0"
[1](c1) \t"S-00a0"[1]\t\t# lid 11 lmc 0 "MF0;leaf-1:MQM9700/U1" lid 1 4xNDR

caguid=0xc2
Ca\t1 "H-00c2"\t\t# "node1 mlx5_1"
[1](c2) \t"S-00a0"[2]\t\t# lid 12 lmc 0 "MF0;leaf-1:MQM9700/U1" lid 1 4xNDR
"""


def read(text: str, **settings: str) -> Fabric:
    return read_as("ibnetdiscover", text, "fabric.out", settings)


def cables_between(topology: Topology, ones: set[str], twos: set[str]) -> Counter[tuple[str, str]]:
    """(one of `ones`, one of `twos`) -> cables; zero where there is none."""
    counts: Counter[tuple[str, str]] = Counter({(a, b): 0 for a in ones for b in twos})
    for link in topology.links:
        for pair in ((link.src, link.dst), (link.dst, link.src)):
            if pair in counts:
                counts[pair] += link.count
    return counts


def test_the_real_fabric() -> None:
    topology = catalog.load(real(NDR), {"hosts": "*dgx*"})
    assert topology.name == "dgx-ndr-fabric"
    assert len(topology.gpus) == 119  # a rank a host
    switches = [name for name, node in topology.nodes.items() if node.kind == "switch"]
    leaves = {name for name in switches if "LEAF" in name}
    spines = {name for name in switches if "SPINE" in name}
    assert (len(leaves), len(spines), len(switches)) == (31, 9, 40)
    assert "A09-P1-IBLEAF-04-04" in leaves
    assert {link.bandwidth for link in topology.links} == {50}  # 4xNDR
    up = cables_between(topology, leaves, spines)
    assert sum(up.values()) == 532
    assert Counter(up.values()) == {2: 263, 1: 6, 0: 10}  # missing cables, some pairs without any
    assert up["A09-P1-IBLEAF-04-04", "A10-P1-IBSPINE-01"] == 0
    down = cables_between(topology, leaves, set(topology.gpus))
    per_host = Counter(
        sum(n for (_, host), n in down.items() if host == name) for name in topology.gpus
    )
    assert per_host == {4: 109, 3: 10}
    check_connected(topology)
    notes = "\n".join(topology.notes)
    assert "40 aggregation nodes (SHARP) are no hosts" in notes
    assert "72 adapters carry no host's name" in notes  # 69 default names, and 3 of 'localhost'


def test_each_cable_counts_once_and_its_slower_end_wins() -> None:
    fabric = read(SMALL)
    assert fabric.switches == ("leaf-1@00a0", "leaf-1@00b0")  # one name twice: the guid parts them
    assert fabric.hosts == ("node1", "node2", "node3")
    # 4xHDR and 1xXDR, and the second cable between the switches
    assert Counter(cable.bandwidth for cable in fabric.cables) == {50: 3, 25: 3}
    assert any("S-00a0[34]" in note and "the slower one counts" in note for note in fabric.notes)


def test_what_only_one_end_says_is_named() -> None:
    def notes(text: str) -> str:
        return "\n".join(read(text).notes)

    cable = '[1](c1) \t"S-00a0"[1]\t\t# lid 11 lmc 0 "MF0;leaf-1:MQM9700/U1" lid 1 4xNDR\n'
    assert cable in SMALL
    assert "block of one end only" not in notes(SMALL)
    lost = SMALL.replace(cable, "")
    assert "1 cables stand in the block of one end only (H-00c1[1])" in notes(lost)
    assert read(lost).cables == read(SMALL).cables
    header = 'Ca\t1 "H-00c1"\t\t# "node1 '
    renamed = notes(SMALL.replace(header, header.replace("node1", "node7")))
    assert "1 devices are described in several ways, and their own block counts: H-00c1" in renamed
    assert "'node7 mlx5_0' in line 24" in renamed


def test_ports_by_host() -> None:
    fabric = read(SMALL)
    assert fabric.ports() == {
        "node1": [Port("node1", "mlx5_0"), Port("node1", "mlx5_1")],
        "node2": [Port("node2", "mlx5_0")],
        "node3": [Port("node3", "HCA-1")],
    }


def test_a_rank_a_host() -> None:
    topology = read(SMALL).to_topology()
    assert topology.gpus == ("node1", "node2", "node3")
    assert Link("node1", "leaf-1@00a0", Fraction(50), None, 2) in topology.links
    assert "each of the 3 hosts is one rank" in topology.notes[-1]
    check_connected(topology)


def test_settings() -> None:
    assert read(SMALL, hosts="node[12]").hosts == ("node1", "node2")
    with pytest.raises(TopologyError, match=r"hosts: 'nod4' matches nothing; did you mean 'node"):
        read(SMALL, hosts="nod4")
    each = read(SMALL, unnamed="each")
    assert each.hosts == ("node1", "node2", "H-00c4", "node3")
    with pytest.raises(TopologyError, match="unnamed=all: it is one of out, each"):
        read(SMALL, unnamed="all")
    with pytest.raises(TopologyError, match="unknown parameter 'host'; did you mean 'hosts'"):
        read(SMALL, host="x")


def test_a_map_of_names(tmp_path: Path) -> None:
    names = tmp_path / "names"
    names.write_text('# ours\n0x00c4 "node2 mlx5_1"\n\n0xb0 "spine"\n0xa0 "leaf"\n')
    fabric = read(SMALL, names=str(names))
    assert fabric.ports()["node2"] == [Port("node2", "mlx5_0"), Port("node2", "mlx5_1", 2)]
    assert fabric.switches == ("leaf", "spine")
    assert not any("no host's name" in note for note in fabric.notes)
    names.write_text("node2 is here\n")
    with pytest.raises(TopologyError, match=r"names:1: 'node2 is here' is not 0xGUID"):
        read(SMALL, names=str(names))


def test_adapters_without_names_are_not_dropped_in_silence() -> None:
    assert any("1 adapters carry no host's name (00c4" in note for note in read(SMALL).notes)
    nameless = SMALL.replace('"node', '"MT4129 node')
    with pytest.raises(TopologyError, match=r"none of the 5 adapters carries a host's name"):
        read(nameless)
    assert len(read(nameless, unnamed="each").hosts) == 5


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("4xNDR\n[2]", "4xNDRX\n[2]", "fabric.out:9: '4xNDRX' is not a rate such as 4xNDR"),
        ("4xNDR\n[2]", "\n[2]", "fabric.out:9: '11' is not a rate such as 4xNDR"),
        ('[2]\t"H-00c2"[1](c2)', '[2]\t"H-00c2"', "is not a port"),
        (
            '# "node1 mlx5_1"\n',
            '# "node1 mlx5_0"\n',
            "two adapters are 'node1 mlx5_0', 00c1 and 00c2",
        ),
        ('"S-00a0"[2]', '"S-00a0"[3]', "port 1 of H-00c2 is cabled to S-00a0[3] here and to"),
        ("devid=0xd2f2", "hello there", "fabric.out:5: 'hello there' is no line of ibnetdiscover"),
        ('Switch\t65 "S-00b0"', 'Switch\t65 "S-00a0"', "S-00a0 has a block already, in line 8"),
        ("devid=0xd2f2", '[1] "S-00b0"[7] # 4xNDR', "a port before any Switch or Ca line"),
        ("devid=0xd2f2", "x" * 2000, "a line of 2,000 characters"),
        ('[1]\t"S-00a0"[33]', '[1]\t"S-00b0"[1]', "port 1 of S-00b0 is cabled to itself"),
    ],
)
def test_malformed_lines(old: str, new: str, message: str) -> None:
    assert old in SMALL
    with pytest.raises(TopologyError) as caught:
        read(SMALL.replace(old, new, 1))
    assert message in str(caught.value)


def test_a_dump_that_is_cut_off_says_so() -> None:
    text = SMALL[: SMALL.index("switchguid=0xb0")]
    assert any("have no block of their own" in note for note in read(text).notes)


def test_one_host_is_not_enough() -> None:
    with pytest.raises(TopologyError, match=r"1 host \(nsn33-43\) in it; a collective needs two"):
        catalog.load(real("ibnetdiscover/ibtopotool-4.topo"))


def test_the_man_pages_example() -> None:
    path = real("ibnetdiscover/ibtopotool-1.topo")
    with pytest.raises(TopologyError, match=r"none of the 4 adapters carries a host's name .*MT23"):
        catalog.load(path)
    topology = catalog.load(path, {"unnamed": "each"})
    assert len(topology.gpus) == 4
    assert topology.directed()["ISR9024-Voltaire", "SW-6IB4-Voltaire"] == Fraction(25, 16)
    assert any("different rates for 2 cables" in note for note in topology.notes)
    assert any("80 % carry data" in note for note in topology.notes)


def test_what_is_no_format() -> None:
    assert readers.format_of("nothing of the kind") is None
    with pytest.raises(TopologyError, match=r"none of the formats that are read: .*ibnetdiscover"):
        readers.loads("nothing of the kind", "f")
    with pytest.raises(TopologyError, match="did you mean 'ibnetdiscover'"):
        readers.find_format("ibnetdiscovery")
