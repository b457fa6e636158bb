"""Programs of packets (MSCCL++, protocol LL): for small messages, where signals cost the most.

A packet carries its data and the number of the launch, so whoever reads it needs no signal.

    broadcast   parent puts packets into its child's scratch; the child forwards them unread to its
                own children, then unpacks them to its output
    reduce      children put packets into their parent's scratch; the parent adds them to its own
                part and puts the sum on as packets, in one operation
    between boxes   packets are made in own scratch and forwarded from there by a proxy

Scratch has two halves that launches take by turns, so a launch may begin before its predecessor's
packets are read. That is safe as long as no rank gets two launches ahead of a reader of its
packets: where everybody needs data of everybody it cannot; in a broadcast or reduce every reader
tells its writers at its begin, and they wait for that at their end.
All ranks have as much scratch as the one that needs most: who writes packets to a peer takes them
half its own scratch further in the second half's launches, wherever the peer's second half begins.

What a rank does for a tree are jobs. Each has a level above all that it waits for, and a thread
block does its jobs by level: the lowest that is not done can always go on, however jobs are dealt
out. A job that writes plain memory which another writes too is `fixed` in one block with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from forestcoll.common.errors import PlanError
from forestcoll.lower.layout import Layout, RankTree
from forestcoll.lower.limits import Limits
from forestcoll.lower.packet_handshakes import shakes
from forestcoll.lower.packet_thread_blocks import Job, Unit, deal
from forestcoll.lower.tree_pieces import Boxes, Kind, kind_of
from forestcoll.program import Buffer, Instruction, Op, RankProgram, Ref
from forestcoll.program.targets import HALF_CHUNKS, Target

MAX_BYTES = 1 << 20
"""Largest size that plans of packets are meant for: twice the bytes, but no signals."""


def lower_packets(
    layout: Layout, limits: Limits, boxes: Boxes
) -> tuple[tuple[RankProgram, ...], bool]:
    """What every rank does, and whether that is right in place; PlanError beyond the limits.

    A reduce-scatter with sums on the way keeps them in its output, which in place is its input.
    """
    trees = _Trees(layout, boxes, limits.target)
    inner = any(
        trees.is_inner(number, rank)
        for number in range(len(layout.trees))
        for rank in range(layout.n)
    )
    sharing = inner and layout.collective.output_is_part
    places = [_place(layout, number, in_output=sharing) for number in range(len(layout.trees))]
    groups = _overlapping(places)
    # only where places are the same or apart is a slice of one a slice of whatever shares it
    even = all(len({places[number] for number in group}) == 1 for group in groups)
    if not even:
        with suppress(PlanError):  # if there is room for so many more operations
            return lower_packets(_cut_evenly(layout), limits, boxes)
    units = _shared(trees, groups, places) if sharing else [_unit(trees, g) for g in groups]
    blocks = deal(units, layout.n, limits, even=even)
    if layout.collective.rooted:
        more = shakes(blocks, boxes, limits.target)
        blocks = [(*own, *added) for own, added in zip(blocks, more, strict=True)]
    scratch = -(-max(trees.scratch) // HALF_CHUNKS) * HALF_CHUNKS
    ranks = tuple(
        RankProgram(blocks[rank], layout.input_chunks, layout.output_chunks, scratch)
        for rank in range(layout.n)
    )
    return ranks, not sharing


def _cut_evenly(layout: Layout) -> Layout:
    """The same with trees of one chunk each."""
    trees = tuple(
        replace(tree, first=tree.first + k, count=1)
        for tree in layout.trees
        for k in range(tree.count)
    )
    return replace(layout, trees=trees)


def _place(layout: Layout, number: int, *, in_output: bool) -> tuple[int, int]:
    """The first of a tree's chunks, of the whole or of its root's output, and how many."""
    tree = layout.trees[number]
    return tree.first - (layout.start[tree.root] if in_output else 0), tree.count


def _unit(trees: _Trees, group: Sequence[int]) -> dict[int, list[Job]]:
    """The jobs of each rank for trees that carry the same chunks."""
    jobs: dict[int, list[Job]] = defaultdict(list)
    after = 0
    for number in group:
        if trees.layout.trees[number].phase == "reduce":
            after = max(after, 2 * trees.height(number) + 2)
    for number in group:
        tree = trees.layout.trees[number]
        for rank in range(trees.layout.n):
            if tree.phase == "reduce":
                jobs[rank] += trees.reduce(number, rank, group)
            else:
                jobs[rank] += trees.broadcast(number, rank, group, after)
    return jobs


def _shared(
    trees: _Trees, groups: Sequence[Sequence[int]], places: Sequence[tuple[int, int]]
) -> list[Unit]:
    """The jobs of a reduce-scatter whose sums lie in the output: a unit for each place there.

    Whatever is written to a place is done by one thread block, the result last. Sums on the way are
    no part of the result, so each rank deals its own out to those places that are as long.
    """
    own = {number: k for k, group in enumerate(groups) for number in group}
    whole = [len({places[number] for number in group}) == 1 for group in groups]
    length = [places[group[0]][1] for group in groups]
    alike = [
        [j for j in range(len(groups)) if j == k or (whole[j] and length[j] == length[k])]
        if whole[k]
        else [k]
        for k in range(len(groups))
    ]
    units: list[Unit] = [defaultdict(list) for _ in groups]
    everything = range(len(places))
    for rank in range(trees.layout.n):
        load = [0] * len(groups)
        for number in sorted(everything, key=lambda tree: trees.is_inner(tree, rank)):
            unit = own[number]
            if trees.is_inner(number, rank):
                unit = min(alike[unit], key=lambda k: (load[k], k))
                first = places[groups[unit][0]][0]
                trees.kept[number, rank] = Ref(Buffer.OUTPUT, first, places[number][1])
            jobs = list(trees.reduce(number, rank, everything))
            load[unit] += sum(len(job.steps) + 1 for job in jobs if job.fixed)
            units[unit][rank] += jobs
    return units


def _overlapping(places: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Groups of trees whose places (first, count) have chunks in common, if through others."""
    groups: list[list[int]] = []
    end = -1
    for number in sorted(range(len(places)), key=lambda i: places[i][0]):
        first, count = places[number]
        if first >= end:
            groups.append([])
        groups[-1].append(number)
        end = max(end, first + count)
    return groups


