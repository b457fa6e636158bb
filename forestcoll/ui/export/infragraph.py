"""InfraGraph: the fabric as devices, instances and edges; what `readers/infragraph.py` reads.

A box is an instance; equal boxes are one device. What stands outside of boxes is one more instance.
Format: PyPI `infragraph` 3.1, whose numbers are floats and whose links are the same both ways.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from forestcoll.common.errors import UnsupportedError
from forestcoll.common.escape import escape, file_name
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.ui.export import Files, Settings
from forestcoll.ui.view import Subject

LinkKind = tuple[Fraction, Fraction | None]
"""GB/s and microseconds, where they are known."""


Object = dict[str, Any]
"""Of JSON."""


class Place(NamedTuple):
    """Where a node is: `host[3]` and in it `gpu[5]`."""

    instance: str
    component: str


def infragraph(subject: Subject, settings: Settings) -> Files:
    """The one file, as JSON. UnsupportedError where a link is not the same both ways."""
    graph = subject.graph()
    wires = _wires(subject, graph)
    boxes: dict[str, list[int]] = {}
    for node in range(graph.n):
        boxes.setdefault(graph.box(node), []).append(node)
    links: dict[LinkKind, str] = {}
    devices: dict[str, Object] = {}  # what is in it, as JSON -> the device
    instances: dict[str, int] = {}
    places: dict[int, Place] = {}
    for box, nodes in boxes.items():
        components, refs = _components(graph, nodes)
        inner = [pair for pair in wires if pair[0] in refs and pair[1] in refs]
        named = [(refs[u], refs[v], _name(wires[u, v], links)) for u, v in inner]
        content = json.dumps([bool(box), components, sorted(named)])
        if content not in devices:
            devices[content] = {
                "name": f"host{len(devices)}" if box else "network",
                "components": components,
                "links": _links({wires[pair]: links[wires[pair]] for pair in inner}),
                "edges": [_edge({"component": u}, {"component": v}, by) for u, v, by in named],
            }
        name = devices[content]["name"]
        number = instances.get(name, 0)
        instances[name] = number + 1
        places |= {node: Place(f"{name}[{number}]", ref) for node, ref in refs.items()}
    between = [pair for pair in wires if places[pair[0]].instance != places[pair[1]].instance]
    edges = [
        _edge(places[u]._asdict(), places[v]._asdict(), _name(wires[u, v], links))
        for u, v in between
    ]
    outer = {wires[pair]: links[wires[pair]] for pair in between}
    document = {
        "name": escape(subject.name),
        "devices": list(devices.values()),
        "links": _links(outer),
        "instances": [
            {"name": name, "device": name, "count": count} for name, count in instances.items()
        ],
        "edges": edges,
    }
    return {
        f"{file_name(subject.name)}.infragraph.json": (
            json.dumps(document, indent=1) + "\n"
        ).encode()
    }


def _wires(subject: Subject, graph: CapacityGraph) -> dict[tuple[int, int], LinkKind]:
    """Every link once, from the node that comes first."""
    rates = {ends: graph.bandwidth(e) for e, ends in enumerate(graph.ends)}
    latencies = {} if subject.topology is None else subject.topology.latencies()
    wires: dict[tuple[int, int], LinkKind] = {}
    for (u, v), rate in rates.items():
        back = rates.get((v, u))
        names = graph.names[u], graph.names[v]
        if back != rate:
            other = "nothing" if back is None else f"{float(back):g} GB/s"
            raise UnsupportedError(
                f"{subject.name}: {names[0]} -> {names[1]} has {float(rate):g} GB/s and {other} "
                "the other way; links of InfraGraph are the same both ways"
            )
        if u < v:
            wires[u, v] = rate, latencies.get(names)
    return wires


def _components(graph: CapacityGraph, nodes: Sequence[int]) -> tuple[list[Object], dict[int, str]]:
    """Components of a box, and node -> `gpu[5]`: numbered names in order are one component."""
    series: dict[tuple[str, bool], list[int]] = {}
    numbers: dict[int, str] = {}
    for node in nodes:
        local = re.sub(r"[^A-Za-z0-9_-]", "-", graph.names[node].rpartition("/")[2])
        match = re.fullmatch(r"(.*[^0-9])([0-9]+)", local)
        name, numbers[node] = match.groups() if match else (local, "")
        series.setdefault((name, graph.gpu[node]), []).append(node)
    components: list[Object] = []
    refs: dict[int, str] = {}
    taken: set[str] = set()

    def add(name: str, members: Sequence[int]) -> None:
        while name in taken:
            name += "-"
        taken.add(name)
        kind = "xpu" if graph.gpu[members[0]] else "switch"
        components.append({"name": name, "choice": kind, "count": len(members)})
        refs.update({node: f"{name}[{i}]" for i, node in enumerate(members)})

    for (name, _), members in series.items():
        if [numbers[node] for node in members] == [str(i) for i in range(len(members))]:
            add(name, members)
        else:
            for node in members:
                add(name + numbers[node], [node])
    return components, refs


def _name(wire: LinkKind, links: dict[LinkKind, str]) -> str:
    return links.setdefault(wire, f"link{len(links)}")


def _links(wires: dict[LinkKind, str]) -> list[Object]:
    links = []
    for (rate, latency), name in wires.items():
        physical: Object = {
            "bandwidth": {"choice": "gigabytes_per_second", "gigabytes_per_second": float(rate)}
        }
        if latency is not None:
            physical["latency"] = {"choice": "us", "us": float(latency)}
        links.append({"name": name, "physical": physical})
    return links


def _edge(one: dict[str, str], two: dict[str, str], link: str) -> Object:
    return {"ep1": one, "ep2": two, "scheme": "one2one", "link": link}
