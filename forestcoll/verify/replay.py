"""Memory along a trace: what every atom holds, and which accesses meet in one place.

One replay covers one mode (in place or out of place). Values are followed through the first launch
only: later launches run the same instructions on new input (onesided.py says why that is enough).
accesses.py collects collisions as pairs of events, for order.py to find those that nothing orders;
if there are none, every timing gives the values of this one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from forestcoll.common.errors import PlanError
from forestcoll.program import PLAIN_MOVES, RECEIVES, SENDS, Instruction, Op
from forestcoll.verify.accesses import Accesses
from forestcoll.verify.atoms import Span
from forestcoll.verify.layout import SHIFT, SLICE, contributors
from forestcoll.verify.memory import Final, Memory
from forestcoll.verify.trace import SYNC, Trace

_MESSAGES = SENDS | RECEIVES


class Work(NamedTuple):
    """What an instruction does in this mode: sources added up (or copied) to destinations.

    `written` is `dst` without destinations of a copy that are their own source: a copy that does
    nothing in place may run beside readers, though not beside writers, whose data it could undo.
    """

    op: Op
    src: tuple[Span, ...]
    dst: tuple[Span, ...]
    written: tuple[Span, ...]


class Replay:
    """One mode's memory; `run` goes through the whole trace.

    Not `every` collision is collected but where that is asked for: accesses.py says when it is.
    """

    def __init__(self, trace: Trace, memory: Memory, *, every: bool = False) -> None:
        self.trace, self.memory, self.every = trace, memory, every
        self.accesses = Accesses(trace, memory.size)
        self.final = Final(trace, memory)
        self.values = memory.initial()
        self._wrong: tuple[int, str] | None = None  # the first event that adds what does not add up
        self._messages: dict[int, list[int]] = {}  # by the event that sent it
        self._works: list[list[Work | None]] = [[None] * len(x) for x in trace.code.lines]

    def run(self) -> None:
        """Go through the whole trace: values of the first launch, collisions of all."""
        if self.trace.code.program.style == "fifo":
            self._run_fifo()
        else:
            self._run_onesided()

    def faults(self, loose: Collection[tuple[int, int]], root: int) -> Iterator[PlanError]:
        """What is wrong with what `run` found; `loose` are the collisions that nothing orders.

        Races come first, and values only where there is none: a wrong value may be but its effect.
        `root` is that of a rooted collective (see Final.root), else -1.
        """
        races = [pair for pair in loose if pair in self.accesses.collisions]
        for a, b in sorted(races, key=lambda p: (p[1], p[0])):
            yield self._race(a, b)
        if self._wrong is not None:
            event, text = self._wrong
            yield PlanError(
                f"{self.trace.where(event)}: {text} ({self.memory.mode})",
                rule="RUN-WRONG-SUM",
                at=self.trace.at(event),
            )
        elif not races:
            yield from self.final.faults(root)

    def _race(self, a: int, b: int) -> PlanError:
        """The race of two events, in words: who, where, and what would order them."""
        trace, place = self.trace, self.memory.name(self.accesses.collisions[a, b])
        mode = self.memory.mode
        for caller, other in ((a, b), (b, a)):
            if trace.block[caller] >= 0:
                continue
            rank, at = ~trace.block[caller], trace.at(other)
            if trace.launch(other) >= trace.line[caller]:
                return PlanError(
                    f"race: {trace.where(other)} uses {place} while that may still belong to "
                    f"{trace.where(caller)}; wait for a signal (relaxed will do) that rank {rank} "
                    f"gives in the same launch, and a nop, before it ({mode})",
                    rule="RUN-RACE-CALLER",
                    at=at,
                )
            return PlanError(
                f"race: {trace.where(other)} may still use {place} when rank {rank}'s launch is "
                f"over and its caller changes it; before its launch ends, let rank {rank} wait for "
                f"a signal that comes after that (or flush its own port's put) ({mode})",
                rule="RUN-RACE-CALLER",
                at=at,
            )
        if trace.block[a] == trace.block[b] and trace.launch(a) == trace.launch(b):
            hint = "put a nop between them (and a flush after a port's put)"
        elif trace.code.program.style == "fifo":
            hint = "make one of them come after the other ('after')"
        else:
            hint = "let one wait (wait, nop) for a signal given after the other (nop, signal)"
        again = " of the next launch" if trace.launch(b) > trace.launch(a) else ""
        return PlanError(
            f"race: {trace.where(a)} and {trace.where(b)}{again} both use {place}, at least one "
            f"writes it, and nothing orders them; {hint} ({mode})",
            rule="RUN-RACE-LAUNCHES" if again else "RUN-RACE",
            at=trace.at(b),
            other=trace.at(a),
        )

    # --- values -----------------------------------------------------------------------------------

    def _add(self, event: int, x: int, y: int) -> int:
        """The sum of two values: defined, of the same chunk, and of different ranks.

        Otherwise nothing defined, and the first such event is noted.
        """
        if x and y and not (x ^ y) & SLICE and not (x & y) >> SHIFT:
            return x | y
        if self._wrong is None:
            name = self.memory.layout.describe
            if not x or not y:
                text = f"adds something undefined to {name(x or y)}"
            elif (x ^ y) & SLICE:
                text = f"adds {name(x)} to {name(y)}: different chunks"
            else:
                twice = contributors((x & y) >> SHIFT << SHIFT)
                text = f"adds {name(x)} to {name(y)}: rank {twice[0]} would count twice"
            self._wrong = event, text
        return 0

    def _sum(self, event: int, spans: tuple[Span, ...]) -> list[int]:
        values = self.values[spans[0][0] : spans[0][1]]
        for low, high in spans[1:]:
            values = self._add_all(event, values, self.values[low:high])
        return values

    def _add_all(self, event: int, xs: list[int], ys: list[int]) -> list[int]:
        return [self._add(event, x, y) for x, y in zip(xs, ys, strict=True)]

    # --- fifo -------------------------------------------------------------------------------------

    def _run_fifo(self) -> None:
        trace, works = self.trace, self._works
        for event, (block, line) in enumerate(zip(trace.block, trace.line, strict=True)):
            work = works[block][line] or self._place(block, line)
            if work.op in _MESSAGES:
                self._message(event, work)
            elif work.op is not Op.NOP:
                self._local(event, work)
        for r in range(self.memory.layout.sizes.ranks):
            self.final.keep(r, self.values, self.accesses.writer)

    def _message(self, event: int, work: Work) -> None:
        """Send, receive or both: one part of a message."""
        receives, values = work.op in RECEIVES, list[int]()
        if receives:
            values = self._messages.pop(self.trace.cross[event][0])
        if work.src:
            low, high = self._part(event, work.src[0])
            self.accesses.read(event, low, high)
            own = self.values[low:high]
            values = self._add_all(event, values, own) if receives else own
        if work.dst:
            low, high = self._part(event, work.dst[0])
            self.accesses.write(event, low, high)
            self.values[low:high] = values
        if work.op in SENDS:
            self._messages[event] = values

    def _part(self, event: int, span: Span) -> Span:
        """The atoms of a message's operand that an event handles."""
        item, piece, atoms = self.trace.item[event], self.trace.piece, self.memory.atoms
        if piece == 1:
            return span[0] + item, span[0] + item + 1
        first = atoms.starts[span[0]] + item * piece
        return atoms.span(first, min(first + piece, atoms.starts[span[1]]))

    # --- onesided ---------------------------------------------------------------------------------

    def _run_onesided(self) -> None:
        trace, works = self.trace, self._works
        for event, item in enumerate(trace.item):
            if item == SYNC:
                continue
            block, line = trace.block[event], trace.line[event]
            if block < 0:
                self._caller(event, ~block, line)
            else:
                self._data(event, item, block, *divmod(line, len(works[block])))

    def _data(self, event: int, item: int, block: int, launch: int, line: int) -> None:
        """One event of a line of a thread block's code."""
        work = self._works[block][line] or self._place(block, line)
        if item >= 0:  # one destination of a put
            src = work.src[item if len(work.src) > 1 else 0]
            work = Work(Op.PUT, (src,), (work.dst[item],), (work.dst[item],))
        if launch == 0:
            self._local(event, work)
        elif self.every:
            self._touch(event, work)
        else:
            for span in work.src:
                self.accesses.read_later(event, *span)
            for span in work.written:
                self.accesses.write_later(event, *span)

    def _caller(self, event: int, rank: int, launch: int) -> None:
        """Between launches input and output are the caller's, who may change both."""
        if launch == 1:
            self.final.keep(rank, self.values, self.accesses.writer)
        later = launch > 0 and not self.every
        write = self.accesses.write_later if later else self.accesses.write
        for low, high in self.memory.user(rank):
            write(event, low, high)

    # --- one instruction --------------------------------------------------------------------------

    def _place(self, block: int, line: int) -> Work:
        """The atoms that a line of a thread block's code uses in this mode, noted for next time."""
        code = self.trace.code
        i, operands = code.lines[block][line].instruction, self.memory.operands(block, line)
        src, dst = operands.src, operands.dst
        if i.op is Op.REDUCE:
            src = (*dst, *src)
        clash = _clash(i, src, dst) if dst and (src or len(dst) > 1) else None
        if clash is not None:
            raise PlanError(
                f"{code.where(block, line)}: two of its operands meet in "
                f"{self.memory.name(clash)} but are not the same chunks ({self.memory.mode}); "
                f"they must be equal or apart",
                rule="RUN-OVERLAP",
                at=(code.rank[block], code.number[block], code.lines[block][line].step),
            )
        written = dst
        if i.op is Op.COPY:
            written = tuple(d for s, d in zip(src, dst, strict=True) if s != d)
        found = self._works[block][line] = Work(i.op, src, dst, written)
        return found

    def _touch(self, event: int, work: Work) -> None:
        for low, high in work.src:
            self.accesses.read(event, low, high)
        for low, high in work.written:
            self.accesses.write(event, low, high)

    def _local(self, event: int, work: Work) -> None:
        self._touch(event, work)
        values, src = self.values, work.src
        if work.op not in PLAIN_MOVES:
            total = self._sum(event, src)
            for low, high in work.dst:
                values[low:high] = total
            return
        data = [values[low:high] for low, high in src]
        for k, (low, high) in enumerate(work.dst):
            values[low:high] = data[k if len(data) > 1 else 0]


def _clash(i: Instruction, src: tuple[Span, ...], dst: tuple[Span, ...]) -> int | None:
    """An atom where two operands overlap though the threads of a block would need an order."""
    pairs = i.op in PLAIN_MOVES
    for k, (low, high) in enumerate(dst):
        for other in dst[:k]:
            if low < other[1] and other[0] < high:
                return max(low, other[0])
        for j, other in enumerate(src):
            equal = other == (low, high) and not (pairs and len(src) > 1 and j != k)
            if not equal and low < other[1] and other[0] < high:
                return max(low, other[0])
    return None
