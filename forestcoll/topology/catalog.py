"""The bundled topologies by name, and the one way from what a user names to a `Topology`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from os import PathLike, fsdecode
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from forestcoll.common import arguments
from forestcoll.common.errors import ArgumentError, TopologyError, did_you_mean
from forestcoll.topology import (
    Adapter,
    Heading,
    Link,
    Topology,
    loads_topology,
    read_heading,
    read_text,
)
from forestcoll.topology.file import NO_SETTINGS

if TYPE_CHECKING:
    from forestcoll.topology import readers


@cache
def folder() -> Path:
    """Where the YAML files of the catalogue are: in the installed package, or beside its source."""
    package = Path(__file__).resolve().parents[1]
    for place in (package / "topologies", package.parent / "topologies"):
        if any(place.glob("*.yaml")):
            return place
    raise TopologyError(
        f"the topology catalogue is missing from {package}; install forestcoll again"
    )


@cache
def names() -> tuple[str, ...]:
    """The names of the catalogue, sorted."""
    return tuple(sorted(path.stem for path in folder().glob("*.yaml")))


def source(name: str) -> str:
    """The YAML text of a catalogue entry, comments and all. Raises `TopologyError` when unknown."""
    entry = name.removesuffix(".yaml")
    if entry not in names():
        raise _say_unknown(name, Path(name))
    return read_text(folder() / f"{entry}.yaml")


def heading(name: str) -> Heading:
    """Name template, description and parameters (with defaults and limits) of an entry."""
    return read_heading(source(name), name)


def describe(name: str) -> str:
    """One line: what the entry is, and its parameters with their defaults."""
    about = heading(name)
    listed = ", ".join(map(str, about.parameters))
    return f"{about.description} ({listed})" if listed else about.description


def by_name(name: str, most: int) -> Topology | None:
    """The catalogue's topology that has this name once it is expanded, all else by default.

    None where no entry's name can be that (`dgx-a100-2` is `dgx-a100` with boxes=2), or a
    parameter in it is above `most`.
    """
    for entry in names():
        match = re.search(r"^name: *(\S+)", source(entry), re.MULTILINE)
        pieces = re.split(r"\{(\w+)\}", match[1] if match else entry)
        pattern = "".join(
            f"(?P<{piece}>[0-9]+)" if i % 2 else re.escape(piece) for i, piece in enumerate(pieces)
        )
        settings = re.fullmatch(pattern, name)
        if settings is None or any(len(v) > 9 or int(v) > most for v in settings.groups()):
            continue
        try:
            return loads_topology(source(entry), entry, settings.groupdict())
        except TopologyError:  # fewer than the entry wants
            continue
    return None


def topology_of(given: object) -> Topology:
    """What a caller gives for a topology: one, a name of the catalogue, or the path of a file.

    A networkx graph is read as `from_networkx` does. Raises `TopologyError`, ArgumentError.
    """
    if isinstance(given, Topology):
        return given
    if isinstance(given, str | PathLike):
        return load(given)
    if hasattr(given, "nodes") and hasattr(given, "is_directed"):
        return Topology.from_networkx(cast(Any, given))
    raise ArgumentError(
        "topology must be a Topology, a name of the catalogue, or the path of a file, not "
        f"{arguments.quote(given)}"
    )


def load(
    name_or_path: str | PathLike[str], settings: Mapping[str, object] = NO_SETTINGS
) -> Topology:
    """The topology that the user means, with `settings` for its parameters ({"boxes": 2}).

    A path to a topology file or to what another tool wrote of a machine or fabric
    (forestcoll/readers), else a catalogue name with or without ".yaml". Raises `TopologyError` with
    the nearest name when it is neither.
    """
    path = arguments.path("topology", name_or_path)
    word = fsdecode(name_or_path)
    settings = arguments.settings("settings", settings)
    if not word:
        raise TopologyError(f"the topology's name is empty; the catalogue has {', '.join(names())}")
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # a name too long for the file system, or with a NUL in it
        is_file = False
    entry = word.removesuffix(".yaml")
    if not is_file:
        if entry not in names():
            raise _say_unknown(word, path)
        return loads_topology(source(entry), entry, settings)
    from forestcoll.topology import readers

    text = read_text(path)
    own = is_topology_file(text)
    form = None if own else readers.format_of(text)
    try:
        return loads_file(text, str(path), settings, form)
    except TopologyError as error:
        if form or own:
            raise
        raise TopologyError(
            f"{error} (other tools' files that are read: 'forestcoll topology import --help')"
        ) from None


def is_topology_file(text: str) -> bool:
    """Whether `text` says that it is this project's own format."""
    return re.search(r"^format:", text, re.MULTILINE) is not None


