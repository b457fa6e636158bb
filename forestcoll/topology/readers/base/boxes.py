"""What readers of one machine have in common: PCIe where the GPUs' own links do not join them all,
network ports, and the catalogue's links where a dump has none.

The text matrices of `nvidia-smi topo -m` and `rocm-smi --showtopo` say which GPUs are near each
other on PCIe, not what PCIe carries: that is in `pcie_rate` and `socket_rate`, GB/s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from forestcoll.topology import Adapter, Link, Node, Topology, find_cut
from forestcoll.topology.readers.base.settings import Setting, Values
from forestcoll.topology.source import Element

MACHINE = Setting("machine", "catalogue entry whose links between GPUs stand in for the file's")
PCIE = Setting("pcie", "whether PCIe counts", ("auto", "always", "never"))
NVSWITCHES = Setting("nvswitches", "NVSwitches: one node, or each its own", ("merged", "each"))
PORT_RATE = Setting("port_rate", "GB/s of a network port", rate=True)
MATRIX_SETTINGS = (
    PCIE,
    Setting("pcie_rate", "GB/s of the GPUs' PCIe (x16: generation 3 12, 4 24, 5 48)", rate=True),
    Setting("socket_rate", "GB/s between two sockets", rate=True),
)

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def strip_escapes(text: str) -> str:
    """Returns `text` without the escape sequences that underline or colour it on a terminal."""
    return _ANSI.sub("", text)


class Groups:
    """Union-find over names, in the order in which they come."""

    def __init__(self, names: Iterable[str]) -> None:
        self._above = {name: name for name in names}

    def find(self, name: str) -> str:
        """Returns what stands for the group of `name`."""
        while self._above[name] != name:
            self._above[name] = self._above[self._above[name]]
            name = self._above[name]
        return name

    def join(self, one: str, two: str) -> None:
        """Makes the groups of two names one."""
        self._above[self.find(two)] = self.find(one)

    def groups(self) -> list[list[str]]:
        """Returns all groups, each in order."""
        members: dict[str, list[str]] = {}
        for name in self._above:
            members.setdefault(self.find(name), []).append(name)
        return list(members.values())


# --- the machine of the catalogue -----------------------------------------------------------------


def put_inside(
    values: Values,
    machine: str,
    gpus: Sequence[str],
    adapters: Iterable[Adapter],
    notes: list[str],
    name: str = "",
) -> Topology:
    """Returns `gpus`, in order, with the links and switches of a machine of the catalogue.

    The adapters stay. Those whose rate is not in the file take that of the machine's, where those
    have one rate. `name`: in place of the file's. Raises `TopologyError` where the machine has
    another number of GPUs.
    """
    inside, own = values.machines(machine), tuple(adapters)
    if len(gpus) != len(inside.gpus):
        raise values.error(f"{len(gpus)} GPUs, but machine '{machine}' has {len(inside.gpus)}")
    names = dict(zip(inside.gpus, gpus, strict=True))
    nodes = {names.get(name, name): node for name, node in inside.nodes.items()}
    nodes = {**{gpu: nodes[gpu] for gpu in gpus}, **nodes}
    links = [
        link.between(names.get(link.src, link.src), names.get(link.dst, link.dst))
        for link in inside.links
    ]
    notes = [*notes, f"the links between the GPUs are those of {machine}, not the file's"]
    rates = {adapter.bandwidth for adapter in inside.adapters}
    unrated = sum(adapter.bandwidth is None for adapter in own)
    if unrated and len(rates) == 1 and None not in rates and unrated == len(inside.adapters):
        rate = rates.pop()
        own = tuple(replace(one, bandwidth=one.bandwidth or rate) for one in own)
        notes.append(f"the network ports count {float(rate or 0):g} GB/s each, as {machine}'s")
    if not own and inside.adapters:
        own = tuple(replace(a, near=tuple(names[gpu] for gpu in a.near)) for a in inside.adapters)
        notes.append(f"the network ports are those of {machine}, not the file's")
    return values.topology(nodes, links, own, notes, name)


# --- network ports --------------------------------------------------------------------------------


def note_ports(adapters: Sequence[Adapter], values: Values) -> list[str]:
    """Returns a note on network ports whose rates are neither in the file nor given."""
    if not adapters or values.has("port_rate"):
        return []
    return [
        f"{len(adapters)} network ports; their rates are not in the file (--set port_rate=GB/s)"
    ]


class Nearest:
    """The GPUs nearest to a device; `ids` has the node of every GPU by `id()` of its element."""

    def __init__(self, ids: Mapping[int, str]) -> None:
        self.ids = ids
        self._below: dict[int, tuple[str, ...]] = {}  # looked for once: thousands may share one

    def find(self, device: Element) -> tuple[str, ...]:
        """Returns the GPUs below the closest element above `device` that has some."""
        near: tuple[str, ...] = ()
        above = device.parent
        while above is not None and not near and above.tag != "system":
            if id(above) not in self._below:
                inside = (self.ids.get(id(element), "") for element in above.walk())
                self._below[id(above)] = tuple(filter(None, inside))
            near = self._below[id(above)]
            above = above.parent
        return near


# --- PCIe -----------------------------------------------------------------------------------------


def are_joined(nodes: Iterable[str], links: Sequence[Link], gpus: Iterable[str]) -> bool:
    """Returns whether the links join all GPUs."""
    ranks = tuple(gpus)
    arcs = (ends for link in links for ends in link.directions())
    return len(ranks) < 2 or find_cut(tuple(nodes), arcs, ranks) is None


def needs_pcie(values: Values, joined: bool, why: str, what: str = "PCIe") -> bool:
    """Returns whether PCIe is part of the topology, by `pcie` and where the GPUs are not joined.

    `why`: words for that they are not joined. Raises `TopologyError` for pcie=never then.
    """
    wanted = values.text("pcie", "auto")
    if wanted == "never" and not joined:
        raise values.error(f"{why}; leave pcie=never out, and {what} joins them")
    return wanted == "always" or (wanted == "auto" and not joined)


def add_pcie(
    nodes: dict[str, Node],
    links: list[Link],
    sockets: Sequence[Sequence[str]],
    switches: Sequence[Sequence[str]],
    values: Values,
    rate: Fraction | None,
    noun: str,
) -> list[str]:
    """Adds PCIe and sockets where `pcie` asks for it, or `noun` leaves GPUs apart; returns notes.

    `sockets` and `switches`: the GPUs below each; `rate`: GB/s of a GPU's PCIe, where it is known.
    """
    gpus = [name for name, node in nodes.items() if node.kind == "gpu"]
    joined = are_joined(nodes, links, gpus)
    if not needs_pcie(values, joined, f"{noun} alone does not join all {len(gpus)} GPUs"):
        return []
    rate = values.rate("pcie_rate") or rate
    between = values.rate("socket_rate")
    missing = [] if rate else ["pcie_rate=GB/s (x16: generation 3 12, 4 24, 5 48)"]
    missing += ["socket_rate=GB/s"] if len(sockets) > 1 and not between else []
    if missing or rate is None:
        why = "pcie=always" if joined else f"{noun} does not join all {len(gpus)} GPUs"
        raise values.error(
            f"{why}, and what PCIe carries is not in the file: give "
            f"{' and '.join(f'--set {one}' for one in missing)}, or the machine whose links it has "
            "(--set machine=NAME; forestcoll topology list), or a dump of NCCL or RCCL"
        )
    nodes |= {f"cpu{i}": Node("switch") for i in range(len(sockets))}
    for i, socket in enumerate(sockets):
        links.extend(_below(nodes, f"cpu{i}", socket, switches, rate))
        if between is not None:
            links.extend(Link(f"cpu{j}", f"cpu{i}", between) for j in range(i))
    return [
        f"PCIe counts {float(rate):g} GB/s per GPU, and one switch or socket what hangs below it"
    ]


def _below(
    nodes: dict[str, Node],
    cpu: str,
    socket: Sequence[str],
    switches: Sequence[Sequence[str]],
    rate: Fraction,
) -> Iterator[Link]:
    inside = set(socket)
    for i, switch in enumerate(switches):
        below = [gpu for gpu in switch if gpu in inside]
        if len(below) > 1:
            name = f"pcie{i}"
            nodes[name] = Node("switch")
            yield from (Link(gpu, name, rate) for gpu in below)
            yield Link(name, cpu, rate)
            inside -= set(below)
    yield from (Link(gpu, cpu, rate) for gpu in socket if gpu in inside)
