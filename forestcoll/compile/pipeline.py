"""The stages in a row: topology -> forest -> programs -> plan files, each checked on the way.

This is what the command line calls, and what `import forestcoll` offers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, get_args

from forestcoll import arguments, plans
from forestcoll.compile.budget import Budget
from forestcoll.compile.choose import Row
from forestcoll.compile.fabric import choose_by_percent, copies
from forestcoll.compile.wishes import Wishes
from forestcoll.errors import PlanError, UnsupportedError
from forestcoll.program import Collective, Protocol
from forestcoll.targets import (
    DEFAULT_SMS,
    MSCCL,
    MSCCLPP,
    NARROWEST,
    TARGETS,
    PlanFormat,
    Target,
    TargetName,
    sms_of,
)

if TYPE_CHECKING:
    from os import PathLike

    from forestcoll.forest import Bound, Forest
    from forestcoll.graph import CapacityGraph, Relays
    from forestcoll.latency import Latencies
    from forestcoll.lower import Usage
    from forestcoll.program import Program
    from forestcoll.solver import Optimum
    from forestcoll.topology import Topology

Format = Literal["forest"] | PlanFormat
Place = Literal["in-place", "out-of-place"]
Progress = Callable[[str, float], None]
Shares = Sequence[int | str] | Mapping[str, int]

PROTOCOLS: tuple[Protocol, ...] = ("Simple", "LL", "LL128")
PLACES: tuple[Place, ...] = ("in-place", "out-of-place")
TARGET_NAMES: tuple[TargetName, ...] = get_args(TargetName)

FORMATS: dict[Format, str] = {
    "forest": ".forest.json",
    **{name: form.suffix for name, form in plans.FORMATS.items()},
}
"""Suffix of the file of each format."""

FEWER_SOUGHT = 4096
"""Ranks up to which `optimum` looks for fewer trees than all links have in common."""

PLANS_QUICK = 64
"""Ranks up to which `front` makes the plans of every row in seconds."""


@dataclass(frozen=True, slots=True)
class Synthesis:
    """What `synthesize` made. `texts[format]` is ready to be written to a file.

    `optimum.trees_per_root` is the least that is known, be it that some links are rounded.
    """

    name: str  # of the expanded topology
    forest: Forest
    optimum: Optimum
    programs: dict[PlanFormat, Program]
    texts: dict[Format, str]
    timings: dict[str, float]  # seconds a stage
    latency: Fraction  # us: the forest's height in its links' latencies
    notes: list[str] = field(default_factory=list)
    needs: dict[PlanFormat, Usage] = field(default_factory=dict)  # what plans take of their targets

    def __repr__(self) -> str:
        forest = self.forest
        return (
            f"<Synthesis of {forest.collective} on {self.name}: {forest.algbw} GB/s of at most "
            f"{self.optimum.bound.algbw}, {len(forest.trees) * forest.images} trees; "
            f"{', '.join(self.texts) or 'nothing to write'}>"
        )

    @property
    def least_height(self) -> int | None:
        """Hops that no forest with as many trees, as fast, goes below; None: too large to tell."""
        from forestcoll.solver.height import forest_bound

        return forest_bound(self.forest)

    @property
    def plain_bound(self) -> Bound:
        """What `forest.plain_algbw` cannot exceed."""
        forest = self.forest
        root = forest.root if forest.collective.rooted else None
        return plain_bound(forest.graph, forest.collective, root, self.optimum)


@dataclass(frozen=True, slots=True)
class FrontTable:
    """What `front` found; `left_out` points between are not in `rows`."""

    name: str  # of the expanded topology
    graph: CapacityGraph
    collective: Collective
    optimum: Optimum
    rows: tuple[Row, ...]
    left_out: int
    timings: dict[str, float]  # seconds a stage

    def __repr__(self) -> str:
        points = f"{len(self.rows)} of {len(self.rows) + self.left_out} points"
        return (
            f"<FrontTable of {self.collective} on {self.name}: {points} up to "
            f"{self.optimum.algbw} GB/s>"
        )


class Clock:
    """Seconds a stage, and the caller's progress display."""

    def __init__(self, progress: Progress | None) -> None:
        if progress is not None and not callable(progress):
            raise arguments.ArgumentError("progress must be a function of a stage and a share")
        self.seconds: dict[str, float] = {}
        self._progress = progress

    def report(self, stage: str, fraction: float) -> None:
        if self._progress is not None:
            self._progress(stage, fraction)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.report(name, 0.0)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def optimum(
    topology: Topology | str | PathLike[str],
    collective: Collective | str,
    *,
    root: str | int | None = None,
    ranks: str | Sequence[str] | None = None,
    relays: Relays = "none",
    shares: Shares | None = None,
    fabric: bool = True,
) -> Optimum:
    """The best algbw that any schedule on the GPUs can reach, with the bound that proves it.

    No trees. For allreduce: of schedules that reduce-scatter and allgather over spanning trees.
    Where switches copy and add, and trees that let them are faster, `in_switches` of the result
    says by how much, unless `fabric` is off. `shares`: see `capacity_graph`.
    """
    topology = _topology(topology)
    collective = parse_collective(collective)
    graph = capacity_graph(topology, ranks, relays, shares)
    return optimum_of(graph, collective, parse_root(graph, collective, root), fabric=fabric)


