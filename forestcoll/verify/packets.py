"""Programs with packets (MSCCL++, protocol LL): what packets order, and what may overwrite them.

A packet is a few bytes of data and the number of the launch that wrote it. Whoever reads one waits
until it bears the number of its own launch, so no signal is needed. The rules of the runtime:

* A slot is written once a launch. A second packet of the same launch would be taken for the first.
* A slot must not be written again before all its packets have been read: the number that a slow
  reader waits for would never come back. With `double_scratch` launches take two halves by turns,
  so the next launch leaves the packets of this one alone, the one after it does not. Which half
  of a peer's scratch is meant, the writer's own scratch decides (halves.py).
* A packet orders its own data, nothing else: it is written and read without a fence. What its
  writer *read* before is over, for data depends on it; what its writer *wrote* elsewhere may not be
  seen yet. These are the weak arrows of a trace: they settle whether something may be overwritten
  that was read before, and nothing more. That a packet of a launch has come also says that this
  launch has begun at its writer, hence that all before it is over there, as a relaxed signal does.
* Packet by packet: a thread waits for its own packets only. So events are atoms, not operations.
* What reads packets and writes plain data goes through its operands by one rule: thread t of T has
  the elements t, t + T, ... from their begin (handleReduceSendPackets, handleReduceCopySendPackets,
  handleUnpackPackets). So where two such operations of a thread block write just the same chunks,
  each element has one thread, which does the second after the first: no barrier has to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from forestcoll.common.errors import PlanError
from forestcoll.program import ADDS, PACKETS, Buffer, Instruction, Op
from forestcoll.verify.accesses import Accesses
from forestcoll.verify.atoms import Atoms, Operands, Span
from forestcoll.verify.layout import Layout
from forestcoll.verify.memory import Memory
from forestcoll.verify.onesided import Block, Run
from forestcoll.verify.order import unordered
from forestcoll.verify.replay import Replay
from forestcoll.verify.trace import SYNC, Blocked, Code, Line, Trace

MOVES = PACKETS.keys() - ADDS
Pair = tuple[int, int]


# --- the run --------------------------------------------------------------------------------------


class _PacketRun(Run):
    """The abstract run of onesided.py, with packets: an event an atom."""

    def __init__(self, code: Code, layout: Layout, atoms: Atoms, launches: int) -> None:
        super().__init__(code, launches)
        self.layout, self.atoms = layout, atoms
        # (atom, launch) -> the event that wrote the packets, and the begin of the writer's launch
        self.written: dict[Pair, tuple[int, int]] = {}
        self.readers: dict[Pair, set[int]] = {}  # who waits for packets of that launch
        self.writer: dict[int, tuple[int, int]] = {}  # atom -> thread block and line
        # (thread block, chunks, which atom of them) -> who wrote that last in the course of packets
        self.threads: dict[tuple[int, Span, int], int] = {}
        for b, lines in enumerate(code.lines):
            for at, line in enumerate(lines):
                if line.instruction.op in PACKETS:
                    self._claim(b, at, line.instruction)

    def _claim(self, b: int, at: int, i: Instruction) -> None:
        shape = PACKETS[i.op]
        for low, high in self.atoms.operands[b][at].dst[shape.packet_dst :]:
            for atom in range(low, high):
                if atom in self.writer:
                    other, line = self.writer[atom]
                    code = self.code
                    raise PlanError(
                        f"{code.where(b, at)} and {code.where(other, line)} both write packets to "
                        f"{self._name(atom)} in one launch: who reads the first would take it for "
                        "the second",
                        rule="RUN-PACKETS-TWICE",
                        at=(code.rank[b], code.number[b], code.lines[b][at].step),
                    )
                self.writer[atom] = b, at

    def _name(self, atom: int) -> str:
        return self.layout.name(self.atoms.starts[atom])

    def _execute(self, b: int, state: Block, line: Line) -> bool:
        if line.instruction.op in PACKETS:
            return self._packets(b, state, line.instruction)
        return super()._execute(b, state, line)

    def _packets(self, b: int, state: Block, i: Instruction) -> bool:
        operands = self.atoms.operands[b][state.line]
        read = operands.src[PACKETS[i.op].packet_src :]
        if not self._all_here(b, state, read):
            return False
        if i.op is Op.FORWARD_PACKETS and i.channels and state.ends[i.channels[0]][2] == "port":
            self._push(b, state, i, operands)
            return True
        plain = PACKETS[i.op].packet_dst
        for item, (sources, targets) in enumerate(spread(i.op, operands)):
            before: tuple[int, ...] = ()
            thread = (b, operands.dst[0], item)
            if plain and thread in self.threads:
                before = (self.threads[thread],)
            packets = [sources[k] for k in packet_sources(i.op, sources)]
            event = self._read(b, state, item, packets, before)
            if plain:
                self.threads[thread] = event
            for atom in targets[plain:]:
                self._write(atom, state, event)
        return True

    def _all_here(self, b: int, state: Block, read: Iterable[Span]) -> bool:
        for low, high in read:
            for atom in range(low, high):
                key = atom, state.launch
                if key not in self.written:
                    self.readers.setdefault(key, set()).add(b)
                    writer = self.writer.get(atom, (None, 0))[0]
                    needs = f"waits for packets in {self._name(atom)}"
                    needs += ", which nobody writes" if writer is None else ""
                    state.blocked = Blocked(state.line, needs, writer)
                    return False
        return True

    def _read(
        self,
        b: int,
        state: Block,
        item: int,
        atoms: Sequence[int],
        before: tuple[int, ...] = (),
    ) -> int:
        """The event that reads these packets and does the rest with them, after those `before`."""
        found = [self.written[atom, state.launch] for atom in atoms]
        begins = tuple(dict.fromkeys(begin for _, begin in found))
        event = self._event(b, state, item, b, (*before, *begins))
        if found:
            self.trace.weak[event] = tuple(writer for writer, _ in found)
        state.open.append(event)
        return event

    def _write(self, atom: int, state: Block, event: int) -> None:
        key = atom, state.launch
        self.written[key] = event, state.begin
        for b in self.readers.pop(key, ()):
            self._wake(b)

    def _push(self, b: int, state: Block, i: Instruction, operands: Operands) -> None:
        """Over port channels: all threads wait, then a proxy sends what the packets have become."""
        for low, high in operands.src:
            for atom in range(low, high):
                self._read(b, state, SYNC, [atom])
        self._nop(b, state)
        width = operands.src[0][1] - operands.src[0][0]
        for position, (c, (low, high)) in enumerate(zip(i.channels, operands.dst, strict=True)):
            self.proxies -= 1
            tail = self._tail(state, c, position)
            sent = []
            for k, atom in enumerate(range(low, high)):
                sent.append(self._event(b, state, position * width + k, self.proxies, tail))
                self._write(atom, state, sent[-1])
            end = self._event(b, state, SYNC, self.proxies, tuple(sent))
            state.tails[c] = (end, state.nops, position)


def run_packets(code: Code, layout: Layout, atoms: Atoms, launches: int) -> Trace:
    """All launches of a program with packets that passed the checks; see onesided.run_onesided."""
    return _PacketRun(code, layout, atoms, launches).run()


def has_packets(trace: Trace) -> bool:
    """Whether the run had packets: its events are then to be replayed with `PacketReplay`."""
    return any(line.instruction.op in PACKETS for lines in trace.code.lines for line in lines)


def spread(op: Op, operands: Operands) -> list[tuple[list[int], list[int]]]:
    """Atom by atom, what an operation works on: the atoms of its sources, and of its targets.

    Operations that only move data do so target by target; reductions all operands at once.
    """
    if op not in MOVES:
        width = operands.src[0][1] - operands.src[0][0]
        return [
            ([low + k for low, _ in operands.src], [low + k for low, _ in operands.dst])
            for k in range(width)
        ]
    found = []
    for number, (low, high) in enumerate(operands.dst):
        source = operands.src[number if len(operands.src) > 1 else 0][0]
        found += [([source + k], [low + k]) for k in range(high - low)]
    return found


def packet_sources(op: Op, sources: Sequence[int]) -> range:
    """Which of an operation's sources (counted) are packets."""
    return range(min(PACKETS[op].packet_src, len(sources)), len(sources))


