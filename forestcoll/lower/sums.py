"""Who adds the parts of a sum (fifo programs): one thread block for each part, or for all of them.

Inside a rank a sum of few parts is added up by the thread block that sends it on, and who receives
can take the next message meanwhile; parts of a wide sum by the blocks that receive them, for the
list of the one that sends it on would be full long before theirs. Either makes some lists longer
than others, and a connection whose list is full is cut into several, which take more of the links
that it shares with others than its rate asks for. Thread blocks without a connection that do
nothing but add (`Adders`) leave the others one step for each message.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from forestcoll.lower.messages import Message
from forestcoll.program import Buffer

Sum = tuple[int, Buffer, int]
"""A sum: the rank, and where it lies there."""
LATE = 4
"""Parts of a sum at most that the block adds up that sends it on."""


def sum_of(message: Message) -> Sum | None:
    """The sum that the message is a part of, if it is one."""
    if message.land == "final":
        return None
    return message.dst, message.total.buffer, message.total.offset


def sent_on(message: Message) -> Sum | None:
    """The partial sum that the message sends on, if it is one."""
    source = message.source
    return (message.src, source.buffer, source.offset) if source.buffer is Buffer.SCRATCH else None


def few_parts(messages: list[Message]) -> frozenset[Sum]:
    """Partial sums that the block adds up that sends them on."""
    parts = Counter(key for m in messages if (key := sum_of(m)) and key[1] is Buffer.SCRATCH)
    return frozenset(key for key, count in parts.items() if count <= LATE)


@dataclass(frozen=True, slots=True)
class Adders:
    """Thread blocks that only add: how many each rank has, and which of them adds up a sum."""

    counts: tuple[int, ...]
    number: dict[Sum, int]

    def of(self, message: Message) -> int:
        """Which of its receiver's adders adds a part."""
        return self.number[message.dst, message.total.buffer, message.total.offset]


def share_sums(n: int, messages: list[Message], steps: int) -> Adders:
    """As few as can be where each takes `steps` parts of one tree's sums.

    A tree's sums are dealt out as evenly as they come, and stand in the order of the messages. Were
    those of several trees in one list, all would wait for the one that is late.
    """
    trees: list[dict[int, Counter[Sum]]] = [defaultdict(Counter) for _ in range(n)]
    for message in messages:
        key = sum_of(message)
        if key is not None:
            trees[message.dst][message.instance][key] += 1
    number: dict[Sum, int] = {}
    counts = []
    for own in trees:
        first = 0
        for parts in own.values():
            dealt = _deal(parts, steps)
            number |= {key: first + place for key, place in dealt.items()}
            first += 1 + max(dealt.values())
        counts.append(first)
    return Adders(tuple(counts), number)


def _deal(parts: Counter[Sum], steps: int) -> dict[Sum, int]:
    """Each sum to the adder that has least so far, of the fewest of whom none has over `steps`."""
    least = -(-parts.total() // steps)
    for count in range(least, len(parts) + 1):
        loads = [0] * count
        dealt = {}
        for key, own in parts.items():
            dealt[key] = place = loads.index(min(loads))
            loads[place] += own
        if max(loads) <= steps:
            break
    return dealt
