"""Programs in fifo style (MSCCL XML): queues between ranks, dependencies inside a rank.

Only send, recv, copy and reduce are used, so that every current parser runs the plan.

Why it cannot get stuck, whatever the depth of the queues: all messages are put in one order, in
which each comes after those that it is made of, and every thread block does its steps in that
order. A step then waits only for what stands earlier in the order (or in an earlier slice): for
data that a thread block of the rank got or added before, for the message's own send, or, in a
full queue, for an earlier message of the same connection to be taken.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import NamedTuple

from forestcoll.lower.layout import Layout, local_blocks
from forestcoll.lower.limits import Budget, steps
from forestcoll.lower.messages import Message, early_copies, messages_of
from forestcoll.program import (
    Buffer,
    Instruction,
    Op,
    RankProgram,
    Ref,
    ThreadBlock,
)
from forestcoll.targets import Target

Connection = tuple[int, int]  # sender, receiver


class _Port(NamedTuple):
    """One end of a connection on one channel: the unit that a thread block can own."""

    rank: int
    sends: bool
    peer: int
    channel: int


def lower_fifo(layout: Layout, budget: Budget) -> tuple[RankProgram, ...]:
    """What every rank does, or PlanError where a limit cannot be kept."""
    target = budget.target
    early = early_copies(layout)
    messages, scratch = messages_of(layout, target.count, early)
    _refuse_early(layout.n, messages, budget)
    lanes = {(m.src, m.dst): 1 for m in messages}
    while True:
        channels = _share_out(messages, lanes, budget)
        blocks = _own_blocks(messages, channels, layout.n)
        programs = _emit(layout, messages, channels, blocks, scratch, early, target)
        if not _widen(lanes, blocks, programs, budget):
            break
    paired = _pair(blocks, programs, budget)
    if paired != blocks:
        programs = _emit(layout, messages, channels, paired, scratch, early, target)
    return programs


def _refuse_early(n: int, messages: list[Message], budget: Budget) -> None:
    """PlanError where a rank's steps cannot fit, however they are spread over thread blocks."""
    target = budget.target
    needed = [0] * n
    for message in messages:
        needed[message.src] += 1
        needed[message.dst] += 1 if message.land == "final" else 2
    rank = max(range(n), key=needed.__getitem__)
    # what is left of the elements once algo, all gpus and one thread block for 64 steps are there
    nodes = (target.nodes - 1 - n) * target.steps // (target.steps + 1)
    limit = min(target.thread_blocks * target.steps, nodes)
    if needed[rank] > limit:
        raise budget.refuse(budget.rank(rank), "steps", needed[rank], limit)


def _share_out(messages: list[Message], lanes: dict[Connection, int], budget: Budget) -> list[int]:
    """Per message its channel. Each connection uses `lanes` channels, loaded evenly.

    A runtime allows only so many thread blocks per rank, channel and direction: a rank with many
    peers uses further channels.
    """
    target = budget.target
    room: dict[tuple[int, bool, int], int] = defaultdict(lambda: target.channel_blocks)
    numbers: dict[Connection, list[int]] = {}
    for (src, dst), wanted in sorted(lanes.items()):
        free = [c for c in range(target.channels) if room[src, True, c] and room[dst, False, c]][
            :wanted
        ]
        if len(free) < wanted:
            where = f"{budget.rank(src)} -> {dst}"
            raise budget.refuse(where, "free channels", wanted, len(free))
        for channel in free:
            room[src, True, channel] -= 1
            room[dst, False, channel] -= 1
        numbers[src, dst] = free
    loads = {connection: [0] * count for connection, count in lanes.items()}
    channels = []
    for message in messages:
        load = loads[message.src, message.dst]
        lane = load.index(min(load))
        load[lane] += message.count
        channels.append(numbers[message.src, message.dst][lane])
    return channels


