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
without a connection that do nothing but add (`adders`) leave the others one step for each transfer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import cache, partial
from itertools import islice
from struct import iter_unpack
from typing import Any, NamedTuple

from forestcoll.common.errors import PlanError
from forestcoll.graph.kernel import _kernel
from forestcoll.lower.layout import Layout, local_blocks, turn
from forestcoll.lower.limits import (
    BLOCK,
    ENOUGH,
    LINK,
    Limits,
    check_ranks,
    check_steps,
    most_steps,
)
from forestcoll.lower.schedule import (
    MOST_UNIT,
    Channels,
    Connection,
    Links,
    channels_of,
    early_copies,
    schedule,
    transfers_of,
)
from forestcoll.program import Op, Phase, RankProgram, ThreadBlock
from forestcoll.program.targets import Target
from forestcoll.verify import _machine
from forestcoll.verify._machine import Columns
from forestcoll.verify.columns import OPS, WORDS, instructions_of

LATE = 4
"""Parts of a sum at most that the block adds up that sends it on."""
Checked = tuple[tuple[RankProgram, ...], Columns]
"""What ranks do, and its columns, which break no limit."""
Pairs = list[tuple[int, int]]
"""The connections, by their numbers, and the channels that they use."""
_KEPT: dict[object, _Work] = {}
"""The last work, by what it is for."""
_OPS = [*map(OPS.index, (Op.SEND, Op.RECV, Op.COPY, Op.REDUCE))]
"""What thread blocks do."""


def lower_fifo(
    layout: Layout,
    limits: Limits,
    links: Links | None = None,
    adders: bool = False,
    bulk: bool = True,
    least: int = 1,
) -> Checked:
    """Returns what every rank does; raises PlanError where a limit cannot be kept.

    With `links`: in the order of a schedule on them, as far as the limits allow. Without, or where
    they do not, level by level, in as few steps as can be. `adders`: in that order, sums are left
    to thread blocks of their own, if all transfers of a chunk fit then. `bulk`: for much data,
    where transfers may be longer than they have to be; of `least` chunks at least.
    """
    for unit, rate, apart in _attempts(layout, limits.target, links, bulk, least) if links else ():
        assert links is not None  # else there are no attempts
        with _take_work(layout, links, unit, rate, apart, adders) as work:
            if not adders:
                work.blocks.add_late(LATE)
                least, most = _least_blocks(work, limits.target), limits.target.thread_blocks
                if least > most and bulk:
                    continue
                if least > most:
                    raise limits.refuse("a rank", "thread blocks", least, most)
            if not work.arrivals:
                work.arrivals, _ = schedule(work.transfers, links, work.channels)
            if adders:
                room = limits.target.steps - local_blocks(layout)  # a root's wait for copies
                work.adders, _ = work.blocks.add_apart(room)
            try:
                return _write(work, limits)
            except PlanError:
                if adders or not bulk:  # longer transfers, or levels, are nothing that they are for
                    raise
    early = early_copies(layout)
    transfers = transfers_of(layout, limits.target.count, early, "instances")
    transfers.join_levels(limits.target.count)
    return write_fifo(layout, transfers, transfers.scratch, limits, early)


def write_fifo(
    layout: Layout,
    transfers: _kernel.Transfers,
    scratch: list[int],
    limits: Limits,
    early: frozenset[int] = frozenset(),
    *,
    recycles: bool = False,
) -> Checked:
    """Returns what every rank does for transfers in an order as the head of this file asks.

    `scratch`: chunks of it that they use, per rank; `recycles`: more than once. `early`: ranks that
    copy their own data first. Raises PlanError where a limit cannot be kept.
    """
    return _write(_Work(layout, transfers, scratch, early, recycles), limits)


@contextmanager
def _take_work(
    layout: Layout, links: Links, unit: int, rate: Fraction | None, apart: bool, adders: bool
) -> Iterator[_Work]:
    """Yields what thread blocks are written for; kept for the next target where one refuses.

    No other thread has it meanwhile.
    """
    key = layout, links, unit, rate, apart, adders
    work = _KEPT.pop(key, None)
    if work is None:
        early = early_copies(layout)
        transfers = transfers_of(layout, unit, early, "phases" if apart else "none")
        work = _Work(layout, transfers, transfers.scratch, early)
        work.channels = channels_of(layout, transfers, links, rate)
    try:
        yield work
    finally:
        work.blocks.clear()
        _KEPT.clear()
        _KEPT[key] = work


