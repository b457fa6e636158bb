"""Transfers in the order of a schedule on the links, for much data (fifo programs).

The list of a thread block is repeated for slice after slice, so its order is that of a steady flow.
Where trees are done level by level, or root by root, links wait for the one tree that they are for;
here each transfer has the place at which a greedy schedule of all of them on the links starts it
(kernel/list_scheduling.cpp: nobody is interrupted; the longest chain goes first, of what follows,
or of what comes before where the schedule is made from the end: whichever takes less time).

* Equally urgent transfers take turns: the first parts of all trees, then the second ones, for
  connections of their own are at work at once; then by the distance of receiver and sender, so
  that not everybody sends to the same rank (`Partners`).
* A transfer carries one unit of share (a chunk), or as few as the target's limits allow: whoever
  hands it on waits for no other.
* The first part of a sum in that order opens it.
* The block that sends a sum on adds it up: who receives can take the next transfer meanwhile.
* The two phases of an allreduce have channels of their own, and so have the trees of one root.
* A connection has as many thread blocks as its rate takes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

from forestcoll.graph.kernel import _kernel
from forestcoll.lower.layout import Layout, RankTree
from forestcoll.lower.transfers import Connection, Transfer, cut_trees, open_sums, transfers_of
from forestcoll.program.targets import TREE_RATE
from forestcoll.schedule.forest import Forest
from forestcoll.schedule.routes import Pair, routes

Partners = Literal["shift", "exchange", "exchange-back", "shift-back"]
"""Which of equally urgent transfers goes first: that to the nearest rank, or to the farthest.

Ranks are as far from each other as (receiver - sender) mod n, or as the bits in which they differ.
Which fills the lists of a fabric best shows in simulated time alone.
"""
ORDERS: tuple[Partners, ...] = get_args(Partners)
MOST_UNIT = 16
"""Chunks in a transfer at most; where even those are too many transfers, levels have fewer."""
TURNS = 2**12
"""Places among which the parts of each tree are spread."""
FULL = 1.03
"""Time of a schedule, of what its busiest link takes, from which on another one is looked for."""
FINE, COARSE = 10, 40
"""A chunk takes the widest link 2^10 units of time at least, but the narrowest 2^40 at most."""


class Links(NamedTuple):
    """Per pair of ranks the links between them; capacities in units; GB/s of the whole schedule.

    `block`: GB/s that a thread block moves on these GPUs. `partners`: who goes first among equals.
    """

    ways: dict[Pair, tuple[int, ...]]
    capacity: tuple[int, ...]
    algbw: Fraction
    block: Fraction
    partners: Partners = "shift"

    def lengths(self, way: Sequence[int], count: int, lanes: Sequence[int]) -> list[int]:
        """Returns the time that a transfer of `count` chunks takes a lane of each link of a way."""
        unit = min(max(self.capacity) << FINE, min(self.capacity) << COARSE)
        return [max(1, count * lanes[link] * unit // self.capacity[link]) for link in way]


def links_of(forest: Forest, block: Fraction = TREE_RATE, partners: Partners = "shift") -> Links:
    """Returns the links of a forest's graph, and the ways that its trees take."""
    graph = forest.graph
    number = graph.numbers
    ways = {
        pair: tuple(number[step] for step in pairwise(path))
        for pair, path in routes(graph, forest).ways.items()
    }
    return Links(ways, graph.capacity, forest.plain_algbw, block, partners)


Channels = dict[Connection, int]
"""How many channels a connection has."""


class Scheduled(NamedTuple):
    """Transfers in the order of their starts.

    `arrivals`: of each, how many transfers have started when it is there. `scratch`: chunks of it
    that every rank needs for partial sums. `channels`: of each connection.
    """

    transfers: list[Transfer]
    arrivals: list[int]
    scratch: list[int]
    channels: Channels