def optimum_of(
    graph: CapacityGraph, collective: Collective, root: int | None, *, fabric: bool = True
) -> Optimum:
    """The same of a graph; `root`: a rank number."""
    from forestcoll import solver

    best = solver.optimum(_plain(graph), collective, root)
    if fabric and copies(graph):
        from forestcoll.solver import multicast

        any_way = solver.optimum(graph, collective, root)
        other = multicast.better(graph, collective, root, any_way)
        best = replace(best, in_switches=other)
    if best.trees_per_root == 1 or len(graph.ranks) > FEWER_SOUGHT:
        return best
    from forestcoll.solver.front import Front

    return replace(best, trees_per_root=Front(graph, collective, root, best).exact.trees)


def synthesize(
    topology: Topology | str | PathLike[str],
    collective: Collective | str,
    *,
    root: str | int | None = None,
    ranks: str | Sequence[str] | None = None,
    relays: Relays = "none",
    shares: Shares | None = None,
    trees: int | Literal["auto"] = "auto",
    min_percent: Fraction | int | float | str | None = None,
    exact: bool = False,
    max_height: int | None = None,
    budget: Budget | Mapping[str, int] = Budget(),  # noqa: B008 (frozen)
    compact: bool | None = None,
    instances: int | Literal["auto"] = "auto",
    protocol: Protocol | None = None,
    sms: int | None = None,
    nvls: Place | None = None,
    place: Place | None = None,
    target: TargetName = "any",
    formats: Format | Iterable[Format] | None = None,
    progress: Progress | None = None,
) -> Synthesis:
    """A forest and the plans made from it, in all `formats`; one forest serves them all.

    `topology`: a Topology, a name of the catalogue, or a file. `formats`: by default the forest and
    every plan that `target` reads.
    Without a plan format the forest is the exact optimum; switches that copy and add do so where
    that makes trees faster or lower (plans copy and add on the GPUs). With plan formats it is the
    optimum without, where its plans fit `target` ("any": all runtimes); else the fewest trees a
    root that reach 99 % of it and fit; else the best that fits. Its shares are rounded so that
    plans serve every power of two where that costs 1 % of algbw at most. Or the caller chooses: the
    `exact` optimum as it is; exactly `trees` a root; the fewest that reach `min_percent` of the
    optimum; the best whose height is `max_height` hops at most; a `budget` of different trees a
    root, channels, thread blocks and operations.
    `instances`, `protocol`: of the plans, see `lower.lower`; "auto": as many as keep the links
    busy, as far as they fit (`lower.instances`). `sms`: multiprocessors of a GPU, all
    that may run at once; None: those of the catalogue's machine, or an A100's. `nvls`: the forest
    and MSCCL++ plan copy and add in the switches, for calls of this kind; nothing else can be
    wished then. `place`: the calls that the MSCCL++ plan is for, which cannot serve both; None: in
    place, but out of place where input and output differ in size, as frameworks call.
    Every forest is checked against its graph and bound; every plan is read back, compared, and run
    symbolically. `shares` (see `capacity_graph`) are for forests only.
    `compact`: the forest as a few trees and the symmetries of the fabric that make the others;
    True wherever one is found, None above `solver.COMPACT_FROM` ranks; not with plan formats.

    Raises InfeasibleError (the ranks cannot reach each other), PlanError (a target cannot hold it),
    UnsupportedError (numbers too large, wishes that contradict each other or cannot be met).
    """
    from forestcoll import certificate, forest_file, solver
    from forestcoll.compile.choose import Chooser
    from forestcoll.latency import latency

    clock = Clock(progress)
    topology = _topology(topology)
    collective = parse_collective(collective)
    percent = None if min_percent is None else arguments.percent("min_percent", min_percent)
    trees = arguments.whole_or("trees", trees, "auto")
    max_height = arguments.whole_or_none("max_height", max_height)
    instances = arguments.whole_or("instances", instances, "auto")
    budget = Budget.of(budget)
    protocol = None if protocol is None else arguments.word("protocol", protocol, PROTOCOLS)
    sms = arguments.whole_or_none("sms", sms)
    compact = None if compact is None else arguments.truth("compact", compact)
    nvls = None if nvls is None else arguments.word("nvls", nvls, PLACES)
    target = arguments.word("target", target, TARGET_NAMES)
    formats = formats_of(formats, target)
    with clock.stage("graph"):
        graph = capacity_graph(topology, ranks, relays, shares)
        root_rank = parse_root(graph, collective, root)
    _check_plannable(graph, formats)
    if compact and formats != ("forest",):
        raise UnsupportedError("compact is for the forest alone: a plan needs every tree")
    if compact is None:
        compact = formats == ("forest",) and len(graph.ranks) > solver.COMPACT_FROM
    exact = arguments.truth("exact", exact) and formats != ("forest",)  # which is exact anyway
    wishes = Wishes(trees, percent, exact, max_height, budget, compact, instances, protocol)
    with clock.stage("optimum"):
        best = solver.optimum(graph, collective, root_rank)
    targets = targets_of(formats, target, sms or sms_of(topology.name))
    problem = (graph, collective, root_rank, topology.name)
    narrowed = []
    if nvls is not None:
        if place is not None:
            raise UnsupportedError("nvls says the place already: leave place out")
        if wishes != Wishes() or instances not in ("auto", 1) or protocol is not None or compact:
            raise UnsupportedError("nvls goes without other wishes: the switch leaves no choice")
        return _in_switch(problem, topology.latencies(), best, nvls, formats, targets, clock)
    if percent is not None and formats == ("forest",) and copies(graph):
        points = Chooser(*problem, {}, wishes, best, clock.stage, clock.report).front
        with clock.stage("solve"):
            found = choose_by_percent(problem, wishes, best, lambda s: points.fewest(s).trees)
        if not isinstance(found, Wishes):
            return _forest_alone(found, _of_fabric(found, best), topology.latencies(), clock)
        wishes = found
    try:
        choice = Chooser(*problem, targets, wishes, best, clock.stage, clock.report).choose()
    except PlanError as error:
        if target != "any" or "msccl-xml" not in targets:
            raise
        # One runtime less beats no plan: RCCL is the narrowest by far.
        targets["msccl-xml"] = MSCCL.on(sms or sms_of(topology.name))
        choice = Chooser(*problem, targets, wishes, best, clock.stage, clock.report).choose()
        narrowed = [f"the MSCCL XML is for msccl only; {error}"]
    forest, best = choice.forest, replace(best, trees_per_root=choice.optimum_trees)
    if formats == ("forest",) and wishes == Wishes() and not compact:
        with clock.stage("solve"):
            forest, best = _by_fabric(forest, best)
    with clock.stage("check"):
        certificate.check(forest)
    texts: dict[Format, str] = {}
    programs = dict(choice.programs)
    for form in formats:
        if form == "forest":
            with clock.stage("write"):
                texts[form] = forest_file.dumps(forest)
        else:
            programs[form] = placed(choice.programs[form], place)
            texts[form] = written(programs[form], form, targets[form], forest, clock, place)
    notes = narrowed + choice.notes + _notes(forest, best, plain=not programs)
    notes += _packet_notes(programs) + _place_notes(programs)
    return Synthesis(
        topology.name,
        forest,
        best,
        programs,
        texts,
        clock.seconds,
        latency(forest, topology.latencies()),
        notes,
        needs=_usages(programs),
    )


