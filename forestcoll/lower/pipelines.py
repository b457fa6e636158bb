"""What a thread block repeats, slice by slice, for one piece of a tree (MSCCL++).

    broadcast   wait for the parent; put to the children, signal them
    reduce      wait for the children; add their parts to the own one; put to the parent, signal it

Barriers (nop) stand between waiting, reading what arrived, writing, and signalling.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from forestcoll.lower.layout import Layout
from forestcoll.lower.pieces import Boxes, Pieces, kind_of
from forestcoll.program import Buffer, Collective, Instruction, Op, Ref
from forestcoll.targets import Target

NOP = Instruction(Op.NOP)


def sync(
    op: Op, rank: int, peers: Iterable[int], boxes: Boxes, target: Target
) -> Iterator[Instruction]:
    """`op` on the channels to all peers: one kind of channel, and so many of them, an operation."""
    kinds = sorted([(kind_of(rank, p, boxes), p) for p in peers])
    if len(kinds) == 1:
        yield Instruction(op, channels=(kinds[0][1],))
        return
    for _, some in groupby(kinds, key=lambda pair: pair[0]):
        for batch in batches([p for _, p in some], target.peers):
            yield Instruction(op, channels=batch)


def batches(items: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """The items in groups of at most `size`."""
    for low in range(0, len(items), size):
        yield tuple(items[low : low + size])


class Emitter:
    """Writes bodies of pipelines, with peers in place of channels until the thread block is known.

    `scratch` and `semaphores` count what each rank has needed so far.
    """

    def __init__(
        self, layout: Layout, pieces: Sequence[Pieces], boxes: Boxes, target: Target
    ) -> None:
        self._layout = layout
        self._pieces = pieces
        self._boxes = boxes
        self._target = target
        self.scratch = [0] * layout.n
        self.semaphores = [0] * layout.n
        self._slots: dict[
            tuple[int, int], int
        ] = {}  # (tree, child): where its parent gets its part
        self._gates: dict[tuple[int, int, int], int] = {}  # (tree, rank, further piece): semaphore
        self._released: dict[int, list[int]] = defaultdict(list)  # reduce tree: root's semaphores
        self._acquired: dict[int, list[int]] = defaultdict(list)  # broadcast tree: the same
        for number, tree in enumerate(layout.trees):
            if tree.phase == "reduce":
                for rank in tree.order[1:]:
                    self._slots[number, rank] = self.scratch[tree.parent[rank]]
                    self.scratch[tree.parent[rank]] += tree.count
            for rank in tree.order:
                for piece in pieces[number].further(rank):
                    self._gates[number, rank, piece] = self.semaphores[rank]
                    self.semaphores[rank] += 1

    def join(self, trees: Iterable[int]) -> None:
        """Keeps the root's broadcasts behind the sums of the same chunks, in any thread blocks."""
        found = [(number, self._layout.trees[number]) for number in trees]
        for up, reduce in found:
            for down, broadcast in found:
                if (
                    (reduce.phase, broadcast.phase) == ("reduce", "broadcast")
                    and reduce.first < broadcast.first + broadcast.count
                    and broadcast.first < reduce.first + reduce.count
                ):
                    semaphore = self.semaphores[reduce.root]
                    self.semaphores[reduce.root] += 1
                    self._released[up].append(semaphore)
                    self._acquired[down].append(semaphore)

    def before(self, number: int, rank: int) -> tuple[Instruction, ...]:
        """What `rank` does before its pipeline for the main piece of tree `number`."""
        if rank != self._layout.trees[number].root or not self._acquired[number]:
            return ()
        return (*self._semaphores(Op.ACQUIRE, self._acquired[number]), NOP)

    def after(self, number: int, rank: int) -> tuple[Instruction, ...]:
        """What `rank` does after its pipeline for the main piece of tree `number`."""
        if rank != self._layout.trees[number].root or not self._released[number]:
            return ()
        return (NOP, *self._semaphores(Op.RELEASE, self._released[number]))

    def body(self, number: int, piece: int, rank: int) -> tuple[Instruction, ...]:
        """What `rank` repeats for one piece of tree `number`."""
        pieces = self._pieces[number]
        children = list(pieces.children[rank].get(piece, ()))
        main = piece == pieces.main[rank]
        if self._layout.trees[number].phase == "broadcast":
            part = self._broadcast if main else self._broadcast_more
        else:
            part = self._reduce if main else self._reduce_more
        return tuple(part(number, piece, rank, children))

    def _broadcast(
        self, number: int, piece: int, rank: int, children: list[int]
    ) -> Iterator[Instruction]:
        layout, tree = self._layout, self._layout.trees[number]
        further = self._gate(Op.RELEASE, number, rank)
        if rank != tree.root:
            yield from self._sync(Op.WAIT, rank, [tree.parent[rank]])
            if children or further:
                yield NOP
        elif layout.collective is not Collective.ALLREDUCE:
            # the root sends what it has copied to its output: in place the copy writes the input,
            # and no put, which a proxy may do any time later, may read the input beside it
            own, out = (at(rank, tree.first, tree.count) for at in (layout.input, layout.output))
            yield Instruction(Op.COPY, (own,), (out,))
            yield NOP
        yield from further
        yield from self._hand_down(number, rank, children)

    def _broadcast_more(
        self, number: int, piece: int, rank: int, children: list[int]
    ) -> Iterator[Instruction]:
        yield Instruction(Op.ACQUIRE, semaphores=(self._gates[number, rank, piece],))
        yield NOP
        yield from self._hand_down(number, rank, children)

    def _hand_down(self, number: int, rank: int, children: list[int]) -> Iterator[Instruction]:
        layout, tree = self._layout, self._layout.trees[number]
        to = {c: replace(layout.output(c, tree.first, tree.count), rank=c) for c in children}
        yield from self._put(rank, layout.output(rank, tree.first, tree.count), to)

    def _reduce(
        self, number: int, piece: int, rank: int, children: list[int]
    ) -> Iterator[Instruction]:
        layout, tree = self._layout, self._layout.trees[number]
        total = layout.input(rank, tree.first, tree.count)
        pieces = self._pieces[number]
        if pieces.children[rank]:
            parts = [self._slot(number, c) for c in children]
            # a further piece leaves its sum where its first child's part was
            parts += [self._slot(number, pieces.children[rank][p][0]) for p in pieces.further(rank)]
            yield from self._sync(Op.WAIT, rank, children)
            yield from self._gate(Op.ACQUIRE, number, rank)
            yield NOP
            own = total
            at_root = rank == tree.root
            total = layout.output(rank, tree.first, tree.count) if at_root else parts[0]
            yield from self._sum(total, [own, *parts])
        if rank != tree.root:
            if pieces.children[rank]:
                yield NOP
            parent = tree.parent[rank]
            slot = replace(self._slot(number, rank), rank=parent)
            yield from self._put(rank, total, {parent: slot})

    def _reduce_more(
        self, number: int, piece: int, rank: int, children: list[int]
    ) -> Iterator[Instruction]:
        parts = [self._slot(number, c) for c in children]
        yield from self._sync(Op.WAIT, rank, children)
        yield NOP
        if len(parts) > 1:
            yield from self._sum(parts[0], parts)
            yield NOP
        yield Instruction(Op.RELEASE, semaphores=(self._gates[number, rank, piece],))

    def _slot(self, number: int, child: int) -> Ref:
        return Ref(Buffer.SCRATCH, self._slots[number, child], self._layout.trees[number].count)

    def _gate(self, op: Op, number: int, rank: int) -> list[Instruction]:
        """`op` on the semaphores that join the rank's main piece with its further ones."""
        gates = [self._gates[number, rank, p] for p in self._pieces[number].further(rank)]
        return list(self._semaphores(op, gates))

    def _semaphores(self, op: Op, semaphores: Sequence[int]) -> Iterator[Instruction]:
        for batch in batches(semaphores, self._target.semaphores):
            yield Instruction(op, semaphores=batch)

    def _sum(self, total: Ref, parts: list[Ref]) -> Iterator[Instruction]:
        """total = sum of the parts; an operation takes two operands more than it may have peers."""
        most = self._target.peers + 2
        yield Instruction(Op.REDUCE_TO, tuple(parts[:most]), (total,))
        for low in range(most, len(parts), most - 1):
            yield NOP
            yield Instruction(Op.REDUCE_TO, (total, *parts[low : low + most - 1]), (total,))

    def _put(self, rank: int, source: Ref, to: dict[int, Ref]) -> Iterator[Instruction]:
        """Writes `source` to every peer and signals; proxies keep order, so need no barrier."""
        peers: dict[str, list[int]] = defaultdict(list)
        for peer in sorted(to):
            peers[kind_of(rank, peer, self._boxes)].append(peer)
        for op, kind in ((Op.PUT_SIGNAL, "port"), (Op.PUT, "memory")):
            for some in batches(peers[kind], self._target.peers):
                yield Instruction(op, (source,), tuple(to[p] for p in some), channels=some)
        if peers["memory"]:
            yield NOP
            yield from self._sync(Op.SIGNAL, rank, peers["memory"])

    def _sync(self, op: Op, rank: int, peers: Iterable[int]) -> Iterator[Instruction]:
        return sync(op, rank, peers, self._boxes, self._target)
