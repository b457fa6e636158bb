"""The PCIe tree of an NCCL dump: bridges and sockets as switches, with NCCL's bandwidths.

A PCIe link has width * lane rate / 80 GB/s (lane rates below in 100 Mb/s), C2C bw * count / 1000,
and two sockets what NCCL counts for the processor (NVIDIA/nccl 2.30, src/graph/topo.h, topo.cc).
Only what lies above a GPU is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction

from forestcoll.topology import Link, Node
from forestcoll.topology.readers.xml_tree import Element

LANE = {"2.5": 15, "5": 30, "8": 60, "16": 120, "32": 240, "64": 480}
DEFAULT_LANE, DEFAULT_WIDTH = 60, 16  # where the file states neither, as NCCL assumes
BRIDGE_TO_CPU = "0x068001"  # target class of an NVLink that ends at the processor


def link_rate(pci: Element) -> Fraction:
    """GB/s of the link above a PCIe device, from its `link_speed` and `link_width`.

    The speed is spelled "16 GT/s", "16.0 GT/s PCIe", "32 GT/s PCIe/s" or not at all.
    """
    speed = pci.attributes.get("link_speed", "").strip()
    lane = DEFAULT_LANE
    if speed and not speed.lower().startswith("unknown"):
        match = re.match(r"([0-9]{1,3})(?:\.([0-9]{1,3}))?\s*GT/s", speed)
        fraction = (match[2] or "").rstrip("0") if match else ""
        known = LANE.get(f"{match[1]}.{fraction}" if fraction else match[1]) if match else None
        if known is None:
            raise pci.error(
                f'link_speed="{speed[:40]}" is not a PCIe speed: 2.5, 5, 8, 16, 32 or 64 GT/s'
            )
        lane = known
    width = pci.integer("link_width", default=0) or DEFAULT_WIDTH
    if not 1 <= width <= 32:
        raise pci.error(f"link_width {width} is not a number of PCIe lanes")
    return Fraction(width * lane, 80)


def socket_rate(cpu: Element) -> Fraction:
    """GB/s between that processor and the other one."""
    arch = cpu.attributes.get("arch", "x86_64")
    vendor = cpu.attributes.get("vendor", "GenuineIntel")
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


class PcieTree:
    """Collects `nodes` and `links` from the sockets down to the GPUs.

    `ids` has the node id of every `<gpu>` by Python's `id()` of the element, `prefixes` what stands
    before a host's other ids by host_hash. `raised`: no bridge is slower than what hangs below it.
    """

    def __init__(
        self, root: Element, ids: Mapping[int, str], prefixes: Mapping[str, str], raised: bool
    ) -> None:
        self.root = root
        self.ids = ids
        self.prefixes = prefixes
        self.raised = raised
        self.nodes: dict[str, Node] = {}
        self.links: list[Link] = []
        self.bridges: dict[str, Fraction] = {}  # rate above each, by bus id
        self.sockets: dict[str, Fraction] = {}  # rate to others

    def build(self, nvlink: Callable[[Element], Fraction]) -> None:
        """Fills `nodes` and `links`; `nvlink` gives GB/s of one NVLink of a `<gpu>`."""
        sockets: list[tuple[Element, str]] = []
        for i, cpu in enumerate(self.root.named("cpu")):
            prefix = self.prefixes[cpu.attributes.get("host_hash", "")]
            if not any(id(element) in self.ids for element in cpu.walk()):
                continue
            name = self.switch(cpu, f"{prefix}cpu{cpu.integer('numaid', default=i)}")
            for pci in cpu.named("pci"):
                self.descend(pci, name, prefix)
            self.beside_pcie(cpu, name, nvlink)
            for other, other_name in sockets:
                if self.prefixes[other.attributes.get("host_hash", "")] == prefix:
                    self.join(other_name, name, socket_rate(other), socket_rate(cpu))
            sockets.append((cpu, name))
            self.sockets[name] = socket_rate(cpu)

    def switch(self, element: Element, name: str) -> str:
        number = 2
        while (name if number == 2 else f"{name}#{number - 1}") in self.nodes:
            number += 1  # several bridges of one bus id: dumps of merged PCIe switches have them
        name = name if number == 2 else f"{name}#{number - 1}"
        self.nodes[name] = Node("switch")
        return name

    def join(self, one: str, two: str, there: Fraction, back: Fraction) -> None:
        if there == back:
            self.links.append(Link(one, two, there))
        else:
            self.links.append(Link(one, two, there, oneway=True))
            self.links.append(Link(two, one, back, oneway=True))

    def descend(self, pci: Element, above: str, prefix: str) -> Fraction | None:
        """Adds the device and all below; the rate of the link above it, None without GPUs."""
        gpus = [self.ids[id(child)] for child in pci.children if id(child) in self.ids]
        rate = link_rate(pci)
        if gpus:
            self.links.extend(Link(gpu, above, rate) for gpu in gpus)
            return rate
        if not any(id(element) in self.ids for element in pci.walk()):
            return None
        name = self.switch(pci, f"{prefix}pci-{pci.text('busid')}")
        below = [self.descend(child, name, prefix) for child in pci.named("pci")]
        if self.raised:
            rate = max([rate, *(r for r in below if r is not None)])
        self.links.append(Link(name, above, rate))
        self.bridges[name] = rate
        return rate

    def beside_pcie(self, cpu: Element, name: str, nvlink: Callable[[Element], Fraction]) -> None:
        """C2C and NVLink that end at the processor itself."""
        for gpu in (element for element in cpu.walk() if id(element) in self.ids):
            for c2c in gpu.named("c2c"):
                rate = Fraction(c2c.integer("bw") * c2c.integer("count"), 1000)
                if rate <= 0:
                    raise c2c.error("bw and count of <c2c> must be more than 0")
                self.links.append(Link(self.ids[id(gpu)], name, rate))
            for entry in gpu.named("nvlink"):
                count = entry.integer("count")
                if entry.text("tclass").lower().startswith(BRIDGE_TO_CPU) and count > 0:
                    self.links.append(Link(self.ids[id(gpu)], name, nvlink(gpu), None, count))
