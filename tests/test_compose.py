"""Clusters out of a machine and a network: every port once, or an error that says which is not."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from real_files import read_as, real
from test_readings import text_of

from forestcoll.common.errors import TopologyError
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


def test_ports_that_cannot_serve() -> None:
    with pytest.raises(TopologyError, match="the rate of nic0 is not in its dump: give it w"):
        boxes(machine(port("nic0", "gpu0", rate=None)), 2)
    with pytest.raises(TopologyError, match="no GPU is near port 'nic0'; leave it out"):
        boxes(machine(port("nic0")), 2)


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
    from forestcoll.topology.readers.settings import Values

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


@pytest.mark.parametrize(
    ("of", "ports", "message"),
    [
        (
            FOUR,
            (),
            "fabric.out: mlx5_2, mlx5_3 of node have no cable on any host; map the",
        ),
        (
            machine(),
            (),
            "fabric.out: n1 mlx5_0: which port of node is that? no port of it is",
        ),
        (FOUR, ("mlx5_*=mlx5_1",), "n1 mlx5_0 and n1 mlx5_1 are both port 'mlx5_1' of node"),
        (FOUR, ("mlx5_9=none",), "port 'mlx5_9' matches no port of a host; did you mean 'mlx5_1'?"),
        (FOUR, ("mlx5_0=gpu9",), "port mlx5_0=gpu9: the machine has no 'gpu9'; did you mean"),
        (FOUR, ("mlx5_0=gpu1+gpu1",), "port mlx5_0=gpu1+gpu1: a GPU stands there twice"),
        (FOUR, ("mlx5_*=none",), "host n1 has no cable to its node; leave it out with --hosts"),
        (FOUR, ("mlx5_0",), "port 'mlx5_0' is not NAME=TARGET, such as mlx5_0=gpu0+gpu1"),
    ],
)
def test_ports_that_do_not_fit(of: Topology, ports: tuple[str, ...], message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        join(of, *ports)
    assert message in str(caught.value)


def test_second_ports_of_an_adapter() -> None:
    text = FABRIC.replace('"H-00c2"[1](c2) \t\t# "n1 mlx5_1"', '"H-00c1"[2](c2) \t\t# "n1 mlx5_0"')
    text = text.replace('"H-00c4"[1](c4) \t\t# "n2 mlx5_1"', '"H-00c3"[2](c4) \t\t# "n2 mlx5_0"')
    directed = join(machine(), "mlx5_0=gpu0+gpu1", "mlx5_0:2=gpu2+gpu3", text=text).rates()
    assert directed["n1/port-mlx5_0", "leaf"] == 25
    assert directed["n2/port-mlx5_0-2", "leaf"] == Fraction(25, 2)
    with pytest.raises(TopologyError, match="n1 mlx5_0 port 2: which port of node is that"):
        join(machine(), "mlx5_0=gpu0+gpu1", text=text)


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


DUMP = text_of("nccl-xml", "two GPUs and two ports").strip()


def test_files_of_a_machine_and_a_fabric(tmp_path: Path) -> None:
    dump, fabric = write(tmp_path, "node.xml", DUMP), write(tmp_path, "fabric.out", FABRIC)
    together = import_topology.import_files([fabric, dump])
    assert together.rates()["n2/gpu0", "leaf"] == 25
    assert import_topology.compose_cluster(dump, fabric) == together
    alone = import_topology.import_files([dump])
    assert [a.name for a in alone.adapters] == ["mlx5_0", "mlx5_1"]
    assert len(import_topology.import_files([fabric]).gpus) == 2  # a rank a host
    assert len(import_topology.import_files([dump], {"boxes": "3"}).gpus) == 6
    with pytest.raises(TopologyError, match=r"node\.xml and .*node\.xml are two machines"):
        import_topology.import_files([dump, dump])
    with pytest.raises(TopologyError, match="are two fabrics"):
        import_topology.import_files([fabric, fabric])
    with pytest.raises(TopologyError, match="--port says which port of a fabric is which"):
        import_topology.import_files([dump], ports=["a=b"])
    with pytest.raises(TopologyError, match="a fabric of hosts, and boxes is for boxes of one"):
        catalog.load(fabric, {"boxes": "2"})
    with pytest.raises(TopologyError, match="rails is for regular networks; how many boxes there"):
        import_topology.compose_cluster(dump, fabric, {"rails": "2"})


def test_networks_by_name(tmp_path: Path) -> None:
    dump = write(tmp_path, "node.xml", DUMP)
    assert len(import_topology.compose_cluster(dump, "single", {"boxes": "2"}).gpus) == 4
    catalogue = import_topology.compose_cluster("dgx-a100", "rail", {"boxes": "2", "nvlink": "200"})
    assert catalogue.rates()["box0/gpu0", "box0/nvswitch"] == 200
    with pytest.raises(TopologyError, match="no fabric 'rial'; did you mean 'rail'"):
        import_topology.compose_cluster(dump, "rial", {"boxes": "2"})
    with pytest.raises(TopologyError, match="NCCL topology dump, not a fabric: ibnetdiscover's"):
        import_topology.compose_cluster(dump, dump)
    with pytest.raises(TopologyError, match="no machine of the catalogue is called 'dgx-a10'; did"):
        import_topology.compose_cluster("dgx-a10", "rail", {"boxes": "2"})
    mine = write(tmp_path, "mine.yaml", import_topology.dump_with_notes(FOUR, "a test"))
    fabric = write(tmp_path, "fabric.out", FABRIC)
    ports = ["mlx5_0=gpu0", "mlx5_1=gpu1"]
    assert (
        import_topology.compose_cluster(mine, fabric, ports=ports).rates()["n1/gpu0", "leaf"] == 25
    )


def test_notes_are_comments_of_the_file() -> None:
    topology = boxes(FOUR, 2)
    text = import_topology.dump_with_notes(topology, "a\ncommand")
    assert text.startswith("# written by: a command\n# 2 boxes of node, 4 ports each\n")
    assert loads_topology(text) == topology


def test_a_devices_list_goes_with_its_links(tmp_path: Path) -> None:
    header = "StartDevice,StartPort,EndDevice,EndPort,BandWidth"
    links = write(tmp_path, "links.csv", f"{header}\na,1,t,1,8000\nb,1,t,2,8000\n")
    devices = write(tmp_path, "devices.csv", "Hostname,HwSku,Type\na,x,Server\nb,x,Server\n")
    assert import_topology.import_files([links, devices]).gpus == ("a", "b")
