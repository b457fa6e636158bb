"""Contest: which of a runtime's candidates is fastest at which size, by simulated times.

Every candidate is lowered once and played once a size, as reports are made: over links in order and
over links that share, of which the worse one counts. An estimate says who is looked at first; whom
links alone make too slow gets no plan. Who wins is asked for sizes that are a factor apart; borders
are sought between two of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Final

from forestcoll.common.errors import PlanError
from forestcoll.compile.plan_set.others import Other
from forestcoll.compile.plan_set.values import LARGEST, Candidate, Ends
from forestcoll.compile.search import FACTOR, HALVINGS, LONG, NEAR, SURE
from forestcoll.plans import mscclpp
from forestcoll.program.sizes import Sizes
from forestcoll.schedule.forest import Forest
from forestcoll.verify import simulate
from forestcoll.verify.simulate import BOTH, DEFAULTS, Options, Rule, Timing, Where

if TYPE_CHECKING:
    from forestcoll.common.clock import Clock
    from forestcoll.program import Program
    from forestcoll.topology import Topology
    from forestcoll.verify.simulate.options import Kind

MANY: Final = 2**26
"""Bytes at which plans for the largest sizes are looked at: more change little."""
NEVER: Final = float("inf")

Lower = Callable[[Candidate], tuple["Program", str]]
"""The best program of a candidate, and a note where thread blocks do not suffice, or ""."""


@dataclass(frozen=True, slots=True)
class Range:
    """From `low` to `high` bytes, both inclusive, the plan of candidate `index` is the fastest."""

    low: int
    high: int
    index: int


class Contest:
    """Times of candidates, by their numbers.

    `tries`: candidates of a style and protocol that are looked at for a size, of those with equal
    estimates all. `rules`: of links.
    `notes`: of each candidate that has a program, as `lower` says them; `refused`: why the first
    that has none has none.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        lower: Lower,
        topology: Topology,
        clock: Clock,
        *,
        tries: int,
        rules: Sequence[Rule] = BOTH,
        options: Options = DEFAULTS,
    ) -> None:
        self.candidates, self.notes, self.refused = candidates, dict[int, str](), ""
        self._lower, self._clock, self._tries = lower, clock, tries
        self._topology, self._rules, self._options = topology, rules, options
        self._played = len(topology.gpus) <= simulate.RANKS
        self._programs: dict[int, Program | None] = {}
        self._timings: dict[tuple[int, int], list[Timing]] = {}

    def program(self, i: int) -> Program | None:
        """The plan of a candidate, or None where there is no room for it."""
        if i not in self._programs:
            subject, most = self._clock.subject, len(self.candidates)
            self._programs[i] = None
            self._clock.subject = f"{subject}, candidate {len(self._programs)} of {most} at most"
            try:
                with self._clock.stage("lower"):
                    self._programs[i], self.notes[i] = self._lower(self.candidates[i])
            except PlanError as error:
                self.refused = self.refused or str(error)
            self._clock.subject = subject
        return self._programs[i]

    def timings(self, i: int, size: int) -> list[Timing]:
        """Those of a candidate that has a program, under each rule."""
        if (i, size) not in self._timings:
            program, origin = self._programs[i], self.candidates[i].origin
            assert program is not None
            where = origin if isinstance(origin, Forest) else self._topology
            with self._clock.stage("play"):
                self._timings[i, size] = simulate.run_each(
                    program, where, size, self._rules, links=self._topology, options=self._options
                )
        return self._timings[i, size]

    def time(self, i: int, size: int) -> float:
        """Microseconds under the worst rule; NEVER where the plan does not serve the size.

        By the estimate alone for more than RANKS ranks. From LONG on times are lines over the size.
        """
        program = self.program(i)
        if program is None or not smallest_call(program) <= size <= largest_call(program):
            return NEVER
        if not self._played:
            return float(self.candidates[i].line.time(size))
        played = min(size, LONG)
        return max(timing.time for timing in self.timings(i, played)) * size / played

    def least(self, i: int, size: int) -> float:
        """Microseconds that no plan of the candidate takes less."""
        line = self.candidates[i].line
        return float(line.least(size) if self._played else line.time(size))

    def fastest(self, size: int, without: Collection[int] = ()) -> int | None:
        """The fastest of those that are looked at; None where none serves the size.

        Others have to be SURE times as fast as those that are looked at before them.
        """
        best, fastest = NEVER, None
        tried: dict[Kind, set[Fraction]] = defaultdict(set)
        for i in self._order(size):
            line, others = self.candidates[i].line.time(size), tried[self.candidates[i].kind]
            asked = isinstance(self.candidates[i].origin, Other)
            over = (len(others - {line}) >= self._tries and not asked) or i in without
            if over or SURE * self.least(i, size) >= best:
                continue
            time = self.time(i, size)
            if time < NEVER:
                others.add(line)
            if SURE * time < best:
                best, fastest = time, i
        return fastest

    def _order(self, size: int) -> list[int]:
        """By the estimate; of those that are near the best in it, few trees or units come first.

        Plans of anybody's come last: of equals ours is taken.
        """
        times = [float(candidate.line.time(size)) for candidate in self.candidates]
        near = min(times) * (NEAR if self._played else 1)

        def key(i: int) -> tuple[bool, float, int, float, int]:
            other = isinstance(self.candidates[i].origin, Other)
            return other, max(near, times[i]), self.candidates[i].parts, times[i], i

        return sorted(range(len(times)), key=key)

    # --- ranges

    def ranges(self, low: int, reach: int, high: int) -> list[Range]:
        """Who is fastest where from `low` to `high` bytes; no range begins above `reach`.

        No gap, no overlap; the last plan may serve less. A candidate is left out where others are
        nowhere SURE times as slow. PlanError where there is no plan.
        """
        sizes = [low]
        while sizes[-1] < reach:
            sizes.append(min(sizes[-1] * FACTOR, reach))
        out: set[int] = set()
        while True:
            winners = self._winners(sizes, out)
            if not winners:
                return [Range(low, high, self._nearest(low, reach))]
            worth = {i: self._worth(i, winners) for i in winners.values()}
            least = min(worth, key=lambda i: (worth[i], i))
            if worth[least] >= SURE:
                break
            out.add(least)
        begins: list[tuple[int, int]] = []
        before: Program | None = None
        for size, i in winners.items():
            if not begins or i != begins[-1][1]:
                begins.append((min(size, largest_call(before) + 1) if before else low, i))
            before = self._programs[i]
        ranges: list[Range] = []
        for (start, i), after in zip_longest(begins, begins[1:]):
            end = high if after is None else after[0] - 1
            program = self._programs[i]
            assert program is not None
            if ranges and not serves(program, start, end):  # the plan before goes on
                ranges[-1] = replace(ranges[-1], high=end)
            else:
                ranges.append(Range(start, end, i))
        return ranges

    def _winners(self, sizes: Sequence[int], without: Collection[int]) -> dict[int, int]:
        """Who is the fastest at which size; also halfway between two where it is not the same."""
        looked = {size: self.fastest(size, without) for size in sizes}
        for _ in range(HALVINGS):
            between = [
                round((a * b) ** 0.5) for a, b in pairwise(sorted(looked)) if looked[a] != looked[b]
            ]
            looked |= {size: self.fastest(size, without) for size in between if size not in looked}
        return {size: i for size, i in sorted(looked.items()) if i is not None}

    def _worth(self, i: int, winners: dict[int, int]) -> float:
        """How many times as fast candidate `i` is as those that are the fastest next to it.

        Where that is most; or somewhere SURE times.
        """
        pairs = list(pairwise(winners.values()))
        others = {*(a for a, b in pairs if b == i), *(b for a, b in pairs if a == i)} - {i}
        worth, own = 0.0, [size for size, winner in winners.items() if winner == i]
        for size in own[len(own) // 2 :] + own[: len(own) // 2]:
            times = [self.time(other, size) for other in others]
            worth = max(worth, min(times, default=NEVER) / self.time(i, size))
            if worth >= SURE:
                break
        return worth

    def _nearest(self, low: int, high: int) -> int:
        """The candidate whose sizes come nearest to those from `low` to `high` bytes."""

        def distance(i: int) -> int:
            program = self._programs[i]
            assert program is not None
            return max(smallest_call(program) - high, low - largest_call(program))

        there = [i for i in range(len(self.candidates)) if self.program(i) is not None]
        if not there:
            raise PlanError(self.refused)
        return min(there, key=distance)


def smallest_call(program: Program) -> int:
    """Bytes of the smallest call that a program serves, of float32."""
    return max(program.min_bytes, Sizes.of(program).multiple())


def largest_call(program: Program) -> int:
    """Bytes of the largest."""
    most = program.max_bytes or LARGEST
    return min(most, mscclpp.largest_size(program)) if program.style == "onesided" else most


def serves(program: Program, low: int, high: int) -> bool:
    """Whether a size from `low` to `high` bytes divides into the plan's chunks."""
    least = Sizes.of(program).multiple(1)  # bytes of the smallest elements
    return high // least * least >= low


def ends_of(
    program: Program, where: Where, links: Topology | None, low: int, high: int
) -> Ends | None:
    """At the least and the most bytes that a plan of a set serves, MANY at most.

    None of more ranks than reports have simulated figures of.
    """
    if program.n > simulate.RANKS:
        return None
    first, last = (
        simulate.band(program, where, size, links=links)
        for size in (low, min(high, max(MANY, low)))
    )
    return first, last
