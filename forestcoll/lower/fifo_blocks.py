"""Thread blocks of a fifo program while they are being written, and joining them where too many."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from forestcoll.lower.layout import Layout, turn
from forestcoll.lower.limits import Limits
from forestcoll.program import Buffer, Instruction, Op, RankProgram, Ref, ThreadBlock


class Port(NamedTuple):
    """One end of a connection on one channel: the unit that a thread block can own."""

    rank: int
    sends: bool
    peer: int
    channel: int


Ports = tuple[Port, ...]
"""What one thread block owns: a receiving end, a sending end, or both on one channel."""
Waits = tuple[tuple[int, int], ...]
_BITS = 32
"""Of a step's number: a writer is a thread block's number above that of its step."""


class RankWriter:
    """The thread blocks of one rank: `ports` of each, more for local copies, and more that add.

    `recycles`: scratch is used again, so whoever writes it waits for those who sent what was there.
    """

    def __init__(
        self,
        layout: Layout,
        ports: list[Ports],
        local: int,
        scratch: int,
        adders: int = 0,
        *,
        recycles: bool = False,
    ) -> None:
        self.layout, self.ports = layout, ports
        self.block = {port: b for b, group in enumerate(ports) for port in group}
        self.local = range(len(ports), len(ports) + local)
        self.adders = range(self.local.stop, self.local.stop + adders)
        self.steps: list[list[tuple[Op, Ref | None, Ref | None, Waits]]]
        self.steps = [[] for _ in range(self.adders.stop)]
        self.lengths = [0] * self.adders.stop
        """Steps of each thread block, with a no-op for every dependency but the last."""
        self.scratch = scratch
        # per chunk of the output, and of scratch, its last writer; nobody writes the input
        self._out = [-1] * layout.output_chunks
        self._kept = [-1] * scratch
        # per chunk of the input, and of scratch that is used again, who has sent it and where
        self._readers: dict[int, dict[int, int]] = defaultdict(dict)
        self._sent: dict[int, dict[int, int]] | None = defaultdict(dict) if recycles else None
        # per thread block what it has waited for already, and need not wait for again
        self._waited: list[dict[int, int]] = [{} for _ in self.steps]

    def slot(self, count: int) -> Ref:
        """Returns fresh scratch for one transfer."""
        self.scratch += count
        self._kept += [-1] * count
        return Ref(Buffer.SCRATCH, self.scratch - count, count)

    def copy(self, copies: list[tuple[Ref, Ref]]) -> None:
        """Copies the own data from input to output, by the thread blocks that are there for it.

        In place the two are one memory, which a copy writes though it changes nothing: it waits
        for all that read it before.
        """
        for place, (src, dst) in enumerate(copies):
            readers: dict[int, int] = {}
            for chunk in range(src.offset, src.offset + src.count):
                _latest(readers, self._readers.get(chunk, {}))
            self.add(self.local[place % len(self.local)], Op.COPY, src, dst, readers)

    def add(
        self,
        block: int,
        op: Op,
        src: Ref | None,
        dst: Ref | None,
        readers: dict[int, int] | None = None,
    ) -> None:
        """Appends an instruction: it waits for `readers` and the last writers of all it touches."""
        waited, waits = self._waited[block], {}
        if dst is not None and self._sent is not None and op is Op.RECV:
            readers = self._readers_of(dst)
        for other, step in readers.items() if readers else ():
            if other != block and step > waited.get(other, -1):
                waited[other] = waits[other] = step
        for ref in (src, dst):
            if ref is None or ref.buffer is Buffer.INPUT:
                continue
            writers = self._out if ref.buffer is Buffer.OUTPUT else self._kept
            low, count = ref.offset, ref.count
            for writer in (writers[low],) if count == 1 else {*writers[low : low + count]}:
                other = writer >> _BITS
                if writer >= 0 and other != block:
                    step = writer - (other << _BITS)
                    if step > waited.get(other, -1):
                        waited[other] = waits[other] = step
        steps = self.steps[block]
        if dst is not None:
            writers = self._out if dst.buffer is Buffer.OUTPUT else self._kept
            low, count = dst.offset, dst.count
            writers[low : low + count] = [(block << _BITS) + len(steps)] * count
        elif src is not None and src.buffer is not Buffer.OUTPUT:
            sent = self._readers if src.buffer is Buffer.INPUT else self._sent
            if sent is not None:
                for chunk in range(src.offset, src.offset + src.count):
                    sent[chunk][block] = len(steps)
        self.lengths[block] += len(waits) or 1
        steps.append((op, src, dst, tuple(sorted(waits.items())) if waits else ()))

    def _readers_of(self, ref: Ref) -> dict[int, int]:
        """Returns who has sent what lay in scratch, and forgets them."""
        readers: dict[int, int] = {}
        if ref.buffer is Buffer.SCRATCH and self._sent is not None:
            for chunk in range(ref.offset, ref.offset + ref.count):
                _latest(readers, self._sent.pop(chunk, {}))
        return readers

    def program(self, most: int) -> RankProgram:
        """Returns all that was written, the blocks that others wait for in front if over `most`.

        The runtime can only wait for the first ones.
        """
        order = list(range(len(self.steps)))
        if len(order) > most:
            waited = {b for steps in self.steps for *_, waits in steps for b, _ in waits}
            order.sort(key=lambda b: (b not in waited, b))
        place = {b: number for number, b in enumerate(order)}
        moved = order != sorted(order)
        blocks = []
        for number in order:
            ports = self.ports[number] if number < len(self.ports) else ()
            instructions = [
                Instruction(
                    op,
                    () if src is None else (src,),
                    () if dst is None else (dst,),
                    tuple(sorted((place[b], s) for b, s in waits)) if moved else waits,
                )
                for op, src, dst, waits in self.steps[number]
            ]
            blocks.append(
                ThreadBlock(
                    steps=tuple(instructions),
                    recv=next((p.peer for p in ports if not p.sends), -1),
                    send=next((p.peer for p in ports if p.sends), -1),
                    channel=ports[0].channel if ports else 0,
                )
            )
        layout = self.layout
        return RankProgram(tuple(blocks), layout.input_chunks, layout.output_chunks, self.scratch)


def _latest(latest: dict[int, int], more: dict[int, int]) -> None:
    """Takes in, of each thread block, the later step."""
    for block, step in more.items():
        latest[block] = max(step, latest.get(block, -1))


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
