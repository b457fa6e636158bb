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

Thread blocks: trees over the same chunks are a class. At each rank the fixed jobs of a class go to
one thread block, that of the fewest classes first; its other jobs go along where there is room,
else into thread blocks of their own. Where that leaves few thread blocks, each is there several
times and does a slice of every job.

Handshakes: in a broadcast or reduce data flow one way, so a writer of packets could get ahead of
their readers by any number of launches. Thread blocks of their own keep it from that:

    at the begin   tell every writer of packets to this rank that this launch has begun here
    at the end     wait for the same of every reader of this rank's packets

A writer that ends launch n + 1 so knows that its readers have read the packets of launch n; the
next launch may write into that half of scratch. None of this stands in the way of the data.

A rank whose proxy sends on what arrived in its scratch is not done with that when its own launch
is: the packets have gone once their reader has them. It tells its writers a second time (`late`),
after its readers have begun the launch.

All-to-all:

    first hop   the sender puts its block's packets into scratch of the next rank
    a relay     forwards them unread, as they arrive
    last hop    they arrive in scratch where they belong in the output, and are unpacked to it
    to a box    packets are made in own scratch and forwarded from there by a proxy

Whoever ends a launch has had packets of every rank, so all have begun that launch, and read what
the one before brought.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise, zip_longest
from typing import NamedTuple

from forestcoll.common.errors import PlanError
from forestcoll.lower.layout import Layout, RankTree, cut_evenly, from_next, ref_at
from forestcoll.lower.limits import KINDS, NOP, Kind, Limits, batches, kind_of, sync
from forestcoll.lower.schedule import Transfer
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

CLASSES = 16
"""Classes apart from each other, if there are that many."""
BLOCKS = 8
"""Thread blocks that a rank should have at least: one alone would take long for a megabyte."""
MAX_BYTES = 1 << 20
"""Largest size that plans of packets are meant for: twice the bytes, but no signals."""
Write = tuple[Ref, bool]  # a used part of an output, and whether in the course of packets
End = tuple[Kind, int]  # kind of channel, peer
To = Mapping[int, Ref]  # peer -> where packets arrive there
Groups = Sequence[Sequence[int]]  # per rank its group, itself among them


class Job(NamedTuple):
    """What must be done in one go, with peers in place of channels.

    `level`: over those of all jobs that it waits for. `fixed`: shares memory with others of its
    class. `peers` are reached by channels of one `kind`.
    """

    level: int
    fixed: bool
    steps: tuple[Instruction, ...]
    kind: Kind = "memory"
    peers: tuple[int, ...] = ()


Jobs = list[dict[int, list[Job]]]
"""Per rank and class its jobs."""


# --- thread blocks


@dataclass(slots=True)
class _Block:
    """A thread block in the making.

    `least`, `most`: steps that it takes at least, and were a barrier needed for every fixed job.
    """

    target: Target
    jobs: list[Job] = field(default_factory=list)
    ends: set[End] = field(default_factory=set)
    least: int = 0
    most: int = 0

    def take(self, more: Sequence[Job]) -> bool:
        """Takes the jobs as well, if there is room for them."""
        added, room = sum(len(job.steps) for job in more), self.target.steps
        least, most = self.least + added, self.most + added + sum(job.fixed for job in more)
        if least > room:  # no barrier goes when jobs come
            return False
        if most > room:
            least = len(_in_order([*self.jobs, *more]))
        if least > room:
            self.least = len(_in_order(self.jobs))
            return False
        if not self.reach({(job.kind, peer) for job in more for peer in job.peers}):
            return False
        self.jobs += more
        self.least, self.most = least, most
        return True

    def reach(self, more: Iterable[End]) -> bool:
        """Takes channels to these ends as well, if there are enough."""
        ends = self.ends.union(more)
        most = min(self.target.channels, self.target.remote_buffers)
        if any(sum(k == kind for k, _ in ends) > most for kind in KINDS):
            return False
        self.ends = ends
        return True


