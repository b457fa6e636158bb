"""Memory along a trace: what every chunk holds, and which accesses meet in one place.

One replay covers one mode (in place or out of place). Values are followed through the first launch
only: later launches run the same instructions on new input (onesided.py says why that is enough).
Collisions are collected as pairs of events and handed to order.py, which finds those that nothing
orders; if there are none, every timing gives the values of this one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from forestcoll.errors import PlanError
from forestcoll.program import Buffer, Collective, Instruction, Op, Ref
from forestcoll.verify.layout import BUFFER_NAMES, SHIFT, SLICE, Layout, contributors
from forestcoll.verify.order import unordered
from forestcoll.verify.structure import PUTS, RECEIVES, SENDS, Scale
from forestcoll.verify.trace import SYNC, Line, Trace

Span = tuple[int, int]  # locations [from, to)


@dataclass(frozen=True, slots=True)
class _Work:
    """What an instruction does in this mode: sources added up (or copied) to destinations.

    `written` is `dst` without destinations of a copy that are their own source: a copy that does
    nothing in place may run beside readers, though not beside writers, whose data it could undo.
    """

    op: Op
    src: tuple[Span, ...]
    dst: tuple[Span, ...]
    written: tuple[Span, ...]


class Replay:
    """One mode's memory; `run` goes through the whole trace."""

    def __init__(self, trace: Trace, layout: Layout, scale: Scale) -> None:
        self.trace, self.layout, self.scale = trace, layout, scale
        self.final = Final(trace, layout)
        self.values = layout.initial()
        self.writer = [-1] * layout.size  # last event that wrote a location
        self.readers = [0] * layout.size  # who read it since: index into _lists, 0 for nobody
        self._lists: list[tuple[int, int]] = [(-1, 0)]  # (event, index of the rest)
        self.collisions: dict[tuple[int, int], int] = {}  # (event, later event) -> location
        self._wrong: tuple[int, str] | None = None  # the first event that adds what does not add up
        self._messages: dict[int, list[int]] = {}  # by the event that sent it
        self._cache: dict[tuple[int, int], _Work] = {}

    def run(self, ordered: set[tuple[int, int]]) -> None:
        """Check the whole run.

        `ordered` holds pairs of events known to be ordered and is added to. Raises PlanError: for a
        race first, since a wrong value may be but its effect.
        """
        if self.trace.code.program.style == "fifo":
            self._run_fifo()
        else:
            self._run_onesided()
        self._check_races(ordered)
        if self._wrong is not None:
            event, text = self._wrong
            raise PlanError(f"{self.trace.where(event)}: {text} ({self.layout.mode})")

    # --- accesses ---------------------------------------------------------------------------------

    def _meet(self, earlier: int, event: int, location: int) -> None:
        """Note that the order of two events matters, unless it is plain to see."""
        trace = self.trace
        chain = trace.chain[earlier]
        if chain == trace.chain[event] and earlier <= trace.prev[event]:
            return
        for c in trace.cross[event]:
            if chain == trace.chain[c] and (earlier == c or earlier <= trace.prev[c]):
                return
        self.collisions.setdefault((earlier, event), location)

    def _read(self, event: int, low: int, high: int) -> None:
        for w, x in _firsts(self.writer, low, high):
            if w >= 0 and w != event:
                self._meet(w, event, x)
        longer: dict[int, int] = {}
        lists, readers = self._lists, self.readers
        for x in range(low, high):
            rest = readers[x]
            if rest not in longer:
                longer[rest] = len(lists)
                lists.append((event, rest))
            readers[x] = longer[rest]

    def _write(self, event: int, low: int, high: int) -> None:
        for w, x in _firsts(self.writer, low, high):
            if w >= 0 and w != event:
                self._meet(w, event, x)
        for at, x in _firsts(self.readers, low, high):
            while at:
                reader, at = self._lists[at]
                if reader != event:
                    self._meet(reader, event, x)
        self.writer[low:high] = [event] * (high - low)
        self.readers[low:high] = [0] * (high - low)

    def _check_races(self, ordered: set[tuple[int, int]]) -> None:
        todo = [p for p in self.collisions if p not in ordered]
        loose = unordered(self.trace, todo)
        if loose:
            self._raise_race(*min(loose, key=lambda p: (p[1], p[0])))
        ordered.update(todo)

    def _raise_race(self, a: int, b: int) -> NoReturn:
        trace, place = self.trace, self.layout.name(self.collisions[a, b])
        mode = self.layout.mode
        for caller, other in ((a, b), (b, a)):
            if trace.block[caller] >= 0:
                continue
            rank = ~trace.block[caller]
            if trace.launch(other) >= trace.line[caller]:
                raise PlanError(
                    f"race: {trace.where(other)} uses {place} while that may still belong to "
                    f"{trace.where(caller)}; wait for a signal (relaxed will do) that rank {rank} "
                    f"gives in the same launch, and a nop, before it ({mode})"
                )
            raise PlanError(
                f"race: {trace.where(other)} may still use {place} when rank {rank}'s launch is "
                f"over and its caller changes it; before its launch ends, let rank {rank} wait for "
                f"a signal that comes after that (or flush its own port's put) ({mode})"
            )
        if trace.block[a] == trace.block[b] and trace.launch(a) == trace.launch(b):
            hint = "put a nop between them (and a flush after a port's put)"
        elif trace.code.program.style == "fifo":
            hint = "make one of them come after the other ('after')"
        else:
            hint = "let one wait (wait, nop) for a signal given after the other (nop, signal)"
        again = " of the next launch" if trace.launch(b) > trace.launch(a) else ""
        raise PlanError(
            f"race: {trace.where(a)} and {trace.where(b)}{again} both use {place}, at least one "
            f"writes it, and nothing orders them; {hint} ({mode})"
        )

    # --- values -----------------------------------------------------------------------------------

    def _add(self, event: int, x: int, y: int) -> int:
        """The sum of two values: defined, of the same chunk, and of different ranks.

        Otherwise nothing defined, and the first such event is noted.
        """
        if x and y and not (x ^ y) & SLICE and not (x & y) >> SHIFT:
            return x | y
        if self._wrong is None:
            name = self.layout.describe
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
        trace = self.trace
        for event in range(len(trace)):
            block = trace.block[event]
            entry = trace.code.lines[block][trace.line[event]]
            op = entry.instruction.op
            if op in RECEIVES or op in SENDS:
                self._message(event, block, entry)
            elif op is not Op.NOP:
                self._local(event, self._place(block, entry))
        for r in range(self.layout.sizes.ranks):
            self.final.keep(r, self.values, self.writer)

    def _message(self, event: int, block: int, entry: Line) -> None:
        """Send, receive or both: one piece of a message."""
        i, rank, trace = entry.instruction, self.trace.code.rank[block], self.trace
        first = trace.item[event] * trace.piece
        if first == 0 and i.src and i.dst:
            self._place(block, entry)  # for its check of the operands
        receives, values = i.op in RECEIVES, list[int]()
        if receives:
            values = self._messages.pop(trace.cross[event][0])
        if i.src:
            low, length = self.layout.span(rank, i.src[0])
            low, high = low + first, low + min(length, first + trace.piece)
            self._read(event, low, high)
            own = self.values[low:high]
            values = self._add_all(event, values, own) if receives else own
        if i.dst:
            low, length = self.layout.span(rank, i.dst[0])
            low, high = low + first, low + min(length, first + trace.piece)
            self._write(event, low, high)
            self.values[low:high] = values
        if i.op in SENDS:
            self._messages[event] = values

    # --- onesided ---------------------------------------------------------------------------------

    def _run_onesided(self) -> None:
        trace = self.trace
        for event in range(len(trace)):
            item = trace.item[event]
            if item == SYNC:
                continue
            block = trace.block[event]
            if block < 0:
                self._caller(event, ~block)
                continue
            code = trace.code.lines[block]
            launch, line = divmod(trace.line[event], len(code))
            work = self._work(block, line, code[line])
            if item >= 0:  # one destination of a put
                src = work.src[item if len(work.src) > 1 else 0]
                work = _Work(Op.PUT, (src,), (work.dst[item],), (work.dst[item],))
            if launch == 0:
                self._local(event, work)
            else:
                self._touch(event, work)

    def _caller(self, event: int, rank: int) -> None:
        """Between launches input and output are the caller's, who may change both."""
        if self.trace.line[event] == 1:
            self.final.keep(rank, self.values, self.writer)
        for low, high in self.layout.user(rank):
            self._write(event, low, high)

    # --- one instruction --------------------------------------------------------------------------

    def _work(self, block: int, line: int, entry: Line) -> _Work:
        """The locations that a line of a thread block's code uses in this mode."""
        found = self._cache.get((block, line))
        if found is None:
            found = self._cache[block, line] = self._place(block, entry)
        return found

    def _place(self, block: int, entry: Line) -> _Work:
        i, rank = entry.instruction, self.trace.code.rank[block]
        src = tuple(self._span(rank, ref, entry) for ref in i.src)
        dst = tuple(self._span(rank, ref, entry) for ref in i.dst)
        if i.op is Op.REDUCE:
            src = (*dst, *src)
        clash = _clash(i, src, dst)
        if clash is not None:
            number = self.trace.code.number[block]
            raise PlanError(
                f"rank {rank}, thread block {number}, step {entry.step} ({i.op.value}): two of its "
                f"operands meet in {self.layout.name(clash)} but are not the same chunks "
                f"({self.layout.mode}); they must be equal or apart"
            )
        written = dst
        if i.op is Op.COPY:
            written = tuple(d for s, d in zip(src, dst, strict=True) if s != d)
        return _Work(i.op, src, dst, written)

    def _span(self, rank: int, ref: Ref, entry: Line) -> Span:
        """The slice of `ref` that this line handles: of a pipeline's round, or of a part."""
        low, length = self.layout.span(rank, ref)
        index, of = (entry.round, self.scale.rounds) if entry.round >= 0 else entry.instruction.part
        return low + length * index // of, low + length * (index + 1) // of

    def _touch(self, event: int, work: _Work) -> None:
        for low, high in work.src:
            self._read(event, low, high)
        for low, high in work.written:
            self._write(event, low, high)

    def _local(self, event: int, work: _Work) -> None:
        self._touch(event, work)
        if work.op in PUTS or work.op in (Op.COPY, Op.GET):
            single = len(work.src) == 1
            data = [self.values[low:high] for low, high in work.src]
            for k, (low, high) in enumerate(work.dst):
                self.values[low:high] = data[0 if single else k]
            return
        total = self._sum(event, work.src)
        for low, high in work.dst:
            self.values[low:high] = total


