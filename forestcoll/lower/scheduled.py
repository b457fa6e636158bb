"""Messages in the order of a schedule on the links, for much data (fifo programs).

The list of a thread block is repeated for slice after slice, so its order is that of a steady flow.
Where trees are done level by level, or root by root, links wait for the one tree that they are for;
here each message has the place at which a greedy schedule of all of them on the links starts it
(graph/kernel/list_scheduling.cpp: nobody is interrupted; the longest chain goes first, of what
follows, or of what comes before where it is made from the end: whichever takes less time).

* Equally urgent messages take turns: the first parts of all trees, then the second ones, for
  connections of their own are at work at once; then by the distance of receiver and sender, so
  that not everybody sends to the same rank (`Partners`).
* A message carries one unit of share (a chunk), or as few as the target's limits allow: whoever
  hands it on waits for no other.
* The first part of a sum in that order opens it.
* The block that sends a sum on adds it up: who receives can take the next message meanwhile.
* The two phases of an allreduce have channels of their own, and so have the trees of one root.
* A connection has as many thread blocks as its rate takes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

from forestcoll.graph.kernel import _kernel
from forestcoll.lower.layout import Layout, RankTree, own_ref
from forestcoll.lower.messages import Connection, Land, Message, cut_trees, partial_sums
from forestcoll.program import Buffer, Ref
from forestcoll.program.targets import TREE_RATE
from forestcoll.schedule.forest import Forest
from forestcoll.schedule.routes import Pair, routes

Partners = Literal["shift", "exchange", "exchange-back", "shift-back"]
"""Which of equally urgent messages goes first: that to the nearest rank, or to the farthest.

Ranks are as far from each other as (receiver - sender) mod n, or as the bits in which they differ.
Which fills the lists of a fabric best shows in simulated time alone.
"""
ORDERS: tuple[Partners, ...] = get_args(Partners)
MOST_UNIT = 16
"""Chunks in a message at most; where even those are too many messages, levels have fewer."""
TURNS = 2**12
"""Places among which the parts of each tree are spread."""
FULL = 1.03
"""Time of a schedule, of what its busiest link takes, from which on another one is looked for."""
FINE, COARSE = 10, 40
"""A chunk takes the widest link 2^10 units of time at least, but the narrowest 2^40 at most."""


@dataclass(frozen=True, slots=True)
class Links:
    """Per pair of ranks the links between them; capacities in units; GB/s of the whole schedule.

    `block`: GB/s that a thread block moves on these GPUs. `partners`: who goes first among equals.
    """

    ways: dict[Pair, tuple[int, ...]]
    capacity: tuple[int, ...]
    algbw: Fraction
    block: Fraction
    partners: Partners = "shift"

    def lengths(self, way: Sequence[int], count: int, lanes: Sequence[int]) -> list[int]:
        """The time that a message of `count` chunks takes a lane of each link of a way."""
        unit = min(max(self.capacity) << FINE, min(self.capacity) << COARSE)
        return [max(1, count * lanes[link] * unit // self.capacity[link]) for link in way]

    def all_lengths(
        self, ways: Sequence[tuple[int, ...]], counts: Sequence[int], lanes: Sequence[int]
    ) -> list[list[int]]:
        """Those of messages of so many chunks each."""
        known: dict[tuple[tuple[int, ...], int], list[int]] = {}
        for kind in zip(ways, counts, strict=True):
            if kind not in known:
                known[kind] = self.lengths(*kind, lanes)
        return [known[kind] for kind in zip(ways, counts, strict=True)]


def links_of(forest: Forest, block: Fraction = TREE_RATE, partners: Partners = "shift") -> Links:
    """The links of a forest's graph, and the ways that its trees take."""
    graph = forest.graph
    number = {ends: e for e, ends in enumerate(zip(graph.tail, graph.head, strict=True))}
    ways = {
        pair: tuple(number[step] for step in pairwise(path))
        for pair, path in routes(graph, forest).ways.items()
    }
    return Links(ways, graph.capacity, forest.plain_algbw, block, partners)


class Scheduled(NamedTuple):
    """Messages in the order of their starts.

    `arrivals`: of each, how many messages have started when it is there. `scratch`: chunks of it
    that every rank needs for partial sums. `lanes`: channels of each connection.
    """

    messages: list[Message]
    arrivals: list[int]
    scratch: list[int]
    lanes: Lanes


