"""Routes as files: JSON, SONiC's CONFIG_DB, FRR's static segments, `ip -6 route`, lists of EVs.

    NAME.routes.json                 every edge with its paths, segments, addresses, weights, EVs
    switches/SWITCH.sonic.json       locator, segments, static routes, interfaces, neighbours
    switches/SWITCH.frr.conf         the same for FRR alone
    hosts/HOST.sh                    iproute2: where headers come off, and a route for each path
    hosts/HOST.evs.json              per adapter and target the addresses that packets take by turns

`read_back` reads what was written, walks every address by the tables of the switches, and holds the
files against each other.

Formats: SONiC doc/srv6/srv6_static_config_hld.md (SRV6_MY_LOCATORS, SRV6_MY_SIDS); FRR 10, zebra's
static-sids; iproute2, ip-route(8), encap seg6 and seg6local.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from forestcoll.common.errors import PlanError
from forestcoll.common.text_file import Block, Rows, digest, dump_block
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.group import symmetry_group
from forestcoll.schedule.forest_file.writing import moves
from forestcoll.solver.routes.edges import images_of, moves_all
from forestcoll.solver.routes.fabric import DECAPSULATION, LOCAL_SEGMENTS, MOST_PLANES, Fabric
from forestcoll.solver.routes.repair import Change, Repair
from forestcoll.solver.routes.segments import Edge, Way
from forestcoll.verify.segments import (
    PLANE,
    Walked,
    address,
    block,
    read_frr,
    read_sonic,
    tail,
    walk,
)

if TYPE_CHECKING:
    from forestcoll.solver.routes.spread import Loads, Spreading
    from forestcoll.study.routes import Pinned

FORMAT, REPAIR = "forestcoll.routes/1", "forestcoll.repair/1"
TEMPLATES = "forestcoll.route-templates/1"
"""The routes of one GPU's edges, and the group that moves them to all others."""
EVS = 128
"""Entropy values of a connection, a path each, that packets take by turns."""


