"""Rings that keep to their rails: which adapters of every box a library's channels should use.

NCCL and RCCL give all channels equal shares, and every channel the speed of the slowest adapter in
it. So k channels over adapters of at least s GB/s in every box carry k s, and of all k the best is
taken: a slow adapter is left out where that is faster. Boxes need not lack the same ones. Channels
whose adapter has the same number in every box, a common rail, come first: on fabrics without a
spine the only ones that meet.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.solver.baselines.order import boxes_of, rings_inside
from forestcoll.solver.baselines.shapes import Ways, paths
from forestcoll.solver.walks import Near, hops, neighbours
from forestcoll.topology import Topology


class Adapter(NamedTuple):
    """The GPU (node) that an adapter is nearest to, and GB/s that it carries both ways.

    `listed`: whether the library counts it. It does so where the adapter is of no use because its
    GPU is out, and not where its own link is down.
    """

    gpu: int
    rate: Fraction
    listed: bool


@dataclass(frozen=True, slots=True)
class Channel:
    """In every box the adapter, and all GPUs from the nearest one on, as ranks.

    `devices`: the adapters' numbers among those that are up, as libraries count them.
    """

    adapters: tuple[int, ...]
    devices: tuple[int, ...]
    orders: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Rails:
    """`channels` over `boxes` (names), `speed` GB/s each.

    `direct`: all hops inside boxes, from the last GPU of a channel to the first, too, go over one
    link, or a switch of the box that joins GPUs alone: NVLink, NVSwitch, xGMI.
    """

    boxes: tuple[str, ...]
    channels: tuple[Channel, ...]
    speed: Fraction
    direct: bool

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
    by_name = _adapters(graph, whole)
    ports = [by_name.get(name, []) for name in names]
    rings = [_rings(graph, box, ways) for box in boxes]
    number = graph.rank_of
    speed, chosen = _fastest(ports, ways)
    listed = [[k for k, adapter in enumerate(own) if adapter.listed] for own in ports]
    channels = []
    for k, adapters in enumerate(chosen):
        orders = []
        for own, adapter, cycles in zip(ports, adapters, rings, strict=True):
            ring = cycles[k % len(cycles)]
            place = ring.index(own[adapter].gpu)
            orders.append(tuple(number[v] for v in ring[place:] + ring[:place]))
        devices = tuple(own.index(k) for own, k in zip(listed, adapters, strict=True))
        channels.append(Channel(adapters, devices, tuple(orders)))
    inside = [[graph.ranks[r] for r in order] for channel in channels for order in channel.orders]
    around = [hop for order in inside for hop in zip(order, order[1:] + order[:1], strict=True)]
    joints = _joints(graph)
    direct = all(joints.issuperset(ways.get(hop, (-1,) * 3)[1:-1]) for hop in around)
    return Rails(names, tuple(channels), speed, direct)


def _joints(graph: CapacityGraph) -> set[int]:
    """Switches that join the GPUs of their box and lead nowhere else."""
    ends = [end for link in graph.ends for end in (link, link[::-1])]
    others = {u for u, v in ends if not graph.gpu[v] or graph.box(u) != graph.box(v)}
    return {v for v in range(graph.n) if not graph.gpu[v]} - others


def _adapters(graph: CapacityGraph, topology: Topology) -> dict[str, list[Adapter]]:
    """Each box's links to outside, in the order of the links of `topology`; 0 GB/s: it is out.

    Those at a switch of the box go round the GPUs that are nearest to it. Of parallel links as many
    are out as make up what is lost, where whole ones do; else all are slower. The adapters of a GPU
    that is out are of no use, but are counted.
    """
    whole = CapacityGraph.from_topology(topology)
    there, now, before = graph.node_of, _both_ways(graph), _both_ways(whole)
    count: Counter[tuple[str, str]] = Counter()
    for link in topology.links:
        for way in link.directions():
            count[way] += link.count
    near = neighbours(whole.n, whole.ends)
    inside = [[v for v in ends if whole.box(v) == whole.box(u)] for u, ends in enumerate(near)]
    adapters: dict[str, list[Adapter]] = defaultdict(list)
    turn: Counter[int] = Counter()
    for ends, ports in count.items():
        u, v = (whole.node_of[name] for name in ends)
        if v in inside[u] or (u, v) not in before:
            continue
        gpus = [
            there[whole.names[w]] for w in _nearest(whole, inside, u) if whole.names[w] in there
        ]
        rate = now.get((there.get(ends[0], -1), there.get(ends[1], -1)), Fraction(0))
        left = ports * rate / before[u, v]
        sound = int(left) if left.denominator == 1 else ports
        idle = whole.gpu[u] and ends[0] not in there and ends[1] in there
        for port in range(ports):
            gpu = gpus[turn[u] % len(gpus)] if gpus else -1
            turn[u] += 1
            up = port < sound
            works = Fraction(rate, sound) if gpus and up else Fraction(0)
            adapters[whole.box(u)].append(Adapter(gpu, works, up or idle))
    return adapters


def _both_ways(graph: CapacityGraph) -> dict[tuple[int, int], Fraction]:
    """GB/s between two nodes that are linked both ways: of the slower way."""
    links = graph.links
    pairs = ((u, v) for u, v in links if (v, u) in links)
    return {(u, v): min(links[u, v], links[v, u]) * graph.unit for u, v in pairs}


def _nearest(graph: CapacityGraph, inside: Near, node: int) -> list[int]:
    """The GPUs of a box with the fewest hops to a node of it; itself, if it is one."""
    far = {v: links for v, links in hops(inside, [node]).items() if graph.gpu[v]}
    least = min(far.values(), default=0)
    return sorted(v for v, links in far.items() if links == least)


def _rings(graph: CapacityGraph, box: list[int], ways: Ways) -> list[tuple[int, ...]]:
    """Rings through the GPUs of a box."""
    rings = rings_inside(box, ways, graph.links)
    if not rings:
        raise UnsupportedError(f"the links of {graph.box(box[0])} make no ring through its GPUs")
    return rings


def _fastest(ports: list[list[Adapter]], ways: Ways) -> tuple[Fraction, list[tuple[int, ...]]]:
    """(GB/s of the slowest, adapters of each channel in every box), of the most GB/s in all."""
    best: tuple[Fraction, list[tuple[int, ...]]] = Fraction(0), []
    for speed in sorted({one.rate for own in ports for one in own if one.rate}, reverse=True):
        sound = [[k for k, one in enumerate(own) if one.rate >= speed] for own in ports]
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
    gpus = [own[adapter].gpu for own, adapter in zip(ports, channel, strict=True)]
    return all(pair in ways for pair in pairwise((*gpus, gpus[0])))
