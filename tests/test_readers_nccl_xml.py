"""NCCL topology dumps: real ones where they are at hand, and every trap in small ones."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest
import real_files
from real_files import read_as

from forestcoll.common.errors import TopologyError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.topology import Topology, catalog, check_connected, dumps_topology, loads_topology

FIXTURES = Path(__file__).parent / "fixtures"
PCIE_ONLY = (FIXTURES / "nccl-two-sockets.xml").read_text()
MESH = (FIXTURES / "nccl-mesh.xml").read_text()


def real(name: str) -> Path:
    return real_files.real(f"nccl-xml/{name}")


def system(*gpus: str) -> str:
    """A dump of one socket with that inside."""
    return '<system version="1">\n<cpu numaid="0">\n' + "\n".join(gpus) + "\n</cpu>\n</system>\n"


def gpu(dev: int, *links: str, sm: str = "90", bus: str = "") -> str:
    """One line: a GPU on a PCIe device of its own."""
    bus = bus or f"0000:{dev + 1:02x}:00.0"
    return (
        f'<pci busid="{bus}" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">'
        f'<gpu dev="{dev}" sm="{sm}" rank="{dev}" gdr="1">{"".join(links)}</gpu></pci>'
    )


def nvlink(target: str = "0000:f0:00.0", count: int = 18, tclass: str = "0x068000") -> str:
    return f'<nvlink target="{target}" count="{count}" tclass="{tclass}"/>'


def test_oracle_h100() -> None:
    topology = catalog.load(real("oracle/H100-topology.xml"))
    assert topology.name == "h100-topology"
    assert topology.gpus == tuple(f"gpu{i}" for i in range(8))
    assert set(topology.nodes) - set(topology.gpus) == {"nvswitch"}
    directed = topology.directed()
    assert len(directed) == 16
    assert set(directed.values()) == {Fraction("370.8")}
    check_connected(topology)
    graph = CapacityGraph.from_topology(topology)
    everyone_else = frozenset(range(graph.n)) - {0}
    assert graph.leaving(everyone_else) * 8 / 7 == Fraction(14832, 35)
    # 16 ports of 180 Gb/s, two beside each GPU; kept, and no links.
    assert [a.name for a in topology.adapters[:3]] == ["mlx5_0", "mlx5_1", "mlx5_3"]
    assert {a.bandwidth for a in topology.adapters} == {Fraction(45, 2)}
    assert [a.near for a in topology.adapters] == [(f"gpu{i // 2}",) for i in range(16)]
    assert "20.6 GB/s" in topology.notes[0]
    assert "16 network ports are left aside" in topology.notes[-1]
    assert loads_topology(dumps_topology(topology)) == topology


def test_oracle_h100_with_pcie() -> None:
    path = real("oracle/H100-topology.xml")
    raised = catalog.load(path, {"pcie": "always"}).directed()
    # The 5 GT/s bridge above every GPU takes the GPU's own 32 GT/s x16.
    assert raised["gpu0", "pci-0000:0d:00.0"] == 48
    assert raised["pci-0000:08:00.0", "cpu0"] == 48
    assert raised["cpu0", "cpu1"] == 22  # Sapphire Rapids
    stated = catalog.load(path, {"pcie": "always", "bridges": "stated"}).directed()
    assert stated["pci-0000:08:00.0", "cpu0"] == 6
    assert catalog.load(path, {"nvlink": "25"}).directed()["gpu0", "nvswitch"] == 450


def test_azure_a100_pair() -> None:
    topology = catalog.load(real("azure/nc48v4-topo.xml"))
    assert topology.directed() == {("gpu0", "gpu1"): 240, ("gpu1", "gpu0"): 240}
    assert topology.adapters[0].bandwidth == Fraction(25, 2)
    assert topology.adapters[0].near == ("gpu0",)


@pytest.mark.parametrize(
    ("name", "machine", "ports", "rate", "near"),
    [
        ("azure/ndv4-topo.xml", "dgx-a100", 8, Fraction(25), ("gpu2", "gpu3")),
        ("azure/ndv5-topo.xml", "dgx-h100", 8, Fraction(50), ("gpu0",)),
        ("aws/p5.48xl-topo.xml", "dgx-h100", 32, Fraction(25, 2), ("gpu0",)),
    ],
)
def test_cloud_files_take_their_links_from_the_known_machine(
    name: str, machine: str, ports: int, rate: Fraction, near: tuple[str, ...]
) -> None:
    topology = catalog.load(real(name))
    assert topology.directed() == catalog.machine(machine).directed()
    assert topology.gpus == tuple(f"gpu{i}" for i in range(8))
    assert len(topology.adapters) == ports
    assert {adapter.bandwidth for adapter in topology.adapters} == {rate}
    assert topology.adapters[0].near == near
    # Every GPU has as many ports nearest as every other.
    shared = [sum(gpu in a.near for a in topology.adapters) for gpu in topology.gpus]
    assert len(set(shared)) == 1
    assert "by its bus ids; what the file lacks is public" in topology.notes[0]
    assert f"the links between the GPUs are those of {machine}" in topology.notes[-1]
    check_connected(topology)


SUPPLEMENT = (
    '<system version="1"><cpu numaid="0">'
    + "".join(
        f'<pci busid="{i}:00:00.0" class="0x060400"><pci busid="{i}:01:00.0" class="0x030200"/>'
        f'<pci busid="{i}:02:00.0" class="0x020700"/></pci>'
        for i in range(8)
    )
    + "</cpu></system>"
)


def test_files_without_gpus_ask_for_the_machine() -> None:
    with pytest.raises(TopologyError) as caught:
        read_as("nccl-xml", SUPPLEMENT, "f")
    message = str(caught.value)
    assert "no <gpu> in it. It has 24 PCI devices, of which 8 look like GPUs" in message
    assert "says nothing of NVLink" in message
    assert "none of Azure ND96 A100 v4, Azure ND96 H100 v5, AWS p5.48xlarge" in message
    assert "--machine dgx-h100" in message
    assert "NCCL_TOPO_DUMP_FILE" in message
    topology = read_as("nccl-xml", SUPPLEMENT, "f", {"machine": "dgx-h100"}, catalog.machine)
    assert topology.directed() == catalog.machine("dgx-h100").directed()
    # The rate of the ports is not in the file; the machine has eight too, of one rate.
    assert {adapter.bandwidth for adapter in topology.adapters} == {Fraction(50)}
    assert [adapter.near for adapter in topology.adapters] == [(f"gpu{i}",) for i in range(8)]
    with pytest.raises(TopologyError, match="8 GPUs, but machine 'mi250' has 16"):
        read_as("nccl-xml", SUPPLEMENT, "f", {"machine": "mi250"}, catalog.machine)
    with pytest.raises(TopologyError, match="called 'dgx-h10'; did you mean 'dgx-h100'"):
        read_as("nccl-xml", SUPPLEMENT, "f", {"machine": "dgx-h10"}, catalog.machine)
    with pytest.raises(TopologyError, match="'rail' of the catalogue is a fabric, not a machine"):
        read_as("nccl-xml", SUPPLEMENT, "f", {"machine": "rail"}, catalog.machine)


def test_a_machine_stands_in_for_the_links_of_a_dump() -> None:
    text = system(*(gpu(i) for i in range(8)))
    topology = read_as("nccl-xml", text, "f", {"machine": "dgx-a100"}, catalog.machine)
    assert topology.directed() == catalog.machine("dgx-a100").directed()


def test_slips_in_settings_of_reader_and_network(tmp_path: Path) -> None:
    path = tmp_path / "dump.xml"
    path.write_text(MESH)
    with pytest.raises(TopologyError, match="unknown parameter 'box'; did you mean 'boxes'"):
        catalog.load(path, {"box": "2"})
    with pytest.raises(TopologyError, match=r"unknown parameter 'zzz'; there are nvlink, .*boxes"):
        catalog.load(path, {"zzz": "2"})


def test_every_switch_its_own() -> None:
    text = system(*(gpu(i, nvlink("0000:f0:00.0", 5), nvlink("0000:f1:00.0", 4)) for i in range(2)))
    directed = read_as("nccl-xml", text, "f", {"nvswitches": "each"}).directed()
    assert directed["gpu0", "nvswitch-0000-f0-00.0"] == 103
    assert directed["gpu0", "nvswitch-0000-f1-00.0"] == Fraction("82.4")
    assert read_as("nccl-xml", text, "f").directed()["gpu0", "nvswitch"] == Fraction("185.4")


def test_the_oracle_machine_has_four_switches_with_18_links_a_gpu() -> None:
    topology = catalog.load(real("oracle/H100-topology.xml"), {"nvswitches": "each"})
    switches = [name for name, node in topology.nodes.items() if node.kind == "switch"]
    assert len(switches) == 4
    for name in topology.gpus:
        counts = [link.count for link in topology.links if name in (link.src, link.dst)]
        assert sorted(counts) == [4, 4, 5, 5]


def test_bridges_of_one_bus_id_are_told_apart() -> None:
    text = system(
        *(
            f'<pci busid="0:c5:0.0" class="0x060400">{gpu(i, bus=f"0:{i + 1}:0.0")}</pci>'
            for i in range(3)
        )
    )
    nodes = read_as("nccl-xml", text, "f").nodes
    assert list(nodes)[-3:] == ["pci-0:c5:0.0", "pci-0:c5:0.0#2", "pci-0:c5:0.0#3"]


def test_pcie_is_taken_where_there_is_no_nvlink() -> None:
    topology = read_as("nccl-xml", PCIE_ONLY, "nccl-two-sockets.xml")
    assert topology.name == "nccl-two-sockets"
    assert topology.gpus == ("gpu0", "gpu1", "gpu2")
    assert topology.directed() == both(
        {
            ("gpu0", "pci-0000:20:00.0"): Fraction(24),  # 16 GT/s x16
            ("gpu1", "pci-0000:20:00.0"): Fraction(24),
            ("pci-0000:20:00.0", "cpu0"): Fraction(24),  # 5 GT/s stated, raised
            ("gpu2", "cpu1"): Fraction(12),  # neither speed nor width: NCCL's default
            ("cpu0", "cpu1"): Fraction(16),  # Rome
        }
    )
    assert "the PCIe tree" in topology.notes[0]
    check_connected(topology)
    assert topology.adapters[0].near == ("gpu2",)
    with pytest.raises(TopologyError, match="NVLink alone does not join all 3 GPUs"):
        read_as("nccl-xml", PCIE_ONLY, "f", {"pcie": "never"})


def both(links: dict[tuple[str, str], Fraction]) -> dict[tuple[str, str], Fraction]:
    return links | {(dst, src): bandwidth for (src, dst), bandwidth in links.items()}


def test_mesh_of_nvlinks() -> None:
    topology = read_as("nccl-xml", MESH, "dir/NCCL mesh.xml")
    assert topology.name == "nccl-mesh"
    # Rank order, not the order of the file; bus ids match whatever their padding and case.
    assert topology.gpus == ("gpu2", "gpu0", "gpu1")
    assert topology.directed() == both(
        {
            ("gpu0", "gpu1"): Fraction(40),
            ("gpu2", "gpu0"): Fraction(20),
            ("gpu1", "gpu2"): Fraction(40),
        }
    )
    assert any("1 <nvlink> lead to devices that are not in the file" in n for n in topology.notes)


def test_bandwidth_by_compute_capability() -> None:
    for sm, each in (
        ("60", "18"),
        ("70", "20"),
        ("80", "20"),
        ("86", "12"),
        ("89", "20"),
        ("90", "20.6"),
        ("100", "40.1"),
        ("103", "40.1"),
    ):
        text = system(*(gpu(i, nvlink(count=2), sm=sm) for i in range(2)))
        assert read_as("nccl-xml", text, "f").directed()["gpu0", "nvswitch"] == 2 * Fraction(each)


def test_switches_are_merged_and_strange_bus_ids_read() -> None:
    links = nvlink("0000:1c:00.0", 5) + nvlink("0000:1b:00.0", 4) + nvlink("fffffff:ff:ff.0", 9)
    text = system(gpu(0, links), gpu(1, links, bus="ffff:ff:01.0"))
    topology = read_as("nccl-xml", text, "vm.xml")
    assert list(topology.nodes) == ["gpu0", "gpu1", "nvswitch"]
    assert topology.directed()["gpu1", "nvswitch"] == Fraction("370.8")


def test_several_hosts_on_one_nvlink_domain() -> None:
    other = gpu(0, nvlink()).replace('rank="0"', 'rank="2"')
    text = (
        '<system version="1">'
        f'<cpu numaid="0" host_hash="0xa">{gpu(0, nvlink())}{gpu(1, nvlink())}</cpu>'
        f'<cpu numaid="0" host_hash="0xb">{other}</cpu></system>'
    )
    topology = read_as("nccl-xml", text, "f")
    assert topology.gpus == ("box0/gpu0", "box0/gpu1", "box1/gpu0")
    check_connected(topology)
    cut_off = text.replace(nvlink(), "")
    with pytest.raises(TopologyError, match="2 hosts in one dump, and NVLink does not join"):
        read_as("nccl-xml", cut_off, "f")


def test_c2c_and_processors_with_nvlink() -> None:
    text = system(
        gpu(0, '<c2c bw="25000" count="14"/>'),
        gpu(1, nvlink(count=3, tclass="0x068001"), sm="70"),
    )
    directed = read_as("nccl-xml", text, "f").directed()
    assert directed["gpu0", "cpu0"] == 48 + 350
    assert directed["gpu1", "cpu0"] == 48 + 60


@pytest.mark.parametrize(
    ("speed", "rate"),
    [
        ("2.5 GT/s", Fraction(3)),
        ("5.0 GT/s PCIe", Fraction(6)),
        ("8 GT/s", Fraction(12)),
        ("16.0 GT/s PCIe", Fraction(24)),
        ("32 GT/s PCIe/s", Fraction(48)),
        ("64.0 GT/s PCIe", Fraction(96)),
        ("Unknown", Fraction(12)),
        ("", Fraction(12)),
    ],
)
def test_spellings_of_link_speed(speed: str, rate: Fraction) -> None:
    text = system(gpu(0), gpu(1)).replace("32.0 GT/s PCIe", speed)
    assert read_as("nccl-xml", text, "f").directed()["gpu0", "cpu0"] == rate


BAD = [
    ("<graphs/>", "f:1: <graphs> is not an NCCL topology; that starts with <system>"),
    ("<system><cpu></system>", "f:1: not XML: mismatched tag"),
    ("<system>", "f:1: not XML: no element found"),
    ("", "f:1: not XML: no element found"),
    (
        '<!DOCTYPE a [<!ENTITY x "y">]>\n<system>&x;</system>',
        "f:1: a document type ('a') is not allowed: it can declare",
    ),
    ("<a>" * 100, "f:1: nested more than 64 deep"),
    (system(), "f: no <gpu> in it. It has 0 PCI devices without a class"),
    (system("<gpu dev='0'/>"), "f:3: <gpu> stands outside a <pci>; its bus id is unknown"),
    (system(gpu(0), gpu(0)), "f:4: a second GPU at bus id 0000:01:00.0"),
    (system(gpu(0), gpu(0, bus="0:2:0.0")), "f:4: dev 0 is there already, on another GPU"),
    (system(gpu(0, bus="zz")), "f:3: busid 'zz' is not a PCI bus id such as 0000:1b:00.0"),
    (system(gpu(0, nvlink(count=-1))), "f:3: count -1 is no number of NVLink links"),
    (system(gpu(0, nvlink(tclass="0x020000"))), "f:3: tclass '0x020000' is neither an NVSwitch"),
    (system(gpu(0, "<nvlink/>")), "f:3: <nvlink> lacks the attribute 'count'"),
    (
        system(gpu(0, nvlink("0000:01:00.0", 1, "0x030200"))),
        "f:3: an NVLink from a GPU to itself",
    ),
    (system(gpu(0, nvlink(), sm="x")), 'f:3: <gpu> sm="x" is not a whole number'),
    (
        system(gpu(0, nvlink(), sm="50")),
        "f:3: sm 50 has no NVLink that is known; give --set nvlink=",
    ),
    (
        system(gpu(0), gpu(1)).replace("32.0 GT/s PCIe", "33 GT/s"),
        'f:3: link_speed="33 GT/s" is not a PCIe speed: 2.5, 5, 8, 16, 32 or 64 GT/s',
    ),
    (system(gpu(0), gpu(1)).replace('"16"', '"99"'), "f:3: link_width 99 is not a number of PCIe"),
    (
        f'<system>\n<pci busid="0:1:0.0"><gpu dev="0"/></pci><cpu>{gpu(1)}</cpu></system>',
        "f:2: <gpu> stands outside a <cpu>",
    ),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=range(len(BAD)))
def test_bad_dumps_get_one_clear_message(text: str, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        read_as("nccl-xml", text, "f")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"nvlin": "1"}, r"^f: unknown parameter 'nvlin'; did you mean 'nvlink'\?$"),
        ({"boxes": "2"}, r"^f: unknown parameter 'boxes'; an NCCL dump has nvlink, pcie, "),
        ({"pcie": "maybe"}, r"^f: pcie=maybe: it is one of auto, always, never$"),
        ({"nvlink": "0"}, r"^f: nvlink=0 must be more than 0 GB/s$"),
        ({"nvlink": "fast"}, r"^f: nvlink: 'fast' is not a number"),
    ],
)
def test_wrong_settings(setting: dict[str, str], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        read_as("nccl-xml", MESH, "f", setting)


def test_a_file_that_is_xml_is_read_as_a_dump(tmp_path: Path) -> None:
    path = tmp_path / "any.txt"
    path.write_text("\n<!-- c -->\n" + MESH)
    assert isinstance(catalog.load(path), Topology)
    path.write_text("<html></html>")
    with pytest.raises(TopologyError, match=r"any\.txt:1: <html> is not an NCCL topology"):
        catalog.load(path)


def port(name: str, speed: int) -> str:
    return f'<pci busid="0000:8{name[-1]}:00.0" class="0x020700"><nic>' + (
        f'<net name="{name}" dev="0" speed="{speed}" port="1"/></nic></pci>'
    )


def test_contradictions_are_refused() -> None:
    for text, message in (
        (
            system(gpu(0, nvlink(count=9) * 2), gpu(1, nvlink())),
            "a second <nvlink> of gpu0 to 0000:f0:00.0, after line 3: NCCL writes one, with a coun",
        ),
        (
            system(gpu(0, nvlink(count=50)), gpu(1, nvlink())),
            'f:3: count="50": gpu0 would have 50 NVLink links; a GPU has 18 at most',
        ),
        (
            system(gpu(0, nvlink()), gpu(1, nvlink()), port("mlx5_0", -1)),
            'f:5: speed="-1" of port mlx5_0: no rate; write what it carries in Mb/s',
        ),
        (
            system(gpu(0, nvlink()), gpu(1, nvlink()), port("mlx5_0", 400000) * 2),
            "f:5: port 1 of mlx5_0 stands in line 5 already; leave one",
        ),
    ):
        with pytest.raises(TopologyError) as caught:
            read_as("nccl-xml", text, "f")
        assert message in str(caught.value)


def test_a_gpu_with_more_links_than_are_known() -> None:
    text = system(gpu(0, nvlink(count=36)), gpu(1, nvlink(count=36)))
    with pytest.raises(TopologyError, match=r"18 at most \(one that has more: --set nvlink=GB/s"):
        read_as("nccl-xml", text, "f")
    assert read_as("nccl-xml", text, "f", {"nvlink": "400Gb/s"}).directed()["gpu0", "nvswitch"] == (
        36 * 50
    )


def test_what_is_unlike_its_siblings_is_named() -> None:
    gpus = [gpu(i, nvlink()) for i in range(4)]
    ports = [port(f"mlx5_{i}", 400000) for i in range(4)]

    def notes(*parts: str) -> str:
        return "\n".join(read_as("nccl-xml", system(*parts), "f").notes)

    assert "alike" not in notes(*gpus, *ports)
    fewer = notes(*gpus[:3], gpu(3, nvlink(count=16)))
    assert "the links of GPUs are not alike: gpu3 329.6 GB/s; 3 of 4 have 370.8 GB/s" in fewer
    slow = notes(*gpus, *ports[:3], port("mlx5_3", 200000))
    assert "network ports are not alike: mlx5_3 25 GB/s; 3 of 4 have 50 GB/s" in slow
    idle = notes(*gpus, *ports[:3], port("mlx5_3", 0))
    assert "1 ports state no speed and are left out: mlx5_3 in line 10" in idle
    assert "dev 0 to dev 3 are 3 GPUs" in notes(gpus[0], gpus[1], gpus[3])
    lost = re.sub("<gpu.*</gpu>", "", gpus[3])
    assert "1 PCI devices are GPUs by their class and have no <gpu>, and take no part" in notes(
        *gpus[:3], lost
    )
    fast = notes(*gpus, *(port(f"mlx5_{i}", 3200000) for i in range(4)))
    assert "network port mlx5_3 is 400 GB/s, 3,200 Gb/s, and no network port carries" in fast
    units = notes(*gpus, *(port(f"mlx5_{i}", 400) for i in range(4)))
    assert "network port mlx5_3 is 0.05 GB/s, less than 1 Gb/s: is its figure in other" in units
