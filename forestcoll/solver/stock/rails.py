"""Rings that keep to their rails: which adapters of every box a library's channels should use.

NCCL and RCCL give all channels equal shares, and every channel the speed of the slowest adapter in
it. So k channels over adapters of at least s GB/s in every box carry k s, and of all k the best is
taken: a slow adapter is left out where that is faster. Boxes need not lack the same ones. Channels
whose adapter has the same number in every box, a common rail, come first: on fabrics without a
spine the only ones that meet.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.solver.baselines.order import boxes_of, links_inside, pack_cycles
from forestcoll.solver.baselines.shapes import Ways, paths
from forestcoll.topology import Topology

Adapter = tuple[int, Fraction]
"""The GPU (node) that an adapter is nearest to, and GB/s that it carries both ways."""


@dataclass(frozen=True, slots=True)
class Channel:
    """In every box the adapter, and all GPUs from the nearest one on, as ranks.

    `devices`: the adapters' numbers among those that work, as libraries count them.
    """

    adapters: tuple[int, ...]
    devices: tuple[int, ...]
    orders: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Rails:
    """`channels` over `boxes` (names), `speed` GB/s each.

    `common`: how many have one adapter number in all boxes; `adapters`: of each box, sound or not.
    """

    boxes: tuple[str, ...]
    channels: tuple[Channel, ...]
    speed: Fraction
    adapters: tuple[int, ...]

    @property
    def common(self) -> int:
        """Channels that keep to one rail."""
        return sum(len(set(channel.adapters)) == 1 for channel in self.channels)

    @property
    def changes(self) -> int:
        """Hops from box to box, of all rings, that lead to another rail."""
        return sum(
            one != other
            for channel in self.channels
            for one, other in zip(
                channel.adapters, (*channel.adapters[1:], channel.adapters[0]), strict=True
            )
        )


def choose(topology: Topology, whole: Topology) -> Rails:
    """The fastest channels of the boxes in `topology`; adapters have their numbers in `whole`.

    Raises UnsupportedError where there is one box alone, or a box has no ring inside, or no channel
    has an adapter in every box.
    """
    graph = CapacityGraph.from_topology(topology)
    boxes = boxes_of(graph)
    if len(boxes) < 2:
        raise UnsupportedError("one box alone has no rails; its rings are the library's own")
    ways = paths(graph)
    names = tuple(graph.box(box[0]) for box in boxes)
    ports = [_adapters(graph, CapacityGraph.from_topology(whole), whole, name) for name in names]
    rings = [_rings(graph, box, ways) for box in boxes]
    number = {node: rank for rank, node in enumerate(graph.ranks)}
    speed, chosen = _fastest(ports, ways)
    channels = []
    for k, adapters in enumerate(chosen):
        orders = []
        for own, adapter, cycles in zip(ports, adapters, rings, strict=True):
            ring = cycles[k % len(cycles)]
            place = ring.index(own[adapter][0])
            orders.append(tuple(number[v] for v in ring[place:] + ring[:place]))
        working = [[k for k, (_, rate) in enumerate(own) if rate] for own in ports]
        devices = tuple(own.index(k) for own, k in zip(working, adapters, strict=True))
        channels.append(Channel(adapters, devices, tuple(orders)))
    return Rails(names, tuple(channels), speed, tuple(map(len, ports)))


def _adapters(
    graph: CapacityGraph, whole: CapacityGraph, sound: Topology, box: str
) -> list[Adapter]:
    """A box's links to outside, as they were numbered when all were sound; 0 units: it is out.

    Those at a switch of the box go round the GPUs that are nearest to it. Of parallel links as many
    are out as make up what is lost, where whole ones do; else all are slower.
    """
    there = {name: node for node, name in enumerate(graph.names)}
    rates = graph.links
    count: Counter[tuple[str, str]] = Counter()
    for link in sound.links:
        for ends in link.directions():
            count[ends] += link.count
    adapters: list[Adapter] = []
    for u in range(whole.n):
        if whole.box(u) != box:
            continue
        outside = sorted(v for v in range(whole.n) if (u, v) in whole.links and whole.box(v) != box)
        near = [there[whole.names[w]] for w in _nearest(whole, u, box) if whole.names[w] in there]
        for k, v in enumerate(outside):
            if (v, u) in whole.links:
                ends = whole.names[u], whole.names[v]
                a, b = (there.get(name, -1) for name in ends)
                now = min(rates.get((a, b), 0), rates.get((b, a), 0)) * graph.unit
                before = min(whole.links[u, v], whole.links[v, u]) * whole.unit
                left = count[ends] * now / before
                sound_ones = int(left) if left.denominator == 1 else count[ends]
                for port in range(count[ends]):
                    gpu = near[(k + port) % len(near)] if near else -1
                    works = near and port < sound_ones
                    adapters.append((gpu, now / sound_ones if works else Fraction(0)))
    return adapters


def _nearest(graph: CapacityGraph, node: int, box: str) -> list[int]:
    """The GPUs of the box with the fewest hops to a node of it; itself, if it is one."""
    layer, seen = [node], {node}
    while layer:
        gpus = [v for v in layer if graph.gpu[v]]
        if gpus:
            return sorted(gpus)
        ends = {v for u, v in graph.links if u in layer and graph.box(v) == box} - seen
        layer, seen = sorted(ends), seen | ends
    return []


def _rings(graph: CapacityGraph, box: list[int], ways: Ways) -> list[tuple[int, ...]]:
    """Rings through the GPUs of a box: in their order, or along the links of a mesh."""
    if all((u, v) in ways for u in box for v in box if u != v):
        return [tuple(box)]
    rings = pack_cycles(box, links_inside(box, ways, graph.links))
    if not rings:
        raise UnsupportedError(f"the links of {graph.box(box[0])} make no ring through its GPUs")
    return [order for order, _ in rings]


def _fastest(ports: list[list[Adapter]], ways: Ways) -> tuple[Fraction, list[tuple[int, ...]]]:
    """(GB/s of the slowest, adapters of each channel in every box), of the most GB/s in all."""
    best: tuple[Fraction, list[tuple[int, ...]]] = Fraction(0), []
    for speed in sorted({rate for own in ports for _, rate in own if rate}, reverse=True):
        sound = [[k for k, (_, rate) in enumerate(own) if rate >= speed] for own in ports]
        common = sorted(set.intersection(*map(set, sound)))
        others = [[k for k in own if k not in common] for own in sound]
        channels = [(rail,) * len(ports) for rail in common]
        channels += list(zip(*others, strict=False))
        channels = [one for one in channels if _meets(one, ports, ways)]
        if len(channels) * speed > len(best[1]) * best[0]:
            best = speed, channels
    if not best[1]:
        raise UnsupportedError("no channel has a working adapter in every box")
    return best


def _meets(channel: tuple[int, ...], ports: list[list[Adapter]], ways: Ways) -> bool:
    """Whether the adapters of a channel reach each other, from box to box."""
    gpus = [own[adapter][0] for own, adapter in zip(ports, channel, strict=True)]
    return all(pair in ways for pair in pairwise((*gpus, gpus[0])))
