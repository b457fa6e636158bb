"""Thread blocks of fifo programs (MSCCL XML): the ends of connections that each owns.

What each does with them is dealt out in `graph/kernel/lowering/fifo_blocks.cpp`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from forestcoll.lower.layout import turn
from forestcoll.lower.limits import Limits


class Port(NamedTuple):
    """One end of a connection on one channel: the unit that a thread block can own."""

    rank: int
    sends: bool
    peer: int
    channel: int


Ports = tuple[Port, ...]
"""What one thread block owns: a receiving end, a sending end, or both on one channel."""


def pair_ports(
    blocks: list[list[Ports]],
    lengths: Sequence[Sequence[int]],
    limits: Limits,
    adders: Sequence[int] = (),
) -> list[list[Ports]]:
    """Returns the blocks, short senders and receivers joined where a rank has too many of them.

    `lengths`: steps of every rank's thread blocks. `adders`: per rank those that only add. Raises
    PlanError where even that leaves too many.
    """
    target = limits.target
    result = []
    for rank, (ports, taken) in enumerate(zip(blocks, lengths, strict=True)):
        # one for local copies, if there are any
        add = adders[rank] if adders else 0
        local = add + min(1, len(taken) - len(ports) - add)
        excess = len(ports) + local - target.thread_blocks
        alone = {p[0]: n for p, n in zip(ports, taken, strict=False) if len(p) == 1}
        pairs = match_ports(alone, target.steps)[:excess] if excess > 0 else []
        if len(pairs) < excess:
            figure = len(ports) + local - len(pairs)
            raise limits.refuse(limits.rank(rank), "thread blocks", figure, target.thread_blocks)
        gone = {p for joined in pairs for p in joined}
        result.append([p for p in ports if p[0] not in gone] + pairs)
    return result


def match_ports(length: dict[Port, int], most: int) -> list[Ports]:
    """Returns receivers and senders of a channel that fit one thread block, the shortest first."""
    matches = []
    for channel in sorted({p.channel for p in length}):
        here = sorted((steps, p) for p, steps in length.items() if p.channel == channel)
        receivers = [(s, p) for s, p in here if not p.sends]
        senders = [(s, p) for s, p in here if p.sends]
        for taken, receiver in receivers:
            # the longest sender that still fits leaves the short ones for long receivers
            place = bisect_right(senders, most - taken, key=lambda entry: entry[0]) - 1
            if place >= 0:
                first = bisect_left(senders, senders[place][0], key=lambda entry: entry[0])
                own = (n for n in range(first, place) if senders[n][1].peer == receiver.peer)
                # what goes to a peer and what comes from it are far apart in the turns: half of
                # all blocks then send first, the others receive
                more, sender = senders.pop(next(own, place))
                matches.append((taken + more, (receiver, sender)))

    def place_of(match: tuple[int, Ports]) -> tuple[int, tuple[bool, int], Ports]:
        """Puts the next ranks first: where few are joined, not all ranks join those to one."""
        taken, joined = match
        return taken, turn(joined[0].peer, joined[0].rank), joined

    return [joined for _, joined in sorted(matches, key=place_of)]