def formats_of(formats: Format | Iterable[Format] | None, target: TargetName) -> tuple[Format, ...]:
    """The formats that are asked for, or the forest and what the target reads."""
    read = {TARGETS[name].format for name in TARGETS if target in ("any", name)}
    if formats is None:
        return tuple(form for form in FORMATS if form == "forest" or form in read)
    asked = arguments.words("format", formats, FORMATS)
    for form in asked:
        if form != "forest" and form not in read:
            raise UnsupportedError(f"target {target} reads {', '.join(read)}, not {form}")
    return asked


def _forest_alone(forest: Forest, best: Optimum, links: Latencies, clock: Clock) -> Synthesis:
    """A forest that copies and adds in the switches, checked and written."""
    from forestcoll import certificate, forest_file
    from forestcoll.latency import latency

    with clock.stage("check"):
        certificate.check(forest)
    with clock.stage("write"):
        text = forest_file.dumps(forest)
    return Synthesis(
        forest.name,
        forest,
        best,
        {},
        {"forest": text},
        clock.seconds,
        latency(forest, links),
        _notes(forest, best),
    )


def plain_bound(
    graph: CapacityGraph, collective: Collective, root: int | None, best: Optimum
) -> Bound:
    """The bound of all schedules in which GPUs copy and add, whatever the switches could.

    `best`: the optimum of the same problem, whose bound it is where no switch copies or adds.
    """
    from forestcoll import solver

    if not copies(graph):
        return best.bound
    return solver.optimum(_plain(graph), collective, root).bound


