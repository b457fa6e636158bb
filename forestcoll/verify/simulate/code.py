"""Threads for the event engine: lists of waits, posts and transfers, in arrays.

A thread is what does one thing after the other: a thread block, or a proxy that moves data for one.
It runs through its segments, each of which repeats its operations. engine.hpp says what each
operation does.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, NamedTuple

from forestcoll.common.errors import PlanError
from forestcoll.program import Op
from forestcoll.verify.simulate import _simulate
from forestcoll.verify.simulate.fabric import Fabric, Way
from forestcoll.verify.simulate.options import RULES, Options

if TYPE_CHECKING:
    from typing_extensions import Buffer

TAKE, REACH, POST, MOVE, FETCH, START, JOIN, DELAY = range(8)
OPERATION, SIZES, SEGMENT = 5, 3, 4
"""Columns of the engine's tables: an operation's numbers, its sizes, a segment's."""


def _integers() -> array[int]:
    return array("i")


def _doubles() -> array[float]:
    return array("d")


class Origin(NamedTuple):
    """The instruction that an operation comes from."""

    step: int
    op: Op
    peer: int = -1


NOWHERE = Origin(-1, Op.NOP)


class Size(NamedTuple):
    """Bytes in all rounds of a loop but the last, and in that."""

    full: float
    last: float

    def times(self, factor: float) -> Size:
        """So many times as much."""
        return Size(self.full * factor, self.last * factor)


Passage = tuple["array[int]", "array[float]"]
"""Operations of a thread, one after the other, with their sizes."""


