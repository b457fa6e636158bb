"""When which bytes are ready, and when which are needed: the calendar of a simulated plan.

Threads note reads and writes of inputs and outputs as they come to them (`Threads.marks`). What one
rank writes at another is ready once that rank is told of it. Runtimes cut chunks into slices, so
parts of a chunk are ready before others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from forestcoll.common.errors import UnsupportedError
from forestcoll.program import Program
from forestcoll.program.tiles import tiles
from forestcoll.topology import Topology
from forestcoll.verify.columns import BUFFERS
from forestcoll.verify.simulate.fabric import Latencies, Where
from forestcoll.verify.simulate.options import Options, Rule
from forestcoll.verify.simulate.result import Timing
from forestcoll.verify.simulate.simulation import DEFAULTS, coder_of, timing_of

if TYPE_CHECKING:
    import numpy as np

MARK = [(name, "i4") for name in ("rank", "buffer", "reads", "round")]
MARK += [(name, "f8") for name in ("low", "high", "time")]
"""Columns of a mark, as engine.hpp has them."""


class Entry(NamedTuple):
    """`bytes` of a buffer from `offset` on, and the microsecond of their event."""

    offset: int
    bytes: int
    us: float


@dataclass(frozen=True, slots=True)
class Calendar:
    """By rank, in the order of time and then offset: what is ready, and what is first read.

    `outputs`: when bytes of the output are written for the last time. `inputs`: when bytes of the
    input are read for the first time. Neighbours of one time are one entry. `time`: of the whole
    plan, in microseconds. `rule` None: of each link its own. `timing`: the run that all is from.
    """

    rule: Rule | None
    size: int
    time: float
    outputs: tuple[tuple[Entry, ...], ...]
    inputs: tuple[tuple[Entry, ...], ...]
    timing: Timing = field(repr=False)


def calendar(
    program: Program,
    topology: Where,
    size: int,
    *,
    rule: Rule | None = None,
    links: Topology | Latencies | None = None,
    options: Options = DEFAULTS,
    produced: Sequence[tuple[int, float]] = (),
    timeline: bool = False,
) -> Calendar:
    """The calendar of a program for `size` bytes, as nccl-tests counts them.

    `produced`: bytes from the start of each rank's input, ascending, and the microsecond at which
    those up to there are finished, and not before: nobody reads them earlier. Otherwise as `run`;
    `timeline`: whether `Calendar.timing` has one.

    Raises UnsupportedError where a producer is given and the program works in place alone.
    """
    import numpy as np

    if produced and not program.out_of_place:
        raise UnsupportedError("a plan that works in place alone does not tell input and output")
    coder, chunk = coder_of(program, topology, size, rule, links, options)
    coder.threads.marks, coder.threads.produced = True, list(produced)
    coder.write(program, chunk)
    timing = timing_of(coder, size, rule, program.collective, program.n, timeline)
    marks = np.frombuffer(coder.marks, MARK)
    marks = marks[np.argsort(marks["time"], kind="stable")]
    definition, sides = program.collective.definition, []
    for buffer, counts in (
        (1, [rank.output_chunks for rank in program.ranks]),
        (0, [rank.input_chunks for rank in program.ranks]),
    ):
        whose: Sequence[int] = range(program.n)
        if program.root >= 0 and definition.root == ("target" if buffer else "source"):
            whose = [program.root]
        rows = []
        for rank, count in enumerate(counts):
            length = round(count * chunk) if rank in whose else 0
            rows.append(_entries(program, marks[marks["rank"] == rank], rank, buffer, length))
        sides.append(tuple(rows))
    return Calendar(rule, size, timing.time, sides[0], sides[1], timing)


@dataclass(frozen=True, slots=True)
class Overlap:
    """A producer that finishes the input tile by tile, and the plan behind it, in microseconds.

    `plan`: by itself. `latency`: of a few bytes, its hops one after another. `unordered`: end to
    end as the plan is. `ordered`: with tiles, what is finished first going first. `bound`: what no
    order of equal tiles comes below, the greater of producer + plan / tiles and producer / tiles +
    plan, and the latency.
    """

    tiles: int
    producer: float
    plan: float
    latency: float
    unordered: float
    ordered: float

    @property
    def bound(self) -> float:
        """Of what is ordered."""
        first, last = self.producer + self.plan / self.tiles, self.producer / self.tiles + self.plan
        return max(first, last) + self.latency


def produce(order: Sequence[int], size: int, producer: float) -> list[tuple[int, float]]:
    """The tiles as a producer of so many microseconds finishes them: `produced` of `calendar`."""
    n = len(order)
    return sorted((size * (at + 1) // n, producer * (k + 1) / n) for k, at in enumerate(order))


def overlap(
    program: Program,
    topology: Where,
    size: int,
    order: Sequence[int],
    *,
    producer: float | None = None,
    rule: Rule | None = None,
    links: Topology | Latencies | None = None,
) -> Overlap:
    """How much of the time behind a producer an order saves.

    `order`: the tiles as they are finished (program/tiles.py). `producer`: its microseconds, None:
    those of the plan. Errors as of `calendar` and `tiles`.
    """

    def play(one: Program, size: int, produced: Sequence[tuple[int, float]] = ()) -> float:
        return calendar(one, topology, size, rule=rule, links=links, produced=produced).time

    count, plan, chunks = len(order), play(program, size), program.ranks[0].input_chunks
    producer = plan if producer is None else producer
    produced = produce(order, size, producer)
    return Overlap(
        count,
        producer,
        plan,
        play(program, max(4 * chunks, program.min_bytes)),
        play(program, size, produced),
        play(tiles(program, order), size, produced),
    )


def _entries(
    program: Program, marks: np.ndarray, rank: int, buffer: int, length: int
) -> tuple[Entry, ...]:
    """Of one rank's buffer; `marks` in the order of time."""
    import numpy as np

    if not length:
        return ()
    low, high = (np.rint(marks[name]).astype(np.int64) for name in ("low", "high"))
    mine = marks["buffer"] == buffer
    if not program.out_of_place:  # one memory: the shorter buffer lies in the longer
        mine = marks["buffer"] < 2
        if program.shorter is not None:
            at, short = BUFFERS.index(program.shorter), BUFFERS[buffer] is program.shorter
            part = length if short else length // program.n
            shift = rank * part * ((marks["buffer"] == at) - int(short))
            low, high = low + shift, high + shift
    mine &= marks["reads"] == (buffer == 0)
    low, high = np.clip(low[mine], 0, length), np.clip(high[mine], 0, length)
    times = marks["time"][mine]
    order = slice(None, None, 1 if buffer else -1)  # the last write, the first read
    borders = np.unique(np.concatenate([[0, length], low, high]))
    when = np.full(len(borders) - 1, 0.0 if buffer else np.nan)
    begins, ends = np.searchsorted(borders, low[order]), np.searchsorted(borders, high[order])
    for begin, end, time in zip(begins, ends, times[order], strict=True):
        when[begin:end] = time
    changes = np.flatnonzero(np.diff(when) != 0) + 1
    starts = [0, *changes.tolist()]
    stops = [*starts[1:], len(when)]
    rows = (
        Entry(int(borders[a]), int(borders[b] - borders[a]), float(when[a]))
        for a, b in zip(starts, stops, strict=True)
        if when[a] == when[a]  # what nobody reads has no time
    )
    return tuple(sorted(rows, key=lambda entry: (entry.us, entry.offset)))
