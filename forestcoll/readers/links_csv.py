"""Lists of links in CSV: SONiC's lab lists, LLDP tables, and any `src,dst,bandwidth`.

The header names the columns: two devices, their ports (or none), and what a link carries. In
SONiC's lists (`StartDevice,StartPort,EndDevice,EndPort,BandWidth`) and under `speed` a plain number
is Mb/s, under `bandwidth` GB/s as everywhere in this project; `400G` and `400Gb/s` are Gb/s.

Nodes called `gpu<i>` (also `box0/gpu0`) are GPUs, and the list is a whole topology; else devices
are switches and hosts, and hosts are what `hosts` matches or what SONiC's list of devices
(`devices=FILE`) calls a server.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import PurePath

from forestcoll.errors import TopologyError
from forestcoll.input_limits import DUMP_BYTES, LINKS, PARALLEL_LINKS
from forestcoll.readers.fabric import HOSTS, Cable, Fabric, Port, list_some, make_ids
from forestcoll.readers.settings import Setting, Values
from forestcoll.topology import Link, Node, Topology, exact, read_text, slug

TITLE = "a CSV list of links"
SETTINGS = (
    HOSTS,
    Setting("devices", "SONiC's list of devices: its servers are the hosts"),
    Setting("rate", "GB/s of the links whose rate the list lacks", rate=True),
)

COLUMNS = {
    "src": ("src", "source", "startdevice", "from", "device", "localdevice", "hostname", "node1"),
    "src_port": ("srcport", "sourceport", "startport", "fromport", "port", "localport",
                 "interface", "localinterface", "port1"),
    "dst": ("dst", "destination", "enddevice", "to", "neighbor", "peer", "remotedevice",
            "peerhostname", "node2"),
    "dst_port": ("dstport", "destinationport", "endport", "toport", "neighborport", "peerport",
                 "remoteport", "peerinterface", "remoteinterface", "port2"),
    "bandwidth": ("bandwidth", "gbytes", "bandwidthgbs"),
    "gbits": ("gbps", "gbits", "bandwidthgbps", "speedgbps"),
    "speed": ("speed", "mbps", "mbits", "speedmbps"),
    "count": ("count", "links", "cables"),
    "latency": ("latency", "latencyus"),
}  # fmt: skip
NEEDED = ("src", "dst")
_GPU_NAME = re.compile(r"(?:.*/)?gpu\d+", re.IGNORECASE)
_WITH_UNIT = re.compile(r"([0-9.]{1,12})\s*([MG])(?:b(?:it)?(?:/s|ps)?)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the list; empty ports where it has none."""

    line: int
    src: str
    dst: str
    src_port: str
    dst_port: str
    rate: Fraction | None  # GB/s
    count: int
    latency: Fraction | None


def loads(text: str, values: Values) -> Topology | Fabric:
    """What the list describes. Raises `TopologyError` with line, reason and cure."""
    source = values.source
    if len(text) > DUMP_BYTES:
        raise TopologyError(f"{source}: larger than {DUMP_BYTES // 2**20} MiB {DUMP_BYTES.note}")
    rows = list(_rows(text, source))
    if not rows:
        raise TopologyError(f"{source}: a header and no link below it")
    if any(_GPU_NAME.fullmatch(end) for row in rows for end in (row.src, row.dst)):
        return _topology(rows, source, values)
    return _Cabling(rows, source, values).fabric().choose_hosts(values.patterns("hosts"))


def find_columns(header: list[str]) -> dict[str, int]:
    """Column by meaning, for a header that names two devices; {} for another header."""
    found: dict[str, int] = {}
    for place, word in enumerate(header):
        plain = re.sub(r"[^a-z0-9]", "", word.lower())
        meaning = next((name for name, words in COLUMNS.items() if plain in words), None)
        if meaning is not None:
            found.setdefault(meaning, place)
    return found if all(name in found for name in NEEDED) else {}


