"""Programs in fifo style (MSCCL XML): queues between ranks, dependencies inside a rank.

Only send, recv, copy and reduce are used, so that every current parser runs the plan.

Why it cannot get stuck, whatever the depth of the queues: all messages are put in one order, in
which each comes after those that it is made of, and every thread block does its steps in that
order. A step then waits only for what stands earlier in the order (or in an earlier slice): for
data that a thread block of the rank got or added before, for the message's own send, or, in a
full queue, for an earlier message of the same connection to be taken.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import islice

from forestcoll.lower.layout import Layout, local_blocks
from forestcoll.lower.limits import Budget, steps
from forestcoll.lower.messages import Connection, Message, early_copies, messages_of
from forestcoll.lower.writer import Port, Ports, RankWriter, pair, waited_first
from forestcoll.program import Op, RankProgram
from forestcoll.targets import Target

Lanes = dict[Connection, int]
"""Channels of each connection."""


def lower_fifo(layout: Layout, budget: Budget) -> tuple[RankProgram, ...]:
    """What every rank does, or PlanError where a limit cannot be kept."""
    target = budget.target
    early = early_copies(layout)
    messages, scratch = messages_of(layout, target.count, early)
    _refuse_early(layout.n, messages, budget)
    lanes: Lanes = {m.connection: 1 for m in messages}
    while True:
        channels = _share_out(messages, lanes, budget)
        blocks = _own_blocks(messages, channels, layout.n)
        programs = _emit(layout, messages, channels, blocks, scratch, early, target)
        owner = {(m.src, m.dst, c): m.connection for m, c in zip(messages, channels, strict=True)}
        if not _widen(lanes, owner, blocks, programs, budget):
            break
    paired = pair(blocks, programs, budget)
    if paired != blocks:
        programs = _emit(layout, messages, channels, paired, scratch, early, target)
    return tuple(waited_first(program, target.dependency_blocks) for program in programs)


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


def _share_out(messages: list[Message], lanes: Lanes, budget: Budget) -> list[int]:
    """Per message its channel. Each connection uses `lanes` channels, loaded evenly.

    A runtime allows only so many thread blocks per rank, channel and direction: a rank with many
    peers uses further channels. No two connections between the same ranks share a channel.
    """
    target = budget.target
    room: dict[tuple[int, bool, int], int] = defaultdict(lambda: target.channel_blocks)
    taken: set[tuple[int, int, int]] = set()
    numbers: dict[Connection, list[int]] = {}
    for connection, wanted in sorted(lanes.items()):
        src, dst, _, parity = connection
        possible = (
            c
            for c in range(target.channels)
            if room[src, True, c]
            and room[dst, False, c]
            and (src, dst, c) not in taken
            and parity in (-1, c % 2)
        )
        free = list(islice(possible, wanted))
        if len(free) < wanted:
            where = f"{budget.rank(src)} -> {dst}"
            raise budget.refuse(where, "free channels", wanted, len(free))
        for channel in free:
            taken.add((src, dst, channel))
            room[src, True, channel] -= 1
            room[dst, False, channel] -= 1
        numbers[connection] = free
    loads = {connection: [0] * count for connection, count in lanes.items()}
    channels = []
    for message in messages:
        load = loads[message.connection]
        lane = load.index(min(load))
        load[lane] += message.count
        channels.append(numbers[message.connection][lane])
    return channels


def _own_blocks(messages: list[Message], channels: list[int], n: int) -> list[list[Ports]]:
    """Per rank its thread blocks: one for every connection, channel and direction."""
    ports = set()
    for message, channel in zip(messages, channels, strict=True):
        ports.add(Port(message.src, True, message.dst, channel))
        ports.add(Port(message.dst, False, message.src, channel))
    blocks: list[list[Ports]] = [[] for _ in range(n)]
    for port in sorted(ports):  # receivers first: they are what others wait for
        blocks[port.rank].append((port,))
    return blocks


def _widen(
    lanes: Lanes,
    owner: dict[tuple[int, int, int], Connection],
    blocks: list[list[Ports]],
    programs: tuple[RankProgram, ...],
    budget: Budget,
) -> bool:
    """More channels for connections with too long a thread block; whether there were any."""
    target = budget.target
    wanted: Lanes = {}
    for rank, program in enumerate(programs):
        for ports, block in zip(blocks[rank], program.thread_blocks, strict=False):
            taken = steps(block)
            if taken <= target.steps:
                continue
            port = ports[0]
            ends = (rank, port.peer) if port.sends else (port.peer, rank)
            connection = owner[*ends, port.channel]
            now = lanes[connection]
            more = max(now + 1, -(-taken * now // target.steps))
            wanted[connection] = max(more, wanted.get(connection, 0))
    for (src, dst, _, _), count in wanted.items():
        if count > target.channels:
            where = f"{budget.rank(src)} -> {dst}"
            raise budget.refuse(where, "channels", count, target.channels)
    lanes.update(wanted)
    return bool(wanted)


def _emit(
    layout: Layout,
    messages: list[Message],
    channels: list[int],
    blocks: list[list[Ports]],
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
        rank = RankWriter(ports, min(local, len(copies[number])), scratch[number])
        if number in early:
            rank.copy(copies[number])
        ranks.append(rank)
    for message, channel in zip(messages, channels, strict=True):
        sender, receiver = ranks[message.src], ranks[message.dst]
        port = Port(message.src, True, message.dst, channel)
        sender.add(sender.block[port], Op.SEND, (message.source,))
        block = receiver.block[Port(message.dst, False, message.src, channel)]
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
