"""From a topology to plans for all sizes: low trees and LL for few bytes, the best for many.

The candidates are the lowest trees, forests with 1, 2, 4 ... 32 trees per root, and the optimum,
each with every protocol of the runtime. The estimate says which of them is quickest at which size;
only those are lowered, proven and written.

A runtime passes over a plan whose chunks do not divide the data, and most sizes are powers of two:
forests whose plans serve none are candidates with rounded weights too, and are left out as they are
while there are others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from forestcoll.common.clock import Clock, Progress
from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.compile.budget import different_trees
from forestcoll.compile.choose import Chooser
from forestcoll.compile.formats import Place, serve_place, write_plan
from forestcoll.compile.optimum import in_switches
from forestcoll.compile.plan_set.estimate import Range, line_of, lowest_lines
from forestcoll.compile.plan_set.fewer import contest
from forestcoll.compile.plan_set.served import (
    check_range,
    largest_call,
    last_begin,
    sizes_above,
)
from forestcoll.compile.plan_set.settle import STEP, Plays, clip, settle
from forestcoll.compile.plan_set.values import LARGEST, Candidate, Entry, Plans, PlanSet
from forestcoll.compile.problem import Problem, parse_any
from forestcoll.compile.request import Request, keywords
from forestcoll.plans import FORMATS
from forestcoll.program import Program
from forestcoll.program.sizes import is_power
from forestcoll.program.targets import MSCCL, PlanFormat, Target
from forestcoll.solver.alltoall.demand import uniform
from forestcoll.verify.simulate import HOP, RANKS

if TYPE_CHECKING:
    from forestcoll.schedule.forest import Forest
    from forestcoll.schedule.latency import Latencies
    from forestcoll.topology import Topology

TREES: Final = (1, 2, 4, 8, 16, 32)
"""Trees per root of the candidates, besides the optimum's."""


@keywords("root", "ranks", "relays", "budget", "instances", "sms", "place", "target", "formats")
def make(
    topology: Topology,
    request: Request,
    low: int,
    high: int,
    *,
    progress: Progress | None = None,
    write: bool = True,
) -> PlanSet:
    """Plans for sizes from `low` to `high` bytes (nccl-tests' size), one for each range.

    Ranges leave no gap up to where the runtime ends. The other arguments are those of `synthesize`;
    of an all-to-all only `ranks`, `relays`, `target` and `formats` count. Every plan is read back
    and proven like there, but of trees without `write`: its text is empty, its proof the caller's.
    Raises PlanError where no candidate fits a target, UnsupportedError for sizes out of order.
    """
    _check_sizes(low, high)
    sms, clock = request.multiprocessors(topology.name), Clock(progress)
    targets = request.targets(topology.name)
    wider = MSCCL.on(sms) if request.target == "any" else None
    if not parse_any(request.collective or "").phases:
        from forestcoll.compile.plan_set.exchange import make_exchange

        demand = uniform(topology, request.ranks, request.relays)
        return make_exchange(topology, demand, (low, high), targets, wider, sms, clock)
    with clock.stage("graph"):
        problem = request.problem(topology)
    kept, left_out = request.seat(problem)
    targets = kept.targets(problem.name)
    with clock.stage("optimum"):
        other, problem = in_switches(problem), problem.plain
        best = problem.optimum()
    maker = _Maker(request, clock, topology, write)
    chooser = Chooser(problem, {}, Request(budget=request.budget), best, clock)
    forests = maker.forests(chooser, tuple(targets.values()))
    plans = maker.all_plans(targets, wider, forests, problem.links, low, high)
    return PlanSet(
        name=topology.name,
        collective=problem.collective,
        root=maker.name_root(problem),
        sms=sms,
        low=low,
        high=high,
        bound=best.bound.algbw,
        in_switches=None if other is None else other.algbw,
        plans=tuple(plans),
        timings=clock.seconds,
        notes=[*left_out, *dict.fromkeys(maker.notes)],
    )