@dataclass(slots=True)
class Thread:
    """A thread in the making. `block` is -1 where a proxy works for several.

    `operations` and `sizes` are rows of the engine's tables, one after the other.
    """

    rank: int
    block: int
    proxy: bool
    origin: Origin = NOWHERE
    operations: array[int] = field(default_factory=_integers)
    sizes: array[float] = field(default_factory=_doubles)
    origins: list[Origin] = field(default_factory=list)
    segments: list[tuple[int, int]] = field(default_factory=list)  # first operation, rounds

    def loop(self, rounds: int) -> None:
        """What follows is repeated so often."""
        if not self.segments or self.segments[-1] != (len(self.origins), rounds):
            self.segments.append((len(self.origins), rounds))

    def since(self, first: int) -> Passage:
        """All operations from the `first`, for `again`."""
        return self.operations[OPERATION * first :], self.sizes[SIZES * first :]

    def again(self, passage: Passage) -> None:
        """The same operations once more, now for the `origin` of this time."""
        operations, sizes = passage
        self.operations += operations
        self.sizes += sizes
        self.origins += [self.origin] * (len(sizes) // SIZES)

    def take(self, counter: int) -> None:
        """Waits for one more in the counter, and takes it."""
        self._add(TAKE, counter, 1)

    def reach(self, counter: int, amount: int, stride: int) -> None:
        """Waits until so many, and `stride` more each round, have been posted."""
        self._add(REACH, counter, amount, stride)

    def post(self, counter: int, delay: float = 0.0) -> None:
        """Posts one in the counter, some microseconds from now."""
        self._add(POST, counter, 1, sizes=(delay, delay, 0.0))

    def transfer(self, kind: int, route: int, size: Size, cap: float, post: int = -1) -> None:
        """MOVE, FETCH or START: bytes over a route, at most `cap` bytes a microsecond."""
        self._add(kind, route, post=post, sizes=(*size, cap))

    def join(self) -> None:
        """Waits for all transfers that were started."""
        self._add(JOIN, 0)

    def delay(self, full: float, last: float) -> None:
        """Microseconds of work that no link sees."""
        if full > 0 or last > 0:
            self._add(DELAY, 0, sizes=(full, last, 0.0))

    def _add(
        self,
        kind: int,
        thing: int,
        amount: int = 0,
        stride: int = 0,
        post: int = -1,
        sizes: tuple[float, float, float] = (0.0, 0.0, 0.0),
    ) -> None:
        if not self.segments:
            self.segments.append((0, 1))
        self.operations.extend((kind, thing, amount, stride, post))
        self.sizes.extend(sizes)
        self.origins.append(self.origin)


@dataclass(frozen=True, slots=True)
class Played:
    """What the engine says: microseconds, bytes per link, what was done when.

    A span: thread, origin, start, end, the links that it crossed and the bytes.
    """

    time: float
    bytes: list[float]
    spans: list[tuple[Thread, Origin, float, float, tuple[int, ...], float]]
    transfers: int


class Coder:
    """Threads, counters and routes of one simulation."""

    def __init__(self, fabric: Fabric, options: Options) -> None:
        self.fabric = fabric
        self.options = options
        self.threads: list[Thread] = []
        self._counters: list[int] = []
        self._routes: dict[Way, int] = {}
        self._dealt: dict[tuple[int, int], list[float]] = {}
        self._between: dict[tuple[int, int, bool, float], list[tuple[int, Way, int]]] = {}

    def thread(self, rank: int, block: int, *, proxy: bool = False) -> Thread:
        """A new thread for thread block `block` of `rank`, or a proxy of it."""
        self.threads.append(Thread(rank, block, proxy))
        return self.threads[-1]

    def counter(self, value: int = 0) -> int:
        """A new counter with so many in it."""
        self._counters.append(value)
        return len(self._counters) - 1

    def route(self, way: Way) -> int:
        """The number of a way."""
        return self._routes.setdefault(way, len(self._routes))

    def between(
        self, source: int, target: int, size: Size, *, reads: bool = False, after: float = 0.0
    ) -> int:
        """The route that so many bytes from one rank to another take.

        Where a forest has several ways between the two, they are dealt out by its weights.
        `reads`: the target asks for them. `after`: microseconds until there is something to send.
        """
        ways = self._ways(source, target, reads, after)
        if len(ways) == 1:
            return ways[0][0]
        sent = self._dealt.setdefault((source, target), [0.0] * len(ways))
        best = min(range(len(ways)), key=lambda i: ((sent[i] + size.full) / ways[i][2], i))
        sent[best] += size.full
        return ways[best][0]

    def latency(self, source: int, target: int) -> float:
        """Microseconds that a signal from one rank to another takes."""
        return max(way.latency for _, way, _ in self._ways(source, target))

    def round_trip(self, source: int, target: int) -> float:
        """Microseconds from a read's request at the target to the first byte of its answer."""
        return max(way.lead + way.latency for _, way, _ in self._ways(source, target, reads=True))

    def alone(self, source: int, target: int) -> bool:
        """Whether there is but one way from one rank to another."""
        return len(self._ways(source, target)) == 1

    def _ways(
        self, source: int, target: int, reads: bool = False, after: float = 0.0
    ) -> list[tuple[int, Way, int]]:
        found = self._between.get((source, target, reads, after))
        if found is None:
            found = []
            for one, weight in self.fabric.ways(source, target):
                way = self.fabric.answer(one.stages) if reads else replace(one, lead=after)
                found.append((self.route(way), way, weight))
            self._between[source, target, reads, after] = found
        return found

    def _rules(self) -> list[int]:
        """The links' rules.

        A link of which no transfer can fill more than half, for all come over narrower ones,
        carries several at once, packet by packet, where else it would serve them one by one.
        """
        bandwidth, filled = self.fabric.bandwidth, [False] * len(self.fabric.bandwidth)
        for way in self._routes:
            before = float("inf")
            for links in way.stages:
                for link in links:
                    filled[link] |= bandwidth[link] < 2 * before
                before = min([before, *(bandwidth[link] for link in links)])
        fair, fifo = RULES.index("fair"), RULES.index("fifo")
        return [
            fair if rule == fifo and not alone else rule
            for rule, alone in zip(self.fabric.rules, filled, strict=True)
        ]

    def play(self, *, timeline: bool = False) -> Played:
        """Runs all threads. PlanError where some wait for ever."""
        threads = [thread for thread in self.threads if thread.origins]
        if not threads:
            return Played(0.0, [0.0] * len(self.fabric.bandwidth), [], 0)
        operations, sizes, segments = _tables(threads)
        routes = [(w.lead, w.latency, [list(links) for links in w.stages]) for w in self._routes]
        time, moved, _, spans, stuck, transfers = _simulate.simulate(
            [1000 * rate for rate in self.fabric.bandwidth],
            self._rules(),
            routes,
            _table(operations, OPERATION),
            _table(sizes, SIZES),
            _table(segments, SEGMENT),
            self._counters,
            len(threads),
            self.options.switching == "cut-through",
            self.options.seed,
            timeline,
        )
        starts = [0, *accumulate(len(thread.origins) for thread in threads)]
        if stuck:
            raise _deadlock([(threads[t], threads[t].origins[o - starts[t]]) for t, o, _ in stuck])
        rounds: list[int] = []  # per operation, as far as anybody asks
        for k in range(0, len(segments) if spans else 0, SEGMENT):
            first, after, times = segments[k + 1 : k + SEGMENT]
            rounds += [times] * (after - first)
        crossed = [tuple(link for links in way.stages for link in links) for way in self._routes]
        found = []
        for t, o, number, start, end in spans:
            kind, route = operations[OPERATION * o : OPERATION * o + 2]
            moves = kind in (MOVE, FETCH, START)
            amount = sizes[SIZES * o + int(number == rounds[o] - 1)] if moves else 0.0
            origin = threads[t].origins[o - starts[t]]
            found.append((threads[t], origin, start, end, crossed[route] if moves else (), amount))
        return Played(time, moved, found, transfers)


def _tables(threads: list[Thread]) -> tuple[array[int], array[float], array[int]]:
    """Operations, sizes and segments of all threads."""
    operations, sizes, segments = _integers(), _doubles(), _integers()
    for number, thread in enumerate(threads):
        first, count = len(operations) // OPERATION, len(thread.origins)
        ends = [*(start for start, _ in thread.segments[1:]), count]
        for (start, rounds), end in zip(thread.segments, ends, strict=True):
            segments.extend((number, first + start, first + end, rounds))
        operations += thread.operations
        sizes += thread.sizes
    return operations, sizes, segments


def _table(cells: array[int] | array[float], columns: int) -> Buffer:
    """The cells as the engine reads them: rows of so many 32-bit integers, or doubles."""
    code: Literal["i", "d"] = "d" if cells.typecode == "d" else "i"
    view = memoryview(cells).cast("B")
    return view.cast(code, shape=(len(cells) // columns, columns))


def _deadlock(stuck: list[tuple[Thread, Origin]]) -> PlanError:
    blocks = [entry for entry in stuck if not entry[0].proxy] or stuck
    thread, origin = blocks[0]
    at = f"rank {thread.rank}, thread block {thread.block}, step {origin.step} ({origin.op.value})"
    others = f", and {len(blocks) - 1} thread blocks more" if len(blocks) > 1 else ""
    return PlanError(
        f"the plan gets stuck: {at} waits for ever{others}; 'forestcoll verify' says why",
        rule="RUN-DEADLOCK",
        at=(thread.rank, thread.block, origin.step),
    )


__all__ = ["Coder", "Origin", "Passage", "Played", "Size", "Thread"]