@dataclass(frozen=True, slots=True)
class _Shape:
    """What levels a tree's jobs have: by depth from the root, or by height over the leaves."""

    children: list[list[int]]
    depth: list[int]
    height: list[int]


class _Trees:
    """Writes jobs; `scratch` counts the chunks of packets that each rank has needed so far."""

    def __init__(self, layout: Layout, boxes: Boxes, target: Target) -> None:
        self.layout = layout
        self.scratch = [0] * layout.n
        # (tree, rank) -> where a reduce-scatter keeps a sum that is not yet the result
        self.kept: dict[tuple[int, int], Ref] = {}
        self._boxes, self._target = boxes, target
        self._shapes = [_shape(tree) for tree in layout.trees]
        # (tree, rank) -> where its packets arrive, in its own (broadcast) or its parent's scratch
        self._arrive: dict[tuple[int, int], Ref] = {}
        self._own: dict[tuple[int, int], Ref] = {}  # packets that it makes for proxies and others
        for number, tree in enumerate(layout.trees):
            for rank in tree.order[1:]:
                owner = rank if tree.phase == "broadcast" else tree.parent[rank]
                self._arrive[number, rank] = self._slot(owner, tree.count)

    def _slot(self, owner: int, count: int) -> Ref:
        self.scratch[owner] += count
        return Ref(Buffer.SCRATCH, self.scratch[owner] - count, count)

    def height(self, number: int) -> int:
        """Levels of inner ranks over the leaves, the root's included."""
        return self._shapes[number].height[self.layout.trees[number].root]

    def is_inner(self, number: int, rank: int) -> bool:
        """Whether the rank makes sums of the tree that are not yet the result."""
        tree = self.layout.trees[number]
        return (
            tree.phase == "reduce"
            and rank != tree.root
            and bool(self._shapes[number].children[rank])
        )

    # --- down

    def broadcast(self, number: int, rank: int, group: Sequence[int], after: int) -> Iterator[Job]:
        """Jobs of a broadcast tree; `after`: the level at which sums are there."""
        layout, tree, shape = self.layout, self.layout.trees[number], self._shapes[number]
        out = layout.output(rank, tree.first, tree.count)
        if rank != tree.root:
            level = after + 2 * shape.depth[rank]
            slot = self._arrive[number, rank]
            yield from self._forward(number, rank, slot, shape.children[rank], level)
            reducing = layout.collective.two_phases
            yield Job(level + 1, reducing, (Instruction(Op.UNPACK, (slot,), (out,)),))
            return
        if not layout.collective.two_phases:
            source = layout.input(rank, tree.first, tree.count)
            yield from self._begin(number, rank, source, shape.children[rank], after, fixed=False)
            yield Job(after + 1, False, (Instruction(Op.COPY, (source,), (out,)),))
        elif self._partner(number, group) is None:
            yield from self._begin(number, rank, out, shape.children[rank], after, fixed=True)

    def _partner(self, number: int, group: Sequence[int]) -> int | None:
        """The tree of the other phase over just the same chunks of the root."""
        tree = self.layout.trees[number]
        for other in group:
            found = self.layout.trees[other]
            if (
                found.phase != tree.phase
                and (found.root, found.first, found.count) == (tree.root, tree.first, tree.count)
                and self._shapes[other].children[found.root]
            ):
                return other
        return None

    def _begin(
        self,
        number: int,
        rank: int,
        source: Ref,
        children: Sequence[int],
        level: int,
        *,
        fixed: bool,
    ) -> Iterator[Job]:
        """Plain data to the children as packets."""
        near, far = self._split(rank, children)
        if far or (fixed and len(near) > self._target.peers):
            direct, near = near[: self._target.peers], near[self._target.peers :]
            own = self._own[number, rank] = self._slot(rank, source.count)
            yield Job(level, fixed, (Instruction(Op.COPY_PACKETS, (source,), (own,)),))
            yield from self._forward(number, rank, own, [*near, *far], level + 1)
            near = direct
        for some in _batches(near, self._target.peers):
            put = Instruction(
                Op.PUT_PACKETS, (source,), self._at(number, rank, some), channels=some
            )
            yield Job(level, fixed, (put,), "memory", some)

    def _forward(
        self, number: int, rank: int, packets: Ref, children: Sequence[int], level: int
    ) -> Iterator[Job]:
        """Packets in own scratch to the children, far ones first."""
        near, far = self._split(rank, children)
        kinds: tuple[tuple[Kind, tuple[int, ...]], ...] = (("port", far), ("memory", near))
        for kind, peers in kinds:
            for some in _batches(peers, self._target.peers):
                to = self._at(number, rank, some)
                do = Instruction(Op.FORWARD_PACKETS, (packets,), to, channels=some)
                yield Job(level, False, (do,), kind, some)

    # --- up

    def reduce(self, number: int, rank: int, group: Sequence[int]) -> Iterator[Job]:
        """Jobs of a reduce tree; at the root they begin the broadcast tree of the same chunks."""
        layout, tree, shape = self.layout, self.layout.trees[number], self._shapes[number]
        own = layout.input(rank, tree.first, tree.count)
        level = 2 * shape.height[rank]
        if not shape.children[rank]:
            yield from self._begin(number, rank, own, [tree.parent[rank]], level, fixed=False)
            return
        if rank == tree.root and layout.collective.output_is_part:
            level = 2 * max(map(self.height, group))  # what else its output held is over
        total, to, towards = self._target_of(number, rank, group)
        near, far = self._split(rank, to)
        direct, rest = near[: self._target.peers], near[self._target.peers :]
        dst = [total]
        op = Op.REDUCE_PUT_PACKETS if direct else Op.REDUCE_PACKETS
        if far or rest:
            slot = self._own[number, rank] = self._slot(rank, tree.count)
            dst.append(slot)
            op = Op.REDUCE_COPY_PUT_PACKETS if direct else Op.REDUCE_COPY_PACKETS
            yield from self._forward(towards, rank, slot, [*rest, *far], level + 1)
        dst += self._at(towards, rank, direct)
        packets = [self._arrive[number, child] for child in shape.children[rank]]
        steps = _sum(own, packets, total, self._target.peers + 1)
        last = Instruction(op, steps[-1].src, tuple(dst), channels=direct)
        kind: Kind | None = "memory" if direct else None
        yield Job(level, True, (*steps[:-1], last), kind, direct)

    def _target_of(
        self, number: int, rank: int, group: Sequence[int]
    ) -> tuple[Ref, Sequence[int], int]:
        """Where a sum is kept, the ranks that get it as packets, and in which tree's course."""
        layout, tree = self.layout, self.layout.trees[number]
        if rank == tree.root:
            down = self._partner(number, group)
            children = [] if down is None else self._shapes[down].children[rank]
            return (
                layout.output(rank, tree.first, tree.count),
                children,
                number if down is None else down,
            )
        if layout.collective.output_is_part:
            return self.kept[number, rank], [tree.parent[rank]], number
        return layout.output(rank, tree.first, tree.count), [tree.parent[rank]], number

    # --- both

    def _split(self, rank: int, peers: Iterable[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The peers in the same box, and those in others."""
        near: list[int] = []
        far: list[int] = []
        for peer in peers:
            (near if kind_of(rank, peer, self._boxes) == "memory" else far).append(peer)
        return tuple(near), tuple(far)

    def _at(self, number: int, rank: int, peers: Iterable[int]) -> tuple[Ref, ...]:
        """Where packets of `rank` arrive at its peers in the tree."""
        up = self.layout.trees[number].phase == "reduce"
        return tuple(
            replace(self._arrive[number, rank if up else peer], rank=peer) for peer in peers
        )


def _shape(tree: RankTree) -> _Shape:
    children = tree.children()
    depth, height = [0] * len(children), [0] * len(children)
    for rank in tree.order[1:]:
        depth[rank] = depth[tree.parent[rank]] + 1
    for rank in reversed(tree.order):
        height[rank] = 1 + max((height[c] for c in children[rank]), default=-1)
    return _Shape(children, depth, height)


def _batches(items: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    for low in range(0, len(items), size):
        yield tuple(items[low : low + size])


def _sum(own: Ref, packets: Sequence[Ref], total: Ref, most: int) -> list[Instruction]:
    """total = own + packets, at most so many at a time: each thread goes on with its own sums."""
    steps: list[Instruction] = []
    for low in range(0, len(packets), most):
        first = total if low else own
        steps.append(Instruction(Op.REDUCE_PACKETS, (first, *packets[low : low + most]), (total,)))
    return steps
