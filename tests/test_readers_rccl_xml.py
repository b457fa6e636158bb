"""RCCL topology dumps: all the real ones where they are at hand, and the traps in small ones."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from real_files import read_as, real

from forestcoll.common.errors import TopologyError
from forestcoll.topology import Topology, catalog, check_connected, readers


def load(name: str, **settings: str) -> Topology:
    return catalog.load(real(f"rccl-xml/{name}"), settings)


def gpu(dev: int, *targets: int, gcn: str = "gfx942", count: int = 1) -> str:
    links = "".join(
        f'<xgmi target="0000:{other + 1:02x}:00.0" count="{count}" tclass="0x120000"/>'
        for other in targets
    )
    return (
        f'<pci busid="0000:{dev + 1:02x}:00.0" class="0x120000" link_speed="32.0 GT/s PCIe" '
        f'link_width="16"><gpu dev="{dev}" sm="304" gcn="{gcn}" rank="{dev}" gdr="1">{links}'
        "</gpu></pci>"
    )


def system(*gpus: str) -> str:
    return f'<system version="2">\n<cpu numaid="0">\n{"".join(gpus)}\n</cpu></system>\n'


def test_the_16_dies_are_the_catalogues_mi250() -> None:
    topology = load("topo_16p1h.xml")
    links = Counter(link.count for link in topology.links)
    assert links == {1: 16, 2: 4, 4: 8}  # 56 entries, both ways: 32, 8 and 16
    assert {link.bandwidth for link in topology.links} == {36}
    at_50 = load("topo_16p1h.xml", xgmi="50")
    mine, theirs = at_50.directed(), catalog.machine("mi250").directed()
    # The dies are numbered differently; the meshes are the same graph.
    import networkx as nx

    graphs = [nx.DiGraph() for _ in range(2)]
    for graph, links in zip(graphs, (mine, theirs), strict=True):
        for (src, dst), bandwidth in links.items():
            graph.add_edge(src, dst, bandwidth=bandwidth)
    same = nx.is_isomorphic(*graphs, edge_match=lambda a, b: a["bandwidth"] == b["bandwidth"])
    assert same
    assert [a.near for a in topology.adapters] == [
        (f"gpu{2 * i}", f"gpu{2 * i + 1}") for i in range(8)
    ]
    assert {a.bandwidth for a in topology.adapters} == {25}


def test_mi300x_is_a_full_mesh() -> None:
    topology = load("topo_8p_940.xml")
    assert len(topology.links) == 28
    assert {(link.bandwidth, link.count) for link in topology.links} == {(Fraction(48), 1)}
    assert topology.directed() == {
        (a, b): 48 for a in topology.gpus for b in topology.gpus if a != b
    }
    assert [a.near for a in topology.adapters] == [(f"gpu{i}",) for i in range(8)]
    assert {a.bandwidth for a in topology.adapters} == {50}  # 400 Gb/s
    assert load("topo_8p_940.xml", xgmi="64").directed() == catalog.machine("mi300x").directed()


@pytest.mark.parametrize(
    ("name", "gpus", "xgmi", "rate", "switches"),
    [
        ("topo_3p_pcie.xml", 3, 0, 0, 5),  # no xGMI: three bridges, two sockets
        ("topo_4p4h.xml", 16, 24, 24, 21),  # four hives of four, joined by PCIe
        ("topo_8p6l_4nic.xml", 8, 24, 24, 0),  # six links a GPU
        ("topo_8p_90a.xml", 8, 12, 36, 0),  # three links a GPU
        ("topo_8p_rome_n2.xml", 8, 8, 24, 12),  # two rings of four, four sockets
    ],
)
def test_the_other_real_dumps(name: str, gpus: int, xgmi: int, rate: int, switches: int) -> None:
    topology = load(name)
    assert len(topology.gpus) == gpus
    between = [
        link
        for link in topology.links
        if {topology.nodes[end].kind for end in (link.src, link.dst)} == {"gpu"}
    ]
    assert len(between) == xgmi
    assert {link.bandwidth for link in between} == ({rate} if xgmi else set())
    assert len(topology.nodes) - gpus == switches
    assert any("PCIe tree" in note for note in topology.notes) == (switches > 0)
    check_connected(topology)


def test_bandwidth_by_architecture() -> None:
    for gcn, rate in (("gfx942", 48), ("gfx940", 48), ("910", 36), ("gfx90a:sramecc+", 36),
                      ("908", 24), ("906", 24)):  # fmt: skip
        topology = read_as("rccl-xml", system(gpu(0, 1, gcn=gcn), gpu(1, 0, gcn=gcn)), "f")
        assert topology.directed() == {("gpu0", "gpu1"): rate, ("gpu1", "gpu0"): rate}
        assert f"xGMI counts {rate} GB/s per link" in topology.notes[0]
    unknown = system(gpu(0, 1, gcn="gfx999"), gpu(1, 0, gcn="gfx999"))
    with pytest.raises(TopologyError, match=r"gcn 'gfx999' has no xGMI that is known; give --set"):
        read_as("rccl-xml", unknown, "f")
    assert read_as("rccl-xml", unknown, "f", {"xgmi": "64"}).directed()["gpu0", "gpu1"] == 64


def test_recognised_by_content() -> None:
    for text, name in (
        (system(gpu(0, 1), gpu(1, 0)), "rccl-xml"),
        (system(gpu(0), gpu(1)), "rccl-xml"),
        ('<system><cpu><pci><gpu dev="0" sm="90"/></pci></cpu></system>', "nccl-xml"),
    ):
        found = readers.format_of(text)
        assert found is not None
        assert found.name == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<a/>", "f:1: <a> is not an RCCL topology"),
        (system(gpu(0, 0)), "f:3: an xGMI from a GPU to itself"),
        (system(gpu(0, 1, 1), gpu(1, 0)), "f:3: a second <xgmi> of gpu0 to 0000:02:00.0, after l"),
        (
            system(gpu(0, 1, count=4), gpu(1, 0)),
            "f:3: gpu0 states 4 xGMI links to gpu1, which states 1 back in line 3; both ends of a",
        ),
        (system(gpu(0, 1), gpu(1)), "f:3: gpu0 states 1 xGMI links to gpu1, which states 0 back;"),
        (
            system(gpu(0, 1, count=9), gpu(1, 0, count=9)),
            'f:3: count="9": gpu0 would have 9 xGMI links; a GPU has 8 at most',
        ),
        (system(gpu(0, 1, count=-2), gpu(1)), "f:3: count -2 is no number of xGMI links"),
    ],
)
def test_bad_dumps(text: str, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        read_as("rccl-xml", text, "f")
    assert str(caught.value).startswith(message)
