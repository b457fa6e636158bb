"""Why a launch ended early, in words: who waits for whom."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from forestcoll.program import Op

if TYPE_CHECKING:
    from forestcoll.execute import _engine
    from forestcoll.execute.tables import Tables

SHOWN = 8  # thread blocks listed before "and n more"


class Status(IntEnum):
    """How a launch ended (engine.hpp)."""

    DONE = 0
    STUCK = 1
    STALLED = 2
    MISMATCH = 3
    INTERRUPTED = 4
    LEFTOVER = 5
    DIED = 6


class Awaits(IntEnum):
    """What a thread block waits for (engine.hpp)."""

    NOTHING = 0
    DEPENDENCY = 1
    SLOT = 2
    MESSAGE = 3
    SEMAPHORE = 4
    BARRIER = 5
    PACKETS = 6


@dataclass(frozen=True, slots=True)
class _Stop:
    block: int
    pc: int
    slice: int
    round: int
    finished: bool
    awaits: Awaits
    object: int
    wanted: int
    present: int


def _stop(row: _engine.Stop) -> _Stop:
    block, pc, slice_, round_, _, finished, awaits, object_, wanted, present = row
    return _Stop(block, pc, slice_, round_, finished, Awaits(awaits), object_, wanted, present)


def explain_stuck(tables: Tables, rows: list[_engine.Stop]) -> str:
    """A paragraph: how many are stuck, the circle of waits if there is one, and the first few."""
    stops = [_stop(row) for row in rows]
    waiting = [s for s in stops if not s.finished]
    lines = [
        f"the plan is stuck: {len(waiting)} of {len(stops)} thread blocks wait for something "
        "that cannot happen any more"
    ]
    circle = _circle(tables, stops)
    if circle:
        lines.append("these wait for each other:")
        lines += [f"  {_line(tables, s, stops)}" for s in circle[:SHOWN]]
        rest = [s for s in waiting if s not in circle]
    else:
        ends = [s for s in waiting if not _holders(tables, s, stops)]
        first = ends or waiting
        lines += [f"  {_line(tables, s, stops)}" for s in first[:SHOWN]]
        rest = [s for s in waiting if s not in first[:SHOWN]]
    if rest:
        lines.append("others behind them:")
        lines += [f"  {_line(tables, s, stops)}" for s in rest[:SHOWN]]
        if len(rest) > SHOWN:
            lines.append(f"  and {len(rest) - SHOWN} more")
    return "\n".join(lines)


def explain_stalled(
    tables: Tables, rows: list[_engine.Stop], halted: list[_engine.Death], seconds: float
) -> str:
    """A paragraph for a launch in which nothing moved for so long: where, and who waits for whom.

    `halted`: ranks whose processes somebody has stopped.
    """
    stops = [_stop(row) for row in rows]
    lines = [f"no thread block made progress for {seconds:g} s; given up at"]
    lines[:0] = [
        f"rank {rank} (process {process}) is stopped, by SIGSTOP or a debugger"
        for rank, process, _, _ in halted
    ]
    return "\n".join([*lines, *_say_held(tables, stops, {rank for rank, *_ in halted})])


def explain_death(tables: Tables, rows: list[_engine.Stop], death: _engine.Death) -> str:
    """A paragraph for a launch that lost a rank's process."""
    rank, process, number, code = death
    how = f"ended with code {code}" if code >= 0 else "is gone, and nobody knows why"
    if number:
        name = signal.Signals(number).name if number in set(signal.Signals) else "no name"
        how = f"was killed by signal {number} ({name})"
        if number == signal.SIGKILL:
            how += "; if nobody did that, the machine may have run out of memory"
    stops = [_stop(row) for row in rows]
    held = _say_held(tables, stops, {rank})
    lines = [f"rank {rank} (process {process}) {how}; all other ranks were ended"]
    return "\n".join([*lines, *(["it left the others at", *held] if held else [])])


def _say_held(tables: Tables, stops: list[_Stop], first: set[int]) -> list[str]:
    """Lines about unfinished thread blocks: those of ranks `first`, those who wait, the others."""
    open_ = [s for s in stops if not s.finished]
    open_.sort(key=lambda s: (tables.blocks[s.block][0] not in first, s.awaits is Awaits.NOTHING))
    lines = [f"  {_line(tables, s, stops)}" for s in open_[:SHOWN]]
    return lines + ([f"  and {len(open_) - SHOWN} more"] if len(open_) > SHOWN else [])


def explain_mismatch(tables: Tables, row: _engine.Stop) -> str:
    """A sentence for a message that has another size than its receiver expects."""
    stop = _stop(row)
    writer = tables.connections[stop.object][0]
    return (
        f"{_where(tables, stop)} expects a message of {stop.wanted} bytes, but "
        f"{_block(tables, writer)} sent {stop.present}"
    )


