"""The network ports of a machine, and which port of a fabric is which."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from forestcoll.common.errors import TopologyError, did_you_mean
from forestcoll.topology import Adapter, Link, Node, Topology
from forestcoll.topology.globs import matcher
from forestcoll.topology.readers.shared import Patterns, Port, list_some, make_ids

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
        fastest = max((a.bandwidth for a in adapters if a.bandwidth is not None), default=None)
        slow = [
            a.name
            for a in adapters
            if fastest is not None and a.bandwidth is not None and a.bandwidth < SLOWEST * fastest
        ]
        if slow:
            adapters = [a for a in adapters if a.name not in slow]
            notes.append(f"{list_some(slow)}: far slower than the other ports, left out")
    for adapter in adapters:
        if not adapter.near:
            raise TopologyError(f"{where}: no GPU is near port '{adapter.name}'; leave it out with "
                                "--set ports=NAMES")  # fmt: skip
    return _name_uplinks(adapters, machine), notes


def _name_uplinks(adapters: Sequence[Adapter], machine: Topology) -> list[Uplink]:
    names = make_ids([(a.name, str(i)) for i, a in enumerate(adapters)])
    taken = set(machine.nodes)
    return [
        Uplink(f"port-{name}" if name in taken else name, a.near, a.bandwidth)
        for name, a in zip(names, adapters, strict=True)
    ]


def check_rates(uplinks: Sequence[Uplink], machine: Topology) -> None:
    """Raise `TopologyError` for a port without a rate."""
    unknown = [uplink.name for uplink in uplinks if uplink.rate is None]
    if unknown:
        raise TopologyError(
            f"machine '{machine.name}': the rate of {list_some(unknown)} is not in its dump: give "
            "it with --set port_rate=GB/s (a 400 Gb/s port: 50)"
        )


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

    def globs_without_port(self, ports: Sequence[Port]) -> list[str]:
        """Globs that match none of `ports`."""
        names = {port_name(port) for port in ports}
        return [g for g, _ in self.entries if not any(map(matcher(g), names))]


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
