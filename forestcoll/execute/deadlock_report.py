"""Why a launch ended early, in words: who waits for whom.

That nobody can go on is seen by `native/scheduler.cpp` on processors and by the host that watches
the GPUs (`gpu/worker.py`, watch); here their states become lines.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

from forestcoll.common.errors import ExecutionError
from forestcoll.execute import _engine
from forestcoll.execute.tables import CODES, LOOP, Tables
from forestcoll.program import PACKETS, SIGNALS, Op

SHOWN = 8  # thread blocks listed before "and n more"
_BY_CODE = {CODES[op.value]: op for op in Op}
_RAISES = {CODES[op.value] for op in (*SIGNALS, Op.RELEASE)}


Status = IntEnum("Status", "DONE STUCK STALLED MISMATCH INTERRUPTED LEFTOVER DIED LOST", start=0)
"""How a launch ended (engine.hpp)."""

Awaits = IntEnum(
    "Awaits",
    "NOTHING DEPENDENCY SLOT MESSAGE SEMAPHORE BARRIER PACKETS PUTS FETCHES",
    start=0,
)
"""What a thread block waits for (tables.hpp)."""


Blocks = list[int]
"""Numbers of thread blocks."""


class Stop(NamedTuple):
    """Where a thread block stood, and what it waited for: a row of the engine's."""

    block: int
    pc: int
    slice: int = 0
    round: int = 0
    piece: int = 0
    finished: bool = False
    awaits: int = Awaits.NOTHING
    object: int = -1
    wanted: int = 0
    present: int = 0


def error_of(lines: Iterable[str]) -> ExecutionError:
    """An error with the first line for its message, and the others for a note."""
    first, *others = lines
    error = ExecutionError(first)
    if others:
        error.add_note("\n".join(others))
    return error


def explain(
    tables: Tables,
    status: Status,
    rows: Sequence[_engine.Stop],
    leftovers: Sequence[tuple[int, int, int]],
    deaths: Sequence[_engine.Death],
    seconds: float,
) -> ExecutionError:
    """Why a launch did not end well, of what the engine says of it; `seconds`: its patience."""
    report = Report(tables, rows)
    match status:
        case Status.STUCK:
            return error_of(report.describe_deadlock())
        case Status.MISMATCH:
            return ExecutionError(report.say_mismatch(report.stops[0]))
        case Status.LEFTOVER:
            return ExecutionError(report.say_leftovers(leftovers))
        case Status.DIED:
            return error_of(report.say_death(deaths[0]))
        case _:
            return error_of(report.describe_stall(deaths, seconds))


