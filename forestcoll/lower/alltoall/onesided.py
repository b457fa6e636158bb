"""Transfers -> onesided programs (MSCCL++): hop after hop, a thread block or more for each peer.

A thread block has one channel, to one peer, or one each to several. First both ends say that they
are there: the launch before is then over, and memory free to be written. Then level after level:
everything of the level is put, one signal follows; who receives waits for it; and where data goes
on, all thread blocks of the rank meet, so that what came in over one channel may go out over
another. A level's signals wait for nothing of the same level, so it cannot get stuck. Before
scratch is written again, its rank says that it has sent on what was there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from forestcoll.common.errors import PlanError
from forestcoll.lower.layout import Layout, local_blocks, ref_at
from forestcoll.lower.limits import KINDS, NOP, Boxes, Kind, Limits, check_ranks, kind_of, steps
from forestcoll.lower.schedule import Transfer
from forestcoll.program import Buffer, Channel, Instruction, Op, RankProgram, ThreadBlock

MOST_LANES = 8
"""Thread blocks between two ranks that are tried."""
TURNS = 3
"""Levels after which scratch is used again: what comes in a level has been sent on after the next,
in the one after that a signal says so, and then others may write there."""

Lane = tuple[int, int, int]  # rank, peer, number


def write_onesided(
    layout: Layout,
    transfers: Sequence[Transfer],
    scratch: Sequence[int],
    limits: Limits,
) -> tuple[RankProgram, ...]:
    """What every rank does, with as few thread blocks for each peer as hold its steps.

    Where a rank has more peers than thread blocks, several peers share one. PlanError where a limit
    cannot be kept.
    """
    target = limits.target
    wide: dict[tuple[int, int], int] = defaultdict(lambda: 1)
    while True:
        writer = _Writer(layout, transfers, limits.boxes, wide)
        wanting = {
            lane[:2]
            for lanes in writer.lanes
            for lane in lanes
            if steps(writer.block([lane], len(lanes))) > target.steps
        }
        if not wanting or any(wide[pair] >= MOST_LANES for pair in wanting):
            break
        for pair in wanting:
            wide[pair] *= 2
    refused = None
    # a thread block may reach two buffers of each peer, and one operation names them
    for width in range(1, 1 + min(target.peers, target.channels, target.remote_buffers // 2)):
        ranks = tuple(writer.rank(rank, width, kept) for rank, kept in enumerate(scratch))
        try:
            check_ranks(ranks, limits)
            return ranks
        except PlanError as error:
            refused = refused or error
    assert refused is not None
    raise refused


class _Writer:
    """Writes thread blocks; `wide`: how many lanes those of a pair's group are cut into."""

    def __init__(
        self,
        layout: Layout,
        transfers: Sequence[Transfer],
        boxes: Boxes,
        wide: Mapping[tuple[int, int], int],
    ) -> None:
        self.layout, self.boxes = layout, boxes
        self.levels = range(1 + max(transfer.level for transfer in transfers))
        self.puts: dict[tuple[Lane, int], list[Transfer]] = defaultdict(list)
        turn: dict[tuple[int, int, int, int], int] = defaultdict(int)
        for t in transfers:
            width = wide[t.src, t.dst]
            lane = t.group * width + turn[t.src, t.dst, t.level, t.group] % width
            turn[t.src, t.dst, t.level, t.group] += 1
            self.puts[(t.src, t.dst, lane), t.level].append(t)
        self.sends = {lane for lane, _ in self.puts}
        ends = self.sends | {(peer, rank, number) for rank, peer, number in self.sends}
        # of each rank, those to the nearest peer in rank order first
        order = sorted(ends, key=lambda lane: ((lane[1] - lane[0]) % layout.n, lane[2]))
        self.lanes = [[lane for lane in order if lane[0] == rank] for rank in range(layout.n)]
        self.free: set[tuple[Lane, int]] = set()  # lanes that only say that scratch is free again
        for t in transfers:
            if t.total.buffer is Buffer.SCRATCH and t.level >= TURNS:
                self._tell(t.dst, t.src, t.level - 1)

    def _tell(self, rank: int, peer: int, level: int) -> None:
        """Let `rank` signal to `peer` in a level, if it does not do so anyway."""
        lanes = [lane for lane in self.lanes[rank] if lane[1] == peer]
        if not any((lane, level) in self.puts for lane in lanes):
            self.free.add((lanes[0], level))

    def rank(self, rank: int, width: int, scratch: int) -> RankProgram:
        """Its thread blocks: of the lanes of a kind `width` each at most, and copies."""
        groups: list[list[Lane]] = []
        for kind in KINDS if width > 1 else ("",):
            alike = [lane for lane in self.lanes[rank] if kind in ("", self._kind(lane))]
            count = -(-len(alike) // width)
            groups += [alike[k::count] for k in range(count)]
        blocks = [self.block(group, len(groups)) for group in groups]
        for own, copy in self.layout.copies(rank, self.layout.chunks, local_blocks(self.layout)):
            blocks.append(ThreadBlock((Instruction(Op.COPY, (own,), (copy,)),), channels=()))
        counts = self.layout.input_chunks, self.layout.output_chunks, scratch
        return RankProgram(tuple(blocks), *counts)

    def block(self, lanes: Sequence[Lane], group: int) -> ThreadBlock:
        """The thread block of lanes of one kind; `group`: how many its rank has."""
        back, kind = [(peer, rank, number) for rank, peer, number in lanes], self._kind(lanes[0])
        steps = _on(Op.RELAXED_SIGNAL, [lane in self.sends for lane in back])
        steps += _on(Op.RELAXED_WAIT, [lane in self.sends for lane in lanes])
        for level in self.levels:
            steps.append(NOP)
            if level and group > 1:
                steps.append(Instruction(Op.BARRIER, group=group, ident=0))
            puts = [self.puts.get((lane, level), []) for lane in lanes]  # all by turns
            last: dict[int, list[int]] = defaultdict(list)  # a port's last of each lane, by length
            for turn in range(max(map(len, puts))):
                for place, own in enumerate(puts):
                    if kind == "port" and turn == len(own) - 1:
                        last[own[turn].chunks].append(place)
                    elif turn < len(own):
                        steps.append(_put(Op.PUT, own[turn : turn + 1], [place]))
            for alike in last.values():
                sent = [puts[place][-1] for place in alike]
                steps.append(_put(Op.PUT_SIGNAL_FLUSH, sent, alike))
            if any(puts) and kind != "port":
                steps += [NOP, *_on(Op.SIGNAL, map(bool, puts))]
            steps += _on(Op.SIGNAL, [(lane, level) in self.free for lane in lanes])
            into = [(lane, level) in self.puts or (lane, level) in self.free for lane in back]
            steps += _on(Op.WAIT, into)
        channels = tuple(Channel(peer, kind, number) for _, peer, number in lanes)
        return ThreadBlock(tuple(steps), channels=channels)

    def _kind(self, lane: Lane) -> Kind:
        return kind_of(lane[0], lane[1], self.boxes)


def _on(op: Op, whether: Iterable[bool]) -> list[Instruction]:
    """One operation on those channels of a thread block; none for none."""
    places = tuple(place for place, does in enumerate(whether) if does)
    return [Instruction(op, channels=places)] if places else []


def _put(op: Op, transfers: Sequence[Transfer], places: Sequence[int]) -> Instruction:
    """Transfers that are equally long, each over its channel."""
    return Instruction(
        op,
        tuple(transfer.source for transfer in transfers),
        tuple(ref_at(transfer.total, transfer.dst) for transfer in transfers),
        channels=tuple(places),
    )
