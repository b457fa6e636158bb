"""What a thread block repeats, slice by slice, for one piece of a tree (MSCCL++).

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

from forestcoll.lower.handshakes import (
    KINDS,
    NOP,
    Boxes,
    Pieces,
    Shakes,
    batches,
    kind_of,
    lane,
    lanes_of,
    near_masks,
    sync,
)
from forestcoll.lower.layout import Layout, RankTree, from_next, ref_at
from forestcoll.program import Buffer, Instruction, Op, Ref
from forestcoll.program.targets import Target

# --- partial sums


class Places:
    """Refs of all partial sums; `scratch` counts the chunks that each rank needs for them."""

    def __init__(self, layout: Layout, pieces: Sequence[Pieces], boxes: Boxes) -> None:
        self._layout = layout
        self.scratch = [0] * layout.n
        self.children = [
            [from_next(found, rank) for rank, found in enumerate(tree.children())]
            for tree in layout.trees
        ]
        self._slots: dict[tuple[int, int], Ref] = {}  # (tree, child in another box): at its parent
        self._totals: dict[tuple[int, int], Ref] = {}
        self._lent: dict[tuple[int, int], int] = {}  # (tree, rank): the child whose place it uses
        for number, tree in enumerate(layout.trees):
            if tree.phase == "reduce":
                self._place(number, tree, pieces[number], boxes)

    def slot(self, number: int, child: int) -> Ref:
        """Where the parent of `child`, in another box, gets its partial sum."""
        return self._slots[number, child]

    def total(self, number: int, rank: int) -> Ref:
        """Where `rank`, which has children, adds up its partial sum."""
        return self._totals[number, rank]

    def partial(self, number: int, rank: int) -> Ref:
        """Where the partial sum of `rank` lies when it is complete."""
        found = self._totals.get((number, rank))
        if found is not None:
            return found
        tree = self._layout.trees[number]
        return self._layout.input(rank, tree.first, tree.count)

    def lent(self, number: int, rank: int) -> bool:
        """Whether the partial sum of `rank` lies where a child of another box put its own."""
        return (number, rank) in self._lent

    def lends(self, number: int, child: int) -> bool:
        """Whether its parent adds up where `child`, of another box, put its partial sum."""
        parent = self._layout.trees[number].parent[child]
        return self._lent.get((number, parent)) == child

    def _place(self, number: int, tree: RankTree, pieces: Pieces, boxes: Boxes) -> None:
        layout, children = self._layout, self.children[number]
        for rank in tree.order:
            far = [c for c in children[rank] if kind_of(rank, c, boxes) == "port"]
            for child in far:
                self._slots[number, child] = self._scratch(rank, tree.count)
            if not children[rank]:
                continue
            if rank == tree.root or layout.collective.two_phases:
                self._totals[number, rank] = layout.output(rank, tree.first, tree.count)
                continue
            # what is added up first may be overwritten by the sum
            first = pieces.children[rank].get(pieces.chain(rank)[0], ())
            lender = next((c for c in first if c in far), None)
            if lender is None:
                self._totals[number, rank] = self._scratch(rank, tree.count)
            else:
                self._totals[number, rank] = self._slots[number, lender]
                self._lent[number, rank] = lender

    def _scratch(self, rank: int, count: int) -> Ref:
        offset = self.scratch[rank]
        self.scratch[rank] += count
        return Ref(Buffer.SCRATCH, offset, count)


# --- what a rank does


BUFFERS = (Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH)


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank does for one piece, and what that takes of a thread block's limits.

    Parts of a thread block are done in the order of their keys, the order in which data flows. A
    part without a body has handshakes only: others read or write its rank's memory. Sets are bits
    of an integer: lanes, and remote buffers (3 * peer + buffer).
    """

    key: tuple[bool, int, int]  # broadcast after reduce; first chunk; piece (a sum's: backwards)
    before: tuple[Instruction, ...]
    body: tuple[Instruction, ...]  # of the pipeline
    after: tuple[Instruction, ...]
    chunks: int
    shakes: Shakes
    lanes: int
    remote: int

    @property
    def steps(self) -> int:
        """Operations, the pipeline itself included; handshakes are shared and not counted."""
        return len(self.before) + len(self.after) + (1 + len(self.body) if self.body else 0)


