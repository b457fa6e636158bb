"""Why a launch on GPUs did not end well, in the words of the CPU engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forestcoll.common.errors import ExecutionError
from forestcoll.execute import _engine, deadlock_report
from forestcoll.execute.gpu.arena import Arenas
from forestcoll.execute.gpu.worker import Job
from forestcoll.execute.tables import Tables

Ended = tuple[list[tuple[Any, ...]], list[int]]
"""`Worker.ended` of a GPU: where its thread blocks stood, and its flags."""


def explain(job: Job, ended: Sequence[Ended], gave_up: float | None) -> None:
    """ExecutionError unless all is well. `gave_up`: seconds in which nothing moved, or None."""
    tables = job.tables
    culprit = next((row for rows, _ in ended for row in rows if row[8]), None)
    if culprit is not None:
        raise ExecutionError(deadlock_report.explain_mismatch(tables, _stop(culprit)))
    if gave_up is not None:
        stops = _stops(tables, [row for rows, _ in ended for row in rows])
        raise ExecutionError(
            f"nothing moved for {gave_up:g} s; {deadlock_report.explain_stuck(tables, stops)}"
        )
    left = _leftovers(job.arenas, tables, [flags for _, flags in ended])
    if left:
        raise ExecutionError(deadlock_report.explain_leftovers(tables, left))


def _stop(row: tuple[Any, ...]) -> _engine.Stop:
    block, pc, slice_, round_, piece, finished, awaits, object_, _, wanted, present = row
    return block, pc, slice_, round_, piece, bool(finished), awaits, object_, wanted, present


def _stops(tables: Tables, rows: list[tuple[Any, ...]]) -> list[_engine.Stop]:
    """All blocks' stops by number; those that never waited long are where they were, or done."""
    known = {row[0]: _stop(row) for row in rows if row[0] >= 0 and not row[5]}
    return [
        known.get(b, (b, block[2], 0, 0, 0, True, 0, -1, 0, 0))
        for b, block in enumerate(tables.blocks)
    ]


def _leftovers(
    arenas: Arenas, tables: Tables, flags: list[list[int]]
) -> list[tuple[int, int, int]]:
    """(0, connection, unread messages) and (1, semaphore, off its initial value)."""

    def value(place: tuple[int, int]) -> int:
        gpu, offset = place
        return flags[gpu][(offset - arenas.flags[gpu][0]) // 8]

    found = []
    for number, (posted, taken) in enumerate(zip(arenas.posted, arenas.taken, strict=True)):
        if value(posted) != value(taken):
            found.append((0, number, value(posted) - value(taken)))
    for number, place in enumerate(arenas.semaphores):
        amount = value(place) - tables.semaphores[number]
        if amount:
            found.append((1, number, amount))
    return found
