"""Transfers, and their order in a schedule on the links, for much data (fifo programs).

A transfer is what one rank hands another in one step, the one product of trees and of routes. Every
edge of a tree carries the tree's chunks, every hop of a route those of its blocks. A transfer knows
those that it needs; they come before it in every list. The level of a transfer is the number of
steps that have to be done before it; transfers of one connection and level that are neighbours may
become one (`join`).

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
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

from forestcoll.graph.kernel import _kernel
from forestcoll.lower.layout import Layout, RankTree, cut_evenly, own_ref
from forestcoll.program import Buffer, Ref
from forestcoll.program.targets import TREE_RATE
from forestcoll.schedule.forest import Forest
from forestcoll.schedule.routes import Pair, routes

READERS = 16
"""A root's copy to its own output waits for the sends of the same data, up to so many.

With more it comes first, and the sends wait for it: one dependency each.
"""

Land = Literal["open", "add", "final"]
Connection = tuple[int, int, int, int]  # sender, receiver, group, parity of the channels
Apart = Literal["instances", "phases", "none"]
"""What has connections of its own: the equal parts of the forest; the phases of an allreduce and
the trees of a rooted collective; nothing."""


@dataclass(slots=True, eq=False)  # not frozen: that takes three times as long, and they are many
class Transfer:
    """`source` at rank `src` goes to rank `dst`, and into `total` there.

    Land "final": received in place, at `total`. "open": the first part of a sum: received at
    `total`, the own input is added to it. "add": received in a slot of its own, added to `total`.
    `chunk`: the first of the chunks of the whole. `tree`: which tree's, or what else orders equals.
    `needs`: numbers of the transfers that bring what it carries. `group`: transfers of one have
    connections of their own.
    """

    src: int
    dst: int
    source: Ref
    total: Ref
    land: Land
    chunk: int
    tree: int
    needs: Sequence[int] = field(default=())
    group: int = 0
    parity: int = -1  # of the channels that it may take, -1: any
    level: int = 0

    @property
    def count(self) -> int:
        """Chunks that it carries."""
        return self.source.count

    @property
    def connection(self) -> Connection:
        """What it shares channels with."""
        return self.src, self.dst, self.group, self.parity

    @property
    def key(self) -> tuple[int, bool, int, int, int, int]:
        """Place in the order: the first part of a sum before the others of the same level."""
        return self.level, self.land != "open", self.tree, self.src, self.dst, self.chunk


def cut_trees(trees: Iterable[RankTree], most: int) -> Iterator[RankTree]:
    """Yields the trees, those of more than `most` chunks cut into nearly equal parts."""
    for tree in trees:
        end = tree.first + tree.count
        for low, high in cut_evenly(tree.first, end, -(-tree.count // most)):
            yield replace(tree, first=low, count=high - low)


def early_copies(layout: Layout) -> frozenset[int]:
    """Returns the ranks that copy their data to the output before all else, and send from there."""
    if layout.collective.reduces:  # sums begin with it
        return frozenset(range(layout.n))
    children: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for tree in layout.trees:
        own = ((r, tree.instance) for r, p in enumerate(tree.parent) if p == tree.root)
        children[tree.root].update(own)
    return frozenset(r for r, readers in children.items() if len(readers) > READERS)


def transfers_of(
    layout: Layout, trees: Sequence[RankTree], early: frozenset[int], apart: Apart
) -> tuple[list[Transfer], list[int]]:
    """Returns the transfers of all trees, and the chunks of scratch that every rank needs.

    Each comes after those that it needs. Sums of more than one part have none yet that opens them.
    """
    sums, scratch = _partial_sums(trees, layout.n)
    transfers: list[Transfer] = []
    home: dict[int, list[int]] = defaultdict(list)  # chunk: the transfers that bring its sum home
    groups = _groups(layout, trees, apart)

    def reduce(number: int, tree: RankTree) -> None:
        first, count = tree.first, tree.count
        needs: dict[int, list[int]] = {}  # rank with children: what brings their sums
        for rank in reversed(tree.order[1:]):
            parent = tree.parent[rank]
            if parent == tree.root:
                total = layout.output(parent, first, count)
            else:
                total = own_ref(Buffer.SCRATCH, sums[number, parent], count)
            own, before = needs.get(rank, []), needs.setdefault(parent, [])
            if own:
                source = own_ref(Buffer.SCRATCH, sums[number, rank], count)
            else:
                source = layout.input(rank, first, count)
            awaited = [*own, *before[-1:]] if tree.ordered else own
            before.append(len(transfers))
            ways = groups[number], tree.parities[rank]
            transfers.append(
                Transfer(rank, parent, source, total, "add", first, number, awaited, *ways)
            )
        for chunk in range(first, first + count):
            home[chunk] += needs[tree.root]

    def broadcast(number: int, tree: RankTree) -> None:
        first, count, root = tree.first, tree.count, tree.root
        whole = sorted({m for c in range(first, first + count) for m in home.get(c, ())})
        outputs = [layout.output(rank, first, count) for rank in range(layout.n)]
        own = outputs[root] if root in early else layout.input(root, first, count)
        bringing: dict[int, list[int]] = {root: whole}
        for rank in tree.order[1:]:
            parent = tree.parent[rank]
            source = own if parent == root else outputs[parent]
            needs, ways = bringing[parent], (groups[number], tree.parities[rank])
            bringing[rank] = [len(transfers)]
            transfers.append(
                Transfer(parent, rank, source, outputs[rank], "final", first, number, needs, *ways)
            )

    for phase, add in (("reduce", reduce), ("broadcast", broadcast)):
        for number, tree in enumerate(trees):
            if tree.phase == phase:
                add(number, tree)
    return transfers, scratch


def _partial_sums(
    trees: Sequence[RankTree], n: int
) -> tuple[dict[tuple[int, int], int], list[int]]:
    """Returns the scratch offset of the partial sums of (tree, rank), and how much a rank needs.

    They lie in the order of the chunks, so that neighbours there are neighbours here.
    """
    needs: list[list[tuple[int, int, int]]] = [[] for _ in range(n)]
    for number, tree in enumerate(trees):
        if tree.phase == "reduce":
            for rank in set(tree.parent) - {-1, tree.root}:
                needs[rank].append((tree.first, tree.count, number))
    offsets = {}
    sizes = []
    for rank, need in enumerate(needs):
        used = 0
        for _, count, number in sorted(need):
            offsets[number, rank] = used
            used += count
        sizes.append(used)
    return offsets, sizes


def _groups(layout: Layout, trees: Sequence[RankTree], apart: Apart) -> list[int]:
    """Returns each tree's group. All parts of a tree are in one."""
    if apart == "instances":
        return [tree.instance for tree in trees]
    if apart == "none":
        return [0] * len(trees)
    if not layout.collective.has_root:
        return [int(layout.collective.reduces and t.phase == "broadcast") for t in trees]
    numbers: dict[object, int] = {}
    return [numbers.setdefault((t.phase, t.parent), len(numbers)) for t in trees]


