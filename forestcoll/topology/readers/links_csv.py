"""Lists of links in CSV: SONiC's lab lists, LLDP tables, and any `src,dst,bandwidth`.

The header names the columns: two devices, their ports (or none), and what a link carries. In
SONiC's lists (`StartDevice,StartPort,EndDevice,EndPort,BandWidth`) and under `speed` a plain number
is Mb/s, under `bandwidth` GB/s as everywhere in this project; `400G` and `400Gb/s` are Gb/s,
`50GB/s` is GB/s.

A cable that stands there from both ends, or twice, counts once; a row without ports is a link of
its own, unless the list has every pair of devices in both directions.

Nodes called `gpu<i>` (also `box0/gpu0`) are GPUs, and the list is a whole topology; else devices
are switches and hosts, and hosts are what `hosts` matches or what SONiC's list of devices
(`devices=FILE`) calls a server.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from forestcoll.common.errors import TopologyError
from forestcoll.common.input_limits import LINKS, PARALLEL_LINKS
from forestcoll.topology import Link, Node, Topology, bandwidth, exact, has_unit, read_text
from forestcoll.topology.readers.shared import (
    HOSTS,
    Cable,
    Fabric,
    Port,
    Reader,
    Setting,
    Values,
    build_fabric,
    kind_of,
    list_some,
    make_ids,
    note_gaps,
    note_unlike,
)
from forestcoll.topology.source import Place, located

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
MOST = 10_000
"""GB/s that no link carries: the figure is in another unit than its column."""
LEAST = 1000
"""Mb/s below which a port has 10 or 100: other figures are Gb/s in a column of Mb/s."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the list; empty ports where it has none."""

    place: Place
    src: str
    dst: str
    src_port: str
    dst_port: str
    rate: Fraction | None  # GB/s
    count: int
    latency: Fraction | None

    @property
    def line(self) -> int:
        """Returns the number of its line."""
        return self.place.line

    @property
    def pair(self) -> str:
        """Its two devices, in an order that does not depend on the row."""
        return _pair(self.src, self.dst)

    @property
    def words(self) -> str:
        """What the link carries, to be compared."""
        return _words(self.rate, self.latency, self.count)


@lru_cache(4096)
def _pair(one: str, two: str) -> str:
    return " - ".join(sorted((one, two), key=lambda end: (kind_of(end), end)))


@lru_cache(4096)
def _words(rate: Fraction | None, latency: Fraction | None, count: int) -> str:
    text = "no rate" if rate is None else f"{float(rate):g} GB/s"
    text += "" if latency is None else f", {float(latency):g} us"
    return text + (f", count {count}" if count > 1 else "")


def _loads(text: str, values: Values) -> Topology | Fabric:
    rows = list(_rows(text, values))
    if not rows:
        raise values.error("a header and no link below it")
    rows, notes = _count_once(rows)
    notes += note_unlike("rows", {f"{row.pair} in line {row.line}": row.words for row in rows})
    if any(_GPU_NAME.fullmatch(end) for row in rows for end in (row.src, row.dst)):
        return _topology(rows, values, notes)
    return _cabling(rows, values, notes)


READER = Reader(
    "a CSV list of links",
    (
        HOSTS,
        Setting("devices", "SONiC's list of devices: its servers are the hosts"),
        Setting("rate", "GB/s of the links whose rate the list lacks", rate=True),
    ),
    _loads,
)


def find_columns(header: list[str]) -> dict[str, int]:
    """Column by meaning, for a header that names two devices; {} for another header."""
    columns: dict[str, int] = {}
    for place, word in enumerate(header):
        plain = re.sub(r"[^a-z0-9]", "", word.lower())
        meaning = next((name for name, words in COLUMNS.items() if plain in words), None)
        if meaning is not None:
            columns.setdefault(meaning, place)
    return columns if all(name in columns for name in NEEDED) else {}


def _rows(text: str, values: Values) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(text))
    columns: dict[str, int] = {}
    try:
        for cells in reader:
            place = values.at(reader.line_num)
            if not any(cell.strip() for cell in cells) or cells[0].lstrip().startswith("#"):
                continue
            if not columns:
                columns = find_columns(cells)
                if not columns:
                    raise place.error(_say_what_is_wrong(cells))
                sonic = "startdevice" in cells[columns["src"]].lower().replace(" ", "")
                continue
            if place.line > LINKS:
                raise values.error(f"more than {LINKS:,} lines {LINKS.note}")
            yield _row(cells, columns, place, sonic)
    except csv.Error as error:
        raise values.at(reader.line_num).error(f"not CSV: {error}") from None
    if not columns:
        raise values.error("empty; a list of links starts with src,dst,bandwidth")


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