def deal(jobs: Jobs, limits: Limits, *, even: bool) -> list[tuple[ThreadBlock, ...]]:
    """The thread blocks of each rank; PlanError where the target cannot hold them.

    `even`: slices of different jobs stay apart, so that thread blocks may share them.
    """
    target = limits.target
    classes = sorted({number for own in jobs for number in own})
    number = min(len(classes), CLASSES, target.thread_blocks)
    while True:
        dealt = [_deal(own, classes, number, target) for own in jobs]
        ranks = [found for found in dealt if not isinstance(found, int)]
        stuck = [(rank, one) for rank, one in enumerate(dealt) if isinstance(one, int)]
        if not stuck:
            break
        if number == min(len(classes), target.thread_blocks):
            rank, one = stuck[0]
            steps = len(_in_order(job for job in jobs[rank][one] if job.fixed))
            if steps > target.steps:
                where = f"{limits.rank(rank)}, for packets of trees over the same chunks,"
                raise limits.refuse(where, "operations in one thread block", steps, target.steps)
            raise PlanError(
                f"{limits.title}: packets of {len(classes)} groups of trees need more than "
                f"{target.thread_blocks} thread blocks, all that {target.name} holds; {limits.hint}"
            )
        number = min(len(classes), target.thread_blocks, 2 * number)
    fullest = max(range(len(ranks)), key=lambda r: len(ranks[r]))
    blocks, most = len(ranks[fullest]), target.thread_blocks
    if blocks > most:
        raise limits.refuse(limits.rank(fullest), "thread blocks", blocks, most)
    slices = 1
    while 2 * slices * number <= BLOCKS and 2 * slices * blocks <= most and even:
        slices *= 2
    ends = [{end for block in found for end in block.ends} for found in ranks]
    for rank, found in enumerate(ranks):
        back = {(kind, peer) for peer, own in enumerate(ends) for kind, at in own if at == rank}
        for end in sorted(back - ends[rank]):
            # only its other end uses it: the runtime would make it anyway, in pairs
            next((block for block in found if block.reach([end])), None)
    return [tuple(_write_blocks(found, slices)) for found in ranks]


def _deal(
    jobs: Mapping[int, list[Job]], classes: Sequence[int], number: int, target: Target
) -> list[_Block] | int:
    """A rank's thread blocks, classes shared by the first `number`; or a class that has no room."""
    blocks = [_Block(target) for _ in range(number)]
    members: list[list[Job]] = [[] for _ in blocks]
    count = [0] * number
    for one in classes:
        own = jobs.get(one, [])
        fixed = [job for job in own if job.fixed]
        order = sorted(range(number), key=count.__getitem__)
        place = next((b for b in order if blocks[b].take(fixed)), None)
        if place is None:
            return one
        count[place] += 1
        members[place] += [job for job in own if not job.fixed]
    loose = [
        job
        for block, more in zip(blocks, members, strict=True)
        for job in sorted(more, key=lambda j: j.level)
        if not block.take([job])
    ]
    blocks = [block for block in blocks if block.jobs]
    for job in loose:
        if not any(block.take([job]) for block in blocks):
            blocks.append(_Block(target))
            blocks[-1].take([job])
    return blocks


def _write_blocks(blocks: Sequence[_Block], slices: int) -> Iterator[ThreadBlock]:
    """The thread blocks, each of them `slices` times.

    All share one channel of a kind to a peer: packets take no semaphore, only the way.
    """
    for part in range(slices):
        for block in blocks:
            ends = sorted(block.ends)
            place = {end: k for k, end in enumerate(ends)}
            steps: list[Instruction] = []
            for job, i in _in_order(block.jobs):
                if job is not None and i.src:
                    # slices begin with different peers: else all wait for one link
                    channels = [place[job.kind, peer] for peer in i.channels]
                    turn = len(channels) * part // slices
                    local = len(i.dst) - len(channels)
                    own, to = i.dst[:local], i.dst[local:]
                    paired = i.op is Op.PUT_PACKETS and len(i.src) > 1
                    i = replace(
                        i,
                        src=(*i.src[turn:], *i.src[:turn]) if paired else i.src,
                        dst=(*own, *to[turn:], *to[:turn]),
                        channels=(*channels[turn:], *channels[:turn]),
                        part=(part, slices),
                    )
                steps.append(i)
            ends_there = tuple(Channel(peer, kind, 0) for kind, peer in ends)
            yield ThreadBlock(tuple(steps), channels=ends_there)


