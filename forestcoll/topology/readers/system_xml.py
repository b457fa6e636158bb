"""The `<system>` files of NCCL and RCCL (`NCCL_TOPO_DUMP_FILE`), as a `Topology`.

Bandwidths are in GB/s a direction, as the library that wrote the file counts them
(readers/shared.py): links between GPUs by library, PCIe by lanes, sockets by processor. RCCL's
file is NCCL's with `<xgmi>` for the links between GPUs and the architecture in `gcn`, which the
topology's name begins with: by it the GPUs are known as AMD's (program/targets.py). Peer copies
over xGMI may measure less, and data sheets state more: `--set xgmi=GB/s`.

What becomes a link:
- NVLink or xGMI, if it joins all GPUs: then nothing else, since PCIe would add little to it and is
  what the network ports need. Otherwise, or with `pcie=always`, the PCIe tree and the links between
  sockets are there too; `pcie=never` leaves them out.
- Network ports are not links: nothing beyond them is described. They are kept, with the GPUs that
  are nearest, in `Topology.adapters` for composing machines into a cluster.

All NVSwitches are one node, as NCCL has it, unless `nvswitches=each`. Bridges above a GPU often
state a slower link than the GPU below has (5 GT/s above an H100); `bridges=raised` takes the speed
of the fastest device below, `bridges=stated` the file's word.

Cloud providers hand out `<system>` files without `<gpu>` for `NCCL_TOPO_FILE`. They give NCCL the
PCIe tree that a virtual machine hides, and nothing else: GPUs and network ports are PCI devices by
their class, or by their place alone. The links between the GPUs come from the machine that the user
names, or from `KNOWN`: machines whose dumps leave out what is public. Where the bus ids are those
of a machine there, so are the rates of the network ports; notes say so.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from forestcoll.topology import Adapter, Link, Node, Topology, slug
from forestcoll.topology.readers.shared import (
    MACHINE,
    MOST_NVLINKS,
    MOST_XGMI,
    NVLINK,
    NVSWITCHES,
    PCIE,
    XGMI,
    Machine,
    Nearest,
    Reader,
    Setting,
    Values,
    is_run,
    link_rate,
    list_some,
    note_gaps,
    note_unlike,
    socket_rate,
)
from forestcoll.topology.source import Element, parse_xml

BRIDGE_TO_CPU = "0x068001"  # target class of an NVLink that ends at the processor
SWITCH_CLASS, GPU_CLASSES = "0x068000", ("0x03", "0x12")
GPU_DEVICES = ("0x0302", "0x0380", "0x12")
LIKELY_GPUS = ("0x0302", "0x0300", "0x0380", "0x12")
NIC_CLASS = "0x02"
OLD = {"906": "906", "908": "908", "910": "90a"}
"""What older RCCL calls gfx906 and its like in `gcn`."""


@dataclass(slots=True)
class Gpu:
    """A `<gpu>` with the PCIe device that holds it, and host and bus id of that."""

    element: Element
    pci: Element
    place: tuple[int, int]
    rank: int
    dev: int
    id: str = ""


class _Machine(Machine):
    """A file of NCCL: how links between GPUs are called there, and how many a GPU has at most."""

    library, tag, noun, most = "NCCL", "nvlink", "NVLink", MOST_NVLINKS

    def __init__(self, root: Element, values: Values) -> None:
        super().__init__(values)
        self.root = root
        self.hosts: dict[str, int] = {}
        self.gpus: list[Gpu] = []
        self.at: dict[tuple[int, int], Gpu] = {}
        self.ids: dict[int, str] = {}  # by Python's id() of each <gpu>
        self.bridges: dict[str, Fraction] = {}  # rate above each, by bus id

    @classmethod
    def loads(cls, text: str, values: Values) -> Topology:
        """Returns the machine that the file `text` describes."""
        root = parse_xml(text, values.source)
        if root.tag != "system":
            raise root.error(
                f"<{root.tag}> is not an {cls.library} topology; that starts with <system>"
            )
        return cls(root, values).read()

    def read(self, name: str = "") -> Topology:
        """Returns the machine, which is called `name` or like the file."""
        self.find_gpus()
        if not self.gpus:
            return self.read_supplement(name)
        self.name_gpus()
        self.ports = self.adapters()
        return self.topology(name)

    def rate(self, gpu: Element) -> tuple[str, Fraction | None]:
        """Returns what a `<gpu>` says of its make, and GB/s of one of its links."""
        sm = gpu.integer("sm")
        return f"sm {sm}", next((rate for least, rate in NVLINK if sm >= least), None)

    def add_links(self) -> None:
        self.links += self.nvlinks()
        joined = bool(self.links) and self.joins_gpus()
        why = f"{self.noun} alone does not join all {len(self.gpus)} GPUs"
        if not self.needs_pcie(joined, why, "the PCIe tree"):
            return
        if len(self.hosts) > 1 and not joined:
            raise self.values.error(
                f"{len(self.hosts)} hosts in one dump, and {self.noun} does not join their GPUs; "
                "dump one host, or write a topology file with the network in it"
            )
        sockets = {name: rate for _, name, rate in self.add_pcie()}
        for what, rates in (("PCIe bridges", self.bridges), ("sockets", sockets)):
            self.notes += note_unlike(what, rates, mixed=True)
        if self.values.text("pcie", "auto") == "auto":
            self.notes.append(
                f"{self.noun} does not join all GPUs, so the PCIe tree and the links between "
                "sockets are part of the topology"
            )

    # GPUs

    def find_gpus(self) -> None:
        for cpu in self.root.children_of("cpu"):
            host = self.hosts.setdefault(cpu.get("host_hash"), len(self.hosts))
            self.gpus += [self.gpu(e, host) for e in cpu.walk() if e.tag == "gpu"]
        stray = [e for e in self.root.walk() if e.tag == "gpu"]
        if len(stray) > len(self.gpus):
            elements = {id(gpu.element) for gpu in self.gpus}
            lost = next(element for element in stray if id(element) not in elements)
            raise lost.error("<gpu> stands outside a <cpu>")
        for gpu in self.gpus:
            if self.at.setdefault(gpu.place, gpu) is not gpu:
                raise gpu.element.error(f"a second GPU at bus id {gpu.pci.text('busid')}")

    def gpu(self, element: Element, host: int) -> Gpu:
        parent = element.parent
        if parent is None or parent.tag != "pci":
            raise element.error("<gpu> stands outside a <pci>; its bus id is unknown")
        place = host, self.bus(parent, "busid")
        dev = element.integer("dev", default=len(self.gpus))
        if dev < 0:
            raise element.error(f'dev="{dev}" is no number of a GPU')
        return Gpu(element, parent, place, element.integer("rank", default=dev), dev)

    def bus(self, element: Element, key: str) -> int:
        """A PCI bus id as a number, whatever its padding and separators ("0000:1B:00.0")."""
        bus = element.text(key)
        digits = re.sub(r"[:.]", "", bus)
        if not re.fullmatch(r"[0-9A-Fa-f]{1,16}", digits):
            raise element.error(f"{key} '{bus[:40]}' is not a PCI bus id such as 0000:1b:00.0")
        return int(digits, 16)

    def name_gpus(self) -> None:
        self.gpus.sort(key=lambda gpu: (gpu.place[0], gpu.rank, gpu.dev))
        if len({gpu.rank for gpu in self.gpus}) == len(self.gpus):
            self.gpus.sort(key=lambda gpu: gpu.rank)
        for gpu in self.gpus:
            gpu.id = f"{self.prefix(gpu.place[0])}gpu{gpu.dev}"
            if gpu.id in self.nodes:
                raise gpu.element.error(f"dev {gpu.dev} is there already, on another GPU")
            self.nodes[gpu.id] = Node("gpu")
            self.ids[id(gpu.element)] = gpu.id
        self.doubt_numbers()

    def doubt_numbers(self) -> None:
        """Notes where GPUs are missing by their numbers, or by the class of their device."""
        hosts: dict[int, list[Gpu]] = defaultdict(list)
        for gpu in self.gpus:
            hosts[gpu.place[0]].append(gpu)
        for gpus in hosts.values():
            self.notes += note_gaps(f"dev {gpu.dev}" for gpu in gpus)
            ranks = [gpu.rank for gpu in gpus]
            turned = any(a.dev > b.dev for a, b in pairwise(gpus))
            if turned or len(set(ranks)) < len(ranks) or not is_run(ranks):
                listed = ", ".join(f"{gpu.id} {gpu.rank}" for gpu in gpus)
                self.notes.append(
                    f"the GPUs' ranks are no run of numbers, or in another order than the GPUs: "
                    f"{listed}"
                )
        lost = [
            f"{pci.attributes.get('busid', '')} in line {pci.line}"
            for pci in self.root.walk()
            if pci.tag == "pci"
            and not any(pci.children_of("gpu"))
            and pci.get("class").lower().startswith(GPU_DEVICES)
        ]
        bare = [f"line {e.line}" for e in self.root.walk() if e.tag == "nic" and not e.children]
        for odd, what in ((lost, "PCI devices are GPUs by their class and have no <gpu>"),
                          (bare, "<nic> have no port")):  # fmt: skip
            if odd:
                self.notes.append(f"{len(odd)} {what}, and take no part: {list_some(odd)}")

    def prefix(self, host: int) -> str:
        return f"box{host}/" if len(self.hosts) > 1 else ""

    # NVLink

    def nvlinks(self) -> Iterator[Link]:
        """Every NVLink as its two ends state it: both ways where they agree, else one way each."""
        stated: dict[tuple[str, str], tuple[int, Fraction]] = {}
        entries: dict[tuple[str, str], Element] = {}
        outside: list[str] = []
        for gpu in self.gpus:
            for entry in self.entries(gpu):
                count = entry.integer("count")
                target = self.target(entry, gpu)
                if target is None:
                    outside.append(f"{gpu.id} to {entry.text('target')}, line {entry.line}")
                elif target and count:
                    count_back = stated.get((gpu.id, target), (0, Fraction(0)))[0]
                    stated[gpu.id, target] = (count_back + count, self.nvlink_of(gpu.element))
                    most = entries.setdefault((gpu.id, target), entry)
                    if count > most.integer("count"):
                        entries[gpu.id, target] = entry
        if outside:
            self.notes.append(
                f"{len(outside)} <{self.tag}> lead to devices that are not in the file and "
                f"are left out: {list_some(outside)}"
            )
        order = {name: i for i, name in enumerate(self.nodes)}
        self.check_both_ends(stated, entries)
        switches = sorted({dst for _, dst in stated if dst not in order})
        self.nodes.update({name: Node("switch") for name in switches})
        for (src, dst), (count, rate) in stated.items():
            back = stated.get((dst, src))
            if dst in switches:
                yield Link(src, dst, rate, None, count)
            elif back != (count, rate):
                yield Link(src, dst, rate, None, count, oneway=True)
            elif order[src] < order[dst]:
                yield Link(src, dst, rate, None, count)

    def entries(self, gpu: Gpu) -> Iterator[Element]:
        """The links that a GPU states, each target once."""
        tag, noun = self.tag, self.noun
        seen: dict[str, Element] = {}
        for entry in gpu.element.children_of(tag):
            count, target = entry.integer("count"), entry.text("target")
            if not 0 <= count <= 1000:
                raise entry.error(f"count {count} is no number of {noun} links")
            other = seen.setdefault(target.lower(), entry)
            if other is not entry:
                raise entry.error(
                    f"a second <{tag}> of {gpu.id} to {target}, after line {other.line}: "
                    f"{self.library} writes one, with a count; leave one"
                )
            yield entry

    def check_both_ends(
        self,
        stated: Mapping[tuple[str, str], tuple[int, Fraction]],
        entries: Mapping[tuple[str, str], Element],
    ) -> None:
        """Two GPUs state as many links of each other, and none more than a GPU has."""
        gpus = {gpu.id for gpu in self.gpus}
        total: Counter[str] = Counter()
        below: Counter[str] = Counter()
        for (src, dst), (count, _) in stated.items():
            total[src] += count
            if dst not in gpus:
                below[dst] += 1
                continue
            back = stated.get((dst, src), (0, 0))[0]
            if back != count:
                other = entries.get((dst, src))
                raise entries[src, dst].error(
                    f"{src} states {count} {self.noun} links to {dst}, which states {back} "
                    f"back" + (f" in line {other.line}" if other else "") + "; both ends of a link "
                    "are in a dump, so one of them is wrong"
                )
        for gpu, number in total.items():
            if number > self.most and not self.values.has(self.tag):
                own = [entry for (src, _), entry in entries.items() if src == gpu]
                most = max(own, key=lambda entry: entry.integer("count"))
                raise most.error(
                    f'count="{most.integer("count")}": {gpu} would have {number} '
                    f"{self.noun} links; a GPU has {self.most} at most "
                    f"(one that has more: --set {self.tag}=GB/s of a link)"
                )
        self.notes += note_unlike("the GPUs on NVSwitches", below)

    def target(self, entry: Element, gpu: Gpu) -> str | None:
        """The node at the other end; None when not in the file, "" for a processor."""
        what = entry.text("tclass").lower()
        if what.startswith(SWITCH_CLASS):
            each = self.values.text("nvswitches") == "each"
            return f"nvswitch-{slug(entry.text('target'))}" if each else "nvswitch"
        if what.startswith(BRIDGE_TO_CPU):
            return ""
        if not what.startswith(GPU_CLASSES):
            raise entry.error(
                f"tclass '{what[:20]}' is neither an NVSwitch ({SWITCH_CLASS}) nor a GPU (0x0302..)"
            )
        other = self.at.get((gpu.place[0], self.bus(entry, "target")))
        if other is gpu:
            raise entry.error(f"an {self.noun} from a GPU to itself")
        return other.id if other else None

    def nvlink_of(self, gpu: Element) -> Fraction:
        """GB/s of one NVLink of that `<gpu>`."""
        asked = self.values.rate(self.tag)
        if asked is not None:
            return asked
        words, rate = self.rate(gpu)
        if rate is None:
            raise gpu.error(f"{words} has no {self.noun} that is known; give --set {self.tag}=GB/s")
        note = (
            f"{self.noun} counts {float(rate):g} GB/s per link, as {self.library} has it "
            f"(--set {self.tag}= for yours)"
        )
        if note not in self.notes:
            self.notes.append(note)
        return rate

    # PCIe

    def add_pcie(self) -> list[tuple[str, str, Fraction]]:
        """Adds the PCIe tree from the sockets down to the GPUs.

        Of each socket what stands before its host's ids, its own, and GB/s to the others.
        """
        sockets: list[tuple[str, str, Fraction]] = []
        for i, cpu in enumerate(self.root.children_of("cpu")):
            if not any(id(element) in self.ids for element in cpu.walk()):
                continue
            prefix = self.prefix(self.hosts[cpu.get("host_hash")])
            name = self.add_switch(f"{prefix}cpu{cpu.integer('numaid', default=i)}")
            for pci in cpu.children_of("pci"):
                self.descend(pci, name, prefix)
            self.add_beside_pcie(cpu, name)
            rate = socket_rate(cpu)
            for _, other, there in (socket for socket in sockets if socket[0] == prefix):
                self.links.append(Link(other, name, there, oneway=there != rate))
                if there != rate:
                    self.links.append(Link(name, other, rate, oneway=True))
            sockets.append((prefix, name, rate))
        return sockets

    def add_switch(self, name: str) -> str:
        """Adds one of that name, or, where bridges of one bus id stand there, with a number."""
        own, number = name, 1
        while own in self.nodes:
            number += 1
            own = f"{name}#{number}"
        self.nodes[own] = Node("switch")
        return own

    def descend(self, pci: Element, above: str, prefix: str) -> Fraction | None:
        """Adds the device and all below; the rate of the link above it, None without GPUs."""
        gpus = [self.ids[id(child)] for child in pci.children if id(child) in self.ids]
        rate = link_rate(pci)
        if gpus:
            self.links.extend(Link(gpu, above, rate) for gpu in gpus)
            return rate
        if not any(id(element) in self.ids for element in pci.walk()):
            return None
        name = self.add_switch(f"{prefix}pci-{pci.text('busid')}")
        below = [self.descend(child, name, prefix) for child in pci.children_of("pci")]
        if self.values.text("bridges", "raised") == "raised":
            rate = max([rate, *(r for r in below if r is not None)])
        self.links.append(Link(name, above, rate))
        self.bridges[name] = rate
        return rate

    def add_beside_pcie(self, cpu: Element, name: str) -> None:
        """C2C and NVLink that end at the processor itself."""
        for gpu in (element for element in cpu.walk() if id(element) in self.ids):
            for c2c in gpu.children_of("c2c"):
                rate = Fraction(c2c.integer("bw") * c2c.integer("count"), 1000)
                if rate <= 0:
                    raise c2c.error("bw and count of <c2c> must be more than 0")
                self.links.append(Link(self.ids[id(gpu)], name, rate))
            for entry in gpu.children_of("nvlink"):
                number = entry.integer("count")
                if entry.text("tclass").lower().startswith(BRIDGE_TO_CPU) and number > 0:
                    rate = self.nvlink_of(gpu)
                    self.links.append(Link(self.ids[id(gpu)], name, rate, None, number))

    # network

    def adapters(self) -> Iterator[Adapter]:
        """Yields every `<net>` that states a speed, with the GPUs nearest to it, in the order of
        the library's numbers (`dev`), where they are distinct; notes say so."""
        adapters: list[Adapter] = []
        numbers: list[tuple[int, int]] = []
        idle: list[str] = []
        for cpu in self.root.children_of("cpu"):
            host = self.hosts[cpu.get("host_hash")]
            nearest = Nearest({id(g.element): g.id for g in self.gpus if g.place[0] == host})
            seen: dict[tuple[str, str], Element] = {}
            for net in (element for element in cpu.walk() if element.tag == "net"):
                name = net.text("name")
                other = seen.setdefault((name, net.get("port")), net)
                if other is not net:
                    raise net.error(
                        f"port {net.get('port')} of {name} stands in line {other.line} already; "
                        "leave one"
                    )
                speed = net.integer("speed", default=0)
                if speed < 0:
                    raise net.error(
                        f'speed="{speed}" of port {name}: no rate; write what it carries in Mb/s '
                        "(400 Gb/s: 400000)"
                    )
                if not speed:
                    idle.append(f"{name} in line {net.line}")
                    continue
                keep = ("dev", "port", "guid", "gdr")
                more = {key: net.attributes[key] for key in keep if key in net.attributes}
                adapters.append(Adapter(name, Fraction(speed, 8000), nearest.find(net), more))
                numbers.append((host, net.integer("dev", default=-1)))
        if len({*numbers}) == len(numbers):
            adapters = [adapters[k] for k in sorted(range(len(numbers)), key=numbers.__getitem__)]
        if idle:
            self.notes.append(
                f"{len(idle)} port{'s state' if len(idle) > 1 else ' states'} no speed and "
                f"{'are' if len(idle) > 1 else 'is'} left out: {list_some(idle)}"
            )
        if adapters:
            self.notes.append(
                f"{len(adapters)} network port{'s are' if len(adapters) > 1 else ' is'} left "
                f"aside: what lies beyond {'them' if len(adapters) > 1 else 'it'} is not in the "
                "file (--set boxes=N, or forestcoll topology compose)"
            )
        yield from adapters

    # without <gpu>

    def read_supplement(self, name: str) -> Topology:
        """Returns the machine; raises `TopologyError` with what the file has and what to add."""
        devices = [element for element in self.root.walk() if element.tag == "pci"]
        by_bus = {element.get("busid").lower(): element for element in devices}
        cloud = next((one for one in KNOWN if by_bus.keys() >= {*one.gpus}), None)
        machine = self.values.text("machine") or (cloud.machine if cloud else "")
        # the elements that are GPUs, or stand for one, in rank order: that of the bus ids
        gpus = [d for d in devices if d.get("class").lower().startswith(LIKELY_GPUS)]
        gpus.sort(key=lambda element: element.get("busid").lower())
        if cloud:
            gpus = [by_bus[bus] for bus in cloud.gpus]
        if not machine or not gpus:
            raise self.values.error(_say_what_is_missing(devices, bool(machine)))
        self.ids = {id(element): f"gpu{i}" for i, element in enumerate(gpus)}
        self.nodes = dict.fromkeys(self.ids.values(), Node("gpu"))
        if cloud:
            self.notes.append(
                f"recognised as {cloud.name} by its bus ids; what the file lacks is public "
                f"({cloud.source})"
            )
        self.ports = self.devices_as_ports(devices, cloud)
        return self.put_inside(machine, name)

    def devices_as_ports(self, devices: list[Element], cloud: Known | None) -> Iterator[Adapter]:
        """Yields the PCI devices that are network ports by their class, or lie hidden."""
        nearest = Nearest(self.ids)
        seen: dict[str, Element] = {}
        for element in devices:
            bus = element.get("busid").lower()
            other = seen.setdefault(bus, element)
            if bus and other is not element and not element.children:
                raise element.error(
                    f"PCI device {bus[:40]} stands in line {other.line} already; leave one"
                )
            what = element.get("class").lower()
            is_port = what.startswith(NIC_CLASS) or (not what and cloud and cloud.hidden)
            if is_port and not any(element.children_of("pci")) and id(element) not in self.ids:
                rate = cloud.port if cloud else None
                yield Adapter(f"nic-{slug(element.get('busid'))}", rate, nearest.find(element))