def _own_blocks(
    messages: list[Message], channels: list[int], n: int
) -> list[list[tuple[_Port, ...]]]:
    """Per rank its thread blocks: one for every connection, channel and direction."""
    ports = set()
    for message, channel in zip(messages, channels, strict=True):
        ports.add(_Port(message.src, True, message.dst, channel))
        ports.add(_Port(message.dst, False, message.src, channel))
    blocks: list[list[tuple[_Port, ...]]] = [[] for _ in range(n)]
    for port in sorted(ports):  # receivers first: they are what others wait for
        blocks[port.rank].append((port,))
    return blocks


def _widen(
    lanes: dict[Connection, int],
    blocks: list[list[tuple[_Port, ...]]],
    programs: tuple[RankProgram, ...],
    budget: Budget,
) -> bool:
    """More channels for connections with too long a thread block; whether there were any."""
    target = budget.target
    wanted: dict[Connection, int] = {}
    for rank, program in enumerate(programs):
        for ports, block in zip(blocks[rank], program.thread_blocks, strict=False):
            taken = steps(block)
            if taken <= target.steps:
                continue
            port = ports[0]
            connection = (rank, port.peer) if port.sends else (port.peer, rank)
            now = lanes[connection]
            more = max(now + 1, -(-taken * now // target.steps))
            wanted[connection] = max(more, wanted.get(connection, 0))
    for (src, dst), count in wanted.items():
        if count > target.channels:
            where = f"{budget.rank(src)} -> {dst}"
            raise budget.refuse(where, "channels", count, target.channels)
    lanes.update(wanted)
    return bool(wanted)


def _pair(
    blocks: list[list[tuple[_Port, ...]]],
    programs: tuple[RankProgram, ...],
    budget: Budget,
) -> list[list[tuple[_Port, ...]]]:
    """The blocks, where a rank has too many of them with short senders and receivers joined."""
    target = budget.target
    result = []
    for rank, (ports, program) in enumerate(zip(blocks, programs, strict=True)):
        # one for local copies, if there are any
        local = min(1, len(program.thread_blocks) - len(ports))
        excess = len(ports) + local - target.thread_blocks
        length = {p[0]: steps(b) for p, b in zip(ports, program.thread_blocks, strict=False)}
        pairs = _matches(length, target.steps)[: max(0, excess)]
        if len(pairs) < excess:
            figure = len(ports) + local - len(pairs)
            raise budget.refuse(budget.rank(rank), "thread blocks", figure, target.thread_blocks)
        gone = {p for pair in pairs for p in pair}
        result.append([p for p in ports if p[0] not in gone] + pairs)
    return result


def _matches(length: dict[_Port, int], most: int) -> list[tuple[_Port, ...]]:
    """Receivers and senders of the same channel that fit one thread block, the shortest first."""
    found = []
    for channel in sorted({p.channel for p in length}):
        here = sorted((steps, p) for p, steps in length.items() if p.channel == channel)
        receivers = [(s, p) for s, p in here if not p.sends]
        senders = [(s, p) for s, p in here if p.sends]
        for taken, receiver in receivers:
            # the longest sender that still fits leaves the short ones for long receivers
            place = bisect_right(senders, most - taken, key=lambda pair: pair[0]) - 1
            if place >= 0:
                more, sender = senders.pop(place)
                found.append((taken + more, (receiver, sender)))
    return [pair for _, pair in sorted(found)]


class _Rank:
    """The thread blocks of one rank while they are being written."""

    def __init__(self, ports: list[tuple[_Port, ...]], local: int, scratch: int) -> None:
        self.ports = ports
        self.scratch = scratch
        self.block = {port: b for b, group in enumerate(ports) for port in group}
        self.local = range(len(ports), len(ports) + local)
        self.steps: list[list[Instruction]] = [[] for _ in range(len(ports) + local)]
        # per chunk the (thread block, step) that wrote it last
        self._writer: dict[Buffer, list[tuple[int, int]]] = defaultdict(list)
        self._readers: dict[int, dict[int, int]] = defaultdict(dict)  # of the input's chunks
        # per thread block what it has waited for already, and need not wait for again
        self._known: list[dict[int, int]] = [{} for _ in self.steps]

    def slot(self, count: int) -> Ref:
        """Fresh scratch for one message."""
        self.scratch += count
        return Ref(Buffer.SCRATCH, self.scratch - count, count)

    def copy(self, copies: list[tuple[Ref, Ref]]) -> None:
        """The own data from input to output, shared by the thread blocks that are there for it.

        In place the two are one memory, which a copy writes though it changes nothing: it waits
        for all that read it before.
        """
        for place, (src, dst) in enumerate(copies):
            waits: dict[int, int] = {}
            for chunk in range(src.offset, src.offset + src.count):
                for block, step in self._readers[chunk].items():
                    waits[block] = max(step, waits.get(block, -1))
            self.add(self.local[place % len(self.local)], Op.COPY, (src,), (dst,), waits)

    def add(
        self,
        block: int,
        op: Op,
        src: tuple[Ref, ...] = (),
        dst: tuple[Ref, ...] = (),
        readers: dict[int, int] | None = None,
    ) -> None:
        """Appends an instruction: it waits for `readers` and the last writers of all it touches."""
        known = self._known[block]
        waits = {b: s for b, s in (readers or {}).items() if s > known.get(b, -1)}
        known |= waits
        for ref in (*src, *dst):
            for other, step in set(self._writer[ref.buffer][ref.offset : ref.offset + ref.count]):
                if other != block and step > known.get(other, -1):
                    known[other] = waits[other] = step
        for ref in dst:
            writer = self._writer[ref.buffer]
            end = ref.offset + ref.count
            writer += [(block, -1)] * (end - len(writer))
            writer[ref.offset : end] = [(block, len(self.steps[block]))] * ref.count
        if op is Op.SEND and src[0].buffer is Buffer.INPUT:
            for chunk in range(src[0].offset, src[0].offset + src[0].count):
                self._readers[chunk][block] = len(self.steps[block])
        self.steps[block].append(
            Instruction(op=op, src=src, dst=dst, after=tuple(sorted(waits.items())))
        )

    def program(self, layout: Layout) -> RankProgram:
        blocks = []
        for number, instructions in enumerate(self.steps):
            ports = self.ports[number] if number < len(self.ports) else ()
            blocks.append(
                ThreadBlock(
                    steps=tuple(instructions),
                    recv=next((p.peer for p in ports if not p.sends), -1),
                    send=next((p.peer for p in ports if p.sends), -1),
                    channel=ports[0].channel if ports else 0,
                )
            )
        return RankProgram(tuple(blocks), layout.input_chunks, layout.output_chunks, self.scratch)


def _emit(
    layout: Layout,
    messages: list[Message],
    channels: list[int],
    blocks: list[list[tuple[_Port, ...]]],
    scratch: list[int],
    early: frozenset[int],
    target: Target,
) -> tuple[RankProgram, ...]:
    ranks = []
    copies = []
    for number, ports in enumerate(blocks):
        spare = max(1, target.thread_blocks - len(ports))
        local = min(spare, local_blocks(layout))
        copies.append(layout.copies(number, target.count, local))
        rank = _Rank(ports, min(local, len(copies[number])), scratch[number])
        if number in early:
            rank.copy(copies[number])
        ranks.append(rank)
    for message, channel in zip(messages, channels, strict=True):
        sender, receiver = ranks[message.src], ranks[message.dst]
        port = _Port(message.src, True, message.dst, channel)
        sender.add(sender.block[port], Op.SEND, (message.source,))
        block = receiver.block[_Port(message.dst, False, message.src, channel)]
        if message.land == "add":
            slot = receiver.slot(message.count)
            receiver.add(block, Op.RECV, dst=(slot,))
            receiver.add(block, Op.REDUCE, (slot,), (message.total,))
        else:
            receiver.add(block, Op.RECV, dst=(message.total,))
            if message.land == "open":
                own = layout.input(message.dst, message.chunk, message.count)
                receiver.add(block, Op.REDUCE, (own,), (message.total,))
    for number, rank in enumerate(ranks):
        if number not in early:
            rank.copy(copies[number])
    return tuple(rank.program(layout) for rank in ranks)
