"""Neighbouring locations that a program always touches together, as one: its atoms.

A plan of many small chunks does the same to long runs of them. Two neighbouring locations are
parted only where some operand begins or ends between them, or where something copies, adds, sends
or takes them to or from a place that is parted there. `find_atoms` closes this under all transfers
of the program, from the operands' ends to a fixpoint; what is then left whole are the atoms, and
one value, one last writer and one list of readers stand for a whole atom.

Why nothing is lost:

* Memory. Every operand covers whole atoms, and operands that are added, copied or sent to each
  other are parted alike. So all locations of an atom have the same history: the same accesses by
  the same events, and as values the same contributors to chunks that stay neighbours. One of them
  is wrong, or raced for, exactly if all are. The first stands for them in messages.
* Order. Where a piece of a message may be as small as a chunk, an event is an atom of a message in
  place of a chunk of it. Take two accesses to one location, the j-th of their atoms. If arrows lead
  from one to the other chunk by chunk, the same arrows lead from atom to atom. If arrows lead from
  atom to atom: those between a send and its receive keep j, and one within a thread block, or from
  a step to what comes after it, leads from every location of the one atom (or step) to every
  location of the other, so the last such arrow may arrive at j. Where pieces are longer, they are
  the events, and atoms end where pieces do.
* Deadlock is no matter of atoms: fifo.py counts real pieces in real slots.

In place, input and output are parted alike where they are the same memory; so one set of atoms, and
one trace, serve both modes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from forestcoll.program import PAIRS, RECEIVES, SENDS, Buffer, ThreadBlock
from forestcoll.verify.layout import Layout
from forestcoll.verify.trace import Code, Line

Span = tuple[int, int]  # locations, or atoms, [from, to)
Tie = tuple[int, tuple[int, ...]]  # a length, and the first locations of ranges that are alike

PASSES = 64
VISITS = 4_000_000
"""Sweeps over all ties, and looks at a tie, before every location is taken by itself.

