"""A program's threads for the event engine, written in C++ over its columns, and their run.

A thread is what does one thing after the other: a thread block, or a proxy that moves data for one.
It runs through its segments, each of which repeats its operations. engine.hpp says what each
operation does; fifo.cpp and onesided.cpp, what the instructions of a program become. What they ask
of the fabric is answered here, once for each pair of ranks.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from forestcoll.common.errors import PlanError
from forestcoll.program import Program
from forestcoll.program.check import check
from forestcoll.program.program import where
from forestcoll.program.targets import message_slots, runtime_on
from forestcoll.verify import _machine
from forestcoll.verify.columns import OPS
from forestcoll.verify.simulate.fabric import Fabric, Stages, Way
from forestcoll.verify.simulate.options import RULES, Options
from forestcoll.verify.simulate.result import Span

if TYPE_CHECKING:
    from forestcoll.verify._machine import At


class Coder:
    """Threads, counters and routes of one simulation."""

    def __init__(self, fabric: Fabric, options: Options) -> None:
        self.fabric = fabric
        self.options = options
        self.threads = _machine.Threads()
        self._routes: dict[Way, int] = {}
        self._chunk = Fraction(0)  # bytes
        self.marks = b""  # of the last play, rows of calendar.MARK, where threads note them

    def write(self, program: Program, chunk: Fraction) -> None:
        """Adds the threads of a program whose chunks have so many bytes."""
        from forestcoll.verify.columns import columns_of  # forests alone need no proof

        check(program)
        self._chunk = chunk
        fabric = _machine.Fabric(self)
        options, columns = self.options, columns_of(program)
        block, adds = options.block_rate or 0.0, options.reduce_rate
        slowest = min((rate for rate in (block, adds) if rate), default=0.0)
        rates = _machine.Rates(block, slowest, adds is not None)
        if program.style == "onesided":
            _machine.code_onesided(columns, rates, fabric, self.threads)
            return
        runtime = options.runtime or runtime_on(program, self.fabric.machine or program.name)
        message, slots = message_slots(program, runtime)
        rounds = max(1, math.ceil(chunk / message))
        full = float(chunk if rounds == 1 else message)
        last = float(chunk - (rounds - 1) * message)
        most = max(1, math.floor(message / chunk)) if rounds == 1 and chunk else 1
        parts = options.parts if program.protocol == "Simple" else 1
        graph, wire = self.fabric.graph, float(runtime.messages.wire(program.protocol))
        names = graph.boxes
        boxes = [names.index(name) for name in names]
        _machine.code_fifo(
            columns, rounds, full, last, most, parts, slots * parts, wire, boxes, rates, fabric,
            self.threads,
        )  # fmt: skip

    def route(self, way: Way) -> int:
        """The number of a way."""
        return self._routes.setdefault(way, len(self._routes))

    def ways(self, source: int, target: int, reads: bool, after: float) -> list[tuple[int, int]]:
        """The routes between two ranks, with their weights.

        `reads`: the target asks for data. `after`: microseconds until there is something to send.
        """
        routes = []
        for one, weight in self.fabric.ways(source, target):
            way = self.fabric.answer(one.stages) if reads else one._replace(lead=after)
            routes.append((self.route(way), weight))
        return routes

    def bytes(self, count: int, parts: int) -> float:
        """Bytes of so many chunks, cut in so many parts."""
        return float(count * self._chunk / parts)

    def loop(self, chunks: int, unit: int) -> tuple[int, float, float]:
        """Rounds of a pipeline; bytes of a chunk in all of them but the last, and in that."""
        rounds, length = math.ceil(chunks * self._chunk / unit), chunks * self._chunk
        return rounds, float(unit), float(length - max(0, rounds - 1) * unit)

    def latency(self, source: int, target: int) -> float:
        """Microseconds that a signal from one rank to another takes."""
        for way, _ in (ways := self.fabric.ways(source, target)):
            self.route(way)
        return max(way.latency for way, _ in ways)

    def round_trip(self, source: int, target: int) -> float:
        """Microseconds from a read's request at the target to the first byte of its answer."""
        ways = [self.fabric.answer(one.stages) for one, _ in self.fabric.ways(source, target)]
        return max(way.lead + way.latency for way in ways)

    def switch(self, rank: int, adds: bool, ranks: list[int]) -> list[int]:
        """The routes in and out of a switch that copies to its group, or adds what its group has.

        What it adds is read: a request goes in and out, sums come back, and then they are stored.
        """
        fabric, group = self.fabric, tuple(ranks)
        switch, nodes = fabric.switch(group), fabric.graph.ranks
        up = {peer: fabric.number[nodes[peer], switch] for peer in group}
        down = {peer: fabric.number[switch, nodes[peer]] for peer in group}
        store: Stages = ((up[rank],), tuple(down.values()))
        ways = [fabric.over(store)]
        if adds:
            read = fabric.answer((tuple(up.values()), (down[rank],)))
            ways = [read, ways[0]._replace(lead=read.lead + read.latency)]
        return [self.route(way) for way in ways]

    def _rules(self) -> list[int]:
        """The links' rules.

        A link of which no transfer can fill more than half, for all come over narrower ones,
        carries several at once, packet by packet, where else it would serve them one by one.
        """
        fair, fifo = RULES.index("fair"), RULES.index("fifo")
        if fifo not in self.fabric.rules:
            return self.fabric.rules
        bandwidth, filled = self.fabric.bandwidth, [False] * len(self.fabric.bandwidth)
        for way in self._routes:
            before = float("inf")
            for links in way.stages:
                for link in links:
                    filled[link] |= bandwidth[link] < 2 * before
                before = min([before, *(bandwidth[link] for link in links)])
        return [
            fair if rule == fifo and not alone else rule
            for rule, alone in zip(self.fabric.rules, filled, strict=True)
        ]

    def play(
        self, *, timeline: bool = False, until: float = math.inf
    ) -> tuple[float, list[float], tuple[Span, ...], int]:
        """(microseconds, bytes per link, what was done when, transfers) of a run of all threads.

        More microseconds than `until` are infinitely many. PlanError where some wait for ever.
        """
        time, moved, rows, stuck, transfers, self.marks = _machine.simulate(
            [1000 * rate for rate in self.fabric.bandwidth],
            self._rules(),
            [(w.lead, w.latency, w.stages) for w in self._routes],
            self.threads,
            self.options.switching == "cut-through",
            self.options.seed,
            timeline,
            until,
        )
        if stuck:
            raise _deadlock(stuck)
        crossed = [tuple(link for links in way.stages for link in links) for way in self._routes]
        spans = []
        for (rank, block, proxy, step, op, peer), start, end, route, amount in rows:
            number = step if block == _machine.ALL_TREES else block
            links = () if route < 0 else crossed[route]
            word = OPS[op].value
            spans.append(Span(rank, number, step, start, end, word, peer, proxy, links, amount))
        return time, moved, tuple(spans), transfers


def _deadlock(stuck: list[At]) -> PlanError:
    blocks = [at for at in stuck if not at[2]] or stuck  # no proxies
    rank, block, _, step, op, _ = blocks[0]
    others = f", and {len(blocks) - 1} thread blocks more" if len(blocks) > 1 else ""
    return PlanError(
        f"the plan gets stuck: {where(rank, block, step, OPS[op])} waits for ever{others}; "
        "'forestcoll verify' says why",
        rule="RUN-DEADLOCK",
        at=(rank, block, step),
    )