def _rows(text: str, source: str) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(text))
    header: list[str] = []
    try:
        for cells in reader:
            number = reader.line_num
            if not any(cell.strip() for cell in cells) or cells[0].lstrip().startswith("#"):
                continue
            if not header:
                header = cells
                columns = find_columns(header)
                if not columns:
                    raise TopologyError(f"{source}:{number}: {_say_what_is_wrong(header)}")
                sonic = "startdevice" in header[columns["src"]].lower().replace(" ", "")
                continue
            if number > LINKS:
                raise TopologyError(f"{source}: more than {LINKS:,} lines {LINKS.note}")
            yield _row(cells, columns, number, source, sonic)
    except csv.Error as error:
        raise TopologyError(f"{source}:{reader.line_num}: not CSV: {error}") from None
    if not header:
        raise TopologyError(f"{source}: empty; a list of links starts with src,dst,bandwidth")


def _say_what_is_wrong(header: list[str]) -> str:
    words = {word.strip().lower() for word in header}
    if {"hostname", "hwsku"} <= words:
        return (
            "a list of devices, not of links: give the list of links, and this one with --set "
            "devices=FILE"
        )
    return (
        f"'{','.join(header)[:60]}' names no two devices: the header of a list of links is "
        "src,dst,bandwidth (GB/s), with src_port,dst_port,count,latency if you like"
    )


def _row(
    cells: list[str], columns: Mapping[str, int], number: int, source: str, sonic: bool
) -> Row:
    where = f"{source}:{number}"

    def cell(name: str) -> str:
        place = columns.get(name)
        return cells[place].strip() if place is not None and place < len(cells) else ""

    for name in NEEDED:
        if not cell(name):
            raise TopologyError(f"{where}: no device in column {columns[name] + 1}")
    count = cell("count") or "1"
    if not re.fullmatch(r"[0-9]{1,7}", count) or not 1 <= int(count) <= PARALLEL_LINKS:
        raise TopologyError(f"{where}: count '{count[:20]}' is not a number of links, 1 and more")
    scale = {
        "bandwidth": Fraction(1, 8000) if sonic else Fraction(1),
        "gbits": Fraction(1, 8),
        "speed": Fraction(1, 8000),
    }
    rate = None
    for name, factor in scale.items():
        if cell(name):
            rate = _rate(cell(name), factor, where)
            break
    latency = None
    if cell("latency"):
        latency = _number(cell("latency"), where)
    ports = cell("src_port"), cell("dst_port")
    return Row(number, cell("src"), cell("dst"), *ports, rate, int(count), latency)


def _rate(word: str, factor: Fraction, where: str) -> Fraction:
    unit = _WITH_UNIT.fullmatch(word)
    if unit:
        factor = Fraction(1, 8) if unit[2].upper() == "G" else Fraction(1, 8000)
    rate = _number(unit[1] if unit else word, where) * factor
    if rate <= 0:
        raise TopologyError(f"{where}: rate '{word[:20]}' must be more than 0")
    return rate


def _number(word: str, where: str) -> Fraction:
    try:
        return exact(word)
    except TopologyError as error:
        raise TopologyError(f"{where}: {error}") from None


def _rated(row: Row, source: str, values: Values) -> Fraction:
    rate = row.rate or values.rate("rate")
    if rate is None:
        raise TopologyError(
            f"{source}:{row.line}: no rate; fill the column, or give --set rate=GB/s for all that "
            "lack one"
        )
    return rate


def _topology(rows: list[Row], source: str, values: Values) -> Topology:
    """A list whose nodes are GPUs and switches."""
    names = list(dict.fromkeys(end for row in rows for end in (row.src, row.dst)))
    gpus = [name for name in names if _GPU_NAME.fullmatch(name)]
    nodes = {name: Node("gpu") for name in gpus}
    nodes |= {name: Node("switch") for name in names if name not in nodes}
    links = []
    for row in rows:
        try:
            rate = _rated(row, source, values)
            links.append(Link(row.src, row.dst, rate, row.latency, row.count))
        except TopologyError as error:
            where = "" if str(error).startswith(source) else f"{source}:{row.line}: "
            raise TopologyError(f"{where}{error}") from None
    note = f"{len(gpus)} nodes are GPUs by their names, in the order of the list"
    try:
        return Topology(slug(PurePath(source).stem), nodes, tuple(links), notes=(note,))
    except TopologyError as error:
        raise TopologyError(f"{source}: {error}") from None


