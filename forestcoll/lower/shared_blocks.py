"""Thread blocks of a rank (onesided): one for each class that keeps it busy, others share one.

Where a rank only has handshakes in a class (its memory is read or written by others), it needs no
thread block of its own for that: it is hosted by one that has room, so that fewer processors spin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from forestcoll.lower.handshakes import lanes_of, peer_of
from forestcoll.lower.thread_blocks import Class, Place, Room
from forestcoll.lower.tree_pieces import Boxes, kind_of
from forestcoll.program import Channel

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