def _row(cells: list[str], columns: Mapping[str, int], place: Place, sonic: bool) -> Row:
    def cell(name: str) -> str:
        at = columns.get(name)
        return cells[at].strip() if at is not None and at < len(cells) else ""

    for name in NEEDED:
        if not cell(name):
            raise place.error(f"no device in column {columns[name] + 1}")
    count = cell("count") or "1"
    if not re.fullmatch(r"[0-9]{1,7}", count) or not 1 <= int(count) <= PARALLEL_LINKS:
        raise place.error(f"count '{count[:20]}' is not a number of links, 1 and more")
    scale = {
        "bandwidth": Fraction(1, 8000) if sonic else Fraction(1),
        "gbits": Fraction(1, 8),
        "speed": Fraction(1, 8000),
    }
    stated = next((name for name in scale if cell(name)), None)
    with located(place):
        rate = _rate(cell(stated), scale[stated]) if stated else None
        latency = exact(cell("latency")) if cell("latency") else None
    ends = cell("src"), cell("dst"), cell("src_port"), cell("dst_port")
    return Row(place, *ends, rate, int(count), latency)


_bandwidth = lru_cache(4096)(bandwidth)


def _rate(word: str, factor: Fraction) -> Fraction:
    rate = _bandwidth(word, factor, label=True)
    if rate <= 0:
        raise TopologyError(f"rate '{word[:20]}' must be more than 0")
    megabits = rate * 8000
    mega = factor == Fraction(1, 8000) and not has_unit(word)
    if rate > MOST or (mega and megabits < LEAST and megabits not in (10, 100)):
        says = f"{word[:20]} Mb/s" if mega else f"{float(rate):,.10g} GB/s"
        raise TopologyError(
            f"rate '{word[:20]}' is {says} in this column, and no link carries that: write the "
            "unit behind the number, 400Gb/s or 50GB/s"
        )
    return rate