def slots(ways: Sequence[Way]) -> list[int]:
    """EVs of each way, in each of its planes: in proportion to its weight, one at least."""
    total = sum(way.weight for way in ways)
    return [max(1, EVS * way.weight // (total * len(way.planes))) for way in ways]


class Port(NamedTuple):
    """A switch's port: its interface, who is there, the addresses at both ends, and `prefix`: of
    the addresses that go out there, with the switch's own number where it is a host's."""

    name: str
    to: str
    local: str
    remote: str
    prefix: str
    host: bool


@dataclass(frozen=True)
class Book:
    """All that is written. `name`: of the files; `facts`: what the JSON says besides."""

    name: str
    fabric: Fabric
    edges: list[Edge]
    total: int
    facts: Mapping[str, str]

    changes: Sequence[Change] = ()
    images: Mapping[str, object] = field(default_factory=dict)  # how edges stand for others
    spares: Sequence[str] = ()  # what stands behind each path

    @staticmethod
    def of(pinned: Pinned, repaired: Repair | None = None) -> Book:
        """What is written of routes, as they are after a repair if there was one."""
        spreading, sent = pinned.loads.spreading, pinned.sent
        fabric = (repaired or spreading).fabric
        facts = {"topology": fabric.left.name, "schedule": sent.what, "spread": pinned.by}
        if repaired is None:
            images = _images(spreading) if spreading.edges.images > 1 else {}
            chosen = np.array([[*each.spreading.chosen.values()] for each in pinned.spares])
            rows = chosen.transpose().tolist() if chosen.size else ()
            spares = [f', "spares": {row}' if max(max(row)) >= 0 else "" for row in rows]
            return Book(sent.stem, fabric, pinned.edges, spreading.total, facts, (), images, spares)
        return Book(sent.stem, fabric, repaired.edges, repaired.total, facts, repaired.changes)

    @cached_property
    def near(self) -> Mapping[str, Iterable[str]]:
        """Per node its neighbours, switches of the fabric behind hosts."""
        near: dict[str, dict[str, None]] = defaultdict(dict)
        for link in self.fabric.left.links:
            for one, other in link.directions():
                near[one][other] = None
        return near

    def files(
        self, formats: tuple[str, ...], planes: Container[int] = range(MOST_PLANES)
    ) -> Iterator[tuple[str, str]]:
        """(name, text) of every file of these formats: json sonic frr ip evs."""
        for node in self.fabric.form if {"sonic", "frr"} & {*formats} else ():
            for values in self.fabric.values(node):
                form = self.fabric.form[node][0]
                if self.fabric.plane(form, values) not in planes:
                    continue
                name, ports = form.format(**values), list(self.ports(node, values))
                own = self.fabric.segment(form, values)
                locator = address(self.fabric.plane(form, values), (own,))
                if "sonic" in formats:
                    text = _indent(self.sonic(locator, ports), "\n")
                    yield f"switches/{name}.sonic.json", f"{text}\n"
                if "frr" in formats:
                    yield f"switches/{name}.frr.conf", self.frr(locator, ports)
        if "ip" in formats:
            for host, lines in self.scripts().items():
                yield f"hosts/{host}.sh", "\n".join(["#!/bin/sh -e", *lines, ""])
        if "evs" in formats:
            for host, adapters in self.lists().items():
                yield f"hosts/{host}.evs.json", json.dumps(adapters) + "\n"
        if "json" in formats and self.changes:
            yield f"{self.name}.repair.json", self._repair()
        if "json" in formats:
            yield f"{self.name}.routes.json", self.json()

    def json(self) -> str:
        """Every edge on a line; `{plane}` stands for two digits in addresses, a number in names."""
        spares, sep = iter(self.spares), '", "'

        def edges() -> Iterator[str]:
            for edge in self.edges:
                ways = [
                    f'{{"planes": {_quote(way.planes)}, '
                    f'"nodes": [{", ".join(map(_quote, way.nodes))}], '
                    f'"segments": ["{tail(way.segments).rstrip(":").replace(":", sep)}"], '
                    f'"address": "{address(PLANE, way.segments)}", "weight": {way.weight}, '
                    f'"evs": {count}{next(spares, "")}}}'
                    for way, count in zip(edge.ways, slots(edge.ways), strict=True)
                ]
                yield (
                    f'{{"src": {_quote(edge.src)}, "dst": {_quote(edge.dst)}, '
                    f'"weight": {edge.weight}, "paths": [{", ".join(ways)}]}}'
                )

        routes = Block(
            format=TEMPLATES if self.images else FORMAT,
            **self.facts,
            total=self.total,
            block=f"{block(0)}::/32",
            decapsulation=DECAPSULATION,
            **self.images,
            edges=Rows(edges(), 2),
        )
        return dump_block(routes)

    def _repair(self) -> str:
        """The addresses to retire, and those in their place; null: the edge's others do."""
        lines = []
        for change in self.changes:
            new = change.replaced
            line = {
                "src": change.edge.src,
                "dst": change.edge.dst,
                "plane": change.plane,
                "retire": address(change.plane, change.retired.segments),
                "replace": None if new is None else address(change.plane, new.segments),
            }
            lines.append(json.dumps(line))
        name, rows = self.fabric.left.name, Rows(lines, 2)
        return dump_block(Block(format=REPAIR, topology=name, changes=rows))

    def ports(self, node: str, values: dict[str, int]) -> Iterator[Port]:
        """The ports of one of the switches that a node stands for."""
        fabric = self.fabric
        form = fabric.form[node][0]
        plane, number = fabric.plane(form, values), fabric.segment(form, values)
        for other in self.near.get(node, ()):
            if other not in fabric.form:
                port = fabric.port(form, other, {})
                net = f"fd01:{plane:x}:{number:x}:{port:x}"
                prefix = f"{address(plane, (number, LOCAL_SEGMENTS + port))}/64"
                yield Port(f"Ethernet{port}", other, f"{net}::1", f"{net}::2", prefix, True)
                continue
            far = fabric.form[other][0]
            for others in fabric.values(other, values):
                port, back = fabric.port(form, far, others), fabric.port(far, form, values)
                mine, theirs = (number, port), (fabric.segment(far, others), back)
                first = mine < theirs
                net = "fd01:{:x}:{:x}:{:x}".format(plane, *min(mine, theirs))
                ends = (f"{net}::{2 - first}", f"{net}::{1 + first}")
                prefix = f"{address(plane, theirs[:1])}/48"
                yield Port(f"Ethernet{port}", far.format(**others), *ends, prefix, False)

    def sonic(self, locator: str, ports: list[Port]) -> dict[str, Any]:
        """Tables of CONFIG_DB."""
        sids = {f"loc1|{locator}/48": {"action": "uN", "decap_dscp_mode": "pipe"}}
        routes, faces = {}, dict[str, dict[str, str]]()
        for port in ports:
            faces |= {port.name: {}, f"{port.name}|{port.local}/64": {}}
            if port.host:
                cross = {"action": "uA", "interface": port.name, "adj": port.remote}
                sids[f"loc1|{port.prefix}"] = cross
            else:
                route = {"nexthop": port.remote, "ifname": port.name}
                routes[f"default|{port.prefix}"] = route
        return {
            "INTERFACE": faces,
            "DEVICE_NEIGHBOR": {port.name: {"name": port.to} for port in ports},
            "STATIC_ROUTE": routes,
            "SRV6_MY_LOCATORS": {"loc1": {"prefix": locator}},
            "SRV6_MY_SIDS": sids,
        }

    def frr(self, locator: str, ports: list[Port]) -> str:
        """The same tables as FRR has them."""
        lines = ["segment-routing", " srv6", "  locators", "   locator loc1"]
        lines += [f"    prefix {locator}/48 block-len 32 node-len 16 func-bits 16"]
        lines += ["    behavior usid", "   exit", "  exit", "  static-sids"]
        lines += [f"   sid {locator}/48 locator loc1 behavior uN"]
        lines += [
            f"   sid {port.prefix} locator loc1 behavior uA interface {port.name} "
            f"nexthop {port.remote}"
            for port in ports
            if port.host
        ]
        lines += ["  exit", " exit", "exit"]
        lines += [f"ipv6 route {p.prefix} {p.remote} {p.name}" for p in ports if not p.host]
        return "\n".join([*lines, ""])

    def scripts(self) -> dict[str, list[str]]:
        """Per host commands of iproute2. A path's alias: fd00 + target, source, plane, number."""
        ranks = {n: f"{i >> 16:x}:{i & 65535:x}" for i, n in enumerate(self.fabric.left.gpus)}
        hosts: dict[str, list[str]] = defaultdict(list)
        ends = {(w.nodes[-1], p) for e in self.edges for w in e.ways for p in w.planes}
        ports = {(host_of(n), p): interface(n, p) for n, p in sorted(ends, reverse=True)}
        for (host, plane), port in sorted(ports.items()):  # whichever port it comes in by
            off = f"{address(plane, (DECAPSULATION,))}/48 encap seg6local action End.DT6 table 255"
            hosts[host].append(f"ip -6 route replace {off} dev {port}")
        for host, gpu in sorted(
            {(host_of(w.nodes[-1]), e.dst) for e in self.edges for w in e.ways}
        ):
            hosts[host].append(f"ip -6 route replace local fd00:{ranks[gpu]}::/48 dev lo")
        for edge in self.edges:
            pair = f"{ranks[edge.dst]}:{ranks[edge.src]}"
            for k, way in enumerate(edge.ways):
                first, rest = way.nodes[0], tail(way.segments)
                hosts[host_of(first)] += [
                    f"ip -6 route replace fd00:{pair}:{plane:x}:{k:x}:0/128 encap seg6 mode "
                    f"encap.red segs {block(plane)}:{rest} dev {interface(first, plane)}"
                    for plane in way.planes
                ]
        return hosts

    def lists(self) -> dict[str, dict[str, dict[str, list[object]]]]:
        """Host -> adapter -> target GPU -> [address, how many EVs] of every path and plane."""
        out: dict[str, dict[str, dict[str, list[object]]]] = defaultdict(lambda: defaultdict(dict))
        for edge in self.edges:
            for way, count in zip(edge.ways, slots(edge.ways), strict=True):
                first, rest = way.nodes[0], tail(way.segments)
                listed = out[host_of(first)][first].setdefault(edge.dst, [])
                listed += [[f"{block(plane)}:{rest}", count] for plane in way.planes]
        return out


def _images(spreading: Spreading) -> dict[str, object]:
    """The group, ports, leaves and spines: with them an edge says the paths of all its images."""
    edges, fabric, group = spreading.edges, spreading.fabric, spreading.edges.group
    assert group is not None, "images are of a group"
    [(index, [values])] = spreading.layout.values.items()
    graph, names = edges.graph, _names(edges.graph, fabric)
    adapters, leaves = (images_of(group, v).tolist() for v in edges.nodes[0, :2].tolist())
    form = {leaf: fabric.form[graph.names[leaf]][0] for leaf in leaves}
    [top] = {form for form, kind in fabric.kinds.items() if index in kind.inner}
    plane = {name: f"{{{name}}}" for name in fabric.kinds[top].outer}
    return {
        "symmetry": [moves(names, image) for image in group.generators],
        "ports": {
            names[adapter]: fabric.port(form[leaf], names[adapter], {})
            for adapter, leaf in zip(adapters, leaves, strict=True)
        },
        "leaves": {names[v]: fabric.segment(each, {}) for v, each in form.items()},
        "spines": {
            top.format(**plane, **{index: v}): fabric.segment(top, {index: v}) for v in values
        },
    }


def _names(graph: CapacityGraph, fabric: Fabric) -> list[str]:
    """The names of nodes, with braces for planes, as paths have them."""
    return [fabric.form[name][0] if name in fabric.form else name for name in graph.names]


def _expand(
    stated: Mapping[str, Any], ways: list[dict[str, Any]], fabric: Fabric, graph: CapacityGraph
) -> Iterator[dict[str, Any]]:
    """The paths of templates, in a plane, and their images by each generator and by all in turn.

    Raises ForestError unless the group is one of the graph's, PlanError where a path is another.
    """
    node = {name: v for v, name in enumerate(_names(graph, fabric))}
    steps = stated["symmetry"]
    images = [{node[name]: node[to] for name, to in step.items()} for step in steps]
    moving = [tuple([image.get(v, v) for v in range(graph.n)]) for image in images]
    if not moves_all(graph, symmetry_group(graph, moving)):
        raise PlanError("the group of templates does not bring every GPU to every other one")
    ports, spines = stated["ports"], [*stated["spines"]]
    numbers_of = stated["leaves"] | stated["spines"]
    place = {name: k for k, name in enumerate(spines)}
    for word in ([], *([step] for step in steps), steps):
        for way in ways:
            nodes = way["nodes"]
            for step in word:
                nodes = [step.get(name, name) for name in nodes]
            turn = ports[nodes[0]] - ports[way["nodes"][0]]
            nodes = [spines[(place[n] + turn) % len(spines)] if n in place else n for n in nodes]
            port = LOCAL_SEGMENTS + ports[nodes[-1]]
            segments = (*(numbers_of[name] for name in nodes[1:-1]), port, stated["decapsulation"])
            text = address(PLANE, segments)
            if not word and text != way["address"]:
                raise PlanError(f"{way['address']}: the path is {text}")
            yield {**way, "nodes": nodes, "planes": way["planes"][:1], "address": text}


_ENDS = {
    ".sonic.json": ("sonic", '{\n "INTERFACE": '),
    ".frr.conf": ("frr", "segment-routing\n srv6\n"),
    ".sh": ("ip", "#!/bin/sh -e\nip -6 route replace "),
    ".evs.json": ("evs", "{"),
    ".repair.json": ("json", f'{{\n "format": "{REPAIR}"'),
}
"""Of files: how a name ends -> (the format, how the text begins)."""


def format_of(name: str) -> str:
    """The format of a file that `Book.files` names."""
    return next((form for end, (form, _) in _ENDS.items() if name.endswith(end)), "json")


def earlier(folder: Path, formats: Collection[str]) -> dict[Path, str]:
    """The files of these formats that an earlier run has left, with their SHA-256."""
    return {
        path: digest(text)
        for end, (form, start) in _ENDS.items()
        for path in (*folder.glob(f"*/*{end}"), *folder.glob(f"*{end}"))
        if form in formats and (text := path.read_bytes()).startswith(start.encode())
    }


def _indent(value: Any, pad: str) -> str:
    """As `json.dumps` with an indent of one, which is slow; of texts and objects."""
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if not value:
        return "{}"
    inner = f"{pad} "
    lines = [f"{inner}{encode_basestring_ascii(k)}: {_indent(v, inner)}" for k, v in value.items()]
    return "{" + ",".join(lines) + pad + "}"


_quote = lru_cache(maxsize=1 << 20)(json.dumps)


@lru_cache(maxsize=1 << 20)
def host_of(node: str) -> str:
    """The host that a node is in, as a file is called."""
    return (node.rpartition("/")[0] or node).replace("/", "-")


@lru_cache(maxsize=1 << 20)
def interface(node: str, plane: int) -> str:
    """The network interface of an adapter to a plane, in the 15 characters that Linux takes."""
    return f"{node.rpartition('/')[2][-11:]}p{plane}"


_SET = re.compile(
    r"ip -6 route replace (?:local )?(\S+) (?:encap seg6 mode encap.red segs (\S+) )?"
)


def read_back(
    files: Mapping[str, str], fabric: Fabric, graph: CapacityGraph | None = None
) -> tuple[Walked, int]:
    """What was written, walked: (hops with their weights, how many planes' shares a weight is in).

    Of templates, which need the `graph`, a sample is walked; see `_expand`.

    Raises PlanError where an address goes astray, a hop is no link of the topology, two files do
    not say the same, or a table is not read as it was meant.
    """
    tables = {}
    for name, text in files.items():
        switch, _, kind = name.removeprefix("switches/").rpartition(".sonic.")
        if kind != "json":
            continue
        tables[switch] = table = read_sonic(text)
        other = files.get(f"switches/{switch}.frr.conf")
        if other is not None and read_frr(other).entries != table.entries:
            raise PlanError(f"{name}: FRR's file says something else")
    [text] = [text for name, text in files.items() if name.endswith(".routes.json")]
    stated = json.loads(text)
    ways = [path for edge in stated["edges"] for path in edge["paths"]]
    if graph is not None and "symmetry" in stated:
        ways = [*_expand(stated, ways, fabric, graph)]
    columns = ([way[key] for way in ways] for key in ("nodes", "address", "planes", "weight"))
    paths, texts, planes, weights = columns
    off, parts = stated["decapsulation"], math.lcm(*{*map(len, planes)})
    _compare(files, [*zip(texts, planes, paths, strict=True)], address(PLANE, (off,)))
    shares = [w * parts // len(among) for w, among in zip(weights, planes, strict=True)]
    walked = walk(tables, paths, texts, planes, shares, off)
    node, links = fabric.nodes, fabric.left.rates()
    for here, there in walked.hops:
        if (node.get(here, here), node.get(there, there)) not in links:
            raise PlanError(f"{here} to {there}: no link of {fabric.left.name}")
    return walked, parts


def check_loads(walked: Walked, parts: int, loads: Loads | Repair) -> None:
    """PlanError unless the walked addresses load every link as the paths were meant to."""
    if isinstance(loads, Repair):
        meant = {hop: weight * parts for hop, weight in loads.hops.items()}
    else:
        fabric, names = loads.spreading.fabric, loads.spreading.edges.graph.names
        chosen = {name: column.tolist() for name, column in loads.chosen.items()}
        meant = {}  # what each link carries in each plane, by ids
        rows = zip(loads.ends.tolist(), loads.weight.tolist(), loads.planes.tolist(), strict=True)
        for row, (ends, weight, planes) in enumerate(rows):
            own = {name: column[row] for name, column in chosen.items()}
            switch = next(names[v] for v in ends if names[v] in fabric.form)
            for values in fabric.values(switch, own):
                both = own | values
                here, there = (
                    fabric.form[names[v]][0].format(**both) if names[v] in fabric.form else names[v]
                    for v in ends
                )
                meant[here, there] = weight * parts // planes
    if meant != walked.hops:
        odd = min(k for k in {*meant, *walked.hops} if meant.get(k) != walked.hops.get(k))
        raise PlanError(
            f"{' to '.join(odd)}: addresses load it with {walked.hops.get(odd, 0)}, not "
            f"{meant.get(odd, 0)}"
        )


def _compare(
    files: Mapping[str, str], rows: Sequence[tuple[str, Sequence[int], Sequence[str]]], off: str
) -> None:
    """PlanError unless hosts have the same addresses and take headers off; `off`: where.

    `rows`: address, planes, nodes.
    """
    scripts: dict[str, dict[str, str]] = {}  # per destination the address that packets carry
    for name, text in files.items():
        for to, carried_there in _SET.findall(text) if name.endswith(".sh") else ():
            routes = scripts.setdefault(name, {})
            if to in routes:
                raise PlanError(f"{name}: {to} has two routes, and the latter replaces the former")
            routes[to] = carried_there
    lists = [json.loads(text) for name, text in files.items() if name.endswith(".evs.json")]
    carried = {text for routes in scripts.values() for text in routes.values() if text}
    listed = {
        evs[0]
        for adapters in lists
        for to in adapters.values()
        for one in to.values()
        for evs in one
    }
    stated = {
        text.replace(PLANE, f"{plane:02x}")
        for text, planes, _ in (rows if scripts or lists else ())
        for plane in planes
    }
    for suffix, some, texts in ((".sh", scripts, carried), (".evs.json", lists, listed)):
        if some and texts != stated:
            raise PlanError(f"hosts/*{suffix} have other addresses than the JSON")
    ends = {
        (nodes[-1], plane) for _, planes, nodes in (rows if scripts else ()) for plane in planes
    }
    for name, plane in sorted({(f"hosts/{host_of(end)}.sh", plane) for end, plane in ends}):
        prefix = f"{off.replace(PLANE, f'{plane:02x}')}/48"
        if prefix not in scripts.get(name, ()):
            raise PlanError(f"{name}: nothing takes headers off at {prefix}")