def _in_order(jobs: Iterable[Job]) -> list[tuple[Job | None, Instruction]]:
    """All instructions by level, and a barrier where one comes to an output that another has used.

    Not where both write just the same in the course of packets: each thread then comes to what it
    has written itself.
    """
    steps: list[tuple[Job | None, Instruction]] = []
    fresh: dict[int, set[Write]] = {}  # of each chunk since the last barrier
    for job in sorted(jobs, key=lambda j: j.level):
        used = [
            (chunk, write)
            for i in job.steps
            for write in _outputs(i)
            for chunk in range(write[0].offset, write[0].offset + write[0].count)
        ]
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


# --- handshakes


def shakes(layout: Layout, limits: Limits) -> Iterator[tuple[ThreadBlock, ...]]:
    """Per rank the thread blocks to add to those that move the packets of a tree with a root."""
    readers: dict[int, set[int]] = defaultdict(set)
    writers: dict[int, set[int]] = defaultdict(set)
    late: set[int] = set()
    boxes = limits.boxes
    for tree in layout.trees:
        for child in tree.order[1:]:
            parent, down = tree.parent[child], tree.phase == "broadcast"
            src, dst = (parent, child) if down else (child, parent)
            readers[src].add(dst)
            writers[dst].add(src)
            if down and parent != tree.root and boxes[parent] != boxes[child]:
                late.add(parent)
    for rank in range(layout.n):
        own, told = writers[rank], readers[rank]
        # one thread block, unless there are more peers than it has channels
        everyone = sorted(own | told)
        kinds = [[p for p in everyone if kind_of(rank, p, boxes) == kind] for kind in KINDS]
        most = limits.target.channels
        groups = [*zip_longest(*(batches(peers, most) for peers in kinds), fillvalue=())]
        together = Instruction(Op.BARRIER, group=len(groups)) if len(groups) > 1 else NOP
        blocks = []
        for near, far in groups:
            peers = (*near, *far)
            steps: list[Instruction] = []
            for op, some in (
                (Op.RELAXED_SIGNAL, own),
                (Op.RELAXED_WAIT, told),
                (Op.SIGNAL, own if rank in late else set()),
                (Op.WAIT, told & late),
            ):
                if op is Op.SIGNAL and rank in late:
                    steps.append(together)
                places = [k for k, p in enumerate(peers) if p in some]
                steps += sync(op, places, (1 << len(near)) - 1, limits.target.peers)
            # the packets between the two take the first channel
            channels = tuple(Channel(p, kind_of(rank, p, boxes), 1) for p in peers)
            blocks.append(ThreadBlock(tuple(steps), channels=channels))
        yield tuple(blocks)


# --- jobs


