"""Channels of onesided programs, and operations on several of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal, TypeVar

from forestcoll.program import Instruction, Op

Kind = Literal["memory", "port"]
KINDS: tuple[Kind, ...] = ("memory", "port")
Boxes = Sequence[str]  # per rank the box that holds it
NOP = Instruction(Op.NOP)
T = TypeVar("T")


def kind_of(rank: int, peer: int, boxes: Boxes) -> Kind:
    """Memory channels inside a box, port channels (a proxy, a network) between boxes."""
    return "memory" if boxes[rank] == boxes[peer] else "port"


def batches(items: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    """The items in groups of at most `size`."""
    for low in range(0, len(items), size):
        yield tuple(items[low : low + size])


def sync(op: Op, numbers: Iterable[int], near: int, peers: int) -> Iterator[Instruction]:
    """`op` on all these channels, of which those in the set `near`, bits, are memory ones.

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
