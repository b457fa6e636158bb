"""InfraGraph (YAML or JSON; PyPI `infragraph` 3.1, MIT) to a `Topology`.

Devices hold components and edges between them, instances repeat devices, edges join instances;
names take Python slices (`host[0:2]`, `xpu[3]`), schemes are one2one, many2many and ring. An `xpu`
becomes a GPU and every other component a switch, since data passes through it; memory, and what
leads nowhere, is left out, and a component with two ends only is a part of the link through it.

A link without a bandwidth in bits or bytes a second needs one: `rates=pcie=48,xpu_fabric=300`
(GB/s), or `none` where it never limits (`rates=serdes=none`), which makes its two ends one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import PurePath

from forestcoll.common.errors import did_you_mean
from forestcoll.common.input_limits import LINKS, NESTED_DEVICES, NODES
from forestcoll.topology import Link, Node, Topology, bandwidth, exact, slug
from forestcoll.topology.readers.shared import Groups, Reader, Setting, Values, list_some
from forestcoll.topology.source import Items, Place, Table, Value, located, parse_yaml

UNKNOWN = Fraction(-1)
"""Stands for a bandwidth that the file lacks, until an edge uses the link."""

_SEGMENT = re.compile(r"([A-Za-z0-9_-]{1,100})(?:\[([^\]\[]{0,60})\])?")
_UNITS = {
    "gigabits_per_second": Fraction(1, 8),
    "gigabytes_per_second": Fraction(1),
    "giga_bits_per_second": Fraction(1, 8),
    "giga_bytes_per_second": Fraction(1),
}


@dataclass(slots=True)
class Device:
    """Components (kind and count) by name, links by name, and edges still to be expanded."""

    table: Table
    components: dict[str, tuple[str, int]] = field(default_factory=dict)
    links: dict[str, Fraction | None] = field(default_factory=dict)
    size: int = 0  # components, those inside included, once known


def _loads(text: str, values: Values) -> Topology:
    table = parse_yaml(text, values.source)
    inner = table.items.get("infrastructure")
    if isinstance(inner, Table):
        table = inner
    return _Graph(table, values).topology()


READER = Reader(
    "an InfraGraph file", (Setting("rates", "GB/s by link name: pcie=48,serdes=none"),), _loads
)


def _read_rates(values: Values) -> dict[str, Fraction | None]:
    rates: dict[str, Fraction | None] = {}
    for entry in (part.strip() for part in values.text("rates").split(",") if part.strip()):
        name, equals, word = entry.rpartition("=")
        with located(values, "rates"):
            rate = None if word == "none" else bandwidth(word)
        if not equals or not name.strip() or (rate is not None and rate <= 0):
            raise values.error(f"rates: '{entry[:60]}' is not LINK=GB/s (more than 0) or LINK=none")
        rates[name.strip()] = rate
    return rates


def _entries(table: Table, key: str) -> Iterator[Table]:
    value: Value = table.items.get(key, Items(table.source, table.line))
    for entry in value.as_list(key):
        yield entry.as_table(f"an entry of {key}")


def _word(table: Table, key: str) -> str:
    text = table.text(key, "")
    if text is None:
        raise table.error(f"'{key}' is missing")
    return text.text.strip()


class _Graph:
    def __init__(self, table: Table, values: Values) -> None:
        self.values, self.table = values, table
        self.rates = _read_rates(values)
        self.devices: dict[str, Device] = {}
        self.kinds: dict[str, str] = {}  # node -> kind of component
        self.edges: dict[tuple[str, str], Fraction | None] = {}
        self.unrated: set[str] = set()
        self.known_links: set[str] = set()
        self.unequal: dict[str, str] = {}  # edges with two rates

    def topology(self) -> Topology:
        for entry in _entries(self.table, "devices"):
            self.read_device(entry)
        links = self.read_links(self.table)
        counts: dict[str, tuple[str, int]] = {}
        for entry in _entries(self.table, "instances"):
            name, device = _word(entry, "name"), _word(entry, "device")
            if device not in self.devices:
                hint = did_you_mean(device, self.devices)
                raise entry.error(f"no device is called '{device[:60]}'{hint}")
            if name in counts:
                raise entry.error(f"a second instance '{name[:60]}'")
            counts[name] = device, self.count(entry)
        for name, (device, count) in counts.items():
            self.check_size(len(self.kinds) + count * self.measure(device, 0), entry)
            for i in range(count):
                self.add_device(f"{name}.{i}", device)
        self.add_edges(self.table, links, lambda end: self.instance_end(end, counts))
        for name in self.rates:
            if name not in self.known_links:
                hint = did_you_mean(name, self.known_links)
                raise self.values.error(f"rates: no link is called '{name[:60]}'{hint}")
        if self.unrated:
            example = sorted(self.unrated)[0]
            raise self.values.error(
                f"links without a bandwidth in bits or bytes a second: "
                f"{list_some(sorted(self.unrated))}; give them, such as --set "
                f"rates={example}=48 (GB/s), or {example}=none where it never limits"
            )
        return self.finish()

    # reading

    def count(self, table: Table) -> int:
        word = _word(table, "count")
        if not re.fullmatch(r"[0-9]{1,7}", word) or not 1 <= int(word) <= NODES:
            raise table.error(f"count '{word[:20]}' is not between 1 and {NODES:,} {NODES.note}")
        return int(word)

    def check_size(self, nodes: int, place: Place) -> None:
        if nodes > NODES:
            raise place.error(f"more than {NODES:,} components {NODES.note}")

    def read_device(self, entry: Table) -> None:
        name = _word(entry, "name")
        if name in self.devices:
            raise entry.error(f"a second device '{name[:60]}'")
        device = Device(entry)
        for part in _entries(entry, "components"):
            kind = _word(part, "choice")
            word = _word(part, "name")
            if word in device.components:
                raise part.error(f"a second component '{word[:60]}' in '{name}'")
            device.components[word] = kind, self.count(part)
        device.links = self.read_links(entry)
        self.devices[name] = device

    def read_links(self, table: Table) -> dict[str, Fraction | None]:
        """GB/s by name; None where the link never limits. Unrated ones are kept for the error."""
        rates: dict[str, Fraction | None] = {}
        for entry in _entries(table, "links"):
            name = _word(entry, "name")
            if name in rates:
                raise entry.error(
                    f"a second link '{name[:60]}': which of the two its edges mean is not said; "
                    "rename or remove one"
                )
            self.known_links.add(name)
            if name in self.rates:
                rates[name] = self.rates[name]
                continue
            rate = self.bandwidth(entry)
            rates[name] = UNKNOWN if rate is None else rate
        return rates

    def bandwidth(self, entry: Table) -> Fraction | None:
        physical = entry.items.get("physical", entry)
        bandwidth = physical.items.get("bandwidth") if isinstance(physical, Table) else None
        if not isinstance(bandwidth, Table):
            return None
        stated = [key for key in bandwidth.items if key.endswith("_per_second")]
        if "choice" in bandwidth.items:
            choice = _word(bandwidth, "choice")
            if choice not in stated:
                raise bandwidth.error(f"the bandwidth's choice is '{choice[:40]}', and it has "
                    f"{list_some(stated) or 'none'}"
                )  # fmt: skip
        if len(stated) > 1:
            raise bandwidth.error(f"one bandwidth in {len(stated)} figures, {list_some(stated)}: "
                "leave the one that holds"
            )  # fmt: skip
        for unit, factor in _UNITS.items():
            if unit in bandwidth.items:
                text = bandwidth.items[unit].as_text(unit)
                with located(text, unit):
                    rate = exact(text.text) * factor
                if rate <= 0:
                    raise text.error(f"{unit}: {text.text} must be more than 0")
                return rate
        return None

    # expanding

    def measure(self, name: str, depth: int) -> int:
        """Components of a device, those of devices in it included."""
        device = self.devices[name]
        if depth > NESTED_DEVICES:
            raise device.table.error(
                f"device '{name[:60]}' holds itself, or too deep {NESTED_DEVICES.note}",
            )
        total = 0
        for part, (kind, count) in device.components.items():
            inside = part in self.devices and kind == "device"
            total += count * (self.measure(part, depth + 1) if inside else 1)
            self.check_size(total, device.table)
        return total

    def add_device(self, prefix: str, name: str) -> None:
        device = self.devices[name]
        for part, (kind, count) in device.components.items():
            for i in range(count):
                if kind == "device" and part in self.devices:
                    self.add_device(f"{prefix}.{part}.{i}", part)
                else:
                    self.kinds[f"{prefix}.{part}.{i}"] = kind

        def nodes(end: Table) -> list[str]:
            path = _word(end, "component")
            if "device" in end.items:
                path = f"{_word(end, 'device')}.{path}"
            return [f"{prefix}.{n}" for n in self.expand(path, name, end)]

        self.add_edges(device.table, device.links, nodes)

    def instance_end(self, end: Table, counts: Mapping[str, tuple[str, int]]) -> list[str]:
        word = _word(end, "instance")
        match = _SEGMENT.fullmatch(word)
        if match is None or match[1] not in counts:
            hint = did_you_mean(match[1] if match else word, counts)
            raise end.error(f"no instance is called '{word[:60]}'{hint}")
        device, count = counts[match[1]]
        numbers = self.numbers(match[2], count, word, end)
        inside = self.expand(_word(end, "component"), device, end)
        self.check_size(len(numbers) * len(inside), end)
        return [f"{match[1]}.{i}.{part}" for i in numbers for part in inside]

    def expand(self, path: str, device: str, place: Place) -> list[str]:
        """ "cx5[0:2].port" -> cx5.0.port.0, cx5.1.port.0."""
        names = [""]
        inside: str | None = device
        for segment in path.split("."):
            match = _SEGMENT.fullmatch(segment.strip())
            parts = self.devices[inside].components if inside in self.devices else {}
            if match is None or match[1] not in parts:
                hint = did_you_mean(match[1] if match else segment, parts)
                raise place.error(
                    f"'{path[:60]}': no component '{segment[:40]}' in '{inside}'{hint}"
                )
            kind, count = parts[match[1]]
            numbers = self.numbers(match[2], count, path, place)
            self.check_size(len(names) * len(numbers), place)
            names = [f"{one}{'.' if one else ''}{match[1]}.{i}" for one in names for i in numbers]
            inside = match[1] if kind == "device" else None
        return names

    def numbers(self, text: str | None, count: int, what: str, place: Place) -> list[int]:
        """The indices that a slice stands for; all without one."""
        if not text:
            return list(range(count))
        parts = [part.strip() for part in text.split(":")]
        if len(parts) > 3 or not all(re.fullmatch(r"-?[0-9]{1,7}|", part) for part in parts):
            raise place.error(f"'{what[:60]}': [{text}] is not a slice such as [0:2]")
        bounds = [int(part) if part else None for part in parts]
        if len(parts) == 1:
            index = bounds[0] or 0
            indices = [index + count if index < 0 else index]
        elif len(parts) == 3 and bounds[2] == 0:
            raise place.error(f"'{what[:60]}': [{text}] has a step of 0")
        else:
            indices = list(range(*slice(*bounds).indices(count)))
            over = any(b is not None and b > count for b in bounds[:2])
            indices = [count] if over or not indices else indices
        if any(not 0 <= i < count for i in indices):
            raise place.error(f"'{what[:60]}': [{text}] goes beyond the {count} there are")
        return indices

    def add_edges(
        self,
        table: Table,
        links: Mapping[str, Fraction | None],
        nodes: Callable[[Table], list[str]],
    ) -> None:
        """Adds the edges that a table lists; `nodes`: those that an end of one names."""
        for entry in _entries(table, "edges"):
            ends = (entry.items.get(key, entry).as_table(key) for key in ("ep1", "ep2"))
            ones, twos = map(nodes, ends)
            self.add_edge(entry, ones, twos, links)

    def add_edge(
        self, entry: Table, ones: list[str], twos: list[str], links: Mapping[str, Fraction | None]
    ) -> None:
        name = _word(entry, "link")
        if name not in links:
            hint = did_you_mean(name, links)
            raise entry.error(f"no link is called '{name[:60]}' here{hint}")
        rate = links[name]
        if rate == UNKNOWN:
            self.unrated.add(name)
        for one, two in self.pairs(entry, ones, twos):
            if one == two:
                continue
            for end in (one, two):
                if end not in self.kinds:
                    raise entry.error(f"'{end[:60]}' is a device, not a component")
            key = min(one, two), max(one, two)
            rate_before = self.edges.setdefault(key, rate)
            if rate_before != rate:
                self.unequal.setdefault(f"{one} - {two}", f"line {entry.line}")
            if rate_before is not None and rate is not None:
                self.edges[key] = max(rate_before, rate)
            if len(self.edges) > LINKS:
                raise entry.error(f"more than {LINKS:,} edges {LINKS.note}")

    def pairs(self, entry: Table, ones: list[str], twos: list[str]) -> Iterator[tuple[str, str]]:
        scheme = "one2one"
        if "scheme" in entry.items:
            scheme = _word(entry, "scheme")
        elif "many2many" in entry.items:
            scheme = "many2many" if _word(entry, "many2many") == "true" else "one2one"
        if scheme == "many2many":
            if len(ones) * len(twos) > LINKS:
                raise entry.error(f"more than {LINKS:,} edges {LINKS.note}")
            return ((one, two) for one in ones for two in twos)
        if scheme == "ring":
            around = list(dict.fromkeys([*ones, *twos]))
            return iter(list(zip(around, around[1:] + around[:1], strict=True)))
        if scheme != "one2one":
            raise entry.error(f"scheme '{scheme[:30]}' is none of one2one, many2many, ring")
        if len(ones) != len(twos):
            raise entry.error(
                f"one2one joins {len(ones)} ends with {len(twos)}: as many are needed"
            )
        return zip(ones, twos, strict=True)

    # to a topology

    def finish(self) -> Topology:
        merged = Groups(self.kinds)
        for (one, two), rate in self.edges.items():
            if rate is None:
                merged.join(one, two)
        heads: dict[str, str] = {}  # group -> its GPU, or the group itself
        for name, kind in self.kinds.items():
            group = merged.find(name)
            if kind == "xpu":
                if group in heads:
                    raise self.values.error(
                        f"{heads[group]} and {name} are one node, by links of rate "
                        "none; give those a rate"
                    )
                heads[group] = name
        near: dict[str, dict[str, Fraction]] = defaultdict(dict)
        for (one, two), rate in self.edges.items():
            ends = [heads.get(merged.find(end), merged.find(end)) for end in (one, two)]
            if rate is not None and ends[0] != ends[1]:
                total = near[ends[0]].get(ends[1], Fraction(0)) + rate
                near[ends[0]][ends[1]] = near[ends[1]][ends[0]] = total
        gpus = [name for name, kind in self.kinds.items() if kind == "xpu"]
        _shorten(near, set(gpus), {n for n, kind in self.kinds.items() if kind == "memory"})
        boxes = {_instance(name) for name in gpus}
        order = dict.fromkeys([*gpus, *near])
        ids = {name: _id(name, "/" if _instance(name) in boxes else "-") for name in order}
        nodes = {ids[n]: Node("gpu" if self.kinds.get(n) == "xpu" else "switch") for n in ids}
        place = {name: i for i, name in enumerate(ids)}
        links = tuple(
            Link(ids[one], ids[two], rate)
            for one in ids
            for two, rate in near.get(one, {}).items()
            if place[one] < place[two]
        )
        title = self.table.items.get("name")
        name = title.as_text("name").text if title else PurePath(self.values.source).stem
        if not gpus:
            raise self.values.error("no component of choice xpu in an instance: no GPU")
        notes = [
            f"{len(self.unequal)} pairs of components have two edges of different rates, and the "
            f"faster counts: {list_some([f'{ends} ({at})' for ends, at in self.unequal.items()])}"
        ]
        return self.values.topology(nodes, links, (), notes if self.unequal else (), slug(name))


def _shorten(near: dict[str, dict[str, Fraction]], gpus: set[str], memory: set[str]) -> None:
    """Takes out memory and dead ends, and makes chains through a component one link."""
    waiting = [name for name in near if name not in gpus]
    while waiting:
        name = waiting.pop()
        ends = near.get(name)
        if ends is None or (len(ends) > 2 and name not in memory):
            continue
        for end in ends:
            del near[end][name]
            if end not in gpus:
                waiting.append(end)
        if len(ends) == 2 and name not in memory:
            one, two = ends
            rate = min(ends.values()) + near[one].get(two, Fraction(0))
            near[one][two] = near[two][one] = rate
        del near[name]


def _instance(name: str) -> str:
    return ".".join(name.split(".", 2)[:2])


def _id(name: str, joint: str) -> str:
    """ "dgx.0.xpu.3" -> "dgx0/xpu3" where `joint` is "/"."""
    words = name.split(".")
    pairs = [f"{word}{number}" for word, number in zip(words[::2], words[1::2], strict=True)]
    return joint.join([pairs[0], "-".join(pairs[1:])])