@dataclass(slots=True)
class Draft:
    """A part in the making."""

    rank: int
    near: int  # the rank's lanes to its own box
    target: Target
    before: list[Instruction] = field(default_factory=list)
    body: list[Instruction] = field(default_factory=list)
    after: list[Instruction] = field(default_factory=list)
    ready_to: int = 0
    ready_from: int = 0
    done_to: int = 0
    done_from: int = 0

    def shake(
        self, *, ready_to: int = 0, ready_from: int = 0, done_to: int = 0, done_from: int = 0
    ) -> None:
        """Handshakes with these sets of lanes, besides those there are."""
        self.ready_to |= ready_to
        self.ready_from |= ready_from
        self.done_to |= done_to
        self.done_from |= done_from

    def part(self, key: tuple[bool, int, int], chunks: int) -> Part:
        """The part as it is now."""
        shakes = Shakes(self.ready_to, self.ready_from, self.done_to, self.done_from)
        lanes, remote = shakes.lanes, 0
        for i in (*self.before, *self.body, *self.after):
            for x in i.channels:
                lanes |= 1 << x
            for ref in (*i.src, *i.dst):
                if ref.rank is not None:
                    remote |= 1 << 3 * ref.rank + BUFFERS.index(ref.buffer)
        steps = (tuple(self.before), tuple(self.body), tuple(self.after))
        return Part(key, *steps, chunks, shakes, lanes, remote)

    def sync(self, op: Op, lanes: Iterable[int]) -> Iterator[Instruction]:
        """`op` on all the lanes."""
        return sync(op, lanes, self.near, self.target.peers)

    def semaphores(self, op: Op, semaphores: Sequence[int]) -> Iterator[Instruction]:
        """`op` on all the semaphores."""
        for batch in batches(semaphores, self.target.semaphores):
            yield Instruction(op, semaphores=batch)

    def sums(
        self, total: Ref, base: Ref, local: Sequence[Ref], near: Sequence[Ref]
    ) -> list[Instruction]:
        """total = base + local + near, where near ones are read at peers.

        The kernel takes one local operand beside the remote ones, so local ones are added first.
        An operation takes two operands more than it may have peers.
        """
        most = self.target.peers
        steps: list[Instruction] = []
        if local:
            first, rest = local[: most + 1], local[most + 1 :]
            steps.append(Instruction(Op.REDUCE_TO, (base, *first), (total,)))
            for low in range(0, len(rest), most + 1):
                some = rest[low : low + most + 1]
                steps += [NOP, Instruction(Op.REDUCE_TO, (total, *some), (total,))]
            base = total
        for low in range(0, len(near), most):
            steps += [NOP] * bool(steps)
            steps.append(Instruction(Op.READ_REDUCE, (base, *near[low : low + most]), (total,)))
            base = total
        return steps

    def deliver(
        self, source: Ref, to: dict[int, Ref], quiet: frozenset[int] = frozenset()
    ) -> Iterator[Instruction]:
        """Writes `source` to the place of every lane, in turn, then signals all but `quiet` ones.

        Proxies keep order, so need no barrier before their signal.
        """
        inside = [x for x in to if self.near >> x & 1]
        outside = [x for x in to if not self.near >> x & 1]
        for op, lanes in ((Op.PUT_SIGNAL, outside), (Op.PUT, inside)):
            for some in batches(lanes, self.target.peers):
                yield Instruction(op, (source,), tuple(to[x] for x in some), channels=some)
        if told := [x for x in inside if x not in quiet]:
            yield NOP
            yield from self.sync(Op.SIGNAL, told)


# --- pipelines