def _plain(graph: CapacityGraph) -> CapacityGraph:
    """The graph whose switches neither copy nor add."""
    if not copies(graph):
        return graph
    no = (False,) * graph.n
    return replace(graph, multicast=no, aggregation=no)


def nvls_algbw(graph: CapacityGraph, collective: Collective, root: int | None) -> Fraction | None:
    """GB/s that a plan which copies and adds in a switch reaches at most; None: there is none."""
    from forestcoll.lower.nvls import lower_nvls, most_algbw
    from forestcoll.solver import multicast

    forest = multicast.forest(graph, collective, root, "")
    try:
        if forest is not None and lower_nvls(forest, MSCCLPP).n:
            return most_algbw(forest)
    except PlanError:
        pass
    return None


def front(
    topology: Topology | str | PathLike[str],
    collective: Collective | str,
    *,
    root: str | int | None = None,
    ranks: str | Sequence[str] | None = None,
    relays: Relays = "none",
    shares: Shares | None = None,
    forests: bool = True,
    plans: bool | None = False,
    everything: bool = False,
    progress: Progress | None = None,
) -> FrontTable:
    """Fewer trees a root against less algbw: every number of them that beats all smaller ones.

    From one tree a root to the least that reaches 99 %, the least that reaches 99.9 %, and the
    exact optimum. `forests`: with the height of each; `plans`: with what its plans need of each
    target; None: for up to PLANS_QUICK ranks. A long front is shown in part unless `everything` is
    asked for.
    """
    from forestcoll import solver
    from forestcoll.compile.choose import Chooser

    clock = Clock(progress)
    topology = _topology(topology)
    collective = parse_collective(collective)
    with clock.stage("graph"):
        graph = capacity_graph(topology, ranks, relays, shares)
        root_rank = parse_root(graph, collective, root)
    with clock.stage("optimum"):
        best = solver.optimum(graph, collective, root_rank)
    if plans is None:
        plans = forests and not graph.shares and len(graph.ranks) <= PLANS_QUICK
    targets: dict[PlanFormat, Target] = {}
    problem = (graph, collective, root_rank, topology.name)
    chooser = Chooser(*problem, targets, Wishes(), best, clock.stage, clock.report)
    shown = TARGETS.values() if plans else ()
    links = topology.latencies() if forests or plans else None
    rows = tuple(chooser.rows(links, everything, shown))
    left_out = len(chooser.front.points()) - len(rows)
    return FrontTable(topology.name, graph, collective, best, rows, left_out, clock.seconds)


def _topology(given: Topology | str | PathLike[str]) -> Topology:
    from forestcoll.catalog import topology_of

    return topology_of(given)


def parse_collective(name: Collective | str) -> Collective:
    """The collective of that name, or UnsupportedError with the nearest one."""
    from forestcoll.errors import did_you_mean

    try:
        return Collective(name)
    except ValueError:
        known = [c.value for c in Collective]
        raise UnsupportedError(
            f"unknown collective {str(name)!r}{did_you_mean(str(name), known)} "
            f"(known: {', '.join(known)})"
        ) from None


