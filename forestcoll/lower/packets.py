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

Thread blocks: trees over the same chunks are a unit. Units go to classes, the lightest first; class
j's fixed jobs at a rank are thread block j there, its other jobs go along where there is room, else
into thread
blocks of their own. Where that leaves few thread blocks, each is there several times and does a
slice of every job.

Handshakes: in a broadcast or reduce data flow one way, so a writer of packets could get ahead of
their readers by any number of launches. Thread blocks of their own keep it from that:

    at the begin   tell every writer of packets to this rank that this launch has begun here
    at the end     wait for the same of every reader of this rank's packets

A writer that ends launch n + 1 so knows that its readers have read the packets of launch n; the
next launch may write into that half of scratch. None of this stands in the way of the data.

A rank whose proxy sends on what arrived in its scratch is not done with that when its own launch
is: the packets have gone once their reader has them. It tells its writers a second time (`late`),
after its readers have begun the launch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from forestcoll.common.errors import PlanError
from forestcoll.lower.handshakes import KINDS, NOP, Boxes, Kind, kind_of
from forestcoll.lower.layout import Layout, RankTree, ref_at
from forestcoll.lower.limits import Limits
from forestcoll.program import (
    PACKETS,
    Buffer,
    Channel,
    Instruction,
    Op,
    RankProgram,
    Ref,
    ThreadBlock,
)
from forestcoll.program.targets import HALF_CHUNKS, Target

# --- thread blocks


CLASSES = 16
"""Classes to start with, if there are that many units."""
BLOCKS = 8
"""Thread blocks that a rank should have at least: one alone would take long for a megabyte."""
Write = tuple[Ref, bool]  # a used part of an output, and whether in the course of packets


@dataclass(frozen=True, slots=True)
class Job:
    """What must be done in one go, with peers in place of channels.

    `level`: over those of all jobs that it waits for. `fixed`: shares memory with others of its
    unit. `peers` are reached by channels of one `kind`.
    """

    level: int
    fixed: bool
    steps: tuple[Instruction, ...]
    kind: Kind | None = None
    peers: tuple[int, ...] = ()


Unit = dict[int, list[Job]]
End = tuple[Kind, int]  # kind of channel, peer


@dataclass(slots=True)
class _Block:
    """A thread block in the making."""

    jobs: list[Job] = field(default_factory=list)
    ends: set[End] = field(default_factory=set)

    def room(self, job: Job, target: Target) -> bool:
        """Whether the job fits as well."""
        jobs = [*self.jobs, job]
        steps = sum(len(j.steps) for j in jobs)
        if steps + sum(j.fixed for j in jobs) > target.steps and steps <= target.steps:
            steps = len(_in_order(jobs))
        return steps <= target.steps and self.reaches(_ends(job), target)

    def reaches(self, more: Iterable[End], target: Target) -> bool:
        """Whether there are channels enough for these ends as well."""
        ends = self.ends.union(more)
        most = min(target.channels, target.remote_buffers)
        return all(sum(k == kind for k, _ in ends) <= most for kind in KINDS)

    def add(self, job: Job) -> None:
        """Takes the job."""
        self.jobs.append(job)
        self.ends |= _ends(job)


def _ends(job: Job) -> set[End]:
    return set() if job.kind is None else {(job.kind, peer) for peer in job.peers}


def deal(
    units: Sequence[Unit], n: int, limits: Limits, *, even: bool
) -> list[tuple[ThreadBlock, ...]]:
    """The thread blocks of each rank; PlanError where the target cannot hold them.

    `even`: slices of different jobs stay apart, so that thread blocks may share them.
    """
    classes = _classes(units, n, limits)
    ranks = [_blocks(classes, rank, limits.target) for rank in range(n)]
    fullest = max(range(n), key=lambda r: len(ranks[r]))
    blocks, most = len(ranks[fullest]), limits.target.thread_blocks
    if blocks > most:
        raise limits.refuse(limits.rank(fullest), "thread blocks", blocks, most)
    slices = 1
    while 2 * slices * len(classes) <= BLOCKS and 2 * slices * blocks <= most and even:
        slices *= 2
    ends = [{end for block in blocks for end in block.ends} for blocks in ranks]
    for rank in range(n):
        back = {(kind, peer) for peer in range(n) for kind, at in ends[peer] if at == rank}
        _list_unused(ranks[rank], back - ends[rank], limits.target)
    return [_written(blocks, slices) for blocks in ranks]


def _list_unused(blocks: Sequence[_Block], missing: set[End], target: Target) -> None:
    """Lists channels that only their other ends use, where there is room for them.

    The runtime would make them anyway, in pairs.
    """
    for end in sorted(missing):
        place = next((b for b in blocks if b.reaches([end], target)), None)
        if place is not None:
            place.ends.add(end)


