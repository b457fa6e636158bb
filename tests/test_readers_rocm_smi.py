"""`rocm-smi --showtopo`: a real one where it is at hand, and the traps in small ones."""

from __future__ import annotations

import pytest
from real_files import read_as, real

from forestcoll.common.errors import TopologyError
from forestcoll.topology import Topology, catalog, check_connected


def table(title: str, rows: list[list[str]]) -> str:
    names = [f"GPU{i}" for i in range(len(rows))]
    lines = ["       " + "         ".join(names)]
    lines += [f"{n}   " + "  ".join(row) for n, row in zip(names, rows, strict=True)]
    return f"========== {title} between two GPUs ==========\n" + "\n".join(lines) + "\n\n"


def tables(weights: list[list[int]]) -> str:
    """All three tables; a weight of 15 or a multiple is xGMI, others PCIe."""
    n = range(len(weights))
    kinds = [
        ["0" if i == j else "XGMI" if weights[i][j] % 15 == 0 else "PCIE" for j in n] for i in n
    ]
    numa = "".join(f"GPU[{i}]\t\t: (Topology) Numa Node: {2 * i // len(weights)}\n" for i in n)
    return (
        "============== ROCm System Management Interface ==============\n"
        + table("Weight", [[str(w) for w in row] for row in weights])
        + table("Hops", [["0" if i == j else "1" for j in n] for i in n])
        + table("Link Type", kinds)
        + "=========== Numa Nodes ===========\n"
        + numa
        + "=========== End of ROCm SMI Log ===========\n"
    )


RING = tables([[0, 15, 30, 15], [15, 0, 15, 30], [30, 15, 0, 15], [15, 30, 15, 0]])
TWO_PAIRS = tables([[0, 15, 72, 72], [15, 0, 72, 72], [72, 72, 0, 15], [72, 72, 15, 0]])


def load(text: str, **settings: str) -> Topology:
    return read_as("rocm-smi", text, "topo.txt", settings, catalog.machine)


def test_the_real_full_mesh() -> None:
    topology = catalog.load(real("rocm-smi-showtopo/mi308x-8gpu.txt"))
    assert topology.directed() == {
        (a, b): 48 for a in topology.gpus for b in topology.gpus if a != b
    }
    assert any("assumed from the full mesh of 8" in note for note in topology.notes)
    assert any("does not tell how many there are" in note for note in topology.notes)
    at_64 = catalog.load(real("rocm-smi-showtopo/mi308x-8gpu.txt"), {"xgmi": "64"})
    assert at_64.directed() == catalog.machine("mi300x").directed()


def test_two_hops_of_xgmi_are_no_link() -> None:
    topology = load(RING, xgmi="36")
    assert len(topology.links) == 4
    assert ("gpu0", "gpu2") not in topology.directed()
    with pytest.raises(TopologyError, match=r"2 xGMI peers a GPU: .*--set xgmi=GB/s"):
        load(RING)


def test_pcie_joins_what_xgmi_does_not() -> None:
    with pytest.raises(
        TopologyError, match=r"xGMI does not join all 4 GPUs.*pcie_rate.*socket_rat"
    ):
        load(TWO_PAIRS, xgmi="24")
    topology = load(TWO_PAIRS, xgmi="24", pcie_rate="24", socket_rate="16")
    directed = topology.directed()
    assert directed["gpu0", "gpu1"] == 24
    assert directed["gpu1", "cpu0"] == 24
    assert directed["gpu2", "cpu1"] == 24
    assert directed["cpu0", "cpu1"] == 16
    check_connected(topology)


def test_a_machine_stands_in() -> None:
    mesh = tables([[0 if i == j else 15 for j in range(16)] for i in range(16)])
    topology = load(mesh, machine="mi250")
    assert topology.directed() == catalog.machine("mi250").directed()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RING[: RING.index("= Link")], "table 'Link type between two GPUs' is missing or cut off"),
        (RING[: RING.index("= Link") + 120], "topo.txt:19: a row of 0 entries for 'GP'"),
        (RING.replace("  0  15  30\n", "  0\n", 1), "topo.txt:5: a row of 2 entries for 'GPU1'"),
        (RING.replace("GPU1   15  0", "GPU1   16  0", 1), "state different links of each other"),
        (RING.replace("XGMI", "NVLINK"), "type 'NVLINK', weight '15'; known are XGMI and PCIE"),
        (RING.replace("GPU3", "GPU2"), "a GPU twice"),
        (RING.replace("       GPU0", "   CARD", 1), "does not name GPUs"),
    ],
)  # fmt: skip
def test_bad_tables(text: str, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load(text, xgmi="36")
    assert message in str(caught.value)