def parse_root(graph: CapacityGraph, collective: Collective, root: str | int | None) -> int | None:
    """The rank number of `root` (a node id or rank number; default 0), None if not rooted."""
    from forestcoll.errors import did_you_mean

    if not collective.rooted:
        if root is not None:
            raise UnsupportedError(f"{collective} has no root: leave --root away")
        return None
    names = [graph.names[v] for v in graph.ranks]
    if root is None:
        return 0
    if str(root) in names:
        return names.index(str(root))
    if not isinstance(root, str) or root.isdecimal():
        number = int(root) if isinstance(root, str) else arguments.whole("root", root, 0)
        if number < len(names):
            return number
        raise UnsupportedError(f"root {root}: the ranks are 0 to {len(names) - 1}")
    raise UnsupportedError(f"root {root!r} is none of the ranks{did_you_mean(root, names)}")


def capacity_graph(
    topology: Topology,
    ranks: str | Sequence[str] | None = None,
    relays: Relays = "none",
    shares: Shares | None = None,
) -> CapacityGraph:
    """What the solver is given. `shares`: the ranks' parts of the data where they differ.

    One amount a rank, in rank order, or "id=amount" for all of them; globs work.
    Raises `TopologyError`.
    """
    from forestcoll.graph import CapacityGraph
    from forestcoll.solver.shares import with_shares

    ranks, shares = arguments.ids("ranks", ranks), arguments.amounts("shares", shares)
    return with_shares(CapacityGraph.from_topology(topology, ranks=ranks, relays=relays), shares)


def _check_plannable(graph: CapacityGraph, formats: Iterable[Format]) -> None:
    """PlanError where no plan could state the problem: all its buffers are of one size."""
    plans = [form for form in formats if form != "forest"]
    if graph.shares and plans:
        raise PlanError(
            f"{' and '.join(plans)} cannot hold parts of different size: every rank's buffers are "
            "alike there; --format forest writes the schedule"
        )


def targets_of(
    formats: Iterable[Format], target: TargetName, sms: int = DEFAULT_SMS
) -> dict[PlanFormat, Target]:
    """The target whose limits each plan format has to keep, on a GPU with `sms` multiprocessors."""
    asked = None if target == "any" else TARGETS[target]
    known = NARROWEST if asked is None else {**NARROWEST, asked.format: asked}
    return {form: known[form].on(sms) for form in formats if form != "forest"}


def placed(program: Program, place: Place | None) -> Program:
    """The program for calls of that kind; PlanError where there is none. MSCCL's serve both."""
    from forestcoll.lower import serve

    if place is None or program.style == "fifo":
        return program
    return serve(program, in_place=place == "in-place")


def written(
    program: Program,
    form: PlanFormat,
    target: Target,
    forest: Forest,
    clock: Clock,
    place: Place | None = None,
) -> str:
    """The plan's text, after it was read back, compared and verified."""
    from forestcoll import plans
    from forestcoll.verify import link_loads, verify

    with clock.stage("write"):
        in_place = None if place is None else place == "in-place"
        text = plans.dumps(program, form, target, in_place=in_place)
    with clock.stage("verify"):
        back = plans.loads(text, source=f"<{form}>", format=form)
        if back != program:
            raise PlanError(f"the {form} plan does not read back as it was written (a defect)")
        verify(back)
        link_loads(back, forest)
    return text


def _by_fabric(forest: Forest, best: Optimum) -> tuple[Forest, Optimum]:
    """A forest that copies and adds in the switches where that is faster, lower or smaller."""
    if not copies(forest.graph):
        return forest, best
    from forestcoll.solver import multicast

    if not multicast.may_beat(forest):
        return forest, best
    root = forest.root if forest.collective.rooted else None
    other = multicast.forest(forest.graph, forest.collective, root, forest.name)
    if other is None or other.bound is None:
        return forest, best

    def worth(f: Forest) -> tuple[Fraction, int, int]:
        return f.algbw, -f.height, -len(f.trees) * f.images

    if worth(other) <= worth(forest):
        return forest, best
    return other, _of_fabric(other, best)


