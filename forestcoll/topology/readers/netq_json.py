"""The topology graph of NVIDIA NetQ (JSON), which it gathers by LLDP, to a `Fabric`.

Switches are the devices of type `switch`; everything else that has a cable is a host. The graph has
no rates: `rate=GB/s` says what every cable carries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from forestcoll.topology.readers.shared import (
    HOSTS,
    Cable,
    Fabric,
    Port,
    Reader,
    Setting,
    Values,
    build_fabric,
    make_ids,
)


def _loads(text: str, values: Values) -> Fabric:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise values.error(f"not JSON: {str(error)[:200]}") from None
    graph = _Graph(values)
    parts = value if isinstance(value, list) else [value]
    for part in parts:
        for tier in graph.items(graph.table(part, "the graph"), "nodes"):
            for device in graph.items(graph.table(tier, "nodes"), "compounded_nodes"):
                graph.add_device(graph.table(device, "compounded_nodes"))
    bundles = [bundle for part in parts for bundle in graph.items(part, "links")]
    cables = dict.fromkeys(cable for bundle in bundles for cable in graph.ends(bundle))
    rate = values.rate("rate")
    if rate is None:
        raise values.error(
            "NetQ's graph has no rates: give what a cable carries, --set rate=GB/s (a 400 Gb/s "
            "port: 50)"
        )
    return graph.fabric(list(cables), rate)


READER = Reader("a NetQ graph", (HOSTS, Setting("rate", "GB/s of every cable", rate=True)), _loads)


End = tuple[str, str]
_KINDS = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}


class _Graph:
    def __init__(self, values: Values) -> None:
        self.values = values
        self.names: dict[str, str] = {}  # by id
        self.switches: set[str] = set()

    def table(self, value: Any, what: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.values.error(
                f"{what}: an object with 'nodes' and 'links' as NetQ writes it is "
                f"expected, not {_KINDS.get(type(value), 'a number')}"
            )
        return value

    def items(self, table: dict[str, Any], key: str) -> list[Any]:
        items = table.get(key)
        if not isinstance(items, list):
            raise self.values.error(f"'{key}' is missing or no list; is it NetQ's graph?")
        return items

    def text(self, table: dict[str, Any], key: str) -> str:
        text = table.get(key)
        if not isinstance(text, str) or not text.strip() or len(text) > 500:
            raise self.values.error(f"'{key}' is missing or no name")
        return text

    def add_device(self, device: dict[str, Any]) -> None:
        key = self.text(device, "id")
        if key in self.names:
            raise self.values.error(f"two devices have the id '{key[:60]}'")
        self.names[key] = self.text(device, "name")
        if device.get("device_type") == "switch":
            self.switches.add(key)

    def ends(self, bundle: Any) -> Iterator[tuple[End, End]]:
        """The cables of one entry of 'links', each once: the smaller end first."""
        cables = self.items(self.table(bundle, "links"), "compounded_links")
        for cable in cables:
            interfaces = self.items(self.table(cable, "compounded_links"), "interfaces")
            ends = []
            for entry in interfaces:
                end = self.table(entry, "interfaces")
                node = self.text(end, "node")
                if node not in self.names:
                    raise self.values.error(f"a link to '{node[:60]}', which is no node")
                ends.append((node, self.text(end, "interface")))
            if len(ends) != 2 or ends[0] == ends[1]:
                raise self.values.error(f"a link with {len(set(ends))} ends; it has two")
            stated = cable.get("id")
            if isinstance(stated, str) and "-*-" in stated:
                words = {f"{node}:{interface}" for node, interface in ends}
                if set(stated.split("-*-")) != words:
                    raise self.values.error(
                        f"link '{stated[:100]}' joins {' and '.join(sorted(words))} "
                        "by its interfaces"
                    )
            yield min(ends), max(ends)

    def fabric(self, cables: list[tuple[End, End]], rate: Fraction) -> Fabric:
        far: dict[End, End] = {}
        for one, two in cables:
            for end, other in ((one, two), (two, one)):
                if far.setdefault(end, other) != other:
                    raise self.values.error(
                        f"{self.names[end[0]]} {end[1]} has two cables; a port has one"
                    )
        keys = list(self.names)
        ids = dict(zip(keys, make_ids([(self.names[key], key) for key in keys]), strict=True))
        used = {node for cable in cables for node, _ in cable}

        def place(end: End) -> str | Port:
            return ids[end[0]] if end[0] in self.switches else Port(ids[end[0]], end[1])

        joined_cables = tuple(Cable(place(one), place(two), rate) for one, two in cables)
        switches = tuple(ids[key] for key in keys if key in self.switches)
        hosts = tuple(ids[key] for key in keys if key in used and key not in self.switches)
        notes = (f"every cable counts {float(rate):g} GB/s, as given: the graph has no rates",)
        return build_fabric(self.values, switches, hosts, joined_cables, notes)
