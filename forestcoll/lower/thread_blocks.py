"""Thread blocks of onesided programs: which pieces of trees share one.

Pieces are dealt out to classes: a class is one or two thread blocks at every rank.

What goes to a class together is a unit: a piece of a tree, or the main pieces of a reduce and a
broadcast tree of a root that the root begins where it ends the other.

Why nothing gets stuck, whoever shares a thread block: each does its parts in the order of their
keys, the same at every rank, and data flows along it. The first unfinished tree can always go on.

Bundles: trees that go through their pipelines in step: one loop, one wait, one signal for several.
Trees of one root, phase and number of chunks are bundled where they would share a thread block
anyway. Every rank does all of them slice by slice: waits once for all that it needs, moves all
blocks, up to eight in one operation, then signals every peer once.

Nobody waits in a circle, since there is an order of all ranks in which whoever waits, in any of the
trees, comes after the one it waits for: `orderly` makes sure. Trees that are the same between all
ranks need no bundle: layout.py makes one of them, whose neighbouring chunks are one operand. Other
trees cannot share an operand, be their chunks neighbours: a pipeline moves exactly its chunks, and
where the trees differ, ranks would have to signal in other rounds than their peers wait in.

Where a rank only has handshakes in a class (its memory is read or written by others), it needs no
thread block of its own for that: it is hosted by one that has room, so that fewer processors spin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import zip_longest
from typing import Literal, NamedTuple, NoReturn, TypeVar

from forestcoll.common.errors import PlanError
from forestcoll.lower.handshakes import (
    NOP,
    Boxes,
    Shakes,
    kind_of,
    lanes_of,
    near_masks,
    peer_of,
    sync,
)
from forestcoll.lower.layout import Layout, RankTree
from forestcoll.lower.limits import Limits
from forestcoll.lower.pipelines import Emitter, Part
from forestcoll.program import Channel, Instruction, Op, Ref
from forestcoll.program.targets import Target

# --- bundles


T = TypeVar("T")
_JOINED = frozenset({Op.WAIT, Op.SIGNAL, Op.PUT, Op.PUT_SIGNAL, Op.ACQUIRE, Op.RELEASE})


def orderly(trees: Sequence[RankTree], boxes: Boxes) -> bool:
    """Whether no rank waits, over any trees, for one that waits for it."""
    after: dict[int, set[int]] = defaultdict(set)
    for tree in trees:
        inner = set(tree.parent)
        for child, parent in enumerate(tree.parent):
            if parent < 0 or (child not in inner and boxes[child] == boxes[parent]):
                continue  # a leaf of the same box is told at the end
            first, then = (child, parent) if tree.phase == "reduce" else (parent, child)
            after[first].add(then)
    waits = {rank: 0 for ranks in after.values() for rank in ranks}
    for ranks in after.values():
        for rank in ranks:
            waits[rank] += 1
    ready = [rank for rank in after if rank not in waits]
    for rank in ready:
        for then in after.get(rank, ()):
            waits[then] -= 1
            if not waits[then]:
                ready.append(then)
    return not any(waits.values())


def merged(parts: Sequence[Part], near: int, target: Target) -> Part:
    """The parts of one rank in the trees of a bundle as one; `near`: its lanes to its own box."""
    if len(parts) == 1:
        return parts[0]
    stages = [_stages(part.body) for part in parts if part.body]
    told: set[int] = set()  # from the last stage backwards: what is said at last counts for all
    body: list[Instruction] = []
    for column in reversed([*zip_longest(*stages, fillvalue=())]):
        stage = [*_joined([i for some in column for i in some], near, told, target.peers)]
        body = [*stage, *([NOP] * bool(body)), *body]
    first = min(parts, key=lambda part: part.key)
    shakes, lanes, remote = first.shakes, first.lanes, first.remote
    for part in parts:
        shakes, lanes, remote = shakes | part.shakes, lanes | part.lanes, remote | part.remote
    return replace(first, body=tuple(body), shakes=shakes, lanes=lanes, remote=remote)


def _stages(body: Iterable[Instruction]) -> list[list[Instruction]]:
    """The body cut at its barriers."""
    stages: list[list[Instruction]] = [[]]
    for i in body:
        if i.op is Op.NOP:
            stages.append([])
        else:
            stages[-1].append(i)
    return stages


def _joined(
    stage: Sequence[Instruction], near: int, told: set[int], most: int
) -> Iterator[Instruction]:
    """What several trees do between two barriers, in as few operations as can be.

    A peer in the same box is signalled once in all (`told` are those that already are, later), and
    waited for once. Through ports each put has its own signal, and each signal its wait.
    """

    def inside(op: Op) -> dict[int, None]:
        return dict.fromkeys(x for i in stage if i.op is op for x in i.channels if near >> x & 1)

    def outside(op: Op) -> list[int]:
        return [x for i in stage if i.op is op for x in i.channels if not near >> x & 1]

    said = [x for x in inside(Op.SIGNAL) if x not in told]
    told.update(said)
    yield from sync(Op.SIGNAL, said, near, most)
    yield from sync(Op.WAIT, inside(Op.WAIT), near, most)
    for lanes in _different(outside(Op.WAIT), lambda x: x):
        yield from sync(Op.WAIT, lanes, near, most)
    puts = [m for i in stage if i.op is Op.PUT_SIGNAL for m in _moves(i)]
    for some in _different(puts, lambda m: m[2]):
        yield from _put(Op.PUT_SIGNAL, some, most)
    written = [m for i in stage if i.op is Op.PUT for m in _moves(i)]
    for buffer in dict.fromkeys(m[0].buffer for m in written):
        yield from _put(Op.PUT, [m for m in written if m[0].buffer == buffer], most)
    yield from (i for i in stage if i.op not in _JOINED)
    for op in (Op.ACQUIRE, Op.RELEASE):
        yield from (i for i in stage if i.op is op)


def _moves(i: Instruction) -> Iterator[tuple[Ref, Ref, int]]:
    """(source, destination, lane) of all that a put moves."""
    sources = i.src if len(i.src) > 1 else i.src * len(i.dst)
    return zip(sources, i.dst, i.channels, strict=True)


def _put(op: Op, moves: Sequence[tuple[Ref, Ref, int]], most: int) -> Iterator[Instruction]:
    for low in range(0, len(moves), most):
        sources, to, lanes = zip(*moves[low : low + most], strict=True)
        yield Instruction(op, sources[:1] if len({*sources}) == 1 else sources, to, channels=lanes)


def _different(items: Iterable[T], key: Callable[[T], int]) -> list[list[T]]:
    """The items in order, dealt out to lists of which none has two with one key."""
    lists: list[list[T]] = []
    seen: dict[int, int] = defaultdict(int)
    for item in items:
        place = seen[key(item)]
        seen[key(item)] += 1
        if place == len(lists):
            lists.append([])
        lists[place].append(item)
    return lists


# --- units and classes


BUSY = 32
"""Thread blocks of a half at work at a rank, where there are as many trees.

