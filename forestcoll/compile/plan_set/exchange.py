"""Plans of an all-to-all for all sizes: direct, two-level or over the optimum's routes.

The candidates are the shortest way of every block, the way over the GPU of the own box that stands
where the target stands in its own, and the optimum's routes (with one unit of every pair, and with
as many as come near it), each with every protocol of the runtime. Which is fastest at which size
is simulated, over links that share and over links in order together, for sizes that are apart by a
factor; borders are then sought between two of them. No plan is made where the estimate alone says
that others are faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from forestcoll import plans
from forestcoll.common.clock import Clock
from forestcoll.common.errors import ForestCollError, PlanError, UnsupportedError
from forestcoll.compile.alltoall_plans import check_loads
from forestcoll.compile.formats import seat
from forestcoll.compile.plan_set.estimate import WORTH, Range, abut, line_of
from forestcoll.compile.plan_set.served import check_range, largest_call, last_begin, sizes_above
from forestcoll.compile.plan_set.settle import ends_of, play
from forestcoll.compile.plan_set.values import (
    Entry,
    ExchangeCandidate,
    Plans,
    PlanSet,
)
from forestcoll.lower.alltoall.filling import fill, shares_of
from forestcoll.lower.alltoall.lowering import write_out
from forestcoll.plans import FORMATS
from forestcoll.program import Collective, Program
from forestcoll.program.sizes import Sizes, is_power
from forestcoll.solver.alltoall.flows import Optimum, solve
from forestcoll.solver.alltoall.rounding import MOST_UNITS, route
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.solver.alltoall.spread import routes_over
from forestcoll.solver.baselines.alltoall import by_name
from forestcoll.verify import verify
from forestcoll.verify.simulate import HOP, RANKS

if TYPE_CHECKING:
    from forestcoll.program.targets import PlanFormat, Target
    from forestcoll.solver.alltoall.demand import Demand
    from forestcoll.topology import Topology

FEW: Final = 16
"""Ranks up to which sizes are simulated that are apart by the FINE factor; else by the COARSE."""
FINE, COARSE = 4, 16
MOST: Final = 2 << 30
"""Bytes of the largest of them: more only repeats it."""
HALVINGS: Final = 2
"""Times that a border is sought nearer, by the half of its factor each."""
OTHERS: Final = ("direct", "two-level")
"""The ways of others that are candidates (solver/baselines/alltoall.py)."""
NEVER = float("inf")


def make_exchange(
    topology: Topology,
    demand: Demand,
    span: tuple[int, int],
    targets: Mapping[PlanFormat, Target],
    wider: Target | None,
    sms: int,
    clock: Clock,
) -> PlanSet:
    """The set for sizes from `span[0]` to `span[1]` bytes; errors as of `make`.

    `wider`: holds what the target of its format does not.
    """
    if not targets:
        raise UnsupportedError(f"a plan set needs a plan format: {' or '.join(FORMATS)}")
    targets, notes = seat(targets, demand.graph, topology.name, wider is not None)
    with clock.stage("optimum"):
        best = solve(demand)
    with clock.stage("routes"):
        ways = list(find_ways(best, notes))
    found = []
    for form, target in targets.items():
        race = _Race(topology, form, target, ways, clock)
        try:
            found.append(race.plans(*span))
        except PlanError as error:
            if wider is None or form != wider.format:
                raise
            race = _Race(topology, form, wider, ways, clock)
            found.append(race.plans(*span))
            notes.append(f"the MSCCL XML is for msccl only; {error}")
        notes += race.notes
    return PlanSet(
        name=topology.name,
        collective=Collective.ALLTOALL,
        root=None,
        sms=sms,
        low=span[0],
        high=span[1],
        bound=best.bound,
        plans=tuple(found),
        timings=clock.seconds,
        notes=list(dict.fromkeys(notes)),
    )


def find_ways(best: Optimum, notes: list[str]) -> Iterator[Routes]:
    """The candidates' routes, none twice; where some serve powers of two, no others."""
    graph = best.demand.graph
    ways: list[Routes] = []
    for name in OTHERS:
        try:
            ways.append(routes_over(best, by_name(name).flows(graph)))
        except ForestCollError:  # no boxes, or a way that meets itself
            continue
    fastest = route(best, powers=True)
    ways.append(fastest)
    ways += [route(best, k) for k in _fewer(fastest.units)]
    most = max((w for w in ways if is_power(w.units)), key=lambda w: w.algbw, default=fastest)
    if fastest.algbw > most.algbw:
        notes.append(
            f"{float(most.algbw):.6g} of {float(fastest.algbw):.6g} GB/s: what is faster serves no "
            "power of two; synthesize without --sizes makes it"
        )
        ways.remove(fastest)
    seen: set[object] = set()
    for one in ways:
        carried = one.units, frozenset(write_out(one))
        if carried not in seen:
            seen.add(carried)
            yield one


def _fewer(units: int) -> list[int]:
    """Units a pair beside those of the routes that come nearest to the optimum."""
    powers = [k for k in (1, 2, 4, MOST_UNITS) if k <= units]
    return [1] if is_power(units) and units > 1 else powers if units > 1 else []