def scheduled_messages(
    layout: Layout,
    early: frozenset[int],
    links: Links,
    *,
    most: int,
    block: Fraction | None,
    apart: bool,
) -> Scheduled:
    """All messages of at most `most` chunks in the order of their schedule.

    `apart`: phases of an allreduce and trees of a rooted collective have channels of their own.
    Each connection has as many channels as its rate takes where a block has `block` GB/s of a link,
    or 1.
    """
    trees = list(cut_trees(layout.trees, most))
    sums, scratch = partial_sums(trees, layout.n)
    made = _Maker(layout, trees, sums, early, apart)
    made.make()
    messages = made.messages
    lanes = _lanes_for(messages, links, layout.chunks, block)
    ways = [links.ways[m.src, m.dst] for m in messages]
    turns = _turns(layout.n, trees, messages, links.partners)
    starts, ends = _schedule(links, ways, [m.count for m in messages], made.needs, turns, lanes)
    order = sorted(range(len(messages)), key=lambda i: (starts[i], i))
    in_order = sorted(starts)
    arrivals = [bisect_left(in_order, ends[i]) for i in order]
    return Scheduled(_opened(layout, trees, [messages[i] for i in order]), arrivals, scratch, lanes)


def _turns(
    n: int, trees: Sequence[RankTree], messages: Sequence[Message], partners: Partners
) -> list[int]:
    """Which of equally urgent messages goes first: the place of its part in its tree, then whom to.

    All parts of a tree are spread evenly over the turns, be they many or few.
    """
    kinds = [(tree.phase, tree.root, tree.parent) for tree in trees]
    parts, seen = Counter(kinds), Counter[object]()
    place = []
    for kind in kinds:
        place.append((2 * seen[kind] + 1) * TURNS // (2 * parts[kind]))
        seen[kind] += 1
    width = 1 << (n - 1).bit_length()
    near = [(m.dst ^ m.src if "exchange" in partners else (m.dst - m.src) % n) for m in messages]
    if partners.endswith("back"):
        near = [width - distance for distance in near]
    return [place[m.tree] * width + d for m, d in zip(messages, near, strict=True)]


def _lanes_for(
    messages: Sequence[Message], links: Links, chunks: int, block: Fraction | None
) -> Lanes:
    """Channels of each connection."""
    counts = Counter[Connection]()
    many = Counter[Connection]()
    for message in messages:
        counts[message.connection] += message.count
        many[message.connection] += 1
    return {
        connection: 1
        if block is None
        else min(many[connection], math.ceil(links.algbw * count / chunks / block))
        for connection, count in counts.items()
    }


Lanes = dict[Connection, int]


def _lanes_of_links(links: Links, lanes: Lanes) -> list[list[int]]:
    """Messages that each link serves at once: one for each channel of a connection.

    Then the same with links inside a fabric that are wider than the ends of their ways, if there
    are any: they serve several connections side by side, each as fast as its end.
    """
    found = [1] * len(links.capacity)
    for (src, dst, *_), count in lanes.items():
        for link in links.ways[src, dst]:
            found[link] = max(found[link], count)
    beside = list(found)
    for way in {links.ways[src, dst] for src, dst, *_ in lanes}:
        for link in way[1:-1]:
            for end in (way[0], way[-1]):
                fitting = links.capacity[link] * found[end] // links.capacity[end]
                beside[link] = max(beside[link], fitting)
    return [found] if beside == found else [found, beside]


def _schedule(
    links: Links,
    ways: Sequence[tuple[int, ...]],
    counts: Sequence[int],
    needs: list[list[int]],
    turns: list[int],
    lanes: Lanes,
) -> tuple[list[int], list[int]]:
    """Per message its start, and its end.

    Uplinks serve one message after the other, so that not all arrive at the same time. Where ports
    are idle for that (the schedule takes FULL times as long as its busiest link), side by side.
    """
    best: tuple[list[int], list[int]] = [], []
    shortest = math.inf
    choices = _lanes_of_links(links, lanes)
    for of_links in choices:
        lengths = links.all_lengths(ways, counts, of_links)
        starts = _kernel.schedule(of_links, ways, lengths, needs, turns)
        ends = [start + max(times) for start, times in zip(starts, lengths, strict=True)]
        if len(choices) == 1:
            return starts, ends
        share = _stretch(of_links, ways, lengths, starts)
        if share < shortest:
            best, shortest = (starts, ends), share
        if share < FULL:
            break
    return best


def _stretch(
    lanes: Sequence[int],
    ways: Sequence[tuple[int, ...]],
    lengths: Sequence[Sequence[int]],
    starts: Sequence[int],
) -> float:
    """How many times as long as its busiest link is busy a schedule takes."""
    busy = [0] * len(lanes)
    span = 0
    for way, times, start in zip(ways, lengths, starts, strict=True):
        for link, time in zip(way, times, strict=True):
            busy[link] += time
        span = max(span, start + max(times))
    return span / max(time / count for time, count in zip(busy, lanes, strict=True))


def _opened(layout: Layout, trees: Sequence[RankTree], messages: list[Message]) -> list[Message]:
    """The same where the first part of every sum that is not the root's opens it."""
    begun: set[tuple[int, int]] = set()
    found = []
    for message in messages:
        key = (message.tree, message.dst)
        land: Land = message.land
        if land == "add" and message.dst != trees[message.tree].root and key not in begun:
            begun.add(key)
            land = "open"
        found.append(message if land == message.land else replace(message, land=land))
    return found


class _Maker:
    """Messages, and for each the numbers of those that it needs."""

    def __init__(
        self,
        layout: Layout,
        trees: Sequence[RankTree],
        sums: dict[tuple[int, int], int],
        early: frozenset[int],
        apart: bool,
    ) -> None:
        self.apart = apart
        self.layout, self.trees, self.sums, self.early = layout, trees, sums, early
        self.messages: list[Message] = []
        self.needs: list[list[int]] = []
        self._trees: dict[tuple[str, tuple[int, ...]], int] = {}
        self._total: dict[int, list[int]] = defaultdict(list)  # chunk: what brings its sum home

    def make(self) -> None:
        for number, tree in enumerate(self.trees):
            if tree.phase == "reduce":
                self._reduce(number, tree)
        for number, tree in enumerate(self.trees):
            if tree.phase == "broadcast":
                self._broadcast(number, tree)

    def _add(self, message: Message, needs: list[int]) -> int:
        self.messages.append(message)
        self.needs.append(needs)
        return len(self.messages) - 1

    def _reduce(self, number: int, tree: RankTree) -> None:
        children = tree.children()
        sent: dict[int, int] = {}
        for rank in reversed(tree.order[1:]):
            parent = tree.parent[rank]
            if parent == tree.root:
                total = self.layout.output(parent, tree.first, tree.count)
            else:
                total = own_ref(Buffer.SCRATCH, self.sums[number, parent], tree.count)
            if children[rank]:
                source = own_ref(Buffer.SCRATCH, self.sums[number, rank], tree.count)
            else:
                source = self.layout.input(rank, tree.first, tree.count)
            message = self._message(number, tree, "add", rank, parent, rank, source, total)
            sent[rank] = self._add(message, [sent[child] for child in children[rank]])
        for child in children[tree.root]:
            for chunk in range(tree.first, tree.first + tree.count):
                self._total[chunk].append(sent[child])

    def _broadcast(self, number: int, tree: RankTree) -> None:
        chunks = range(tree.first, tree.first + tree.count)
        home = sorted({m for chunk in chunks for m in self._total[chunk]})
        got: dict[int, int] = {}
        for rank in tree.order[1:]:
            parent = tree.parent[rank]
            given = parent != tree.root or parent in self.early
            source = (self.layout.output if given else self.layout.input)(
                parent, tree.first, tree.count
            )
            total = self.layout.output(rank, tree.first, tree.count)
            message = self._message(number, tree, "final", parent, rank, rank, source, total)
            got[rank] = self._add(message, home if parent == tree.root else [got[parent]])

    def _message(
        self,
        number: int,
        tree: RankTree,
        land: Land,
        src: int,
        dst: int,
        outer: int,
        source: Ref,
        total: Ref,
    ) -> Message:
        """`outer`: the end of the edge that is farther from the root."""
        if not self.apart:
            group = 0
        elif self.layout.collective.rooted:
            group = self._group(number)
        else:
            group = int(self.layout.collective.reduces and land == "final")
        ends = (src, dst, tree.first, tree.count)
        return Message(0, land, number, *ends, source, total, group, tree.parities[outer])

    def _group(self, number: int) -> int:
        """The tree that the number is a part of: all parts of a tree share their channels."""
        tree = self.trees[number]
        return self._trees.setdefault((tree.phase, tree.parent), len(self._trees))