So many channels NCCL has at most; more would take processors from computation.
"""
Place = tuple[int, int]  # rank, half
Members = list[tuple[int, int]]  # (tree, piece)


class Share(NamedTuple):
    """What some parts take of a thread block; a tuple for speed."""

    steps: int
    lanes: int
    remote: int
    shakes: Shakes
    busy: bool  # something to do besides handshakes

    def plus(self, other: Share) -> Share:
        """Both together."""
        return Share(
            self.steps + other.steps,
            self.lanes | other.lanes,
            self.remote | other.remote,
            self.shakes | other.shakes,
            self.busy or other.busy,
        )


NOTHING = Share(0, 0, 0, Shakes(), busy=False)


@dataclass(frozen=True, slots=True)
class Unit:
    """Pieces that must share a class: per rank and half that takes part its parts."""

    root: int
    weight: int
    parts: dict[Place, tuple[Part, ...]]
    shares: dict[Place, Share]


class Class:
    """Units that share thread blocks at every rank, and what they take there so far."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.weight = 0
        self.parts: dict[Place, list[Part]] = defaultdict(list)
        self.shares: dict[Place, Share] = {}

    def add(self, unit: Unit) -> None:
        """Takes the unit in."""
        self.weight += unit.weight
        for place, parts in unit.parts.items():
            self.parts[place] += parts
            self.shares[place] = self.shares.get(place, NOTHING).plus(unit.shares[place])


class Room:
    """A target's limits for thread blocks, over sets of lanes and remote buffers."""

    def __init__(self, boxes: Boxes, target: Target) -> None:
        self.target = target
        self.near = near_masks(boxes)  # per rank its lanes to the own box
        inside: dict[str, int] = defaultdict(int)
        for rank, box in enumerate(boxes):
            inside[box] |= 7 << 3 * rank
        self._buffers = [inside[box] for box in boxes]

    def steps(self, rank: int, share: Share) -> int:
        """All operations of a thread block."""
        return share.steps + share.shakes.steps(self.near[rank], self.target.peers)

    def obstacle(self, unit: Unit, candidate: Class) -> tuple[int, str, int, int] | None:
        """The rank, limit, figure and bound that keep the unit out of the class, or None."""
        target = self.target
        for place, own in unit.shares.items():
            rank = place[0]
            there = candidate.shares.get(place)
            share = own if there is None else there.plus(own)
            steps = self.steps(rank, share)
            if steps > target.steps:
                return rank, "operations in one thread block", steps, target.steps
            figure = widest(share.lanes, self.near[rank])
            if figure > target.channels:
                what = "channels of one kind in one thread block"
                return rank, what, figure, target.channels
            figure = widest(share.remote, self._buffers[rank])
            if figure > target.remote_buffers:
                what = "remote buffers in one thread block"
                return rank, what, figure, target.remote_buffers
        return None


