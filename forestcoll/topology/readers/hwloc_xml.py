"""hwloc's XML (`lstopo machine.xml`) to a `Topology`.

GPUs are PCI devices of NVIDIA or AMD whose class says so. Links between them are the matrix
`NVLinkBandwidth` or `XGMIBandwidth`, MB/s; an NVSwitch stands in it as a PCI device, and as its
peers in other switches do not, all NVSwitches are one node unless `nvswitches=each`. PCIe bandwidth
is that of each device (`pci_link_speed`, GB/s). hwloc knows no rate of network ports: `port=GB/s`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction

from forestcoll.common.input_limits import MATRIX_OBJECTS
from forestcoll.topology import Adapter, Link, Node, Topology, exact, slug
from forestcoll.topology.readers.shared import (
    MACHINE,
    NVSWITCHES,
    PCIE,
    PORT_RATE,
    Machine,
    Nearest,
    Reader,
    Values,
    list_some,
    note_ports,
    note_unlike,
    socket_rate,
)
from forestcoll.topology.source import Element, located, parse_xml

MATRICES = ("NVLinkBandwidth", "XGMIBandwidth")

_TYPE = re.compile(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\].*", re.IGNORECASE)
_GPU_CLASSES = ("0300", "0302", "0380", "1200")
_GPU_VENDORS = ("10de", "1002")
_RDMA = re.compile(r"(mlx\d|bnxt_re|hfi1|irdma|efa|qedr)\S*")


def _loads(text: str, values: Values) -> Topology:
    root = parse_xml(text, values.source, doctype="topology")
    if root.tag != "topology":
        raise root.error(f"<{root.tag}> is not hwloc's XML; that starts with <topology>")
    return _Machine(root, values).topology()


READER = Reader("an hwloc file", (PCIE, NVSWITCHES, PORT_RATE, MACHINE), _loads)


class _Machine(Machine):
    def __init__(self, root: Element, values: Values) -> None:
        super().__init__(values)
        self.root = root
        self.objects: dict[str, Element] = {}
        for e in root.walk():
            if e.tag == "object" and "gp_index" in e.attributes:
                index = e.get("gp_index")
                other = self.objects.setdefault(index, e)
                if other is not e:
                    raise e.error(
                        f'gp_index="{index}" is that of the object in line {other.line} too; each '
                        "has its own"
                    )
        gpus = [e for e in root.walk() if _is_gpu(e)]
        if not gpus:
            raise values.error(
                f"no GPU in it: no PCI device of NVIDIA or AMD whose class is one of "
                f"{', '.join(_GPU_CLASSES)}. Dump with I/O devices: lstopo --whole-io machine.xml"
            )
        self.ids = {id(e): f"gpu{i}" for i, e in enumerate(gpus)}
        self.nodes = {name: Node("gpu") for name in self.ids.values()}
        self.bridges: dict[str, Fraction] = {}  # GB/s above each
        makes = {_make(e) for e in gpus}
        odd = [
            f"{e.get('pci_busid')} {_make(e)} in line {e.line}"
            for e in root.walk()
            if e.get("type") == "PCIDev" and not _is_gpu(e) and _make(e) in makes
        ]
        if odd:
            self.notes.append(
                f"{len(odd)} PCI devices are of the GPUs' make and of another class, and count as "
                f"none: {list_some(odd)}"
            )

        self.ports = tuple(self.adapters())
        self.notes += note_ports(self.ports, values)

    def add_links(self) -> None:
        gpus = len(self.nodes)
        matrices = [m for m in self.root.children if m.get("name") in MATRICES]
        for matrix in matrices:
            self.add_matrix(matrix)
        what = "its matrix of NVLink does not join" if matrices else "no matrix of NVLink joins"
        if self.needs_pcie(self.joins_gpus(), f"{what} all {gpus} GPUs"):
            self.add_pcie()
            if not matrices:
                self.notes.append(
                    "no NVLink in the file: hwloc sees it only with NVML (or RSMI) at hand; PCIe "
                    "alone joins the GPUs (--set machine=NAME where that is wrong)"
                )

    # NVLink, xGMI

    def add_matrix(self, matrix: Element) -> None:
        ends = [self.end(word, matrix) for word in _words(matrix, "indexes")]
        numbers = _words(matrix, "u64values")
        size = len(ends)
        if size > MATRIX_OBJECTS or len(numbers) != size * size:
            raise matrix.error(
                f"{matrix.attributes['name']} has {len(numbers)} values for {size} objects; a "
                f"matrix has the square, and at most {MATRIX_OBJECTS} objects {MATRIX_OBJECTS.note}"
            )
        rates: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
        for i, one in enumerate(ends):
            for j, two in enumerate(ends):
                word = numbers[i * size + j]
                if not re.fullmatch(r"[0-9]{1,12}", word):
                    raise matrix.error(f"'{word[:20]}' is not a number of MB/s")
                if one != two and int(word):
                    rates[one, two] += Fraction(int(word), 1000)
        order = {end: i for i, end in enumerate(dict.fromkeys(ends))}
        switches = [end for end in order if end not in self.nodes]
        self.nodes |= {name: Node("switch") for name in switches}
        differ: list[str] = []
        for (one, two), rate in rates.items():
            if rates.get((two, one)) != rate:
                self.links.append(Link(one, two, rate, oneway=True))
                differ.append(f"{one} to {two} {float(rate):g} GB/s")
            elif order[one] < order[two]:
                self.links.append(Link(one, two, rate))
        if differ:
            self.notes.append(
                f"{matrix.attributes['name']} states other rates there than back, and each "
                f"direction counts as stated: {list_some(differ)}"
            )
        if "nvswitch" in switches:
            self.notes.append(
                f"{ends.count('nvswitch')} NVSwitches count as one: the file does not show "
                "the links between them (--set nvswitches=each keeps them apart)"
            )

    def end(self, word: str, matrix: Element) -> str:
        """The node of an entry of a matrix: "OSDev:802" or, in one of one type, "802"."""
        element = self.objects.get(word.rpartition(":")[2])
        place = element
        while place is not None and place.get("type") != "PCIDev":
            place = place.parent
        if element is None or place is None:
            raise matrix.error(f"'{word[:30]}' is not a PCI device of this file, nor on one")
        if id(place) in self.ids:
            return self.ids[id(place)]
        each = self.values.text("nvswitches") == "each"
        return f"nvswitch-{slug(place.text('pci_busid'))}" if each else "nvswitch"

    # PCIe

    def add_pcie(self) -> None:
        packages = [e for e in self.root.walk() if e.get("type") == "Package"]
        tops = packages or [e for e in self.root.walk() if e.get("type") == "Machine"]
        sockets: dict[str, Fraction] = {}
        for top in tops:
            below = list(self.descend(top))
            if below:
                name = f"cpu{len(sockets)}"
                self.nodes[name] = Node("switch")
                self.links += [Link(node, name, rate) for node, rate in below]
                sockets[name] = _socket_rate(top)
        self.notes += note_unlike("sockets", sockets)
        self.notes += note_unlike("PCIe bridges", self.bridges, mixed=True)
        for i, (two, rate) in enumerate(sockets.items()):
            self.links += [Link(one, two, rate) for one in list(sockets)[:i]]
        if not sockets or not self.joins_gpus():
            raise self.values.error(
                "some GPUs hang on no package of the file, so nothing joins them; "
                "give the machine (--set machine=NAME)"
            )
        self.notes.append(
            "PCIe and the links between sockets are part of the topology: what hwloc states of "
            "each device, and what NCCL counts for the processors"
        )

    def descend(self, element: Element) -> Iterator[tuple[str, Fraction]]:
        """(node, GB/s of the link above it) for what hangs below `element` and has GPUs."""
        for child in element.children:
            if id(child) in self.ids:
                yield self.ids[id(child)], _speed(child)
                continue
            below = list(self.descend(child))
            if len(below) < 2 or "pci_busid" not in child.attributes:
                yield from below
                continue
            name = f"pci-{slug(child.attributes['pci_busid'])}"
            self.nodes[name] = Node("switch")
            self.links += [Link(node, name, rate) for node, rate in below]
            above = max([_speed(child), *(rate for _, rate in below)])
            self.bridges[name] = above
            yield name, above

    def adapters(self) -> Iterator[Adapter]:
        nearest = Nearest(self.ids)
        for element in self.root.walk():
            match = _TYPE.fullmatch(element.get("pci_type"))
            if element.get("type") != "PCIDev" or not match or match[1][:2] != "02":
                continue
            names = [e.get("name") for e in element.children_of("object")]
            rdma = [name for name in names if _RDMA.fullmatch(name)]
            name = [*rdma, *names, f"nic-{element.get('pci_busid')}"][0]
            yield Adapter(name, self.values.rate("port_rate"), nearest.find(element))


def _is_gpu(element: Element) -> bool:
    if element.get("type") != "PCIDev":
        return False
    match = _TYPE.fullmatch(element.get("pci_type"))
    return match is not None and match[1] in _GPU_CLASSES and match[2].lower() in _GPU_VENDORS


def _make(element: Element) -> str:
    """Vendor and device of a PCI device, "[10de:1db8]"; the bare type where it has none."""
    text = element.get("pci_type")
    match = re.search(r"\[[0-9a-f]{4}:[0-9a-f]{4}\]", text, re.IGNORECASE)
    return match[0] if match else text


def _words(matrix: Element, tag: str) -> list[str]:
    return " ".join(child.content for child in matrix.children_of(tag)).split()


def _speed(element: Element) -> Fraction:
    """GB/s of the link above a PCI device."""
    word = element.get("pci_link_speed")
    with located(element, "pci_link_speed"):
        speed = exact(word) if word else Fraction(0)
    if speed <= 0:
        raise element.error(
            "no pci_link_speed: hwloc reads it as root only. Dump again as root, or give the "
            "machine (--set machine=NAME)"
        )
    return speed


def _socket_rate(package: Element) -> Fraction:
    """GB/s between sockets, as NCCL counts it for that processor."""
    info = {e.get("name"): e.get("value") for e in package.children_of("info")}
    attributes = {
        "vendor": info.get("CPUVendor", "GenuineIntel"),
        "familyid": info.get("CPUFamilyNumber", ""),
        "modelid": info.get("CPUModelNumber", ""),
    }
    return socket_rate(Element(package.source, package.line, "cpu", attributes))
