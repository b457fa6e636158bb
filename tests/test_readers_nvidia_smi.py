"""`nvidia-smi topo -m`: the real matrices where they are at hand, and every trap in small ones."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from real_files import read_as, real

from forestcoll.common.errors import TopologyError
from forestcoll.topology import Topology, catalog, check_connected, readers

PAIRS = """\
        GPU0    GPU1    GPU2    GPU3    NIC0    NIC1    CPU Affinity    NUMA Affinity
GPU0     X      NV4     SYS     SYS     PIX     SYS     0-7     0
GPU1    NV4      X      SYS     SYS     PIX     SYS     0-7     0
GPU2    SYS     SYS      X      NV4     SYS     PHB     8-15    1
GPU3    SYS     SYS     NV4      X      SYS     NODE    8-15    1
NIC0    PIX     PIX     SYS     SYS      X      SYS
NIC1    SYS     SYS     PHB     NODE    SYS      X

Legend:
  X    = Self

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_bond_1
"""


def load(text: str, **settings: str) -> Topology:
    return read_as("nvidia-smi", text, "topo.txt", settings, catalog.machine)


def matrix(*rows: str) -> str:
    """A matrix of GPUs alone; a row is its relations."""
    header = "\t" + "\t".join(f"GPU{i}" for i in range(len(rows))) + "\tCPU Affinity"
    lines = [f"GPU{i}\t" + "\t".join(row.split()) for i, row in enumerate(rows)]
    return "\n".join([header, *lines]) + "\n"


def test_the_dgx1_is_the_catalogues() -> None:
    topology = catalog.load(real("nvidia-smi-topo/dgx1-v100.txt"), {"nvlink": "25"})
    assert topology.directed() == catalog.machine("dgx1-v100").directed()
    assert [a.name for a in topology.adapters] == ["mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3"]
    assert [a.near for a in topology.adapters][:2] == [("gpu0", "gpu1"), ("gpu4", "gpu5")]
    assert {a.bandwidth for a in topology.adapters} == {None}
    assert "4 network ports; their rates are not in the file" in topology.notes[0]
    as_counted = catalog.load(real("nvidia-smi-topo/dgx1-v100.txt"))
    assert as_counted.directed()["gpu0", "gpu3"] == 40  # two links of 20, as NCCL counts V100's
    assert "compute capability 7, assumed from 6 links a GPU" in as_counted.notes[-1]


def test_18_links_to_all_peers_are_a_switch() -> None:
    topology = catalog.load(real("nvidia-smi-topo/ml-engineering-h100x8.txt"))
    assert Counter((link.count, link.dst) for link in topology.links) == {(18, "nvswitch"): 8}
    assert topology.directed()["gpu7", "nvswitch"] == Fraction("370.8")


def test_four_a100_with_12_links_to_all_peers() -> None:
    topology = catalog.load(real("nvidia-smi-topo/litgpt-all_nvlink_connected_output.txt"))
    assert topology.directed() == {
        ends: 240 for gpu in topology.gpus for ends in ((gpu, "nvswitch"), ("nvswitch", gpu))
    }


def test_pairs_of_gpus_need_what_the_file_lacks() -> None:
    path = real("nvidia-smi-topo/litgpt-nvlink_partially_connected_output.txt")
    with pytest.raises(TopologyError, match=r"1 NVLinks a GPU: no GPU .*--set nvlink=GB/s \(V100"):
        catalog.load(path)
    with pytest.raises(TopologyError) as caught:
        catalog.load(path, {"nvlink": "20"})
    assert "NVLink does not join all 4 GPUs, and what PCIe carries is not in the file" in str(
        caught.value
    )
    assert "--set pcie_rate=GB/s" in str(caught.value)
    assert "--set socket_rate=GB/s" in str(caught.value)
    given = {"nvlink": "20", "pcie_rate": "12", "socket_rate": "10"}
    topology = catalog.load(path, given)
    assert {frozenset(ends): rate for ends, rate in topology.directed().items()} == {
        frozenset(("gpu0", "gpu1")): 20,
        frozenset(("gpu2", "gpu3")): 20,
        frozenset(("gpu0", "cpu0")): 12,
        frozenset(("gpu1", "cpu0")): 12,
        frozenset(("gpu2", "cpu1")): 12,
        frozenset(("gpu3", "cpu1")): 12,
        frozenset(("cpu0", "cpu1")): 10,
    }
    check_connected(topology)


def test_pcie_switches_and_legend() -> None:
    topology = load(PAIRS, nvlink="20", pcie_rate="24", socket_rate="16", port_rate="25")
    directed = topology.directed()
    assert directed["gpu0", "pcie0"] == 24  # both are PIX to NIC0
    assert directed["pcie0", "cpu0"] == 24
    assert directed["gpu2", "cpu1"] == 24  # PHB and NODE are the socket
    assert ("gpu0", "cpu0") not in directed
    assert [(a.name, a.bandwidth, a.near) for a in topology.adapters] == [
        ("mlx5_0", 25, ("gpu0", "gpu1")),
        ("mlx5_bond_1", 25, ("gpu2",)),
    ]
    # A P100 has four NVLinks, so its PCIe is known too; sockets never are.
    with pytest.raises(TopologyError, match=r"not in the file: give --set socket_rate=GB/s, or"):
        load(PAIRS)
    with pytest.raises(TopologyError, match="NVLink alone does not join all 4 GPUs; leave pcie=n"):
        load(PAIRS, pcie="never")


def test_traps_of_the_header() -> None:
    rates = {"nvlink": "20", "pcie_rate": "24", "socket_rate": "16"}
    plain = load(PAIRS, **rates)
    lines = PAIRS.split("\n")
    underlined = PAIRS.replace("        GPU0", "\t\x1b[4mGPU0", 1).replace(
        "NUMA Affinity", "NUMA Affinity\x1b[0m"
    )
    run_together = PAIRS.replace("NIC0    NIC1    CPU", "NIC0NIC1    CPU")
    wrapped = PAIRS.replace("NIC0    NIC1    CPU", "\n        NIC0    NIC1    CPU", 1)
    shuffled = "\n".join([lines[0], *reversed(lines[1:7]), *lines[7:]])
    windows = PAIRS.replace("\n", "\r\n")
    for text in (underlined, run_together, wrapped, shuffled, windows):
        found = readers.format_of(text)
        assert found is not None
        assert found.name == "nvidia-smi"
        topology = load(text, **rates)
        assert topology == plain
        assert topology.adapters == plain.adapters
    without_legend = load(PAIRS[: PAIRS.index("Legend")], **rates)
    assert [a.name for a in without_legend.adapters] == ["NIC0", "NIC1"]


def test_a_mesh_where_the_links_are_as_many_as_a_gpu_has() -> None:
    topology = load(matrix("X NV6 NV6 NV6", "NV6 X NV6 NV6", "NV6 NV6 X NV6", "NV6 NV6 NV6 X"))
    assert topology.directed()["gpu0", "gpu3"] == 6 * Fraction("20.6")
    assert len(topology.links) == 6


def test_a_machine_stands_in_for_what_is_not_there() -> None:
    # As on GB200, where NVLink to other trays is no link of this one's.
    text = matrix(*(" ".join("X" if i == j else "SYS" for j in range(8)) for i in range(8)))
    with pytest.raises(TopologyError, match=r"NVLink does not join all 8 GPUs.*--set machine=NAME"):
        load(text)
    topology = load(text, machine="dgx-h100")
    assert topology.directed() == catalog.machine("dgx-h100").directed()
    assert len(topology.adapters) == 8  # of the machine: the file has none
    assert "the network ports are those of dgx-h100" in topology.notes[-1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\tGPU0\tGPU1", "a header and no row below it; was the file cut off?"),
        ("hello", "no header with GPU0 in it"),
        (matrix("X NV1", "NV1"), "topo.txt:3: the row of GPU1 has 1 entries, the header 2 devices"),
        (matrix("X NV1", "NV1 X").rsplit("GPU1", 1)[0], "GPU1 has no row; was the file cut off?"),
        (matrix("X NV1", "NV2 X"), "GPU1 has NV2 to GPU0, and GPU0 has NV1 back"),
        (matrix("X X", "X X"), "GPU1 and GPU0 stand as one device (X)"),
        (matrix("X NVX", "NVX X"), "topo.txt:2: 'NVX' in the row of GPU0 is none of X, NV1"),
        (matrix("X NV1", "NV1 X") + "GPU1 NV1 X\n", "topo.txt:4: a second row of GPU1"),
        (matrix("X NV1", "NV1 X").replace("GPU1", "GPU0"), "a device stands twice in the header"),
        (
            matrix("X NV9 NV9 NV8", "NV9 X NV9 NV9", "NV9 NV9 X NV9", "NV8 NV9 NV9 X"),
            "GPU0 would have 26 NVLinks, more than the 18",
        ),
    ],
)  # fmt: skip
def test_bad_matrices(text: str, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load(text)
    assert message in str(caught.value)