class Report:
    """The stops of all thread blocks of a launch, in their order, in words."""

    def __init__(self, tables: Tables, rows: Iterable[_engine.Stop]) -> None:
        self.tables = tables
        self.stops = [Stop(*row) for row in rows]

    def describe_deadlock(self) -> list[str]:
        """Lines: how many are stuck, the circle of waits if there is one, and the first few."""
        waiting, circle = [s for s in self.stops if not s.finished], self.circle()
        ends = [s for s in waiting if not self.holders(s)]
        first = circle or (ends or waiting)[:SHOWN]
        rest = [s for s in waiting if s not in first]
        return [
            f"the plan is stuck: {len(waiting)} of {len(self.stops)} thread blocks wait for "
            "something that cannot happen any more",
            *["these wait for each other:"] * bool(circle),
            *(f"  {self.line(s)}" for s in first[:SHOWN]),
            *(["others behind them:", *self.first_lines(rest)] if rest else ()),
        ]

    def describe_stall(self, halted: Sequence[_engine.Death], seconds: float) -> list[str]:
        """Lines about a launch in which nothing moved for so long: where, who waits for whom.

        `halted`: ranks whose processes somebody has stopped.
        """
        return [
            *(
                f"rank {rank} (process {process}) is stopped, by SIGSTOP or a debugger"
                for rank, process, _, _ in halted
            ),
            f"no thread block made progress for {seconds:g} s; given up at",
            *self.open_lines({rank for rank, *_ in halted}),
        ]

    def say_death(self, death: _engine.Death) -> list[str]:
        """Lines about a launch that lost a rank's process."""
        rank, process, number, code = death
        how = f"ended with code {code}" if code >= 0 else "is gone, and nobody knows why"
        if number:
            name = signal.Signals(number).name if number in set(signal.Signals) else "no name"
            how = f"was killed by signal {number} ({name})"
            if number == signal.SIGKILL:
                how += "; if nobody did that, the machine may have run out of memory"
        held = self.open_lines({rank})
        lines = [f"rank {rank} (process {process}) {how}; all other ranks were ended"]
        return lines + (["it left the others at", *held] if held else [])

    def say_mismatch(self, stop: Stop) -> str:
        """A sentence for a message that has another size than its receiver expects."""
        writer = self.tables.connections[stop.object][0]
        return (
            f"{self.place(stop)} expects a message of {stop.wanted} bytes, but "
            f"{self.block(writer)} sent {stop.present}"
        )

    def say_leftovers(self, rows: Sequence[tuple[int, int, int]]) -> str:
        """A sentence for what nobody fetched: the data may be right, the next launch would not be.

        Rows: (0, connection, unread messages) and (1, semaphore, off its initial value).
        """
        parts = []
        for kind, number, amount in rows[:SHOWN]:
            if kind == 0:
                writer, reader = map(self.block, self.tables.connections[number])
                parts.append(f"{amount} messages from {writer} to {reader} were never received")
                continue
            raisers = ", ".join(map(self.block, self.raisers[number]))
            by = f" (raised by {raisers})" if raisers else ""
            side = "above" if amount > 0 else "below"
            name = self.tables.takers[number][1]
            parts.append(f"{name}{by} ends {abs(amount)} {side} its start")
        if len(rows) > SHOWN:
            parts.append(f"and {len(rows) - SHOWN} more")
        return f"the plan leaves things behind that would break the next launch: {'; '.join(parts)}"

    def first_lines(self, stops: Sequence[Stop]) -> list[str]:
        lines = [f"  {self.line(s)}" for s in stops[:SHOWN]]
        return lines + ([f"  and {len(stops) - SHOWN} more"] if len(stops) > SHOWN else [])

    def open_lines(self, first: set[int]) -> list[str]:
        """Unfinished thread blocks: those of ranks `first`, those who wait, the others."""
        blocks, nothing = self.tables.blocks, Awaits.NOTHING
        unfinished = [s for s in self.stops if not s.finished]
        unfinished.sort(key=lambda s: (blocks[s.block][0] not in first, s.awaits == nothing))
        return self.first_lines(unfinished)

    def block(self, block: int) -> str:
        rank, number = self.tables.blocks[block][:2]
        return f"rank {rank}, thread block {number}"

    def step(self, pc: int) -> tuple[int, str]:
        rows = self.tables.instructions
        code, step = rows[min(pc, len(rows) - 1)][:2]
        return step, _BY_CODE[code].value if code != CODES[LOOP] else "pipeline"

    def place(self, stop: Stop) -> str:
        step, op = self.step(stop.pc)
        extra = f", slice {stop.slice}" if stop.slice else ""
        extra += f", round {stop.round}" if stop.round else ""
        return f"{self.block(stop.block)}, step {step} ({op}{extra})"

    def states(self, blocks: Iterable[int]) -> list[str]:
        """What the first of these blocks are at."""
        states = []
        for block in list(blocks)[:SHOWN]:
            step, op = self.step(self.stops[block].pc)
            at = f"is at step {step} ({op})"
            states.append(
                f"{self.block(block)}, which {'has finished' if self.stops[block].finished else at}"
            )
        return states

    def line(self, stop: Stop) -> str:
        """Where a thread block stands, and whom it waits for."""
        ways, place = self.ways_on(stop), self.place(stop)
        by = "; ".join(self.states(ways))
        match stop.awaits:
            case Awaits.DEPENDENCY:
                step = (stop.wanted - 1) % self.tables.blocks[stop.object][4]
                return f"{place} waits for step {step} of {by}"
            case Awaits.SLOT:
                return f"{place} waits until an earlier message is received by {by}"
            case Awaits.MESSAGE:
                return f"{place} waits for a message from {by}"
            case Awaits.SEMAPHORE:
                name = self.tables.takers[stop.object][1]
                return f"{place} waits for {name}: {by or 'which no instruction raises'}"
            case Awaits.BARRIER:
                by = "; ".join(self.states(self.holders(stop)))
                end = f": {by}" if by else ", which nobody else comes to"
                return f"{place} waits at a barrier{end}"
            case Awaits.PACKETS:
                by = by or "nobody"
                return f"{place} waits for packets of this launch, which come from {by}"
            case Awaits.PUTS:
                return f"{place} waits until what rank {stop.object} has put elsewhere has left"
            case Awaits.FETCHES:
                return f"{place} waits for what it reads of other processes"
        return place

    def ways_on(self, stop: Stop) -> Blocks:
        """The blocks, finished or not, whose doing could end this wait."""
        match stop.awaits:
            case Awaits.DEPENDENCY:
                return [stop.object]
            case Awaits.SLOT:
                return [self.tables.connections[stop.object][1]]
            case Awaits.MESSAGE:
                return [self.tables.connections[stop.object][0]]
            case Awaits.SEMAPHORE:
                return self.raisers[stop.object]
            case Awaits.BARRIER:
                here = Awaits.BARRIER, stop.object
                return [
                    b
                    for b in self.members[stop.object]
                    if (self.stops[b].awaits, self.stops[b].object) != here
                ]
            case Awaits.PACKETS:
                return self.writers(stop.pc)
        return []

    def holders(self, stop: Stop) -> Blocks:
        """The unfinished blocks that could end this wait."""
        return [b for b in self.ways_on(stop) if not self.stops[b].finished]

    def circle(self) -> list[Stop]:
        """A circle of waits, or nothing: every block is followed along its first holder."""
        colour = [0] * len(self.stops)  # 0 unseen, else the number of the walk that saw it
        for start in self.stops:
            if start.finished or colour[start.block]:
                continue
            walk: Blocks = []
            at = start.block
            while not colour[at]:
                colour[at] = start.block + 1
                walk.append(at)
                holders = self.holders(self.stops[at])
                if not holders:
                    break
                at = holders[0]
            else:
                if colour[at] == start.block + 1:
                    return [self.stops[b] for b in walk[walk.index(at) :]]
        return []

    # --- who does what, looked up in the tables

    def rows(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Every instruction with its block."""
        for block, row in enumerate(self.tables.blocks):
            for instruction in self.tables.instructions[row[2] : row[3]]:
                yield block, instruction

    @cached_property
    def raisers(self) -> dict[int, Blocks]:
        """The blocks that raise each semaphore."""
        raisers: dict[int, Blocks] = defaultdict(list)
        for block, (code, *_, first, count, _, _, _, _, _, _, _) in self.rows():
            for name in self.tables.names[first : first + count] if code in _RAISES else ():
                if block not in raisers[name]:
                    raisers[name].append(block)
        return raisers

    @cached_property
    def members(self) -> dict[int, Blocks]:
        """The blocks that come to each barrier."""
        members: dict[int, Blocks] = defaultdict(list)
        for block, row in self.rows():
            if row[0] == CODES[Op.BARRIER.value] and block not in members[row[9]]:
                members[row[9]].append(block)
        return members

    @cached_property
    def packet_places(self) -> list[tuple[int, int, int, int]]:
        """(block, rank, first chunk, end) of all packets that are written."""
        return [
            (block, *place) for block, row in self.rows() for place in self.packets(row, read=False)
        ]

    def packets(self, row: tuple[int, ...], *, read: bool) -> list[tuple[int, int, int]]:
        """(rank, first chunk, end) of the packets that an instruction reads, or writes."""
        code, _, first, sources, targets = row[:5]
        kind = PACKETS.get(_BY_CODE.get(code, Op.NOP))
        if kind is None:
            return []
        begin = first + (kind.packet_src if read else sources + kind.packet_dst)
        end = first + sources + (0 if read else targets)
        return [(rank, at, at + n) for rank, _, at, n in self.tables.operands[begin:end]]

    def writers(self, pc: int) -> Blocks:
        """Blocks that write packets which this instruction reads, ascending."""
        wanted = self.packets(self.tables.instructions[pc], read=True)
        return sorted(
            {
                block
                for block, rank, low, high in self.packet_places
                if any(rank == r and low < b and a < high for r, a, b in wanted)
            }
        )