def explain_leftovers(tables: Tables, rows: list[tuple[int, int, int]]) -> str:
    """A sentence for what nobody fetched: the data may be right, the next launch would not be."""
    parts = []
    for kind, number, amount in rows[:SHOWN]:
        if kind == 0:
            writer, reader = tables.connections[number]
            parts.append(
                f"{amount} messages from {_block(tables, writer)} to {_block(tables, reader)} "
                "were never received"
            )
            continue
        name = tables.semaphore_names[number]
        raisers = ", ".join(_block(tables, b) for b in tables.raisers[number])
        by = f" (raised by {raisers})" if raisers else ""
        side = "above" if amount > 0 else "below"
        parts.append(f"{name}{by} ends {abs(amount)} {side} its start")
    if len(rows) > SHOWN:
        parts.append(f"and {len(rows) - SHOWN} more")
    return f"the plan leaves things behind that would break the next launch: {'; '.join(parts)}"


def _block(tables: Tables, block: int) -> str:
    rank, number = tables.blocks[block][:2]
    return f"rank {rank}, thread block {number}"


def _step(tables: Tables, pc: int) -> tuple[int, Op | None]:
    return tables.ops[min(pc, len(tables.ops) - 1)]


def _where(tables: Tables, stop: _Stop) -> str:
    step, op = _step(tables, stop.pc)
    extra = f", slice {stop.slice}" if stop.slice else ""
    extra += f", round {stop.round}" if stop.round else ""
    return f"{_block(tables, stop.block)}, step {step} ({op or 'pipeline'}{extra})"


def _state(tables: Tables, block: int, stops: list[_Stop]) -> str:
    other = stops[block]
    if other.finished:
        return f"{_block(tables, block)}, which has finished"
    step, op = _step(tables, other.pc)
    return f"{_block(tables, block)}, which is at step {step} ({op or 'pipeline'})"


def _line(tables: Tables, stop: _Stop, stops: list[_Stop]) -> str:
    where = _where(tables, stop)
    if stop.awaits is Awaits.DEPENDENCY:
        steps = tables.blocks[stop.object][4]
        step = (stop.wanted - 1) % steps
        return f"{where} waits for step {step} of {_state(tables, stop.object, stops)}"
    if stop.awaits is Awaits.SLOT:
        reader = _state(tables, tables.connections[stop.object][1], stops)
        return f"{where} waits until an earlier message is received by {reader}"
    if stop.awaits is Awaits.MESSAGE:
        writer = tables.connections[stop.object][0]
        return f"{where} waits for a message from {_state(tables, writer, stops)}"
    if stop.awaits is Awaits.SEMAPHORE:
        name = tables.semaphore_names[stop.object]
        raisers = [_state(tables, b, stops) for b in tables.raisers[stop.object]]
        by = "; ".join(raisers[:SHOWN]) if raisers else "which no instruction raises"
        return f"{where} waits for {name}: {by}"
    if stop.awaits is Awaits.BARRIER:
        missing = [_state(tables, b, stops) for b in _holders(tables, stop, stops)]
        by = f": {'; '.join(missing[:SHOWN])}" if missing else ", which nobody else comes to"
        return f"{where} waits at a barrier{by}"
    if stop.awaits is Awaits.PACKETS:
        writers = [_state(tables, b, stops) for b in tables.writers(stop.pc)]
        by = "; ".join(writers[:SHOWN]) if writers else "nobody"
        return f"{where} waits for packets of this launch, which come from {by}"
    return where


def _holders(tables: Tables, stop: _Stop, stops: list[_Stop]) -> list[int]:
    """The unfinished blocks that could end this wait."""
    if stop.awaits is Awaits.DEPENDENCY:
        found = [stop.object]
    elif stop.awaits is Awaits.SLOT:
        found = [tables.connections[stop.object][1]]
    elif stop.awaits is Awaits.MESSAGE:
        found = [tables.connections[stop.object][0]]
    elif stop.awaits is Awaits.SEMAPHORE:
        found = tables.raisers[stop.object]
    elif stop.awaits is Awaits.BARRIER:
        found = [
            b
            for b in tables.members[stop.object]
            if (stops[b].awaits, stops[b].object) != (Awaits.BARRIER, stop.object)
        ]
    elif stop.awaits is Awaits.PACKETS:
        found = tables.writers(stop.pc)
    else:
        found = []
    return [b for b in found if not stops[b].finished]


def _circle(tables: Tables, stops: list[_Stop]) -> list[_Stop]:
    """Stops of a circle of waits, or nothing; every block is followed along its first holder."""
    colour = [0] * len(stops)  # 0 unseen, else the number of the walk that saw it
    for start in stops:
        if start.finished or colour[start.block]:
            continue
        walk: list[int] = []
        at = start.block
        while not colour[at]:
            colour[at] = start.block + 1
            walk.append(at)
            holders = _holders(tables, stops[at], stops)
            if not holders:
                break
            at = holders[0]
        else:
            if colour[at] == start.block + 1:
                return [stops[b] for b in walk[walk.index(at) :]]
    return []
