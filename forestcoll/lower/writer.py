"""Thread blocks of a fifo program while they are being written, and joining them where too many."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from forestcoll.lower.layout import Layout, turn
from forestcoll.lower.limits import Limits, steps
from forestcoll.program import Buffer, Instruction, Op, RankProgram, Ref, ThreadBlock


class Port(NamedTuple):
    """One end of a connection on one channel: the unit that a thread block can own."""

    rank: int
    sends: bool
    peer: int
    channel: int


Ports = tuple[Port, ...]
"""What one thread block owns: a receiving end, a sending end, or both on one channel."""


class RankWriter:
    """The thread blocks of one rank: `ports` of each, more for local copies, and more that add."""

    def __init__(self, ports: list[Ports], local: int, scratch: int, adders: int = 0) -> None:
        self.ports = ports
        self.scratch = scratch
        self.block = {port: b for b, group in enumerate(ports) for port in group}
        self.local = range(len(ports), len(ports) + local)
        self.adders = range(self.local.stop, self.local.stop + adders)
        self.steps: list[list[Instruction]] = [[] for _ in range(self.adders.stop)]
        # per chunk the (thread block, step) that wrote it last
        self._writer: dict[Buffer, list[tuple[int, int]]] = defaultdict(list)
        # per chunk of the input, and of scratch that is used again, who has sent it and where
        self._readers: dict[int, dict[int, int]] = defaultdict(dict)
        self._sent: dict[int, dict[int, int]] = defaultdict(dict)
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
        readers = dict(readers or {})
        for ref in dst if op is Op.RECV and self._sent else ():
            if ref.buffer is Buffer.SCRATCH:
                for chunk in range(ref.offset, ref.offset + ref.count):
                    for other, step in self._sent.pop(chunk, {}).items():
                        if other != block:
                            readers[other] = max(step, readers.get(other, -1))
        waits = {b: s for b, s in readers.items() if s > known.get(b, -1)}
        known |= waits
        steps = self.steps[block]
        for ref in (*src, *dst):
            writer, low = self._writer[ref.buffer], ref.offset
            last = writer[low : low + ref.count]
            for other, step in last if ref.count == 1 else set(last):
                if other != block and step > known.get(other, -1):
                    known[other] = waits[other] = step
        for ref in dst:
            writer, low, end = self._writer[ref.buffer], ref.offset, ref.offset + ref.count
            if end > len(writer):
                writer += [(block, -1)] * (end - len(writer))
            writer[low:end] = [(block, len(steps))] * ref.count
        if op is Op.SEND and src[0].buffer is not Buffer.OUTPUT:
            sent = self._readers if src[0].buffer is Buffer.INPUT else self._sent
            for chunk in range(src[0].offset, src[0].offset + src[0].count):
                sent[chunk][block] = len(steps)
        steps.append(Instruction(op, src, dst, tuple(sorted(waits.items())) if waits else ()))

    def program(self, layout: Layout) -> RankProgram:
        """All that was written."""
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


def packed(program: RankProgram) -> RankProgram:
    """The same without the chunks of scratch that nothing touches."""
    used: set[int] = set()
    for block in program.thread_blocks:
        for step in block.steps:
            assert isinstance(step, Instruction)
            for ref in (*step.src, *step.dst):
                if ref.buffer is Buffer.SCRATCH:
                    used.update(range(ref.offset, ref.offset + ref.count))
    place = {chunk: number for number, chunk in enumerate(sorted(used))}

    def moved(refs: tuple[Ref, ...]) -> tuple[Ref, ...]:
        return tuple(
            Ref(r.buffer, place[r.offset], r.count) if r.buffer is Buffer.SCRATCH else r
            for r in refs
        )

    blocks = []
    for block in program.thread_blocks:
        instructions = [
            replace(step, src=moved(step.src), dst=moved(step.dst))
            for step in block.steps
            if isinstance(step, Instruction)
        ]
        blocks.append(replace(block, steps=tuple(instructions)))
    return replace(program, thread_blocks=tuple(blocks), scratch_chunks=len(used))


def waited_first(program: RankProgram, most: int) -> RankProgram:
    """The same with the thread blocks that others wait for in front, if there are over `most`.

    The runtime can only wait for the first ones.
    """
    blocks = program.thread_blocks
    if len(blocks) <= most:
        return program
    waited = {b for t in blocks for s in t.steps if isinstance(s, Instruction) for b, _ in s.after}
    order = sorted(range(len(blocks)), key=lambda b: (b not in waited, b))
    place = {b: number for number, b in enumerate(order)}

    def renumbered(block: ThreadBlock) -> ThreadBlock:
        steps = [
            replace(s, after=tuple(sorted((place[b], t) for b, t in s.after)))
            for s in block.steps
            if isinstance(s, Instruction)
        ]
        return replace(block, steps=tuple(steps))

    return replace(program, thread_blocks=tuple(renumbered(blocks[b]) for b in order))


def pair(
    blocks: list[list[Ports]],
    programs: Sequence[RankProgram],
    limits: Limits,
    adders: Sequence[int] = (),
) -> list[list[Ports]]:
    """The blocks, where a rank has too many of them with short senders and receivers joined.

    `adders`: per rank the thread blocks that only add.
    """
    target = limits.target
    result = []
    for rank, (ports, program) in enumerate(zip(blocks, programs, strict=True)):
        # one for local copies, if there are any
        add = adders[rank] if adders else 0
        local = add + min(1, len(program.thread_blocks) - len(ports) - add)
        excess = len(ports) + local - target.thread_blocks
        length = {
            p[0]: steps(b)
            for p, b in zip(ports, program.thread_blocks, strict=False)
            if len(p) == 1
        }
        pairs = match_ports(length, target.steps)[: max(0, excess)]
        if len(pairs) < excess:
            figure = len(ports) + local - len(pairs)
            raise limits.refuse(limits.rank(rank), "thread blocks", figure, target.thread_blocks)
        gone = {p for joined in pairs for p in joined}
        result.append([p for p in ports if p[0] not in gone] + pairs)
    return result


def match_ports(length: dict[Port, int], most: int) -> list[Ports]:
    """Receivers and senders of the same channel that fit one thread block, the shortest first."""
    found = []
    for channel in sorted({p.channel for p in length}):
        here = sorted((steps, p) for p, steps in length.items() if p.channel == channel)
        receivers = [(s, p) for s, p in here if not p.sends]
        senders = [(s, p) for s, p in here if p.sends]
        for taken, receiver in receivers:
            # the longest sender that still fits leaves the short ones for long receivers
            place = bisect_right(senders, most - taken, key=lambda found: found[0]) - 1
            if place >= 0:
                first = bisect_left(senders, senders[place][0], key=lambda found: found[0])
                own = (n for n in range(first, place) if senders[n][1].peer == receiver.peer)
                # what goes to a peer and what comes from it are far apart in the turns of messages:
                # half of all blocks then send first, the others receive
                more, sender = senders.pop(next(own, place))
                found.append((taken + more, (receiver, sender)))

    def place_of(pair: tuple[int, Ports]) -> tuple[int, tuple[bool, int], Ports]:
        """The next ranks first: where only some are joined, not all ranks join those to one."""
        taken, joined = pair
        return taken, turn(joined[0].peer, joined[0].rank), joined

    return [joined for _, joined in sorted(found, key=place_of)]