# --- memory along the run -------------------------------------------------------------------------


class _PacketAccesses(Accesses):
    """Accesses with packets; `light` are the collisions of a read with a later write."""

    __slots__ = ("light",)

    def __init__(self, trace: Trace, size: int) -> None:
        super().__init__(trace, size)
        self.light: set[Pair] = set()

    def take(self, event: int, atom: int, *, later: bool) -> None:
        """`event` reads packets, and has waited for just those."""
        if later:
            self._used[atom] = 1
            return
        if self._used[atom]:
            self.mixed = True
        self._lists.append((event, self._readers[atom]))
        self._readers[atom] = len(self._lists) - 1

    def _meet(self, earlier: int, event: int, atom: int) -> None:
        super()._meet(earlier, event, atom)
        self.light.discard((earlier, event))

    def _meet_readers(self, event: int, at: int, atom: int) -> None:
        while at:
            reader, at = self._lists[at]
            known = (reader, event) in self.collisions
            super()._meet(reader, event, atom)
            if not known and (reader, event) in self.collisions:
                self.light.add((reader, event))


class PacketReplay(Replay):
    """Memory along a trace with packets."""

    accesses: _PacketAccesses

    def __init__(self, trace: Trace, memory: Memory, *, every: bool = False) -> None:
        super().__init__(trace, memory, every=every)
        self.accesses = _PacketAccesses(trace, memory.size)
        self._spreads: dict[Pair, list[tuple[list[int], list[int]]]] = {}

    def _data(self, event: int, item: int, block: int, launch: int, line: int) -> None:
        i = self.trace.code.lines[block][line].instruction
        if i.op not in PACKETS:
            super()._data(event, item, block, launch, line)
            return
        if (block, line) not in self._spreads:
            work = self._works[block][line] or self._place(block, line)
            self._spreads[block, line] = spread(i.op, Operands(work.src, work.dst))
        sources, targets = self._spreads[block, line][item]
        packets = set(packet_sources(i.op, sources))
        sources = [self._half(block, a, launch, k in packets) for k, a in enumerate(sources)]
        plain = PACKETS[i.op].packet_dst
        targets = [self._half(block, a, launch, k >= plain) for k, a in enumerate(targets)]
        self._use(event, launch, sources, targets, packets)
        if launch == 0:
            self._combine(event, sources, targets)

    def _combine(self, event: int, sources: list[int], targets: list[int]) -> None:
        """Add up the sources' values for all targets."""
        value = self.values[sources[0]]
        for atom in sources[1:]:
            value = self._add(event, value, self.values[atom])
        for atom in targets:
            self.values[atom] = value

    def _half(self, block: int, atom: int, launch: int, packets: bool) -> int:
        """The atom that is meant in that launch: half of the own scratch decides, at peers too."""
        layout, atoms = self.memory.layout, self.memory.atoms
        if not packets or not launch % 2 or not layout.double:
            return atom
        low, high = layout.buffer(self.trace.code.rank[block], Buffer.SCRATCH)
        return atoms.number[atoms.starts[atom] + high - low]

    def _use(
        self, event: int, launch: int, sources: list[int], targets: list[int], packets: set[int]
    ) -> None:
        accesses = self.accesses
        later = launch > 0 and not self.every
        for k, atom in enumerate(sources):
            if k in packets:
                accesses.take(event, atom, later=later)
            elif later:
                accesses.read_later(event, atom, atom + 1)
            else:
                accesses.read(event, atom, atom + 1)
        for atom in targets:
            if later:
                accesses.write_later(event, atom, atom + 1)
            else:
                accesses.write(event, atom, atom + 1)


def without_causes(trace: Trace, loose: Collection[Pair], replays: Iterable[Replay]) -> list[Pair]:
    """Those of the `loose` pairs that weak arrows do not settle either.

    They settle whether what was read may be overwritten, where no replay found more at stake.
    """
    heavy = {
        pair
        for replay in replays
        if isinstance(replay, PacketReplay)
        for pair in replay.accesses.collisions
        if pair not in replay.accesses.light
    }
    light = [pair for pair in loose if pair not in heavy]
    cross = [(*arrows, *trace.weak.get(event, ())) for event, arrows in enumerate(trace.cross)]
    rest = set(unordered(replace(trace, cross=cross), light))
    return [pair for pair in loose if pair in heavy or pair in rest]