def _classes(units: Sequence[Unit], n: int, limits: Limits) -> list[list[Unit]]:
    """The units dealt out so that each class's fixed jobs fit a thread block at every rank."""
    target = limits.target
    number = min(len(units), CLASSES, target.thread_blocks)
    while True:
        classes: list[list[Unit]] = [[] for _ in range(number)]
        blocks = [[_Block() for _ in range(n)] for _ in range(number)]
        stuck = None
        for unit in units:
            order = sorted(range(number), key=lambda c: (len(classes[c]), c))
            place = next((c for c in order if _fits(unit, blocks[c], target)), None)
            if place is None:
                stuck = unit
                break
            classes[place].append(unit)
            for rank, jobs in unit.items():
                for job in jobs:
                    if job.fixed:
                        blocks[place][rank].add(job)
        if stuck is None:
            return [c for c in classes if c]
        if number == min(len(units), target.thread_blocks):
            raise _refusal(stuck, units, limits)
        number = min(len(units), target.thread_blocks, 2 * number)


def _fits(unit: Unit, blocks: Sequence[_Block], target: Target) -> bool:
    for rank, jobs in unit.items():
        trial = _Block(list(blocks[rank].jobs), set(blocks[rank].ends))
        for job in jobs:
            if job.fixed:
                if not trial.room(job, target):
                    return False
                trial.add(job)
    return True


def _refusal(stuck: Unit, units: Sequence[Unit], limits: Limits) -> PlanError:
    target = limits.target
    for rank, jobs in stuck.items():
        steps = len(_in_order(job for job in jobs if job.fixed))
        if steps > target.steps:
            where = f"{limits.rank(rank)}, for packets of trees over the same chunks,"
            return limits.refuse(where, "operations in one thread block", steps, target.steps)
    return PlanError(
        f"{limits.title}: packets of {len(units)} groups of trees need more than "
        f"{target.thread_blocks} thread blocks, all that {target.name} holds; {limits.hint}"
    )


def _blocks(classes: Sequence[Sequence[Unit]], rank: int, target: Target) -> list[_Block]:
    """A rank's thread blocks: one a class with what is fixed; what does not fit has its own."""
    blocks: list[_Block] = []
    loose: list[Job] = []
    for units in classes:
        block = _Block()
        jobs = [job for unit in units for job in unit.get(rank, ())]
        for job in jobs:
            if job.fixed:
                block.add(job)
        for job in sorted(jobs, key=lambda j: j.level):
            if not job.fixed:
                if block.room(job, target):
                    block.add(job)
                else:
                    loose.append(job)
        if block.jobs:
            blocks.append(block)
    for job in loose:
        place = next((b for b in blocks if b.room(job, target)), None)
        if place is None:
            place = _Block()
            blocks.append(place)
        place.add(job)
    return blocks


def _written(blocks: Sequence[_Block], slices: int) -> tuple[ThreadBlock, ...]:
    """The thread blocks, each of them `slices` times.

    All share one channel of a kind to a peer: packets take no semaphore, only the way.
    """
    found = []
    for part in range(slices):
        for block in blocks:
            ends = sorted(block.ends)
            channels = tuple(Channel(peer, kind, 0) for kind, peer in ends)
            found.append(ThreadBlock(_steps(block, ends, (part, slices)), channels=channels))
    return tuple(found)


def _steps(block: _Block, ends: Sequence[End], part: tuple[int, int]) -> tuple[Instruction, ...]:
    """The jobs by level, with channels in place of peers."""
    place = {end: k for k, end in enumerate(ends)}
    steps: list[Instruction] = []
    for job, i in _in_order(block.jobs):
        if job is None:
            steps.append(i)
            continue
        channels = tuple(place[job.kind, p] for p in i.channels if job.kind is not None)
        steps.append(replace(i, channels=channels, part=part))
    return tuple(steps)


def _in_order(jobs: Iterable[Job]) -> list[tuple[Job | None, Instruction]]:
    """All instructions by level, and a barrier where one comes to an output that another has used.

    Not where both write just the same in the course of packets: each thread then comes to what it
    has written itself (forestcoll/verify/packets.py).
    """
    steps: list[tuple[Job | None, Instruction]] = []
    fresh: dict[int, set[Write]] = {}  # of each chunk since the last barrier
    for job in sorted(jobs, key=lambda j: j.level):
        used = [(chunk, write) for i in job.steps for write in _outputs(i) for chunk in _in(write)]
        if any(
            other != write or not write[1]
            for chunk, write in used
            if chunk in fresh
            for other in fresh[chunk]
        ):
            steps.append((None, NOP))
            fresh = {}
        for chunk, write in used:
            fresh.setdefault(chunk, set()).add(write)
        steps += [(job, i) for i in job.steps]
    return steps


