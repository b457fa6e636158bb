"""Handshakes of onesided programs, on lanes: which thread block of which peer a channel leads to.

Every class of trees has up to two thread blocks at a rank, its halves: 0 and, where an allreduce
broadcasts beside its sums, 1. A lane is `2 * peer + half`: the peer's thread block of that half in
the same class. Sets of lanes are the bits of an integer.

Four handshakes make launch after launch safe, each on the lanes that need it and no others:

* ready   at the beginning, relaxed: my launch has begun; what my caller owns may be used now
* done    at the end: what I read of you, wrote to you, or got from you through a proxy is finished

A piece of a tree is some of its edges; every edge is in one. A rank's main piece is the one with
the edge to its parent (the root's is piece 0). Where a rank has too many children for its main
piece, further pieces take them, each in a thread block of its own; semaphores join the pieces at
that rank. Piece numbers grow from the root outwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import islice
from operator import or_
from typing import Literal, NamedTuple

from forestcoll.lower.layout import RankTree, from_next
from forestcoll.program import Instruction, Op
from forestcoll.program.targets import Target

# --- pieces of trees whose nodes have more neighbours than a thread block has channels


Kind = Literal["memory", "port"]
KINDS: tuple[Kind, ...] = ("memory", "port")
Boxes = Sequence[str]  # per rank the box that holds it
Apart = Literal["no", "inner", "all"]
"""Ranks of which every child is in a piece of its own: none, all but the root, all."""


def kind_of(rank: int, peer: int, boxes: Boxes) -> Kind:
    """Memory channels inside a box, port channels (a proxy, a network) between boxes."""
    return "memory" if boxes[rank] == boxes[peer] else "port"


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of one tree."""

    count: int
    main: tuple[int, ...]  # per rank
    children: tuple[dict[int, tuple[int, ...]], ...]  # per rank: piece -> its children there

    def members(self, piece: int) -> list[int]:
        """Ranks that have an edge in the piece (or all there is, where the tree has one piece)."""
        return [
            rank
            for rank, main in enumerate(self.main)
            if main == piece or piece in self.children[rank]
        ]

    def further(self, rank: int) -> list[int]:
        """The pieces at `rank` besides its main one."""
        return sorted(p for p in self.children[rank] if p != self.main[rank])

    def chain(self, rank: int) -> list[int]:
        """The pieces at `rank` in the order in which a sum goes through them: the main one last."""
        return [*reversed(self.further(rank)), self.main[rank]]


