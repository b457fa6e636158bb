"""Synthesize: topology to forest to programs to plan files, each checked on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from forestcoll.common.clock import Clock, Progress
from forestcoll.common.errors import PlanError
from forestcoll.compile.choose import Choice, Chooser
from forestcoll.compile.formats import Format, serve_place, write_plan
from forestcoll.compile.in_switches import (
    choose_by_percent,
    nvls_note,
    optimum_in_switches,
    prefer_switches,
    require_forest,
)
from forestcoll.compile.optimum import in_switches
from forestcoll.compile.problem import Problem
from forestcoll.compile.request import IN_PYTHON, Request, keywords
from forestcoll.plans import FORMATS
from forestcoll.program.targets import WIDER, PlanFormat
from forestcoll.topology.numbers import percent

if TYPE_CHECKING:
    from forestcoll.lower import Usage
    from forestcoll.program import Program
    from forestcoll.program.targets import PlanFormat, Target
    from forestcoll.schedule.forest import Bound, Forest
    from forestcoll.solver import Optimum
    from forestcoll.topology import Topology
    from forestcoll.verify.simulate import Band


@dataclass(frozen=True, slots=True)
class Synthesis:
    """What `synthesize` made. `texts[format]` is ready to be written to a file.

    `optimum.trees_per_root` is the least that is known, be it that some links are rounded.
    """

    name: str  # of the expanded topology
    forest: Forest
    optimum: Optimum  # of schedules that copy and add where the forest's do
    programs: dict[PlanFormat, Program]
    texts: dict[Format, str]
    timings: dict[str, float]  # seconds a stage
    latency: Fraction  # us: the forest's height in its links' latencies
    notes: list[str] = field(default_factory=list)
    needs: dict[PlanFormat, Usage] = field(default_factory=dict)  # what plans take of their targets
    bands: dict[Format, Band] = field(default_factory=dict)
    """What plans, or the trees alone where there are none, reach in simulated time."""
    in_switches: Fraction | None = None
    """GB/s of trees that let switches copy and add, where this forest's do not and are slower."""

    def __repr__(self) -> str:
        forest = self.forest
        return (
            f"<Synthesis of {forest.collective} on {self.name}: {forest.algbw} GB/s of at most "
            f"{self.optimum.bound.algbw}, {forest.count} trees; "
            f"{', '.join(self.texts) or 'nothing to write'}>"
        )

    @property
    def least_height(self) -> int | None:
        """Hops that no forest with as many trees, as fast, goes below; None: too large to tell."""
        from forestcoll.solver.shallow.height import forest_bound

        return forest_bound(self.forest)

    @property
    def plan_algbw(self) -> Fraction:
        """GB/s that the plans' operations leave, or would leave if there are none.

        Less than the forest's algbw where that counts copies and sums in switches.
        """
        if any(program.in_switches for program in self.programs.values()):
            from forestcoll.lower.nvls import most_algbw

            return most_algbw(self.forest)
        return self.forest.plain_algbw

    @property
    def plain_bound(self) -> Bound:
        """What `forest.plain_algbw` cannot exceed."""
        forest = self.forest
        if not forest.graph.copies:
            return self.optimum.bound
        root = forest.root if forest.collective.has_root else None
        return Problem(forest.graph, forest.collective, root).plain.optimum().bound


@keywords(*IN_PYTHON)
def synthesize(
    topology: Topology, request: Request, *, progress: Progress | None = None
) -> Synthesis:
    """A forest and the plans made from it, in all formats; one forest serves them all.

    `topology`: a Topology, a name of the catalogue, or a file. `root`: a node id or rank number;
    `ranks`, `relays`, `shares`: see `problem.capacity_graph`; but for an allreduce shares are for
    forests only.
    `formats`: by default the forest and every plan that `target` reads. What the other arguments
    mean stands in `Request`, and as the help of the options of those names.

    Without a plan format the forest is the exact optimum, or at 99.9 % of it where that would take
    minutes on many ranks and is not asked for (`exact`); switches that copy and add do so where
    that makes trees faster or lower. With plan formats GPUs copy and add, and what is solved, and
    written, is a graph whose switches do not: the optimum there, where its plans fit the target
    ("any": all runtimes); else the fewest trees per root that reach 99 % of it and fit; else the
    best that fits. Where the plans of that one are far slower in simulated time than its links
    allow, forests whose plans may be faster are tried, and the one whose plans are fastest is taken
    (`rivals`). Its shares are rounded so that plans serve every power of two where that costs 1 %
    of algbw at most. Or the request says which one. Every forest is checked against its graph and
    bound; every plan is read back, compared, and run symbolically.

    Raises InfeasibleError (the ranks cannot reach each other), PlanError (a target cannot hold it),
    UnsupportedError (numbers too large, wishes that contradict each other or cannot be met).
    """
    clock = Clock(progress)
    with clock.stage("graph"):
        problem = request.problem(topology)
    return make(problem, request, clock)


