"""What readers of several formats share: settings, fabrics, rates, doubts, boxes.

A reader is given settings (`--set name=value`) and the file's name.

`Fabric`: switches, hosts and the cables between them; what InfiniBand, LLDP and CSV lists give.
Inside a host such a file shows nothing but its network ports. `to_topology` makes every host one
rank; `forestcoll.topology.compose` puts a machine with its GPUs into each.

Rates: what one link carries, by generation, GB/s a direction, with the sources. A PCIe link has
width * lane rate / 80 GB/s (lane rates below in 100 Mb/s), and two sockets what NCCL counts for the
processor (NVIDIA/nccl 2.30, src/graph/topo.h, topo.cc).

Doubts: what a dump says of one thing and not of the others of its kind. A figure that stands once
for each of several GPUs, ports or sockets is compared among these: who is unlike the others is
named in a note, since a broken link, a slip and a machine of two kinds look the same in a dump.

Boxes: PCIe where the GPUs' own links do not join them all, network ports, and the catalogue's links
where a dump has none. The text matrices of `nvidia-smi topo -m` and `rocm-smi --showtopo` say which
GPUs are near each other on PCIe, not what PCIe carries: that is in `pcie_rate` and `socket_rate`,
GB/s.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import PurePath
from typing import Any, NamedTuple, NoReturn, TypeVar

from forestcoll.common.errors import TopologyError, did_you_mean
from forestcoll.common.input_limits import SETTING_LENGTH
from forestcoll.topology import (
    Adapter,
    Link,
    Node,
    Topology,
    bandwidth,
    doubt_port,
    find_cut,
    show,
    slug,
)
from forestcoll.topology.globs import matcher
from forestcoll.topology.source import Element, Place, located


class Setting(NamedTuple):
    """One setting: `choices` where only these are allowed, `rate` where it is GB/s."""

    name: str
    about: str
    choices: tuple[str, ...] = ()
    rate: bool = False


@dataclass(slots=True)
class Values(Place):
    """What the settings say of a file, as line 0 of it; any name that the reader knows may be asked
    for."""

    texts: Mapping[str, str]

    @property
    def name(self) -> str:
        """Returns the name of what the file describes: the file's."""
        return slug(PurePath(self.source).stem)

    def at(self, line: int) -> Place:
        """Returns a line of the file."""
        return Place(self.source, line)

    def text(self, name: str, default: str = "") -> str:
        """Returns the value as written."""
        return self.texts.get(name, default)

    def rate(self, name: str) -> Fraction | None:
        """Returns GB/s, or None where it is not given."""
        return bandwidth(self.texts[name]) if name in self.texts else None

    def has(self, name: str) -> bool:
        """Returns whether the user set it."""
        return name in self.texts

    def patterns(self, name: str) -> Patterns | None:
        """Returns globs split at commas, or None where it is not given."""
        if name not in self.texts:
            return None
        parts = tuple(part.strip() for part in self.texts[name].split(",") if part.strip())
        if not parts:
            raise self.error(f"{name} is empty; it lists names or globs")
        return Patterns(name, parts)

    def topology(
        self,
        nodes: dict[str, Node],
        links: Iterable[Link],
        adapters: Iterable[Adapter] = (),
        notes: Iterable[str] = (),
        name: str = "",
    ) -> Topology:
        """Returns the topology that the file describes; what is wrong is said of the file."""
        with located(self):
            return Topology(name or self.name, nodes, tuple(links), tuple(adapters), tuple(notes))


class Reader(NamedTuple):
    """A format's reader: `title` for errors, and `settings` for what a file cannot tell.

    `loads` gives a `Topology`, or a `Fabric`; raises `TopologyError` with line, reason and cure.
    """

    title: str
    settings: tuple[Setting, ...]
    loads: Callable[[str, Values], Topology | Fabric]


class Patterns(NamedTuple):
    """Globs that the user gave for the setting `name`."""

    name: str
    globs: tuple[str, ...]

    def match(self, word: str) -> bool:
        """Returns whether one of them matches."""
        return any(matcher(glob)(word) for glob in self.globs)

    def check(self, words: Sequence[str], source: str) -> None:
        """Raises `TopologyError` for a glob that matches none of `words`."""
        for glob in self.globs:
            if not any(map(matcher(glob), words)):
                hint = did_you_mean(glob, words[:5000])
                raise TopologyError(f"{source}: {self.name}: '{glob[:60]}' matches nothing{hint}")


