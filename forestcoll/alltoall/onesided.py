"""Messages -> onesided programs (MSCCL++): hop after hop, a thread block or more for each peer.

A thread block has one channel, to one peer. First both ends say that they are there: the launch
before is then over, and memory free to be written. Then level after level: everything of the level
is put, one signal follows; who receives waits for it; and where data goes on, all thread blocks of
the rank meet, so that what came in over one channel may go out over another. A level's signals wait
for nothing of the same level, so it cannot get stuck. Before scratch is written again, its rank
says that it has sent on what was there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from forestcoll.lower.layout import Layout, local_blocks
from forestcoll.lower.limits import Limits, check_ranks, steps
from forestcoll.lower.messages import Message
from forestcoll.lower.tree_pieces import kind_of
from forestcoll.program import Buffer, Channel, Instruction, Op, RankProgram, Step, ThreadBlock

MOST_LANES = 8
"""Thread blocks between two ranks that are tried."""
TURNS = 3
"""Levels after which scratch is used again: what comes in a level has been sent on after the next,
in the one after that a signal says so, and then others may write there."""

Lane = tuple[int, int, int]  # rank, peer, number


def write_onesided(
    layout: Layout,
    messages: Sequence[Message],
    scratch: Sequence[int],
    boxes: tuple[str, ...],
    limits: Limits,
) -> tuple[RankProgram, ...]:
    """What every rank does, with as few thread blocks for a peer as hold its steps.

    PlanError where a limit cannot be kept.
    """
    lanes = 1
    while True:
        ranks = _Writer(layout, messages, scratch, boxes, lanes).ranks()
        longest = max(steps(block) for rank in ranks for block in rank.thread_blocks)
        if longest <= limits.target.steps or lanes >= MOST_LANES:
            check_ranks(ranks, limits)
            return ranks
        lanes *= 2


class _Writer:
    def __init__(
        self,
        layout: Layout,
        messages: Sequence[Message],
        scratch: Sequence[int],
        boxes: tuple[str, ...],
        lanes: int,
    ) -> None:
        self.layout, self.scratch, self.boxes = layout, scratch, boxes
        self.levels = 1 + max(message.level for message in messages)
        self.puts: dict[tuple[Lane, int], list[Message]] = defaultdict(list)
        self.into: set[tuple[Lane, int]] = set()  # lanes that get something in a level
        self.lanes: list[set[tuple[int, int]]] = [set() for _ in range(layout.n)]
        turn: dict[tuple[int, int, int, int], int] = defaultdict(int)
        for message in messages:
            src, dst, level = message.src, message.dst, message.level
            lane = message.instance * lanes + turn[src, dst, level, message.instance] % lanes
            turn[src, dst, level, message.instance] += 1
            self.puts[(src, dst, lane), level].append(message)
            self.into.add(((dst, src, lane), level))
            self.lanes[src].add((dst, lane))
            self.lanes[dst].add((src, lane))
        self.free: set[tuple[Lane, int]] = set()  # lanes that only say that scratch is free again
        for message in messages:
            if message.total.buffer is Buffer.SCRATCH and message.level >= TURNS:
                self._tell(message.dst, message.src, message.level - 1)

    def _tell(self, rank: int, peer: int, level: int) -> None:
        """Let `rank` signal to `peer` in a level, if it does not do so anyway."""
        numbers = [number for other, number in self.lanes[rank] if other == peer]
        if any(((rank, peer, number), level) in self.puts for number in numbers):
            return
        number = min(numbers)
        self.free.add(((rank, peer, number), level))
        self.into.add(((peer, rank, number), level))

    def ranks(self) -> tuple[RankProgram, ...]:
        """What every rank does."""
        return tuple(map(self.rank, range(self.layout.n)))

    def rank(self, rank: int) -> RankProgram:
        """Its thread blocks: one a lane, the nearest peer in rank order first."""
        n = self.layout.n
        order = sorted(self.lanes[rank], key=lambda lane: ((lane[0] - rank) % n, lane[1]))
        blocks = [self.block(rank, peer, number, len(order)) for peer, number in order]
        for a, b in self.layout.copies(rank, self.layout.chunks, local_blocks(self.layout)):
            copy = Instruction(op=Op.COPY, src=(a,), dst=(b,))
            blocks.append(ThreadBlock(steps=(copy,), channels=()))
        counts = self.layout.input_chunks, self.layout.output_chunks, self.scratch[rank]
        return RankProgram(tuple(blocks), *counts)

    def block(self, rank: int, peer: int, number: int, group: int) -> ThreadBlock:
        """The thread block of one lane; `group`: how many its rank has."""
        lane = (rank, peer, number)
        kind = kind_of(rank, peer, self.boxes)
        sends = any((lane, level) in self.puts for level in range(self.levels))
        gets = any(((peer, rank, number), level) in self.puts for level in range(self.levels))
        found: list[Step] = []
        if gets:
            found.append(Instruction(op=Op.RELAXED_SIGNAL, channels=(0,)))
        if sends:
            found.append(Instruction(op=Op.RELAXED_WAIT, channels=(0,)))
        found.append(Instruction(op=Op.NOP))
        for level in range(self.levels):
            found += self.level(lane, level, kind == "port")
            if level < self.levels - 1 and group > 1:
                found += [
                    Instruction(op=Op.NOP),
                    Instruction(op=Op.BARRIER, group=group, ident=0),
                ]
            elif level < self.levels - 1:
                found.append(Instruction(op=Op.NOP))
        return ThreadBlock(steps=tuple(found), channels=(Channel(peer, kind, number),))

    def level(self, lane: Lane, level: int, port: bool) -> list[Step]:
        """What a lane sends and waits for in one level."""
        found: list[Step] = []
        puts = self.puts.get((lane, level), [])
        for place, message in enumerate(puts):
            last = place == len(puts) - 1
            found.append(
                Instruction(
                    op=Op.PUT_SIGNAL_FLUSH if port and last else Op.PUT,
                    src=(message.source,),
                    dst=(replace(message.total, rank=lane[1]),),
                    channels=(0,),
                )
            )
        if puts and not port:
            found += [Instruction(op=Op.NOP), Instruction(op=Op.SIGNAL, channels=(0,))]
        if (lane, level) in self.free:
            found.append(Instruction(op=Op.SIGNAL, channels=(0,)))
        if (lane, level) in self.into:
            found.append(Instruction(op=Op.WAIT, channels=(0,)))
        return found
