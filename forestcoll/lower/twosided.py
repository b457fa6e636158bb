"""Two-sided programs (fifo style, MSCCL XML): sends and receives, dependencies inside a rank.

Only send, recv, copy and reduce are used, so that every current parser runs the plan.

Why it cannot get stuck, whatever the depth of the queues: all messages are put in one order, in
which each comes after those that it is made of, and every thread block does its steps in that
order. A step then waits only for what stands earlier in the order (or in an earlier slice): for
data that a thread block of the rank got or added before, for the message's own send, or, in a
full queue, for an earlier message of the same connection to be taken. Thread blocks of two
connections receive later in that order, where a message is there (arrivals.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

from forestcoll.common.errors import PlanError
from forestcoll.lower.arrivals import Event, as_they_arrive, at_once
from forestcoll.lower.instances import BLOCK, ENOUGH, LINK
from forestcoll.lower.layout import Layout, local_blocks
from forestcoll.lower.limits import Limits, check_ranks, check_steps, most_steps, steps
from forestcoll.lower.messages import Connection, Message, early_copies, messages_of
from forestcoll.lower.scheduled import MOST_UNIT, Lanes, Links, scheduled_messages
from forestcoll.lower.sums import Adders, Sum, few_parts, sent_on, share_sums, sum_of
from forestcoll.lower.writer import Port, Ports, RankWriter, pair, waited_first
from forestcoll.program import Op, RankProgram, Ref
from forestcoll.program.targets import Target


def lower_fifo(
    layout: Layout, limits: Limits, links: Links | None = None, adders: bool = False
) -> tuple[RankProgram, ...]:
    """What every rank does, or PlanError where a limit cannot be kept.

    With `links` for much data: in the order of a schedule on them, as far as the limits allow.
    Without, or where they do not, level by level, in as few steps as can be. `adders`: in that
    order, sums are left to thread blocks of their own, if all messages of a chunk fit then.
    """
    early = early_copies(layout)
    if links is not None:
        for unit, rate, apart in _attempts(layout, limits.target, links):
            made = scheduled_messages(layout, early, links, most=unit, block=rate, apart=apart)
            try:
                known = (layout, made.messages, made.scratch, early, made.arrivals)
                work = _Work(*known, few_parts(made.messages))
                if adders:
                    room = limits.target.steps - local_blocks(layout)  # a root's wait for copies
                    shared = share_sums(layout.n, made.messages, room)
                    work = _Work(*known, adders=shared)
                programs = _write(work, made.lanes, limits)
                check_ranks(programs, limits)
                return programs
            except PlanError:
                if adders:  # longer messages are nothing that they are for
                    raise
                continue
    messages, scratch = messages_of(layout, limits.target.count, early)
    work = _Work(layout, messages, scratch, early)
    programs = _write(work, {m.connection: 1 for m in messages}, limits)
    check_ranks(programs, limits)
    return programs


def write_messages(
    layout: Layout, messages: list[Message], scratch: list[int], limits: Limits
) -> tuple[RankProgram, ...]:
    """What every rank does for messages that are in an order as the head of this file asks.

    `scratch`: chunks of it that the messages use, per rank. PlanError where a limit cannot be kept.
    """
    work = _Work(layout, messages, scratch, frozenset())
    return _write(work, {m.connection: 1 for m in messages}, limits)


def _attempts(
    layout: Layout, target: Target, links: Links
) -> Iterator[tuple[int, Fraction | None, bool]]:
    """Chunks in a message, GB/s of links a thread block, whether phases and trees share none."""
    rate = _block_rate(layout, links)
    unit = 1
    while unit <= min(MOST_UNIT, target.count):
        if _least_steps(layout, unit) > most_steps(layout.n, target):
            unit *= 2
            continue
        yield unit, rate, True
        yield unit, None, True
        yield unit, None, False
        unit *= 2


def _block_rate(layout: Layout, links: Links) -> Fraction:
    """GB/s of links that a thread block is counted for.

    Trees of one root have connections of their own. With two thread blocks each message of a
    connection takes twice as long, so there are no more than the GPU's rate asks for; but a tree of
    twice the rate of others has twice as many: of a link that they share each gets the same.
    """
    least = BLOCK / LINK / ENOUGH
    if not layout.collective.rooted:
        return least
    shares = Counter[tuple[int, ...]]()
    for tree in layout.trees:
        shares[tree.parent] += tree.count
    slowest = links.algbw * min(shares.values()) / layout.chunks
    return max(least, min(slowest, links.block / LINK / ENOUGH))


@dataclass(frozen=True, slots=True)
class _Work:
    """The messages in their order; `late`: sums that the block adds up that sends them on.

    `arrivals`: of each message, how many have been sent when it is there; none: not known.
    `adders`: thread blocks that add up all sums, where there are any.
    """

    layout: Layout
    messages: list[Message]
    scratch: list[int]
    early: frozenset[int]
    arrivals: Sequence[int] = ()
    late: frozenset[Sum] = frozenset()
    adders: Adders | None = None

    def late_sum(self, message: Message) -> Sum | None:
        """The sum that the message is a part of, if whoever sends that on adds it up."""
        key = sum_of(message) if self.late else None
        return key if key in self.late else None


def _write(work: _Work, lanes: Lanes, limits: Limits) -> tuple[RankProgram, ...]:
    """The thread blocks that do it, `lanes` of them for a connection, or more where they must."""
    target, messages, n = limits.target, work.messages, work.layout.n
    check_steps(_steps_of(n, messages), limits)
    lanes = _roomy(work, lanes, target)
    while True:
        channels = _share_out(messages, lanes, limits)
        blocks = _own_blocks(messages, channels, n)
        programs = _emit(work, channels, at_once(len(messages)), blocks, target)
        owner = {(m.src, m.dst, c): m.connection for m, c in zip(messages, channels, strict=True)}
        if not _widen(lanes, owner, blocks, programs, limits):
            break
    paired = pair(blocks, programs, limits, work.adders.counts if work.adders else ())
    if paired != blocks:
        programs = _emit(work, channels, _events(work, channels), paired, target)
        if any(steps(b) > target.steps for program in programs for b in program.thread_blocks):
            programs = _emit(work, channels, at_once(len(messages)), paired, target)
    return tuple(waited_first(program, target.dependency_blocks) for program in programs)


def _events(work: _Work, channels: list[int]) -> Iterator[Event]:
    """Where messages are sent and received by thread blocks of two connections."""
    if not work.arrivals:
        return at_once(len(work.messages))
    return as_they_arrive(work.messages, channels, work.arrivals)


def _roomy(work: _Work, lanes: Lanes, target: Target) -> Lanes:
    """As many thread blocks for each connection, or as many as its steps take in any case."""
    waiting = Counter[Sum | None]()  # parts that whoever sends the sum on adds to it
    sends, receives = Counter[Connection](), Counter[Connection]()
    for message in work.messages:
        connection = message.connection
        sends[connection] += 1 + waiting.pop(sent_on(message), 0)
        late = work.late_sum(message)
        if late is not None:
            waiting[late] += 1
        only = late is not None or work.adders is not None or message.land == "final"
        receives[connection] += 1 if only else 2
    return {
        c: max(count, -(-max(sends[c], receives[c]) // target.steps)) for c, count in lanes.items()
    }


def _steps_of(n: int, messages: list[Message]) -> list[int]:
    """Per rank, the steps that it takes however they are spread over thread blocks."""
    needed = [0] * n
    for message in messages:
        needed[message.src] += 1
        needed[message.dst] += 1 if message.land == "final" else 2
    return needed


def _least_steps(layout: Layout, unit: int) -> int:
    """Steps that the fullest rank takes at least with so many chunks in a message."""
    needed = [0] * layout.n
    for tree in layout.trees:
        messages = -(-tree.count // unit)
        into = 2 if tree.phase == "reduce" else 1
        for rank, parent in enumerate(tree.parent):
            if parent >= 0:
                child_sends = tree.phase == "reduce"
                needed[rank if child_sends else parent] += messages
                needed[parent if child_sends else rank] += messages * into
    return max(needed)


def _share_out(messages: list[Message], lanes: Lanes, limits: Limits) -> list[int]:
    """Per message its channel. Each connection uses `lanes` channels, loaded evenly.

    A runtime allows only so many thread blocks per rank, channel and direction: a rank with many
    peers uses further channels. No two connections between the same ranks share a channel.
    """
    target = limits.target
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
            where = f"{limits.rank(src)} -> {dst}"
            raise limits.refuse(where, "free channels", wanted, len(free))
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
    limits: Limits,
) -> bool:
    """More channels for connections with too long a thread block; whether there were any."""
    target = limits.target
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
            where = f"{limits.rank(src)} -> {dst}"
            raise limits.refuse(where, "channels", count, target.channels)
    lanes.update(wanted)
    return bool(wanted)


def _emit(
    work: _Work,
    channels: list[int],
    events: Iterable[Event],
    blocks: list[list[Ports]],
    target: Target,
) -> tuple[RankProgram, ...]:
    """What every rank does. `events`: numbers of messages, each where it is sent, and received."""
    layout, early = work.layout, work.early
    ranks = []
    copies = []
    for number, ports in enumerate(blocks):
        adders = work.adders.counts[number] if work.adders else 0
        spare = max(1, target.thread_blocks - len(ports) - adders)
        local = min(spare, local_blocks(layout))
        copies.append(layout.copies(number, target.count, local))
        rank = RankWriter(ports, min(local, len(copies[number])), work.scratch[number], adders)
        if number in early:
            rank.copy(copies[number])
        ranks.append(rank)
    waiting: dict[Sum | None, list[Ref]] = defaultdict(list)  # what is not yet in a sum
    ends: dict[tuple[int, int, int], tuple[int, int]] = {}  # who sends, and who receives
    for number, sends in events:
        message, channel = work.messages[number], channels[number]
        src, dst = message.src, message.dst
        sender, receiver = ranks[src], ranks[dst]
        if (src, dst, channel) not in ends:
            ends[src, dst, channel] = (
                sender.block[Port(src, True, dst, channel)],
                receiver.block[Port(dst, False, src, channel)],
            )
        out, block = ends[src, dst, channel]
        if sends:
            for part in waiting.pop(sent_on(message), ()):
                sender.add(out, Op.REDUCE, (part,), (message.source,))
            sender.add(out, Op.SEND, (message.source,))
            continue
        if message.land == "final":
            receiver.add(block, Op.RECV, dst=(message.total,))
            continue
        if message.land == "add":
            part = receiver.slot(message.count)
            receiver.add(block, Op.RECV, dst=(part,))
        else:
            part = layout.input(dst, message.chunk, message.count)
            receiver.add(block, Op.RECV, dst=(message.total,))
        late = work.late_sum(message)
        if late is not None:
            waiting[late].append(part)
        else:
            adder = receiver.adders[work.adders.of(message)] if work.adders else block
            receiver.add(adder, Op.REDUCE, (part,), (message.total,))
    for number, rank in enumerate(ranks):
        if number not in early:
            rank.copy(copies[number])
    return tuple(rank.program(layout) for rank in ranks)