def make(problem: Problem, request: Request, clock: Clock) -> Synthesis:
    """Makes the forest that is asked for, and its plans; see `synthesize`."""
    from forestcoll import solver

    request.check(problem)
    request, left_out = request.seat(problem)
    if request.compact is None:  # forests alone are compact above so many ranks
        large = len(problem.graph.ranks) > solver.COMPACT_FROM
        request = replace(request, compact=request.forest_alone and large)
    plain = problem.plain
    with clock.stage("optimum"):
        best = plain.optimum()
    if request.nvls is not None:
        return _make_in_switch(problem, request, best, clock)
    if request.min_percent is not None and request.forest_alone and problem.graph.copies:
        points = Chooser(plain, {}, request, best, clock).front
        with clock.stage("solve"):
            chosen = choose_by_percent(problem, request, best, lambda s: points.fewest(s).trees)
        if not isinstance(chosen, Request):
            forest_alone = Request(formats=("forest",))
            return _finish(
                problem, chosen, optimum_in_switches(chosen, best), {}, {}, clock, forest_alone
            )
        request = chosen
    choice, targets, narrowed = _choose(plain, request, best, clock)
    forest, best = choice.forest, replace(best, trees_per_root=choice.optimum_trees)
    free = replace(request, exact=False).free  # a forest alone is the optimum anyway
    if request.forest_alone and free and not request.compact:
        with clock.stage("solve"):
            forest, best = prefer_switches(problem, forest, best)
    programs = {form: serve_place(p, request.place) for form, p in choice.programs.items()}
    bands = {f: b for f, b in choice.bands.items() if programs[f] is choice.programs[f]}
    done = _finish(problem, forest, best, programs, targets, clock, request, bands)
    notes = [*left_out, *narrowed, *choice.notes, *done.notes, *plan_notes(programs)]
    return replace(done, notes=notes)


def _choose(
    problem: Problem, request: Request, best: Optimum, clock: Clock
) -> tuple[Choice, dict[PlanFormat, Target], list[str]]:
    """(choice, the targets that its programs fit, why one runtime less)."""
    targets = request.targets(problem.name)
    try:
        return Chooser(problem, targets, request, best, clock).choose(), targets, []
    except PlanError as error:
        wider = [WIDER[form] for form in targets if form in WIDER]
        if request.target != "any" or not wider:
            raise
        # One runtime less beats no plan: RCCL is the narrowest by far.
        targets |= {t.format: t.on(request.multiprocessors(problem.name)) for t in wider}
        choice = Chooser(problem, targets, request, best, clock).choose()
        words = [f"the {FORMATS[t.format].title} is for {t.name} only; {error}" for t in wider]
        return choice, targets, words


def _make_in_switch(problem: Problem, request: Request, best: Optimum, clock: Clock) -> Synthesis:
    """Forest and plan that copy and add in a switch; PlanError where there is none to do it."""
    from forestcoll.lower.nvls import lower_nvls

    targets = request.targets(problem.name)
    for form, target in targets.items():
        if target.style == "fifo":
            title = FORMATS[form].title
            raise PlanError(f"{title} has no operations that copy and add in switches; MSCCL++ has")
    with clock.stage("solve"):
        forest = require_forest(problem)
    with clock.stage("lower"):
        programs = {
            form: lower_nvls(forest, target, in_place=request.nvls == "in-place")
            for form, target in targets.items()
        }
    best = optimum_in_switches(
        forest, best
    )  # `place` is None: programs are for those calls already
    done = _finish(problem, forest, best, programs, targets, clock, request)
    return replace(done, notes=[*done.notes, nvls_note(forest)]) if programs else done


