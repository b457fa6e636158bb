"""A plan dealt out to processes: whose ranks are whose, where everything lies, what cannot be done.

Each process has one arena for what others write: its ranks' buffers, and slots for messages from
elsewhere. All know how all are laid out, and keep address space for those of the others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from forestcoll.common.errors import UnsupportedError
from forestcoll.execute import _engine
from forestcoll.execute.contents import Buffers, place
from forestcoll.execute.result import Mode
from forestcoll.execute.sizes import Layout
from forestcoll.execute.tables import CODES, Tables
from forestcoll.program import PUTS, SIGNALS, Op, Program
from forestcoll.program.program import where

PAGE = 4096
LINE = 64
_PUTS = {CODES[op.value] for op in (*PUTS, Op.REDUCE_PUT, Op.READ_REDUCE_PUT)}
_COPIES = {CODES[op.value] for op in PUTS}
_SIGNALS = {CODES[op.value] for op in (*SIGNALS, Op.RELEASE)}
_FLUSH, _PUT_FLUSH = CODES[Op.FLUSH.value], CODES[Op.PUT_SIGNAL_FLUSH.value]
_DRAINS = 14  # its column in a row of instructions (tables.hpp), and its values
_DRAINS_PUTS, _FETCHES = 1, 2

Span = tuple[int, int]
"""Addresses: of the first byte, and of the one behind the last."""


def deal(ranks: int, processes: int) -> list[int]:
    """The process of each rank: neighbours together, as evenly as it goes.

    UnsupportedError: there are more processes than ranks.
    """
    if processes > ranks:
        raise UnsupportedError(
            f"{processes} processes for a plan of {ranks} ranks: start at most {ranks}"
        )
    return [rank * processes // ranks for rank in range(ranks)]


def check(
    program: Program, homes: Sequence[int], home: str = "process", *, reads: bool = True
) -> None:
    """UnsupportedError for a switch (NVLS) whose ranks are in several processes.

    `home`: what `homes` number. Not `reads`: also for what reads memory of another one.
    """
    for r, b, s, i in program.instructions():
        sources, targets = program.ranks[r].thread_blocks[b].operands(r, i)
        for ref in sources + targets if i.switches else () if reads else sources:
            if ref.rank is not None and homes[ref.rank] != homes[r]:
                does, instead = (
                    (f"goes over a switch of rank {ref.rank}", "without NVLS")
                    if i.switches
                    else (f"reads memory of rank {ref.rank}", "that puts data there instead")
                )
                raise UnsupportedError(
                    f"{where(r, b, s, i.op)}: {does}, which is in another {home}; put both ranks "
                    f"into one, or take a plan {instead}"
                )


@dataclass(slots=True)
class Arenas:
    """Where the buffers of all ranks lie, and the slots of connections between processes."""

    space: _engine.Space
    buffers: list[Buffers]  # of other processes' ranks: addresses, behind which their data is not
    slots: list[int]  # per connection: offset in its reader's arena, 0 where it has none


def lay_out(
    program: Program,
    tables: Tables,
    data: Layout,
    mode: Mode,
    homes: Sequence[int],
    process: int,
    slots: tuple[int, int],
) -> Arenas:
    """Arenas for `process`. `slots`: bytes of one, and how many a connection has."""
    count = max(homes) + 1
    what = program, tables.scratch, data.chunk_bytes, mode, homes
    _, ends = place(*what, [PAGE] * count, PAGE)
    each = slots[1] * (_engine.SLOT_HEAD + -(-slots[0] // LINE) * LINE)
    own = [homes[row[0]] for row in tables.blocks]
    offsets = [0] * len(tables.connections)
    for c, (writer, reader) in enumerate(tables.connections):
        home = own[reader]
        if own[writer] != home:
            offsets[c] = -(-ends[home] // PAGE) * PAGE
            ends[home] = offsets[c] + each
    space = _engine.Space(count, process, max(*ends, PAGE), True)
    buffers, _ = place(*what, [*map(space.arena, range(count))], PAGE)
    return Arenas(space, buffers, offsets)


def mark_drains(
    tables: Tables,
    addresses: Sequence[tuple[int, ...]],
    chunk: int,
    homes: Sequence[int],
    *,
    strict: bool = False,
) -> Tables:
    """The tables, with what must be done before where ranks are in several processes.

    `addresses`: of each rank's buffers, as the interpreter has them; a chunk has `chunk` bytes.
    What reads others' memory fetches it first. And it has to wait until what its rank has put
    elsewhere has left: a flush, and what follows a put that flushes. Plans may lack those where a
    put is done when it returns; so, unless `strict`, whatever writes memory that its rank puts from
    waits as well, and every signal of a rank of whose memory others write such a part: it may tell
    them to.
    """
    lines, operands = list(tables.instructions), tables.operands
    put: list[set[Span]] = [set() for _ in homes]  # by each rank, from where it lies
    writes: list[set[tuple[int, Span]]] = [set() for _ in homes]  # to each rank's memory: by whom
    spans: list[list[tuple[int, Span]]] = []  # (whose, where) of what each instruction writes

    def span(rank: int, operand: tuple[int, int, int, int]) -> Span:
        """Where an operand of `rank` lies: interpreter.hpp, `buffer_address`."""
        owner, buffer, offset, count = operand
        begin = addresses[rank][buffer]
        if owner != rank:
            begin += addresses[owner][buffer + 3] - addresses[rank][buffer + 3]
        return begin + offset * chunk, begin + (offset + count) * chunk

    for rank, _, begin, end, *_ in tables.blocks:
        for code, _, first, sources, count, *_ in lines[begin:end]:
            targets = first + sources
            into = [(one[0], span(rank, one)) for one in operands[targets : targets + count]]
            spans.append(into)
            for k, (owner, area) in enumerate(into):
                writes[owner].add((rank, area))
                if code in _PUTS and homes[owner] != homes[rank]:
                    source = span(rank, operands[first + (k if sources > 1 else 0)])
                    put[rank].add(source if code in _COPIES else into[0][1])
    merged = [_merge(sorted(own)) for own in put]
    for rank, _, begin, end, *_ in tables.blocks:
        told = any(_meet(area, merged[rank]) for writer, area in writes[rank] if writer != rank)
        after = False
        for pc in range(begin, end):
            code, _, first, sources, *_ = lines[pc]
            drains = after or code == _FLUSH
            after = code == _PUT_FLUSH
            if not strict and put[rank]:
                own = (area for owner, area in spans[pc] if owner == rank)
                drains = drains or (told and code in _SIGNALS)
                drains = drains or any(_meet(area, merged[rank]) for area in own)
            reads = (homes[owner] != homes[rank] for owner, *_ in operands[first : first + sources])
            column = _DRAINS_PUTS * drains + _FETCHES * any(reads)
            lines[pc] = (*lines[pc][:_DRAINS], column, *lines[pc][_DRAINS + 1 :])
    return replace(tables, instructions=lines)


def _merge(spans: Sequence[Span]) -> list[Span]:
    merged: list[Span] = []
    for begin, end in spans:
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def _meet(span: Span, spans: Sequence[Span]) -> bool:
    """Whether it shares memory with one of `spans`, which are in order and apart."""
    at = bisect_left(spans, (span[1], 0))
    return at > 0 and spans[at - 1][1] > span[0]
