"""Time lines of simulated runs: rows of spans, the phase of each, and bars of tiles beside them.

A thread block does one thing at a time but where it reads from several ranks at once, and a forest
alone has as many flows for a tree and rank as there are children: those get a lane each.

A collective of one phase has nothing to tell apart. In an allreduce, a transfer belongs to the
reduce phase where its receiver adds what arrives: at once, or later from its scratch. Everything
else is broadcast.

Of tiles of a plan's data: at every rank a producer finishes tile after tile, the plan sends each on
its way as it is finished (program/tiles.py), and a consumer takes them as they become final.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from forestcoll.program import ADDS, FUSED, RECEIVES, SENDS, Buffer, Op, Program, Ref
from forestcoll.program.tiles import tiles
from forestcoll.ui.view.subject import Subject
from forestcoll.verify.simulate import Span, Timing, produce

PHASES = ("reduce", "broadcast", "copy")
"""The last one of what neither adds nor has one source: an all-to-all."""
LOCAL = "local work"
_Place = tuple[int, int, int, str]  # rank, thread block, step, operation
_Chunks = set[tuple[int, int]]  # rank, chunk of its scratch


class Row(NamedTuple):
    """A row of a rank: its thread block (of a forest alone its tree) or a proxy of it."""

    rank: int
    proxy: bool
    block: int
    lane: int


def assign_rows(timing: Timing) -> list[tuple[Row, Span]]:
    """Every span with its row, in the order of rows and times; spans of a row do not overlap."""
    ordered = sorted(timing.timeline, key=lambda s: (s.rank, s.proxy, s.block, s.start, s.end))
    assigned: list[tuple[Row, Span]] = []
    ends: list[float] = []  # per lane of the thread block at hand
    place: tuple[int, bool, int] | None = None
    for span in ordered:
        if place != (span.rank, span.proxy, span.block):
            place, ends = (span.rank, span.proxy, span.block), []
        lane = next((k for k, end in enumerate(ends) if end <= span.start), len(ends))
        ends[lane : lane + 1] = [span.end]
        assigned.append((Row(*place, lane), span))
    assigned.sort(key=lambda entry: (entry[0], entry[1].start, entry[1].end))
    return assigned


def name_row(row: Row, *, trees: bool) -> str:
    """`block 3`, `tree 3`, `block 3 (2)` of its second lane, `block 3 proxy`."""
    what = f"{'tree' if trees else 'block'} {row.block}"
    lane = f" ({row.lane + 1})" if row.lane else ""
    return what + " proxy" * row.proxy + lane


def rates(spans: Sequence[Span], links: int) -> list[list[tuple[float, float]]]:
    """Per link its load over time: (microseconds, GB/s from then on).

    Every transfer counts with its bytes spread evenly over its time, so that peaks of transfers
    which speed up and slow down are flattened.
    """
    changes: list[dict[float, float]] = [{} for _ in range(links)]
    for span in spans:
        if span.links and span.end > span.start:
            rate = span.bytes / (span.end - span.start) / 1000
            for link in span.links:
                at = changes[link]
                at[span.start] = at.get(span.start, 0.0) + rate
                at[span.end] = at.get(span.end, 0.0) - rate
    loads = []
    for at in changes:
        total, steps = 0.0, []
        for time in sorted(at):
            total += at[time]
            steps.append((time, max(0.0, total) if abs(total) > 1e-9 else 0.0))
        loads.append(steps)
    return loads


def find_phases(subject: Subject) -> Callable[[Span], str]:
    """The phase of a span of the subject's run: "reduce", "broadcast", "copy" or LOCAL."""
    program, forest = subject.program, subject.forest
    if program is None:
        assert forest is not None
        trees = forest.expand().trees
        return lambda span: trees[span.step].phase if span.links else LOCAL
    if not program.collective.two_phases:
        phase = next(iter(program.collective.phases), "copy")
        return lambda span: phase if span.links else LOCAL
    graph, adding = subject.graph(), {op.value for op in ADDS}
    sums = frozenset(_sums(program))

    def phase_of(span: Span) -> str:
        if not span.links:
            return LOCAL
        inward = graph.head[span.links[-1]] == graph.ranks[span.rank]
        if inward and span.what in adding:
            return "reduce"
        place = span.rank, span.block, span.step, span.what
        return "reduce" if place in sums else "broadcast"

    return phase_of


