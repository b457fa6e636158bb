"""Channels of onesided programs, and the handshakes that make launch after launch safe.

Every class of trees has up to two thread blocks at a rank, its halves: 0 and, where an allreduce
broadcasts beside its sums, 1. A lane is `2 * peer + half`: the way to the peer's thread block of
that half in the same class. Sets of lanes are the bits of an integer.

Two handshakes stand around a launch, each on the lanes that need it and no others:

* ready   at the beginning, relaxed: my launch has begun; what my caller owns may be used now
* done    at the end: what I read of you, wrote to you, or got from you through a proxy is finished
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, TypeVar

from forestcoll.program import Instruction, Op, Step

Kind = Literal["memory", "port"]
KINDS: tuple[Kind, ...] = ("memory", "port")
Boxes = Sequence[str]  # per rank the box that holds it
NOP = Instruction(Op.NOP)
T = TypeVar("T")


def kind_of(rank: int, peer: int, boxes: Boxes) -> Kind:
    """Memory channels inside a box, port channels (a proxy, a network) between boxes."""
    return "memory" if boxes[rank] == boxes[peer] else "port"


@lru_cache(maxsize=2**14)
def bits_of(mask: int) -> tuple[int, ...]:
    """Returns the members of a set, ascending."""
    members = []
    while mask:
        low = mask & -mask
        members.append(low.bit_length() - 1)
        mask ^= low
    return tuple(members)


def near_masks(boxes: Boxes, width: int = 2) -> list[int]:
    """Per rank the set of lanes to its own box, or of what else every peer has `width` of."""
    inside: dict[str, int] = {}
    for rank, box in enumerate(boxes):
        inside[box] = inside.get(box, 0) | (1 << width) - 1 << width * rank
    return [inside[box] for box in boxes]


def batches(items: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    """The items in groups of at most `size`."""
    for low in range(0, len(items), size):
        yield tuple(items[low : low + size])


def sync(op: Op, numbers: Iterable[int], near: int, peers: int) -> Iterator[Instruction]:
    """`op` on all these lanes (or channels), of which those in `near` are memory ones.

    One kind, and `peers` of it, an operation.
    """
    numbers = sorted(numbers)
    for inside in (1, 0) if numbers else ():
        for batch in batches([x for x in numbers if near >> x & 1 == inside], peers):
            yield _plain(op, batch)


@lru_cache(maxsize=4096)
def _plain(op: Op, channels: tuple[int, ...]) -> Instruction:
    """Signals and waits: there are few different ones."""
    return Instruction(op, channels=channels)


class Shakes(NamedTuple):
    """Handshakes of a thread block, each a set of lanes or of channels."""

    ready_to: int = 0  # who is told that the launch has begun
    ready_from: int = 0  # whose launch is waited for
    done_to: int = 0
    done_from: int = 0

    def steps(self, near: int, peers: int) -> int:
        """Operations that they take: a kind of channel and `peers` of it an operation."""
        steps = bool(self.ready_from) + bool(self.done_to)  # barriers
        for mask in self:
            if mask:
                inside = (mask & near).bit_count()
                steps += -(-inside // peers) - (inside - mask.bit_count()) // peers
        return steps

    def around(self, steps: Iterable[Step], near: int, peers: int) -> Iterator[Step]:
        """What they do before and after the steps of a thread block."""
        yield from sync(Op.RELAXED_SIGNAL, bits_of(self.ready_to), near, peers)
        if self.ready_from:
            yield from sync(Op.RELAXED_WAIT, bits_of(self.ready_from), near, peers)
            yield NOP
        yield from steps
        if self.done_to:
            # the barrier: all threads have read, written and waited before one of them says so
            yield NOP
            yield from sync(Op.SIGNAL, bits_of(self.done_to), near, peers)
        yield from sync(Op.WAIT, bits_of(self.done_from), near, peers)
