"""Every file that a real machine wrote: what it becomes, or why it is refused."""

from __future__ import annotations

import re

import pytest
from real_files import FOLDER, real

from forestcoll.common.errors import TopologyError
from forestcoll.topology import catalog, check_connected, dumps_topology, loads_topology

HOSTS = (("hosts", "str-msn2700-01,str-acs-*"),)  # the lab is two networks; one of them
PARTS = (("nvlink", "20"), ("pcie_rate", "12"), ("socket_rate", "10"))

READ = {  # file, settings -> GPUs (or hosts), switches, links
    ("nccl-xml/oracle/H100-topology.xml", ()): (8, 1, 144),
    ("nccl-xml/azure/ndv4-topo.xml", ()): (8, 1, 8),
    ("nccl-xml/azure/ndv5-topo.xml", ()): (8, 1, 8),
    ("nccl-xml/azure/nc48v4-topo.xml", ()): (2, 0, 12),
    ("nccl-xml/aws/p5.48xl-topo.xml", ()): (8, 1, 8),
    ("rccl-xml/topo_16p1h.xml", ()): (16, 0, 56),
    ("rccl-xml/topo_3p_pcie.xml", ()): (3, 5, 7),
    ("rccl-xml/topo_4p4h.xml", ()): (16, 21, 60),
    ("rccl-xml/topo_8p6l_4nic.xml", ()): (8, 0, 24),
    ("rccl-xml/topo_8p_90a.xml", ()): (8, 0, 12),
    ("rccl-xml/topo_8p_940.xml", ()): (8, 0, 28),
    ("rccl-xml/topo_8p_rome_n2.xml", ()): (8, 12, 30),
    ("ibnetdiscover/dgx-ndr-fabric.out", (("hosts", "*dgx*"),)): (119, 40, 998),
    ("ibnetdiscover/ibtopotool-1.topo", (("unnamed", "each"),)): (4, 2, 7),
    ("nvidia-smi-topo/dgx1-v100.txt", ()): (8, 0, 24),
    ("nvidia-smi-topo/litgpt-all_nvlink_connected_output.txt", ()): (4, 1, 48),
    ("nvidia-smi-topo/litgpt-nvlink_partially_connected_output.txt", PARTS): (4, 2, 7),
    ("nvidia-smi-topo/ml-engineering-h100x8.txt", ()): (8, 1, 144),
    ("rocm-smi-showtopo/mi308x-8gpu.txt", ()): (8, 0, 28),
    ("hwloc/nvidiaDGX2.xml", ()): (16, 1, 16),
    ("fabric/sonic_lab_links.csv", HOSTS): (2, 10, 60),
    ("fabric/netq-topologyGraph.json", (("rate", "50"),)): (8, 3, 79),
}  # fmt: skip

REFUSED = {
    "ibnetdiscover/ibtopotool-1.topo": r"none of the 4 adapters carries a host's name.*unnamed=",
    "ibnetdiscover/ibtopotool-4.topo": r"1 host \(nsn33-43\) in it; a collective needs two",
    "nvidia-smi-topo/litgpt-nvlink_partially_connected_output.txt": r"--set nvlink=GB/s",
    "fabric/sonic_lab_links.csv": r"which devices are hosts is not in the list.*--set hosts=",
    "fabric/sonic_lab_devices.csv": r"a list of devices, not of links: give the list of links",
    "fabric/netq-topologyGraph.json": r"NetQ's graph has no rates.*--set rate=GB/s",
    "fabric/nvl72.yaml": r"a model of switches and blocks.*Take the machine from the catalogue",
}


@pytest.mark.parametrize(("name", "settings"), READ)
def test_what_is_read(name: str, settings: tuple[tuple[str, str], ...]) -> None:
    topology = catalog.load(real(name), dict(settings))
    links = sum(link.count for link in topology.links)
    found = len(topology.gpus), len(topology.nodes) - len(topology.gpus), links
    assert found == READ[name, settings]
    check_connected(topology)
    assert loads_topology(dumps_topology(topology)) == topology


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    with pytest.raises(TopologyError) as caught:
        catalog.load(real(name))
    assert re.search(REFUSED[name], str(caught.value))
    assert str(caught.value).startswith(str(real(name)))


def test_no_file_is_forgotten() -> None:
    real("SOURCES.md")
    files = {str(p.relative_to(FOLDER)) for p in FOLDER.rglob("*") if p.is_file()}
    assert files - {"SOURCES.md"} == {name for name, _ in READ} | set(REFUSED)
