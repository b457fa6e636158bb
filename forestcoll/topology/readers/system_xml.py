"""The `<system>` files of NCCL and RCCL (`NCCL_TOPO_DUMP_FILE`), as a `Topology`.

Bandwidths are in GB/s a direction, as the library that wrote the file counts them
(readers/rates.py): links between GPUs by `Dialect`, PCIe by lanes, sockets by processor. RCCL's
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

Files of cloud providers list PCI devices without `<gpu>` (readers/base/supplement.py).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from forestcoll.topology import Adapter, Link, Node, Topology, slug
from forestcoll.topology.readers.base.boxes import (
    MACHINE,
    NVSWITCHES,
    PCIE,
    Nearest,
    are_joined,
    needs_pcie,
    put_inside,
)
from forestcoll.topology.readers.base.doubts import is_run, note_gaps, note_unlike
from forestcoll.topology.readers.base.fabric import list_some
from forestcoll.topology.readers.base.rates import (
    MOST_NVLINKS,
    MOST_XGMI,
    NVLINK,
    XGMI,
    link_rate,
    socket_rate,
)
from forestcoll.topology.readers.base.settings import Reader, Setting, Values
from forestcoll.topology.readers.base.supplement import read_supplement
from forestcoll.topology.source import Element, parse_xml

BRIDGE_TO_CPU = "0x068001"  # target class of an NVLink that ends at the processor
SWITCH_CLASS, GPU_CLASSES = "0x068000", ("0x03", "0x12")
GPU_DEVICES = ("0x0302", "0x0380", "0x12")
OLD = {"906": "906", "908": "908", "910": "90a"}
"""What older RCCL calls gfx906 and its like in `gcn`."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What sets one library's files apart: how links between GPUs are called and what they carry.

    `rate` gives GB/s of one link of a `<gpu>`, with a note that says where it comes from.
    """

    library: str
    tag: str
    noun: str
    most: int  # links of a GPU
    rate: Callable[[Element], tuple[Fraction, str]]

    @property
    def reader(self) -> Reader:
        """Returns the reader of such files."""
        settings = (
            Setting(self.tag, f"GB/s of one {self.noun} link and direction", rate=True),
            PCIE,
            Setting(
                "bridges",
                "bridges that state less than a GPU below has: raised to it, or as stated",
                ("raised", "stated"),
            ),
            NVSWITCHES,
            MACHINE,
        )
        return Reader(f"an {self.library} dump", settings, self.loads)

    def loads(self, text: str, values: Values) -> Topology:
        """Returns the machine that the file `text` describes."""
        root = parse_xml(text, values.source)
        if root.tag != "system":
            raise root.error(
                f"<{root.tag}> is not an {self.library} topology; that starts with <system>"
            )
        topology = _Machine(root, values, self).topology()
        if self.library != "RCCL":
            return topology
        gcn = next((gpu.get("gcn") for gpu in root.walk() if gpu.tag == "gpu"), "")
        return replace(
            topology, name=slug(f"gfx{OLD.get(gcn, gcn[3:].partition(':')[0])}-{topology.name}")
        )


@dataclass(slots=True)
class Gpu:
    """A `<gpu>` with the PCIe device that holds it."""

    element: Element
    bus: str
    host: int
    rank: int
    dev: int
    id: str = ""


def bus_key(bus: str) -> int:
    """A PCI bus id as a number, whatever its padding and separators ("0000:1B:00.0" is 0x1b000)."""
    digits = re.sub(r"[:.]", "", bus)
    if not re.fullmatch(r"[0-9A-Fa-f]{1,16}", digits):
        raise ValueError(bus)
    return int(digits, 16)


class _Machine:
    def __init__(self, root: Element, values: Values, dialect: Dialect) -> None:
        self.root = root
        self.values = values
        self.dialect = dialect
        self.notes: list[str] = []
        self.hosts: dict[str, int] = {}
        self.gpus: list[Gpu] = []
        self.nodes: dict[str, Node] = {}
        self.links: list[Link] = []

    def topology(self) -> Topology:
        self.find_gpus()
        if not self.gpus:
            return read_supplement(self.root, self.values)
        self.name_gpus()
        machine = self.values.text("machine")
        if machine:
            gpus = tuple(self.nodes)
            return put_inside(self.values, machine, gpus, self.adapters(), self.notes)
        self.links += self.nvlinks()
        self.add_pcie()
        adapters = self.adapters()
        return self.values.topology(self.nodes, self.links, adapters, self.notes)

    def add_pcie(self) -> None:
        noun, ids = self.dialect.noun, {id(gpu.element): gpu.id for gpu in self.gpus}
        joined = bool(self.links) and are_joined(self.nodes, self.links, ids.values())
        why = f"{noun} alone does not join all {len(self.gpus)} GPUs"
        if not needs_pcie(self.values, joined, why, "the PCIe tree"):
            return
        if len(self.hosts) > 1 and not joined:
            raise self.values.error(
                f"{len(self.hosts)} hosts in one dump, and {noun} does not join their GPUs; dump "
                "one host, or write a topology file with the network in it"
            )
        raised = self.values.text("bridges", "raised") == "raised"
        tree = PcieTree(self.root, ids, self.prefixes(), raised)
        tree.build(self.nvlink_of)
        self.nodes.update(tree.nodes)
        self.links.extend(tree.links)
        for what, rates in (("PCIe bridges", tree.bridges), ("sockets", tree.sockets)):
            words = {name: f"{float(rate):g} GB/s" for name, rate in rates.items()}
            self.notes += note_unlike(what, words, mixed=True)
        if self.values.text("pcie", "auto") == "auto":
            self.notes.append(
                f"{noun} does not join all GPUs, so the PCIe tree and the links between sockets "
                "are part of the topology"
            )

    # GPUs

    def find_gpus(self) -> None:
        for cpu in self.root.children_of("cpu"):
            host = self.hosts.setdefault(cpu.get("host_hash"), len(self.hosts))
            for element in cpu.walk():
                if element.tag == "gpu":
                    self.gpus.append(self.gpu(element, host))
        stray = [e for e in self.root.walk() if e.tag == "gpu"]
        if len(stray) > len(self.gpus):
            elements = {id(gpu.element) for gpu in self.gpus}
            lost = next(element for element in stray if id(element) not in elements)
            raise lost.error("<gpu> stands outside a <cpu>")
        seen: dict[tuple[int, int], Gpu] = {}
        for gpu in self.gpus:
            key = (gpu.host, bus_key(gpu.bus))
            if key in seen:
                raise gpu.element.error(f"a second GPU at bus id {gpu.bus}")
            seen[key] = gpu

    def gpu(self, element: Element, host: int) -> Gpu:
        parent = element.parent
        if parent is None or parent.tag != "pci":
            raise element.error("<gpu> stands outside a <pci>; its bus id is unknown")
        bus = self.bus(parent, "busid")
        dev = element.integer("dev", default=len(self.gpus))
        if dev < 0:
            raise element.error(f'dev="{dev}" is no number of a GPU')
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

    def name_gpus(self) -> None:
        self.gpus.sort(key=lambda gpu: (gpu.host, gpu.rank, gpu.dev))
        if len({gpu.rank for gpu in self.gpus}) == len(self.gpus):
            self.gpus.sort(key=lambda gpu: gpu.rank)
        for gpu in self.gpus:
            gpu.id = f"{self.prefix(gpu.host)}gpu{gpu.dev}"
            if gpu.id in self.nodes:
                raise gpu.element.error(f"dev {gpu.dev} is there already, on another GPU")
            self.nodes[gpu.id] = Node("gpu")
        self.doubt_numbers()

    def doubt_numbers(self) -> None:
        """Notes where GPUs are missing by their numbers, or by the class of their device."""
        hosts: dict[int, list[Gpu]] = defaultdict(list)
        for gpu in self.gpus:
            hosts[gpu.host].append(gpu)
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

    def prefixes(self) -> dict[str, str]:
        """By host_hash, what stands before the ids of that host's nodes."""
        return {key: self.prefix(host) for key, host in self.hosts.items()}

    # NVLink

    def nvlinks(self) -> Iterator[Link]:
        """Every NVLink as its two ends state it: both ways where they agree, else one way each."""
        by_bus = {(gpu.host, bus_key(gpu.bus)): gpu for gpu in self.gpus}
        stated: dict[tuple[str, str], tuple[int, Fraction]] = {}
        entries: dict[tuple[str, str], Element] = {}
        outside: list[str] = []
        for gpu in self.gpus:
            for entry in self.entries(gpu):
                count = entry.integer("count")
                target = self.target(entry, gpu, by_bus)
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
                f"{len(outside)} <{self.dialect.tag}> lead to devices that are not in the file and "
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
        tag, noun = self.dialect.tag, self.dialect.noun
        seen: dict[str, Element] = {}
        for entry in gpu.element.children_of(tag):
            count, target = entry.integer("count"), entry.text("target")
            if not 0 <= count <= 1000:
                raise entry.error(f"count {count} is no number of {noun} links")
            other = seen.setdefault(target.lower(), entry)
            if other is not entry:
                raise entry.error(
                    f"a second <{tag}> of {gpu.id} to {target}, after line {other.line}: "
                    f"{self.dialect.library} writes one, with a count; leave one"
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
                    f"{src} states {count} {self.dialect.noun} links to {dst}, which states {back} "
                    f"back" + (f" in line {other.line}" if other else "") + "; both ends of a link "
                    "are in a dump, so one of them is wrong"
                )
        for gpu, number in total.items():
            if number > self.dialect.most and not self.values.has(self.dialect.tag):
                own = [entry for (src, _), entry in entries.items() if src == gpu]
                most = max(own, key=lambda entry: entry.integer("count"))
                raise most.error(
                    f'count="{most.integer("count")}": {gpu} would have {number} '
                    f"{self.dialect.noun} links; a GPU has {self.dialect.most} at most "
                    f"(one that has more: --set {self.dialect.tag}=GB/s of a link)"
                )
        self.notes += note_unlike("the GPUs on NVSwitches", {s: str(n) for s, n in below.items()})

    def target(self, entry: Element, gpu: Gpu, by_bus: Mapping[tuple[int, int], Gpu]) -> str | None:
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
        other = by_bus.get((gpu.host, bus_key(self.bus(entry, "target"))))
        if other is gpu:
            raise entry.error(f"an {self.dialect.noun} from a GPU to itself")
        return other.id if other else None

    def nvlink_of(self, gpu: Element) -> Fraction:
        """GB/s of one NVLink of that `<gpu>`."""
        asked = self.values.rate(self.dialect.tag)
        if asked is not None:
            return asked
        rate, note = self.dialect.rate(gpu)
        if note not in self.notes:
            self.notes.append(note)
        return rate

    # network

    def adapters(self) -> list[Adapter]:
        """Returns every `<net>` that states a speed, with the GPUs nearest to it, in the order of
        the library's numbers (`dev`), where they are distinct; notes say so."""
        adapters: list[Adapter] = []
        numbers: list[tuple[int, int]] = []
        idle: list[str] = []
        for cpu in self.root.children_of("cpu"):
            host = self.hosts[cpu.get("host_hash")]
            nearest = Nearest({id(g.element): g.id for g in self.gpus if g.host == host})
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
                f"{len(idle)} ports state no speed and are left out: {list_some(idle)}"
            )
        if adapters:
            self.notes.append(
                f"{len(adapters)} network ports are left aside: what lies beyond them is not in "
                "the file (--set boxes=N, or forestcoll topology compose)"
            )
        return adapters


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
        for i, cpu in enumerate(self.root.children_of("cpu")):
            prefix = self.prefixes[cpu.get("host_hash")]
            if not any(id(element) in self.ids for element in cpu.walk()):
                continue
            name = self.switch(cpu, f"{prefix}cpu{cpu.integer('numaid', default=i)}")
            for pci in cpu.children_of("pci"):
                self.descend(pci, name, prefix)
            self.beside_pcie(cpu, name, nvlink)
            for other, other_name in sockets:
                if self.prefixes[other.get("host_hash")] == prefix:
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
        below = [self.descend(child, name, prefix) for child in pci.children_of("pci")]
        if self.raised:
            rate = max([rate, *(r for r in below if r is not None)])
        self.links.append(Link(name, above, rate))
        self.bridges[name] = rate
        return rate

    def beside_pcie(self, cpu: Element, name: str, nvlink: Callable[[Element], Fraction]) -> None:
        """C2C and NVLink that end at the processor itself."""
        for gpu in (element for element in cpu.walk() if id(element) in self.ids):
            for c2c in gpu.children_of("c2c"):
                rate = Fraction(c2c.integer("bw") * c2c.integer("count"), 1000)
                if rate <= 0:
                    raise c2c.error("bw and count of <c2c> must be more than 0")
                self.links.append(Link(self.ids[id(gpu)], name, rate))
            for entry in gpu.children_of("nvlink"):
                count = entry.integer("count")
                if entry.text("tclass").lower().startswith(BRIDGE_TO_CPU) and count > 0:
                    self.links.append(Link(self.ids[id(gpu)], name, nvlink(gpu), None, count))


def _rate_nvlink(gpu: Element) -> tuple[Fraction, str]:
    sm = gpu.integer("sm")
    for least, rate in NVLINK:
        if sm >= least:
            return rate, (
                f"NVLink counts {float(rate):g} GB/s per link, as NCCL has it "
                "(--set nvlink= for yours)"
            )
    raise gpu.error(f"sm {sm} has no NVLink that is known; give --set nvlink=GB/s")


def _rate_xgmi(gpu: Element) -> tuple[Fraction, str]:
    gcn = gpu.text("gcn").lower()
    for names, rate in XGMI:
        if gcn.startswith(names):
            return rate, (
                f"xGMI counts {float(rate):g} GB/s per link, as RCCL has it (--set xgmi= for yours)"
            )
    raise gpu.error(f"gcn '{gcn[:20]}' has no xGMI that is known; give --set xgmi=GB/s")


NCCL = Dialect("NCCL", "nvlink", "NVLink", MOST_NVLINKS, _rate_nvlink).reader
RCCL = Dialect("RCCL", "xgmi", "xGMI", MOST_XGMI, _rate_xgmi).reader