def check_settings(
    settings: Mapping[str, str],
    settable: Sequence[Setting],
    source: str,
    title: str,
) -> Values:
    """Returns `settings` as values. Raises `TopologyError` for an unknown name or a wrong value."""
    values = Values(source, 0, dict(settings))
    by_name = {setting.name: setting for setting in settable}
    for name, value in settings.items():
        setting = by_name.get(name)
        if setting is None:
            listed = ", ".join(by_name) or "no settings"
            hint = did_you_mean(name, by_name) or f"; {title} has {listed}"
            raise values.error(f"unknown parameter '{name[:60]}'{hint}")
        if len(value) > SETTING_LENGTH:
            raise values.error(f"{name} is too long {SETTING_LENGTH.note}")
        if setting.choices and value not in setting.choices:
            raise values.error(f"{name}={value[:60]}: it is one of {', '.join(setting.choices)}")
        if setting.rate:
            with located(values, name):
                rate = bandwidth(value)
            if rate <= 0:
                raise values.error(f"{name}={show(rate)} must be more than 0 GB/s")
    return values


def _refuse_racks(text: str, values: Values) -> NoReturn:
    """Says of a model of racks and blocks what it lacks, and what to take instead."""
    raise values.error(
        "a model of switches and blocks for a job scheduler: it says which nodes are near each "
        "other, and has no GPUs, links or bandwidths. Take the machine from the catalogue "
        "(gb200-nvl72 --set boxes=N) or a dump of the fabric (ibnetdiscover, a CSV list)"
    )


RACKS = Reader("a model of racks", (), _refuse_racks)
"""Models of racks and blocks (`switches:` and `blocks:`), as schedulers of jobs take them: refused.
They say which nodes are near each other, for placing jobs, and nothing of links and bandwidths."""

# --- fabrics -------------------------------------------------------------------------------------

HOSTS = Setting("hosts", "which hosts take part: names or globs, split at commas; default all")
SHOWN = 6


class Port(NamedTuple):
    """A network port of a host: `name` is its adapter's ("mlx5_0"), `number` the port on that."""

    host: str
    name: str
    number: int = 1

    def __str__(self) -> str:
        return f"{self.host} {self.name}" + (f" port {self.number}" if self.number != 1 else "")


class Cable(NamedTuple):
    """A cable between two ends, each a switch's name or a host's `Port`, in GB/s each way."""

    one: str | Port
    two: str | Port
    bandwidth: Fraction

    @property
    def ports(self) -> tuple[Port, ...]:
        """The ends that are hosts' ports."""
        return tuple(end for end in (self.one, self.two) if isinstance(end, Port))


@dataclass(frozen=True, slots=True)
class Fabric:
    """A network without the insides of its hosts; `notes` say what the file could not tell."""

    name: str
    switches: tuple[str, ...]
    hosts: tuple[str, ...]
    cables: tuple[Cable, ...]
    notes: tuple[str, ...] = ()
    source: str = "<text>"

    def ports(self) -> dict[str, list[Port]]:
        """Host -> its ports that have a cable, in the order of the file."""
        ports: dict[str, list[Port]] = {host: [] for host in self.hosts}
        for cable in self.cables:
            for port in cable.ports:
                ports[port.host].append(port)
        return ports

    def choose_hosts(self, patterns: Patterns | None) -> Fabric:
        """The same with only the hosts that `patterns` match, and their cables."""
        if patterns is None:
            return self
        patterns.check(self.hosts, self.source)
        hosts = tuple(host for host in self.hosts if patterns.match(host))
        kept = set(hosts)
        cables = tuple(c for c in self.cables if all(p.host in kept for p in c.ports))
        return replace(self, hosts=hosts, cables=cables)

    def to_topology(self) -> Topology:
        """Every host as one rank with all its ports. Raises `TopologyError` below two hosts."""
        if len(self.hosts) < 2:
            names = f" ({self.hosts[0]})" if self.hosts else ""
            raise TopologyError(
                f"{self.source}: {len(self.hosts)} host{names} in it; a collective needs two. "
                "Dump the whole fabric, or name what is a host"
            )
        nodes = {host: Node("gpu") for host in self.hosts}
        nodes |= {switch: Node("switch") for switch in self.switches}
        links = merge_cables(
            (_name(cable.one), _name(cable.two), cable.bandwidth) for cable in self.cables
        )
        note = (
            f"each of the {len(self.hosts)} hosts is one rank: what is inside them is not in such "
            "a file; 'forestcoll topology compose' puts machines with GPUs in"
        )
        with located(Place(self.source, 0)):
            return Topology(self.name, nodes, links, notes=(*self.notes, note))


