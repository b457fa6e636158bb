"""What a rank repeats, slice by slice, for a tree (MSCCL++).

    broadcast   wait for the parent; put to the children; signal those that put it further
    reduce      wait for the children; add their partial sums to the own contribution; tell the
                parent, who reads it there, or put it to a parent in another box

Barriers (nop) stand between waiting, reading what arrived, writing, and signalling.

A leaf has nothing to do for its box: its parent reads its input, or writes its output, and says so
at the end of the launch. Handshakes are there where no flow of data orders what happens:

    reduce      a leaf's input is read when its launch has begun, and before it is over; so is a
                partial sum that lies where another box writes it, who does so again when the
                owner's next launch has begun; one in own scratch is changed when the reader's has;
                a port's source when its receiver is done
    broadcast   an output is written when its rank's launch has begun; a leaf must be told that all
                is there; a port's source may change when its receiver is done
    allreduce   every result has contributions of all ranks and reaches all: so whoever has the
                whole result knows that all launches have begun and that all sums are over

Groups. Every transfer of a tree is in a group, and a group's transfers share thread blocks. A
rank's main group has the transfer from or to its parent (the root's is group 0). Where a rank has
too many children for its main group, further groups take them; semaphores join the groups at that
rank. Their numbers grow from the root outwards.

Reduce and broadcast of an allreduce overlap slice by slice. A root whose two trees carry the same
chunks adds up and hands down in one operation (`rres`, `res`), in the thread block of the sums.
Where it has too many children for that, semaphores of the root join two thread blocks inside both
pipelines. Where cuts of the trees do not coincide, the semaphores stand outside: a broadcast then
begins when all its sums are over.

Partial sums: a peer in the same box reads one where it lies; only what comes from another box
through a port needs a place at its receiver. A rank keeps its own partial sum

    at the root                      in the output: it is the result
    of an allreduce                  in the output: the result goes there later, and in place the
                                     own contribution is used up in the very step that writes it
    of a reduce or reduce-scatter    in scratch: the output is too small, or nobody's but the root's
    without children                 nowhere: it is the input itself
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, NamedTuple

from forestcoll.lower.handshakes import (
    KINDS,
    NOP,
    Boxes,
    Shakes,
    batches,
    kind_of,
    near_masks,
    sync,
)
from forestcoll.lower.layout import Layout, RankTree, from_next, ref_at
from forestcoll.program import Buffer, Instruction, Op, Ref
from forestcoll.program.targets import Target

BUFFERS = (Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH)
Apart = Literal["no", "inner", "all"]
"""Ranks of which every child is in a group of its own: none, all but the root, all."""
Place = tuple[int, int]  # rank, half


class Pipe(NamedTuple):
    """A pipeline of a rank. Those of a thread block are done in the order of their keys.

    Data flows in that order: broadcast after reduce; first chunk; group (a sum's: backwards).
    """

    key: tuple[bool, int, int]
    before: tuple[Instruction, ...]
    body: tuple[Instruction, ...]
    after: tuple[Instruction, ...]
    chunks: int


class Work(NamedTuple):
    """What a rank does for trees of a class, and what that takes of a thread block's limits.

    Without pipelines it is handshakes only: others read or write the rank's memory. `steps`:
    operations of the pipelines. Sets are bits of an integer: lanes, and remote buffers
    (3 * peer + buffer).
    """

    pipes: tuple[Pipe, ...] = ()
    steps: int = 0
    remote: int = 0
    lanes: int = 0
    shakes: Shakes = Shakes()

    def join(self, other: Work) -> Work:
        """Both together."""
        a, b = self.shakes, other.shakes
        return Work(
            self.pipes + other.pipes,
            self.steps + other.steps,
            self.remote | other.remote,
            self.lanes | other.lanes,
            Shakes(a[0] | b[0], a[1] | b[1], a[2] | b[2], a[3] | b[3]),
        )


# --- groups


class Groups(NamedTuple):
    """The groups of one tree."""

    main: tuple[int, ...]  # per rank
    children: tuple[dict[int, tuple[int, ...]], ...]  # per rank: group -> its children there

    def further(self, rank: int) -> list[int]:
        """The groups at `rank` besides its main one."""
        return sorted(p for p in self.children[rank] if p != self.main[rank])

    def chain(self, rank: int) -> list[int]:
        """The groups at `rank` in the order in which a sum goes through them: the main one last."""
        return [*reversed(self.further(rank)), self.main[rank]]


def cut(tree: RankTree, boxes: Boxes, target: Target, apart: Apart = "no") -> Groups:
    """One group, unless a rank has more neighbours of one kind than a thread block has channels.

    Such a rank keeps as many children as one operation serves in its main group, and as many in
    each further one: the thread blocks then have room for other trees as well. `apart`: whose
    children are in a group each.
    """
    most = max(1, min(target.peers, target.channels // 2))
    children = tree.children()
    main = [0] * len(children)
    split: list[dict[int, tuple[int, ...]]] = [{} for _ in children]
    count = 1
    for rank in tree.order:
        order = from_next(children[rank], rank)
        peers = order + ([tree.parent[rank]] if rank != tree.root else [])
        kinds = [kind_of(rank, p, boxes) for p in peers]
        wide = max(map(kinds.count, KINDS)) > target.channels
        groups: dict[int, list[int]] = defaultdict(list)
        if apart == "all" or (apart == "inner" and rank != tree.root):
            groups.update((place, [c]) for place, c in enumerate(order))
        for kind in () if groups else KINDS:
            left = (c for c in order if kind_of(rank, c, boxes) == kind)
            place = 0
            while some := list(islice(left, most if wide else len(peers))):
                groups[place] += some
                place += 1
        for place, group in groups.items():
            number = main[rank] if place == 0 else count + place - 1
            split[rank][number] = tuple(from_next(group, rank))
            for child in group:
                main[child] = number
        count += max(0, len(groups) - 1)
    return Groups(tuple(main), tuple(split))


# --- what a rank does


@dataclass(slots=True)
class _Draft:
    """A pipeline in the making, in the order of its operations.

    `waits`: lanes of those that data come from; `acquired`, `released`: semaphores that join the
    rank's groups; `sums`: operations; `puts`: where each lane's peer gets `source`; `told`: lanes
    of those that are told that it is there.
    """

    waits: list[int] = field(default_factory=list)
    acquired: list[int] = field(default_factory=list)
    sums: list[Instruction] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    source: Ref | None = None
    puts: dict[int, Ref] = field(default_factory=dict)
    told: list[int] = field(default_factory=list)
    copy: list[Instruction] = field(default_factory=list)
    shakes: list[int] = field(default_factory=lambda: [0] * 4)

    def shake(self, lane: int, flags: Iterable[bool]) -> None:
        """Handshakes of the four kinds with a lane."""
        for kind, flag in enumerate(flags):
            self.shakes[kind] |= flag << lane


class Pipelines:
    """Writes pipelines, with lanes in place of channels until the thread blocks are known.

    `halves`: 2 where broadcasts of an allreduce have thread blocks of their own, else 1.
    `scratch` and `semaphores` count what each rank has needed so far.
    """

    def __init__(
        self, layout: Layout, groups: Sequence[Groups], boxes: Boxes, target: Target, halves: int
    ) -> None:
        self.layout, self.groups, self.boxes, self.target = layout, groups, boxes, target
        self.scratch, self.semaphores = [0] * layout.n, [0] * layout.n
        self._children = [
            [from_next(below, rank) for rank, below in enumerate(tree.children())]
            for tree in layout.trees
        ]
        self._inside = near_masks(boxes)
        self._all = layout.collective.two_phases
        self._last = halves - 1 if self._all else 0  # half of broadcasts
        self._slots: dict[tuple[int, int], Ref] = {}  # (tree, child in another box): at its parent
        self._totals: dict[tuple[int, int], Ref] = {}  # (tree, rank with children): its sum
        self._lent: dict[tuple[int, int], int] = {}  # (tree, rank): the child whose slot has it
        self._gates: dict[tuple[int, int, int], int] = {}  # (tree, rank, group): its semaphore
        self._fused: dict[int, int] = {}  # reduce tree -> the broadcast tree that its root begins
        self._begun: set[int] = set()  # those broadcast trees
        self._handed: dict[int, list[int]] = {}  # reduce tree: root's semaphores, every slice
        self._taken: dict[int, int] = {}  # broadcast tree: the root's semaphore, every slice
        self._released: dict[int, list[int]] = defaultdict(list)  # the same, after the last slice
        self._acquired: dict[int, list[int]] = defaultdict(list)
        for number, tree in enumerate(layout.trees):
            if tree.phase == "reduce":
                self._place_sums(number, tree)
            for rank in tree.order:
                # a root that sends its input finds it there all the time
                if rank != tree.root or layout.collective.reduces:
                    for group in groups[number].further(rank):
                        self._gates[number, rank, group] = self._semaphore(rank)

    def _semaphore(self, rank: int) -> int:
        self.semaphores[rank] += 1
        return self.semaphores[rank] - 1

    def _place_sums(self, number: int, tree: RankTree) -> None:
        groups = self.groups[number]
        for rank in tree.order:
            children = self._children[number][rank]
            far = [c for c in children if not self._near(rank, c)]
            for child in far:
                self._slots[number, child] = self._keep(rank, tree.count)
            if not children:
                continue
            if rank == tree.root or self._all:
                self._totals[number, rank] = self.layout.output(rank, tree.first, tree.count)
                continue
            # what is added up first may be overwritten by the sum
            first = groups.children[rank].get(groups.chain(rank)[0], ())
            lender = next((c for c in first if c in far), None)
            if lender is None:
                self._totals[number, rank] = self._keep(rank, tree.count)
            else:
                self._totals[number, rank] = self._slots[number, lender]
                self._lent[number, rank] = lender

    def _keep(self, rank: int, count: int) -> Ref:
        self.scratch[rank] += count
        return Ref(Buffer.SCRATCH, self.scratch[rank] - count, count)

    # --- how the halves of an allreduce meet

    def fuse(self, up: int, down: int) -> bool:
        """Let the root of `up` begin `down`, which carries the same chunks; False if it cannot.

        Not where halves share thread blocks: its children would wait for it later than it tells
        them, and take what it tells them of another tree for that.
        """
        root = self.layout.trees[up].root
        near = [c for c in self._children[down][root] if self._near(root, c)]
        split = self.groups[up].further(root) or self.groups[down].further(root)
        if not self._last or split or len(near) > self.target.peers:
            return False
        self._fused[up] = down
        self._begun.add(down)
        return True

    def part_ways(self, up: int) -> None:
        """Takes `fuse` back."""
        self._begun.discard(self._fused.pop(up))

    def hand_over(self, up: int, down: int) -> None:
        """Semaphores of the root between both pipelines: `down` carries the same chunks as `up`."""
        root = self.layout.trees[up].root
        self._taken[down] = self._semaphore(root)
        gates = [self._gates[down, root, p] for p in self.groups[down].further(root)]
        self._handed[up] = [self._taken[down], *gates]

    def queue(self, trees: Sequence[int]) -> None:
        """Keeps the root's broadcasts behind all sums of the same chunks."""
        found = [(number, self.layout.trees[number]) for number in trees]
        for up, reduce in found:
            for down, broadcast in found:
                if (
                    (reduce.phase, broadcast.phase) == ("reduce", "broadcast")
                    and reduce.first < broadcast.first + broadcast.count
                    and broadcast.first < reduce.first + reduce.count
                ):
                    semaphore = self._semaphore(reduce.root)
                    self._released[up].append(semaphore)
                    self._acquired[down].append(semaphore)

    # --- work

    def works(self, number: int, group: int) -> Iterator[tuple[Place, Work]]:
        """Yields what the ranks do for a group of tree `number`, and in which half."""
        tree, groups = self.layout.trees[number], self.groups[number]
        down = tree.phase == "broadcast"
        for rank, main in enumerate(groups.main):
            children = groups.children[rank].get(group, ())
            if main != group and not children:
                continue
            if down and number in self._begun and rank == tree.root:
                continue  # the thread block of the sums does it
            draft = _Draft()
            (self._broadcast if down else self._reduce)(draft, number, group, rank, children)
            before, after = [], []
            if rank == tree.root and main == group:
                before, after = self._acquired[number], self._released[number]
            key = (down, tree.first, group if down else -group)
            yield (
                (rank, self._half(number, rank)),
                self._write_block(draft, rank, key, before, after, tree.count),
            )

    def _half(self, number: int, rank: int) -> int:
        """The half of its class in which `rank` does its part of tree `number`."""
        tree = self.layout.trees[number]
        if tree.phase == "reduce":
            return 0
        if number in self._begun:
            own = rank == tree.root or (
                tree.parent[rank] == tree.root and self._silent(number, rank)
            )
            return 0 if own else self._last
        return self._last

    def _lane(self, number: int, peer: int) -> int:
        return 2 * peer + self._half(number, peer)

    def _near(self, rank: int, peer: int) -> bool:
        return self.boxes[rank] == self.boxes[peer]

    def _silent(self, number: int, child: int) -> bool:
        """Whether a leaf and its parent, of one box, need no signals but their handshakes."""
        parent = self.layout.trees[number].parent[child]
        return not self._children[number][child] and self._near(child, parent)

    def _shakes(self, number: int, child: int) -> tuple[bool, bool, bool, bool]:
        """Handshakes of a child with its parent: ready to and from it, done to and from it."""
        tree = self.layout.trees[number]
        near, silent = self._near(child, tree.parent[child]), self._silent(number, child)
        if tree.phase == "broadcast":
            return not self._all, False, not near, silent
        if self._all:
            return silent, False, False, False
        # in groups, the thread block that writes first is not the one that its reader talks to
        own = (number, child) not in self._lent and not self.groups[number].further(child)
        if near and not silent and own:
            return False, True, False, False
        lends = self._lent.get((number, tree.parent[child])) == child
        return silent, lends, False, True

    def _meet(
        self, draft: _Draft, number: int, rank: int, children: Sequence[int], *, main: bool
    ) -> None:
        """Shakes hands with the children, and in the main group with the parent."""
        for child in children:
            to, into, done, said = self._shakes(number, child)
            draft.shake(self._lane(number, child), (into, to, said, done))
        parent = self.layout.trees[number].parent[rank]
        if main and parent >= 0:
            draft.shake(self._lane(number, parent), self._shakes(number, rank))

    def _broadcast(
        self, draft: _Draft, number: int, group: int, rank: int, children: Sequence[int]
    ) -> None:
        tree, groups = self.layout.trees[number], self.groups[number]
        main = group == groups.main[rank]
        self._meet(draft, number, rank, children, main=main)
        further = [p for p in groups.further(rank) if (number, rank, p) in self._gates]
        gates = [self._gates[number, rank, p] for p in further]
        if not main:
            draft.acquired = [self._gates[number, rank, group]] if group in further else []
        elif rank != tree.root:
            if self._silent(number, rank):
                return
            draft.waits = [self._lane(number, tree.parent[rank])]
            draft.released = gates
        elif number in self._taken:
            draft.acquired = [self._taken[number]]
        elif self._all:
            draft.released = gates
        self._hand_down(draft, number, rank, children)
        if main and rank == tree.root and not self._all:
            # in place this changes nothing; out of place nobody reads it but the caller
            out = self.layout.output(rank, tree.first, tree.count)
            assert draft.source is not None
            draft.copy = [Instruction(Op.COPY, (draft.source,), (out,))]

    def _hand_down(self, draft: _Draft, number: int, rank: int, children: Sequence[int]) -> None:
        tree, layout = self.layout.trees[number], self.layout
        first, count = tree.first, tree.count
        own = layout.input if rank == tree.root and not self._all else layout.output
        draft.source = own(rank, first, count)
        for child in children:
            lane = self._lane(number, child)
            draft.puts[lane] = ref_at(layout.output(child, first, count), child)
            if self._near(rank, child) and not self._silent(number, child):
                draft.told.append(lane)

    def _reduce(
        self, draft: _Draft, number: int, group: int, rank: int, children: Sequence[int]
    ) -> None:
        tree, groups = self.layout.trees[number], self.groups[number]
        main, chain = group == groups.main[rank], groups.chain(rank)
        self._meet(draft, number, rank, children, main=main)
        if groups.children[rank]:
            place = chain.index(group)
            if place:
                draft.acquired = [self._gates[number, rank, chain[place - 1]]]
            draft.waits = [self._lane(number, c) for c in children if not self._silent(number, c)]
            total = self._totals[number, rank]
            base = total if place else self.layout.input(rank, tree.first, tree.count)
            near = [c for c in children if self._near(rank, c)]
            slots = [self._slots[number, c] for c in children if c not in near]
            partial = [ref_at(self._partial(number, c), c) for c in near]
            draft.sums = self._sum(total, base, slots, partial)
        if not main:
            draft.released = [self._gates[number, rank, group]]
        elif rank == tree.root:
            draft.released = self._handed.get(number, [])
            if number in self._fused:
                self._begin(draft, self._fused[number], rank)
        elif not self._near(rank, tree.parent[rank]):
            draft.source = self._partial(number, rank)
            slot = ref_at(self._slots[number, rank], tree.parent[rank])
            draft.puts = {self._lane(number, tree.parent[rank]): slot}
        elif not self._silent(number, rank):
            draft.told = [self._lane(number, tree.parent[rank])]

    def _begin(self, draft: _Draft, down: int, rank: int) -> None:
        """The root's sum is put to near children by the operation that ends it."""
        children = self._children[down][rank]
        self._meet(draft, down, rank, children, main=False)
        self._hand_down(draft, down, rank, children)
        lanes = {self._lane(down, c) for c in children if self._near(rank, c)}
        if lanes:
            last = draft.sums[-1]
            op = Op.READ_REDUCE_PUT if last.op is Op.READ_REDUCE else Op.REDUCE_PUT
            puts = [ref for lane, ref in draft.puts.items() if lane in lanes]
            draft.sums[-1] = Instruction(op, last.src, (*last.dst, *puts))
        draft.puts = {lane: ref for lane, ref in draft.puts.items() if lane not in lanes}

    def _partial(self, number: int, rank: int) -> Ref:
        """Where the partial sum of `rank` lies when it is complete."""
        tree = self.layout.trees[number]
        own = self._totals.get((number, rank))
        return own or self.layout.input(rank, tree.first, tree.count)

    def _sum(
        self, total: Ref, base: Ref, local: Sequence[Ref], near: Sequence[Ref]
    ) -> list[Instruction]:
        """total = base + local + near, where near ones are read at peers.

        The kernel takes one local operand beside the remote ones, so local ones are added first.
        An operation takes two operands more than it may have peers.
        """
        most = self.target.peers
        steps: list[Instruction] = []
        for op, refs, size in ((Op.REDUCE_TO, local, most + 1), (Op.READ_REDUCE, near, most)):
            for low in range(0, len(refs), size):
                steps += [NOP] * bool(steps)
                steps.append(Instruction(op, (base, *refs[low : low + size]), (total,)))
                base = total
        return steps

    # --- instructions

    def _write_block(
        self,
        draft: _Draft,
        rank: int,
        key: tuple[bool, int, int],
        before: Sequence[int],
        after: Sequence[int],
        chunks: int,
    ) -> Work:
        """The work of a draft; `before`, `after`: semaphores around the pipeline."""
        body = self._body(draft, self._inside[rank])
        first = [*self._semaphores(Op.ACQUIRE, before), NOP] if before else []
        last = [NOP, *self._semaphores(Op.RELEASE, after)] if after else []
        shakes = Shakes(*draft.shakes)
        lanes, remote = shakes[0] | shakes[1] | shakes[2] | shakes[3], 0
        for i in body:
            for x in i.channels:
                lanes |= 1 << x
            for ref in (*i.src, *i.dst):
                if ref.rank is not None:
                    remote |= 1 << 3 * ref.rank + BUFFERS.index(ref.buffer)
        if not body:
            return Work((), 0, remote, lanes, shakes)
        pipe = Pipe(key, tuple(first), tuple(body), tuple(last), chunks)
        return Work((pipe,), len(first) + 1 + len(body) + len(last), remote, lanes, shakes)

    def _body(self, draft: _Draft, near: int) -> list[Instruction]:
        """Waiting, adding up, and handing on, with a barrier between each.

        Proxies keep order, so need none before their signal.
        """
        peers = self.target.peers
        puts: list[Instruction] = []
        for op, inside in ((Op.PUT_SIGNAL, 0), (Op.PUT, 1)) if draft.puts else ():
            for some in batches([x for x in draft.puts if near >> x & 1 == inside], peers):
                assert draft.source is not None
                to = tuple(draft.puts[x] for x in some)
                puts.append(Instruction(op, (draft.source,), to, channels=some))
        if draft.told and puts and puts[-1].op is Op.PUT:
            puts.append(NOP)
        stages = (
            [
                *sync(Op.WAIT, draft.waits, near, peers),
                *self._semaphores(Op.ACQUIRE, draft.acquired),
            ],
            draft.sums,
            [
                *self._semaphores(Op.RELEASE, draft.released),
                *puts,
                *sync(Op.SIGNAL, draft.told, near, peers),
            ],
        )
        body: list[Instruction] = []
        for stage in stages:
            body += [NOP] * bool(body and stage)
            body += stage
        return body + draft.copy

    def _semaphores(self, op: Op, semaphores: Sequence[int]) -> Iterator[Instruction]:
        for batch in batches(semaphores, self.target.semaphores):
            yield Instruction(op, semaphores=batch)
