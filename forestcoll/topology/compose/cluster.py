"""One machine in every host of a `Fabric`: ports by name or by a map, each cable to its GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from forestcoll.common.errors import TopologyError, did_you_mean
from forestcoll.common.input_limits import LINKS, NODES
from forestcoll.topology import Link, Node, Topology
from forestcoll.topology.compose.networks import (
    PortMap,
    Uplink,
    choose_uplinks,
    find_uplink,
    place,
    port_name,
)
from forestcoll.topology.globs import matcher
from forestcoll.topology.readers.shared import Fabric, Patterns, Port, list_some, merge_cables


def join_fabric(
    machine: Topology, fabric: Fabric, ports: PortMap, use: Patterns | None = None
) -> Topology:
    """A `machine` in each of `fabric`'s hosts, every cable of theirs at the GPUs it serves.

    `ports` says which port of the fabric is which of the machine's; without an entry, names must be
    the same. `use`: which of the machine's ports count. Raises `TopologyError` for a port that is
    nowhere, taken twice, or never cabled.
    """
    return _Cluster(machine, fabric, ports, use).build()


class _Cluster:
    def __init__(
        self, machine: Topology, fabric: Fabric, ports: PortMap, use: Patterns | None
    ) -> None:
        self.machine, self.fabric, self.map = machine, fabric, ports
        self.notes: list[str] = []
        self.uplinks: list[Uplink] = []
        if machine.adapters:
            self.uplinks, self.notes = choose_uplinks(machine, use)
        self.nodes: dict[str, Node] = {}
        self.links: list[Link] = []
        self.slower: Counter[tuple[Fraction, Fraction]] = Counter()
        self.used: Counter[str] = Counter()  # of the machine's own ports, by name

    def error(self, message: str) -> TopologyError:
        return TopologyError(f"{self.fabric.source}: {message}")

    def build(self) -> Topology:
        fabric, machine = self.fabric, self.machine
        if not fabric.hosts:
            raise self.error("no host in it; name them with --hosts")
        if len(fabric.hosts) * len(machine.nodes) > NODES:
            raise self.error(f"{len(fabric.hosts)} hosts of {len(machine.nodes)} nodes: more than "
                             f"{NODES:,} {NODES.note}")  # fmt: skip
        if len(fabric.hosts) * len(machine.links) > LINKS:
            raise self.error(f"more than {LINKS:,} links {LINKS.note}")
        by_host = fabric.ports()
        there = [port for ports in by_host.values() for port in ports]
        own = {port_name(port) for port in there}
        unused = [g for g, _ in self.map.entries if not any(map(matcher(g), own))]
        if unused:
            names = sorted({port.name for port in there})
            hint = did_you_mean(unused[0], names) or f"; ports are {list_some(names)}"
            raise self.error(f"port '{unused[0][:60]}' matches no port of a host{hint}")
        targets = {host: self.find_targets(host, ports) for host, ports in by_host.items()}
        self.check_used()
        for host in fabric.hosts:
            place(machine, f"{host}/", self.nodes, self.links)
        clash = set(fabric.switches) & set(self.nodes)
        if clash:
            raise self.error(f"'{min(clash)}' is a switch and a node of a host")
        self.add_cables(targets)
        self.nodes |= {name: Node("switch") for name in fabric.switches}
        self.note_what_is_odd(by_host)
        kept = tuple(note for note in machine.notes if "are left aside" not in note)
        return Topology(
            f"{fabric.name}-{machine.name}"[:100],
            self.nodes,
            tuple(self.links),
            notes=(*kept, *fabric.notes, *self.notes),
        )

    def find_targets(self, host: str, ports: Sequence[Port]) -> dict[Port, Uplink]:
        """What each port of a host is on the machine; ports that are to stay unused are absent."""
        uplinks: dict[Port, Uplink] = {}
        taken: dict[str, Port] = {}
        gpus = self.machine.gpus
        for port in ports:
            target = self.map.find(port)
            if target == "none":
                continue
            if target is None:
                own = [uplink for uplink in self.uplinks if uplink.name == port.name]
                if not own or port.number != 1:
                    raise self.error(self.say_unknown(port))
                uplink = own[0]
            else:
                uplink = find_uplink(target, port_name(port), self.uplinks, gpus)
            other = taken.setdefault(uplink.name, port)
            if other is not port and uplink in self.uplinks:
                raise self.error(
                    f"{other} and {port} are both port '{uplink.name}' of {self.machine.name}; a "
                    "port has one cable: map one of them elsewhere, or to none"
                )
            uplinks[port] = uplink
            self.used[uplink.name] += 1
        if not uplinks:
            raise self.error(
                f"host {host} has no cable to its {self.machine.name}; leave it out with --hosts"
            )
        return uplinks

    def say_unknown(self, port: Port) -> str:
        own = [uplink.name for uplink in self.uplinks]
        has = f"its ports are {list_some(own)}" if own else "no port of it is known"
        return (
            f"{port}: which port of {self.machine.name} is that? {has}. Say so with --port "
            f"'{port_name(port)}=PORT', '{port_name(port)}=GPU+GPU' or '{port_name(port)}=none'"
        )

    def check_used(self) -> None:
        own = [uplink.name for uplink in self.uplinks]
        mapped = any(self.used[name] for name in own)
        never = [name for name in own if not self.used[name]]
        if mapped and never:
            raise self.error(
                f"{list_some(never)} of {self.machine.name} have no cable on any host; map the "
                "fabric's ports to them with --port, or leave them out with --ports NAMES"
            )

    def add_cables(self, targets: dict[str, dict[Port, Uplink]]) -> None:
        """The fabric's cables, at their nodes; each shared port becomes a switch."""
        ends: dict[Port, str] = {}
        rates = {port: cable.bandwidth for cable in self.fabric.cables for port in cable.ports}
        for host, uplinks in targets.items():
            for port, uplink in uplinks.items():
                rate = self.rate(uplink, rates[port])
                end, nodes, links = uplink.attach(f"{host}/", rate)
                if nodes.keys() & self.nodes.keys():
                    raise self.error(f"{port}: '{min(nodes)}' is there already")
                ends[port] = end
                rates[port] = rate
                self.nodes |= nodes
                self.links += links
        cables: list[tuple[str, str, Fraction]] = []
        for cable in self.fabric.cables:
            if all(port in ends for port in cable.ports):
                rate = min([cable.bandwidth, *(rates[port] for port in cable.ports)])
                cables.append((_node(cable.one, ends), _node(cable.two, ends), rate))
        self.links += merge_cables(cables)

    def rate(self, uplink: Uplink, cable: Fraction) -> Fraction:
        if uplink.rate is None or uplink.rate == cable:
            return cable
        self.slower[uplink.rate, cable] += 1
        return min(uplink.rate, cable)

    def note_what_is_odd(self, by_host: dict[str, list[Port]]) -> None:
        for (own, cable), count in self.slower.items():
            self.notes.append(
                f"{count} ports state {float(own):g} GB/s and their cables {float(cable):g}; the "
                "slower counts"
            )
        counts = Counter(len(ports) for ports in by_host.values())
        if len(counts) > 1:
            most = max(counts)
            fewer = sum(n for ports, n in counts.items() if ports < most)
            self.notes.append(f"{fewer} of {len(by_host)} hosts have fewer cables than {most}")
        self.notes.append(
            f"{len(by_host)} hosts of {self.machine.name}, {sum(self.used.values())} ports in use"
        )


def _node(end: str | Port, ends: dict[Port, str]) -> str:
    return ends[end] if isinstance(end, Port) else end
