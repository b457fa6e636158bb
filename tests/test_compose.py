"""Clusters out of a machine and a network: every port once, or an error that says which is not."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from real_files import read_as, real
from test_readings import text_of

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.solver import optimum
from forestcoll.topology import (
    Adapter,
    Link,
    Node,
    Topology,
    catalog,
    check_connected,
    compose,
    import_topology,
    loads_topology,
)

ORACLE = "nccl-xml/oracle/H100-topology.xml"
NDR = "ibnetdiscover/dgx-ndr-fabric.out"
NDR_PORTS = (
    "HCA-1|mlx5_0=gpu0+gpu1",
    "HCA-2|mlx5_1=gpu2+gpu3",
    "HCA-5|mlx5_4=gpu4+gpu5",
    "HCA-6|mlx5_5=gpu6+gpu7",
)


def machine(*adapters: Adapter, gpus: int = 4) -> Topology:
    """A box of GPUs on a switch."""
    nodes = {f"gpu{i}": Node("gpu") for i in range(gpus)} | {"nvswitch": Node("switch")}
    links = tuple(Link(f"gpu{i}", "nvswitch", Fraction(300)) for i in range(gpus))
    return Topology("node", nodes, links, adapters)


def port(name: str, *near: str, rate: Fraction | int | None = 25) -> Adapter:
    return Adapter(name, None if rate is None else Fraction(rate), near)


FOUR = machine(*(port(f"mlx5_{i}", f"gpu{i}") for i in range(4)))
SHARED = machine(port("mlx5_0", "gpu0", "gpu1"), port("mlx5_1", "gpu2", "gpu3"))


def boxes(of: Topology, count: int, **settings: str) -> Topology:
    return compose.compose_boxes(of, {"boxes": str(count), **settings})


@pytest.mark.parametrize("count", [2, 4, 8])
def test_the_oracle_machine_on_rails(count: int) -> None:
    settings = {"boxes": str(count), "fabric": "rail"}
    topology = catalog.load(real(ORACLE), settings)
    assert len(topology.gpus) == 8 * count
    directed = topology.rates()
    for gpu in topology.gpus:  # two ports each, on two rails, each once
        rails = {dst: rate for (src, dst), rate in directed.items() if src == gpu and "rail" in dst}
        assert list(rails.values()) == [Fraction(45, 2)] * 2
    up = {dst: rate for (src, dst), rate in directed.items() if src == "spine"}
    assert up == {f"rail{i}": Fraction(45, 2) * count for i in range(16)}
    check_connected(topology)
    # Everything into one GPU, or into one box: both counted by hand.
    n = 8 * count
    best = optimum(CapacityGraph.from_topology(topology), Collective.ALLGATHER, None)
    per_gpu = (Fraction("370.8") + 45) * n / (n - 1)
    per_box = Fraction(16 * 45, 2) * n / (n - 8)
    assert best.algbw == min(per_gpu, per_box)
    alone = CapacityGraph.from_topology(catalog.load(real(ORACLE), {}))
    best = optimum(alone, Collective.ALLGATHER, None)
    assert (best.algbw, best.trees_per_root) == (Fraction("370.8") * 8 / 7, 1)


def test_the_16_dies_as_two_boxes() -> None:
    topology = catalog.load(real("rccl-xml/topo_16p1h.xml"), {"boxes": "2"})
    assert len(topology.gpus) == 32
    directed = topology.rates()
    assert sum(rate for (_, dst), rate in directed.items() if dst == "fabric") == 2 * 8 * 25
    assert directed["box1/gpu15", "box1/mlx5_8"] == 25
    check_connected(topology)


def test_the_ndr_fabric_with_its_119_hosts() -> None:
    topology = import_topology.compose_cluster(
        "dgx-h100", str(real(NDR)), {"hosts": "*dgx*"}, NDR_PORTS
    )
    assert len(topology.gpus) == 952
    assert len(topology.boxes) == 119
    switches = [n for n in topology.nodes if "IBLEAF" in n or "IBSPINE" in n]
    assert len(switches) == 40
    cables = Counter(
        end
        for link in topology.links
        for end in (link.src, link.dst)
        if "/port-" in end and {link.src, link.dst} & set(switches)
    )
    assert len(cables) == 466 == sum(cables.values())  # each port one cable
    per_host = Counter(end.partition("/")[0] for end in cables)
    assert Counter(per_host.values()) == {4: 109, 3: 10}
    assert any("10 of 119 hosts have fewer cables than 4" in note for note in topology.notes)
    check_connected(topology)


FABRIC = text_of("ibnetdiscover", "two hosts of two ports")


def join(of: Topology, *ports: str, text: str = FABRIC, use: str = "") -> Topology:
    from forestcoll.topology.readers.shared import Values

    chosen = Values("f", 0, {"ports": use}).patterns("ports") if use else None
    fabric = read_as("ibnetdiscover", text, "fabric.out")
    return compose.join_fabric(of, fabric, compose.parse_ports(ports), chosen)


def test_ports_of_the_same_name() -> None:
    topology = join(SHARED)
    directed = topology.rates()
    assert topology.gpus == tuple(f"n{b}/gpu{g}" for b in (1, 2) for g in range(4))
    assert directed["n1/mlx5_0", "leaf"] == 25
    assert directed["n2/mlx5_1", "leaf"] == Fraction(25, 2)  # the cable is slower than the port
    assert any("1 ports state 25 GB/s and their cables 12.5" in n for n in topology.notes)
    check_connected(topology)


def test_a_map_of_ports() -> None:
    directed = join(FOUR, "mlx5_0=mlx5_2", "mlx5_1=gpu3", use="mlx5_2").rates()
    assert directed["n1/gpu2", "leaf"] == 25
    assert directed["n1/gpu3", "leaf"] == 25
    only = join(SHARED, "mlx5_1=none", use="mlx5_0").rates()
    assert sum(rate for (_, dst), rate in only.items() if dst == "leaf") == 50
    pair = join(machine(), "mlx5_0|mlx5_1=gpu0+gpu1").rates()
    assert pair["n1/port-mlx5_1", "leaf"] == 25


SECOND = FABRIC.replace('"H-00c2"[1](c2) \t\t# "n1 mlx5_1"', '"H-00c1"[2](c2) \t\t# "n1 mlx5_0"')
SECOND = SECOND.replace('"H-00c4"[1](c4) \t\t# "n2 mlx5_1"', '"H-00c3"[2](c4) \t\t# "n2 mlx5_0"')


def test_second_ports_of_an_adapter() -> None:
    rates = join(machine(), "mlx5_0=gpu0+gpu1", "mlx5_0:2=gpu2+gpu3", text=SECOND).rates()
    assert rates["n1/port-mlx5_0", "leaf"] == 25
    assert rates["n2/port-mlx5_0-2", "leaf"] == Fraction(25, 2)


DUMP = text_of("nccl-xml", "two GPUs and two ports").strip()
HEADER = "StartDevice,StartPort,EndDevice,EndPort,BandWidth"
FILES = {
    "node.xml": DUMP,
    "fabric.out": FABRIC,
    "mine.yaml": import_topology.dump_with_notes(FOUR, "a test"),
    "links.csv": f"{HEADER}\na,1,t,1,8000\nb,1,t,2,8000\n",
    "devices.csv": "Hostname,HwSku,Type\na,x,Server\nb,x,Server\n",
}


def test_files_of_a_machine_and_a_fabric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    read, compose_cluster = import_topology.import_files, import_topology.compose_cluster
    together = read(["fabric.out", "node.xml"])
    assert together.rates()["n2/gpu0", "leaf"] == 25
    assert compose_cluster("node.xml", "fabric.out") == together
    assert [a.name for a in read(["node.xml"]).adapters] == ["mlx5_0", "mlx5_1"]
    assert len(read(["fabric.out"]).gpus) == 2  # a rank a host
    assert len(read(["node.xml"], {"boxes": "3"}).gpus) == 6
    assert len(compose_cluster("node.xml", "single", {"boxes": "2"}).gpus) == 4
    catalogue = compose_cluster("dgx-a100", "rail", {"boxes": "2", "nvlink": "200"})
    assert catalogue.rates()["box0/gpu0", "box0/nvswitch"] == 200
    mine = compose_cluster("mine.yaml", "fabric.out", ports=["mlx5_0=gpu0", "mlx5_1=gpu1"])
    assert mine.rates()["n1/gpu0", "leaf"] == 25
    assert read(["links.csv", "devices.csv"]).gpus == ("a", "b")  # a list goes with its links


def test_notes_are_comments_of_the_file() -> None:
    topology = boxes(FOUR, 2)
    text = import_topology.dump_with_notes(topology, "a\ncommand")
    assert text.startswith("# written by: a command\n# 2 boxes of node, 4 ports each\n")
    assert loads_topology(text) == topology