def _finish(
    problem: Problem,
    forest: Forest,
    best: Optimum,
    programs: dict[PlanFormat, Program],
    targets: Mapping[PlanFormat, Target],
    clock: Clock,
    request: Request,
    played: Mapping[PlanFormat, Band] | None = None,
) -> Synthesis:
    """The forest checked, it and its programs written, each plan verified and simulated."""
    from forestcoll.schedule import certificate, forest_file
    from forestcoll.schedule.latency import latency

    with clock.stage("check"):
        certificate.check(forest)
    with clock.stage("optimum"):
        other = None if forest.graph.copies else in_switches(problem)
    texts: dict[Format, str] = {}
    for form in request.files:
        if form == "forest":
            with clock.stage("write"):
                texts[form] = forest_file.dumps(forest)
        else:
            program, target = programs[form], targets[form]
            texts[form] = write_plan(program, form, target, forest, clock, request.place)
    return Synthesis(
        problem.name,
        forest,
        best,
        programs,
        texts,
        clock.seconds,
        latency(forest, problem.links),
        forest_notes(forest, best, plain=not programs),
        needs=_usages(programs),
        bands=_bands(problem, forest, programs, clock, played or {}),
        in_switches=other.algbw if other is not None and other.algbw > forest.algbw else None,
    )


def _bands(
    problem: Problem,
    forest: Forest,
    programs: Mapping[PlanFormat, Program],
    clock: Clock,
    played: Mapping[PlanFormat, Band],
) -> dict[Format, Band]:
    """What programs reach in simulated time, or the forest alone; nothing where that is long.

    `played`: what is known already.
    """
    from forestcoll.verify import simulate

    with clock.stage("simulate"):
        if not programs:
            alone = simulate.band_of_trees(forest, problem.links)
            return {} if alone is None else {"forest": alone}
        bands: dict[Format, Band] = {}
        for form, program in programs.items():
            band = played.get(form) or simulate.plan_band(program, forest, problem.links)
            if band is not None:
                bands[form] = band
        return bands


def _usages(programs: Mapping[PlanFormat, Program]) -> dict[PlanFormat, Usage]:
    """What each program takes of its target. Forests alone need nothing of lowering."""
    if not programs:
        return {}
    from forestcoll.lower import usage

    return {form: usage(program) for form, program in programs.items()}


def forest_notes(forest: Forest, best: Optimum, *, plain: bool = True) -> list[str]:
    """`plain`: the figures are not those of plans."""
    notes = []
    if plain and forest.graph.copies:
        notes.append(
            "algbw counts copies and sums in the switches (NVLS) once; plans copy and add on the "
            "GPUs, but those of --nvls"
        )
    if best.bound.algbw > forest.algbw and forest.trees_per_root == best.trees_per_root:
        share = percent(forest.algbw / best.bound.algbw)
        notes.append(f"proven within {share} of any schedule")
    if best.note:
        notes.append(best.note)
    return notes


def plan_notes(programs: Mapping[PlanFormat, Program]) -> list[str]:
    """What to know of plans of packets, and of those that ports allow for one kind of calls."""
    program = programs.get("mscclpp-json")
    if program is None:
        return []
    if program.double_scratch:
        return _packet_notes(program)
    if program.in_place and program.out_of_place:
        return []
    if program.in_place:
        return ["the MSCCL++ plan serves calls in place only (--place out-of-place: the others)"]
    return [
        "the MSCCL++ plan serves calls out of place only: its ports read the input from where its "
        "allocation begins (--place in-place: the others)"
    ]


def _packet_notes(program: Program) -> list[str]:
    notes = [
        f"the MSCCL++ plan is of packets (LL), for up to {program.max_bytes >> 10} KiB; all "
        "ranks must launch all their plans in one order"
    ]
    if not program.in_place:
        notes.append("it serves out-of-place calls only: sums on their way lie in the output")
    return notes