class Emitter:
    """Writes parts, with lanes in place of channels until the thread blocks are known.

    `halves`: 2 where broadcasts of an allreduce have thread blocks of their own, else 1.
    `semaphores` counts what each rank has needed so far.
    """

    def __init__(
        self,
        layout: Layout,
        pieces: Sequence[Pieces],
        boxes: Boxes,
        target: Target,
        halves: int,
    ) -> None:
        self.layout = layout
        self.pieces = pieces
        self.boxes = boxes
        self.target = target
        self.places = Places(layout, pieces, boxes)
        self._inside = near_masks(boxes)
        self.semaphores = [0] * layout.n
        self._all = layout.collective.two_phases
        self._last = halves - 1 if self._all else 0  # half of broadcasts
        self._fused: dict[int, int] = {}  # reduce tree -> the broadcast tree that its root begins
        self._begun: set[int] = set()  # those broadcast trees
        self._gates: dict[tuple[int, int, int], int] = {}  # (tree, rank, piece): its semaphore
        self._parts: dict[tuple[int, int], list[tuple[int, Part]]] = {}
        self._handed: dict[int, list[int]] = {}  # reduce tree: root's semaphores, every slice
        self._taken: dict[int, int] = {}  # broadcast tree: the root's semaphore, every slice
        self._released: dict[int, list[int]] = defaultdict(list)  # the same, after the last slice
        self._acquired: dict[int, list[int]] = defaultdict(list)
        for number, tree in enumerate(layout.trees):
            for rank in tree.order:
                if rank == tree.root and not layout.collective.reduces:
                    continue  # its input is there all the time
                for piece in pieces[number].further(rank):
                    self._gates[number, rank, piece] = self._semaphore(rank)

    # --- how the halves of an allreduce meet ------------------------------------------------------

    def fuse(self, up: int, down: int) -> bool:
        """Let the root of `up` begin `down`, which carries the same chunks; False if it cannot.

        Not where halves share thread blocks: its children would wait for it later than it tells
        them, and take what it tells them of another tree for that.
        """
        if not self._last:
            return False
        root, target = self.layout.trees[up].root, self.target
        below = self.places.children[down][root]
        near = [c for c in below if self._near(root, c)]
        if self.pieces[up].further(root) or self.pieces[down].further(root):
            return False
        if len(near) > target.peers:
            return False
        self._fused[up] = down
        self._begun.add(down)
        part = self._part(up, 0, root)
        assert part is not None
        kinds = [kind_of(root, x // 2, self.boxes) for x in lanes_of(part.lanes)]
        remote = [kind_of(root, x // 3, self.boxes) for x in lanes_of(part.remote)]
        if (
            max(map(kinds.count, KINDS)) > target.channels
            or max(map(remote.count, KINDS)) > target.remote_buffers
        ):
            self.part_ways(up)
            return False
        return True

    def part_ways(self, up: int) -> None:
        """Takes `fuse` back."""
        for number in (up, self._fused[up]):
            self._parts.pop((number, 0), None)
        self._begun.discard(self._fused.pop(up))

    def hand_over(self, up: int, down: int) -> None:
        """Semaphores of the root between both pipelines: `down` carries the same chunks as `up`."""
        root = self.layout.trees[up].root
        self._taken[down] = self._semaphore(root)
        gates = [self._gates[down, root, p] for p in self.pieces[down].further(root)]
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

    def bundled(self, number: int) -> bool:
        """Whether the tree may go in step with others: in one piece, its begin its own affair."""
        queued = self._released[number] or self._acquired[number]
        return self.pieces[number].count == 1 and not queued

    # --- parts ------------------------------------------------------------------------------------

    def half(self, number: int, rank: int) -> int:
        """The half of its class in which `rank` does its part of tree `number`."""
        tree = self.layout.trees[number]
        if tree.phase == "reduce":
            return 0
        if number in self._begun and (rank == tree.root or self._quiet(number, rank, tree.root)):
            return 0
        return self._last

    def parts(self, number: int, piece: int) -> list[tuple[int, Part]]:
        """Per rank what it does for one piece of tree `number`; who has nothing to do is left out.

        They are kept: how the halves of an allreduce meet must be settled before.
        """
        known = self._parts.get((number, piece))
        if known is None:
            known = [
                (rank, part)
                for rank in self.pieces[number].members(piece)
                if (part := self._part(number, piece, rank)) is not None
            ]
            self._parts[number, piece] = known
        return known

    def _part(self, number: int, piece: int, rank: int) -> Part | None:
        tree, pieces = self.layout.trees[number], self.pieces[number]
        down = tree.phase == "broadcast"
        if down and number in self._begun and rank == tree.root:
            return None
        draft = Draft(rank, self._inside[rank], self.target)
        main = piece == pieces.main[rank]
        children = [*pieces.children[rank].get(piece, ())]
        if not down:
            self._reduce(draft, number, piece, children)
        elif main:
            self._broadcast(draft, number, children)
        else:
            gate = self._gates.get((number, rank, piece))
            if gate is not None:
                draft.body += [Instruction(Op.ACQUIRE, semaphores=(gate,)), NOP]
            self._hand_down(draft, number, children)
        if main and rank == tree.root and self._acquired[number]:
            draft.before += [*draft.semaphores(Op.ACQUIRE, self._acquired[number]), NOP]
        if main and rank == tree.root and self._released[number]:
            draft.after += [NOP, *draft.semaphores(Op.RELEASE, self._released[number])]
        return draft.part((down, tree.first, piece if down else -piece), tree.count)

    # --- broadcast --------------------------------------------------------------------------------

    def _broadcast(self, draft: Draft, number: int, children: list[int]) -> None:
        tree, rank = self.layout.trees[number], draft.rank
        gates = [
            self._gates[number, rank, p]
            for p in self.pieces[number].further(rank)
            if (number, rank, p) in self._gates
        ]
        if rank != tree.root:
            parent = tree.parent[rank]
            above = 1 << self._down_lane(number, parent)
            if not self._all:
                draft.shake(ready_to=above)
            if not self._near(rank, parent):
                draft.shake(done_to=above)
            if self._quiet(number, rank, parent):
                draft.shake(done_from=above)
                return
            draft.body += draft.sync(Op.WAIT, [self._down_lane(number, parent)])
            if children or gates:
                draft.body.append(NOP)
            draft.body += draft.semaphores(Op.RELEASE, gates)
        elif number in self._taken:
            draft.body += [Instruction(Op.ACQUIRE, semaphores=(self._taken[number],)), NOP]
        elif self._all:
            draft.body += draft.semaphores(Op.RELEASE, gates)
        self._hand_down(draft, number, children)
        if rank == tree.root and not self._all:
            # in place this changes nothing; out of place nobody reads it but the caller
            own = self.layout.input(rank, tree.first, tree.count)
            out = self.layout.output(rank, tree.first, tree.count)
            draft.body.append(Instruction(Op.COPY, (own,), (out,)))

    def _hand_down(self, draft: Draft, number: int, children: Sequence[int]) -> None:
        to = self._below(draft, number, children)
        quiet = self._quiet_lanes(number, draft.rank, children)
        draft.body += draft.deliver(self._handed_down(number, draft.rank), to, quiet)

    def _handed_down(self, number: int, rank: int) -> Ref:
        """What `rank` hands down in a broadcast: the root its input, unless that is added up."""
        tree = self.layout.trees[number]
        if rank == tree.root and not self._all:
            return self.layout.input(rank, tree.first, tree.count)
        return self.layout.output(rank, tree.first, tree.count)

    def _below(self, draft: Draft, number: int, children: Sequence[int]) -> dict[int, Ref]:
        """Per lane to a child where it gets the data; and the handshakes with them."""
        tree, rank = self.layout.trees[number], draft.rank
        to: dict[int, Ref] = {}
        for child in children:
            below = self._down_lane(number, child)
            to[below] = ref_at(self.layout.output(child, tree.first, tree.count), child)
            if not self._all:
                draft.shake(ready_from=1 << below)
            if self._quiet(number, child, rank):
                draft.shake(done_to=1 << below)
            if not self._near(rank, child):
                draft.shake(done_from=1 << below)
        return to

    def _quiet(self, number: int, child: int, parent: int) -> bool:
        """Whether `child` is told by its parent at the end only: a leaf in the same box."""
        return (
            not self.places.children[number][child]
            and self.layout.trees[number].parent[child] == parent
            and self._near(child, parent)
        )

    def _quiet_lanes(self, number: int, rank: int, children: Sequence[int]) -> frozenset[int]:
        return frozenset(
            self._down_lane(number, c) for c in children if self._quiet(number, c, rank)
        )

    def _down_lane(self, number: int, peer: int) -> int:
        return lane(peer, self.half(number, peer))

    # --- reduce -----------------------------------------------------------------------------------

    def _reduce(self, draft: Draft, number: int, piece: int, children: list[int]) -> None:
        pieces, tree, rank = self.pieces[number], self.layout.trees[number], draft.rank
        chain = pieces.chain(rank)
        place = chain.index(piece)
        if piece == pieces.main[rank] and rank != tree.root:
            ready, changed, done = self._trust(number, rank)
            above = 1 << lane(tree.parent[rank], 0)
            draft.shake(ready_to=ready * above, ready_from=changed * above, done_from=done * above)
        if pieces.children[rank]:
            waits = self._awaited(draft, number, children)
            draft.body += draft.sync(Op.WAIT, waits)
            if place:
                gate = self._gates[number, rank, chain[place - 1]]
                draft.body.append(Instruction(Op.ACQUIRE, semaphores=(gate,)))
            draft.body += [NOP] * bool(draft.body)
            draft.body += self._sum(draft, number, children, first=place == 0)
        if piece != pieces.main[rank]:
            gate = self._gates[number, rank, piece]
            draft.body += [NOP, Instruction(Op.RELEASE, semaphores=(gate,))]
        elif rank != tree.root:
            self._hand_up(draft, number)
        elif number in self._fused:
            self._begin(draft, self._fused[number])
        elif number in self._handed:
            draft.body += [NOP, *draft.semaphores(Op.RELEASE, self._handed[number])]

    def _awaited(self, draft: Draft, number: int, children: Sequence[int]) -> list[int]:
        """Lanes of the children that are waited for in every slice; handshakes with all of them."""
        waits = []
        for child in children:
            below = lane(child, 0)
            ready, changed, done = self._trust(number, child)
            bit = 1 << below
            draft.shake(ready_from=ready * bit, ready_to=changed * bit, done_to=done * bit)
            if self.places.children[number][child] or not self._near(draft.rank, child):
                waits.append(below)
        return waits

    def _trust(self, number: int, child: int) -> tuple[bool, bool, bool]:
        """Handshakes between a child and its parent in a reduce tree.

        Whether the parent needs to know that the child's launch has begun, the child that the
        parent's has, and the child, at the end, that the parent is done with it.
        """
        near = self._near(child, self.layout.trees[number].parent[child])
        leaf = not self.places.children[number][child]
        if self._all:
            return near and leaf, False, False
        # in pieces, the thread block that writes first is not the one that its reader talks to
        own = not self.places.lent(number, child) and not self.pieces[number].further(child)
        if near and not leaf and own:
            return False, True, False
        return near and leaf, self.places.lends(number, child), True

    def _sum(
        self, draft: Draft, number: int, children: Sequence[int], *, first: bool
    ) -> list[Instruction]:
        tree, rank = self.layout.trees[number], draft.rank
        total = self.places.total(number, rank)
        base = self.layout.input(rank, tree.first, tree.count) if first else total
        near = [c for c in children if self._near(rank, c)]
        steps = draft.sums(
            total,
            base,
            [self.places.slot(number, c) for c in children if c not in near],
            [ref_at(self.places.partial(number, c), c) for c in near],
        )
        down = self._fused.get(number)
        if down is not None and rank == tree.root:
            below = [c for c in self.places.children[down][rank] if self._near(rank, c)]
            if into := self._below(draft, down, below):
                read = steps[-1].op is Op.READ_REDUCE
                op = Op.READ_REDUCE_PUT if read else Op.REDUCE_PUT
                steps[-1] = Instruction(op, steps[-1].src, (total, *into.values()))
        return steps

    def _begin(self, draft: Draft, down: int) -> None:
        """The rest of a broadcast's begin: what leaves the box, and whom to tell inside."""
        rank = draft.rank
        below = self.places.children[down][rank]
        far = [c for c in below if not self._near(rank, c)]
        quiet = self._quiet_lanes(down, rank, below)
        told = [
            self._down_lane(down, c)
            for c in below
            if c not in far and self._down_lane(down, c) not in quiet
        ]
        if far or told:
            draft.body.append(NOP)
        to = self._below(draft, down, far)
        draft.body += draft.deliver(self._handed_down(down, rank), to)
        draft.body += draft.sync(Op.SIGNAL, told)

    def _hand_up(self, draft: Draft, number: int) -> None:
        """Tell the parent, or put the partial sum into its box; nothing where it just reads."""
        tree, rank = self.layout.trees[number], draft.rank
        parent = tree.parent[rank]
        inner = bool(self.places.children[number][rank])
        if inner:
            draft.body.append(NOP)
        if not self._near(rank, parent):
            slot = ref_at(self.places.slot(number, rank), parent)
            draft.body += draft.deliver(self.places.partial(number, rank), {lane(parent, 0): slot})
        elif inner:
            draft.body += draft.sync(Op.SIGNAL, [lane(parent, 0)])

    # --- little things ----------------------------------------------------------------------------

    def _near(self, rank: int, peer: int) -> bool:
        return self.boxes[rank] == self.boxes[peer]

    def _semaphore(self, rank: int) -> int:
        self.semaphores[rank] += 1
        return self.semaphores[rank] - 1