def build_fabric(
    values: Values,
    switches: Sequence[str],
    hosts: Iterable[str],
    cables: Iterable[Cable],
    notes: Iterable[str],
) -> Fabric:
    """Returns the fabric that the file describes, of those hosts that the user chose."""
    parts = tuple(switches), tuple(hosts), tuple(cables), tuple(notes)
    return Fabric(values.name, *parts, values.source).choose_hosts(values.patterns("hosts"))


def _name(end: str | Port) -> str:
    return end.host if isinstance(end, Port) else end


def merge_cables(cables: Iterable[tuple[str, str, Fraction]]) -> tuple[Link, ...]:
    """Links both ways; cables of one rate between the same two nodes become one link's `count`."""
    counts: Counter[tuple[str, str, Fraction]] = Counter()
    for one, two, rate in cables:
        opposite = (two, one, rate)
        counts[opposite if opposite in counts else (one, two, rate)] += 1
    return tuple(Link(one, two, rate, None, n) for (one, two, rate), n in counts.items())


def make_ids(names: Sequence[tuple[str, str]]) -> list[str]:
    """Node ids for (name, key) pairs: the name with odd letters replaced, and where two would be
    the same, or none is left, with the key behind it."""
    plain = [
        re.sub(r"[^\w.+#-]+", "-", name, flags=re.ASCII).strip("-.")[:120] for name, _ in names
    ]
    often = Counter(plain)
    ids = [
        word if word and often[word] == 1 else f"{word or 'node'}@{key}"
        for word, (_, key) in zip(plain, names, strict=True)
    ]
    if len(set(ids)) < len(ids):  # a name that looks like another's name with its key
        ids = [f"{word}#{i}" for i, word in enumerate(ids)]
    return ids


def list_some(words: Sequence[str]) -> str:
    """`"a, b, c and 9 more"`."""
    if len(words) <= SHOWN:
        return ", ".join(words)
    return f"{', '.join(words[: SHOWN - 1])} and {len(words) - SHOWN + 1} more"


# --- rates ---------------------------------------------------------------------------------------

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


# --- doubts --------------------------------------------------------------------------------------

Read = TypeVar("Read", bound=Topology | Fabric)
SLOWEST_PORT = Fraction(1, 8)
"""GB/s: what is slower than a port of 1 Gb/s is more likely a figure in other units."""


_NUMBER = re.compile(r"[0-9]+")


def kind_of(name: str) -> str:
    """What names of one kind have in common: all but their numbers."""
    return _NUMBER.sub("#", name)


def note_unlike(
    what: str, values: Mapping[str, Any], fewer: bool = False, mixed: bool = False
) -> list[str]:
    """Notes that name those whose value, in words, is not that of most of their kind.

    `values`: words, numbers, or GB/s. `fewer`: only those that have less, where all have some or
    most have more; values are numbers. `mixed`: names are of one kind whatever they are.
    """
    kinds: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, value in values.items():
        word = _rate(value) if isinstance(value, Fraction) else value
        kinds["" if mixed else kind_of(name)][name] = word
    notes = []
    for of_kind in kinds.values():
        counts = Counter(of_kind.values())
        usual = max(counts, key=lambda word: (counts[word], word if fewer else 0))
        often = counts[usual]
        odd = [
            f"{name} {value}"
            for name, value in of_kind.items()
            if value != usual and (not fewer or value < usual)
        ]
        if odd and not (fewer and 2 * often <= len(of_kind) and 0 in counts):
            usually = f"{often} of {len(of_kind)} have {usual}"
            notes.append(f"{what} are not alike: {list_some(odd)}; {usually}")
    return notes


