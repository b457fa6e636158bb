"""`Fabric`: switches, hosts and the cables between them; what InfiniBand, LLDP and CSV lists give.

Inside a host such a file shows nothing but its network ports. `to_topology` makes every host one
rank; `forestcoll.topology.compose` puts a machine with its GPUs into each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from forestcoll.common.errors import TopologyError
from forestcoll.topology import Link, Node, Topology
from forestcoll.topology.readers.base.settings import Patterns, Setting, Values
from forestcoll.topology.source import Place, located

HOSTS = Setting("hosts", "which hosts take part: names or globs, split at commas; default all")
SHOWN = 6


@dataclass(frozen=True, slots=True)
class Port:
    """A network port of a host: `name` is its adapter's ("mlx5_0"), `number` the port on that."""

    host: str
    name: str
    number: int = 1

    def __str__(self) -> str:
        return f"{self.host} {self.name}" + (f" port {self.number}" if self.number != 1 else "")


@dataclass(frozen=True, slots=True)
class Cable:
    """A cable between two ends, each a switch's name or a host's `Port`, in GB/s each way."""

    one: str | Port
    two: str | Port
    bandwidth: Fraction

    @property
    def ports(self) -> tuple[Port, ...]:
        """The ends that are hosts' ports."""
        return tuple(end for end in (self.one, self.two) if isinstance(end, Port))


@dataclass(frozen=True, slots=True)
class Fabric:
    """A network without the insides of its hosts; `notes` say what the file could not tell."""

    name: str
    switches: tuple[str, ...]
    hosts: tuple[str, ...]
    cables: tuple[Cable, ...]
    notes: tuple[str, ...] = ()
    source: str = "<text>"

    def ports(self) -> dict[str, list[Port]]:
        """Host -> its ports that have a cable, in the order of the file."""
        ports: dict[str, list[Port]] = {host: [] for host in self.hosts}
        for cable in self.cables:
            for port in cable.ports:
                ports[port.host].append(port)
        return ports

    def choose_hosts(self, patterns: Patterns | None) -> Fabric:
        """The same with only the hosts that `patterns` match, and their cables."""
        if patterns is None:
            return self
        patterns.check(self.hosts, self.source)
        hosts = tuple(host for host in self.hosts if patterns.match(host))
        kept = set(hosts)
        cables = tuple(c for c in self.cables if all(p.host in kept for p in c.ports))
        return replace(self, hosts=hosts, cables=cables)

    def to_topology(self) -> Topology:
        """Every host as one rank with all its ports. Raises `TopologyError` below two hosts."""
        if len(self.hosts) < 2:
            names = f" ({self.hosts[0]})" if self.hosts else ""
            raise TopologyError(
                f"{self.source}: {len(self.hosts)} host{names} in it; a collective needs two. "
                "Dump the whole fabric, or name what is a host"
            )
        nodes = {host: Node("gpu") for host in self.hosts}
        nodes |= {switch: Node("switch") for switch in self.switches}
        links = merge_cables(
            (_name(cable.one), _name(cable.two), cable.bandwidth) for cable in self.cables
        )
        note = (
            f"each of the {len(self.hosts)} hosts is one rank: what is inside them is not in such "
            "a file; 'forestcoll topology compose' puts machines with GPUs in"
        )
        with located(Place(self.source, 0)):
            return Topology(self.name, nodes, links, notes=(*self.notes, note))


def build_fabric(
    values: Values,
    switches: Sequence[str],
    hosts: Iterable[str],
    cables: Iterable[Cable],
    notes: Iterable[str],
) -> Fabric:
    """Returns the fabric that the file describes, of those hosts that the user chose."""
    parts = tuple(switches), tuple(hosts), tuple(cables), tuple(notes)
    return Fabric(values.name, *parts, values.source).choose_hosts(values.patterns("hosts"))


def _name(end: str | Port) -> str:
    return end.host if isinstance(end, Port) else end


def merge_cables(cables: Iterable[tuple[str, str, Fraction]]) -> tuple[Link, ...]:
    """Links both ways; cables of one rate between the same two nodes become one link's `count`."""
    counts: Counter[tuple[str, str, Fraction]] = Counter()
    for one, two, rate in cables:
        opposite = (two, one, rate)
        counts[opposite if opposite in counts else (one, two, rate)] += 1
    return tuple(Link(one, two, rate, None, n) for (one, two, rate), n in counts.items())


def make_ids(names: Sequence[tuple[str, str]]) -> list[str]:
    """Node ids for (name, key) pairs: the name with odd letters replaced, and where two would be
    the same, or none is left, with the key behind it."""
    plain = [
        re.sub(r"[^\w.+#-]+", "-", name, flags=re.ASCII).strip("-.")[:120] for name, _ in names
    ]
    often = Counter(plain)
    ids = [
        word if word and often[word] == 1 else f"{word or 'node'}@{key}"
        for word, (_, key) in zip(plain, names, strict=True)
    ]
    if len(set(ids)) < len(ids):  # a name that looks like another's name with its key
        ids = [f"{word}#{i}" for i, word in enumerate(ids)]
    return ids


def list_some(words: Sequence[str]) -> str:
    """`"a, b, c and 9 more"`."""
    if len(words) <= SHOWN:
        return ", ".join(words)
    return f"{', '.join(words[: SHOWN - 1])} and {len(words) - SHOWN + 1} more"
