"""What readers make of several files, and of real machines; single files stand in readings/."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import networkx as nx
import pytest
from real_files import read_as, real
from test_readings import text_of

from forestcoll.common.errors import TopologyError
from forestcoll.topology import Link, Topology, catalog, check_connected, readers
from forestcoll.topology.readers.shared import Fabric, Port

MESH = text_of("nccl-xml", "mesh of nvlinks")
CABLES = text_of("ibnetdiscover", "each cable counts once and its slower end wins")


def fabric(form: str, text: str, **settings: str) -> Fabric:
    found = read_as(form, text, "links.csv", settings)
    assert isinstance(found, Fabric)
    return found


@pytest.mark.parametrize(
    ("name", "settings", "machine"),
    [
        ("nccl-xml/azure/ndv4-topo.xml", {}, "dgx-a100"),
        ("nccl-xml/azure/ndv5-topo.xml", {}, "dgx-h100"),
        ("nccl-xml/aws/p5.48xl-topo.xml", {}, "dgx-h100"),
        ("rccl-xml/topo_8p_940.xml", {"xgmi": "64"}, "mi300x"),
        ("rocm-smi-showtopo/mi308x-8gpu.txt", {"xgmi": "64"}, "mi300x"),
        ("nvidia-smi-topo/dgx1-v100.txt", {"nvlink": "25"}, "dgx1-v100"),
        ("hwloc/nvidiaDGX2.xml", {}, "dgx2-v100"),
    ],
)
def test_real_machines_are_the_catalogues(
    name: str, settings: dict[str, str], machine: str
) -> None:
    topology = catalog.load(real(name), settings)
    assert topology.rates() == catalog.machine(machine).rates()
    # every GPU has as many ports nearest as every other
    assert len({sum(gpu in a.near for a in topology.adapters) for gpu in topology.gpus}) == 1
    check_connected(topology)


def test_the_16_dies_are_the_catalogues_numbered_otherwise() -> None:
    dump = catalog.load(real("rccl-xml/topo_16p1h.xml"), {"xgmi": "50"})
    graphs = [nx.DiGraph() for _ in range(2)]
    for graph, topology in zip(graphs, (dump, catalog.machine("mi250")), strict=True):
        for (src, dst), bandwidth in topology.rates().items():
            graph.add_edge(src, dst, bandwidth=bandwidth)
    assert nx.is_isomorphic(*graphs, edge_match=lambda a, b: a["bandwidth"] == b["bandwidth"])


def test_hosts_of_a_fabric_are_ranks_and_keep_their_ports(tmp_path: Path) -> None:
    found = fabric("ibnetdiscover", CABLES)
    ports = {
        "node1": [Port("node1", "mlx5_0"), Port("node1", "mlx5_1")],
        "node2": [Port("node2", "mlx5_0")],
        "node3": [Port("node3", "HCA-1")],
    }
    assert found.ports() == ports
    topology = found.to_topology()
    assert topology.gpus == tuple(ports)
    assert Link("node1", "leaf-1@00a0", Fraction(50), None, 2) in topology.links
    assert "each of the 3 hosts is one rank" in topology.notes[-1]
    check_connected(topology)
    names = tmp_path / "names"
    names.write_text('# ours\n0x00c4 "node2 mlx5_1"\n\n0xb0 "spine"\n0xa0 "leaf"\n')
    named = fabric("ibnetdiscover", CABLES, names=str(names))
    assert named.ports()["node2"] == [Port("node2", "mlx5_0"), Port("node2", "mlx5_1", 2)]
    assert named.switches == ("leaf", "spine")
    assert not any("no host's name" in note for note in named.notes)
    names.write_text("node2 is here\n")
    with pytest.raises(TopologyError, match=r"names:1: 'node2 is here' is not 0xGUID"):
        fabric("ibnetdiscover", CABLES, names=str(names))


def test_sonics_unit_and_its_list_of_devices(tmp_path: Path) -> None:
    text = "StartDevice,StartPort,EndDevice,EndPort,BandWidth\na,E0,t,E1,40000\nb,E0,t,E2,\n"
    devices = tmp_path / "devices.csv"
    devices.write_text("Hostname,HwSku,Type\na,x,Server\nb,x,server\nt,y,FanoutLeaf\n")
    found = fabric("csv", text, devices=str(devices), rate="1")
    assert found.hosts == ("a", "b")
    assert [cable.bandwidth for cable in found.cables] == [5, 1]
    for listed, more, message in (
        ("Hostname,Type\na,Server\n", {}, r"links\.csv:3: no rate; fill the column, or give --set"),
        ("Hostname,Type\nc,Server\n", {"rate": "1"}, "none of its devices is a server in"),
        ("a,b\n", {"rate": "1"}, "not a list of devices: no columns Hostname and Type"),
    ):
        devices.write_text(listed)
        with pytest.raises(TopologyError, match=message):
            fabric("csv", text, devices=str(devices), **more)


def test_files_by_path(tmp_path: Path) -> None:
    """Settings of the reader and of the network; XML of any name is a dump."""
    path = tmp_path / "any.txt"
    path.write_text("\n<!-- c -->\n" + MESH)
    assert isinstance(catalog.load(path), Topology)
    with pytest.raises(TopologyError, match="unknown parameter 'box'; did you mean 'boxes'"):
        catalog.load(path, {"box": "2"})
    with pytest.raises(TopologyError, match=r"unknown parameter 'zzz'; there are nvlink, .*boxes"):
        catalog.load(path, {"zzz": "2"})
    path.write_text("<html></html>")
    with pytest.raises(TopologyError, match=r"any\.txt:1: <html> is not an NCCL topology"):
        catalog.load(path)


def test_what_is_no_format() -> None:
    assert readers.format_of("nothing of the kind") is None
    with pytest.raises(TopologyError, match=r"none of the formats that are read: .*ibnetdiscover"):
        readers.read("nothing of the kind", "f")
    with pytest.raises(TopologyError, match="did you mean 'ibnetdiscover'"):
        readers.find_format("ibnetdiscovery")