def widest(mask: int, near: int) -> int:
    """How many of a set are near, or how many are not: the larger figure."""
    inside = (mask & near).bit_count()
    return max(inside, mask.bit_count() - inside)


def units(layout: Layout, emitter: Emitter, room: Room, most: int = 1) -> list[Unit]:
    """All pieces of all trees, in units, root by root; up to `most` trees are bundled.

    Bundles are of trees in one piece, and for an allreduce of pairs of trees that carry the same.
    """
    found: list[Unit] = []
    open_: dict[tuple[int, int, bool, bool], tuple[int, list[Members]]] = {}  # place, its trees
    for members in _members(layout, emitter, room):
        trees = [layout.trees[number] for number, _ in members]
        key = (trees[0].root, trees[0].count, len(trees) > 1, trees[0].phase == "reduce")
        whole = all(emitter.bundled(number) for number, _ in members)
        place, others = open_.get(key, (len(found), []))
        if others and whole and len(others) < most:
            together = [*others, members]
            unit = _unit(layout, emitter, room, together)
            if _in_step(layout, emitter, together) and room.obstacle(unit, Class(0)) is None:
                found[place] = unit
                others.append(members)
                continue
        if whole:
            open_[key] = (len(found), [members])
        found.append(_unit(layout, emitter, room, [members]))
    return found


def _members(layout: Layout, emitter: Emitter, room: Room) -> Iterator[Members]:
    """The pieces of every unit without bundles, and how the trees of an allreduce meet."""
    for together in overlapping(layout):
        mains = [[(number, 0)] for number in together]
        if len(together) == 2 and _coincide(layout, together):
            up, down = sorted(together, key=lambda i: layout.trees[i].phase, reverse=True)
            if emitter.fuse(up, down):
                pair = [(up, 0), (down, 0)]
                if room.obstacle(_unit(layout, emitter, room, [pair]), Class(0)) is None:
                    mains = [pair]
                else:
                    emitter.part_ways(up)
            if len(mains) > 1:
                emitter.hand_over(up, down)
        elif len(together) > 1:
            emitter.queue(together)
        yield from mains
        for number in together:
            for piece in range(1, emitter.pieces[number].count):
                yield [(number, piece)]


def _in_step(layout: Layout, emitter: Emitter, together: Iterable[Members]) -> bool:
    """Whether the trees can go through their pipelines in step, each phase by itself."""
    trees = [layout.trees[number] for members in together for number, _ in members]
    return all(
        orderly([t for t in trees if t.phase == phase], emitter.boxes)
        for phase in ("reduce", "broadcast")
    )