def add_doubts(what: Read, noun: str) -> Read:
    """The same with notes on what is unlike the others of its kind, or too slow or fast to be true.

    `noun`: what the ranks of a topology are, GPUs or hosts.
    """
    doubts = _doubt_fabric(what) if isinstance(what, Fabric) else _doubt_topology(what, noun)
    return replace(what, notes=(*what.notes, *doubts))


def _doubt_topology(topology: Topology, noun: str) -> list[str]:
    """Returns notes on ranks whose links carry more or less than the others', and on ports."""
    sums: dict[str, list[Fraction]] = {gpu: [Fraction(0), Fraction(0)] for gpu in topology.gpus}
    for (src, dst), rate in topology.rates().items():
        for end, way in ((src, 0), (dst, 1)):
            if end in sums:
                sums[end][way] += rate
    totals = {gpu: _both(*rates) for gpu, rates in sums.items()}
    bare = [gpu for gpu, rates in sums.items() if not any(rates)]
    slow = next((link for link in topology.links if link.bandwidth < SLOWEST_PORT), None)
    notes = [] if slow is None else _doubt_rate(f"{slow.src} - {slow.dst}", slow.bandwidth)
    if bare and len(sums) > 1:
        notes.append(f"{len(bare)} {noun} have no link: {list_some(bare)}")
    else:
        notes += note_unlike(f"the links of {noun}", totals)
    return notes + _doubt_adapters(topology)


def _doubt_fabric(fabric: Fabric) -> list[str]:
    """Notes on cables that no port could drive."""
    seen: dict[Fraction, Cable] = {}
    for cable in fabric.cables:
        seen.setdefault(cable.bandwidth, cable)
    return [
        note
        for rate, cable in seen.items()
        for note in _doubt_rate(f"the cable {cable.one} - {cable.two}", rate)
    ]


def _doubt_adapters(topology: Topology) -> list[str]:
    ports: Sequence[Adapter] = topology.adapters
    rates = {port.name: port.bandwidth for port in ports if port.bandwidth is not None}
    notes = note_unlike("network ports", rates)
    for name, rate in {rate: (name, rate) for name, rate in rates.items()}.values():
        notes += _doubt_rate(f"network port {name}", rate)
    near = {gpu: sum(gpu in port.near for port in ports) for gpu in topology.gpus}
    return notes + note_unlike("the ports near GPUs", near, fewer=True)


def _doubt_rate(what: str, rate: Fraction) -> list[str]:
    if rate < SLOWEST_PORT:
        return [f"{what} is {_rate(rate)}, less than 1 Gb/s: is its figure in other units?"]
    return doubt_port(what, rate)


