"""What one link carries, by generation: GB/s a direction, with the sources.

A PCIe link has width * lane rate / 80 GB/s (lane rates below in 100 Mb/s), and two sockets what
NCCL counts for the processor (NVIDIA/nccl 2.30, src/graph/topo.h, topo.cc).
"""

from __future__ import annotations

import re
from fractions import Fraction

from forestcoll.topology.source import Element

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

LANE = {"2.5": 15, "5": 30, "8": 60, "16": 120, "32": 240, "64": 480}
DEFAULT_LANE, DEFAULT_WIDTH = 60, 16  # where the file states neither, as NCCL assumes


def link_rate(pci: Element) -> Fraction:
    """GB/s of the link above a PCIe device, from its `link_speed` and `link_width`.

    The speed is spelled "16 GT/s", "16.0 GT/s PCIe", "32 GT/s PCIe/s" or not at all.
    """
    speed = pci.get("link_speed").strip()
    lane = DEFAULT_LANE
    if speed and not speed.lower().startswith("unknown"):
        match = re.match(r"([0-9]{1,3})(?:\.([0-9]{1,3}))?\s*GT/s", speed)
        fraction = (match[2] or "").rstrip("0") if match else ""
        lane_rate = LANE.get(f"{match[1]}.{fraction}" if fraction else match[1]) if match else None
        if lane_rate is None:
            raise pci.error(
                f'link_speed="{speed[:40]}" is not a PCIe speed: 2.5, 5, 8, 16, 32 or 64 GT/s'
            )
        lane = lane_rate
    width = pci.integer("link_width", default=0) or DEFAULT_WIDTH
    if not 1 <= width <= 32:
        raise pci.error(f"link_width {width} is not a number of PCIe lanes")
    return Fraction(width * lane, 80)


def socket_rate(cpu: Element) -> Fraction:
    """Returns GB/s between that processor and the other one."""
    arch, vendor = cpu.get("arch"), cpu.attributes.get("vendor", "GenuineIntel")
    family = cpu.integer("familyid", default=0)
    model = cpu.integer("modelid", default=0)
    if arch == "ppc64":
        return Fraction(32)
    if arch == "arm64":
        return Fraction(6)
    if vendor == "AuthenticAMD":  # families as CPUID has them, or as NCCL's own model files do
        return Fraction({25: 24, 0xAF: 24, 26: 32, 0xBF: 32}.get(family, 16))
    if vendor == "GenuineIntel" and family == 6:
        if model >= 0xCF or 0xAD <= model <= 0xAF:
            return Fraction(40)
        if model >= 0x8F:
            return Fraction(22)
        return Fraction(10 if model >= 0x55 else 6)
    return Fraction(6)
