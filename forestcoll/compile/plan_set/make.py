"""From a topology to plans for all sizes: low trees and LL for few bytes, the best for many.

The candidates are the lowest trees, forests with 1, 2, 4 ... 32 trees per root, the optimum, and
what others do; of an all-to-all the ways of others and the optimum's routes (`candidates`); each
with every protocol of the runtime. Which is fastest where is simulated (`contest`); only those are
proven and written.

A runtime passes over a plan whose chunks do not divide the data, and most sizes are powers of two:
forests whose plans serve none are candidates with rounded weights too, and are left out as they are
while there are others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Final

from forestcoll.common.clock import Clock, Progress
from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.compile.budget import different_trees
from forestcoll.compile.choose import Chooser
from forestcoll.compile.formats import Place, seat, serve_place, write_plan
from forestcoll.compile.optimum import in_switches
from forestcoll.compile.plan_set.candidates import (
    Made,
    best_program,
    candidates_of,
    find_ways,
    round_forests,
)
from forestcoll.compile.plan_set.contest import Contest, Range, ends_of, largest_call, serves
from forestcoll.compile.plan_set.others import Other, read_other
from forestcoll.compile.plan_set.values import (
    LARGEST,
    Candidate,
    Entry,
    Plans,
    PlanSet,
    Unserved,
)
from forestcoll.compile.problem import Problem, parse_any
from forestcoll.compile.request import Request, keywords
from forestcoll.compile.rivals import drop_equals, others, take_turns
from forestcoll.compile.search import IN_TURN
from forestcoll.lower.rounds import Rounds, rounds_of
from forestcoll.plans import FORMATS
from forestcoll.program import Collective, Program
from forestcoll.program.sizes import Sizes, is_power
from forestcoll.program.targets import MSCCL, PlanFormat, Target
from forestcoll.schedule.forest import Forest
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.verify import simulate

if TYPE_CHECKING:
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.topology import Topology

TREES: Final = (1, 2, 4, 8, 16, 32)
"""Trees per root of the candidates, besides the optimum's."""


@keywords(
    "root", "ranks", "relays", "budget", "instances", "sms", "place", "target", "formats", "others"
)
def make(
    topology: Topology,
    request: Request,
    low: int,
    high: int,
    *,
    progress: Progress | None = None,
    points: Sequence[int] = (),
    made: Made | None = None,
) -> PlanSet:
    """Plans for sizes from `low` to `high` bytes (nccl-tests' size), one for each range.

    Ranges leave no gap up to where the runtime ends. The other arguments are those of `synthesize`;
    of an all-to-all only `ranks`, `relays`, `target` and `formats` count. `others`: files of plans
    of anybody's that take part. Every plan is read back
    and proven like there. `points`: plans for these sizes alone, each for one, of formats that may
    be the fastest there; their texts are empty, their proof is the caller's. `made`: programs that
    are shared with other calls for the topology. Raises PlanError where no candidate fits a target,
    UnsupportedError for sizes out of order.
    """
    if not 1 <= low <= high <= LARGEST:
        raise UnsupportedError(
            f"sizes {low} to {high}: must be ascending, from 1 byte to {LARGEST >> 40}T"
        )
    collective = parse_any(request.collective or "")
    maker = _Maker(request, Clock(progress), topology, made or Made())
    by = maker.by_trees if collective.phases else maker.by_routes
    sources, bound, root, other = by(request)
    plans = maker.points(sources, points) if points else maker.all_plans(sources, low, high)
    return PlanSet(
        name=topology.name,
        collective=collective,
        root=root,
        sms=request.multiprocessors(topology.name),
        low=low,
        high=high,
        bound=bound,
        in_switches=other,
        plans=tuple(plans),
        first=sources[0],
        timings=maker.clock.seconds,
        notes=list(dict.fromkeys(maker.notes)),
    )


Sources = Sequence[Forest] | Sequence[Routes]
Stated = tuple[Sources, Fraction, str | None, Fraction | None]
"""What plans may be made from; GB/s that bound them; the root's node; GB/s in switches, if more."""