def _firsts(table: list[int], low: int, high: int) -> Iterable[tuple[int, int]]:
    """Each entry of table[low:high] once, with the first index at which it stands."""
    if high == low + 1:
        return ((table[low], low),)
    backwards = reversed(range(low, high))  # so that the first index is what stays
    return {table[x]: x for x in backwards}.items()


def _clash(i: Instruction, src: tuple[Span, ...], dst: tuple[Span, ...]) -> int | None:
    """A location where two operands overlap though the threads of a block would need an order."""
    pairs = i.op in PUTS or i.op in (Op.COPY, Op.GET)
    for k, (low, high) in enumerate(dst):
        for other in dst[:k]:
            if low < other[1] and other[0] < high:
                return max(low, other[0])
        for j, other in enumerate(src):
            equal = other == (low, high) and not (pairs and len(src) > 1 and j != k)
            if not equal and low < other[1] and other[0] < high:
                return max(low, other[0])
    return None


class Final:
    """What every rank was left with by the first launch."""

    def __init__(self, trace: Trace, layout: Layout) -> None:
        self.trace, self.layout = trace, layout
        self._kept: dict[tuple[int, Buffer], tuple[list[int], list[int]]] = {}

    def keep(self, rank: int, values: list[int], writers: list[int]) -> None:
        """Note the user buffers of `rank` as they are now."""
        for buffer in (Buffer.INPUT, Buffer.OUTPUT):
            low = self.layout.base(rank, buffer)
            high = low + self.layout.sizes.of(rank, buffer) * self.layout.grain
            self._kept[rank, buffer] = values[low:high], writers[low:high]

    def check(self, root: int) -> int:
        """Compare with what the collective defines; returns the root of a rooted one (else -1).

        A `root` of -1 is found from where the data came from or went. Raises PlanError with the
        first chunk that is wrong and who wrote it last.
        """
        rooted = self.layout.collective.rooted
        root = self._find_root() if rooted and root < 0 else root
        for rank in range(self.layout.sizes.ranks):
            wanted = self.layout.output_values(rank, root)
            if wanted is not None:
                self._compare(rank, Buffer.OUTPUT, wanted)
            if not self.layout.in_place:
                self._compare(rank, Buffer.INPUT, self.layout.input_values(rank))
        return root if rooted else -1

    def _find_root(self) -> int:
        n = self.layout.sizes.ranks
        if self.layout.collective is Collective.BROADCAST:
            votes = {v for r in range(n) for v in self._kept[r, Buffer.OUTPUT][0][:1] if v}
            ranks = {contributors(v)[0] for v in votes}
            return min(ranks) if len(ranks) == 1 else 0
        for rank in range(n):
            if self._kept[rank, Buffer.OUTPUT][0] == self.layout.output_values(rank, rank):
                return rank

        def filled(rank: int) -> int:
            return sum(len(contributors(v)) for v in self._kept[rank, Buffer.OUTPUT][0])

        return max(range(n), key=filled)

    def _compare(self, rank: int, buffer: Buffer, wanted: list[int]) -> None:
        values, writers = self._kept[rank, buffer]
        if values == wanted:
            return
        k = next(k for k, (x, y) in enumerate(zip(values, wanted, strict=True)) if x != y)
        name = f"chunk {k // self.layout.grain} of rank {rank}'s {BUFFER_NAMES[buffer]}"
        holds, needs = self.layout.describe(values[k]), self.layout.describe(wanted[k])
        writer = writers[k]
        by = (
            "nothing writes it"
            if writer < 0 or self.trace.block[writer] < 0
            else f"last written by {self.trace.where(writer)}"
        )
        rule = "it must stay" if buffer is Buffer.INPUT else "it should hold"
        raise PlanError(
            f"wrong result: {name} holds {holds} at the end, {rule} {needs}; {by} "
            f"({self.layout.mode})"
        )
