"""What a program does to its data, without buffers, thread blocks or channels.

`dataflow` replays a verified program symbolically (replay.py) and writes down every move from rank
to rank and every sum. Two values of one rank that hold the same ranks' contributions to the same
part of the data are one value: copies, scratch and what nobody reads in the end vanish. This is all
that an engine needs that has a transport of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

from forestcoll.program import PACKETS, RECEIVES, Buffer, Collective, Program
from forestcoll.program.chunks import ChunkCounts, count_chunks
from forestcoll.verify.atoms import find_atoms
from forestcoll.verify.check import Verified, verify
from forestcoll.verify.fifo import run_fifo
from forestcoll.verify.layout import SHIFT, SLICE, Layout
from forestcoll.verify.memory import Memory
from forestcoll.verify.onesided import run_onesided
from forestcoll.verify.packets import PacketReplay, run_packets
from forestcoll.verify.replay import Replay, Work
from forestcoll.verify.scale import scale_of
from forestcoll.verify.trace import Trace, flatten

_UNBOUNDED = 1 << 30
"""Messages that a connection holds here; `verify` has shown that fewer are enough."""


@dataclass(frozen=True, slots=True)
class Value:
    """A part of the data as rank `rank` has it at some time, added up over some ranks.

    `start` and `length` in units of 1 / `Dataflow.units` of the collective's whole data. What it is
    made from, as indices of earlier values: nothing (the rank's own input), one (the same value at
    another rank, moved here), or two (of this rank, added).
    """

    rank: int
    start: int
    length: int
    made_from: tuple[int, ...] = ()
    complete: bool = False  # the sum over all ranks


@dataclass(frozen=True, slots=True)
class Dataflow:
    """All values that the result needs, each after those that it is made from.

    `outputs[r]` lists the values that make up rank r's output; none where the collective leaves it
    open. `parts`: of the data, equal ones; no value crosses from part to part.
    """

    collective: Collective
    ranks: int
    root: int
    units: int
    parts: int
    values: tuple[Value, ...]
    outputs: tuple[tuple[int, ...], ...]
    verified: Verified

    def moves(self) -> list[tuple[int, int]]:
        """(value at the sender, value at the receiver) of every transfer between ranks."""
        return [(v.made_from[0], k) for k, v in enumerate(self.values) if len(v.made_from) == 1]


def dataflow(program: Program) -> Dataflow:
    """The dataflow of `program`, which is verified first: PlanError says where it is wrong.

    Raises UnsupportedError where the program is larger than `verify` handles.
    """
    verified = verify(program)
    sizes = count_chunks(program)
    # One round stands for all rounds of a pipeline, and one launch for all: they do the same.
    scale = scale_of(program, sizes, rounds=1, launches=1)
    layout = Layout(program, sizes, grain=scale.grain)
    code = flatten(program, 1)
    atoms = find_atoms(code, layout, 1, _UNBOUNDED)
    packets = any(i.op in PACKETS for *_, i in program.instructions())
    if program.style == "fifo":
        trace = run_fifo(code, atoms, _UNBOUNDED, _UNBOUNDED)
    elif packets:
        trace = run_packets(code, layout, atoms, 1)
    else:
        trace = run_onesided(code, 1)
    memory = Memory(layout, atoms, in_place=not program.out_of_place)
    recorder = (_PacketRecorder if packets else _Recorder)(trace, memory)
    recorder.run()
    return _needed(program, sizes, verified, recorder)


def levels(flow: Dataflow) -> list[int]:
    """For each value the round (from 0) whose transfers or sums make it; -1: it is an input."""
    found: list[int] = []
    for value in flow.values:
        latest = max((found[k] for k in value.made_from), default=-1)
        found.append(latest + 1 if len(value.made_from) == 1 else latest)
    return found


class _Recorder(Replay):
    """A replay that notes values: (rank, value as in layout.py) -> index into `noted`."""

    def __init__(self, trace: Trace, memory: Memory) -> None:
        super().__init__(trace, memory)
        layout = memory.layout
        self.known: dict[tuple[int, int], int] = {}
        self.noted: list[Value] = []
        self._firsts = [layout.base(r, Buffer.INPUT) for r in range(layout.sizes.ranks)]
        starts = memory.atoms.starts
        for rank in range(layout.sizes.ranks):
            for atom in range(*memory.buffer(rank, Buffer.INPUT)):
                self._note(rank, self.values[atom], starts[atom + 1] - starts[atom], ())

    def _note(self, rank: int, value: int, length: int, made_from: tuple[int, ...]) -> None:
        if (rank, value) in self.known:
            # atoms.py parts alike whatever shares a contribution.
            assert self.noted[self.known[rank, value]].length == length
            return
        everyone = (1 << self.memory.layout.sizes.ranks) - 1
        self.known[rank, value] = len(self.noted)
        start, complete = (value & SLICE) - 1, value >> SHIFT == everyone
        self.noted.append(Value(rank, start, length, made_from, complete))

    def _move(self, src: int, dst: int, values: list[int]) -> None:
        for value in values:
            if value and src != dst:
                k = self.known[src, value]
                self._note(dst, value, self.noted[k].length, (k,))

    def _rank(self, event: int) -> int:
        return self.trace.code.rank[self.trace.block[event]]

    def _owner(self, atom: int) -> int:
        return bisect_right(self._firsts, self.memory.atoms.starts[atom]) - 1

    def _add(self, event: int, x: int, y: int) -> int:
        total = super()._add(event, x, y)
        if total:
            rank = self._rank(event)
            a, b = self.known[rank, x], self.known[rank, y]
            self._note(rank, total, self.noted[a].length, (a, b))
        return total

    def _message(self, event: int, work: Work) -> None:
        if work.op in RECEIVES:
            sent = self.trace.cross[event][0]
            self._move(self._rank(sent), self._rank(event), self._messages[sent])
        super()._message(event, work)

    def _local(self, event: int, work: Work) -> None:
        rank = self._rank(event)
        for low, high in work.src:
            self._move(self._owner(low), rank, self.values[low:high])
        super()._local(event, work)
        for low, high in work.dst:
            self._move(rank, self._owner(low), self.values[low:high])


class _PacketRecorder(_Recorder, PacketReplay):
    """The same where packets are part of the program."""

    def _combine(self, event: int, sources: list[int], targets: list[int]) -> None:
        rank = self._rank(event)
        for atom in sources:
            self._move(self._owner(atom), rank, [self.values[atom]])
        super()._combine(event, sources, targets)
        for atom in targets:
            self._move(rank, self._owner(atom), [self.values[atom]])


def _needed(
    program: Program, sizes: ChunkCounts, verified: Verified, recorder: _Recorder
) -> Dataflow:
    """What the outputs are made from, directly or not, numbered anew."""
    memory, noted = recorder.memory, recorder.noted
    outputs: list[list[int]] = []
    for rank in range(sizes.ranks):
        wanted = memory.output_values(rank, verified.root) or []
        outputs.append([recorder.known[rank, value] for value in wanted])
    used = bytearray(len(noted))
    for k in (k for output in outputs for k in output):
        used[k] = 1
    for k in reversed(range(len(noted))):
        if used[k]:
            for source in noted[k].made_from:
                used[source] = 1
    number: dict[int, int] = {}
    values = []
    for k, value in enumerate(noted):
        if used[k]:
            number[k] = len(number)
            values.append(replace(value, made_from=tuple(number[s] for s in value.made_from)))
    return Dataflow(
        collective=program.collective,
        ranks=sizes.ranks,
        root=verified.root,
        units=sizes.total * memory.layout.grain,
        parts=sizes.parts,
        values=tuple(values),
        outputs=tuple(tuple(number[k] for k in output) for output in outputs),
        verified=verified,
    )