class _Maker:
    def __init__(self, request: Request, clock: Clock, topology: Topology, made: Made) -> None:
        self.budget, self.place, self.clock = request.budget, request.place, clock
        self.topology, self.made = topology, made
        self.auto, self.instances = request.instances == "auto", request.parts
        self.targets: Mapping[PlanFormat, Target] = request.targets(topology.name)
        sms = request.multiprocessors(topology.name)
        self.wider = MSCCL.on(sms) if request.target == "any" else None
        self.notes: list[str] = []
        self.rounds: list[Rounds] = []
        self.others: list[Other] = []

    # --- what plans may be made from

    def by_routes(self, request: Request) -> Stated:
        """Of an all-to-all."""
        from forestcoll.solver.alltoall.demand import uniform
        from forestcoll.solver.alltoall.flows import solve

        self.check_formats()
        demand = uniform(self.topology, request.ranks, request.relays)
        any_target = self.wider is not None
        self.targets, left_out = seat(self.targets, demand.graph, self.topology.name, any_target)
        self.notes += left_out
        self._read_others(request, Collective.ALLTOALL, demand.graph, None)
        with self.clock.stage("optimum"):
            best = solve(demand)
        with self.clock.stage("routes"):
            return list(find_ways(best)), best.bound, None, None

    def by_trees(self, request: Request) -> Stated:
        """Of the other collectives."""
        with self.clock.stage("graph"):
            problem = request.problem(self.topology)
        kept, left_out = request.seat(problem)
        self.notes += left_out
        self.targets = kept.targets(problem.name)
        self.check_formats()
        self._read_others(request, problem.collective, problem.graph, problem.root)
        with self.clock.stage("optimum"):
            other, problem = in_switches(problem), problem.plain
            best = problem.optimum()
        chooser = Chooser(problem, {}, Request(budget=request.budget), best, self.clock)
        forests = self._forests(chooser, tuple(self.targets.values()))
        if problem.collective.two_phases and len(problem.graph.ranks) <= simulate.RANKS:
            self.rounds = list(rounds_of(problem.name, problem.graph))
        in_switch = None if other is None else other.algbw
        return forests, best.bound.algbw, self._name_root(problem), in_switch

    def _read_others(
        self, request: Request, collective: Collective, graph: CapacityGraph, root: int | None
    ) -> None:
        """Reads the plans that are to take part."""
        if request.others and len(graph.ranks) > simulate.RANKS:
            raise UnsupportedError(
                f"--with: over {simulate.RANKS} ranks plans are not simulated, so none is "
                "known to be faster"
            )
        told = collective, root
        with self.clock.stage("read"):
            self.others = [
                read_other(file, graph, told, self.targets, self.budget, self._calls)
                for file in request.others
            ]

    def check_formats(self) -> None:
        """UnsupportedError where no plans are asked for."""
        if not self.targets:
            raise UnsupportedError(f"a plan set needs a plan format: {' or '.join(FORMATS)}")

    def _name_root(self, problem: Problem) -> str | None:
        """The root's node id, if there is one; a note says what runtimes make of it."""
        graph = problem.graph
        if problem.root is None:
            return None
        root = graph.names[graph.ranks[problem.root]]
        self.notes.append(
            f"no runtime looks at the root: a {problem.collective} with another root than {root} "
            "would be given these plans too, and be wrong"
        )
        return root

    def _forests(self, chooser: Chooser, targets: Sequence[Target]) -> list[Forest]:
        """The lowest trees, some a root, the optimum, and others'; rounded too; none twice."""
        from forestcoll.schedule import certificate
        from forestcoll.solver.shallow.lowest import central, pack_lowest

        with self.clock.stage("solve"):
            problem = chooser.problem
            low = pack_lowest(
                problem.graph, problem.collective, problem.root, chooser.best, problem.name
            )
            middle = None if low is None else central(low)
        forests = [forest for forest in (low, middle) if forest is not None]
        exact = chooser.front.exact
        best = Fraction(0)
        for trees in sorted({*TREES, exact.trees}):
            algbw = chooser.front.point(trees).algbw
            if algbw > best:  # else fewer trees are as good
                same = exact.trees == trees and exact.exact
                forests.append(chooser.forest("auto" if same else trees))
                best = algbw
        if len(problem.graph.ranks) <= simulate.RANKS:
            with self.clock.stage("solve"):
                turns = take_turns(problem, chooser.best, IN_TURN)
                forests += (start.forest for start in turns)
            with self.clock.stage("baselines"):
                forests += (start.forest for start in others(problem, chooser.best))
        with self.clock.stage("round"):
            forests += round_forests(forests, targets, self.instances)
        most = self.budget.trees
        kept: list[Forest] = []
        for forest in drop_equals(forests):
            with self.clock.stage("check"):
                certificate.check(forest)
            if most is None or different_trees(forest) <= most:
                kept.append(forest)
        return kept

    # --- plans

    def all_plans(self, sources: Sources, low: int, high: int) -> list[Plans]:
        """The plans of every format; for `wider`, if there is one, where its target holds none."""
        plans = []
        for form, limits in self.targets.items():
            try:
                plans.append(self._plans(form, limits, sources, low, high))
            except PlanError as error:
                if self.wider is None or form != self.wider.format:
                    raise
                plans.append(self._plans(form, self.wider, sources, low, high))
                self.notes.append(f"the MSCCL XML is for msccl only; {error}")
        return plans

    def _plans(
        self, form: PlanFormat, target: Target, sources: Sources, low: int, high: int
    ) -> Plans:
        """The plans of one format, or PlanError where nothing fits."""
        reach = last_begin(form, target, low, high)
        limits = self.budget.limit_target(target)
        candidates = self._candidates(sources, limits)
        lower = partial(self._lower, limits)
        self.clock.subject = form
        contest = Contest(candidates, lower, self.topology, self.clock, self.made)
        ranges = contest.ranges(low, reach, high)
        last = contest.program(ranges[-1].index)
        assert last is not None
        end = min(high, largest_call(last))
        ranges[-1] = replace(ranges[-1], high=end)
        entries = tuple(self._entry(place, form, limits, contest) for place in ranges)
        self.clock.subject = ""
        self.notes += _list_others(candidates, ranges)
        why = f"{target.name} counts bytes in 32 bits: no plan serves larger buffers"
        unserved = (Unserved(end + 1, high, why),) if end < high else ()
        return Plans(form, target, entries, unserved)

    def points(self, sources: Sources, sizes: Sequence[int]) -> list[Plans]:
        """The plans of each format for sizes alone, where they may be the fastest of all formats.

        Where `wider` is there, a candidate that is not within its target is within that.
        """
        limits = {t.style: self.budget.limit_target(t) for t in self.targets.values()}
        candidates = [one for t in limits.values() for one in self._candidates(sources, t)]

        def lower(candidate: Candidate, tuned: bool) -> tuple[Program, str]:
            style = candidate.kind[0]
            try:
                return self._lower(limits[style], candidate, tuned)
            except PlanError:
                if self.wider is None or style != self.wider.style:
                    raise
                return self._lower(self.wider, candidate, tuned)

        contest = Contest(candidates, lower, self.topology, self.clock, self.made)
        places = contest.points(sizes)
        plans = []
        for form, target in self.targets.items():
            entries = []
            for place in places:
                candidate = candidates[place.index]
                program = contest.program(place.index, place.tuned)
                if program is not None and candidate.kind[0] == target.style:
                    entries.append(Entry(place.low, place.high, candidate, program, ""))
            plans.append(Plans(form, target, tuple(entries), ()))
        return plans

    def _candidates(self, sources: Sources, target: Target) -> list[Candidate]:
        """Those whose plans serve powers of two, if there are some; PlanError: none at all."""
        chunks: list[tuple[int, Forest | Routes]] = []
        refused = f"no forest is within the budget for {target.name}"
        for source in sources:
            try:
                chunks.append((self._chunks(source), source))
            except PlanError as error:  # GPUs that are no ranks relay
                refused = str(error)
        if not chunks:
            raise PlanError(refused)
        even = [source for count, source in chunks if is_power(count)]
        kept = even or [source for _, source in chunks]
        fastest, most = (max(map(_algbw, some)) for some in ((s for _, s in chunks), kept))
        if fastest > most:
            option = "--exact " * any(isinstance(source, Forest) for source in kept)
            self.notes.append(
                f"{_gbs(most)} of {_gbs(fastest)} GB/s: what is faster serves no power of two; "
                f"synthesize {option}without --sizes makes it"
            )
        wanted = [*kept, *self.rounds, *self.others]
        return candidates_of(wanted, (target.style,), self.topology)

    def _chunks(self, source: Forest | Routes) -> int:
        """Of a plan, for each part of the data."""
        from forestcoll.lower.layout import layout

        if isinstance(source, Routes):
            return source.units
        return layout(source, self.instances).chunks // source.collective.parts(source.n)

    def _lower(self, target: Target, candidate: Candidate, tuned: bool) -> tuple[Program, str]:
        """The best program of a candidate, as the set's calls are, and a note or ""."""
        tuned = tuned and self.auto
        program, note = best_program(
            candidate, target, self.topology, self.instances, tuned, made=self.made
        )
        if not isinstance(candidate.origin, Forest):
            return program, note
        return serve_place(program, self._calls(program)), note

    def _calls(self, program: Program) -> Place | None:
        """What all plans of the set are for: the shim goes by the first one of a process.

        As frameworks call, unless the caller says otherwise; an all-to-all's are out of place.
        """
        if self.place is not None or not program.collective.phases:
            return self.place
        return "in-place" if program.shorter is None else "out-of-place"

    def _entry(self, place: Range, form: PlanFormat, target: Target, contest: Contest) -> Entry:
        """The plan of a range with its sizes, written."""
        candidate, program = contest.candidates[place.index], contest.program(place.index)
        assert program is not None
        if contest.notes[place.index]:
            self.notes.append(contest.notes[place.index])
        check_range(program, target, place.low, place.high)
        sized = replace(program, min_bytes=place.low, max_bytes=place.high)
        text, other = "", candidate.origin
        made_from = other if isinstance(other, Forest | Routes) else None
        if isinstance(other, Other) and sized == program:
            text = other.text
        if not text:
            calls = self._calls(program)
            text = write_plan(sized, form, target, made_from, self.clock, calls)
        with self.clock.stage("play"):
            ends = ends_of(sized, contest.where(place.index), self.topology, place.low, place.high)
        return Entry(place.low, place.high, candidate, sized, text, ends)


