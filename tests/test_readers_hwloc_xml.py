"""hwloc's XML: a real DGX-2 where it is at hand, and the traps in small machines."""

from __future__ import annotations

from fractions import Fraction

import pytest
from real_files import read_as, real

from forestcoll.common.errors import TopologyError
from forestcoll.topology import Topology, catalog, check_connected

DGX2 = "hwloc/nvidiaDGX2.xml"


def gpu(index: int, bus: str, speed: str = "15.75", vendor: str = "10de") -> str:
    return (
        f'<object type="PCIDev" gp_index="{index}" pci_busid="{bus}" '
        f'pci_type="0302 [{vendor}:1db8] [10de:131d] a1 00" pci_link_speed="{speed}">'
        f'<object type="OSDev" gp_index="{index + 100}" name="nvml{index}" osdev_type="12"/>'
        "</object>"
    )


NIC = (
    '<object type="PCIDev" gp_index="50" pci_busid="0000:05:00.0" '
    'pci_type="0207 [15b3:1017] [15b3:0000] 00 00" pci_link_speed="15.75">'
    '<object type="OSDev" gp_index="51" name="ib0" osdev_type="2"/>'
    '<object type="OSDev" gp_index="52" name="mlx5_0" osdev_type="3"/></object>'
)


def bridge(index: int, *inside: str, speed: str = "7.88") -> str:
    return (
        f'<object type="Bridge" gp_index="{index}" bridge_type="1-1" '
        f'pci_busid="0000:{index:02x}:00.0" pci_link_speed="{speed}">{"".join(inside)}</object>'
    )


def package(index: int, *inside: str) -> str:
    info = '<info name="CPUVendor" value="AuthenticAMD"/><info name="CPUFamilyNumber" value="23"/>'
    return f'<object type="Package" gp_index="{index}">{info}{"".join(inside)}</object>'


def machine(*inside: str, after: str = "") -> str:
    return (
        '<?xml version="1.0"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology version="2.0">'
        f'<object type="Machine" gp_index="1">{"".join(inside)}</object>{after}</topology>'
    )


def matrix(name: str, ends: str, values: str) -> str:
    return (
        f'<distances2hetero nbobjs="{len(ends.split())}" kind="25" name="{name}">'
        f"<indexes>{ends}</indexes><u64values>{values}</u64values></distances2hetero>"
    )


TWO_SOCKETS = machine(
    package(2, bridge(20, gpu(3, "0000:03:00.0"), gpu(4, "0000:04:00.0"), NIC)),
    package(5, gpu(6, "0000:81:00.0")),
)


def load(text: str, **settings: str) -> Topology:
    return read_as("hwloc-xml", text, "machine.xml", settings, catalog.machine)


def test_the_dgx2() -> None:
    topology = catalog.load(real(DGX2))
    assert topology.directed() == catalog.machine("dgx2-v100").directed()  # 6 x 25 GB/s per GPU
    assert "12 NVSwitches count as one" in topology.notes[0]
    each = catalog.load(real(DGX2), {"nvswitches": "each"})
    switches = [name for name in each.nodes if name.startswith("nvswitch-")]
    assert len(switches) == 12
    directed = each.directed()
    assert all(
        sum(directed.get((gpu, switch), 0) == 25 for switch in switches) == 6 for gpu in each.gpus
    )
    # Each half has switches of its own; nothing in the file but PCIe joins the halves.
    assert any("PCIe" in note for note in each.notes)
    assert directed["gpu0", "pci-0000-32-00.0"] == Fraction("15.753846")
    check_connected(each)


def test_pcie_and_sockets() -> None:
    topology = load(TWO_SOCKETS)
    assert topology.gpus == ("gpu0", "gpu1", "gpu2")
    directed = topology.directed()
    speed = Fraction("15.75")
    assert directed["gpu0", "pci-0000-14-00.0"] == speed
    assert directed["pci-0000-14-00.0", "cpu0"] == speed  # the bridge states less: raised
    assert directed["gpu2", "cpu1"] == speed
    assert directed["cpu0", "cpu1"] == 16  # NCCL's figure for that processor
    assert [(a.name, a.bandwidth, a.near) for a in topology.adapters] == [
        ("mlx5_0", None, ("gpu0", "gpu1"))
    ]
    assert load(TWO_SOCKETS, port_rate="12.5").adapters[0].bandwidth == Fraction(25, 2)
    assert any("hwloc sees it only with NVML" in note for note in topology.notes)
    with pytest.raises(TopologyError, match="no matrix of NVLink joins all 3 GPUs; leave pcie"):
        load(TWO_SOCKETS, pcie="never")
    check_connected(topology)


def test_matrices() -> None:
    pair = [gpu(3, "0000:03:00.0"), gpu(4, "0000:04:00.0")]
    links = matrix("NVLinkBandwidth", "OSDev:103 OSDev:104", "0 50000 50000 0")
    assert load(machine(package(2, *pair), after=links)).directed() == {
        ("gpu0", "gpu1"): 50,
        ("gpu1", "gpu0"): 50,
    }
    uneven = matrix("XGMIBandwidth", "PCIDev:3 PCIDev:4", "1000000 50000 36000 1000000")
    assert load(machine(package(2, *pair), after=uneven)).directed() == {
        ("gpu0", "gpu1"): 50,
        ("gpu1", "gpu0"): 36,
    }
    assert load(machine(package(2, *pair), after=links), pcie="always").directed()["gpu0", "cpu0"]
    for bad, message in (
        (matrix("NVLinkBandwidth", "OSDev:103 OSDev:104", "0 1 1"), "3 values for 2 objects"),
        (matrix("NVLinkBandwidth", "OSDev:103 OSDev:999", "0 1 1 0"), "'OSDev:999' is not a PCI"),
        (matrix("NVLinkBandwidth", "OSDev:103 OSDev:104", "0 x 1 0"), "'x' is not a number of MB"),
    ):
        with pytest.raises(TopologyError, match=message):
            load(machine(package(2, *pair), after=bad))


def test_a_machine_stands_in() -> None:
    text = machine(package(2, *(gpu(i, f"0000:{i:02x}:00.0") for i in range(3, 11)), NIC))
    topology = load(text, machine="dgx-h100")
    assert topology.directed() == catalog.machine("dgx-h100").directed()
    assert [a.name for a in topology.adapters] == ["mlx5_0"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (machine(), "machine.xml: no GPU in it: no PCI device of NVIDIA or AMD"),
        (machine(package(2, gpu(3, "x", vendor="1a03"))), "no GPU in it"),
        (TWO_SOCKETS.replace("15.75", "fast"), "machine.xml:3: pci_link_speed: 'fast' is not a"),
        (TWO_SOCKETS.replace(' pci_link_speed="15.75"', ""), "hwloc reads it as root only"),
        ("<root/>", "machine.xml:1: <root> is not hwloc's XML"),
        (
            TWO_SOCKETS.replace('SYSTEM "hwloc2.dtd"', '[<!ENTITY a "b">]'),
            "machine.xml:2: a document type ('topology') is not allowed",
        ),
        (
            machine(gpu(3, "0000:03:00.0"), package(2, gpu(4, "0000:04:00.0"))),
            "some GPUs hang on no package",
        ),
    ],
)
def test_bad_files(text: str, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load(text)
    assert message in str(caught.value)
