"""Handshakes of packet programs: who tells whom that a launch has begun, if packets do not.

In a broadcast or reduce data flow one way, so a writer of packets could get ahead of their readers
by any number of launches. Thread blocks of their own keep it from that:

    at the begin   tell every writer of packets to this rank that this launch has begun here
    at the end     wait for the same of every reader of this rank's packets

A writer that ends launch n + 1 so knows that its readers have read the packets of launch n; the
next launch may write into that half of scratch. None of this stands in the way of the data.

A rank whose proxy sends on what arrived in its scratch is not done with that when its own launch
is: the packets have gone once their reader has them. It tells its writers a second time (`late`),
after its readers have begun the launch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from forestcoll.lower.tree_pieces import KINDS, Boxes, kind_of
from forestcoll.program import PACKETS, Channel, Instruction, Op, ThreadBlock
from forestcoll.program.targets import Target

_NOP = Instruction(Op.NOP)
Pairs = dict[int, set[int]]  # rank -> peers


def shakes(
    ranks: Sequence[Sequence[ThreadBlock]], boxes: Boxes, target: Target
) -> list[tuple[ThreadBlock, ...]]:
    """Per rank the thread blocks to add to those that move the packets."""
    readers: Pairs = defaultdict(set)
    writers: Pairs = defaultdict(set)
    late = set()
    for rank, blocks in enumerate(ranks):
        arrives = _arrivals(ranks, rank)
        for block in blocks:
            for i in block.steps:
                assert isinstance(i, Instruction)  # packets know no pipelines
                for ref in i.dst:
                    if ref.rank is not None:
                        readers[rank].add(ref.rank)
                        writers[ref.rank].add(rank)
                if (
                    i.op is Op.FORWARD_PACKETS
                    and block.channels[i.channels[0]].kind == "port"
                    and i.src[0].offset in arrives
                ):
                    late.add(rank)
    used = _used(ranks)
    return [
        tuple(_blocks(rank, readers[rank], writers[rank], late, boxes, target, used))
        for rank in range(len(ranks))
    ]


def _arrivals(ranks: Sequence[Sequence[ThreadBlock]], rank: int) -> set[int]:
    """Where packets of others arrive in the rank's scratch: first chunks."""
    return {
        ref.offset
        for blocks in ranks
        for block in blocks
        for i in block.steps
        if isinstance(i, Instruction) and i.op in PACKETS
        for ref in i.dst
        if ref.rank == rank
    }


def _used(ranks: Sequence[Sequence[ThreadBlock]]) -> dict[tuple[int, int], int]:
    """Per pair of ranks the first channel number that neither uses to the other."""
    used: dict[tuple[int, int], int] = defaultdict(int)
    for rank, blocks in enumerate(ranks):
        for block in blocks:
            for c in block.channels:
                pair = min(rank, c.peer), max(rank, c.peer)
                used[pair] = max(used[pair], c.index + 1)
    return used


def _blocks(
    rank: int,
    readers: set[int],
    writers: set[int],
    late: set[int],
    boxes: Boxes,
    target: Target,
    used: dict[tuple[int, int], int],
) -> Iterator[ThreadBlock]:
    """The rank's thread blocks: one, unless it has more peers than a thread block has channels."""
    lists = [
        [p for p in sorted(readers | writers) if kind_of(rank, p, boxes) == kind] for kind in KINDS
    ]
    size = target.channels
    batches = [[peers[k : k + size] for k in range(0, len(peers), size)] for peers in lists]
    groups = list(zip_longest(*batches, fillvalue=[]))
    for near, far in groups:
        peers = [*near, *far]
        channels = tuple(
            Channel(p, kind_of(rank, p, boxes), used[min(rank, p), max(rank, p)]) for p in peers
        )

        few = (peers, len(near), target.peers)
        steps = [*_on(Op.RELAXED_SIGNAL, writers, *few), *_on(Op.RELAXED_WAIT, readers, *few)]
        if rank in late:
            together = Instruction(Op.BARRIER, ident=0, group=len(groups))
            steps.append(_NOP if len(groups) == 1 else together)
            steps += _on(Op.SIGNAL, writers, *few)
        steps += _on(Op.WAIT, readers & late, *few)
        yield ThreadBlock(tuple(steps), channels=channels)


def _on(
    op: Op, some: set[int], peers: Sequence[int], near: int, most: int
) -> Iterator[Instruction]:
    """`op` on the channels to these peers: one kind, and at most so many, an operation."""
    places = [k for k, p in enumerate(peers) if p in some]
    for kind in ([k for k in places if k < near], [k for k in places if k >= near]):
        for low in range(0, len(kind), most):
            yield Instruction(op, channels=tuple(kind[low : low + most]))
