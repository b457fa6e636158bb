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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from forestcoll.lower.layout import Layout, RankTree, local_blocks
from forestcoll.lower.limits import Budget, steps
from forestcoll.program import (
    Buffer,
    Instruction,
    Op,
    RankProgram,
    Ref,
    ThreadBlock,
)
from forestcoll.targets import Target

READERS = 16
"""A root's copy to its own output waits for the sends of the same data, up to so many children.

With more it comes first, and the sends wait for it: one dependency each.
"""

Land = Literal["open", "add", "final"]
Connection = tuple[int, int]  # sender, receiver


class _Port(NamedTuple):
    """One end of a connection on one channel: the unit that a thread block can own."""

    rank: int
    sends: bool
    peer: int
    channel: int


@dataclass(frozen=True, slots=True)
class _Message:
    """`count` chunks of the whole from `chunk`, at one step of the order.

    Land "final": received in place, at `total`. "open": the first part of a sum: received at
    `total`, the own input is added to it. "add": received in a slot of its own, added to `total`.
    """

    level: int
    land: Land
    tree: int
    src: int
    dst: int
    chunk: int
    count: int
    source: Ref
    total: Ref

    @property
    def key(self) -> tuple[int, bool, int, int, int, int]:
        """Place in the order: the first part of a sum before the others of the same level."""
        return self.level, self.land != "open", self.tree, self.src, self.dst, self.chunk


def lower_fifo(layout: Layout, budget: Budget) -> tuple[RankProgram, ...]:
    """What every rank does, or PlanError where a limit cannot be kept."""
    target = budget.target
    trees = list(_cut(layout.trees, target.count))
    sums, scratch = _sums(trees, layout.n)
    early = _early(layout)
    messages = _join(_messages(layout, trees, sums, early), target.count)
    messages.sort(key=lambda m: m.key)
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


def _cut(trees: Iterable[RankTree], most: int) -> Iterator[RankTree]:
    """The trees, those of more than `most` chunks cut into nearly equal parts."""
    for tree in trees:
        parts = -(-tree.count // most)
        for part in range(parts):
            low, high = tree.count * part // parts, tree.count * (part + 1) // parts
            yield replace(tree, first=tree.first + low, count=high - low)


def _sums(trees: list[RankTree], n: int) -> tuple[dict[tuple[int, int], int], list[int]]:
    """Scratch offset of the partial sums of (tree, rank), and how many chunks a rank needs.

    In the order of the chunks, so that neighbours there are neighbours here.
    """
    needs: list[list[tuple[int, int, int]]] = [[] for _ in range(n)]
    for number, tree in enumerate(trees):
        if tree.phase == "reduce":
            for rank in set(tree.parent) - {-1, tree.root}:
                needs[rank].append((tree.first, tree.count, number))
    offsets = {}
    sizes = []
    for rank, need in enumerate(needs):
        used = 0
        for _, count, number in sorted(need):
            offsets[number, rank] = used
            used += count
        sizes.append(used)
    return offsets, sizes


def _early(layout: Layout) -> frozenset[int]:
    """Ranks that copy their own data to the output before all else, and use it from there."""
    if layout.collective.reduces:  # sums begin with it
        return frozenset(range(layout.n))
    children: dict[int, set[int]] = defaultdict(set)
    for tree in layout.trees:
        children[tree.root].update(r for r, p in enumerate(tree.parent) if p == tree.root)
    return frozenset(r for r, found in children.items() if len(found) > READERS)


def _messages(
    layout: Layout, trees: list[RankTree], sums: dict[tuple[int, int], int], early: frozenset[int]
) -> Iterator[_Message]:
    ready = [0] * layout.chunks  # level from which the root has the finished sum of a chunk
    for number, tree in enumerate(trees):
        if tree.phase == "reduce":
            yield from _reduce_messages(layout, number, tree, sums, ready)
    for number, tree in enumerate(trees):
        if tree.phase == "broadcast":
            yield from _broadcast_messages(layout, number, tree, ready, early)


def _reduce_messages(
    layout: Layout,
    number: int,
    tree: RankTree,
    sums: dict[tuple[int, int], int],
    ready: list[int],
) -> Iterator[_Message]:
    children = tree.children()
    level = [0] * layout.n  # of the message that a rank sends to its parent
    for rank in reversed(tree.order):
        level[rank] = max((1 + level[c] for c in children[rank]), default=0)
    for rank in tree.order:
        if rank == tree.root:
            total = layout.output(rank, tree.first, tree.count)
        elif children[rank]:
            total = Ref(Buffer.SCRATCH, sums[number, rank], tree.count)
        for place, child in enumerate(sorted(children[rank], key=lambda c: (level[c], c))):
            if children[child]:
                source = Ref(Buffer.SCRATCH, sums[number, child], tree.count)
            else:
                source = layout.input(child, tree.first, tree.count)
            # in place the root's result lies on its input: nothing may be received there
            land: Land = "open" if place == 0 and rank != tree.root else "add"
            yield _Message(
                level[child], land, number, child, rank, tree.first, tree.count, source, total
            )
    for chunk in range(tree.first, tree.first + tree.count):
        ready[chunk] = level[tree.root]


def _broadcast_messages(
    layout: Layout, number: int, tree: RankTree, ready: list[int], early: frozenset[int]
) -> Iterator[_Message]:
    level = [max(ready[tree.first : tree.first + tree.count])] * layout.n
    for rank in tree.order[1:]:
        parent = tree.parent[rank]
        given = parent != tree.root or parent in early
        source = (layout.output if given else layout.input)(parent, tree.first, tree.count)
        total = layout.output(rank, tree.first, tree.count)
        yield _Message(
            level[parent], "final", number, parent, rank, tree.first, tree.count, source, total
        )
        level[rank] = level[parent] + 1


def _join(messages: Iterable[_Message], most: int) -> list[_Message]:
    """Messages of one connection and level that are neighbours at both ends as one.

    The level being the same, all that they wait for still comes before all that waits for them.
    """
    joined: list[_Message] = []
    for message in sorted(messages, key=lambda m: (m.src, m.dst, m.level, m.land, m.chunk)):
        last = joined[-1] if joined else message
        if (
            joined
            and (last.src, last.dst, last.level, last.land)
            == (message.src, message.dst, message.level, message.land)
            and last.count + message.count <= most
            and last.chunk + last.count == message.chunk
            and _touch(last.source, message.source)
            and _touch(last.total, message.total)
        ):
            joined[-1] = replace(
                last,
                tree=min(last.tree, message.tree),
                count=last.count + message.count,
                source=_both(last.source, message.source),
                total=_both(last.total, message.total),
            )
        else:
            joined.append(message)
    return joined


def _touch(a: Ref, b: Ref) -> bool:
    return a.buffer == b.buffer and a.offset + a.count == b.offset


def _both(a: Ref, b: Ref) -> Ref:
    return Ref(a.buffer, a.offset, a.count + b.count)


def _refuse_early(n: int, messages: list[_Message], budget: Budget) -> None:
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


def _share_out(messages: list[_Message], lanes: dict[Connection, int], budget: Budget) -> list[int]:
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
    messages: list[_Message], channels: list[int], n: int
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
    messages: list[_Message],
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