class _Cabling:
    """A list of devices' ports: switches and hosts."""

    def __init__(self, rows: list[Row], source: str, values: Values) -> None:
        self.source, self.values = source, values
        self.notes: list[str] = []
        names = list(dict.fromkeys(end for row in rows for end in (row.src, row.dst)))
        made = make_ids([(name, str(i)) for i, name in enumerate(names)])
        self.ids = dict(zip(names, made, strict=True))
        self.rows = self.without_doubles(rows)

    def fabric(self) -> Fabric:
        if sum(row.count for row in self.rows) > LINKS:
            raise TopologyError(f"{self.source}: more than {LINKS:,} cables {LINKS.note}")
        hosts = self.hosts()
        switches = tuple(name for name in self.ids.values() if name not in hosts)
        cables = tuple(
            Cable(
                self.place(row.src, row.src_port, hosts),
                self.place(row.dst, row.dst_port, hosts),
                _rated(row, self.source, self.values),
            )
            for row in self.rows
            for _ in range(row.count)
        )
        name = slug(PurePath(self.source).stem)
        return Fabric(name, switches, tuple(hosts), cables, tuple(self.notes), self.source)

    def place(self, name: str, port: str, hosts: Mapping[str, None]) -> str | Port:
        node = self.ids[name]
        return Port(node, port or "port") if node in hosts else node

    def hosts(self) -> dict[str, None]:
        names = list(self.ids.values())
        patterns = self.values.patterns("hosts")
        if patterns is not None:
            patterns.check(names, self.source)
            return dict.fromkeys(name for name in names if patterns.match(name))
        if self.values.given("devices"):
            servers = _servers(self.values.text("devices"))
            found = [node for name, node in self.ids.items() if name in servers]
            if found:
                return dict.fromkeys(found)
            raise TopologyError(
                f"{self.source}: none of its devices is a server in "
                f"{self.values.text('devices')}; name the hosts with --set hosts=NAME,GLOB"
            )
        raise TopologyError(
            f"{self.source}: which devices are hosts is not in the list ({list_some(names)}): name "
            "them with --set hosts=NAME,GLOB, or give SONiC's list of devices with --set "
            "devices=FILE"
        )

    def without_doubles(self, rows: list[Row]) -> list[Row]:
        """Each cable once: LLDP lists it from both ends; cables of a device to itself left out."""
        kept: dict[object, Row] = {}
        own = 0
        ports: dict[tuple[str, str], Row] = {}
        for row in rows:
            ends = (row.src, row.src_port), (row.dst, row.dst_port)
            if row.src == row.dst:
                own += 1
                continue
            both = bool(row.src_port and row.dst_port)
            if both and frozenset(ends) in kept:
                continue
            for end in ends if both else ():
                other = ports.setdefault(end, row)
                if other is not row:
                    raise TopologyError(
                        f"{self.source}:{row.line}: {end[0]} {end[1]} has a cable already, in line "
                        f"{other.line}; a port has one"
                    )
            kept[frozenset(ends) if both else row.line] = row
        if own:
            self.notes.append(f"{own} cables lead from a device to itself and are left out")
        return list(kept.values())


def _servers(path: str) -> set[str]:
    """Names of the servers of SONiC's list of devices."""
    text = read_text(path)
    try:
        rows = [row for row in csv.reader(io.StringIO(text)) if row]
    except csv.Error as error:
        raise TopologyError(f"{path}: not CSV: {error}") from None
    header = [word.strip().lower() for word in rows[0]] if rows else []
    if "hostname" not in header or "type" not in header:
        raise TopologyError(f"{path}: not a list of devices: no columns Hostname and Type")
    name, kind = header.index("hostname"), header.index("type")
    wide = [row for row in rows[1:] if len(row) > max(name, kind)]
    return {row[name].strip() for row in wide if row[kind].strip().lower() == "server"}
