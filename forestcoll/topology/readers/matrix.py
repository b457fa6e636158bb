"""What the text matrices of `nvidia-smi topo -m` and `rocm-smi --showtopo` have in common.

They say which GPUs are near each other on PCIe, not what PCIe carries: that is in `pcie_rate` and
`socket_rate`, GB/s, where it matters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from forestcoll.common.errors import TopologyError
from forestcoll.topology import Link, Node, find_cut
from forestcoll.topology.readers.box_links import MACHINE
from forestcoll.topology.readers.settings import Setting, Values

PCIE_SETTINGS = (
    Setting("pcie", "whether PCIe counts", ("auto", "always", "never")),
    Setting("pcie_rate", "GB/s of the GPUs' PCIe (x16: generation 3 12, 4 24, 5 48)", rate=True),
    Setting("socket_rate", "GB/s between two sockets", rate=True),
    Setting("port_rate", "GB/s of a network port", rate=True),
    MACHINE,
)

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def strip_escapes(text: str) -> str:
    """`text` without the escape sequences that underline or colour it on a terminal."""
    return _ANSI.sub("", text)


class Groups:
    """Union-find over names, in the order in which they come."""

    def __init__(self, names: Iterable[str]) -> None:
        self._above = {name: name for name in names}

    def find(self, name: str) -> str:
        """What stands for the group of `name`."""
        while self._above[name] != name:
            self._above[name] = self._above[self._above[name]]
            name = self._above[name]
        return name

    def join(self, one: str, two: str) -> None:
        """Make the groups of two names one."""
        self._above[self.find(two)] = self.find(one)

    def groups(self) -> list[list[str]]:
        """All groups, each in order."""
        found: dict[str, list[str]] = {}
        for name in self._above:
            found.setdefault(self.find(name), []).append(name)
        return list(found.values())


def are_joined(nodes: Sequence[str], links: Sequence[Link], gpus: Sequence[str]) -> bool:
    """Whether the links join all GPUs."""
    arcs = (ends for link in links for ends in link.directions())
    return len(gpus) < 2 or find_cut(tuple(nodes), arcs, tuple(gpus)) is None


def add_pcie(
    nodes: dict[str, Node],
    links: list[Link],
    sockets: Sequence[Sequence[str]],
    switches: Sequence[Sequence[str]],
    values: Values,
    rate: Fraction | None,
    noun: str,
) -> str | None:
    """Adds PCIe and sockets where `pcie` asks for it, or `noun` leaves GPUs apart; a note or None.

    `sockets` and `switches`: the GPUs below each; `rate`: GB/s of a GPU's PCIe, where it is known.
    """
    wanted = values.text("pcie", "auto")
    gpus = [name for name, node in nodes.items() if node.kind == "gpu"]
    joined = are_joined(tuple(nodes), links, gpus)
    if wanted == "never" and not joined:
        raise TopologyError(
            f"{values.source}: {noun} alone does not join all {len(gpus)} GPUs; leave pcie=never "
            "out, and PCIe joins them"
        )
    if wanted == "never" or (wanted == "auto" and joined):
        return None
    rate = values.rate("pcie_rate") or rate
    between = values.rate("socket_rate")
    missing = [] if rate else ["pcie_rate=GB/s (x16: generation 3 12, 4 24, 5 48)"]
    missing += ["socket_rate=GB/s"] if len(sockets) > 1 and not between else []
    if missing:
        why = "pcie=always" if joined else f"{noun} does not join all {len(gpus)} GPUs"
        raise TopologyError(
            f"{values.source}: {why}, and what PCIe carries is not in the file: give "
            f"{' and '.join(f'--set {one}' for one in missing)}, or the machine whose links it has "
            "(--set machine=NAME; forestcoll topology list), or a dump of NCCL or RCCL"
        )
    assert rate is not None
    nodes |= {f"cpu{i}": Node("switch") for i in range(len(sockets))}
    for i, socket in enumerate(sockets):
        links.extend(_below(nodes, f"cpu{i}", socket, switches, rate))
        if between is not None:
            links.extend(Link(f"cpu{j}", f"cpu{i}", between) for j in range(i))
    return f"PCIe counts {float(rate):g} GB/s per GPU, and one switch or socket what hangs below it"


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