class _Race:
    """The plans of one format; numbers are those of its candidates."""

    def __init__(
        self,
        topology: Topology,
        form: PlanFormat,
        target: Target,
        ways: Sequence[Routes],
        clock: Clock,
    ) -> None:
        self.topology, self.form, self.target, self.clock = topology, form, target, clock
        self.notes: list[str] = []
        self.links = topology.latencies()
        self.candidates = [
            ExchangeCandidate(way, protocol, line_of(way, protocol, self.links, topology.name))
            for way in ways
            for protocol in HOP
        ]
        self._shares = {id(way): shares_of(way) for way in ways}
        self._programs: dict[int, Program | None] = {}
        self._short: dict[int, str] = {}
        self._refused = ""
        self._times: dict[tuple[int, int], float] = {}

    def plans(self, low: int, high: int) -> Plans:
        """All of them; PlanError where none fits."""
        reach = last_begin(self.form, self.target, low, high)
        ranges = self._ranges(low, reach, high)
        last = self._program(ranges[-1].index)
        assert last is not None
        end = min(high, largest_call(last))
        entries = tuple(
            self._entry(place, end if place is ranges[-1] else place.high) for place in ranges
        )
        return Plans(self.form, self.target, entries, sizes_above(end, high, self.target))

    # --- which is fastest where

    def _ranges(self, low: int, reach: int, high: int) -> list[Range]:
        sizes = [low]
        factor = FINE if len(self.candidates[0].origin.graph.ranks) <= FEW else COARSE
        while sizes[-1] < min(reach, MOST):
            sizes.append(min(sizes[-1] * factor, reach, max(MOST, low)))
        out: set[int] = set()
        while True:
            winners = [self._fastest(size, out) for size in sizes]
            worth = {i: self._worth(i, winners, sizes, out) for i in set(winners)}
            least = min(worth, key=lambda i: (worth[i], i))
            if len(worth) == 1 or worth[least] >= WORTH:
                break
            out.add(least)
        ranges = [Range(low, high, winners[0])]
        for (a, b), (i, j) in zip(pairwise(sizes), pairwise(winners), strict=True):
            if i != j:
                ranges.append(Range(self._border(a, b, i, j), high, j))
        return abut(ranges, high)

    def _fastest(self, size: int, out: set[int]) -> int:
        """The fastest candidate; those that the estimate alone rules out are not made."""
        best, fastest = NEVER, -1
        number = range(len(self.candidates))
        for i in sorted(set(number) - out, key=lambda i: (self._estimate(i, size), i)):
            if self._estimate(i, size) >= best * float(WORTH):
                break
            time = self._time(i, size)
            if time < best:
                best, fastest = time, i
        if fastest < 0:  # too few bytes for any, or too many: what comes nearest
            candidates = [i for i in number if i not in out and self._program(i) is not None]
            if not candidates:
                raise PlanError(self._refused)
            return min(candidates, key=lambda i: self._distance(i, size))
        return fastest

    def _distance(self, i: int, size: int) -> int:
        """Bytes from `size` to what a plan serves."""
        program = self._program(i)
        assert program is not None
        return max(self._least(program) - size, size - largest_call(program))

    def _worth(self, i: int, winners: Sequence[int], sizes: Sequence[int], out: set[int]) -> float:
        """How many times as fast as without it candidate `i` makes the set, where that is most."""
        best = 1.0
        for winner, size in zip(winners, sizes, strict=True):
            if winner == i:
                other = self._fastest(size, out | {i}) if len(self.candidates) > len(out) + 1 else i
                best = max(best, self._time(other, size) / self._time(i, size))
        return best

    def _border(self, low: int, high: int, before: int, after: int) -> int:
        """The first size at which `after` is faster, as far as a few steps tell."""
        for _ in range(HALVINGS):
            middle = round((low * high) ** 0.5)
            if self._time(after, middle) < self._time(before, middle):
                high = middle
            else:
                low = middle
        return high

    # --- how long it takes

    def _estimate(self, i: int, size: int) -> float:
        return 2 * float(self.candidates[i].line.time(size))

    def _time(self, i: int, size: int) -> float:
        """Microseconds over both kinds of links together; NEVER where the plan does not serve."""
        program = self._program(i)
        if program is None or not self._least(program) <= size <= largest_call(program):
            return NEVER
        if (i, size) not in self._times:
            self._times[i, size] = self._play(i, program, size)
        return self._times[i, size]

    def _play(self, i: int, program: Program, size: int) -> float:
        if program.n > RANKS:
            return self._estimate(i, size)
        with self.clock.stage("play"):
            band = play(program, self.topology, size, self.topology)
        return band.fifo + band.fair

    @staticmethod
    def _least(program: Program) -> int:
        """Bytes of float32 of the smallest size that is served."""
        return Sizes.of(program).multiple()

    def _program(self, i: int) -> Program | None:
        """The plan of a candidate, or None where there is no room for it."""
        if i not in self._programs:
            one = self.candidates[i]
            try:
                with self.clock.stage("lower"):
                    program, self._short[i] = fill(
                        one.origin,
                        self._shares[id(one.origin)],
                        self.target,
                        self.topology.name,
                        one.protocol,
                    )
                self._programs[i] = program
            except PlanError as error:
                self._refused = self._refused or str(error)
                self._programs[i] = None
        return self._programs[i]

    # --- what is written

    def _entry(self, place: Range, high: int) -> Entry:
        candidate, program = self.candidates[place.index], self._program(place.index)
        assert program is not None
        check_range(program, self.target, place.low, high)
        if self._short[place.index]:
            self.notes.append(self._short[place.index])
        sized = replace(program, min_bytes=place.low, max_bytes=high)
        with self.clock.stage("write"):
            text = plans.dumps(sized, self.form, self.target)
        with self.clock.stage("verify"):
            back = plans.loads(text, source=f"<{self.form}>", format=self.form)
            if back != sized:
                raise PlanError(f"the {self.form} plan does not read back as written (a defect)")
            check_loads(self._shares[id(candidate.origin)], verify(back))
        with self.clock.stage("play"):
            ends = ends_of(sized, self.topology, self.topology, place.low, high)
        return Entry(place.low, high, candidate, sized, text, ends)
