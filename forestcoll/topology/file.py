"""Topology files: read, expand, write."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from forestcoll.common import text_file
from forestcoll.common.errors import TopologyError
from forestcoll.common.input_limits import TOPOLOGY_BYTES
from forestcoll.topology.alike import Apart, Merged
from forestcoll.topology.arithmetic import Number, compile_template
from forestcoll.topology.compact import Expansion
from forestcoll.topology.model import Link, Topology, check_name
from forestcoll.topology.numbers import show
from forestcoll.topology.parameters import (
    Parameter,
    apply_settings,
    doubt_settings,
    read_parameters,
)
from forestcoll.topology.source import Place, Table, located, parse_yaml

FORMAT = "forestcoll.topology/1"
FILE_KEYS = ("format", "name", "description", "parameters", "alike", "boxes", "nodes", "links")
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class Heading(NamedTuple):
    """What a topology file says of itself, before anything is expanded."""

    name: str  # may hold {parameters}
    description: str
    parameters: tuple[Parameter, ...]


def load_topology(path: str | Path, settings: Mapping[str, str] = NO_SETTINGS) -> Topology:
    """The expanded topology of the file at `path`, with `settings` for its parameters.

    Raises `TopologyError` with file, line, what is wrong and what would be right.
    """
    return loads_topology(read_text(path), str(path), settings)


def loads_topology(
    text: str,
    source: str = "<text>",
    settings: Mapping[str, str] = NO_SETTINGS,
    apart: Apart = MappingProxyType({}),
) -> Topology:
    """The same from text; `source` stands for the file's name in errors.

    `apart`: values of indices of `alike:` that stand alone.
    """
    table = _document(text, source)
    items = table.items
    parameters = read_parameters(items.get("parameters"))
    values = apply_settings(parameters, settings, source)
    name = _name(table, values)
    expansion = Expansion(values)
    expansion.merge(items.get("alike"), apart)
    if "boxes" in items:
        expansion.boxes(items["boxes"])
    if "nodes" in items:
        expansion.add_nodes(items["nodes"].as_table("nodes"), "", values)
    for template in expansion.link_templates(items.get("links"), "links"):
        expansion.add_link(template, "", values)
    with located(Place(source, 0)):
        doubts = doubt_settings(parameters, settings, values)
        merged = None
        if expansion.merged_nodes:
            expand = partial(loads_topology, text, source, dict(settings))
            nodes = tuple(expansion.merged_nodes)
            merged = Merged(expand, expansion.spans, nodes, values, dict(apart))
        links = tuple(expansion.links)
        return Topology(name, expansion.nodes, links, notes=tuple(doubts), merged=merged)


def read_heading(text: str, source: str = "<text>") -> Heading:
    """Name, description and parameters of a topology file."""
    table = _document(text, source)
    description = table.text("description", "")
    return Heading(
        table.items["name"].as_text("name").text,
        "" if description is None else description.text.strip(),
        read_parameters(table.items.get("parameters")),
    )


def read_text(path: str | Path) -> str:
    """The file's text (UTF-8), if it is a file of sensible size. Raises `TopologyError` else."""
    return text_file.read_text(path, TOPOLOGY_BYTES, TopologyError).removeprefix("\ufeff")


def _document(text: str, source: str) -> Table:
    table = parse_yaml(text, source)
    stated = table.text("format", "")
    if stated is None:
        raise table.error(f"'format: {FORMAT}' is missing: not a topology file?")
    if stated.text != FORMAT:
        raise stated.error(f"format is '{stated.text[:60]}'; this version reads '{FORMAT}'")
    table.check_keys("topology", FILE_KEYS, needed=("name",))
    if "nodes" not in table.items and "boxes" not in table.items:
        raise table.error("'nodes' is missing (or 'boxes' with nodes in them)")
    return table


def _name(table: Table, values: Mapping[str, Number]) -> str:
    text = table.items["name"].as_text("name")
    with located(text, "name"):
        names = list(islice(compile_template(text.text).expand(values), 2))
        if len(names) > 1:
            raise TopologyError(f"'{text.text}' stands for several names; a topology has one")
        if not names:
            raise TopologyError(f"'{text.text}' stands for no name")
        check_name(names[0])
    return names[0]


def dumps_topology(topology: Topology) -> str:
    """The topology as a file in the explicit form; `loads_topology` gives an equal one back."""
    lines = [f"format: {FORMAT}", f"name: {_scalar(topology.name)}", "nodes:"]
    for name, node in topology.nodes.items():
        flags = "".join(
            f", {flag}: true" for flag in ("multicast", "aggregation") if getattr(node, flag)
        )
        lines.append(f"  {_scalar(name)}: {{kind: {node.kind}{flags}}}")
    lines.append("links:" if topology.links else "links: []")
    lines.extend(f"  - {{{_link(link)}}}" for link in topology.links)
    return "\n".join(lines) + "\n"


def _link(link: Link) -> str:
    fields = [
        f"src: {_scalar(link.src)}",
        f"dst: {_scalar(link.dst)}",
        f"bandwidth: {_number(link.bandwidth)}",
    ]
    if link.latency is not None:
        fields.append(f"latency: {_number(link.latency)}")
    if link.count != 1:
        fields.append(f"count: {link.count}")
    if link.oneway:
        fields.append("oneway: true")
    if link.rule is not None:
        fields.append(f"rule: {link.rule}")
    return ", ".join(fields)


def _scalar(text: str) -> str:
    """`text` for YAML, quoted where another reader might take it for something else."""
    word = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./-]*", text) is not None
    special = text.lower() in ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
    return text if word and not special else json.dumps(text)


def _number(value: Fraction) -> str:
    return show(value) if value.denominator == 1 else json.dumps(show(value))