class _Writer:
    """Writes jobs; `scratch` counts the chunks of packets that each rank has needed so far."""

    def __init__(self, limits: Limits, scratch: Sequence[int]) -> None:
        self.boxes, self.limits = limits.boxes, limits
        self.peers = limits.target.peers
        self.scratch = [*scratch]
        self.jobs: Jobs = [defaultdict(list) for _ in scratch]
        self.number = 0
        """The class of the jobs that are written."""

    def slot(self, owner: int, count: int) -> Ref:
        """Scratch for so many chunks of packets."""
        self.scratch[owner] += count
        return Ref(Buffer.SCRATCH, self.scratch[owner] - count, count)

    def add(
        self,
        rank: int,
        level: int,
        *steps: Instruction,
        fixed: bool = False,
        kind: Kind = "memory",
        peers: tuple[int, ...] = (),
    ) -> None:
        """Writes a job of the class."""
        self.jobs[rank][self.number].append(Job(level, fixed, steps, kind, peers))

    def near(self, rank: int, to: To) -> list[int]:
        """The peers in the rank's own box."""
        return [peer for peer in to if self.boxes[peer] == self.boxes[rank]]

    def begin(
        self,
        rank: int,
        level: int,
        source: Ref,
        to: To,
        *,
        fixed: bool = False,
        kept: Ref | None = None,
    ) -> None:
        """Plain data as packets to peers; `kept`: own scratch that gets them too."""
        near = self.near(rank, to)
        if kept is None and (len(near) < len(to) or (fixed and len(near) > self.peers)):
            kept = self.slot(rank, source.count)
        if kept is not None:
            near = near[: self.peers]
            copy = Instruction(Op.COPY_PACKETS, (source,), (kept,))
            self.add(rank, level, copy, fixed=fixed)
            rest = {peer: ref for peer, ref in to.items() if peer not in near}
            self.forward(rank, level + 1, kept, rest)
        for some in batches(near, self.peers):
            refs = tuple(to[peer] for peer in some)
            put = Instruction(Op.PUT_PACKETS, (source,), refs, channels=some)
            self.add(rank, level, put, fixed=fixed, peers=some)

    def forward(self, rank: int, level: int, packets: Ref, to: To) -> None:
        """Packets in own scratch to peers, far ones first."""
        near = self.near(rank, to)
        far = [peer for peer in to if peer not in near]
        for kind, peers in zip(reversed(KINDS), (far, near), strict=True):
            for some in batches(peers, self.peers):
                refs = tuple(to[peer] for peer in some)
                do = Instruction(Op.FORWARD_PACKETS, (packets,), refs, channels=some)
                self.add(rank, level, do, kind=kind, peers=some)

    def sum(
        self,
        rank: int,
        level: int,
        own: Ref,
        packets: Sequence[Ref],
        total: Ref,
        to: To,
        *,
        first: Sequence[Instruction] = (),
        kept: Ref | None = None,
        most: int | None = None,
    ) -> None:
        """total = packets + own, and goes to peers, and to `kept` in own scratch, as packets.

        At most so many operands at a time, or `most`: each thread goes on with its own sums.
        `first`: what is done before.
        """
        direct = tuple(self.near(rank, to)[: self.peers])
        dst, op = [total], Op.REDUCE_PUT_PACKETS if direct else Op.REDUCE_PACKETS
        if kept is None and len(direct) < len(to):
            kept = self.slot(rank, total.count)
        if kept is not None:
            dst.append(kept)
            op = Op.REDUCE_COPY_PUT_PACKETS if direct else Op.REDUCE_COPY_PACKETS
            rest = {peer: ref for peer, ref in to.items() if peer not in direct}
            self.forward(rank, level + 1, kept, rest)
        dst += [to[peer] for peer in direct]
        most = most or self.peers + 1
        parts = [packets[k : k + most] for k in range(0, len(packets), most)]
        steps = [
            Instruction(Op.REDUCE_PACKETS, (total if k else own, *part), (total,))
            for k, part in enumerate(parts)
        ]
        steps[-1] = Instruction(op, steps[-1].src, tuple(dst), channels=direct)
        self.add(rank, level, *first, *steps, fixed=True, peers=direct)

    def ranks(
        self, layout: Layout, *, even: bool, more: Iterable[tuple[ThreadBlock, ...]] = ()
    ) -> tuple[RankProgram, ...]:
        """What every rank does; `more`: thread blocks besides those of the jobs."""
        scratch = -(-max(self.scratch) // HALF_CHUNKS) * HALF_CHUNKS
        blocks = deal(self.jobs, self.limits, even=even)
        return tuple(
            RankProgram((*own, *added), layout.input_chunks, layout.output_chunks, scratch)
            for own, added in zip_longest(blocks, more, fillvalue=())
        )


def check_bytes(layout: Layout, limits: Limits, advice: str) -> None:
    """Raises PlanError where the least size of a call is beyond what packets are for."""
    least = 16 * layout.chunks
    if least > MAX_BYTES:
        raise PlanError(
            f"{limits.title}: {layout.chunks} chunks of 16 bytes are {least} bytes at least, and "
            f"packets are for up to {MAX_BYTES}; {advice}"
        )


# --- trees


def lower_packets(layout: Layout, limits: Limits) -> tuple[tuple[RankProgram, ...], bool]:
    """What every rank does, and whether that is right in place; PlanError beyond the limits.

    A reduce-scatter with sums on the way keeps them in its output, which in place is its input.
    """
    inner = any({*tree.parent} - {-1, tree.root} for tree in layout.trees)
    sharing = inner and layout.collective.reduces and layout.collective.output_is_part
    places = [
        (tree.first - (layout.start[tree.root] if sharing else 0), tree.count)
        for tree in layout.trees
    ]
    groups = overlapping(places)
    # only where places are the same or apart is a slice of one a slice of whatever shares it
    even = all(len({places[number] for number in group}) == 1 for group in groups)
    if not even:
        cut = tuple(
            replace(tree, first=tree.first + k, count=1)
            for tree in layout.trees
            for k in range(tree.count)
        )
        with suppress(PlanError):  # if there is room for so many more operations
            return lower_packets(replace(layout, trees=cut), limits)
    trees = _Trees(layout, _Writer(limits, [0] * layout.n))
    if sharing:
        trees.share(groups, places)
    else:
        for number, group in enumerate(groups):
            trees.writer.number = number
            trees.write(group)
    more = shakes(layout, limits) if layout.collective.has_root else ()
    return trees.writer.ranks(layout, even=even, more=more), not sharing


def overlapping(places: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Groups of those whose places (first, count) have chunks in common, if through others."""
    groups: list[list[int]] = []
    end = -1
    for number in sorted(range(len(places)), key=lambda i: places[i][0]):
        first, count = places[number]
        if first >= end:
            groups.append([])
        groups[-1].append(number)
        end = max(end, first + count)
    return groups


class _Trees:
    """Writes the jobs of trees."""

    def __init__(self, layout: Layout, writer: _Writer) -> None:
        self.layout, self.writer = layout, writer
        self._children = [tree.children() for tree in layout.trees]
        # per rank: steps below the root of a broadcast, over the leaves of a reduce
        self._levels = [_levels(tree) for tree in layout.trees]
        self._same = {(t.phase, t.root, t.first, t.count): k for k, t in enumerate(layout.trees)}
        # (tree, rank) -> where its packets arrive, in its own (broadcast) or its parent's scratch
        self._arrive: dict[tuple[int, int], Ref] = {}
        for number, tree in enumerate(layout.trees):
            for rank in tree.order[1:]:
                owner = rank if tree.phase == "broadcast" else tree.parent[rank]
                self._arrive[number, rank] = writer.slot(owner, tree.count)

    def write(self, group: Sequence[int]) -> None:
        """Writes the jobs of trees that carry the same chunks."""
        trees = self.layout.trees
        ups = [number for number in group if trees[number].phase == "reduce"]
        after = max((2 * self._levels[up][trees[up].root] + 2 for up in ups), default=0)
        for number in group:
            for rank in range(self.layout.n):
                if number in ups:
                    out = self.layout.output
                    tree = trees[number]
                    self._reduce(number, rank, out(rank, tree.first, tree.count))
                else:
                    self._broadcast(number, rank, after)

    def share(self, groups: Sequence[Sequence[int]], places: Sequence[tuple[int, int]]) -> None:
        """Writes the jobs of a reduce-scatter whose sums lie in the output: a class a place there.

        Whatever is written to a place is done by one thread block, the result last. Sums on the way
        are no part of the result, so each rank deals its own out to those places that are as long.
        """
        own = {number: k for k, group in enumerate(groups) for number in group}
        one = {
            k: places[group[0]]
            for k, group in enumerate(groups)
            if len({places[number] for number in group}) == 1
        }
        for rank in range(self.layout.n):
            load = [0] * len(groups)
            inner = {
                number
                for number, tree in enumerate(self.layout.trees)
                if rank != tree.root and self._children[number][rank]
            }
            for number in sorted(range(len(places)), key=inner.__contains__):
                group, place = own[number], places[number]
                if number in inner:
                    alike = [k for k in one if group in one and one[k][1] == place[1]] or [group]
                    group = min(alike, key=load.__getitem__)
                    place = places[groups[group][0]][0], place[1]
                self.writer.number = group
                before = len(self.writer.jobs[rank][group])
                self._reduce(number, rank, Ref(Buffer.OUTPUT, *place))
                more = self.writer.jobs[rank][group][before:]
                load[group] += sum(len(job.steps) + 1 for job in more if job.fixed)

    def _broadcast(self, number: int, rank: int, after: int) -> None:
        """Jobs of a broadcast tree; `after`: the level at which sums are there."""
        layout, tree, writer = self.layout, self.layout.trees[number], self.writer
        both = layout.collective.two_phases
        out, to = layout.output(rank, tree.first, tree.count), self._down(number, rank)
        if rank != tree.root:
            level, slot = after + 2 * self._levels[number][rank], self._arrive[number, rank]
            writer.forward(rank, level, slot, to)
            writer.add(rank, level + 1, Instruction(Op.UNPACK, (slot,), (out,)), fixed=both)
        elif not both:
            source = layout.input(rank, tree.first, tree.count)
            writer.begin(rank, after, source, to)
            writer.add(rank, after + 1, Instruction(Op.COPY, (source,), (out,)))
        elif ("reduce", tree.root, tree.first, tree.count) not in self._same:
            writer.begin(rank, after, out, to, fixed=True)

    def _down(self, number: int, rank: int) -> dict[int, Ref]:
        """The children, and where packets arrive there."""
        children = self._children[number][rank]
        return {child: ref_at(self._arrive[number, child], child) for child in children}

    def _reduce(self, number: int, rank: int, total: Ref) -> None:
        """Jobs of a reduce tree; at the root they begin the broadcast tree of the same chunks."""
        layout, tree, children = self.layout, self.layout.trees[number], self._children[number]
        own, level = layout.input(rank, tree.first, tree.count), 2 * self._levels[number][rank]
        to: dict[int, Ref] = {}
        if rank != tree.root:
            to = {tree.parent[rank]: ref_at(self._arrive[number, rank], tree.parent[rank])}
        elif layout.collective.output_is_part:  # what else its output held is over
            level = 2 * max(map(max, self._levels))
        else:
            down = self._same.get(("broadcast", tree.root, tree.first, tree.count))
            to = {} if down is None else self._down(down, rank)
        if children[rank]:
            packets = [self._arrive[number, child] for child in children[rank]]
            # own data is added to the packets of an operation, not the other way round
            most = 1 if tree.ordered else None
            self.writer.sum(rank, level, own, packets, total, to, most=most)
        else:
            self.writer.begin(rank, level, own, to)


def _levels(tree: RankTree) -> list[int]:
    levels = [0] * len(tree.parent)
    for rank in tree.order[1:] if tree.phase == "broadcast" else ():
        levels[rank] = levels[tree.parent[rank]] + 1
    for rank in reversed(tree.order[1:]) if tree.phase == "reduce" else ():
        levels[tree.parent[rank]] = max(levels[tree.parent[rank]], levels[rank] + 1)
    return levels


# --- rounds


def sum_packets(
    layout: Layout, rounds: Sequence[Groups], limits: Limits
) -> tuple[RankProgram, ...]:
    """What every rank does in an allreduce of such `rounds` (lower/rounds.py), in any call.

    Own data is put to the group, and added up with what comes of it; the sum is put to the next
    group in the same operation. A barrier parts own puts from the sum, which in place lies on what
    they read: nothing that arrives says that they are over. All members add up in the order of the
    group, for the same bits everywhere. An operation adds up packets, and plain data last: so of
    more than two all but the last keep their own packets too, and unpack the last one's.
    """
    check_bytes(layout, limits, limits.hint)
    count = layout.chunks
    begins = list(accumulate((len(groups[0]) for groups in rounds), initial=0))
    slots = [
        [Ref(Buffer.SCRATCH, slot * count, count) for slot in range(low, high)]
        for low, high in pairwise(begins)
    ]
    writer = _Writer(limits, [begins[-1] * count] * layout.n)

    def hand_on(rank: int, k: int) -> tuple[To, Ref | None]:
        """Where the packets of round `k` arrive at the group, and in own scratch."""
        if k == len(rounds):
            return {}, None
        group = rounds[k][rank]
        own, peers = slots[k][group.index(rank)], from_next({*group} - {rank}, rank)
        keeps = len(group) > 2 and rank != group[-1]
        return {peer: ref_at(own, peer) for peer in peers}, own if keeps else None

    for rank in range(layout.n):
        own, total = layout.input(rank, 0, count), layout.output(rank, 0, count)
        to, kept = hand_on(rank, 0)
        writer.begin(rank, 0, own, to, fixed=True, kept=kept)
        for k, parts in enumerate(slots):
            steps, rest = [NOP] * (k == 0), list(parts)
            if kept is None:
                rest.pop(rounds[k][rank].index(rank))
            else:
                steps.append(Instruction(Op.UNPACK, (rest.pop(),), (total,)))
                own = total
            to, kept = hand_on(rank, k + 1)
            writer.sum(rank, 2 * k + 2, own, rest, total, to, first=steps, kept=kept)
            own = total
    return writer.ranks(layout, even=True)


# --- routes


def write_packets(
    layout: Layout,
    transfers: Sequence[Transfer],
    scratch: Sequence[int],
    limits: Limits,
) -> tuple[RankProgram, ...]:
    """What every rank does in an all-to-all, for calls out of place. PlanError beyond the limits.

    `scratch`: chunks that relays need, per rank. Packets for the rank itself arrive behind them.
    """
    check_bytes(layout, limits, limits.hint)
    boxes = limits.boxes
    writer = _Writer(limits, [kept + layout.output_chunks for kept in scratch])
    sent: list[list[Transfer]] = [[] for _ in range(layout.n)]
    for transfer in transfers:
        sent[transfer.src].append(transfer)
    last = 2 * (1 + max(transfer.level for transfer in transfers))

    def arrival(transfer: Transfer) -> Ref:
        end = transfer.total
        kept = scratch[transfer.dst] if end.buffer is Buffer.OUTPUT else 0
        return Ref(Buffer.SCRATCH, kept + end.offset, end.count, transfer.dst)

    for rank, own in enumerate(sent):
        near: dict[int, dict[int, list[Transfer]]] = defaultdict(lambda: defaultdict(list))
        far: list[list[Transfer]] = []
        for t in sorted(own, key=lambda t: t.source.offset):
            if t.source.buffer is not Buffer.SCRATCH and boxes[t.dst] != boxes[rank]:
                if not far or far[-1][-1].source_offset + far[-1][-1].chunks != t.source_offset:
                    far.append([])
                far[-1].append(t)
        for t in own:
            if t.source.buffer is Buffer.SCRATCH:
                writer.forward(rank, 2 * t.level + 1, t.source, {t.dst: arrival(t)})
            elif boxes[t.dst] == boxes[rank]:
                near[t.chunks][t.dst].append(t)
        for alike in near.values():
            for turn in zip_longest(*alike.values()):
                for some in batches([t for t in turn if t], limits.target.peers):
                    peers = tuple(t.dst for t in some)
                    refs = tuple(t.source for t in some), tuple(map(arrival, some))
                    put = Instruction(Op.PUT_PACKETS, *refs, channels=peers)
                    writer.add(rank, 0, put, peers=peers)
        for run in far:  # packets that are made together
            first, count = run[0].source, sum(t.chunks for t in run)
            slot = writer.slot(rank, count)
            copy = Instruction(Op.COPY_PACKETS, (replace(first, count=count),), (slot,))
            writer.add(rank, 0, copy)
            for t in run:
                packets = replace(
                    slot, offset=slot.offset + t.source.offset - first.offset, count=t.chunks
                )
                writer.forward(rank, 2 * t.level + 1, packets, {t.dst: arrival(t)})
        for low, high in _parts(layout, rank):
            packets = Ref(Buffer.SCRATCH, scratch[rank] + low, high - low)
            out = Ref(Buffer.OUTPUT, low, high - low)
            writer.add(rank, last, Instruction(Op.UNPACK, (packets,), (out,)))
        for block, copied in layout.copies(rank, layout.chunks, 1):
            writer.add(rank, last, Instruction(Op.COPY, (block,), (copied,)))
        jobs = writer.jobs[rank].pop(0)
        writer.jobs[rank] = {k: jobs[k::BLOCKS] for k in range(min(BLOCKS, len(jobs)))}
    # a proxy takes each slice for a put of its own
    return writer.ranks(layout, even=all(boxes[t.src] == boxes[t.dst] for t in transfers))


def _parts(layout: Layout, rank: int) -> Iterator[tuple[int, int]]:
    """Parts of the output that others' blocks fill, about as many as there are thread blocks."""
    start, n = layout.start, layout.n
    for first, end in ((0, rank), (rank + 1, n)):
        parts = max(1, -(-(end - first) * BLOCKS // n))
        for a, b in cut_evenly(first, end, parts):
            if start[a] < start[b]:
                yield start[a], start[b]
