"""Transfers, and their order in a schedule on the links, for much data (fifo programs).

What a transfer is, and how they are made, joined and put in order, stands in
graph/kernel/lowering/transfers.hpp; here is what it is told: who copies first, which transfers have
connections of their own, the links, and how many channels a connection has.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

from forestcoll.graph.kernel import _kernel
from forestcoll.lower.layout import Layout, own_ref
from forestcoll.program import Buffer, Ref
from forestcoll.program.targets import TREE_RATE
from forestcoll.schedule.forest import Forest
from forestcoll.schedule.routes import Pair, kept_routes

READERS = 16
"""A root's copy to its own output waits for the sends of the same data, up to so many.

With more it comes first, and the sends wait for it: one dependency each.
"""

Connection = tuple[int, int, int, int]  # sender, receiver, group, parity of the channels
Apart = Literal["instances", "phases", "none"]
"""What has connections of its own: the equal parts of the forest; the phases of an allreduce and
the trees of a rooted collective; nothing."""


INPUT, OUTPUT, SCRATCH = range(len(Buffer))
"""The buffers by their numbers in transfers."""
_BUFFERS = tuple(Buffer)
ADD, FINAL, OPEN = range(3)
"""Where transfers land, likewise."""


class Transfer(NamedTuple):
    """A transfer, as transfers in the kernel are made of and read."""

    src: int
    dst: int
    source_buffer: int
    source_offset: int
    total_buffer: int
    total_offset: int
    chunks: int
    chunk: int
    tree: int
    level: int = 0
    group: int = 0
    land: int = FINAL

    @property
    def source(self) -> Ref:
        """What it carries, at its sender."""
        return own_ref(_BUFFERS[self.source_buffer], self.source_offset, self.chunks)

    @property
    def total(self) -> Ref:
        """Where that goes, at its receiver."""
        return own_ref(_BUFFERS[self.total_buffer], self.total_offset, self.chunks)


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
    layout: Layout, most: int, early: frozenset[int], apart: Apart
) -> _kernel.Transfers:
    """Returns the transfers of all trees, none of more than `most` chunks, not yet in an order.

    `early`: ranks that copy their own data first.
    """
    copied = [rank in early for rank in range(layout.n)]
    groups = _groups(layout, apart)
    return _kernel.transfers_of(layout.trees, groups, most, copied, layout.inputs, layout.outputs)


def read(transfers: _kernel.Transfers) -> list[Transfer]:
    """Returns the transfers, in their order."""
    return list(map(Transfer._make, transfers.rows()))


def _groups(layout: Layout, apart: Apart) -> list[int]:
    """Returns each tree's group."""
    if apart == "instances":
        return [tree.instance for tree in layout.trees]
    if apart == "none":
        return [0] * len(layout.trees)
    if not layout.collective.has_root:
        reduces = layout.collective.reduces
        return [int(reduces and t.phase == "broadcast") for t in layout.trees]
    numbers: dict[object, int] = {}
    return [numbers.setdefault((t.phase, t.parent), len(numbers)) for t in layout.trees]


Partners = Literal["shift", "exchange", "exchange-back", "shift-back", "turns"]
"""Which of equally urgent transfers goes first: that to the nearest rank, or to the farthest.

Ranks are as far from each other as (receiver - sender) mod n, or as the bits in which they differ.
In "turns" the first parts of all trees are the most urgent, then the second ones; else what begins
the longest chains. Which fills the lists of a fabric best shows in simulated time alone.
"""
ORDERS: tuple[Partners, ...] = get_args(Partners)
MOST_UNIT = 16
"""Chunks in a transfer at most; where even those are too many transfers, levels have fewer."""


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """Per pair of ranks the links between them; capacities in units; GB/s of the whole schedule.

    `block`: GB/s that a thread block moves on these GPUs. `partners`: who goes first among equals.
    """

    ways: dict[Pair, tuple[int, ...]]
    capacity: tuple[int, ...]
    algbw: Fraction
    block: Fraction
    partners: Partners = "shift"


@lru_cache(maxsize=16)
def links_of(forest: Forest, block: Fraction = TREE_RATE, partners: Partners = "shift") -> Links:
    """Returns the links of a forest's graph, and the ways that its trees take."""
    graph = forest.graph
    number = graph.numbers
    ways = {
        pair: tuple(number[step] for step in pairwise(path))
        for pair, path in kept_routes(graph, forest).ways.items()
    }
    return Links(ways, graph.capacity, forest.plain_algbw, block, partners)


Channels = dict[Connection, int]
"""How many channels a connection has."""


def channels_of(
    layout: Layout, transfers: _kernel.Transfers, links: Links, block: Fraction | None
) -> Channels:
    """Returns as many channels as its rate takes where a block has `block` GB/s of a link, or 1."""
    loads = zip(transfers.connections, transfers.loads(), strict=True)
    if block is None:
        return dict.fromkeys(transfers.connections, 1)
    rate = links.algbw / layout.chunks / block
    return {own: min(many, math.ceil(rate * chunks)) for own, (chunks, many) in loads}


def schedule(
    transfers: _kernel.Transfers, links: Links, channels: Channels
) -> tuple[list[int], float]:
    """Puts them in the order of their schedule.

    Returns, of each, how many have started when it is there; and how many times as long as its
    busiest link all take.
    """
    ways = [links.ways[src, dst] for src, dst, *_ in transfers.connections]
    counts = [channels[connection] for connection in transfers.connections]
    exchange, back = "exchange" in links.partners, links.partners.endswith("back")
    turns = links.partners == "turns"
    return transfers.schedule(ways, links.capacity, counts, exchange, back, turns)
