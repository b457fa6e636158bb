"""What differs between two topologies: nodes and links by name, alike ones told together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from forestcoll.topology import Node, Topology, show

Kind = Literal["node", "link", "bandwidth", "latency", "kind", "order"]


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: `before` and `after` in words, "" where it is not there.

    `name` is a node, or a link as "a - b" (both ways alike) or "a -> b".
    """

    kind: Kind
    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Group:
    """Changes that are alike but for the numbers in the names: "box*/gpu* - fabric"."""

    kind: Kind
    pattern: str
    before: str
    after: str
    names: tuple[str, ...]


def compare(one: Topology, two: Topology) -> list[Change]:
    """Everything that differs; [] where nodes, links, rates, latencies and rank order are equal."""
    one, two = _without_box(one, two), _without_box(two, one)
    changes = [*_nodes(one, two), *_links(one, two)]
    if set(one.gpus) == set(two.gpus) and one.gpus != two.gpus:
        pairs = enumerate(zip(one.gpus, two.gpus, strict=True))
        first = next(i for i, pair in pairs if pair[0] != pair[1])
        changes.append(Change("order", f"rank {first}", one.gpus[first], two.gpus[first]))
    return changes


def group(changes: Iterable[Change]) -> list[Group]:
    """The changes by class, in the order of the first of each."""
    found: dict[tuple[Kind, str, str, str], list[str]] = {}
    for change in changes:
        pattern = re.sub(r"\d+", "*", change.name)
        key = change.kind, pattern, change.before, change.after
        found.setdefault(key, []).append(change.name)
    return [Group(*key, tuple(names)) for key, names in found.items()]


def _without_box(topology: Topology, other: Topology) -> Topology:
    """`topology` without the name of its only box, where `other` has none."""
    boxes = {name.partition("/")[0] for name in topology.nodes if "/" in name}
    lone = len(boxes) == 1 and all("/" in name for name in topology.nodes)
    if not lone or any("/" in name for name in other.nodes):
        return topology
    prefix = f"{boxes.pop()}/"
    links = tuple(
        link.between(link.src.removeprefix(prefix), link.dst.removeprefix(prefix))
        for link in topology.links
    )
    nodes = {name.removeprefix(prefix): node for name, node in topology.nodes.items()}
    return Topology(topology.name, nodes, links)


def _word(value: Fraction) -> str:
    """370.8 rather than 1854/5, wherever a decimal is exact."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    if rest > 1:
        return show(value)
    return f"{Decimal(value.numerator) / Decimal(value.denominator):f}"


def _nodes(one: Topology, two: Topology) -> Iterator[Change]:
    for name in dict.fromkeys([*one.nodes, *two.nodes]):
        words = [_describe(t.nodes.get(name)) for t in (one, two)]
        if words[0] != words[1]:
            yield Change("kind" if all(words) else "node", name, *words)


def _describe(node: Node | None) -> str:
    if node is None:
        return ""
    flags = [flag for flag in ("multicast", "aggregation") if getattr(node, flag)]
    return " ".join([node.kind, *flags])


def _links(one: Topology, two: Topology) -> Iterator[Change]:
    rates = one.directed(), two.directed()
    times = one.latencies(), two.latencies()
    done: set[tuple[str, str]] = set()
    for ends in dict.fromkeys([*rates[0], *rates[1]]):
        if ends in done:
            continue
        back = ends[1], ends[0]
        found = list(_link(ends, rates, times))
        if found == list(_link(back, rates, times)) and any(back in side for side in rates):
            done.add(back)
            yield from (Change(kind, " - ".join(ends), *words) for kind, *words in found)
        else:
            yield from (Change(kind, " -> ".join(ends), *words) for kind, *words in found)


def _link(
    ends: tuple[str, str],
    rates: tuple[dict[tuple[str, str], Fraction], dict[tuple[str, str], Fraction]],
    times: tuple[dict[tuple[str, str], Fraction], dict[tuple[str, str], Fraction]],
) -> Iterator[tuple[Kind, str, str]]:
    there = [side.get(ends) for side in rates]
    if there[0] is None or there[1] is None:
        if there[0] is not there[1]:
            words = ["" if rate is None else f"{_word(rate)} GB/s" for rate in there]
            yield "link", words[0], words[1]
        return
    if there[0] != there[1]:
        yield "bandwidth", f"{_word(there[0])} GB/s", f"{_word(there[1])} GB/s"
    late = [side[ends] for side in times]
    if late[0] != late[1]:
        yield "latency", f"{_word(late[0])} us", f"{_word(late[1])} us"