def _attempts(
    layout: Layout, target: Target, links: Links, bulk: bool, unit: int
) -> Iterator[tuple[int, Fraction | None, bool]]:
    """Yields chunks in a transfer, GB/s a thread block, whether phases and trees share no links."""
    rate = _block_rate(layout, links)
    whole = max(tree.count for tree in layout.trees)
    while unit <= min(MOST_UNIT, target.count, 2 * whole - 1):  # the last holds whole trees
        if _least_steps(layout, unit) <= most_steps(layout.n, target):
            yield unit, rate, True
            if not bulk:
                break
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
    needed, alike = [0] * layout.n, Counter[tuple[Phase, tuple[int, ...]]]()
    for tree in layout.trees:
        alike[tree.phase, tree.parent] += -(-tree.count // unit)
    for (phase, parents), transfers in alike.items():
        into = 2 if phase == "reduce" else 1
        for rank, parent in enumerate(parents):
            if parent >= 0:
                needed[rank] += transfers
                needed[parent] += transfers * into
    return max(needed)


# --- the ends of connections that thread blocks own


class Port(NamedTuple):
    """One end of a connection on one channel: the unit that a thread block can own."""

    rank: int
    sends: bool
    peer: int
    channel: int


Ports = tuple[Port, ...]
"""What one thread block owns: a receiving end, a sending end, or both on one channel."""


# --- thread blocks


class _Work:
    """What thread blocks are written for. `blocks`: the transfers in their order, in the kernel.

    `channels`: of each connection. `scratch`: chunks of it that ranks use besides those in which
    parts of sums are received.
    `arrivals`: of each transfer, how many have been sent when it is there; none: not known.
    `adders`: per rank thread blocks that add up all sums, where there are any.
    """

    arrivals: Sequence[int] = ()
    adders: Sequence[int] = ()

    def __init__(
        self,
        layout: Layout,
        transfers: _kernel.Transfers,
        scratch: list[int],
        early: frozenset[int],
        recycles: bool = False,
    ) -> None:
        self.layout, self.scratch, self.early, self.transfers = layout, scratch, early, transfers
        self.blocks = _kernel.FifoBlocks(
            transfers, layout.inputs, layout.output_chunks, recycles, _OPS
        )
        self.connections = transfers.connections
        self.channels: Channels = dict.fromkeys(self.connections, 1)


def _write(work: _Work, limits: Limits) -> Checked:
    """Returns the thread blocks, one for each channel of a connection, or more where they must."""
    target = limits.target
    check_steps(work.blocks.steps_of_ranks(), limits)
    widths = _roomy(work, target)
    while True:
        numbers = _share_out(widths, limits)
        pairs = work.blocks.share_out([numbers[connection] for connection in work.connections])
        blocks, owner = _own_blocks(work, pairs, limits.boxes)
        lengths = _emit(work, owner, blocks, target)
        if not _widen(
            widths, [work.connections[c] for c, _ in pairs], owner, blocks, lengths, limits
        ):
            break
    paired = pair_ports(blocks, lengths, limits, work.adders)
    if paired != blocks:
        for arrivals in work.arrivals, ():
            lengths = _emit(work, owner, paired, target, arrivals)
            if max(map(max, lengths)) <= target.steps:
                break
    columns = _machine.take_columns(work.blocks.columns(target.dependency_blocks), WORDS)
    programs = _programs(work, columns)
    return programs, check_ranks(programs, limits, columns)


def _least_blocks(work: _Work, target: Target) -> int:
    """Returns thread blocks that some rank takes at least.

    Of two that are joined one sends and the other receives, and one has half of a list at most.
    """
    steps = dict(zip(work.connections, work.blocks.steps_of_connections(), strict=True))
    full, ports = [0] * work.layout.n, [[0, 0] for _ in range(work.layout.n)]
    for connection, width in _roomy(work, target).items():
        for sends, (rank, taken) in enumerate(
            zip(connection[1::-1], steps[connection], strict=True)
        ):
            full[rank] += width if taken // width > target.steps // 2 else 0
            ports[rank][sends] += width
    return max(*full, *map(max, ports))


def _roomy(work: _Work, target: Target) -> Channels:
    """Returns as many thread blocks for a connection, or as many as its steps take in any case."""
    steps = zip(work.connections, work.blocks.steps_of_connections(), strict=True)
    return {c: max(work.channels[c], -(-max(taken) // target.steps)) for c, taken in steps}


def _share_out(widths: Channels, limits: Limits) -> dict[Connection, list[int]]:
    """Returns the channels of each connection, `widths` of them.

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
    return numbers


def _own_blocks(
    work: _Work, pairs: Pairs, boxes: Sequence[str]
) -> tuple[list[list[Ports]], dict[Port, int]]:
    """Returns per rank its thread blocks, one for every connection, channel and direction.

    And of which connection and channel each port is an end.
    """
    owner: dict[Port, int] = {}
    places: list[tuple[Any, ...]] = []
    n = work.layout.n
    start = [boxes.index(box) for box in boxes]  # the first rank of each rank's box
    for pair, (number, channel) in enumerate(pairs):
        src, dst, *_ = work.connections[number]
        on = start[dst] - start[src]
        place = on % n, (dst - src - on) % n, channel
        for port in (Port(src, True, dst, channel), Port(dst, False, src, channel)):
            owner[port] = pair
            places.append((port.rank, port.sends, *place, port))
    # Receivers first: they are what others wait for. Then by how many boxes, and places in a box,
    # further on: blocks begin in this order, and not all ranks are to begin with the same one.
    blocks: list[list[Ports]] = [[] for _ in range(n)]
    for *_, port in sorted(places):
        blocks[port.rank].append((port,))
    return blocks, owner


def _widen(
    widths: Channels,
    connections: Sequence[Connection],
    owner: dict[Port, int],
    blocks: list[list[Ports]],
    lengths: list[list[int]],
    limits: Limits,
) -> bool:
    """Gives connections with too long a thread block more channels; tells whether any had."""
    target = limits.target
    wanted: Channels = {}
    for own, rank in zip(blocks, lengths, strict=True):
        for (port,), taken in zip(own, rank, strict=False):
            if taken > target.steps:
                connection = connections[owner[port]]
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
    owner: dict[Port, int],
    blocks: list[list[Ports]],
    target: Target,
    arrivals: Sequence[int] = (),
) -> list[list[int]]:
    """Writes what every rank does; returns per rank the steps of its thread blocks.

    Each transfer is received where it is sent, or as `arrivals` say.
    """
    layout = work.layout
    copies = []
    work.blocks.clear()
    for rank, ports in enumerate(blocks):
        adders = work.adders[rank] if work.adders else 0
        spare = max(1, target.thread_blocks - len(ports) - adders)
        local = min(spare, local_blocks(layout))
        own = layout.copies(rank, target.count, local)
        copies.append([(src.offset, dst.offset, src.count) for src, dst in own])
        ends: tuple[Pairs, Pairs] = [], []
        for block, group in enumerate(ports):
            for port in group:
                ends[port.sends].append((owner[port], block))
        kept = work.scratch[rank]
        work.blocks.begin(*ends, len(ports), min(local, len(own)), adders, kept)
    return work.blocks.write(copies, [rank in work.early for rank in range(layout.n)], arrivals)


def _programs(work: _Work, columns: Columns) -> tuple[RankProgram, ...]:
    """Returns what all ranks do; steps are made when they are asked for, which most never are."""
    made = cache(partial(instructions_of, columns))
    blocks: list[list[ThreadBlock]] = [[] for _ in range(work.layout.n)]

    def steps(place: int) -> Any:
        return lambda: made()[place]

    for place, (rank, _, _, _, *ends) in enumerate(iter_unpack("10i", _machine.blocks(columns))):
        blocks[rank].append(ThreadBlock(steps(place), *ends[:3]))
    chunks = work.layout.input_chunks, work.layout.output_chunks
    return tuple(
        RankProgram(tuple(own), *chunks, work.blocks.scratch_of(rank))
        for rank, own in enumerate(blocks)
    )


def pair_ports(
    blocks: list[list[Ports]],
    lengths: Sequence[Sequence[int]],
    limits: Limits,
    adders: Sequence[int] = (),
) -> list[list[Ports]]:
    """Returns the blocks, short senders and receivers joined where a rank has too many of them.

    `lengths`: steps of every rank's thread blocks. `adders`: per rank those that only add. Raises
    PlanError where even that leaves too many.
    """
    target = limits.target
    result = []
    for rank, (ports, taken) in enumerate(zip(blocks, lengths, strict=True)):
        # one for local copies, if there are any
        add = adders[rank] if adders else 0
        local = add + min(1, len(taken) - len(ports) - add)
        excess = len(ports) + local - target.thread_blocks
        alone = {p[0]: n for p, n in zip(ports, taken, strict=False) if len(p) == 1}
        pairs = match_ports(alone, target.steps)[:excess] if excess > 0 else []
        if len(pairs) < excess:
            figure = len(ports) + local - len(pairs)
            raise limits.refuse(limits.rank(rank), "thread blocks", figure, target.thread_blocks)
        gone = {p for joined in pairs for p in joined}
        result.append([p for p in ports if p[0] not in gone] + pairs)
    return result


def match_ports(length: dict[Port, int], most: int) -> list[Ports]:
    """Returns receivers and senders of a channel that fit one thread block, the shortest first."""
    matches = []
    for channel in sorted({p.channel for p in length}):
        here = sorted((steps, p) for p, steps in length.items() if p.channel == channel)
        receivers = [(s, p) for s, p in here if not p.sends]
        senders = [(s, p) for s, p in here if p.sends]
        for taken, receiver in receivers:
            # the longest sender that still fits leaves the short ones for long receivers
            place = bisect_right(senders, most - taken, key=lambda entry: entry[0]) - 1
            if place >= 0:
                first = bisect_left(senders, senders[place][0], key=lambda entry: entry[0])
                own = (n for n in range(first, place) if senders[n][1].peer == receiver.peer)
                # what goes to a peer and what comes from it are far apart in the turns: half of
                # all blocks then send first, the others receive
                more, sender = senders.pop(next(own, place))
                matches.append((taken + more, (receiver, sender)))

    def place_of(match: tuple[int, Ports]) -> tuple[int, tuple[bool, int], Ports]:
        """Puts the next ranks first: where few are joined, not all ranks join those to one."""
        taken, joined = match
        return taken, turn(joined[0].peer, joined[0].rank), joined

    return [joined for _, joined in sorted(matches, key=place_of)]
