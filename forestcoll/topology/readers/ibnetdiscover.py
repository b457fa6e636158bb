"""`ibnetdiscover` output to a `Fabric`: InfiniBand switches, adapters by host, cables.

The format is a block a device (`Switch`, `Ca`, `Rt`), a line a port, and a cable stands in both
blocks (linux-rdma/rdma-core, infiniband-diags/man/ibnetdiscover.8). Rates are lanes times the lane
rate of the InfiniBand speed; 4xNDR is 400 Gb/s, 50 GB/s.

Hosts come from the adapters' descriptions, "host adapter" as the driver sets them. An adapter that
still carries its maker's default cannot be put to a host: it is left out, with a note, unless
`unnamed=each` makes it a host of its own or `names=FILE` (a node-name-map, `0xGUID "host mlx5_0"`)
names it. Aggregation nodes are the switches' own engines and no hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from forestcoll.common.errors import TopologyError
from forestcoll.common.input_limits import DUMP_LINE
from forestcoll.topology import read_text
from forestcoll.topology.readers.shared import (
    HOSTS,
    INFINIBAND_LANE,
    Cable,
    Fabric,
    Port,
    Reader,
    Setting,
    Values,
    build_fabric,
    list_some,
    make_ids,
)
from forestcoll.topology.source import Place

CODED = ("SDR", "DDR", "QDR")  # 8 of 10 bits carry data

_DEVICE = re.compile(r'(Switch|Ca|Rt)\s+(\d{1,5})\s+"([SHR]-[0-9A-Fa-f]{1,16})"(.*)')
_PORT = re.compile(
    r"\[(\d{1,5})\](?:\[[^\]]*\])?(?:\([0-9A-Fa-f]{1,16}\))?\s*"
    r'"([SHR]-[0-9A-Fa-f]{1,16})"\[(\d{1,5})\](?:\[[^\]]*\])?(?:\([0-9A-Fa-f]{1,16}\))?(.*)'
)
_QUOTED = re.compile(r'"([^"]*)"')
_RATE = re.compile(r"(\d{1,2})x([A-Z]+\d{0,2})$")
_OTHER = re.compile(r"(vendid|devid|sysimgguid|switchguid|caguid|rtguid)=|Chassis|Non-Chassis|#")
_DEFAULT = re.compile(r"MT\d+ |.*Mellanox Technologies\s*$|.*Aggregation Node|.*InfiniHost|\s*$")
_ENGINE = "aggregation node"
_NAMED = re.compile(r"(\S+)\s+(\S*[A-Za-z]\S*[-_]?\d+)$")
NAMELESS_HOSTS = ("localhost", "(none)", "localhost.localdomain")

End = tuple[str, int]


@dataclass(slots=True)
class Device:
    """A block of the dump, or what other blocks say of a device without one."""

    guid: str  # "S-..." or "H-..."
    kind: str
    about: str
    line: int
    own: bool = True


class _Dump:
    """What is read of a dump, and the fabric that is built of it."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.devices: dict[str, Device] = {}
        self.far: dict[End, tuple[End, int]] = {}  # each end, with its line
        self.rates: dict[tuple[End, End], set[Fraction]] = {}
        self.blocks: dict[tuple[End, End], set[str]] = {}  # whose blocks have it
        self.speeds: set[str] = set()
        self.abouts: dict[str, dict[str, int]] = {}  # by device, with a line
        self.notes: list[str] = []
        self.names: dict[str, str] = {}  # guid of a switch -> node id
        self.places: dict[str, tuple[str, str]] = {}  # guid of an adapter -> host, its name

    def error(self, line: int, message: str) -> TopologyError:
        return self.values.at(line).error(message)

    def read(self, text: str) -> None:
        here: Device | None = None
        for number, raw in enumerate(text.split("\n"), 1):
            line = raw.strip()
            if len(line) > DUMP_LINE:
                raise self.error(number, f"a line of {len(line):,} characters {DUMP_LINE.note}")
            device = _DEVICE.match(line)
            if device:
                here = self.add_device(device, number)
            elif line.startswith("["):
                if here is None:
                    raise self.error(number, "a port before any Switch or Ca line")
                self.add_port(here, line, number)
            elif line and not _OTHER.match(line):
                raise self.error(
                    number,
                    f"'{line[:60]}' is no line of ibnetdiscover; write its plain output to a file "
                    "(no -p, no --full, nothing else in it)",
                )
        if not self.devices:
            raise self.values.error("no Switch and no Ca in it; is it ibnetdiscover's output?")

    def add_device(self, match: re.Match[str], number: int) -> Device:
        kind, _, guid, rest = match.groups()
        about = _QUOTED.search(rest)
        earlier = self.devices.get(guid)
        if earlier is not None and earlier.own:
            raise self.error(number, f"{guid} has a block already, in line {earlier.line}")
        self.devices[guid] = Device(guid, kind, about[1] if about else "", number)
        self.abouts.setdefault(guid, {}).setdefault(self.devices[guid].about, number)
        return self.devices[guid]

    def add_port(self, here: Device, line: str, number: int) -> None:
        match = _PORT.match(line)
        if match is None:
            raise self.error(number, f"'{line[:60]}' is not a port: [1] \"S-guid\"[2] # ... 4xNDR")
        port, guid, far_port, rest = match.groups()
        one, two = (here.guid, int(port)), (guid, int(far_port))
        if one == two:
            raise self.error(number, f"port {port} of {here.guid} is cabled to itself")
        for end, other in ((one, two), (two, one)):
            far_end = self.far.setdefault(end, (other, number))
            if far_end[0] != other:
                raise self.error(
                    number,
                    f"port {end[1]} of {end[0]} is cabled to {other[0]}[{other[1]}] here and to "
                    f"{far_end[0][0]}[{far_end[0][1]}] in line {far_end[1]}; a port has one cable",
                )
        quoted = _QUOTED.search(rest)
        kind = {"S": "Switch", "H": "Ca", "R": "Rt"}[guid[0]]
        about = quoted[1] if quoted else ""
        self.devices.setdefault(guid, Device(guid, kind, about, number, own=False))
        self.abouts.setdefault(guid, {}).setdefault(about, number)
        rate = self.rate(rest, number)
        cable = min(one, two), max(one, two)
        self.rates.setdefault(cable, set()).add(rate)
        self.blocks.setdefault(cable, set()).add(here.guid)

    def rate(self, rest: str, number: int) -> Fraction:
        match = _RATE.search(rest.rstrip())
        if match is None or match[2] not in INFINIBAND_LANE or not 1 <= int(match[1]) <= 12:
            shown = rest.rstrip().rpartition(" ")[2][:20]
            raise self.error(
                number,
                f"'{shown}' is not a rate such as 4xNDR (lanes 1 to 12, speed "
                f"{', '.join(INFINIBAND_LANE)}); was the line cut off?",
            )
        self.speeds.add(match[2])
        return int(match[1]) * INFINIBAND_LANE[match[2]] / 8

    def rename(self, path: str) -> None:
        """Descriptions from a node-name-map file."""
        by_guid = {int(guid[2:], 16): device for guid, device in self.devices.items()}
        for number, raw in enumerate(read_text(path).split("\n"), 1):
            line = raw.partition("#")[0].strip()
            if not line:
                continue
            match = re.fullmatch(r'(?:0x|[SHR]-)?([0-9A-Fa-f]{1,16})\s+"?([^"]+?)"?', line)
            if match is None:
                raise Place(path, number).error(f"'{line[:60]}' is not 0xGUID \"host adapter\"")
            device = by_guid.get(int(match[1], 16))
            if device is not None:
                device.about = match[2]

    def build(self) -> Fabric:
        devices = self.devices.values()
        switches = [device for device in devices if device.kind != "Ca"]
        ids = make_ids([(_switch_name(s.about), s.guid[2:]) for s in switches])
        self.names = {s.guid: name for s, name in zip(switches, ids, strict=True)}
        self.place([device for device in devices if device.kind == "Ca"])
        renamed = [
            f"{guid} " + " and ".join(f"'{text[:40]}' in line {at}" for text, at in about.items())
            for guid, about in self.abouts.items()
            if len(about) > 1
        ]
        if renamed:
            self.notes.append(
                f"{len(renamed)} device{'s are' if len(renamed) > 1 else ' is'} described in "
                f"several ways, and {'their' if len(renamed) > 1 else 'its'} own block "
                f"counts: {list_some(renamed)}"
            )
        cables = tuple(self.cables())
        coded = [speed for speed in CODED if speed in self.speeds]
        if coded:
            self.notes.append(
                f"{', '.join(coded)}: the rate counts the line's bits, of which 80 % carry data"
            )
        hosts = dict.fromkeys(port.host for cable in cables for port in cable.ports)
        idle = {host for host, _ in self.places.values()} - set(hosts)
        if idle:
            self.notes.append(
                f"{len(idle)} host{'s have' if len(idle) > 1 else ' has'} no cable: "
                f"{list_some(sorted(idle))}"
            )
        taken = set(self.names.values()) & set(hosts)
        if taken:
            name = min(taken)
            raise self.values.error(
                f"'{name}' is the name of a host and of a switch; name them "
                "apart with --set names=FILE"
            )
        return build_fabric(self.values, ids, hosts, cables, self.notes)

    def place(self, adapters: list[Device]) -> None:
        """Fills `places`: host and adapter from the descriptions."""
        engines = [a for a in adapters if _ENGINE in a.about.lower()]
        unnamed: list[Device] = []
        seen: dict[tuple[str, str], Device] = {}
        for device in adapters:
            if _ENGINE in device.about.lower():
                continue
            match = None if _DEFAULT.match(device.about) else _NAMED.match(device.about.strip())
            if match is None or match[1] in NAMELESS_HOSTS:
                unnamed.append(device)
                continue
            other = seen.setdefault((match[1], match[2]), device)
            if other is not device:
                raise self.error(
                    device.line,
                    f"two adapters are '{match[1]} {match[2]}', {other.guid[2:]} and "
                    f"{device.guid[2:]}: two machines of one name? Name them apart with "
                    '--set names=FILE (0xGUID "host adapter")',
                )
        hosts = list(dict.fromkeys(host for host, _ in seen))
        numbered = [(host, str(i)) for i, host in enumerate(hosts)]
        ids = dict(zip(hosts, make_ids(numbered), strict=True))
        for (host, adapter), device in seen.items():
            self.places[device.guid] = ids[host], adapter
        if engines:
            self.notes.append(f"{len(engines)} aggregation nodes (SHARP) are no hosts")
        self.place_unnamed(unnamed)

    def place_unnamed(self, unnamed: list[Device]) -> None:
        if self.values.text("unnamed") == "each":
            for device in unnamed:
                self.places[device.guid] = f"H-{device.guid[2:]}", "port"
        elif unnamed and not self.places:
            raise self.values.error(
                f"none of the {len(unnamed)} adapters carries a host's name "
                f"(they say '{unnamed[0].about[:60]}'): name them with --set names=FILE (0xGUID "
                '"host adapter"), or take each as a host with --set unnamed=each'
            )
        elif unnamed:
            self.notes.append(
                f"{len(unnamed)} adapters carry no host's name ({unnamed[0].guid[2:]}: "
                f"'{unnamed[0].about[:40]}') and are left out; --set names=FILE (0xGUID \"host "
                'adapter") puts them to hosts, --set unnamed=each makes each a host'
            )

    def cables(self) -> Iterator[Cable]:
        differ: list[str] = []
        for (one, two), rates in self.rates.items():
            ends = [self.end(end) for end in (one, two)]
            if len(rates) > 1:
                stated = " and ".join(f"{float(rate):g}" for rate in sorted(rates))
                differ.append(f"{one[0]}[{one[1]}] {stated} GB/s")
            if ends[0] is None or ends[1] is None:
                continue
            yield Cable(ends[0], ends[1], min(rates))
        devices = self.devices
        once = [
            f"{one[0]}[{one[1]}]"
            for (one, two), blocks in self.blocks.items()
            if len(blocks) < 2 and one[0] != two[0] and devices[one[0]].own and devices[two[0]].own
        ]
        if once:
            self.notes.append(
                f"{len(once)} cables stand in the block of one end only ({list_some(once)}): lines "
                "are missing; they count"
            )
        if differ:
            self.notes.append(
                f"the two ends state different rates for {len(differ)} cables "
                f"({list_some(differ)}); the slower one counts"
            )
        alone = [d.guid for d in self.devices.values() if not d.own]
        if alone:
            self.notes.append(
                f"{len(alone)} device{'s have' if len(alone) > 1 else ' has'} no block of their "
                f"own ({list_some(alone)}): the dump may be cut off"
            )

    def end(self, end: End) -> str | Port | None:
        guid, number = end
        if guid in self.names:
            return self.names[guid]
        place = self.places.get(guid)
        return Port(*place, number) if place else None


def _loads(text: str, values: Values) -> Fabric:
    dump = _Dump(values)
    dump.read(text)
    if values.has("names"):
        dump.rename(values.text("names"))
    return dump.build()


READER = Reader(
    "an ibnetdiscover dump",
    (
        HOSTS,
        Setting("names", 'a node-name-map file: lines of 0xGUID "host adapter"'),
        Setting(
            "unnamed", "adapters without a host's name: left out, or each a host", ("out", "each")
        ),
    ),
    _loads,
)


def _switch_name(about: str) -> str:
    """The name that people gave: managed switches say "MF0;name:model/unit"."""
    match = re.fullmatch(r"MF\d+;(.+?):[^:/]+/[A-Z]\d+", about)
    name = match[1] if match else about
    return "switch" if _DEFAULT.match(name) and not match else name
