"""What differs between two topologies: nodes and links by name, alike ones told together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Literal, NamedTuple

from forestcoll.topology import Node, Topology, show

Kind = Literal["node", "link", "bandwidth", "latency", "kind", "order"]


class Change(NamedTuple):
    """One difference: `before` and `after` in words, "" where it is not there.

    `name` is a node, or a link as "a - b" (both ways alike) or "a -> b".
    """

    kind: Kind
    name: str
    before: str
    after: str


class Group(NamedTuple):
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
    classes: dict[tuple[Kind, str, str, str], list[str]] = {}
    for change in changes:
        pattern = re.sub(r"\d+", "*", change.name)
        key = change.kind, pattern, change.before, change.after
        classes.setdefault(key, []).append(change.name)
    return [Group(*key, tuple(names)) for key, names in classes.items()]


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


Ends = tuple[str, str]
Rates = dict[Ends, tuple[Fraction, Fraction]]
"""GB/s and microseconds from node to node."""


def _links(one: Topology, two: Topology) -> Iterator[Change]:
    tables = _rates(one), _rates(two)
    done: set[Ends] = set()
    for ends in dict.fromkeys([*tables[0], *tables[1]]):
        if ends in done:
            continue
        back = ends[1], ends[0]
        changes = list(_link(ends, *tables))
        both = any(back in table for table in tables) and changes == list(_link(back, *tables))
        if both:
            done.add(back)
        name = (" - " if both else " -> ").join(ends)
        yield from (Change(kind, name, *words) for kind, *words in changes)


def _rates(topology: Topology) -> Rates:
    late = topology.latencies()
    return {ends: (rate, late[ends]) for ends, rate in topology.rates().items()}


def _link(ends: Ends, one: Rates, two: Rates) -> Iterator[tuple[Kind, str, str]]:
    before, after = one.get(ends), two.get(ends)
    if before is None or after is None:
        if before is not after:
            words = ["" if pair is None else f"{_word(pair[0])} GB/s" for pair in (before, after)]
            yield "link", words[0], words[1]
        return
    kinds: tuple[Kind, Kind] = ("bandwidth", "latency")
    for kind, unit, was, now in zip(kinds, ("GB/s", "us"), before, after, strict=True):
        if was != now:
            yield kind, f"{_word(was)} {unit}", f"{_word(now)} {unit}"