That is always right, and costs no more than that there are so many locations.
"""

"""Operations that move sources to destinations, one each (or one to all)."""


class Operands(NamedTuple):
    """What a line works on, in atoms."""

    src: tuple[Span, ...]
    dst: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Atoms:
    """`starts[a]`: first location of atom a (and the end of all); `number[x]`: location x's atom.

    `operands[b][l]` belongs to line l of thread block b; lines without data share one.
    `in_place[b, l]`: what they are in place where the runtime then takes other memory for them.
    """

    starts: list[int]
    number: list[int]
    operands: list[list[Operands]]
    in_place: dict[tuple[int, int], Operands]

    def span(self, low: int, high: int) -> Span:
        """Locations [low, high), whose ends are ends of atoms, as atoms."""
        return self.number[low], self.number[high - 1] + 1


NOTHING = Operands((), ())
Spans = tuple[tuple[Span, ...], tuple[Span, ...]]
NO_SPANS: Spans = ((), ())


def find_atoms(code: Code, layout: Layout, rounds: int, piece: int) -> Atoms:
    """The atoms of a program that passed the checks of structure.py and wiring.py.

    `piece`: chunks in a piece of a message; where there are several, atoms end with their piece.
    """
    finder = _Finder(code, layout, rounds, piece)
    cuts = _closed(finder.cuts, finder.ties)
    del cuts[layout.size :]
    number = list(accumulate(cuts, initial=-1))
    del number[0]
    starts = [x for x, cut in enumerate(cuts) if cut]
    starts.append(layout.size)

    def spans(of: Sequence[Span]) -> tuple[Span, ...]:
        return tuple([(number[low], number[high - 1] + 1) for low, high in of])

    operands = [
        [Operands(spans(src), spans(dst)) if src or dst else NOTHING for src, dst in block]
        for block in finder.spans
    ]
    in_place = {at: Operands(spans(src), spans(dst)) for at, (src, dst) in finder.in_place.items()}
    return Atoms(starts, number, operands, in_place)


class _Finder:
    """Where atoms must end to begin with, and which ranges must be parted alike."""

    def __init__(self, code: Code, layout: Layout, rounds: int, piece: int) -> None:
        self.code, self.layout, self.rounds, self.piece = code, layout, rounds, piece
        self.cuts = bytearray(layout.size + 1)
        self.ties: list[Tie] = []
        self.spans: list[list[Spans]] = []
        self.in_place: dict[tuple[int, int], Spans] = {}  # where they are others in place
        misplaced = code.program.misplaced() if code.program.in_place else ()
        self._misplaced = frozenset((r, b, s) for r, b, s, *_ in misplaced)
        self._buffers()
        fifo = code.program.style == "fifo"
        messages: tuple[dict[tuple[int, int, int], list[Span]], ...] = ({}, {})
        for b, lines in enumerate(code.lines):
            rank = code.rank[b]
            block = code.program.ranks[rank].thread_blocks[code.number[b]]
            found = [
                self._line(rank, block, line)
                if line.instruction.src or line.instruction.dst
                else NO_SPANS
                for line in lines
            ]
            self.spans.append(found)
            for at, line in enumerate(lines):
                if (rank, code.number[b], line.step) in self._misplaced:
                    self._move(b, at, rank, block, line)
            if not fifo:
                continue
            for ops, ends, table in (
                (SENDS, (rank, block.send, block.channel), messages[0]),
                (RECEIVES, (block.recv, rank, block.channel), messages[1]),
            ):
                table[ends] = [
                    (src or dst)[0]
                    for (src, dst), line in zip(found, lines, strict=True)
                    if line.instruction.op in ops
                ]
        for ends, sent in messages[0].items():
            for pair in zip(sent, messages[1].get(ends, ()), strict=False):
                self._message(*pair)

    def _buffers(self) -> None:
        layout, sizes = self.layout, self.layout.sizes
        for rank in range(sizes.ranks):
            for buffer in (Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH):
                self.cuts[layout.base(rank, buffer)] = 1
            self._tie(layout.shared(rank))
            self._tie(layout.halves(rank))
            low, high = layout.buffer(rank, Buffer.OUTPUT)
            for part in range(low, high, sizes.part * layout.grain):
                self.cuts[part] = 1  # whose data it must hold changes there

    def _line(self, rank: int, block: ThreadBlock, line: Line) -> Spans:
        i = line.instruction
        sources, targets = block.operands(rank, i)
        src = tuple([self._slice(self.layout.span(rank, ref), line) for ref in sources])
        dst = tuple([self._slice(self.layout.span(rank, ref), line) for ref in targets])
        if len(src) == len(dst) > 1 and i.op in PAIRS:
            for pair in zip(src, dst, strict=True):
                self._tie(pair)
        else:
            self._tie((*src, *dst))
        return src, dst

    def _move(self, b: int, at: int, rank: int, block: ThreadBlock, line: Line) -> None:
        """Note what the runtime takes for a line's operands in place; it is parted as they are."""
        i, layout = line.instruction, self.layout
        sides = zip(block.operands(rank, i), (block.reads_by_port(i), False), strict=True)
        src, dst = (
            tuple(
                [
                    self._slice(layout.span_in_place(rank, ref, by_port=by_port), line)
                    for ref in refs
                ]
            )
            for refs, by_port in sides
        )
        known = self.spans[b][at]
        for pair in zip((*known[0], *known[1]), (*src, *dst), strict=True):
            self._tie(pair)
        self.in_place[b, at] = src, dst

    def _slice(self, whole: Span, line: Line) -> Span:
        """The slice of a range (first, length) that a line handles: of a round, or of a part."""
        low, length = whole
        index, of = (line.round, self.rounds) if line.round >= 0 else line.instruction.part
        return low + length * index // of, low + length * (index + 1) // of

    def _tie(self, spans: Sequence[Span]) -> None:
        """The ends of the ranges part atoms, and so does whatever parts one of them."""
        if not spans:
            return
        for low, high in spans:
            self.cuts[low] = self.cuts[high] = 1
        low, high = spans[0]
        if len(spans) > 1 and high - low > 1:
            self.ties.append((high - low, tuple([low for low, _ in spans])))

    def _message(self, sent: Span, taken: Span) -> None:
        self._tie((sent, taken))
        if self.piece > 1:
            for end in range(sent[0], sent[1], self.piece):
                self.cuts[end] = 1


def _closed(cuts: bytearray, ties: list[Tie]) -> bytearray:
    """The cuts and all that follow from them by the ties.

    Sweeps forwards and backwards by turns: cuts follow the data quickly either way. (Slices of
    bytes keep a sweep as cheap as the ranges are long.)
    """
    for _ in range(min(PASSES, VISITS // (len(ties) + 1))):
        changed = False
        for tie in ties:
            changed |= _spread(cuts, *tie)
        if not changed:
            return cuts
        ties = ties[::-1]
    return bytearray(b"\1" * len(cuts))


def _spread(cuts: bytearray, length: int, lows: tuple[int, ...]) -> bool:
    """Part ranges of one length, that begin at `lows`, alike; whether that changed anything."""
    first = cuts[lows[0] + 1 : lows[0] + length]
    for low in lows:
        if cuts[low + 1 : low + length] != first:
            break
    else:
        return False
    union = 0
    for low in lows:
        union |= int.from_bytes(cuts[low + 1 : low + length], "little")
    for low in lows:  # ranges may overlap: what one of them has got must stay
        own = int.from_bytes(cuts[low + 1 : low + length], "little")
        cuts[low + 1 : low + length] = (own | union).to_bytes(length - 1, "little")
    return True
