"""Messages -> onesided programs (MSCCL++): hop after hop, a thread block or more for each peer.

A thread block has one channel, to one peer, or one each to several. First both ends say that they
are there: the launch before is then over, and memory free to be written. Then level after level:
everything of the level is put, one signal follows; who receives waits for it; and where data goes
on, all thread blocks of the rank meet, so that what came in over one channel may go out over
another. A level's signals wait for nothing of the same level, so it cannot get stuck. Before
scratch is written again, its rank says that it has sent on what was there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress

from forestcoll.common.errors import PlanError
from forestcoll.lower.handshakes import Kind, kind_of
from forestcoll.lower.layout import Layout, local_blocks, ref_at
from forestcoll.lower.limits import Limits, check_ranks, steps
from forestcoll.lower.transfers import Transfer
from forestcoll.program import Buffer, Channel, Instruction, Op, RankProgram, Step, ThreadBlock
from forestcoll.program.targets import Target

MOST_LANES = 8
"""Thread blocks between two ranks that are tried."""
TURNS = 3
"""Levels after which scratch is used again: what comes in a level has been sent on after the next,
in the one after that a signal says so, and then others may write there."""

Lane = tuple[int, int, int]  # rank, peer, number


def write_onesided(
    layout: Layout,
    messages: Sequence[Transfer],
    scratch: Sequence[int],
    boxes: tuple[str, ...],
    limits: Limits,
) -> tuple[RankProgram, ...]:
    """What every rank does, with as few thread blocks for each peer as hold its steps.

    Where a rank has more peers than thread blocks, several peers share one. PlanError where a limit
    cannot be kept.
    """
    lanes: dict[tuple[int, int], int] = defaultdict(lambda: 1)
    while True:
        writer = _Writer(layout, messages, scratch, boxes, lanes)
        ranks = writer.ranks(1)
        wanting = writer.overlong(ranks, limits.target.steps)
        if not wanting or any(lanes[pair] >= MOST_LANES for pair in wanting):
            break
        for pair in wanting:
            lanes[pair] *= 2
    try:
        check_ranks(ranks, limits)
        return ranks
    except PlanError as refused:
        for width in range(2, most_peers(limits.target) + 1):
            ranks = writer.ranks(width)
            with suppress(PlanError):
                check_ranks(ranks, limits)
                return ranks
        raise refused from None


def most_peers(target: Target) -> int:
    """Peers of a thread block: it may reach two buffers of each, and one operation names them."""
    return min(target.peers, target.channels, target.remote_buffers // 2)


class _Writer:
    def __init__(
        self,
        layout: Layout,
        messages: Sequence[Transfer],
        scratch: Sequence[int],
        boxes: tuple[str, ...],
        lanes: Mapping[tuple[int, int], int],
    ) -> None:
        self.layout, self.scratch, self.boxes = layout, scratch, boxes
        self.levels = 1 + max(message.level for message in messages)
        self.puts: dict[tuple[Lane, int], list[Transfer]] = defaultdict(list)
        self.into: set[tuple[Lane, int]] = set()  # lanes that get something in a level
        self.lanes: list[set[tuple[int, int]]] = [set() for _ in range(layout.n)]
        turn: dict[tuple[int, int, int, int], int] = defaultdict(int)
        for message in messages:
            src, dst, level = message.src, message.dst, message.level
            wide = lanes.get((src, dst), 1)
            lane = message.group * wide + turn[src, dst, level, message.group] % wide
            turn[src, dst, level, message.group] += 1
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

    def ranks(self, width: int) -> tuple[RankProgram, ...]:
        """What every rank does, with `width` lanes in a thread block at most."""
        return tuple(self.rank(rank, width) for rank in range(self.layout.n))

    def rank(self, rank: int, width: int) -> RankProgram:
        """Its thread blocks, of the lanes of a kind so many each."""
        lanes = self.order(rank)
        groups: list[list[Lane]] = []
        kinds = ["memory", "port"] if width > 1 else [""]
        for kind in kinds:
            alike = [lane for lane in lanes if kind in ("", self.kind(lane))]
            count = -(-len(alike) // width)
            groups += [alike[k::count] for k in range(count)]
        blocks = [self.block(group, len(groups)) for group in groups]
        for a, b in self.layout.copies(rank, self.layout.chunks, local_blocks(self.layout)):
            copy = Instruction(op=Op.COPY, src=(a,), dst=(b,))
            blocks.append(ThreadBlock(steps=(copy,), channels=()))
        counts = self.layout.input_chunks, self.layout.output_chunks, self.scratch[rank]
        return RankProgram(tuple(blocks), *counts)

    def order(self, rank: int) -> list[Lane]:
        """A rank's lanes, those to the nearest peer in rank order first."""
        n = self.layout.n
        order = sorted(self.lanes[rank], key=lambda lane: ((lane[0] - rank) % n, lane[1]))
        return [(rank, peer, number) for peer, number in order]

    def overlong(self, ranks: Sequence[RankProgram], most: int) -> set[tuple[int, int]]:
        """From whom to whom the thread blocks of one lane each have more steps."""
        return {
            (rank, peer)
            for number, program in enumerate(ranks)
            for (rank, peer, _), block in zip(
                self.order(number), program.thread_blocks, strict=False
            )
            if steps(block) > most
        }

    def kind(self, lane: Lane) -> Kind:
        """Of the channel."""
        return kind_of(lane[0], lane[1], self.boxes)

    def block(self, lanes: Sequence[Lane], group: int) -> ThreadBlock:
        """The thread block of lanes of one kind; `group`: how many its rank has."""
        places = range(len(lanes))
        every = range(self.levels)
        sends = [k for k in places if any((lanes[k], level) in self.puts for level in every)]
        back = [(peer, rank, number) for rank, peer, number in lanes]
        gets = [k for k in places if any((back[k], level) in self.puts for level in every)]
        found: list[Step] = []
        found += on(Op.RELAXED_SIGNAL, gets)
        found += on(Op.RELAXED_WAIT, sends)
        found.append(Instruction(op=Op.NOP))
        for level in every:
            found += self.level(lanes, level)
            if level < self.levels - 1 and group > 1:
                found += [
                    Instruction(op=Op.NOP),
                    Instruction(op=Op.BARRIER, group=group, ident=0),
                ]
            elif level < self.levels - 1:
                found.append(Instruction(op=Op.NOP))
        kind = self.kind(lanes[0])
        channels = tuple(Channel(peer, kind, number) for _, peer, number in lanes)
        return ThreadBlock(steps=tuple(found), channels=channels)

    def level(self, lanes: Sequence[Lane], level: int) -> list[Step]:
        """What lanes of a thread block send and wait for in one level, all lanes by turns."""
        puts = [self.puts.get((lane, level), []) for lane in lanes]
        port = self.kind(lanes[0]) == "port"
        found: list[Step] = []
        last: dict[int, list[int]] = defaultdict(list)  # a port's last put of each lane, by length
        for turn in range(max(map(len, puts))):
            for place, lane in enumerate(puts):
                if port and turn == len(lane) - 1:
                    last[lane[turn].count].append(place)
                elif turn < len(lane):
                    found.append(put(Op.PUT, [lane[turn]], [place]))
        for alike in last.values():
            found.append(put(Op.PUT_SIGNAL_FLUSH, [puts[place][-1] for place in alike], alike))
        signals = [place for place in range(len(lanes)) if puts[place] and not port]
        if signals:
            found += [Instruction(op=Op.NOP), *on(Op.SIGNAL, signals)]
        found += on(Op.SIGNAL, [k for k, lane in enumerate(lanes) if (lane, level) in self.free])
        found += on(Op.WAIT, [k for k, lane in enumerate(lanes) if (lane, level) in self.into])
        return found


def on(op: Op, places: Sequence[int]) -> list[Step]:
    """One operation on these channels of a thread block; none for none."""
    return [Instruction(op=op, channels=tuple(places))] if places else []


def put(op: Op, messages: Sequence[Transfer], places: Sequence[int]) -> Instruction:
    """Messages that are equally long, each over its channel."""
    return Instruction(
        op=op,
        src=tuple(message.source for message in messages),
        dst=tuple(ref_at(message.total, message.dst) for message in messages),
        channels=tuple(places),
    )
