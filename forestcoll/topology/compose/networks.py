"""Boxes of one machine on a regular network: one switch, rails, or a two-level fat tree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from forestcoll.common.input_limits import LINKS, NODES
from forestcoll.topology import Link, Node, Topology, exact, show
from forestcoll.topology.compose.ports import Uplink, check_rates, choose_uplinks
from forestcoll.topology.readers.shared import Setting, Values, check_settings
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


@dataclass(slots=True)
class Cluster:
    """Nodes and links that grow; `ends` has where each box's ports end, and what they carry."""

    nodes: dict[str, Node]
    links: list[Link]
    ends: list[list[tuple[str, Fraction]]]


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
    check_rates(uplinks, machine)
    cluster = repeat(machine, boxes, uplinks)
    notes.append({"single": _add_single, "rail": _add_rails, "fat-tree": _add_fat_tree}[kind](
        cluster, values))  # fmt: skip
    kept = [note for note in machine.notes if "are left aside" not in note]
    name = f"{machine.name}-{boxes}" + ("" if kind == "single" else f"-{kind}")
    notes = [f"{boxes} boxes of {machine.name}, {len(uplinks)} ports each", *notes]
    return Topology(name[:100], cluster.nodes, tuple(cluster.links), notes=(*kept, *notes))


def repeat(machine: Topology, boxes: int, uplinks: list[Uplink]) -> Cluster:
    """`boxes` of `machine` below box0/, box1/, ..., their ports open."""
    cluster = Cluster({}, [], [])
    for box in range(boxes):
        prefix = f"box{box}/"
        place(machine, prefix, cluster.nodes, cluster.links)
        ends = []
        for uplink in uplinks:
            assert uplink.rate is not None  # `check_rates` has seen it
            end, nodes, links = uplink.attach(prefix, uplink.rate)
            cluster.nodes |= nodes
            cluster.links += links
            ends.append((end, uplink.rate))
        cluster.ends.append(ends)
    return cluster


def place(machine: Topology, prefix: str, nodes: dict[str, Node], links: list[Link]) -> None:
    """Adds `machine`, its node ids behind `prefix`."""
    nodes |= {prefix + name: node for name, node in machine.nodes.items()}
    links += [link.between(prefix + link.src, prefix + link.dst) for link in machine.links]


def _cable(cluster: Cluster, switch_of: Mapping[tuple[int, int], str]) -> dict[str, Fraction]:
    """Cables every port (box, port) to its switch; GB/s below each switch."""
    below: dict[str, Fraction] = {}
    joined: dict[tuple[str, str, Fraction], int] = {}
    for (box, port), switch in switch_of.items():
        end, rate = cluster.ends[box][port]
        joined[end, switch, rate] = joined.get((end, switch, rate), 0) + 1
        below[switch] = below.get(switch, Fraction(0)) + rate
    cluster.links += [Link(a, b, rate, None, n) for (a, b, rate), n in joined.items()]
    return below


def _ports(cluster: Cluster) -> list[tuple[int, int]]:
    return [(box, port) for box, ends in enumerate(cluster.ends) for port in range(len(ends))]


def _add_single(cluster: Cluster, values: Values) -> str:
    cluster.nodes["fabric"] = Node("switch")
    _cable(cluster, dict.fromkeys(_ports(cluster), "fabric"))
    return (
        "one switch that never blocks joins the boxes (--set fabric=rail or fat-tree, or "
        "'topology compose --fabric FILE' for your own)"
    )


def _add_rails(cluster: Cluster, values: Values) -> str:
    ports = len(cluster.ends[0])
    rails = _whole(values, "rails", ports)
    if rails > ports:
        raise values.error(f"{rails} rails for {ports} ports a box")
    over = _oversubscription(values)
    cluster.nodes |= {f"rail{rail}": Node("switch") for rail in range(rails)}
    # Ports in a row on one rail, where there are more: those of one GPU stand together.
    below = _cable(cluster, {(b, p): f"rail{p * rails // ports}" for b, p in _ports(cluster)})
    spine = values.text("spine", "1") == "1" and rails > 1
    if spine:
        cluster.nodes["spine"] = Node("switch")
        cluster.links += [Link(rail, "spine", rate / over) for rail, rate in below.items()]
    joined = f"a spine at 1:{show(over)} above them" if spine else "no spine"
    return f"{rails} rails, {joined}"


def _add_fat_tree(cluster: Cluster, values: Values) -> str:
    hosts, spines = _whole(values, "hosts_per_leaf", 2), _whole(values, "spines", 2)
    over = _oversubscription(values)
    boxes = len(cluster.ends)
    leaves = -(-boxes // hosts)
    if leaves * spines > LINKS:
        raise values.error(f"{leaves} leaves and {spines} spines: too many links")
    cluster.nodes |= {f"leaf{leaf}": Node("switch") for leaf in range(leaves)}
    below = _cable(cluster, {(b, p): f"leaf{b // hosts}" for b, p in _ports(cluster)})
    if leaves > 1:
        cluster.nodes |= {f"spine{spine}": Node("switch") for spine in range(spines)}
        cluster.links += [
            Link(leaf, f"spine{spine}", rate / spines / over)
            for leaf, rate in below.items()
            for spine in range(spines)
        ]
    return f"a fat tree of {leaves} leaves and {spines if leaves > 1 else 0} spines, 1:{show(over)}"


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
