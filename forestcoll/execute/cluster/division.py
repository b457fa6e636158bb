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
    each = slots[1] * (_engine.FAR_HEAD + -(-slots[0] // LINE) * LINE)
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
    lines = list(tables.instructions)
    spans = _Spans(tables, addresses, chunk)
    put, writes = spans.put(homes), spans.writes()
    for row in tables.blocks:
        rank, after = row[0], False
        told = any(_meet(span, put[rank]) for writer, span in writes[rank] if writer != rank)
        for pc in range(row[2], row[3]):
            code = lines[pc][0]
            drains = after or code == _FLUSH
            after = code == _PUT_FLUSH
            if not strict and put[rank]:
                own = (span for owner, span in spans.targets(rank, pc) if owner == rank)
                drains = drains or (told and code in _SIGNALS)
                drains = drains or any(_meet(span, put[rank]) for span in own)
            column = _DRAINS_PUTS * drains + _FETCHES * spans.reads_elsewhere(rank, pc, homes)
            lines[pc] = (*lines[pc][:_DRAINS], column, *lines[pc][_DRAINS + 1 :])
    return replace(tables, instructions=lines)


@dataclass(frozen=True, slots=True)
class _Spans:
    """Memory that instructions name (`mark_drains`)."""

    tables: Tables
    addresses: Sequence[tuple[int, ...]]
    chunk: int

    def span(self, rank: int, operand: tuple[int, int, int, int]) -> Span:
        """Where an operand of `rank` lies: interpreter.hpp, `buffer_address`."""
        owner, buffer, offset, count = operand
        begin = self.addresses[rank][buffer]
        if owner != rank:
            begin += self.addresses[owner][buffer + 3] - self.addresses[rank][buffer + 3]
        return begin + offset * self.chunk, begin + (offset + count) * self.chunk

    def targets(self, rank: int, pc: int) -> list[tuple[int, Span]]:
        """(whose, where) of all that an instruction writes."""
        _, _, first, sources, count = self.tables.instructions[pc][:5]
        operands = self.tables.operands[first + sources : first + sources + count]
        return [(operand[0], self.span(rank, operand)) for operand in operands]

    def reads_elsewhere(self, rank: int, pc: int, homes: Sequence[int]) -> bool:
        """Whether an instruction reads memory of another process."""
        first, sources = self.tables.instructions[pc][2:4]
        operands = self.tables.operands[first : first + sources]
        return any(homes[owner] != homes[rank] for owner, *_ in operands)

    def put(self, homes: Sequence[int]) -> list[list[Span]]:
        """Of each rank, merged and in order: memory that goes elsewhere from where it lies."""
        spans: list[set[Span]] = [set() for _ in homes]
        for row in self.tables.blocks:
            rank = row[0]
            for pc in range(row[2], row[3]):
                code, _, first, sources, _ = self.tables.instructions[pc][:5]
                if code not in _PUTS:
                    continue
                into = self.targets(rank, pc)
                for k, (owner, _) in enumerate(into):
                    source = self.tables.operands[first + (k if sources > 1 else 0)]
                    span = self.span(rank, source) if code in _COPIES else into[0][1]
                    if homes[owner] != homes[rank]:
                        spans[rank].add(span)
        return [_merge(sorted(own)) for own in spans]

    def writes(self) -> list[list[tuple[int, Span]]]:
        """Of each rank: (who, where) of all that is written there, messages apart."""
        writes: list[set[tuple[int, Span]]] = [set() for _ in self.addresses]
        for row in self.tables.blocks:
            for pc in range(row[2], row[3]):
                for owner, span in self.targets(row[0], pc):
                    writes[owner].add((row[0], span))
        return [sorted(own) for own in writes]


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