def open_sums(trees: Sequence[RankTree], transfers: Iterable[Transfer]) -> None:
    """Lets the first part, in this order, of every sum that is not the root's open it.

    In place the root's result lies on its input: nothing may be received there.
    """
    begun: set[tuple[int, int]] = set()
    for transfer in transfers:
        if transfer.land != "final" and transfer.dst != trees[transfer.tree].root:
            key = (transfer.tree, transfer.dst)
            transfer.land = "add" if key in begun else "open"
            begun.add(key)


def by_levels(layout: Layout, most: int, early: frozenset[int]) -> tuple[list[Transfer], list[int]]:
    """Returns all transfers level by level, in as few steps as can be, and each rank's scratch.

    None has more than `most` chunks.
    """
    trees = list(cut_trees(layout.trees, most))
    transfers, scratch = transfers_of(layout, trees, early, "instances")
    for transfer in transfers:
        transfer.level = max([1 + transfers[n].level for n in transfer.needs], default=0)
    open_sums(trees, sorted(transfers, key=lambda t: (t.level, t.src)))
    joined = join(sorted(transfers, key=lambda t: (t.connection, t.level, t.land, t.chunk)), most)
    return sorted(joined, key=lambda t: t.key), scratch


def join(transfers: Iterable[Transfer], most: int) -> Iterator[Transfer]:
    """Yields the transfers, those next to each other that are neighbours at both ends as one.

    Only those of one connection and level: all that they wait for still comes before all that waits
    for them. None gets more than `most` chunks.
    """
    last: Transfer | None = None
    for transfer in transfers:
        if (
            last is not None
            and (last.connection, last.level, last.land)
            == (transfer.connection, transfer.level, transfer.land)
            and last.count + transfer.count <= most
            and (last.land == "final" or last.chunk + last.count == transfer.chunk)
            and touch(last.source, transfer.source)
            and touch(last.total, transfer.total)
        ):
            last = replace(
                last,
                tree=min(last.tree, transfer.tree),
                source=_both(last.source, transfer.source),
                total=_both(last.total, transfer.total),
            )
            continue
        if last is not None:
            yield last
        last = transfer
    if last is not None:
        yield last


def touch(a: Ref, b: Ref) -> bool:
    """Tells whether `b` begins where `a` ends."""
    return a.buffer == b.buffer and a.offset + a.count == b.offset


def _both(a: Ref, b: Ref) -> Ref:
    return Ref(a.buffer, a.offset, a.count + b.count)


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