def _sums(program: Program) -> Iterator[_Place]:
    """What sends or fetches data that is added where it lands."""
    added: _Chunks = set()  # of scratch, that somebody adds to something
    for rank, _, _, i in program.instructions():
        if i.op in ADDS:
            for ref in (*i.src, *i.dst) if i.op is Op.REDUCE else i.src:
                added.update(_chunks(rank, ref))
    receivers: dict[tuple[int, int, int], list[bool]] = defaultdict(list)
    for rank, number, _, i in program.instructions():
        block = program.ranks[rank].thread_blocks[number]
        if i.op in RECEIVES:
            sum_ = (i.op in FUSED and i.op in ADDS) or _lands(rank, i.dst, added)
            receivers[block.recv, rank, block.channel].append(sum_)
    sent: dict[tuple[int, int, int], int] = defaultdict(int)
    for rank, number, step, i in program.instructions():
        block = program.ranks[rank].thread_blocks[number]
        if i.op in SENDS:
            way = rank, block.send, block.channel
            place = sent[way]
            sent[way] += 1
            if place < len(receivers[way]) and receivers[way][place]:
                yield rank, number, step, i.op.value
        elif i.op not in RECEIVES:
            peers = [block.channels[c].peer for c in i.channels]
            first = len(i.dst) - len(peers)
            owners = [rank] * first + peers if first >= 0 else [rank] * len(i.dst)
            if any(_lands(o, (ref,), added) for o, ref in zip(owners, i.dst, strict=True)):
                yield rank, number, step, i.op.value


def _lands(rank: int, refs: tuple[Ref, ...], added: _Chunks) -> bool:
    return any(chunk in added for ref in refs for chunk in _chunks(rank, ref))


def _chunks(rank: int, ref: Ref) -> Iterator[tuple[int, int]]:
    if ref.buffer is Buffer.SCRATCH:
        owner = rank if ref.rank is None else ref.rank
        yield from ((owner, chunk) for chunk in range(ref.offset, ref.offset + ref.count))


# --- tiles ----------------------------------------------------------------------------------------


WORK = ("producer", "in the plan", "consumer")
"""Phases of a tile."""


class Work(NamedTuple):
    """What goes on beside a plan: its `order` of tiles, and microseconds, None: the plan's own."""

    order: Sequence[int]
    producer: float | None = None
    consumer: float | None = None


class Overlap(NamedTuple):
    """The subject with tiles, its run behind the producer, and a bar for each phase of a tile.

    Of a bar `block` is the tile's place in the buffer, `step` its turn. `end`: of the last
    consumer, in microseconds. `said`: what is gained, in words.
    """

    subject: Subject
    timing: Timing
    bars: tuple[Span, ...]
    end: float
    said: str


def overlap(subject: Subject, size: int, work: Work) -> Overlap:
    """How `work` overlaps with a plan for `size` bytes. Raises what `tiles` and `calendar` do."""
    assert subject.program is not None
    order, alone = work.order, subject.simulate(size).time
    producer = alone if work.producer is None else work.producer
    consumer = alone if work.consumer is None else work.consumer
    subject = subject._replace(program=tiles(subject.program, order))
    dates, count = subject.calendar(size, produce(order, size, producer)), len(order)
    bars: list[Span] = []
    for rank, (inputs, outputs) in enumerate(zip(dates.inputs, dates.outputs, strict=True)):
        final = [0.0] * count
        for offset, length, us in outputs:  # in the order of time
            for place in range(offset * count // size, (offset + length - 1) * count // size + 1):
                final[place] = us
        free = 0.0
        starts = {}
        for place in sorted(order, key=final.__getitem__):
            starts[place] = max(free, final[place])
            free = starts[place] + consumer / count
        for turn, place in enumerate(order):
            begin, ready = (producer * (turn + k) / count for k in (0, 1))
            start = starts[place]
            spans = [(begin, ready)] if inputs else []
            spans += [(ready, final[place]), (start, start + consumer / count)] if outputs else []
            bars += [
                Span(rank, place, turn, *span, what)
                for span, what in zip(spans, WORK if inputs else WORK[1:], strict=False)
            ]
    end = max(dates.time, *(bar.end for bar in bars))
    said = (
        f"{count} tiles: {end:.6g} us; one after the other {producer + alone + consumer:.6g} "
        f"({producer:.6g} producer, {alone:.6g} plan, {consumer:.6g} consumer)"
    )
    return Overlap(subject, dates.timing, tuple(bars), end, said)