def schedule(
    layout: Layout,
    early: frozenset[int],
    links: Links,
    *,
    most: int,
    block: Fraction | None,
    apart: bool,
) -> Scheduled:
    """Returns all transfers of at most `most` chunks in the order of their schedule.

    `apart`: phases of an allreduce and trees of a rooted collective have channels of their own.
    Each connection has as many channels as its rate takes where a block has `block` GB/s of a link,
    or 1.
    """
    trees = list(cut_trees(layout.trees, most))
    transfers, scratch = transfers_of(layout, trees, early, "phases" if apart else "none")
    counts, many = Counter[Connection](), Counter[Connection]()
    for transfer in transfers:
        connection = transfer.connection
        counts[connection] += transfer.count
        many[connection] += 1
    channels = dict.fromkeys(counts, 1)
    if block is not None:
        for one, count in counts.items():
            channels[one] = min(many[one], math.ceil(links.algbw * count / layout.chunks / block))
    turns = _turns(layout.n, trees, transfers, links.partners)
    starts, ends = _starts(links, transfers, turns, channels)
    order = sorted(range(len(transfers)), key=lambda i: (starts[i], i))
    in_order = sorted(starts)
    arrivals = [bisect_left(in_order, ends[i]) for i in order]
    transfers = [transfers[i] for i in order]
    open_sums(trees, transfers)
    return Scheduled(transfers, arrivals, scratch, channels)


def _turns(
    n: int, trees: Sequence[RankTree], transfers: Sequence[Transfer], partners: Partners
) -> list[int]:
    """Returns which of equally urgent transfers goes first: by its part's place in its tree, then
    by the distance of its ends.

    All parts of a tree are spread evenly over the turns, be they many or few.
    """
    kinds = [(tree.phase, tree.root, tree.parent) for tree in trees]
    parts, seen = Counter(kinds), Counter[object]()
    place = []
    width = 1 << (n - 1).bit_length()
    for kind in kinds:
        place.append((2 * seen[kind] + 1) * TURNS // (2 * parts[kind]) * width)
        seen[kind] += 1
    exchange, back = "exchange" in partners, partners.endswith("back")
    near = [(t.dst ^ t.src if exchange else (t.dst - t.src) % n) for t in transfers]
    return [
        place[t.tree] + (width - distance if back else distance)
        for t, distance in zip(transfers, near, strict=True)
    ]


def _lanes_of_links(links: Links, channels: Channels) -> list[list[int]]:
    """Returns how many transfers each link serves at once: one for each channel of a connection.

    Then the same with links inside a fabric that are wider than the ends of their ways, if there
    are any: they serve several connections side by side, each as fast as its end.
    """
    lanes = [1] * len(links.capacity)
    for (src, dst, *_), count in channels.items():
        for link in links.ways[src, dst]:
            lanes[link] = max(lanes[link], count)
    beside = list(lanes)
    for way in {links.ways[src, dst] for src, dst, *_ in channels}:
        for link in way[1:-1]:
            for end in (way[0], way[-1]):
                fitting = links.capacity[link] * lanes[end] // links.capacity[end]
                beside[link] = max(beside[link], fitting)
    return [lanes] if beside == lanes else [lanes, beside]


def _starts(
    links: Links, transfers: Sequence[Transfer], turns: list[int], channels: Channels
) -> tuple[list[int], list[int]]:
    """Returns when each transfer starts, and when it is there.

    Uplinks serve one transfer after the other, so that not all arrive at the same time. Where ports
    are idle for that (the schedule takes FULL times as long as its busiest link), side by side.
    """
    numbers: dict[tuple[int, int, int], int] = {}
    kinds = [numbers.setdefault((t.src, t.dst, t.source.count), len(numbers)) for t in transfers]
    ways = [links.ways[src, dst] for src, dst, _ in numbers]
    needs = [t.needs for t in transfers]
    best: tuple[list[int], list[int]] = [], []
    least = math.inf
    for lanes in _lanes_of_links(links, channels):
        lengths = [
            links.lengths(way, count, lanes)
            for way, (_, _, count) in zip(ways, numbers, strict=True)
        ]
        starts, stretch = _kernel.schedule(lanes, ways, lengths, kinds, needs, turns)
        if stretch < least:
            longest = [max(times) for times in lengths]
            ends = [start + longest[kind] for start, kind in zip(starts, kinds, strict=True)]
            best, least = (starts, ends), stretch
        if stretch < FULL:
            break
    return best
