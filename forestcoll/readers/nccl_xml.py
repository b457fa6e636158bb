"""NCCL's own description of a machine (`NCCL_TOPO_DUMP_FILE`) to a `Topology`.

Bandwidths are NCCL's, in GB/s a direction (NVIDIA/nccl 2.30, src/graph/topo.h and topo.cc): NVLink
by compute capability, PCIe by lanes, sockets by processor. All NVSwitches are one node, as NCCL has
it.

What becomes a link:
- NVLink, if it joins all GPUs: then nothing else, since PCIe would add little to it and is what
  the network ports need. Otherwise, or with `pcie=always`, the PCIe tree and the links between
  sockets (readers/pcie.py) are there too; `pcie=never` leaves them out.
- Network ports are not links: nothing beyond them is described. They are kept, with the GPUs that
  are nearest, in `Topology.adapters` for composing machines into a cluster.

Settings (all optional): `nvlink` GB/s of one NVLink, `pcie` auto | always | never, `bridges` raised
| stated. Bridges above a GPU often state a slower link than the GPU below has (5 GT/s above an
H100); "raised" takes the speed of the fastest device below, "stated" the file's word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path, PurePath

from forestcoll.errors import TopologyError, UnsupportedError, did_you_mean
from forestcoll.readers.pcie import BRIDGE_TO_CPU, PcieTree
from forestcoll.readers.xml_tree import Element, parse
from forestcoll.topology import (
    Adapter,
    Link,
    Node,
    Topology,
    exact,
    find_cut,
    read_text,
    show,
    slug,
)
from forestcoll.topology.file import NO_SETTINGS

# GB/s of one NVLink and direction, by the least compute capability that has it.
NVLINK = ((100, "40.1"), (90, "20.6"), (87, "20"), (86, "12"), (70, "20"), (60, "18"))
SWITCH_CLASS, GPU_CLASSES = "0x068000", ("0x03", "0x12")
CHOICES = {"pcie": ("auto", "always", "never"), "bridges": ("raised", "stated")}


@dataclass(slots=True)
class Gpu:
    """A `<gpu>` with the PCIe device that holds it."""

    element: Element
    bus: str
    host: int
    rank: int
    dev: int
    id: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """What the settings ask for."""

    nvlink: Fraction | None
    pcie: str
    bridges: str


def load(path: str | Path, settings: Mapping[str, str] = NO_SETTINGS) -> Topology:
    """The machine of the dump at `path`. Raises as `loads`."""
    return loads(read_text(path), str(path), settings)


def loads(text: str, source: str, settings: Mapping[str, str] = NO_SETTINGS) -> Topology:
    """The machine that the dump `text` describes; `source` (a file name) names the topology.

    Raises `TopologyError` where the file is malformed or lacks what a topology needs, with the line
    and what to do; `UnsupportedError` for an RCCL dump.
    """
    options = _options(settings, source)
    root = parse(text, source)
    if root.tag != "system":
        raise root.error(f"<{root.tag}> is not an NCCL topology; that starts with <system>")
    return _Reader(root, source, options).topology()


def _options(settings: Mapping[str, str], source: str) -> Options:
    known = ("nvlink", *CHOICES)
    for name, value in settings.items():
        if name not in known:
            hint = did_you_mean(name, known) or f"; an NCCL dump has {', '.join(known)}"
            raise TopologyError(f"{source}: unknown parameter '{name[:60]}'{hint}")
        if name in CHOICES and value not in CHOICES[name]:
            raise TopologyError(
                f"{source}: {name}={value[:60]}: it is one of {', '.join(CHOICES[name])}"
            )
    nvlink = None
    if "nvlink" in settings:
        try:
            nvlink = exact(settings["nvlink"])
        except TopologyError as error:
            raise TopologyError(f"{source}: nvlink: {error}") from None
        if nvlink <= 0:
            raise TopologyError(f"{source}: nvlink={show(nvlink)} must be more than 0 GB/s")
    return Options(nvlink, settings.get("pcie", "auto"), settings.get("bridges", "raised"))


def bus_key(bus: str) -> int:
    """A PCI bus id as a number, whatever its padding and separators ("0000:1B:00.0" is 0x1b000)."""
    digits = re.sub(r"[:.]", "", bus)
    if not re.fullmatch(r"[0-9A-Fa-f]{1,16}", digits):
        raise ValueError(bus)
    return int(digits, 16)


class _Reader:
    def __init__(self, root: Element, source: str, options: Options) -> None:
        self.root = root
        self.source = source
        self.options = options
        self.notes: list[str] = []
        self.hosts: dict[str, int] = {}
        self.gpus: list[Gpu] = []
        self.nodes: dict[str, Node] = {}
        self.links: list[Link] = []

    def topology(self) -> Topology:
        self.find_gpus()
        self.name_gpus()
        nvlinks = list(self.nvlinks())
        joined = self.joined(nvlinks)
        pcie = self.options.pcie
        if pcie == "never" and not joined:
            raise TopologyError(
                f"{self.source}: NVLink alone does not join all {len(self.gpus)} GPUs; "
                "leave pcie=never out, and the PCIe tree joins them"
            )
        self.links.extend(nvlinks)
        if pcie == "always" or (pcie == "auto" and not joined):
            if len(self.hosts) > 1 and not joined:
                raise TopologyError(
                    f"{self.source}: {len(self.hosts)} hosts in one dump, and NVLink does not join "
                    "their GPUs; dump one host, or write a topology file with the network in it"
                )
            ids = {id(gpu.element): gpu.id for gpu in self.gpus}
            tree = PcieTree(self.root, ids, self.prefixes(), self.options.bridges == "raised")
            tree.build(self.nvlink_of)
            self.nodes.update(tree.nodes)
            self.links.extend(tree.links)
            if pcie == "auto":
                self.notes.append(
                    "NVLink does not join all GPUs, so the PCIe tree and the links between sockets "
                    "are part of the topology"
                )
        adapters = tuple(self.adapters())
        if adapters:
            self.notes.append(
                f"{len(adapters)} network ports are left aside: what lies beyond them is not in "
                "the file"
            )
        try:
            return Topology(
                slug(PurePath(self.source).stem),
                self.nodes,
                tuple(self.links),
                adapters,
                tuple(self.notes),
            )
        except TopologyError as error:
            raise TopologyError(f"{self.source}: {error}") from None

    # GPUs

    def find_gpus(self) -> None:
        for cpu in self.root.named("cpu"):
            host = self.hosts.setdefault(cpu.attributes.get("host_hash", ""), len(self.hosts))
            for element in cpu.walk():
                if element.tag == "gpu":
                    self.gpus.append(self.gpu(element, host))
        stray = [e for e in self.root.walk() if e.tag == "gpu"]
        if len(stray) > len(self.gpus):
            known = {id(gpu.element) for gpu in self.gpus}
            lost = next(element for element in stray if id(element) not in known)
            raise lost.error("<gpu> stands outside a <cpu>")
        if not self.gpus:
            raise TopologyError(f"{self.source}: {self.missing_gpus()}")
        seen: dict[tuple[int, int], Gpu] = {}
        for gpu in self.gpus:
            key = (gpu.host, bus_key(gpu.bus))
            if key in seen:
                raise gpu.element.error(f"a second GPU at bus id {gpu.bus}")
            seen[key] = gpu

    def gpu(self, element: Element, host: int) -> Gpu:
        if "gcn" in element.attributes or any(element.named("xgmi")):
            raise UnsupportedError(
                f"{self.source}:{element.line}: an RCCL dump (AMD GPUs); only NCCL's are read. "
                "Take mi250 or mi300x of the catalogue, or write a topology file"
            )
        parent = element.parent
        if parent is None or parent.tag != "pci":
            raise element.error("<gpu> stands outside a <pci>; its bus id is unknown")
        bus = self.bus(parent, "busid")
        dev = element.integer("dev", default=len(self.gpus))
        return Gpu(element, bus, host, element.integer("rank", default=dev), dev)

    def bus(self, element: Element, key: str) -> str:
        bus = element.text(key)
        try:
            bus_key(bus)
        except ValueError:
            raise element.error(
                f"{key} '{bus[:40]}' is not a PCI bus id such as 0000:1b:00.0"
            ) from None
        return bus

    def missing_gpus(self) -> str:
        """What such a file has instead of GPUs, and where to get what is missing."""
        devices = [element for element in self.root.walk() if element.tag == "pci"]
        classes = [element.attributes.get("class", "") for element in devices]
        gpus = sum(c.startswith(GPU_CLASSES) for c in classes)
        has = f"{len(devices)} PCI devices"
        if gpus:
            has += f", of which {gpus} look like GPUs by their class,"
        elif not any(classes):
            has += " without a class"
        return (
            f"no <gpu> in it. It has {has} and says nothing of NVLink: such a file is a supplement "
            "for NCCL_TOPO_FILE, not a dump. Run any NCCL program on the machine with "
            "NCCL_TOPO_DUMP_FILE=FILE set and give that file, or take the machine from the "
            "catalogue (forestcoll topology list)"
        )

    def name_gpus(self) -> None:
        self.gpus.sort(key=lambda gpu: (gpu.host, gpu.rank, gpu.dev))
        if len({gpu.rank for gpu in self.gpus}) == len(self.gpus):
            self.gpus.sort(key=lambda gpu: gpu.rank)
        for gpu in self.gpus:
            gpu.id = f"{self.prefix(gpu.host)}gpu{gpu.dev}"
            if gpu.id in self.nodes:
                raise gpu.element.error(f"dev {gpu.dev} is there already, on another GPU")
            self.nodes[gpu.id] = Node("gpu")

    def prefix(self, host: int) -> str:
        return f"box{host}/" if len(self.hosts) > 1 else ""

    def prefixes(self) -> dict[str, str]:
        """By host_hash, what stands before the ids of that host's nodes."""
        return {key: self.prefix(host) for key, host in self.hosts.items()}

    # NVLink

    def nvlinks(self) -> Iterator[Link]:
        """Every NVLink as its two ends state it: both ways where they agree, else one way each."""
        by_bus = {(gpu.host, bus_key(gpu.bus)): gpu for gpu in self.gpus}
        stated: dict[tuple[str, str], tuple[int, Fraction]] = {}
        outside = 0
        for gpu in self.gpus:
            for entry in gpu.element.named("nvlink"):
                count = entry.integer("count")
                if not 0 <= count <= 1000:
                    raise entry.error(f"count {count} is no number of NVLinks")
                target = self.target(entry, gpu, by_bus)
                if target is None:
                    outside += 1
                elif target and count:
                    known = stated.get((gpu.id, target), (0, Fraction(0)))[0]
                    stated[gpu.id, target] = (known + count, self.nvlink_rate(gpu))
        if outside:
            self.notes.append(
                f"{outside} <nvlink> lead to devices that are not in the file and are left out"
            )
        if any(dst == "nvswitch" for _, dst in stated):
            self.nodes["nvswitch"] = Node("switch")
        order = {name: i for i, name in enumerate(self.nodes)}
        for (src, dst), (count, rate) in stated.items():
            back = stated.get((dst, src))
            if dst == "nvswitch":
                yield Link(src, dst, rate, None, count)
            elif back != (count, rate):
                yield Link(src, dst, rate, None, count, oneway=True)
            elif order[src] < order[dst]:
                yield Link(src, dst, rate, None, count)

    def target(self, entry: Element, gpu: Gpu, by_bus: Mapping[tuple[int, int], Gpu]) -> str | None:
        """The node at the other end; None when not in the file, "" for a processor."""
        what = entry.text("tclass").lower()
        if what.startswith(SWITCH_CLASS):
            return "nvswitch"
        if what.startswith(BRIDGE_TO_CPU):
            return ""
        if not what.startswith(GPU_CLASSES):
            raise entry.error(
                f"tclass '{what[:20]}' is neither an NVSwitch ({SWITCH_CLASS}) nor a GPU (0x0302..)"
            )
        other = by_bus.get((gpu.host, bus_key(self.bus(entry, "target"))))
        if other is gpu:
            raise entry.error("an NVLink from a GPU to itself")
        return other.id if other else None

    def nvlink_rate(self, gpu: Gpu) -> Fraction:
        return self.nvlink_of(gpu.element)

    def nvlink_of(self, gpu: Element) -> Fraction:
        """GB/s of one NVLink of that `<gpu>`."""
        if self.options.nvlink is not None:
            return self.options.nvlink
        sm = gpu.integer("sm")
        for least, rate in NVLINK:
            if sm >= least:
                note = f"NVLink counts {rate} GB/s a link, as NCCL has it (--set nvlink= for yours)"
                if note not in self.notes:
                    self.notes.append(note)
                return exact(rate)
        raise gpu.error(f"sm {sm} has no NVLink that is known; give --set nvlink=GB/s")

    def joined(self, links: list[Link]) -> bool:
        if len(self.gpus) < 2:
            return bool(links)
        arcs = (ends for link in links for ends in link.directions())
        return find_cut(tuple(self.nodes), arcs, tuple(gpu.id for gpu in self.gpus)) is None

    # network

    def adapters(self) -> Iterator[Adapter]:
        """Every `<net>`, with the GPUs below its closest ancestor that has some."""
        for cpu in self.root.named("cpu"):
            host = self.hosts[cpu.attributes.get("host_hash", "")]
            ids = {id(gpu.element): gpu.id for gpu in self.gpus if gpu.host == host}
            for net in (element for element in cpu.walk() if element.tag == "net"):
                above = net.parent
                near: tuple[str, ...] = ()
                while above is not None and not near and above.tag != "system":
                    near = tuple(ids[id(e)] for e in above.walk() if id(e) in ids)
                    above = above.parent
                speed = net.integer("speed", default=0)
                if speed > 0:
                    keep = ("dev", "port", "guid", "gdr")
                    more = {key: net.attributes[key] for key in keep if key in net.attributes}
                    yield Adapter(net.text("name"), Fraction(speed, 8000), near, more)
