"""What one link carries, by generation: GB/s a direction, with the sources."""

from __future__ import annotations

from fractions import Fraction

NVLINK = tuple(
    (least, Fraction(rate))
    for least, rate in (
        (100, "40.1"), (90, "20.6"), (87, "20"), (86, "12"), (70, "20"), (60, "18"),
    )
)  # fmt: skip
"""One NVLink, by the least compute capability that has it, as NCCL counts it (NVIDIA/nccl 2.30,
src/graph/topo.h)."""

XGMI = (
    (("gfx94",), Fraction(48)),
    (("gfx90a", "910"), Fraction(36)),
    (("gfx900", "gfx906", "gfx908", "900", "906", "908"), Fraction(24)),
)
"""One xGMI link, by how the architecture's name starts, as RCCL counts it (ROCm/rccl,
src/graph/topo.h)."""

MOST_NVLINKS, MOST_XGMI = 18, 8
"""Links that a GPU has at most: H100 and B200 18; a die of MI250 8, of which 7 in the machines
that are known, and MI300X 7 (the makers' architecture whitepapers)."""

LINKS_OF = {18: 90, 12: 80, 6: 70, 4: 60}
"""NVLinks of a GPU -> its compute capability: H100 has 18, A100 12, V100 6, P100 4 (NVIDIA's
architecture whitepapers). B200 has 18 as well: only its owner can tell."""

PCIE_OF = {60: Fraction(12), 70: Fraction(12), 80: Fraction(24), 90: Fraction(48)}
"""PCIe x16 of a GPU of that compute capability: generation 3, 3, 4, 5, at NCCL's 0.75 GB/s a lane
of generation 3."""

INFINIBAND_LANE = {
    name: Fraction(rate)
    for name, rate in {
        "SDR": "2.5", "DDR": "5", "QDR": "10", "FDR10": "10.3", "FDR": "14", "EDR": "25",
        "HDR": "50", "NDR": "100", "XDR": "200",
    }.items()
}  # fmt: skip
"""Gb/s of one InfiniBand lane (InfiniBand Trade Association, roadmap); SDR to QDR count the line's
bits, of which 8 of 10 carry data."""