class _RcclMachine(_Machine):
    """A file of RCCL."""

    library, tag, noun, most = "RCCL", "xgmi", "xGMI", MOST_XGMI

    def read(self, name: str = "") -> Topology:
        """Returns the machine, its name behind that of the architecture."""
        gcn = next((gpu.get("gcn") for gpu in self.root.walk() if gpu.tag == "gpu"), "")
        gfx = OLD.get(gcn, gcn[3:].partition(":")[0])
        return super().read(slug(f"gfx{gfx}-{self.values.name}"))

    def rate(self, gpu: Element) -> tuple[str, Fraction | None]:
        """Returns what a `<gpu>` says of its make, and GB/s of one of its links."""
        gcn = gpu.text("gcn").lower()
        rates = (rate for names, rate in XGMI if gcn.startswith(names))
        return f"gcn '{gcn[:20]}'", next(rates, None)


def _reader(kind: type[_Machine]) -> Reader:
    settings = (
        Setting(kind.tag, f"GB/s of one {kind.noun} link and direction", rate=True),
        PCIE,
        Setting(
            "bridges",
            "bridges that state less than a GPU below has: raised to it, or as stated",
            ("raised", "stated"),
        ),
        NVSWITCHES,
        MACHINE,
    )
    return Reader(f"an {kind.library} dump", settings, kind.loads)