def deal(wanted: Sequence[Unit], room: Room, most: int, busy: int = BUSY) -> list[Class] | Unit:
    """The units dealt out to at most `most` classes, the lightest class first.

    Or a unit that finds no room. There are as many classes as keep `busy` thread blocks of a half
    at work at the rank with the most to do, and more where those cannot hold the units.
    """
    most = min(len(wanted), most)
    number = min(most, _enough(wanted, busy))
    while True:
        classes = [Class(j) for j in range(number)]
        order = [(0, j) for j in range(number)]
        stuck = next((u for u in wanted if not _place(u, classes, order, room)), None)
        if stuck is None:
            return [c for c in classes if c.parts]
        if number == most:
            return stuck
        number = min(most, number + max(1, number // 4))


def refuse(stuck: Unit, wanted: Sequence[Unit], limits: Limits, room: Room) -> NoReturn:
    """Raises the PlanError of units that find no room."""
    target = limits.target
    alone = room.obstacle(stuck, Class(0))
    if alone is not None:
        rank, what, figure, limit = alone
        where = f"{limits.rank(rank)} in a tree of root {stuck.root}"
        raise limits.refuse(where, what, figure, limit)
    raise PlanError(
        f"{limits.title}: {len(wanted)} trees need more than {target.thread_blocks} thread blocks "
        f"of {target.steps} operations and {target.channels} channels of a kind, all that "
        f"{target.name} holds; {limits.hint}"
    )


def overlapping(layout: Layout) -> Iterator[list[int]]:
    """Groups of trees with chunks in common, directly or through others."""
    order = sorted(range(len(layout.trees)), key=lambda i: layout.trees[i].first)
    group: list[int] = []
    end = 0
    for number in order:
        tree = layout.trees[number]
        if group and tree.first >= end:
            yield group
            group = []
        group.append(number)
        end = max(end, tree.first + tree.count)
    if group:
        yield group


def _coincide(layout: Layout, together: Iterable[int]) -> bool:
    return len({(layout.trees[i].first, layout.trees[i].count) for i in together}) == 1


def _enough(wanted: Sequence[Unit], busy: int) -> int:
    work: dict[Place, int] = defaultdict(int)
    for unit in wanted:
        for place, share in unit.shares.items():
            work[place] += share.busy
    return max(1, len(wanted) * busy // max(busy, *work.values()))


def _unit(layout: Layout, emitter: Emitter, room: Room, bundle: Sequence[Members]) -> Unit:
    alike: dict[tuple[Place, bool], list[Part]] = defaultdict(list)
    members = [member for some in bundle for member in some]
    for number, piece in members:
        for rank, part in emitter.parts(number, piece):
            alike[(rank, emitter.half(number, rank)), part.key[0]].append(part)
    parts: dict[Place, list[Part]] = defaultdict(list)
    for (place, _), some in alike.items():
        parts[place].append(merged(some, room.near[place[0]], room.target))
    shares = {}
    for place, some in parts.items():
        share = NOTHING
        for part in some:
            busy = bool(part.steps)
            share = share.plus(Share(part.steps, part.lanes, part.remote, part.shakes, busy))
        shares[place] = share
    return Unit(
        root=layout.trees[members[0][0]].root,
        weight=sum(layout.trees[number].count for number, _ in members),
        parts={place: tuple(some) for place, some in parts.items()},
        shares=shares,
    )


def _place(unit: Unit, classes: list[Class], order: list[tuple[int, int]], room: Room) -> bool:
    """Whether some class has room for the unit, which it then holds.

    `order`: a heap of (weight, number) of all classes, the lightest on top.
    """
    passed: list[tuple[int, int]] = []
    try:
        while order:
            weight, number = heappop(order)
            candidate = classes[number]
            if room.obstacle(unit, candidate) is None:
                candidate.add(unit)
                passed.append((candidate.weight, number))
                return True
            passed.append((weight, number))
        return False
    finally:
        for entry in passed:
            heappush(order, entry)


# --- thread blocks of a rank


Block = tuple[int, int]  # class, half


@dataclass(slots=True)
class Host:
    """A thread block to be: the blocks that it does, and how much of it they take."""

    blocks: list[Block] = field(default_factory=list)
    steps: int = 0
    near: int = 0  # channels
    far: int = 0


def hosts(classes: Sequence[Class], rank: int, room: Room) -> list[Host]:
    """The thread blocks of a rank, busy ones first; each class and half is in one of them."""
    found: list[Host] = []
    idle: list[Host] = []
    for half in (0, 1):
        for number, members in enumerate(classes):
            share = members.shares.get((rank, half))
            if share is None:
                continue
            inside = (share.lanes & room.near[rank]).bit_count()
            outside = share.lanes.bit_count() - inside
            alone = Host([(number, half)], room.steps(rank, share), inside, outside)
            (found if share.busy else idle).append(alone)
    for guest in idle:
        host = next((h for h in found if _fits(h, guest, room)), None)
        if host is None:
            found.append(guest)
        else:
            host.blocks += guest.blocks
            host.steps += guest.steps
            host.near += guest.near
            host.far += guest.far
    return found


def _fits(host: Host, guest: Host, room: Room) -> bool:
    return (
        host.steps + guest.steps <= room.target.steps
        and max(host.near + guest.near, host.far + guest.far) <= room.target.channels
    )


class Channels:
    """Numbers of all thread blocks' channels: the n-th from i to j is the n-th from j to i."""

    def __init__(
        self, classes: Sequence[Class], blocks: Sequence[Sequence[Host]], boxes: Boxes
    ) -> None:
        self._boxes = boxes
        self._host = {  # rank, class, half -> its thread block
            (rank, *block): b
            for rank, found in enumerate(blocks)
            for b, host in enumerate(found)
            for block in host.blocks
        }
        pairs: dict[Place, set[tuple[int, int]]] = defaultdict(set)
        for number, members in enumerate(classes):
            for (rank, half), share in members.shares.items():
                own = self._host[rank, number, half]
                for lane in lanes_of(share.lanes):
                    peer = peer_of(lane)
                    if rank < peer:
                        pairs[rank, peer].add((own, self._host[peer, number, lane & 1]))
        self._index = {
            (*ends, *between): index
            for ends, ways in pairs.items()
            for index, between in enumerate(sorted(ways))
        }

    def channel(self, rank: int, block: Block, lane: int) -> Channel:
        """The channel that a lane is for the thread block of `rank` that does `block`."""
        peer, number = peer_of(lane), block[0]
        own, other = self._host[rank, *block], self._host[peer, number, lane & 1]
        key = (rank, peer, own, other) if rank < peer else (peer, rank, other, own)
        kind: Literal["memory", "port"] = kind_of(rank, peer, self._boxes)
        return Channel(peer, kind, self._index[key])
