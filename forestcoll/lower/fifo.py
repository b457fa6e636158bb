"""Two-sided programs (fifo style, MSCCL XML): sends and receives, dependencies inside a rank.

Only send, recv, copy and reduce are used, so that every current parser runs the plan.

Why it cannot get stuck, whatever the depth of the queues: all transfers are put in one order, in
which each comes after those that it is made of, and every thread block does its steps in that
order. A step then waits only for what stands earlier in the order (or in an earlier slice): for
data that a thread block of the rank got or added before, for the transfer's own send, or, in a
full queue, for an earlier transfer of the same connection to be taken.

Where thread blocks have two connections, one that sends to a peer and receives from it would wait
for a transfer of which the other side sends nothing yet. So there a transfer is received when the
schedule has it there. Still nothing gets stuck. A send waits for what is needed, which is there
before it starts, and for room: what its connection carried before is received before it. A transfer
of several chunks may need more room than a connection has, so that one is received at once.

Who adds the parts of a sum: inside a rank a sum of few parts is added up by the thread block that
sends it on, and who receives can take the next transfer meanwhile; parts of a wide sum by the
blocks that receive them, for the list of the one that sends it on would be full long before theirs.
Either makes some lists longer than others, and a connection whose list is full is cut into several,
which take more of the links that it shares with others than its rate asks for. Thread blocks
without a connection that do nothing but add (`Adders`) leave the others one step for each transfer.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush
from itertools import islice

from forestcoll.common.errors import PlanError
from forestcoll.lower.fifo_blocks import Port, Ports, RankWriter, pair_ports
from forestcoll.lower.instances import BLOCK, ENOUGH, LINK
from forestcoll.lower.layout import Layout, local_blocks
from forestcoll.lower.limits import Limits, check_ranks, check_steps, most_steps
from forestcoll.lower.schedule import MOST_UNIT, Channels, Links, schedule
from forestcoll.lower.transfers import Connection, Transfer, by_levels, early_copies
from forestcoll.program import Buffer, Op, RankProgram, Ref
from forestcoll.program.targets import Target

Sum = tuple[int, bool, int]
"""A sum: the rank, whether it lies in scratch there, and where."""
LATE = 4
"""Parts of a sum at most that the block adds up that sends it on."""
Event = tuple[int, bool]
"""The number of a transfer, and whether it is sent (or received)."""


def lower_fifo(
    layout: Layout, limits: Limits, links: Links | None = None, adders: bool = False
) -> tuple[RankProgram, ...]:
    """Returns what every rank does; raises PlanError where a limit cannot be kept.

    With `links` for much data: in the order of a schedule on them, as far as the limits allow.
    Without, or where they do not, level by level, in as few steps as can be. `adders`: in that
    order, sums are left to thread blocks of their own, if all transfers of a chunk fit then.
    """
    early = early_copies(layout)
    for unit, rate, apart in _attempts(layout, limits.target, links):
        assert links is not None  # else there are no attempts
        order = schedule(layout, early, links, most=unit, block=rate, apart=apart)
        work = _Work(layout, order.transfers, order.scratch, early, order.arrivals)
        if adders:
            room = limits.target.steps - local_blocks(layout)  # a root's wait for copies
            work.adders = share_sums(layout.n, work.transfers, room)
        else:
            work.late = _few_parts(work.transfers)
            if _least_blocks(work, order.channels, limits.target) > limits.target.thread_blocks:
                continue
        try:
            return _write(work, order.channels, limits)
        except PlanError:
            if adders:  # longer transfers are nothing that they are for
                raise
    transfers, scratch = by_levels(layout, limits.target.count, early)
    return write_fifo(layout, transfers, scratch, limits, early)


def write_fifo(
    layout: Layout,
    transfers: list[Transfer],
    scratch: list[int],
    limits: Limits,
    early: frozenset[int] = frozenset(),
    *,
    recycles: bool = False,
) -> tuple[RankProgram, ...]:
    """Returns what every rank does for transfers in an order as the head of this file asks.

    `scratch`: chunks of it that they use, per rank; `recycles`: more than once. `early`: ranks that
    copy their own data first. Raises PlanError where a limit cannot be kept.
    """
    work = _Work(layout, transfers, scratch, early, recycles=recycles)
    return _write(work, dict.fromkeys(work.connections, 1), limits)


def _attempts(
    layout: Layout, target: Target, links: Links | None
) -> Iterator[tuple[int, Fraction | None, bool]]:
    """Yields chunks in a transfer, GB/s a thread block, whether phases and trees share no links."""
    rate = None if links is None else _block_rate(layout, links)
    unit = 1
    while links is not None and unit <= min(MOST_UNIT, target.count):
        if _least_steps(layout, unit) <= most_steps(layout.n, target):
            yield unit, rate, True
            yield unit, None, True
            yield unit, None, False
        unit *= 2


def _block_rate(layout: Layout, links: Links) -> Fraction:
    """Returns the GB/s of links that a thread block is counted for.

    Trees of one root have connections of their own. With two thread blocks each transfer of a
    connection takes twice as long, so there are no more than the GPU's rate asks for; but a tree of
    twice the rate of others has twice as many: of a link that they share each gets the same.
    """
    least = BLOCK / LINK / ENOUGH
    if not layout.collective.has_root:
        return least
    shares = Counter[tuple[int, ...]]()
    for tree in layout.trees:
        shares[tree.parent] += tree.count
    slowest = links.algbw * min(shares.values()) / layout.chunks
    return max(least, min(slowest, links.block / LINK / ENOUGH))


def _least_steps(layout: Layout, unit: int) -> int:
    """Returns the steps that the fullest rank takes at least with so many chunks in a transfer."""
    needed = [0] * layout.n
    for tree in layout.trees:
        transfers = -(-tree.count // unit)
        into = 2 if tree.phase == "reduce" else 1
        for rank, parent in enumerate(tree.parent):
            if parent >= 0:
                child_sends = tree.phase == "reduce"
                needed[rank if child_sends else parent] += transfers
                needed[parent if child_sends else rank] += transfers * into
    return max(needed)


# --- sums


@dataclass(frozen=True, slots=True)
class Adders:
    """Thread blocks that only add: how many each rank has, and which of them adds up a sum."""

    counts: tuple[int, ...]
    number: dict[Sum, int]


def sum_of(transfer: Transfer) -> Sum:
    """Returns the sum that a transfer is a part of which does not land `final`."""
    return transfer.dst, transfer.total.buffer is Buffer.SCRATCH, transfer.total.offset


def _few_parts(transfers: list[Transfer]) -> frozenset[Sum]:
    """Returns the partial sums that the block adds up that sends them on."""
    parts = Counter(
        sum_of(t) for t in transfers if t.land != "final" and t.total.buffer is Buffer.SCRATCH
    )
    return frozenset(key for key, count in parts.items() if count <= LATE)


def share_sums(n: int, transfers: list[Transfer], steps: int) -> Adders:
    """Returns as few adders as can be where each takes `steps` parts of one tree's sums.

    A tree's sums are dealt out as evenly as they come, and stand in the order of the transfers.
    Were those of several trees in one list, all would wait for the one that is late.
    """
    trees: list[dict[int, Counter[Sum]]] = [defaultdict(Counter) for _ in range(n)]
    for transfer in transfers:
        if transfer.land != "final":
            trees[transfer.dst][transfer.group][sum_of(transfer)] += 1
    number: dict[Sum, int] = {}
    counts = []
    for own in trees:
        first = 0
        for parts in own.values():
            dealt = _deal(parts, steps)
            number |= {key: first + place for key, place in dealt.items()}
            first += 1 + max(dealt.values())
        counts.append(first)
    return Adders(tuple(counts), number)


def _deal(parts: Counter[Sum], steps: int) -> dict[Sum, int]:
    """Gives each sum to the adder that has least, of the fewest of whom none has over `steps`."""
    least = -(-parts.total() // steps)
    for count in range(least, len(parts) + 1):
        loads = [0] * count
        dealt = {}
        for key, own in parts.items():
            dealt[key] = place = loads.index(min(loads))
            loads[place] += own
        if max(loads) <= steps:
            break
    return dealt


# --- where transfers are received


def _at_once(count: int) -> Iterator[Event]:
    """Yields so many transfers, each received where it is sent."""
    for number in range(count):
        yield number, True
        yield number, False


def as_they_arrive(
    transfers: Sequence[Transfer], channels: Sequence[int], arrivals: Sequence[int]
) -> Iterator[Event]:
    """Yields transfers, each received when `arrivals` of all have been sent, or where it must.

    Those of a connection's channel one by one, before it sends the next; what opens a sum before
    its other parts.
    """
    queues: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
    openers: dict[tuple[int, int], int] = {}
    coming: list[tuple[int, int]] = []
    left: set[int] = set()

    def receive(number: int) -> Iterator[Event]:
        queue = queues[transfers[number].src, transfers[number].dst, channels[number]]
        while number in left:
            first = queue.popleft()
            opener = openers.get((transfers[first].tree, transfers[first].dst), first)
            if opener != first:
                yield from receive(opener)
            left.remove(first)
            yield first, False

    for number, transfer in enumerate(transfers):
        while coming and coming[0][0] <= number:
            yield from receive(heappop(coming)[1])
        queue = queues[transfer.src, transfer.dst, channels[number]]
        if queue:
            yield from receive(queue[-1])
        yield number, True
        left.add(number)
        queue.append(number)
        if transfer.land == "open":
            openers[transfer.tree, transfer.dst] = number
        if transfer.count > 1:
            yield from receive(number)
        else:
            heappush(coming, (arrivals[number], number))
    while coming:
        yield from receive(heappop(coming)[1])


# --- thread blocks


@dataclass(slots=True)
class _Work:
    """The transfers in their order; `late`: sums that the block adds up that sends them on.

    `arrivals`: of each transfer, how many have been sent when it is there; none: not known.
    `adders`: thread blocks that add up all sums, where there are any.
    """

    layout: Layout
    transfers: list[Transfer]
    scratch: list[int]
    early: frozenset[int]
    arrivals: Sequence[int] = ()
    late: frozenset[Sum] = frozenset()
    adders: Adders | None = None
    recycles: bool = False
    connections: list[Connection] = field(init=False)

    def __post_init__(self) -> None:
        self.connections = [t.connection for t in self.transfers]

    def late_sum(self, transfer: Transfer) -> Sum | None:
        """Returns the partial sum that the transfer sends on, if its block adds it up first."""
        if not self.late or transfer.source.buffer is not Buffer.SCRATCH:
            return None
        return transfer.src, True, transfer.source.offset


def _write(work: _Work, widths: Channels, limits: Limits) -> tuple[RankProgram, ...]:
    """Returns the thread blocks, `widths` of them for a connection, or more where they must."""
    target, n = limits.target, work.layout.n
    check_steps(_steps_of(n, work.transfers), limits)
    widths = _roomy(_steps_of_connections(work), widths, target)
    while True:
        channels = _share_out(work, widths, limits)
        blocks, owner = _own_blocks(work, channels)
        ranks = _emit(work, channels, _at_once(len(channels)), blocks, target)
        if not _widen(widths, owner, blocks, ranks, limits):
            break
    lengths = [rank.lengths for rank in ranks]
    paired = pair_ports(blocks, lengths, limits, work.adders.counts if work.adders else ())
    if paired != blocks:
        if work.arrivals:
            events = as_they_arrive(work.transfers, channels, work.arrivals)
            ranks = _emit(work, channels, events, paired, target)
        if not work.arrivals or max(max(rank.lengths) for rank in ranks) > target.steps:
            ranks = _emit(work, channels, _at_once(len(channels)), paired, target)
    programs = tuple(rank.program(target.dependency_blocks) for rank in ranks)
    check_ranks(programs, limits)
    return programs


def _least_blocks(work: _Work, widths: Channels, target: Target) -> int:
    """Returns thread blocks that some rank takes at least.

    Of two that are joined one sends and the other receives, and one has half of a list at most.
    """
    steps = _steps_of_connections(work)
    full, ports = [0] * work.layout.n, [[0, 0] for _ in range(work.layout.n)]
    for connection, width in _roomy(steps, widths, target).items():
        for sends, (rank, taken) in enumerate(
            zip(connection[1::-1], steps[connection], strict=True)
        ):
            full[rank] += width if taken // width > target.steps // 2 else 0
            ports[rank][sends] += width
    return max(*full, *map(max, ports))


def _steps_of_connections(work: _Work) -> dict[Connection, list[int]]:
    """Returns the steps that each connection takes where it ends, and where it begins."""
    waiting = Counter[Sum]()  # parts that whoever sends the sum on adds to it
    steps: dict[Connection, list[int]] = {c: [0, 0] for c in work.connections}
    for transfer, connection in zip(work.transfers, work.connections, strict=True):
        taken = steps[connection]
        sent = work.late_sum(transfer)
        taken[1] += 1 + (waiting.pop(sent, 0) if sent else 0)
        into = 1
        if transfer.land != "final":
            key = sum_of(transfer)
            if key in work.late:
                waiting[key] += 1
            elif work.adders is None:
                into = 2
        taken[0] += into
    return steps


def _roomy(steps: dict[Connection, list[int]], widths: Channels, target: Target) -> Channels:
    """Returns as many thread blocks for a connection, or as many as its steps take in any case."""
    return {c: max(count, -(-max(steps[c]) // target.steps)) for c, count in widths.items()}


def _steps_of(n: int, transfers: list[Transfer]) -> list[int]:
    """Returns, per rank, the steps that it takes however they are spread over thread blocks."""
    needed = [0] * n
    for transfer in transfers:
        needed[transfer.src] += 1
        needed[transfer.dst] += 1 if transfer.land == "final" else 2
    return needed


def _share_out(work: _Work, widths: Channels, limits: Limits) -> list[int]:
    """Returns each transfer's channel. A connection uses `widths` channels, loaded evenly.

    A runtime allows only so many thread blocks per rank, channel and direction: a rank with many
    peers uses further channels. No two connections between the same ranks share a channel.
    """
    target = limits.target
    room: dict[tuple[int, bool, int], int] = defaultdict(lambda: target.channel_blocks)
    taken: set[tuple[int, int, int]] = set()
    numbers: dict[Connection, list[int]] = {}
    for connection, wanted in sorted(widths.items()):
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
    loads = {connection: [0] * count for connection, count in widths.items()}
    channels = []
    for transfer, connection in zip(work.transfers, work.connections, strict=True):
        load = loads[connection]
        lane = load.index(min(load)) if len(load) > 1 else 0
        load[lane] += transfer.source.count
        channels.append(numbers[connection][lane])
    return channels


def _own_blocks(
    work: _Work, channels: list[int]
) -> tuple[list[list[Ports]], dict[Port, Connection]]:
    """Returns per rank its thread blocks, one for every connection, channel and direction.

    And the connection that each port is an end of.
    """
    owner: dict[Port, Connection] = {}
    for connection, channel in {*zip(work.connections, channels, strict=True)}:
        src, dst, *_ = connection
        owner[Port(src, True, dst, channel)] = connection
        owner[Port(dst, False, src, channel)] = connection
    blocks: list[list[Ports]] = [[] for _ in range(work.layout.n)]
    for port in sorted(owner):  # receivers first: they are what others wait for
        blocks[port.rank].append((port,))
    return blocks, owner


def _widen(
    widths: Channels,
    owner: dict[Port, Connection],
    blocks: list[list[Ports]],
    ranks: Sequence[RankWriter],
    limits: Limits,
) -> bool:
    """Gives connections with too long a thread block more channels; tells whether any had."""
    target = limits.target
    wanted: Channels = {}
    for own, rank in zip(blocks, ranks, strict=True):
        for (port,), taken in zip(own, rank.lengths, strict=False):
            if taken > target.steps:
                connection = owner[port]
                now = widths[connection]
                more = max(now + 1, -(-taken * now // target.steps))
                wanted[connection] = max(more, wanted.get(connection, 0))
    for (src, dst, _, _), count in wanted.items():
        if count > target.channels:
            where = f"{limits.rank(src)} -> {dst}"
            raise limits.refuse(where, "channels", count, target.channels)
    widths.update(wanted)
    return bool(wanted)


def _emit(
    work: _Work,
    channels: list[int],
    events: Iterable[Event],
    blocks: list[list[Ports]],
    target: Target,
) -> list[RankWriter]:
    """Writes what every rank does. `events`: transfers, each where it is sent, and received."""
    layout, transfers, early = work.layout, work.transfers, work.early
    ranks: list[RankWriter] = []
    copies = []
    for number, ports in enumerate(blocks):
        adders = work.adders.counts[number] if work.adders else 0
        spare = max(1, target.thread_blocks - len(ports) - adders)
        local = min(spare, local_blocks(layout))
        copies.append(layout.copies(number, target.count, local))
        local = min(local, len(copies[number]))
        kept = work.scratch[number]
        rank = RankWriter(layout, ports, local, kept, adders, recycles=work.recycles)
        if number in early:
            rank.copy(copies[number])
        ranks.append(rank)
    block = {tuple(port): b for rank in ranks for port, b in rank.block.items()}
    waiting: dict[Sum, list[Ref]] = defaultdict(list)  # what is not yet in a sum
    for number, sends in events:
        transfer, channel = transfers[number], channels[number]
        if sends:
            src = transfer.src
            sender, out = ranks[src], block[src, True, transfer.dst, channel]
            late = work.late_sum(transfer)
            for part in waiting.pop(late, ()) if late else ():
                sender.add(out, Op.REDUCE, part, transfer.source)
            sender.add(out, Op.SEND, transfer.source, None)
        else:
            dst = transfer.dst
            into = block[dst, False, transfer.src, channel]
            _receive(work, transfer, ranks[dst], into, waiting)
    for number, rank in enumerate(ranks):
        if number not in early:
            rank.copy(copies[number])
    return ranks


def _receive(
    work: _Work,
    transfer: Transfer,
    rank: RankWriter,
    block: int,
    waiting: dict[Sum, list[Ref]],
) -> None:
    total = transfer.total
    if transfer.land == "final":
        rank.add(block, Op.RECV, None, total)
        return
    if transfer.land == "add":
        part = rank.slot(total.count)
        rank.add(block, Op.RECV, None, part)
    else:
        part = work.layout.input(transfer.dst, transfer.chunk, total.count)
        rank.add(block, Op.RECV, None, total)
    key = sum_of(transfer)
    if key in work.late:
        waiting[key].append(part)
    else:
        adder = rank.adders[work.adders.number[key]] if work.adders else block
        rank.add(adder, Op.REDUCE, part, total)