def last_begin(form: PlanFormat, target: Target, low: int, high: int) -> int:
    """The last size at which a plan for `low` to `high` bytes may begin; PlanError: none may.

    What serves that size serves all above.
    """
    last = min(high, FORMATS[form].last_minimum or high)
    if low > last:
        raise PlanError(
            f"{target.name} has no plans for sizes of {low} bytes or more alone: it reads the "
            f"smallest size as 32 bits; begin below {last + 1} bytes"
        )
    return last


def check_range(program: Program, target: Target, low: int, high: int) -> None:
    """PlanError where no size of a plan's range divides into its chunks."""
    if not serves(program, low, high):
        sizes = Sizes.of(program)
        least = sizes.multiple(1)
        raise PlanError(
            f"{target.name}: sizes {low} to {high} bytes hold no multiple of {least} bytes, the "
            f"{sizes.chunks} chunks of the best plan for them; ask for a range with one, such as "
            f"--sizes {low}:{-(-low // least) * least}"
        )


def _list_others(candidates: Sequence[Candidate], ranges: Sequence[Range]) -> Iterator[str]:
    """Where somebody's plans are the fastest."""
    for i, other in enumerate(candidate.origin for candidate in candidates):
        if isinstance(other, Other):
            won = [f"{place.low} to {place.high} bytes" for place in ranges if place.index == i]
            where = f"the fastest for {', '.join(won)}" if won else "nowhere the fastest"
            yield f"{other.file}: {where}"


def _algbw(source: Forest | Routes) -> Fraction:
    return source.algbw if isinstance(source, Routes) else source.plain_algbw


def _gbs(value: Fraction) -> str:
    return f"{float(value):.3f}".rstrip("0").rstrip(".")
