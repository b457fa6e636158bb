"""Messages -> programs of packets (MSCCL++, protocol LL): for few bytes, where signals cost most.

    first hop   the sender puts its block's packets into scratch of the next rank
    a relay     forwards them unread, as they arrive
    last hop    they arrive in scratch where they belong in the output, and are unpacked to it
    to a box    packets are made in own scratch and forwarded from there by a proxy

Nobody waits for a signal: who reads a packet waits for its launch's number. Scratch has two halves
that launches take by turns, and that is safe: whoever ends a launch has had packets of every rank,
so all have begun that launch, and read what the one before brought.

What waits has a level above all that it waits for, and a thread block does its jobs by level: the
lowest that is not done can always go on (`lower.packets` has the same).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise

from forestcoll.lower.handshakes import Boxes, Kind, kind_of
from forestcoll.lower.layout import Layout
from forestcoll.lower.limits import Limits
from forestcoll.lower.packets import BLOCKS, Job, Unit, check_bytes, deal
from forestcoll.lower.transfers import Transfer, touch
from forestcoll.program import Buffer, Instruction, Op, RankProgram, Ref
from forestcoll.program.targets import HALF_CHUNKS


def write_packets(
    layout: Layout,
    messages: Sequence[Transfer],
    scratch: Sequence[int],
    boxes: Boxes,
    limits: Limits,
) -> tuple[RankProgram, ...]:
    """What every rank does, for calls out of place. PlanError beyond the limits.

    `scratch`: chunks that relays need, per rank.
    """
    check_bytes(layout, limits, limits.hint)
    sent: list[list[Transfer]] = [[] for _ in range(layout.n)]
    for message in messages:
        sent[message.src].append(message)
    last = 2 * (1 + max(message.level for message in messages))
    units: list[Unit] = [{} for _ in range(BLOCKS)]
    used = 0
    for rank, mine in enumerate(sent):
        writer = _Rank(layout, rank, mine, scratch, boxes, limits.target.peers)
        jobs = [*writer.sends(), *writer.ends(last)]
        for k, job in enumerate(jobs):
            units[k % BLOCKS].setdefault(rank, []).append(job)
        used = max(used, writer.used)
    near = all(kind_of(m.src, m.dst, boxes) == "memory" for m in messages)
    # a proxy takes each slice for a put of its own
    blocks = deal([unit for unit in units if unit], layout.n, limits, even=near)
    chunks = -(-used // HALF_CHUNKS) * HALF_CHUNKS
    return tuple(
        RankProgram(blocks[rank], layout.input_chunks, layout.output_chunks, chunks)
        for rank in range(layout.n)
    )


class _Rank:
    """The jobs of one rank; `used`: chunks of its scratch."""

    def __init__(
        self,
        layout: Layout,
        rank: int,
        sent: Sequence[Transfer],
        scratch: Sequence[int],
        boxes: Boxes,
        peers: int,
    ) -> None:
        self.layout, self.rank, self.sent, self.peers = layout, rank, sent, peers
        self._scratch, self._boxes = scratch, boxes
        self.used = scratch[rank] + layout.output_chunks

    def sends(self) -> Iterator[Job]:
        """All that it puts and forwards."""
        near: dict[int, list[Transfer]] = defaultdict(list)
        far: list[Transfer] = []
        for message in self.sent:
            if message.source.buffer is Buffer.SCRATCH:
                yield self._forward(message, message.source)
            elif self._kind(message.dst) == "memory":
                near[message.count].append(message)
            else:
                far.append(message)
        for alike in near.values():
            for some in _batches(alike, self.peers):
                yield self._put(some)
        yield from self._send_far(far)

    def ends(self, level: int) -> Iterator[Job]:
        """What it unpacks once all have arrived, and the copy of its own block."""
        start, n = self.layout.start, self.layout.n
        low = self._scratch[self.rank]
        for first, end in ((0, self.rank), (self.rank + 1, n)):
            parts = max(1, -(-(end - first) * BLOCKS // n))
            cuts = [start[first + (end - first) * p // parts] for p in range(parts + 1)]
            for a, b in pairwise(cuts):
                if a < b:
                    source, output = Ref(Buffer.SCRATCH, low + a, b - a), Buffer.OUTPUT
                    step = Instruction(Op.UNPACK, (source,), (Ref(output, a, b - a),))
                    yield Job(level, False, (step,))
        for own, copy in self.layout.copies(self.rank, self.layout.chunks, 1):
            yield Job(level, False, (Instruction(Op.COPY, (own,), (copy,)),))

    def _send_far(self, messages: Sequence[Transfer]) -> Iterator[Job]:
        """Packets of what goes to other boxes, made together, and where each of them goes."""
        run: list[Transfer] = []
        for message in sorted(messages, key=lambda m: m.source.offset):
            if run and not touch(run[-1].source, message.source):
                yield from self._make(run)
                run = []
            run.append(message)
        yield from self._make(run)

    def _make(self, run: Sequence[Transfer]) -> Iterator[Job]:
        if not run:
            return
        first, count = run[0].source, sum(message.count for message in run)
        own = Ref(Buffer.SCRATCH, self.used, count)
        self.used += count
        yield Job(0, False, (Instruction(Op.COPY_PACKETS, (replace(first, count=count),), (own,)),))
        for message in run:
            offset = own.offset + message.source.offset - first.offset
            yield self._forward(message, replace(own, offset=offset, count=message.count))

    def _forward(self, message: Transfer, packets: Ref) -> Job:
        peer = (message.dst,)
        step = Instruction(Op.FORWARD_PACKETS, (packets,), (self._arrival(message),), channels=peer)
        return Job(2 * message.level + 1, False, (step,), self._kind(message.dst), peer)

    def _put(self, messages: Sequence[Transfer]) -> Job:
        peers = tuple(message.dst for message in messages)
        sources = tuple(message.source for message in messages)
        step = Instruction(
            Op.PUT_PACKETS, sources, tuple(map(self._arrival, messages)), channels=peers
        )
        return Job(0, False, (step,), "memory", peers)

    def _arrival(self, message: Transfer) -> Ref:
        """Where its packets arrive: at a relay, or behind all that is relayed, as in the output."""
        end = message.total
        if end.buffer is Buffer.OUTPUT:
            end = Ref(Buffer.SCRATCH, self._scratch[message.dst] + end.offset, end.count)
        return replace(end, rank=message.dst)

    def _kind(self, peer: int) -> Kind:
        return kind_of(self.rank, peer, self._boxes)


def _batches(messages: Sequence[Transfer], size: int) -> Iterator[list[Transfer]]:
    """At most so many, each to another peer."""
    waiting: dict[int, list[Transfer]] = defaultdict(list)
    for message in messages:
        waiting[message.dst].append(message)
    while waiting:
        taken = list(islice(waiting, size))
        yield [waiting[peer].pop(0) for peer in taken]
        for peer in taken:
            left = waiting.pop(peer)
            if left:
                waiting[peer] = left
