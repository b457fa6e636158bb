"""From files to one topology: what `topology import` and `topology compose` do.

A file describes a machine (NCCL, nvidia-smi, ...), a fabric (ibnetdiscover, cables), or a whole
topology. A machine and a fabric together are a cluster; a machine alone may be repeated on a
regular network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from forestcoll.common.errors import TopologyError, did_you_mean
from forestcoll.topology import (
    Topology,
    catalog,
    compose,
    dumps_topology,
    read_text,
    readers,
)
from forestcoll.topology.file import NO_SETTINGS
from forestcoll.topology.readers.shared import Values

NETWORKS = ("single", "rail", "fat-tree")


class Source(NamedTuple):
    """A file, or the name of a catalogue entry (then `text` is empty), and its format."""

    name: str
    text: str
    form: readers.Format | None  # None: a topology file, or the catalogue's


def import_files(
    paths: Sequence[str],
    settings: Mapping[str, str] = NO_SETTINGS,
    form: str = "",
    ports: Sequence[str] = (),
) -> Topology:
    """One topology out of one machine or fabric, or of one of each; a list of devices may be there.

    `form`: the format of the first file, where it is not to be recognised. `ports`: as
    `compose.parse_ports`. Raises `TopologyError`.
    """
    settings = dict(settings)
    sources: list[Source] = []
    for path in paths:
        text = read_text(path)
        if len(paths) > 1 and _lists_devices(text):
            settings.setdefault("devices", path)
        else:
            sources.append(_recognise(path, text, form if not sources else ""))
    machines = [source for source in sources if not (source.form and source.form.fabric)]
    fabrics = [source for source in sources if source.form and source.form.fabric]
    if len(machines) > 1 or len(fabrics) > 1:
        two = (machines if len(machines) > 1 else fabrics)[:2]
        kind = "machines" if len(machines) > 1 else "fabrics"
        raise TopologyError(
            f"{two[0].name} and {two[1].name} are two {kind}; give one machine, one fabric, or one "
            "of each"
        )
    if machines and fabrics:
        return _join(machines[0], fabrics[0], settings, ports)
    if ports:
        raise TopologyError(
            f"{paths[0]}: --port says which port of a fabric is which of a machine; give both files"
        )
    (source,) = machines or fabrics
    return catalog.loads_file(source.text, source.name, settings, source.form)


def compose_cluster(
    machine: str,
    network: str,
    settings: Mapping[str, str] = NO_SETTINGS,
    ports: Sequence[str] = (),
) -> Topology:
    """`machine` (a file, or a name of the catalogue) on `network`: a file, or one of `NETWORKS`."""
    source = Source(machine, "", None)
    if Path(machine).is_file():
        source = _recognise(machine, read_text(machine), "")
        if source.form and source.form.fabric:
            raise TopologyError(f"{machine}: {source.form.what}: a fabric, not a machine")
    if network in NETWORKS:
        if ports:
            raise TopologyError(f"--port is for a fabric's file, not for '{network}'")
        own, regular = compose.split_settings({**settings, "fabric": network})
        return compose.compose_boxes(_load_machine(source, own), regular)
    if not Path(network).is_file():
        hint = did_you_mean(network, NETWORKS) or f"; a file, or {', '.join(NETWORKS)}"
        raise TopologyError(f"no fabric '{network[:80]}'{hint}")
    fabric = _recognise(network, read_text(network), "")
    if not (fabric.form and fabric.form.fabric):
        what = fabric.form.what if fabric.form else "a topology file"
        raise TopologyError(
            f"{network}: {what}, not a fabric: ibnetdiscover's output, a CSV list of links or "
            "NetQ's graph"
        )
    return _join(source, fabric, settings, ports)


def dump_with_notes(topology: Topology, command: str) -> str:
    """The topology as a file in the explicit form, its notes and where it comes from above it."""
    heads = [f"written by: {command}", *topology.notes]
    lines = [f"# {' '.join(line.split())}".rstrip() for line in heads]
    return "\n".join(lines) + "\n" + dumps_topology(topology)


def _lists_devices(text: str) -> bool:
    header = {word.strip().lower() for word in text.lstrip("\ufeff").split("\n", 1)[0].split(",")}
    return {"hostname", "type"} <= header


def _recognise(name: str, text: str, form: str) -> Source:
    if form:
        return Source(name, text, readers.find_format(form))
    if catalog.is_topology_file(text):
        return Source(name, text, None)
    format_there = readers.format_of(text)
    if format_there is None:
        readers.read(text, name)  # raises, listing the formats
    return Source(name, text, format_there)


def _load_machine(source: Source, settings: Mapping[str, str]) -> Topology:
    if not source.text:
        return catalog.machine(source.name, settings)
    return catalog.loads_file(source.text, source.name, settings, source.form)


def _join(
    machine: Source, fabric: Source, settings: Mapping[str, str], ports: Sequence[str]
) -> Topology:
    """A machine in every host; each setting goes to the fabric's reader where that knows it."""
    settable = readers.settings_of(fabric.form) if fabric.form else ()
    of_fabric = {k: v for k, v in settings.items() if k in settable}
    others = {k: v for k, v in settings.items() if k not in of_fabric}
    own, network = compose.split_settings(others)
    use = Values(fabric.name, 0, network).patterns("ports") if "ports" in network else None
    stray = [name for name in network if name != "ports"]
    if stray:
        raise TopologyError(
            f"{fabric.name}: {stray[0]} is for regular networks; how many boxes there are, and "
            "what joins them, is in the fabric's file (--hosts chooses)"
        )
    hosts = readers.read(fabric.text, fabric.name, of_fabric, form=fabric.form)
    if not isinstance(hosts, readers.Fabric):
        raise TopologyError(
            f"{fabric.name}: a list of links between GPUs is a topology, not a fabric of hosts"
        )
    node = _load_machine(machine, own)
    return compose.join_fabric(node, hosts, compose.parse_ports(ports), use)