def _outputs(i: Instruction) -> list[Write]:
    plain = i.op in PACKETS and bool(PACKETS[i.op].packet_dst)
    return [(ref, plain) for ref in (*i.src, *i.dst) if ref.buffer is Buffer.OUTPUT]


def _in(write: Write) -> range:
    return range(write[0].offset, write[0].offset + write[0].count)


# --- handshakes


Pairs = dict[int, set[int]]  # rank -> peers


def shakes(
    ranks: Sequence[Sequence[ThreadBlock]], boxes: Boxes, target: Target
) -> list[tuple[ThreadBlock, ...]]:
    """Per rank the thread blocks to add to those that move the packets."""
    readers: Pairs = defaultdict(set)
    writers: Pairs = defaultdict(set)
    late = set()
    for rank, blocks in enumerate(ranks):
        arrives = _arrivals(ranks, rank)
        for block in blocks:
            for i in block.steps:
                assert isinstance(i, Instruction)  # packets know no pipelines
                for ref in i.dst:
                    if ref.rank is not None:
                        readers[rank].add(ref.rank)
                        writers[ref.rank].add(rank)
                if (
                    i.op is Op.FORWARD_PACKETS
                    and block.channels[i.channels[0]].kind == "port"
                    and i.src[0].offset in arrives
                ):
                    late.add(rank)
    used = _used(ranks)
    return [
        tuple(_handshake_blocks(rank, readers[rank], writers[rank], late, boxes, target, used))
        for rank in range(len(ranks))
    ]


def _arrivals(ranks: Sequence[Sequence[ThreadBlock]], rank: int) -> set[int]:
    """Where packets of others arrive in the rank's scratch: first chunks."""
    return {
        ref.offset
        for blocks in ranks
        for block in blocks
        for i in block.steps
        if isinstance(i, Instruction) and i.op in PACKETS
        for ref in i.dst
        if ref.rank == rank
    }


def _used(ranks: Sequence[Sequence[ThreadBlock]]) -> dict[tuple[int, int], int]:
    """Per pair of ranks the first channel number that neither uses to the other."""
    used: dict[tuple[int, int], int] = defaultdict(int)
    for rank, blocks in enumerate(ranks):
        for block in blocks:
            for c in block.channels:
                pair = min(rank, c.peer), max(rank, c.peer)
                used[pair] = max(used[pair], c.index + 1)
    return used


def _handshake_blocks(
    rank: int,
    readers: set[int],
    writers: set[int],
    late: set[int],
    boxes: Boxes,
    target: Target,
    used: dict[tuple[int, int], int],
) -> Iterator[ThreadBlock]:
    """The rank's thread blocks: one, unless it has more peers than a thread block has channels."""
    lists = [
        [p for p in sorted(readers | writers) if kind_of(rank, p, boxes) == kind] for kind in KINDS
    ]
    size = target.channels
    batches = [[peers[k : k + size] for k in range(0, len(peers), size)] for peers in lists]
    groups = list(zip_longest(*batches, fillvalue=[]))
    for near, far in groups:
        peers = [*near, *far]
        channels = tuple(
            Channel(p, kind_of(rank, p, boxes), used[min(rank, p), max(rank, p)]) for p in peers
        )

        few = (peers, len(near), target.peers)
        steps = [*_on(Op.RELAXED_SIGNAL, writers, *few), *_on(Op.RELAXED_WAIT, readers, *few)]
        if rank in late:
            together = Instruction(Op.BARRIER, ident=0, group=len(groups))
            steps.append(NOP if len(groups) == 1 else together)
            steps += _on(Op.SIGNAL, writers, *few)
        steps += _on(Op.WAIT, readers & late, *few)
        yield ThreadBlock(tuple(steps), channels=channels)


def _on(
    op: Op, some: set[int], peers: Sequence[int], near: int, most: int
) -> Iterator[Instruction]:
    """`op` on the channels to these peers: one kind, and at most so many, an operation."""
    places = [k for k, p in enumerate(peers) if p in some]
    for kind in ([k for k in places if k < near], [k for k in places if k >= near]):
        for low in range(0, len(kind), most):
            yield Instruction(op, channels=tuple(kind[low : low + most]))


# --- trees


MAX_BYTES = 1 << 20
"""Largest size that plans of packets are meant for: twice the bytes, but no signals."""


def check_bytes(layout: Layout, limits: Limits, advice: str) -> None:
    """Raises PlanError where the least size of a call is beyond what packets are for."""
    least = 16 * layout.chunks
    if least > MAX_BYTES:
        raise PlanError(
            f"{limits.title}: {layout.chunks} chunks of 16 bytes are {least} bytes at least, and "
            f"packets are for up to {MAX_BYTES}; {advice}"
        )


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
        return tuple(ref_at(self._arrive[number, rank if up else peer], peer) for peer in peers)


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