def _in_switch(
    problem: tuple[CapacityGraph, Collective, int | None, str],
    links: Latencies,
    best: Optimum,
    place: Place,
    formats: Sequence[Format],
    targets: Mapping[PlanFormat, Target],
    clock: Clock,
) -> Synthesis:
    """Forest and plan that copy and add in a switch; PlanError where there is none to do it."""
    from forestcoll import certificate, forest_file
    from forestcoll.latency import latency
    from forestcoll.lower.nvls import lower_nvls, most_algbw
    from forestcoll.solver import multicast

    graph, collective, root, name = problem
    if "msccl-xml" in targets:
        raise PlanError("MSCCL XML has no operations that copy and add in switches; MSCCL++ has")
    with clock.stage("solve"):
        forest = multicast.forest(graph, collective, root, name)
    if forest is None or forest.bound is None:
        raise PlanError(
            f"{collective} on {name}: no switch between all GPUs copies and adds what it takes"
        )
    with clock.stage("check"):
        certificate.check(forest)
    best = _of_fabric(forest, best)
    programs: dict[PlanFormat, Program] = {}
    texts: dict[Format, str] = {}
    for form in formats:
        if form == "forest":
            with clock.stage("write"):
                texts[form] = forest_file.dumps(forest)
            continue
        with clock.stage("lower"):
            programs[form] = lower_nvls(forest, targets[form], in_place=place == "in-place")
        texts[form] = written(programs[form], form, targets[form], forest, clock)
    notes = _notes(forest, best, plain=False)
    if programs:
        most = most_algbw(forest)
        types = " no uint8, FP8 from sm_100 on;" if collective.reduces else ""
        notes.append(
            "the plan has the switch copy and add: GPUs from sm_90 on, buffers that MSCCL++ "
            f"allocates (GpuBuffer);{types} the runtime moves own shares too, which leaves "
            f"{float(most):.1f} GB/s at most"
        )
    return Synthesis(
        name,
        forest,
        best,
        programs,
        texts,
        clock.seconds,
        latency(forest, links),
        notes,
        needs=_usages(programs),
    )


def _usages(programs: Mapping[PlanFormat, Program]) -> dict[PlanFormat, Usage]:
    """What each program takes of its target. Forests alone need nothing of lowering."""
    if not programs:
        return {}
    from forestcoll.lower import usage

    return {form: usage(program) for form, program in programs.items()}


def _of_fabric(forest: Forest, best: Optimum) -> Optimum:
    """The figures of a forest that copies and adds in the fabric."""
    assert forest.bound is not None  # multicast.py gives one to all of them
    shared = 1 if forest.collective.rooted else sum(forest.graph.parts)
    return replace(
        best,
        algbw=forest.algbw,
        rate=forest.algbw / shared,
        trees_per_root=forest.trees_per_root,
        bound=forest.bound,
    )


def _notes(forest: Forest, best: Optimum, *, plain: bool = True) -> list[str]:
    """`plain`: the figures are not those of plans."""
    notes = []
    if plain and forest.plain_algbw != forest.algbw:
        notes.append(
            "algbw counts copies and sums in the switches (NVLS) once; plans copy and add on the "
            "GPUs, but those of --nvls"
        )
    comparable = plain or not copies(forest.graph)  # the bound may be of switches that copy
    if (
        comparable
        and best.bound.algbw > forest.algbw
        and forest.trees_per_root == best.trees_per_root
    ):
        notes.append(
            f"proven within {float(100 * forest.algbw / best.bound.algbw):.1f} % of any schedule"
        )
    if best.note:
        notes.append(best.note)
    return notes


def _packet_notes(programs: Mapping[PlanFormat, Program]) -> list[str]:
    """What to know of plans of packets."""
    program = programs.get("mscclpp-json")
    if program is None or not program.double_scratch:
        return []
    notes = [
        f"the MSCCL++ plan is of packets (LL), for up to {program.max_bytes >> 10} KiB; all "
        "ranks must launch all their plans in one order"
    ]
    if not program.in_place:
        notes.append("it serves out-of-place calls only: sums on their way lie in the output")
    return notes


def _place_notes(programs: Mapping[PlanFormat, Program]) -> list[str]:
    """What to know of plans that ports allow for one kind of calls only."""
    program = programs.get("mscclpp-json")
    if program is None or program.double_scratch or (program.in_place and program.out_of_place):
        return []
    if program.in_place:
        return ["the MSCCL++ plan serves calls in place only (--place out-of-place: the others)"]
    return [
        "the MSCCL++ plan serves calls out of place only: its ports read the input from where its "
        "allocation begins (--place in-place: the others)"
    ]
