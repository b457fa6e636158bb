"""The `<system>` files of NCCL and RCCL, as a `Topology`: what both readers have in common.

Bandwidths are in GB/s a direction, as the library that wrote the file counts them: links between
GPUs by `Dialect`, PCIe by lanes, sockets by processor (topology/readers/pcie.py).

What becomes a link:
- NVLink or xGMI, if it joins all GPUs: then nothing else, since PCIe would add little to it and is
  what the network ports need. Otherwise, or with `pcie=always`, the PCIe tree and the links between
  sockets are there too; `pcie=never` leaves them out.
- Network ports are not links: nothing beyond them is described. They are kept, with the GPUs that
  are nearest, in `Topology.adapters` for composing machines into a cluster.

Files of cloud providers list PCI devices without `<gpu>`; the links between those GPUs come from a
machine of the catalogue, which known_machines.py or the user names (supplement.py).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import PurePath

from forestcoll.common.errors import TopologyError
from forestcoll.topology import Adapter, Link, Node, Topology, find_cut, slug
from forestcoll.topology.readers.box_links import MACHINE, Machines, put_inside
from forestcoll.topology.readers.doubts import is_run, note_gaps, note_unlike
from forestcoll.topology.readers.fabric import list_some
from forestcoll.topology.readers.pcie import BRIDGE_TO_CPU, PcieTree
from forestcoll.topology.readers.settings import Setting, Values
from forestcoll.topology.readers.supplement import read_supplement
from forestcoll.topology.readers.xml_tree import Element, parse

SWITCH_CLASS, GPU_CLASSES = "0x068000", ("0x03", "0x12")
GPU_DEVICES = ("0x0302", "0x0380", "0x12")


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
    def settings(self) -> tuple[Setting, ...]:
        """What `--set` may change."""
        return (
            Setting(self.tag, f"GB/s of one {self.noun} link and direction", rate=True),
            Setting("pcie", "whether PCIe counts", ("auto", "always", "never")),
            Setting(
                "bridges",
                "bridges that state less than a GPU below has: raised to it, or as stated",
                ("raised", "stated"),
            ),
            Setting("nvswitches", "NVSwitches: one node, or each its own", ("merged", "each")),
            MACHINE,
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


def load_system(text: str, values: Values, dialect: Dialect, machines: Machines) -> Topology:
    """The machine that the file `text` describes; its name names the topology.

    Raises `TopologyError` where the file is malformed or lacks what a topology needs, with the line
    and what to do.
    """
    root = parse(text, values.source)
    if root.tag != "system":
        raise root.error(
            f"<{root.tag}> is not an {dialect.library} topology; that starts with <system>"
        )
    return _Reader(root, values.source, values, dialect, machines).topology()


def bus_key(bus: str) -> int:
    """A PCI bus id as a number, whatever its padding and separators ("0000:1B:00.0" is 0x1b000)."""
    digits = re.sub(r"[:.]", "", bus)
    if not re.fullmatch(r"[0-9A-Fa-f]{1,16}", digits):
        raise ValueError(bus)
    return int(digits, 16)


class _Reader:
    def __init__(
        self, root: Element, source: str, values: Values, dialect: Dialect, machines: Machines
    ) -> None:
        self.root = root
        self.source = source
        self.values = values
        self.dialect = dialect
        self.machines = machines
        self.notes: list[str] = []
        self.idle: list[str] = []  # ports without a speed
        self.hosts: dict[str, int] = {}
        self.gpus: list[Gpu] = []
        self.nodes: dict[str, Node] = {}
        self.links: list[Link] = []

    def topology(self) -> Topology:
        self.find_gpus()
        if not self.gpus:
            return read_supplement(self.root, self.source, self.values, self.machines)
        self.name_gpus()
        machine = self.values.text("machine")
        if machine:
            ids = tuple(self.nodes)
            bare = self.finish(self.adapters())
            return put_inside(bare, ids, self.machines(machine), machine, self.source)
        nvlinks = list(self.nvlinks())
        joined = self.joined(nvlinks)
        self.links.extend(nvlinks)
        self.add_pcie(joined)
        return self.finish(self.adapters())

    def add_pcie(self, joined: bool) -> None:
        pcie, noun = self.values.text("pcie", "auto"), self.dialect.noun
        if pcie == "never" and not joined:
            raise TopologyError(
                f"{self.source}: {noun} alone does not join all {len(self.gpus)} GPUs; "
                "leave pcie=never out, and the PCIe tree joins them"
            )
        if pcie == "never" or (pcie == "auto" and joined):
            return
        if len(self.hosts) > 1 and not joined:
            raise TopologyError(
                f"{self.source}: {len(self.hosts)} hosts in one dump, and {noun} does not join "
                "their GPUs; dump one host, or write a topology file with the network in it"
            )
        ids = {id(gpu.element): gpu.id for gpu in self.gpus}
        raised = self.values.text("bridges", "raised") == "raised"
        tree = PcieTree(self.root, ids, self.prefixes(), raised)
        tree.build(self.nvlink_of)
        self.nodes.update(tree.nodes)
        self.links.extend(tree.links)
        for what, rates in (("PCIe bridges", tree.bridges), ("sockets", tree.sockets)):
            words = {name: f"{float(rate):g} GB/s" for name, rate in rates.items()}
            self.notes += note_unlike(what, words, mixed=True)
        if pcie == "auto":
            self.notes.append(
                f"{noun} does not join all GPUs, so the PCIe tree and the links between sockets "
                "are part of the topology"
            )

    def finish(self, ports: Iterator[Adapter]) -> Topology:
        adapters = tuple(ports)
        if self.idle:
            self.notes.append(
                f"{len(self.idle)} ports state no speed and are left out: {list_some(self.idle)}"
            )
        if adapters:
            self.notes.append(
                f"{len(adapters)} network ports are left aside: what lies beyond them is not in "
                "the file (--set boxes=N, or forestcoll topology compose)"
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
            and not any(pci.named("gpu"))
            and pci.attributes.get("class", "").lower().startswith(GPU_DEVICES)
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
                    known = stated.get((gpu.id, target), (0, Fraction(0)))[0]
                    stated[gpu.id, target] = (known + count, self.nvlink_of(gpu.element))
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
        for entry in gpu.element.named(tag):
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
            if number > self.dialect.most and not self.values.given(self.dialect.tag):
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
            seen: dict[tuple[str, str], Element] = {}
            below: dict[int, tuple[str, ...]] = {}  # looked for once: thousands may share one
            for net in (element for element in cpu.walk() if element.tag == "net"):
                above = net.parent
                near: tuple[str, ...] = ()
                while above is not None and not near and above.tag != "system":
                    if id(above) not in below:
                        below[id(above)] = tuple(ids[id(e)] for e in above.walk() if id(e) in ids)
                    near = below[id(above)]
                    above = above.parent
                key = net.text("name"), net.attributes.get("port", "")
                other = seen.setdefault(key, net)
                if other is not net:
                    raise net.error(
                        f"port {key[1]} of {key[0]} stands in line {other.line} already; leave one"
                    )
                speed = net.integer("speed", default=0)
                if speed < 0:
                    raise net.error(
                        f'speed="{speed}" of port {net.text("name")}: no rate; write what it '
                        "carries in Mb/s (400 Gb/s: 400000)"
                    )
                if not speed:
                    self.idle.append(f"{net.text('name')} in line {net.line}")
                else:
                    keep = ("dev", "port", "guid", "gdr")
                    more = {key: net.attributes[key] for key in keep if key in net.attributes}
                    yield Adapter(net.text("name"), Fraction(speed, 8000), near, more)
