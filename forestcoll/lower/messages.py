"""The messages of a fifo program: what one rank sends another in one step, and in which order.

Every edge of a tree carries the tree's chunks. The level of a message is the number of steps that
have to be done before it; messages of one connection and level that are neighbours become one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from forestcoll.lower.layout import Layout, RankTree
from forestcoll.program import Buffer, Ref

READERS = 16
"""A root's copy to its own output waits for the sends of the same data, up to so many.

With more it comes first, and the sends wait for it: one dependency each.
"""

Land = Literal["open", "add", "final"]
Connection = tuple[int, int, int, int]  # sender, receiver, instance, parity of the channels


@dataclass(slots=True, eq=False)  # not frozen: that takes three times as long, and they are many
class Message:
    """`count` chunks of the whole from `chunk`, at one step of the order.

    Land "final": received in place, at `total`. "open": the first part of a sum: received at
    `total`, the own input is added to it. "add": received in a slot of its own, added to `total`.
    """

    level: int
    land: Land
    tree: int
    src: int
    dst: int
    chunk: int
    count: int
    source: Ref
    total: Ref
    instance: int = 0
    parity: int = -1  # of the channels that it may take, -1: any

    @property
    def connection(self) -> Connection:
        """What it shares channels with."""
        return self.src, self.dst, self.instance, self.parity

    @property
    def key(self) -> tuple[int, bool, int, int, int, int]:
        """Place in the order: the first part of a sum before the others of the same level."""
        return self.level, self.land != "open", self.tree, self.src, self.dst, self.chunk


def messages_of(
    layout: Layout, most: int, early: frozenset[int]
) -> tuple[list[Message], list[int]]:
    """All messages, in an order in which each comes after those that it is made of.

    No message has more than `most` chunks. `early` as in `early_copies`. Also returns how many
    chunks of scratch every rank needs for partial sums.
    """
    trees = list(cut_trees(layout.trees, most))
    sums, scratch = partial_sums(trees, layout.n)
    messages = _join(_messages(layout, trees, sums, early), most)
    return sorted(messages, key=lambda m: m.key), scratch


def cut_trees(trees: Iterable[RankTree], most: int) -> Iterator[RankTree]:
    """The trees, those of more than `most` chunks cut into nearly equal parts."""
    for tree in trees:
        parts = -(-tree.count // most)
        for part in range(parts):
            low, high = tree.count * part // parts, tree.count * (part + 1) // parts
            yield replace(tree, first=tree.first + low, count=high - low)


def partial_sums(trees: list[RankTree], n: int) -> tuple[dict[tuple[int, int], int], list[int]]:
    """Scratch offset of the partial sums of (tree, rank), and how many chunks a rank needs.

    In the order of the chunks, so that neighbours there are neighbours here.
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


def early_copies(layout: Layout) -> frozenset[int]:
    """Ranks that copy their own data to the output before all else, and use it from there."""
    if layout.collective.reduces:  # sums begin with it
        return frozenset(range(layout.n))
    children: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for tree in layout.trees:
        own = ((r, tree.instance) for r, p in enumerate(tree.parent) if p == tree.root)
        children[tree.root].update(own)
    return frozenset(r for r, found in children.items() if len(found) > READERS)


def _messages(
    layout: Layout, trees: list[RankTree], sums: dict[tuple[int, int], int], early: frozenset[int]
) -> Iterator[Message]:
    ready = [0] * layout.chunks  # level from which the root has the finished sum of a chunk
    for number, tree in enumerate(trees):
        if tree.phase == "reduce":
            yield from _reduce_messages(layout, number, tree, sums, ready)
    for number, tree in enumerate(trees):
        if tree.phase == "broadcast":
            yield from _broadcast_messages(layout, number, tree, ready, early)


def _reduce_messages(
    layout: Layout,
    number: int,
    tree: RankTree,
    sums: dict[tuple[int, int], int],
    ready: list[int],
) -> Iterator[Message]:
    children = tree.children()
    level = [0] * layout.n  # of the message that a rank sends to its parent
    for rank in reversed(tree.order):
        level[rank] = max((1 + level[c] for c in children[rank]), default=0)
    for rank in tree.order:
        if rank == tree.root:
            total = layout.output(rank, tree.first, tree.count)
        elif children[rank]:
            total = Ref(Buffer.SCRATCH, sums[number, rank], tree.count)
        for place, child in enumerate(sorted(children[rank], key=lambda c: (level[c], c))):
            if children[child]:
                source = Ref(Buffer.SCRATCH, sums[number, child], tree.count)
            else:
                source = layout.input(child, tree.first, tree.count)
            # in place the root's result lies on its input: nothing may be received there
            land: Land = "open" if place == 0 and rank != tree.root else "add"
            yield Message(
                level[child],
                land,
                number,
                child,
                rank,
                tree.first,
                tree.count,
                source,
                total,
                tree.instance,
                tree.parities[child],
            )
    for chunk in range(tree.first, tree.first + tree.count):
        ready[chunk] = level[tree.root]


def _broadcast_messages(
    layout: Layout, number: int, tree: RankTree, ready: list[int], early: frozenset[int]
) -> Iterator[Message]:
    level = [max(ready[tree.first : tree.first + tree.count])] * layout.n
    for rank in tree.order[1:]:
        parent = tree.parent[rank]
        given = parent != tree.root or parent in early
        source = (layout.output if given else layout.input)(parent, tree.first, tree.count)
        total = layout.output(rank, tree.first, tree.count)
        yield Message(
            level[parent],
            "final",
            number,
            parent,
            rank,
            tree.first,
            tree.count,
            source,
            total,
            tree.instance,
            tree.parities[rank],
        )
        level[rank] = level[parent] + 1


def _join(messages: Iterable[Message], most: int) -> list[Message]:
    """Messages of one connection and level that are neighbours at both ends as one.

    The level being the same, all that they wait for still comes before all that waits for them.
    """
    joined: list[Message] = []
    for message in sorted(messages, key=lambda m: (m.connection, m.level, m.land, m.chunk)):
        last = joined[-1] if joined else message
        if (
            joined
            and (last.connection, last.level, last.land)
            == (message.connection, message.level, message.land)
            and last.count + message.count <= most
            and last.chunk + last.count == message.chunk
            and touch(last.source, message.source)
            and touch(last.total, message.total)
        ):
            joined[-1] = replace(
                last,
                tree=min(last.tree, message.tree),
                count=last.count + message.count,
                source=both(last.source, message.source),
                total=both(last.total, message.total),
            )
        else:
            joined.append(message)
    return joined


def touch(a: Ref, b: Ref) -> bool:
    return a.buffer == b.buffer and a.offset + a.count == b.offset


def both(a: Ref, b: Ref) -> Ref:
    return Ref(a.buffer, a.offset, a.count + b.count)
