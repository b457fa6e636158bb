"""Contest: which of a runtime's candidates is fastest at which size, by simulated times.

Every candidate is lowered once and played once a size, as reports are made: over links in order and
over links that share. An estimate says who is looked at first; whom links alone make too slow gets
no plan. A plan is good for a size if it is near the fastest under each of both rules. Sizes are a
factor apart; borders are sought between two of them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.compile.plan_set.candidates import Made
from forestcoll.compile.plan_set.estimate import Line
from forestcoll.compile.plan_set.others import Other
from forestcoll.compile.plan_set.values import LARGEST, Candidate, Ends, Source
from forestcoll.compile.search import FACTOR, HALVINGS, SHORT, STARTS, SURE
from forestcoll.lower.alltoall.lowering import edges_of
from forestcoll.plans import mscclpp
from forestcoll.program.sizes import Sizes
from forestcoll.schedule.forest import Forest
from forestcoll.schedule.routes import routes
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.verify import simulate
from forestcoll.verify.check import check_scale
from forestcoll.verify.simulate import BOTH, DEFAULTS, Options, Rule, Timing, Where

if TYPE_CHECKING:
    from forestcoll.common.clock import Clock
    from forestcoll.program import Program, Style
    from forestcoll.topology import Topology

MANY: Final = 2**26
"""Bytes at which plans for the largest sizes are looked at: more change little."""
NEVER: Final = float("inf")
NEAR: Final = 1.2
"""Plans are cut finer that take less than so many times as long as the fastest."""
TUNED: Final = 2
"""Plain plans are not searched that take so many times as long: less is gained by it."""
PLAIN: Final[dict[Style, int]] = {"fifo": SHORT // 4, "onesided": SHORT // 256}
"""Bytes up to which nothing is gained: in chunks that are finer for SHORT messages are tiny. With
a root chunks are as many times as long as there are ranks."""
LARGEST_PLAYED: Final = 2**32
"""Bytes from which on calls go on as between half as many and these; each loop is played."""

Lower = Callable[[Candidate, bool], tuple["Program", str]]
"""The program of a candidate, the best or the plain one, and a note where thread blocks do not
suffice, or ""."""
Fits = Callable[["Program", int], bool]
"""Whether a program is for calls of so many bytes."""
Look = tuple[int, bool]
"""The number of a candidate; whether its best program is looked at, or the plain one."""


@dataclass(frozen=True, slots=True)
class Range:
    """From `low` to `high` bytes, both inclusive, the plan of candidate `index` is the fastest.

    `tuned`: the best one of it, else the plain one.
    """

    low: int
    high: int
    index: int
    tuned: bool = True


class Contest:
    """Times of candidates, by their numbers.

    `rules`: of links. `made`: by others on the topology.
    `notes`: of each candidate that has a program, as `lower` says them; `refused`: why the first
    that has none has none.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        lower: Lower,
        topology: Topology,
        clock: Clock,
        made: Made,
        *,
        rules: Sequence[Rule] = BOTH,
        options: Options = DEFAULTS,
    ) -> None:
        self.candidates, self.notes, self.refused = candidates, dict[int, str](), ""
        self._lower, self._clock = lower, clock
        self._topology, self._rules, self._options = topology, rules, options
        self._played = len(topology.gpus) <= simulate.RANKS
        self._programs: dict[Look, Program | None] = {}
        self._made = made
        self._where: dict[int, Where] = {}

    def program(self, i: int, tuned: bool = True) -> Program | None:
        """The plan of a candidate, or None where there is no room for it."""
        if (i, tuned) not in self._programs:
            self._programs[i, tuned] = self._make(i, tuned)
        return self._programs[i, tuned]

    def _make(self, i: int, tuned: bool) -> Program | None:
        subject, most = self._clock.subject, len(self.candidates)
        number = len({i for i, _ in self._programs} | {i})
        self._clock.subject = f"{subject}, candidate {number} of {most} at most"
        try:
            with self._clock.stage("lower"):
                program, note = self._lower(self.candidates[i], tuned)
            check_scale(program)
            self.notes[i] = note or self.notes.get(i, "")
        except (PlanError, UnsupportedError) as error:
            self.refused = self.refused or str(error)
            return None
        finally:
            self._clock.subject = subject
        return program

    def timings(self, i: int, size: int, tuned: bool = True, until: float = NEVER) -> list[Timing]:
        """Those of a candidate that has a program, under each rule; `until` as of `run_each`."""
        program = self.program(i, tuned)
        assert program is not None
        with self._clock.stage("play"):
            how = self.where(i), size, self._rules, self._topology, self._options
            return self._made.timings(program, *how, until)

    def where(self, i: int) -> Where:
        """What the plan of a candidate runs on."""
        if i not in self._where:
            self._where[i] = where_of(self.candidates[i].origin, self._topology)
        return self._where[i]

    def times(self, i: int, size: int, tuned: bool = True, until: float = NEVER) -> Sequence[float]:
        """Microseconds under each rule; NEVER where it is over `until`, or serves not the size.

        By the estimate alone for more than RANKS ranks. Of LARGEST_PLAYED at most.
        """
        program = self.program(i, tuned)
        if program is None or not smallest_call(program) <= size <= largest_call(program):
            return [NEVER] * len(self._rules)
        if not self._played:
            return [float(self.candidates[i].line.time(size))] * len(self._rules)
        if size <= LARGEST_PLAYED:
            return [timing.time for timing in self.timings(i, size, tuned, until)]
        ends = LARGEST_PLAYED // 2, LARGEST_PLAYED
        played = zip(*(self.timings(i, some, tuned) for some in ends), strict=True)
        return [b.time + (b.time - a.time) * 2 * (size / LARGEST_PLAYED - 1) for a, b in played]

    def least(self, i: int, size: int) -> float:
        """Microseconds that no plan of the candidate takes less."""
        line = self.candidates[i].line
        return float(line.least(size) if self._played else line.time(size))

    def fastest(self, size: int, fits: Fits = lambda *_: True) -> Look | None:
        """The fastest under the worst rule; None where none that is looked at serves the size.

        `fits`: which programs of those may be taken for it.
        """
        looked = self._look_briefly(size, fits, behind=1)
        return min(looked, key=lambda look: max(looked[look]), default=None)

    def _look(self, size: int) -> dict[int, Sequence[float]]:
        """The times of those that are looked at: of all whose links may make them the fastest."""
        best, looked = NEVER, dict[int, Sequence[float]]()
        for i in self._in_order(size):
            if size > self.candidates[i].above and self.least(i, size) < best:
                times = self.times(i, size)
                if max(times) < NEVER:
                    looked[i] = times
                    best = min(best, max(times))
        return looked

    def _look_finer(self, size: int) -> dict[Look, Sequence[float]]:
        """The same; where none is good, with those near it in more and more pieces until one is.

        Not for many bytes: searches have cut for those.
        """
        looked = self._look_briefly(size)
        near = [self.candidates[i].origin for (i, _), k in _behind(looked).items() if k < NEAR]
        for i, one in enumerate(self.candidates) if size < SHORT else ():
            if one.above == LARGEST and one.origin in near and min(_behind(looked).values()) > SURE:
                looked[i, True] = self.times(i, size)
        return looked

    def _look_briefly(
        self, size: int, fits: Fits = lambda *_: True, behind: float = NEAR
    ) -> dict[Look, Sequence[float]]:
        """The same for one as fast as any, by SURE: plain plans come before those of a search.

        Searched are those whose plain ones are fast, in that order, of each kind STARTS in turn
        that are no faster than all before, and as many that links make fastest: plain plans of many
        trees say little. Of those that the fabric's symmetry maps onto each other, one. Plans that
        take more than `behind` times as long as the best before are not played to their end.
        """
        best, looked = NEVER, dict[Look, Sequence[float]]()

        def look_at(i: int, tuned: bool) -> float | None:
            """The time under the worse rule; None where there is no program that fits."""
            nonlocal best
            whole = next(k for k in range(i, -1, -1) if self.candidates[k].times == 1)
            for k in (whole, i):  # its program in finer pieces fits no more calls
                program = self.program(k, tuned)
                if program is None or not fits(program, size):
                    return None
            times = self.times(i, size, tuned, best * (behind if tuned else TUNED))
            if max(times) < NEVER:
                looked[i, tuned] = times
                best = min(best, max(times))
            return max(times)

        first, fastest = defaultdict[object, list[Line]](list), NEVER
        alike, misses = set[object](), Counter[object]()
        for group in self._groups(size):
            plain: list[tuple[float, int]] = []
            for i in group:
                one, above = self.candidates[i], self._search_above(i)
                if size > one.above and self.least(i, size) * SURE < best:
                    near, lines = look_at(i, tuned=above == NEVER), first[one.kind]
                    if size > above and near is not None:
                        plain.append((near, i))
                        lines += [one.line] if one.line not in lines else []
            for near, i in sorted(plain):
                one = self.candidates[i]
                way = one.kind, one.line, near
                vain = near > TUNED * best or misses[one.kind] == STARTS
                vain = way in alike or (vain and one.line not in first[one.kind][:STARTS])
                if vain or self.least(i, size) * SURE >= best:
                    continue
                alike.add(way)
                time = look_at(i, tuned=True)
                if time is not None and time < NEVER:
                    misses[one.kind] = misses[one.kind] + 1 if time >= fastest else 0
                    fastest = min(fastest, time)
        return looked

    def _search_above(self, i: int) -> float:
        """Bytes above which its best program is looked for; NEVER where that is quick to find."""
        origin, (style, protocol) = self.candidates[i].origin, self.candidates[i].kind
        if not isinstance(origin, Forest) or protocol != "Simple":
            return NEVER
        return 0 if origin.collective.has_root else PLAIN[style]

    def _groups(self, size: int) -> list[list[int]]:
        """Those that are looked at one after the other: for many bytes those first that a search
        makes fast, and then, if links allow, the others."""
        groups: list[list[int]] = [[], []]
        for i in self._in_order(size):
            groups[size >= MANY and self._search_above(i) == NEVER].append(i)
        return groups

    def _in_order(self, size: int) -> list[int]:
        """By the estimate; of long calls by all bytes, and what is played quickly first."""

        def promise(i: int) -> tuple[object, ...]:
            line, (style, _) = self.candidates[i].line, self.candidates[i].kind
            if size > SHORT:
                return line.least(size), style == "onesided", line.latency, self._rank(i)
            return line.time(size), self._rank(i)

        return sorted(range(len(self.candidates)), key=promise)

    def _rank(self, i: int) -> tuple[bool, int]:
        """Of equals ours come before plans of anybody's, and few trees or units first."""
        candidate = self.candidates[i]
        return isinstance(candidate.origin, Other), candidate.parts

    # --- ranges

    def ranges(self, low: int, reach: int, high: int) -> list[Range]:
        """Plans from `low` to `high` bytes, as few as are good; no range begins above `reach`.

        No gap, no overlap; the last plan may serve less. PlanError where there is no plan.
        """
        runs = self._runs(low, reach)
        if not runs:
            return [Range(low, high, self._nearest(low, reach))]
        borders = [self._border(before, after) for before, after in pairwise(runs)]
        starts, ends = [low, *borders], [*(border - 1 for border in borders), high]
        ranges: list[Range] = []
        for start, end, run in zip(starts, ends, runs, strict=True):
            program = self.program(run.index)
            assert program is not None
            if ranges and not serves(program, start, end):  # the plan before goes on
                ranges[-1] = replace(ranges[-1], high=end)
            else:
                ranges.append(Range(start, end, run.index))
        return ranges

    def points(self, sizes: Sequence[int]) -> list[Range]:
        """For each size, and each style whose plans may be fastest there, a good one for it alone.

        PlanError where there is no plan at all.
        """
        places = []
        for size in sizes:
            looked = self._look_finer(size)
            for style in sorted({self.candidates[i].kind[0] for i, _ in looked}):
                own = {k: t for k, t in looked.items() if self.candidates[k[0]].kind[0] == style}
                good = [(max(own[k]), self._rank(k[0]), k) for k in _nearest_to_fastest(own)]
                places.append(Range(size, size, *min(good)[-1]))
        if not places:
            self._nearest(min(sizes), max(sizes))
        return places

    def _runs(self, low: int, reach: int) -> list[Range]:
        """Who is good from which to which of the sizes that are FACTOR apart, as long as one is."""
        runs: list[tuple[int, int, set[int]]] = []
        sizes = [low]
        while sizes[-1] < reach:
            sizes.append(min(sizes[-1] * FACTOR, reach))
        for size in sizes:
            first, good = size, _nearest_to_fastest(self._look(size))
            if runs and runs[-1][2] & good:
                first, _, before = runs.pop()
                good &= before
            if good:
                runs.append((first, size, good))
        return [Range(first, last, min(sorted(good), key=self._rank)) for first, last, good in runs]

    def _border(self, before: Range, after: Range) -> int:
        """Where the plan after takes over: where it is behind the other under no rule as far.

        From the first size of float32 on that divides into its chunks.
        """
        first, last = before.high, after.low
        for _ in range(HALVINGS):
            middle = math.isqrt(first * last)
            times = self.times(before.index, middle), self.times(after.index, middle)
            ratios = [one / other for one, other in zip(*times, strict=True)]
            if max(ratios) * min(ratios) > 1:
                last = middle
            else:
                first = middle
        program, other = self.program(before.index), self.program(after.index)
        assert program is not None
        assert other is not None
        least = Sizes.of(other).multiple()
        return min(-(-last // least) * least, largest_call(program) + 1)

    def _nearest(self, low: int, high: int) -> int:
        """The candidate whose sizes come nearest to those from `low` to `high` bytes."""

        def distance(i: int) -> int:
            program = self.program(i)
            assert program is not None
            return max(smallest_call(program) - high, low - largest_call(program))

        there = [i for i in range(len(self.candidates)) if self.program(i) is not None]
        if not there:
            raise PlanError(self.refused)
        return min(there, key=distance)


def _nearest_to_fastest(looked: Mapping[Any, Sequence[float]]) -> set[Any]:
    """Those that under no rule take SURE times as long as the fastest under that rule.

    Where there is none, the one that comes nearest to it.
    """
    behind = _behind(looked)
    most = max(SURE, min(behind.values(), default=SURE))
    return {i for i, times in behind.items() if times <= most}


def _behind(looked: Mapping[Any, Sequence[float]]) -> dict[Any, float]:
    """How many times as long each takes as the fastest, under the worse rule."""
    fastest = [min(times) for times in zip(*looked.values(), strict=True)]
    return {
        i: max(time / best for time, best in zip(times, fastest, strict=True))
        for i, times in looked.items()
    }


def where_of(origin: Source | None, topology: Topology) -> Where:
    """The ways of a forest's trees or of an all-to-all's routes; else a topology's."""
    if isinstance(origin, Routes):
        return routes(origin.graph, edges=edges_of(origin))
    return origin if isinstance(origin, Forest) else topology


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

    None of more ranks than sets have simulated figures of.
    """
    if program.n > simulate.RANKS:
        return None
    first, last = (
        simulate.band(program, where, size, links=links)
        for size in (low, min(high, max(MANY, low)))
    )
    return first, last