NCCL, RCCL = map(_reader, (_Machine, _RcclMachine))


class Known(NamedTuple):
    """A virtual machine: `gpus` are bus ids in rank order, or of the bridges above the GPUs where
    the file leaves the GPUs themselves out (`hidden`)."""

    name: str
    machine: str  # of the catalogue
    gpus: tuple[str, ...]
    port: Fraction  # GB/s of a network port
    source: str
    hidden: bool = False


def _buses(text: str) -> tuple[str, ...]:
    return tuple(f"{bus}:00.0" for bus in text.split())


KNOWN = (
    Known(
        "Azure ND96 A100 v4",
        "dgx-a100",
        _buses("0001:00 0002:00 0003:00 0004:00 000b:00 000c:00 000d:00 000e:00"),
        Fraction(25),  # 8 x 200 Gb/s HDR
        "Microsoft, Azure virtual machine sizes, NDasrA100_v4 series",
    ),
    Known(
        "Azure ND96 H100 v5",
        "dgx-h100",
        _buses("0001:00 0002:00 0003:00 0008:00 0009:00 000a:00 000b:00 000c:00"),
        Fraction(50),  # 8 x 400 Gb/s NDR
        "Microsoft, Azure virtual machine sizes, NDsr_H100_v5 series",
    ),
    Known(
        "AWS p5.48xlarge",
        "dgx-h100",
        _buses("0000:45 0000:56 0000:67 0000:78 0000:89 0000:9a 0000:ab 0000:bc"),
        Fraction(25, 2),  # 32 x 100 Gb/s EFA
        "Amazon, EC2 P5 instances: 3,200 Gb/s over 32 network cards",
        hidden=True,
    ),
)


def _say_what_is_missing(devices: list[Element], named: bool) -> str:
    classes = [element.get("class") for element in devices]
    gpus = sum(c.lower().startswith(LIKELY_GPUS) for c in classes)
    has = f"{len(devices)} PCI devices"
    if gpus:
        has += f", of which {gpus} look like GPUs by their class,"
    elif not any(classes):
        has += " without a class"
    cure = (
        "" if named and not gpus else
        "Give the machine whose links its GPUs have (--machine dgx-h100, or --set "
        "machine=dgx-h100; forestcoll topology list), or dump all: "
    )  # fmt: skip
    names = ", ".join(one.name for one in KNOWN)
    return (
        f"no <gpu> in it. It has {has} and says nothing of NVLink: such a file is a supplement "
        f"for NCCL_TOPO_FILE, not a dump, and its bus ids are those of none of {names}. "
        f"{cure}run any NCCL program on the machine with NCCL_TOPO_DUMP_FILE=FILE set and give "
        "that file"
    )