def loads_file(
    text: str, source: str, settings: Mapping[str, str], form: readers.Format | None
) -> Topology:
    """The topology of a file: our own (`form` None), or what another tool wrote in that format.

    Of one machine, `boxes` of it where the settings ask for them; of a fabric, a rank a host.
    """
    from forestcoll.topology import compose, readers

    if form is None:
        return loads_topology(text, source, settings)
    own, network = compose.split_settings(settings)
    if form.machine:
        settable = [*readers.settings_of(form), *(setting.name for setting in compose.SETTINGS)]
        for name in own:
            if name not in settable:
                hint = did_you_mean(name, settable) or f"; there are {', '.join(settable)}"
                raise TopologyError(f"{source}: unknown parameter '{name[:60]}'{hint}")
    topology = readers.read(text, source, own, form)
    if not isinstance(topology, readers.Fabric):
        return compose.compose_boxes(topology, network) if network else topology
    if network:
        raise TopologyError(
            f"{source}: a fabric of hosts, and {next(iter(network))} is for boxes of one machine: "
            "'forestcoll topology compose MACHINE --fabric FILE' puts machines into its hosts"
        )
    return readers.ranks_of(topology)


def machine(name: str, settings: Mapping[str, str] = NO_SETTINGS) -> Topology:
    """One machine of the catalogue, node ids without its box, its ports to the network in
    `adapters`. Raises `TopologyError` for an entry that is not one of machines."""
    entry, listed = name.removesuffix(".yaml"), f"; machines are {', '.join(_machines())}"
    if entry not in names():
        hint = did_you_mean(name, _machines()) or listed
        raise TopologyError(f"no machine of the catalogue is called '{name[:60]}'{hint}")
    if entry not in _machines():
        raise TopologyError(f"'{name}' of the catalogue is a fabric, not a machine{listed}")
    pair = loads_topology(source(name), name, {**settings, "boxes": "2"})
    prefix = "box0/"
    nodes = {
        node.removeprefix(prefix): kind
        for node, kind in pair.nodes.items()
        if node.startswith(prefix)
    }
    links: list[Link] = []
    adapters: list[Adapter] = []
    for link in pair.links:
        ends = [end.removeprefix(prefix) for end in (link.src, link.dst) if end.startswith(prefix)]
        if len(ends) == 2:
            links.append(link.between(*ends))
        elif len(ends) == 1:
            adapters.append(Adapter(f"nic{len(adapters)}", link.bandwidth, (ends[0],)))
    return Topology(entry, nodes, tuple(links), tuple(adapters), pair.notes)


@cache
def _machines() -> tuple[str, ...]:
    """Entries that are `boxes` of one kind on a network, rather than shapes of networks."""
    parameters = ((name, {p.name for p in heading(name).parameters}) for name in names())
    return tuple(name for name, params in parameters if "boxes" in params and "gpus" not in params)


def _say_unknown(word: str, path: Path) -> TopologyError:
    shown = word if len(word) <= 80 else word[:80] + "..."
    entry = word.removesuffix(".yaml")
    hint = did_you_mean(entry, names())
    try:
        if path.is_dir():
            return TopologyError(f"{shown}: is a folder; a topology is a file in it, or a name")
    except (OSError, ValueError):
        pass
    if path.suffix in (".xml", ".yml") or (len(path.parts) > 1 and not hint):
        return TopologyError(f"{shown}: no such file")
    listed = hint or f"; the catalogue has {', '.join(names())}"
    return TopologyError(f"no file and no topology of the catalogue is called '{shown}'{listed}")