def cut(tree: RankTree, boxes: Boxes, target: Target, apart: Apart = "no") -> Pieces:
    """One piece, unless a rank has more neighbours of one kind than a thread block has channels.

    Such a rank keeps as many children as one operation serves in its main piece, and as many in
    each further one: the thread blocks then have room for other trees as well. `apart`: whose
    children are in a piece each.
    """
    most = max(1, min(target.peers, target.channels // 2))
    children = tree.children()
    main = [0] * len(children)
    split: list[dict[int, tuple[int, ...]]] = [{} for _ in children]
    count = 1
    for rank in tree.order:
        peers = children[rank] + ([tree.parent[rank]] if rank != tree.root else [])
        kinds = [kind_of(rank, p, boxes) for p in peers]
        wide = max(map(kinds.count, KINDS)) > target.channels
        groups: dict[int, list[int]] = defaultdict(list)
        if apart == "all" or (apart == "inner" and rank != tree.root):
            groups.update((place, [c]) for place, c in enumerate(from_next(children[rank], rank)))
        for kind in () if groups else KINDS:
            left = (c for c in from_next(children[rank], rank) if kind_of(rank, c, boxes) == kind)
            place = 0
            while some := list(islice(left, most if wide else len(peers))):
                groups[place] += some
                place += 1
        for place, group in groups.items():
            piece = main[rank] if place == 0 else count + place - 1
            split[rank][piece] = tuple(from_next(group, rank))
            for child in group:
                main[child] = piece
        count += max(0, len(groups) - 1)
    return Pieces(count, tuple(main), tuple(split))


# --- handshakes


NOP = Instruction(Op.NOP)


def lane(peer: int, half: int) -> int:
    """The lane to thread block `half` of `peer`."""
    return 2 * peer + half


def peer_of(number: int) -> int:
    """The rank that a lane leads to."""
    return number >> 1


@lru_cache(maxsize=2**14)
def lanes_of(mask: int) -> tuple[int, ...]:
    """Returns the lanes of a set, ascending."""
    lanes = []
    while mask:
        low = mask & -mask
        lanes.append(low.bit_length() - 1)
        mask ^= low
    return tuple(lanes)


def near_masks(boxes: Boxes) -> list[int]:
    """Per rank the set of lanes to peers in its own box: memory channels, the others are ports."""
    inside: dict[str, int] = {}
    for rank, box in enumerate(boxes):
        inside[box] = inside.get(box, 0) | 3 << 2 * rank
    return [inside[box] & ~(3 << 2 * rank) for rank, box in enumerate(boxes)]


class Shakes(NamedTuple):
    """Handshakes of a thread block, each a set of lanes; a tuple for speed."""

    ready_to: int = 0  # who is told that the launch has begun
    ready_from: int = 0  # whose launch is waited for
    done_to: int = 0
    done_from: int = 0

    def __or__(self, other: Shakes) -> Shakes:
        return Shakes(
            self.ready_to | other.ready_to,
            self.ready_from | other.ready_from,
            self.done_to | other.done_to,
            self.done_from | other.done_from,
        )

    def renumbered(self, number: Mapping[int, int]) -> Shakes:
        """The same with channels in place of lanes; several lanes may be one channel."""

        def new(mask: int) -> int:
            return reduce(or_, (1 << number[x] for x in lanes_of(mask)), 0)

        return Shakes(
            new(self.ready_to), new(self.ready_from), new(self.done_to), new(self.done_from)
        )

    @property
    def lanes(self) -> int:
        """All lanes that any of the four uses."""
        return self.ready_to | self.ready_from | self.done_to | self.done_from

    def steps(self, near: int, peers: int) -> int:
        """Operations that they take: a kind of channel and `peers` of it an operation."""

        found = bool(self.ready_from) + bool(self.done_to)  # barriers
        for mask in self:
            if mask:
                inside = (mask & near).bit_count()
                found += -(-inside // peers) - (inside - mask.bit_count()) // peers
        return found


def sync(op: Op, numbers: Iterable[int], near: int, peers: int) -> Iterator[Instruction]:
    """`op` on all these lanes (or channels), of which those in `near` are memory ones.

    One kind, and `peers` of it, an operation.
    """
    numbers = sorted(numbers)
    for inside in (True, False):
        some = [x for x in numbers if bool(near >> x & 1) is inside]
        for batch in batches(some, peers):
            yield plain(op, batch)


def batches(items: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """The items in groups of at most `size`."""
    for low in range(0, len(items), size):
        yield tuple(items[low : low + size])


def prologue(shakes: Shakes, near: int, peers: int) -> list[Instruction]:
    """My launch has begun; then the same of those whose memory this thread block uses."""
    first = [*sync(Op.RELAXED_SIGNAL, lanes_of(shakes.ready_to), near, peers)]
    if shakes.ready_from:
        first += [*sync(Op.RELAXED_WAIT, lanes_of(shakes.ready_from), near, peers), NOP]
    return first


def epilogue(shakes: Shakes, near: int, peers: int) -> list[Instruction]:
    """What is done here is said; then what others do here is awaited."""
    last: list[Instruction] = []
    if shakes.done_to:
        # the barrier: all threads have read, written and waited before one of them says so
        last += [NOP, *sync(Op.SIGNAL, lanes_of(shakes.done_to), near, peers)]
    last += sync(Op.WAIT, lanes_of(shakes.done_from), near, peers)
    return last


@lru_cache(maxsize=4096)
def plain(op: Op, channels: tuple[int, ...]) -> Instruction:
    """Signals and waits: there are few different ones."""
    return Instruction(op, channels=channels)