def _check_sizes(low: int, high: int) -> None:
    if not 1 <= low <= high <= LARGEST:
        raise UnsupportedError(
            f"sizes {low} to {high}: must be ascending, from 1 byte to {LARGEST >> 40}T"
        )


class _Maker:
    def __init__(self, request: Request, clock: Clock, topology: Topology, write: bool) -> None:
        self.budget, self.place, self.clock = request.budget, request.place, clock
        self.topology, self.write = topology, write
        self.auto, self.instances = request.instances == "auto", request.parts
        self.notes: list[str] = []
        self._short: dict[int, str] = {}  # candidate -> why its plan keeps no links busy
        self._refused = ""  # why the last plan that was tried is none

    def name_root(self, problem: Problem) -> str | None:
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

    def forests(self, chooser: Chooser, targets: Sequence[Target]) -> list[Forest]:
        """The lowest trees, some a root, the optimum, all rounded too; checked, none twice."""
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
        with self.clock.stage("round"):
            forests += [
                rounded for f in forests if (rounded := self._round(f, targets)) is not None
            ]
        most = self.budget.trees
        kept: list[Forest] = []
        for forest in forests:
            with self.clock.stage("check"):
                certificate.check(forest)
            if forest not in kept and (most is None or different_trees(forest) <= most):
                kept.append(forest)
        return kept

    def all_plans(
        self,
        targets: Mapping[PlanFormat, Target],
        wider: Target | None,
        forests: Sequence[Forest],
        links: Latencies,
        low: int,
        high: int,
    ) -> list[Plans]:
        """The plans of every format; for `wider`, if there is one, where its target holds none."""
        found = []
        for form, limits in targets.items():
            try:
                plans = self.plans(form, limits, forests, links, low, high)
            except PlanError as error:
                if wider is None or form != wider.format:
                    raise
                plans = self.plans(form, wider, forests, links, low, high)
                self.notes.append(f"the MSCCL XML is for msccl only; {error}")
            found.append(plans)
        if not found:
            raise UnsupportedError(f"a plan set needs a plan format: {' or '.join(FORMATS)}")
        return found

    def plans(
        self,
        form: PlanFormat,
        target: Target,
        forests: Sequence[Forest],
        links: Latencies,
        low: int,
        high: int,
    ) -> Plans:
        """The plans of one format, or PlanError where nothing fits."""
        limits = self.budget.limit_target(target)
        candidates = self._even(self._candidates(forests, links))
        played = all(forest.n <= RANKS for forest in forests)
        wide = STEP if played else 1  # how far simulated borders may be from the estimate's
        until = [high * wide] * len(candidates)
        programs: dict[int, Program] = {}
        served: dict[int, int] = {}  # candidate -> the largest size that its plan serves
        reach = last_begin(form, target, low, high)

        def make(place: Range) -> bool:
            """Makes the plan of a range, and says whether it serves all of it."""
            most = self._try(candidates[place.index], limits, programs, place)
            served[place.index] = most
            until[place.index] = most if most < reach else reach * wide
            return most >= place.high

        while True:
            lines = [candidate.line for candidate in candidates]
            ranges = lowest_lines(lines, max(1, low // wide), reach * wide, until)
            ranges = [place for place in ranges if until[place.index] >= low]
            if not clip(ranges, low, reach):
                raise PlanError(
                    self._refused or f"no forest is within the budget for {target.name}"
                )
            todo = [place for place in ranges if place.index not in programs]
            for number, place in enumerate(todo, 1):
                self.clock.subject = f"{form}, candidate {number} of {len(todo)}"
                make(place)
            self.clock.subject = form
            if all(place.high <= until[place.index] for place in ranges):
                break
        plays = None
        settled = clip(ranges, low, reach)
        if played:
            stage, topology = self.clock.stage, self.topology
            plays = Plays(lambda i: (programs[i], candidates[i].forest), topology, stage)
            end = min(reach, ranges[-1].high)
            ranges_served = settle(ranges, plays.time, until, low, end)
            settled = contest(ranges_served, candidates, make, plays.time)
        chosen = [(r, candidates[r.index], programs[r.index]) for r in settled]
        end = min(high, served[settled[-1].index])
        plans_made = self._write(form, target, limits, chosen, end, high, plays)
        self.clock.subject = ""
        return plans_made

    def _try(
        self, candidate: Candidate, target: Target, programs: dict[int, Program], place: Range
    ) -> int:
        """The largest size that the candidate's plan serves, 0 if there is none; keeps the plan."""
        from forestcoll.compile.search import search
        from forestcoll.lower import lower

        note = ""
        try:
            with self.clock.stage("lower"):
                program = lower(
                    candidate.forest,
                    target,
                    instances=self.instances,
                    protocol=candidate.protocol,
                )
                if self.auto:
                    program, note = search(candidate.forest, target, program)
                program = serve_place(program, self._calls(program))
        except PlanError as error:
            self._refused = str(error)
            return 0
        programs[place.index] = program
        self._short[place.index] = note
        return largest_call(program)

    def _calls(self, program: Program) -> Place:
        """What all plans of the set are for: the shim goes by the first one of a process.

        As frameworks call, unless the caller says otherwise.
        """
        if self.place is not None:
            return self.place
        return "in-place" if program.shorter is None else "out-of-place"

    def _candidates(self, forests: Sequence[Forest], links: Latencies) -> list[Candidate]:
        from forestcoll.lower.layout import layout

        candidates = []
        for forest in forests:
            try:
                chunks = layout(forest, self.instances).chunks
            except PlanError as error:  # GPUs that are no ranks relay
                self._refused = str(error)
                continue
            lines = ((p, line_of(forest, p, links, forest.name)) for p in HOP)
            candidates += [Candidate(forest, protocol, line, chunks) for protocol, line in lines]
        return candidates

    def _round(self, forest: Forest, targets: Sequence[Target]) -> Forest | None:
        """The forest in few chunks that serve powers of two, where there is such a one."""
        from forestcoll.compile.choose import ENOUGH, round_forest

        try:
            least = ENOUGH * forest.plain_algbw
            return round_forest(forest, least, targets, self.instances, "LL") if targets else None
        except PlanError:  # GPUs that are no ranks relay
            return None

    def _even(self, candidates: list[Candidate]) -> list[Candidate]:
        """Those whose plans serve powers of two."""

        def even(candidate: Candidate) -> bool:
            parts = candidate.forest.collective.parts(candidate.forest.n)
            return is_power(candidate.chunks // parts)

        kept = [c for c in candidates if even(c)]
        if not kept:
            return candidates  # none at all, or none that serves powers of two
        best = max(candidates, key=lambda c: c.forest.plain_algbw)
        most = max(c.forest.plain_algbw for c in kept)
        if best.forest.plain_algbw > most:
            self.notes.append(
                f"{_gbs(most)} of {_gbs(best.forest.plain_algbw)} GB/s: what is faster serves no "
                "power of two; synthesize --exact without --sizes makes it"
            )
        return kept

    def _write(
        self,
        form: PlanFormat,
        target: Target,
        limits: Target,
        chosen: Sequence[tuple[Range, Candidate, Program]],
        end: int,
        high: int,
        plays: Plays | None,
    ) -> Plans:
        """The plans with their sizes; the last one reaches up to `end`, of the `high` asked for."""
        entries: list[Entry] = []
        for place, candidate, program in chosen:
            most = end if place is chosen[-1][0] else place.high
            if self._short[place.index]:
                self.notes.append(self._short[place.index])
            check_range(program, target, place.low, most)
            sized = replace(program, min_bytes=place.low, max_bytes=most)
            if not self.write:
                entries.append(Entry(place.low, most, candidate, sized, ""))
                continue
            text = write_plan(
                sized, form, limits, candidate.forest, self.clock, self._calls(program)
            )
            ends = None if plays is None else plays.ends(place.index, place.low, most)
            entries.append(Entry(place.low, most, candidate, sized, text, ends))
        return Plans(form, target, tuple(entries), sizes_above(end, high, target))


def _gbs(value: Fraction) -> str:
    return f"{float(value):.3f}".rstrip("0").rstrip(".")
