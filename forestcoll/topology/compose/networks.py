"""Boxes of one machine on a network: a regular one, or a `Fabric` that a dump describes.

A regular one is one switch, rails, or a two-level fat tree. Of a fabric every host is one machine:
ports are matched by name or by a map, each cable leads to its GPUs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from forestcoll.common.errors import TopologyError, did_you_mean
from forestcoll.common.input_limits import LINKS, NODES
from forestcoll.topology import Link, Node, Topology, exact, show
from forestcoll.topology.globs import matcher
from forestcoll.topology.readers.shared import (
    Fabric,
    Patterns,
    Port,
    Setting,
    Values,
    check_settings,
    list_some,
    make_ids,
    merge_cables,
)
from forestcoll.topology.source import located

SETTINGS = (
    Setting("boxes", "machines of this kind on a network"),
    Setting("fabric", "what joins them", ("single", "rail", "fat-tree")),
    Setting("ports", "which network ports are used: names or globs, split at commas"),
    Setting("rails", "rail: rail switches; default one a port"),
    Setting("spine", "rail: whether a spine joins the rails", ("0", "1")),
    Setting("hosts_per_leaf", "fat-tree: boxes below a leaf; default 2"),
    Setting("spines", "fat-tree: spine switches; default 2"),
    Setting("oversubscription", "rail, fat-tree: bandwidth below a leaf over above; default 1"),
)
OF = {
    "rails": "rail",
    "spine": "rail",
    "hosts_per_leaf": "fat-tree",
    "spines": "fat-tree",
}
MAX_SWITCHES = 100_000


def split_settings(settings: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """(settings of the dump's reader, settings of the network)."""
    network_settings = {setting.name for setting in SETTINGS}
    own = {name: value for name, value in settings.items() if name in network_settings}
    return {name: value for name, value in settings.items() if name not in network_settings}, own


def compose_boxes(machine: Topology, settings: Mapping[str, str]) -> Topology:
    """`boxes` of `machine` on the network that `settings` ask for. Raises `TopologyError`."""
    values = check_settings(settings, SETTINGS, machine.name, "composing")
    kind = values.text("fabric", "single")
    if "boxes" not in settings:
        given = ", ".join(settings)
        raise values.error(f"{given}: how many boxes? Give --set boxes=N as well")
    for name, needed in OF.items():
        if name in settings and kind != needed:
            raise values.error(f"{name} is for fabric={needed}, not for {kind}")
    if "oversubscription" in settings and kind == "single":
        raise values.error("oversubscription is for fabric=rail and fat-tree")
    boxes = _whole(values, "boxes", 1)
    if boxes == 1:
        return machine
    if boxes * len(machine.nodes) > NODES or boxes * len(machine.links) > LINKS:
        raise values.error(
            f"{boxes:,} boxes are more than {NODES:,} nodes {NODES.note} or {LINKS:,} links "
            f"{LINKS.note}"
        )
    uplinks, notes = choose_uplinks(machine, values.patterns("ports"))
    unknown = [uplink.name for uplink in uplinks if uplink.rate is None]
    if unknown:
        raise TopologyError(
            f"machine '{machine.name}': the rate of {list_some(unknown)} is not in its dump: give "
            "it with --set port_rate=GB/s (a 400 Gb/s port: 50)"
        )
    cluster = _Cluster(machine, boxes, uplinks, values)
    add = {"single": cluster.add_single, "rail": cluster.add_rails}
    notes.append(add.get(kind, cluster.add_fat_tree)())
    kept = [note for note in machine.notes if "are left aside" not in note]
    name = f"{machine.name}-{boxes}" + ("" if kind == "single" else f"-{kind}")
    notes = [f"{boxes} boxes of {machine.name}, {len(uplinks)} ports each", *notes]
    return Topology(name[:100], cluster.nodes, tuple(cluster.links), notes=(*kept, *notes))


class _Cluster:
    """Boxes of a machine below box0/, box1/, ...; `ends`: of each box's ports, with their GB/s."""

    def __init__(
        self, machine: Topology, boxes: int, uplinks: list[Uplink], values: Values
    ) -> None:
        self.values = values
        self.nodes: dict[str, Node] = {}
        self.links: list[Link] = []
        self.ends: list[list[tuple[str, Fraction]]] = []
        for box in range(boxes):
            prefix = f"box{box}/"
            place(machine, prefix, self.nodes, self.links)
            self.ends.append([])
            for uplink in uplinks:
                rate = uplink.rate or Fraction(0)  # all are known
                end, nodes, links = uplink.attach(prefix, rate)
                self.nodes |= nodes
                self.links += links
                self.ends[-1].append((end, rate))

    def add_switches(self, *names: str) -> None:
        self.nodes |= dict.fromkeys(names, Node("switch"))

    def cable(self, switches: Sequence[Sequence[str]]) -> dict[str, Fraction]:
        """Cables every port of every box to its switch; GB/s below each switch."""
        below: dict[str, Fraction] = {}
        cables = [
            (end, switch, rate)
            for ends, own in zip(self.ends, switches, strict=True)
            for (end, rate), switch in zip(ends, own, strict=True)
        ]
        for _, switch, rate in cables:
            below[switch] = below.get(switch, Fraction(0)) + rate
        self.links += merge_cables(cables)
        return below

    def add_single(self) -> str:
        self.add_switches("fabric")
        self.cable([["fabric"] * len(ends) for ends in self.ends])
        return (
            "one switch that never blocks joins the boxes (--set fabric=rail or fat-tree, or "
            "'topology compose --fabric FILE' for your own)"
        )

    def add_rails(self) -> str:
        ports = len(self.ends[0])
        rails = _whole(self.values, "rails", ports)
        if rails > ports:
            raise self.values.error(f"{rails} rails for {ports} ports a box")
        over = _oversubscription(self.values)
        self.add_switches(*(f"rail{rail}" for rail in range(rails)))
        # Ports in a row on one rail, where there are more: those of one GPU stand together.
        below = self.cable([[f"rail{p * rails // ports}" for p in range(ports)]] * len(self.ends))
        spine = self.values.text("spine", "1") == "1" and rails > 1
        if spine:
            self.add_switches("spine")
            self.links += [Link(rail, "spine", rate / over) for rail, rate in below.items()]
        joined = f"a spine at 1:{show(over)} above them" if spine else "no spine"
        return f"{rails} rails, {joined}"

    def add_fat_tree(self) -> str:
        hosts, spines = (_whole(self.values, name, 2) for name in ("hosts_per_leaf", "spines"))
        over = _oversubscription(self.values)
        leaves = -(-len(self.ends) // hosts)
        if leaves * spines > LINKS:
            raise self.values.error(f"{leaves} leaves and {spines} spines: too many links")
        self.add_switches(*(f"leaf{leaf}" for leaf in range(leaves)))
        below = self.cable([[f"leaf{b // hosts}"] * len(ends) for b, ends in enumerate(self.ends)])
        spines *= leaves > 1
        self.add_switches(*(f"spine{spine}" for spine in range(spines)))
        self.links += [
            Link(leaf, f"spine{spine}", rate / spines / over)
            for leaf, rate in below.items()
            for spine in range(spines)
        ]
        return f"a fat tree of {leaves} leaves and {spines} spines, 1:{show(over)}"


def place(machine: Topology, prefix: str, nodes: dict[str, Node], links: list[Link]) -> None:
    """Adds `machine`, its node ids behind `prefix`."""
    nodes |= {prefix + name: node for name, node in machine.nodes.items()}
    links += [link.between(prefix + link.src, prefix + link.dst) for link in machine.links]


def _whole(values: Values, name: str, default: int) -> int:
    word = values.text(name, str(default))
    if not re.fullmatch(r"[0-9]{1,6}", word) or not 1 <= int(word) <= MAX_SWITCHES:
        raise values.error(
            f"{name}={word[:40]} is not a whole number between 1 and {MAX_SWITCHES:,}"
        )
    return int(word)


def _oversubscription(values: Values) -> Fraction:
    word = values.text("oversubscription", "1")
    with located(values, "oversubscription"):
        over = exact(word)
    if over < 1:
        raise values.error(f"oversubscription={word[:40]} must be 1 or more")
    return over


# --- ports ----------------------------------------------------------------------------------------

SLOWEST = Fraction(1, 10)
"""Ports slower than this part of the fastest are for management, and are left out unasked."""


class Uplink(NamedTuple):
    """A port of a machine: the GPUs nearest to it; `rate` GB/s, None where only the cable says."""

    name: str
    near: tuple[str, ...]
    rate: Fraction | None

    def attach(self, prefix: str, rate: Fraction) -> tuple[str, dict[str, Node], list[Link]]:
        """(where the cable ends, nodes and links to add): a GPU's own port is the GPU itself,
        one that several share a switch of its own."""
        if len(self.near) == 1:
            return prefix + self.near[0], {}, []
        node = prefix + self.name
        return node, {node: Node("switch")}, [Link(prefix + g, node, rate) for g in self.near]


def choose_uplinks(machine: Topology, patterns: Patterns | None) -> tuple[list[Uplink], list[str]]:
    """The ports of a machine that a network may use, and notes about those left out.

    Raises `TopologyError` where it has none, or one of them lacks its rate or its GPUs.
    """
    where = f"machine '{machine.name}'"
    adapters = list(machine.adapters)
    if not adapters:
        raise TopologyError(
            f"{where} has no network ports, so nothing can join boxes of it: give a dump that has "
            "them (NCCL's or RCCL's), a machine of the catalogue (--set machine=NAME), or, with a "
            "fabric, say which GPUs each port serves (--port mlx5_0=gpu0+gpu1)"
        )
    notes: list[str] = []
    if patterns is not None:
        patterns.check([a.name for a in adapters], where)
        adapters = [a for a in adapters if patterns.match(a.name)]
    else:
        rates = [(a.name, a.bandwidth) for a in adapters if a.bandwidth is not None]
        fastest = max((rate for _, rate in rates), default=Fraction(0))
        slow = [name for name, rate in rates if rate < SLOWEST * fastest]
        if slow:
            adapters = [a for a in adapters if a.name not in slow]
            notes.append(f"{list_some(slow)}: far slower than the other ports, left out")
    for adapter in adapters:
        if not adapter.near:
            raise TopologyError(f"{where}: no GPU is near port '{adapter.name}'; leave it out with "
                                "--set ports=NAMES")  # fmt: skip
    names = make_ids([(a.name, str(i)) for i, a in enumerate(adapters)])
    uplinks = [
        Uplink(f"port-{name}" if name in machine.nodes else name, a.near, a.bandwidth)
        for name, a in zip(names, adapters, strict=True)
    ]
    return uplinks, notes


def port_name(port: Port) -> str:
    """What `--port` calls a port: its adapter, and the number where it is not the first there."""
    return port.name if port.number == 1 else f"{port.name}:{port.number}"


class PortMap(NamedTuple):
    """What `--port NAME=TARGET` says: globs of the fabric's port names, in order, with targets.

    A target is a port of the machine by name, GPUs joined by "+", or "none".
    """

    entries: tuple[tuple[str, str], ...] = ()

    def find(self, port: Port) -> str | None:
        """The target of a port; None where no entry matches."""
        name = port_name(port)
        matches = (target for glob, target in self.entries if matcher(glob)(name))
        return next(matches, None)


def parse_ports(texts: Sequence[str]) -> PortMap:
    """`NAME=TARGET` each, or several joined by ";"; NAME may be "a|b". Raises `TopologyError`."""
    entries: list[tuple[str, str]] = []
    for text in texts:
        for entry in (part.strip() for part in text.split(";")):
            names, equals, target = (word.strip() for word in entry.partition("="))
            globs = [name.strip() for name in names.split("|")]
            if not equals or not target or not all(globs):
                raise TopologyError(
                    f"port '{entry[:60]}' is not NAME=TARGET, such as mlx5_0=gpu0+gpu1, HCA-1=nic0 "
                    "or mlx5_9=none"
                )
            entries += [(glob, target) for glob in globs]
    return PortMap(tuple(entries))


def find_uplink(target: str, name: str, uplinks: Sequence[Uplink], gpus: Sequence[str]) -> Uplink:
    """The port that `target` means, for the fabric's port `name`. Raises `TopologyError`."""
    own = next((uplink for uplink in uplinks if uplink.name == target), None)
    if own is not None:
        return own
    near = tuple(part.strip() for part in target.split("+"))
    for gpu in near:
        if gpu not in gpus:
            candidates = [*(uplink.name for uplink in uplinks), *gpus]
            hint = did_you_mean(gpu, candidates) or f"; it has {list_some(candidates)}"
            raise TopologyError(f"port {name}={target[:60]}: the machine has no '{gpu[:60]}'{hint}")
    if len(set(near)) < len(near):
        raise TopologyError(f"port {name}={target[:60]}: a GPU stands there twice")
    return Uplink(f"port-{make_ids([(name, '0')])[0]}", near, None)


def join_fabric(
    machine: Topology, fabric: Fabric, ports: PortMap, use: Patterns | None = None
) -> Topology:
    """A `machine` in each of `fabric`'s hosts, every cable of theirs at the GPUs it serves.

    `ports` says which port of the fabric is which of the machine's; without an entry, names must be
    the same. `use`: which of the machine's ports count. Raises `TopologyError` for a port that is
    nowhere, taken twice, or never cabled.
    """
    return _JoinedHosts(machine, fabric, ports, use).build()


class _JoinedHosts:
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
                    names = [uplink.name for uplink in self.uplinks]
                    has = f"its ports are {list_some(names)}" if names else "no port of it is known"
                    raise self.error(
                        f"{port}: which port of {self.machine.name} is that? {has}. Say so with "
                        f"--port '{port_name(port)}=PORT', '{port_name(port)}=GPU+GPU' or "
                        f"'{port_name(port)}=none'"
                    )
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