def note_gaps(names: Iterable[str]) -> list[str]:
    """Notes where the numbers at the end of names of one kind have a gap: gpu0, gpu1, gpu3."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for name in names:
        match = re.fullmatch(r"(.*?)([0-9]{1,9})", name)
        if match:
            kinds[match[1]].append(int(match[2]))
    return [
        f"{kind}{min(numbers)} to {kind}{max(numbers)} are {len(numbers)} GPUs: the others between "
        "are not in the file"
        for kind, numbers in kinds.items()
        if len(numbers) > 1 and max(numbers) - min(numbers) != len(numbers) - 1
    ]


def is_run(numbers: Iterable[int]) -> bool:
    """Whether the numbers, sorted, are as far apart each from the next: 4, 5, 6, 7."""
    ordered = sorted(numbers)
    return len({b - a for a, b in pairwise(ordered)}) <= 1


def _rate(rate: Fraction) -> str:
    return f"{float(rate):g} GB/s"


def _both(out: Fraction, back: Fraction) -> str:
    return _rate(out) if out == back else f"{_rate(out)} out and {_rate(back)} in"


MACHINE = Setting("machine", "catalogue entry whose links between GPUs stand in for the file's")
PCIE = Setting("pcie", "whether PCIe counts", ("auto", "always", "never"))
NVSWITCHES = Setting("nvswitches", "NVSwitches: one node, or each its own", ("merged", "each"))
PORT_RATE = Setting("port_rate", "GB/s of a network port", rate=True)
MATRIX_SETTINGS = (
    PCIE,
    Setting("pcie_rate", "GB/s of the GPUs' PCIe (x16: generation 3 12, 4 24, 5 48)", rate=True),
    Setting("socket_rate", "GB/s between two sockets", rate=True),
)

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def strip_escapes(text: str) -> str:
    """Returns `text` without the escape sequences that underline or colour it on a terminal."""
    return _ANSI.sub("", text)


class Groups:
    """Union-find over names, in the order in which they come."""

    def __init__(self, names: Iterable[str]) -> None:
        self._above = {name: name for name in names}

    def find(self, name: str) -> str:
        """Returns what stands for the group of `name`."""
        while self._above[name] != name:
            self._above[name] = self._above[self._above[name]]
            name = self._above[name]
        return name

    def join(self, one: str, two: str) -> None:
        """Makes the groups of two names one."""
        self._above[self.find(two)] = self.find(one)

    def groups(self) -> list[list[str]]:
        """Returns all groups, each in order."""
        members: dict[str, list[str]] = {}
        for name in self._above:
            members.setdefault(self.find(name), []).append(name)
        return list(members.values())


# --- network ports --------------------------------------------------------------------------------


def note_ports(adapters: Sequence[Adapter], values: Values) -> list[str]:
    """Returns a note on network ports whose rates are neither in the file nor given."""
    if not adapters or values.has("port_rate"):
        return []
    return [
        f"{len(adapters)} network ports; their rates are not in the file (--set port_rate=GB/s)"
    ]


class Nearest:
    """The GPUs nearest to a device; `ids` has the node of every GPU by `id()` of its element."""

    def __init__(self, ids: Mapping[int, str]) -> None:
        self.ids = ids
        self._below: dict[int, tuple[str, ...]] = {}  # looked for once: thousands may share one

    def find(self, device: Element) -> tuple[str, ...]:
        """Returns the GPUs below the closest element above `device` that has some."""
        near: tuple[str, ...] = ()
        above = device.parent
        while above is not None and not near and above.tag != "system":
            if id(above) not in self._below:
                inside = (self.ids.get(id(element), "") for element in above.walk())
                self._below[id(above)] = tuple(filter(None, inside))
            near = self._below[id(above)]
            above = above.parent
        return near


# --- machines -------------------------------------------------------------------------------------


class Machine(ABC):
    """A machine in the making; what is below it knows how its GPUs are linked."""

    ports: Iterable[Adapter] = ()

    def __init__(self, values: Values) -> None:
        self.values = values
        self.nodes: dict[str, Node] = {}
        self.links: list[Link] = []
        self.notes: list[str] = []

    @abstractmethod
    def add_links(self) -> None:
        """Links the GPUs, which are all nodes so far."""

    def topology(self, name: str = "") -> Topology:
        """Returns the machine; where the user asks for it, inside one of the catalogue.

        `name`: in place of the file's.
        """
        machine = self.values.text("machine")
        if machine:
            return self.put_inside(machine, name)
        self.add_links()
        ports = tuple(self.ports)
        return self.values.topology(self.nodes, self.links, ports, self.notes, name)

    def put_inside(self, machine: str, name: str = "") -> Topology:
        """Returns the GPUs, in order, with the links and switches of a machine of the catalogue.

        The ports stay. Those whose rate is not in the file take that of the machine's, where those
        have one rate. Raises `TopologyError` where the machine has another number of GPUs.
        """
        from forestcoll.topology import catalog

        inside, own, notes = catalog.machine(machine), tuple(self.ports), self.notes
        if len(self.nodes) != len(inside.gpus):
            raise self.values.error(
                f"{len(self.nodes)} GPUs, but machine '{machine}' has {len(inside.gpus)}"
            )
        names = dict(zip(inside.gpus, self.nodes, strict=True))
        nodes = self.nodes | {names.get(name, name): node for name, node in inside.nodes.items()}
        links = [
            link.between(names.get(link.src, link.src), names.get(link.dst, link.dst))
            for link in inside.links
        ]
        notes.append(f"the links between the GPUs are those of {machine}, not the file's")
        rates = {adapter.bandwidth for adapter in inside.adapters}
        unrated = sum(adapter.bandwidth is None for adapter in own)
        if unrated and len(rates) == 1 and None not in rates and unrated == len(inside.adapters):
            rate = rates.pop()
            own = tuple(replace(one, bandwidth=one.bandwidth or rate) for one in own)
            notes.append(f"the network ports count {float(rate or 0):g} GB/s each, as {machine}'s")
        if not own and inside.adapters:
            own = tuple(
                replace(a, near=tuple(names[gpu] for gpu in a.near)) for a in inside.adapters
            )
            notes.append(f"the network ports are those of {machine}, not the file's")
        return self.values.topology(nodes, links, own, notes, name)

    def joins_gpus(self) -> bool:
        """Returns whether the links join all GPUs."""
        gpus = tuple(name for name, node in self.nodes.items() if node.kind == "gpu")
        arcs = (ends for link in self.links for ends in link.directions())
        return len(gpus) < 2 or find_cut(tuple(self.nodes), arcs, gpus) is None

    def needs_pcie(self, joined: bool, why: str, what: str = "PCIe") -> bool:
        """Returns whether PCIe is part of the topology, by `pcie` and where GPUs are not joined.

        `why`: words for that they are not joined. Raises `TopologyError` for pcie=never then.
        """
        wanted = self.values.text("pcie", "auto")
        if wanted == "never" and not joined:
            raise self.values.error(f"{why}; leave pcie=never out, and {what} joins them")
        return wanted == "always" or (wanted == "auto" and not joined)

    def add_pcie_of_matrix(
        self,
        sockets: Sequence[Sequence[str]],
        switches: Sequence[Sequence[str]],
        rate: Fraction | None,
        noun: str,
    ) -> bool:
        """Adds PCIe and sockets where `pcie` asks for it, or `noun` leaves GPUs apart.

        `sockets` and `switches`: the GPUs below each; `rate`: GB/s of a GPU's PCIe, if known.
        """
        joined = self.joins_gpus()
        gpus = sum(node.kind == "gpu" for node in self.nodes.values())
        if not self.needs_pcie(joined, f"{noun} alone does not join all {gpus} GPUs"):
            return False
        rate = self.values.rate("pcie_rate") or rate
        between = self.values.rate("socket_rate")
        missing = [] if rate else ["pcie_rate=GB/s (x16: generation 3 12, 4 24, 5 48)"]
        missing += ["socket_rate=GB/s"] if len(sockets) > 1 and not between else []
        if missing or rate is None:
            why = "pcie=always" if joined else f"{noun} does not join all {gpus} GPUs"
            raise self.values.error(
                f"{why}, and what PCIe carries is not in the file: give "
                f"{' and '.join(f'--set {one}' for one in missing)}, or the machine whose links it "
                "has (--set machine=NAME; forestcoll topology list), or a dump of NCCL or RCCL"
            )
        self.nodes |= {f"cpu{i}": Node("switch") for i in range(len(sockets))}
        for i, socket in enumerate(sockets):
            alone = set(socket)
            for k, switch in enumerate(switches):
                below = [gpu for gpu in switch if gpu in alone]
                if len(below) > 1:
                    self.nodes[f"pcie{k}"] = Node("switch")
                    self.links += [Link(gpu, f"pcie{k}", rate) for gpu in below]
                    self.links.append(Link(f"pcie{k}", f"cpu{i}", rate))
                    alone -= set(below)
            self.links += [Link(gpu, f"cpu{i}", rate) for gpu in socket if gpu in alone]
            if between is not None:
                self.links += [Link(f"cpu{j}", f"cpu{i}", between) for j in range(i)]
        self.notes.append(
            f"PCIe counts {float(rate):g} GB/s per GPU, and one switch or socket what hangs below "
            "it"
        )
        return True