def _count_once(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Each cable once, and notes on those that stand there again. Raises for a port with two."""
    kept: dict[frozenset[tuple[str, str]], Row] = {}
    ports: dict[tuple[str, str], Row] = {}
    again: list[str] = []
    cables: list[Row] = []
    for row in rows:
        ends = (row.src, row.src_port), (row.dst, row.dst_port)
        if not (row.src_port and row.dst_port) or row.src == row.dst:
            cables.append(row)
            continue
        first = kept.setdefault(frozenset(ends), row)
        if first is not row:
            _check_same(first, row)
            again.append(f"line {row.line} of line {first.line}")
            continue
        for end in ends:
            other = ports.setdefault(end, row)
            if other is not row:
                raise row.place.error(
                    f"{end[0]} {end[1]} has a cable already, in line {other.line}; a port has one"
                )
        cables.append(row)
    notes = []
    if again:
        rows_name = "1 row names" if len(again) == 1 else f"{len(again)} rows name"
        notes.append(
            f"{rows_name} a cable again, twice or from its other end, and it counts once: "
            f"{list_some(again)}"
        )
    return _count_pairs_once(cables, notes), notes


def _doubt_trunks(rows: list[Row], hosts: set[str]) -> list[str]:
    """Notes on switches with fewer cables to switches of some kind than those of their own have."""
    near: Counter[str] = Counter()
    for row in rows:
        if row.src not in hosts and row.dst not in hosts:
            near[f"{row.src} to {kind_of(row.dst)}"] += row.count
            near[f"{row.dst} to {kind_of(row.src)}"] += row.count
    return note_unlike("the cables between switches", near, fewer=True)


def _check_same(one: Row, two: Row) -> None:
    if one.words != two.words:
        raise two.place.error(
            f"{two.words} for {two.pair}, and {one.words} in line {one.line} for the same cable"
        )


def _count_pairs_once(rows: list[Row], notes: list[str]) -> list[Row]:
    """Rows without ports, each once where the list has every pair of devices both ways round."""
    ways: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if not (row.src_port and row.dst_port) and row.src != row.dst:
            ways.setdefault((row.src, row.dst), []).append(row)
    like = Counter((ends, row.words) for ends, same in ways.items() for row in same)
    twice = [
        f"{row.pair} in line {row.line}"
        for ends, same in ways.items()
        for row in same
        if like[ends, row.words] > 1
    ]
    if twice:
        notes.append(
            f"{len(twice)} rows are like another and name no ports: they count as parallel links: "
            f"{list_some(twice)}"
        )
    back = [ends for ends in ways if ends[::-1] in ways]
    if not back:
        return rows
    if any(len(same) != len(ways.get(ends[::-1], ())) for ends, same in ways.items()):
        pairs = [ways[ends][0].pair for ends in back[::2]]
        notes.append(
            f"{len(pairs)} pairs of devices stand in both directions, others do not, and no ports "
            f"are named: they count as parallel links: {list_some(pairs)}"
        )
        return rows
    gone: set[int] = set()
    seen: set[tuple[str, str]] = set()
    for ends, same in ways.items():
        seen.add(ends)
        if ends[::-1] in seen:
            firsts = sorted(ways[ends[::-1]], key=lambda row: row.words)
            for one, two in zip(firsts, sorted(same, key=lambda row: row.words), strict=True):
                _check_same(one, two)
            gone |= {row.line for row in same}
    notes.append(
        f"the list has every pair of devices in both directions and names no ports: {len(gone)} "
        "rows are the other ends of those before and count no second time (where they are links "
        "of their own, write count=2 instead)"
    )
    return [row for row in rows if row.line not in gone]


def _rate_of(row: Row, values: Values) -> Fraction:
    rate = row.rate or values.rate("rate")
    if rate is None:
        raise row.place.error(
            "no rate; fill the column, or give --set rate=GB/s for all that lack one"
        )
    return rate


def _topology(rows: list[Row], values: Values, notes: list[str]) -> Topology:
    """Returns the machine of a list whose nodes are GPUs and switches."""
    names = list(dict.fromkeys(end for row in rows for end in (row.src, row.dst)))
    gpus = [name for name in names if _GPU_NAME.fullmatch(name)]
    nodes = {name: Node("gpu") for name in gpus}
    nodes |= {name: Node("switch") for name in names if name not in nodes}
    links = []
    for row in rows:
        rate = _rate_of(row, values)
        with located(row.place):
            links.append(Link(row.src, row.dst, rate, row.latency, row.count))
    notes = [
        f"{len(gpus)} nodes are GPUs by their names, in the order of the list",
        *notes,
        *note_gaps(gpus),
        *_doubt_trunks(rows, set(gpus)),
    ]
    return values.topology(nodes, links, (), notes)


def _cabling(rows: list[Row], values: Values, notes: list[str]) -> Fabric:
    """Returns the fabric of a list of devices' ports: switches and hosts."""
    names = list(dict.fromkeys(end for row in rows for end in (row.src, row.dst)))
    ids = dict(zip(names, make_ids([(name, str(i)) for i, name in enumerate(names)]), strict=True))
    cabled = [row for row in rows if row.src != row.dst]
    if len(cabled) < len(rows):
        own = len(rows) - len(cabled)
        notes.append(f"{own} cables lead from a device to itself and are left out")
    if sum(row.count for row in cabled) > LINKS:
        raise values.error(f"more than {LINKS:,} cables {LINKS.note}")
    hosts = _hosts(ids, values)
    notes += _doubt_trunks(cabled, {name for name, node in ids.items() if node in hosts})

    def place(name: str, port: str) -> str | Port:
        node = ids[name]
        return Port(node, port or "port") if node in hosts else node

    cables = tuple(
        Cable(place(row.src, row.src_port), place(row.dst, row.dst_port), _rate_of(row, values))
        for row in cabled
        for _ in range(row.count)
    )
    switches = tuple(name for name in ids.values() if name not in hosts)
    return build_fabric(values, switches, hosts, cables, notes)


def _hosts(ids: Mapping[str, str], values: Values) -> dict[str, None]:
    """Returns the nodes, in order, that are hosts; `ids`: of all devices."""
    names = list(ids.values())
    patterns = values.patterns("hosts")
    if patterns is not None:
        patterns.check(names, values.source)
        return dict.fromkeys(name for name in names if patterns.match(name))
    if values.has("devices"):
        servers = _servers(values.text("devices"))
        hosts = [node for name, node in ids.items() if name in servers]
        if hosts:
            return dict.fromkeys(hosts)
        raise values.error(
            f"none of its devices is a server in "
            f"{values.text('devices')}; name the hosts with --set hosts=NAME,GLOB"
        )
    raise values.error(
        f"which devices are hosts is not in the list ({list_some(names)}): name "
        "them with --set hosts=NAME,GLOB, or give SONiC's list of devices with --set "
        "devices=FILE"
    )


def _servers(path: str) -> set[str]:
    """Names of the servers of SONiC's list of devices."""
    text = read_text(path)
    try:
        rows = [row for row in csv.reader(io.StringIO(text)) if row]
    except csv.Error as error:
        raise Place(path, 0).error(f"not CSV: {error}") from None
    header = [word.strip().lower() for word in rows[0]] if rows else []
    if "hostname" not in header or "type" not in header:
        raise Place(path, 0).error("not a list of devices: no columns Hostname and Type")
    name, kind = header.index("hostname"), header.index("type")
    wide = [row for row in rows[1:] if len(row) > max(name, kind)]
    return {row[name].strip() for row in wide if row[kind].strip().lower() == "server"}
