"""Whose plans take part in a comparison: ours by size, baselines of both formats, files.

What is played are plans, forests alone, or loads of links, each timed under all rules of links.
Plans of baselines are made and judged as those of our sets are (`plan_set.contest`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from forestcoll.common.clock import Clock
from forestcoll.common.errors import ForestCollError, PlanError, UnsupportedError
from forestcoll.common.input_limits import FILE_BYTES
from forestcoll.common.text_file import read_text
from forestcoll.compile import plan_set
from forestcoll.compile.formats import seat, targets_of
from forestcoll.compile.plan_set.candidates import (
    Made,
    best_program,
    candidates_of,
    round_forests,
)
from forestcoll.compile.plan_set.contest import Contest, Look, Lower, where_of
from forestcoll.compile.plan_set.estimate import line_of
from forestcoll.compile.plan_set.values import Candidate
from forestcoll.compile.rivals import forests_of
from forestcoll.compile.synthesize import synthesize
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import usage
from forestcoll.lower.nvls import lower_nvls
from forestcoll.plans import FORMATS
from forestcoll.program import Collective, Program, Protocol, Style
from forestcoll.program.sizes import Sizes
from forestcoll.program.targets import MSCCL, MSCCLPP, PlanFormat, Target, sms_of
from forestcoll.schedule.forest import Forest, check
from forestcoll.solver.alltoall.demand import uniform
from forestcoll.solver.alltoall.flows import Optimum, solve
from forestcoll.solver.alltoall.rounding import route
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.solver.alltoall.spread import routes_over
from forestcoll.solver.baselines import Baseline
from forestcoll.solver.baselines.alltoall import Exchange
from forestcoll.topology import Topology
from forestcoll.verify import simulate, verify
from forestcoll.verify.simulate import Options, Rule, Timing, Where

if TYPE_CHECKING:
    from forestcoll.common.clock import Progress
    from forestcoll.verify.simulate.options import Kind

PIECES = (4, 64)
"""Pieces of each tree where trees are compared alone, at least and at most, ..."""
TRANSFERS = 2_000_000
"""... and what they may come to in all: trees of two phases of 256 ranks are cut in 15. In 4, as of
many more ranks, 1 GiB takes them a sixth longer than links ask for: rings have more trees."""


@dataclass
class Plan:
    """Something that can be played. `forest`: whose ways its transfers take, or `where`: what else
    it runs on than the topology; `label`: for people. `every`: what it stands for takes every size;
    it is played at the next one that it serves.

    Without a program it is the forest alone, or where there is none the loads of links: `rate` GB/s
    of algbw, after `latency` microseconds of the longest way. `proven`: whether its program is.
    """

    label: str
    program: Program | None
    forest: Forest | None
    low: int = 1
    high: int = 2**62
    rate: Fraction | None = None
    latency: float = 0.0
    proven: bool = False
    where: Where | None = None
    every: bool = False

    @property
    def in_switches(self) -> bool:
        """Whether switches copy or add."""
        if self.program is not None:
            return self.program.in_switches
        return self.forest is not None and self.forest.graph.copies

    @property
    def protocol(self) -> Protocol:
        """How its messages are sent."""
        return "Simple" if self.program is None else self.program.protocol

    def prove(self) -> None:
        """Verify the program, once; PlanError where it is wrong."""
        if self.program is not None and not self.proven:
            verify(self.program)
            self.proven = True


@dataclass(frozen=True)
class Player:
    """Plays plans on a machine under the rules of links; `quick`: fewer plans of baselines.

    `made`: programs of all competitors there.
    """

    topology: Topology
    rules: Sequence[Rule]
    options: Options
    quick: bool
    made: Made = field(default_factory=Made)

    def contest(self, candidates: Sequence[Candidate], lower: Lower) -> Contest:
        """Candidates that are judged by the same times."""
        return Contest(
            candidates,
            lower,
            self.topology,
            Clock(),
            self.made,
            rules=self.rules,
            options=self.options,
        )

    def timings(self, plan: Plan, size: int) -> list[Timing]:
        """A plan's, or those of trees or links alone, under each of the rules."""
        topology, options = self.topology, self.options
        if plan.rate is not None:
            graph = CapacityGraph.from_topology(topology)
            time = size / float(plan.rate) / 1000 + plan.latency
            ranks = len(graph.ranks)
            return [bare_timing(time, size, r, Collective.ALLTOALL, ranks) for r in self.rules]
        if plan.program is not None:
            where = plan.forest or plan.where or topology
            step = Sizes.of(plan.program).multiple() if plan.every else 1
            served = -(-size // step) * step
            timings = self.made.timings(plan.program, where, served, self.rules, topology, options)
            share = size / served
            return [
                replace(t, size=size, algbw=t.algbw * share, busbw=t.busbw * share) for t in timings
            ]
        assert plan.forest is not None
        edges = sum(len(tree.edges) for tree in plan.forest.trees)
        pieces = max(PIECES[0], min(PIECES[1], TRANSFERS // edges))
        return [
            simulate.run_forest(
                plan.forest, size, topology=topology, rule=rule, options=options, pieces=pieces
            )
            for rule in self.rules
        ]


def use_of(plan: Plan, timing: Timing, graph: CapacityGraph) -> str:
    """What a plan takes of the links of GPUs: "1 channel: 24 of 300 GB/s a GPU"."""
    gpus = {*graph.rank_names}
    out = [use for use in timing.links if use.src in gpus]
    if plan.program is None or not out:
        return ""
    taken = usage(plan.program)
    fifo = plan.program.style == "fifo"
    count, noun = (taken.channels, "channel") if fifo else (taken.busy, "thread block")
    used = sum(use.bytes for use in out) / timing.time / 1000 / len(gpus)
    most = sum(use.bandwidth for use in out) / len(gpus)
    return f"{count} {noun}{'s' * (count != 1)}: {used:.3g} of {most:.4g} GB/s a GPU"


def bare_timing(time: float, size: int, rule: Rule, collective: Collective, ranks: int) -> Timing:
    """A time in microseconds that is not simulated, with its rates."""
    algbw = size / time / 1000
    return Timing(rule, size, time, algbw, algbw * float(collective.bus_factor(ranks)), 0, ())


BARE: Kind = ("fifo", "Simple")
"""Whose messages loads of links without plans are counted with."""
FORMAT_OF: dict[Style, PlanFormat] = {t.style: t.format for t in (MSCCL, MSCCLPP)}


class Fixed(NamedTuple):
    """Plans that are there already: of a set, a file, or what was made for a sound machine."""

    plans: Sequence[Plan]

    def play(self, size: int, player: Player) -> Iterator[tuple[Plan, list[Timing]]]:
        """Those that serve the size."""
        for plan in self.plans:
            fits = plan.program is None or plan.every or fits_size(plan.program, size)
            if plan.low <= size <= plan.high and fits:
                yield plan, player.timings(plan, size)

    def least(self, size: int) -> float:
        """Nothing is known of them."""
        return 0.0


@dataclass
class Theirs:
    """A baseline's plans, made when they may win. `names`: of its forests, a candidate each."""

    contest: Contest
    names: Sequence[str]
    plans: dict[Look, Plan] = field(default_factory=dict)

    def play(self, size: int, player: Player) -> Iterator[tuple[Plan, list[Timing]]]:
        """The fastest that serves the size."""
        look = self.contest.fastest(size, fits_size)
        if look is None:
            return
        i, tuned = look
        if look not in self.plans:
            program, origin = self.contest.program(i, tuned), self.contest.candidates[i].origin
            assert program is not None
            words = (FORMAT_OF[program.style], program.protocol, self.names[i])
            forest = origin if isinstance(origin, Forest) else None
            self.plans[look] = Plan(", ".join(filter(None, words)), program, forest)
        yield self.plans[look], self.contest.timings(i, size, tuned)

    def least(self, size: int) -> float:
        """By the links alone."""
        return min(self.contest.least(i, size) for i in range(len(self.names)))


Source = Fixed | Theirs
"""A competitor."""


def fits_size(program: Program, size: int) -> bool:
    """Whether a runtime takes the plan for powers of two, or for calls of just so many bytes.

    With six rings the data have parts that no power of two divides: the runtime passes over them.
    """
    sizes = Sizes.of(program)
    return sizes.powers or sizes.serves(size)


# --- ours


def ours(
    topology: Topology,
    collective: Collective,
    root: int | None,
    sizes: Sequence[int],
    notes: list[str],
    progress: Progress | None,
    made: Made | None = None,
) -> Fixed:
    """The plans that sets of a machine have for the sizes, and what lets a switch copy and add.

    Of an all-to-all a note says why a runtime has no plans; where none has, links are counted.
    Raises UnsupportedError where routes are out of reach.
    """
    low, high = min(sizes), max(sizes)
    how: dict[str, Any] = {"progress": progress, "points": sizes, "made": made}
    make = partial(plan_set.make, topology, collective, low, high, **how)
    if collective.phases:
        plans = [*_of_set(make(root=root), topology)]
        form: PlanFormat = "mscclpp-json"
        with suppress(ForestCollError):  # where one lets a switch copy and add
            nvls = synthesize(topology, collective, root=root, nvls="in-place", formats=form)
            plans.append(Plan(f"{form}, NVLS", nvls.programs[form], nvls.forest, proven=True))
        return Fixed(plans)
    plans = []
    for form in FORMATS:
        try:
            plans += _of_set(make(formats=(form,)), topology)
        except PlanError as error:
            notes.append(f"no {form} of ours: {error}")
    return Fixed(plans) if plans else links_of_ours(topology)


def _of_set(made: plan_set.PlanSet, topology: Topology) -> Iterator[Plan]:
    for plans in made.plans:
        for entry in plans.entries:
            label = f"{plans.format}, {entry.program.protocol}"
            forest = entry.origin if isinstance(entry.origin, Forest) else None
            where = None if forest else where_of(entry.origin, topology)
            yield Plan(label, entry.program, forest, entry.low, entry.high, where=where)


def links_of_ours(topology: Topology) -> Fixed:
    """What links allow the optimum's routes of an all-to-all, without plans."""
    routes = route(solve(uniform(topology)))
    line = line_of(routes, BARE, topology.latencies(), topology.name)
    latency = float(line.latency)
    return Fixed((Plan("links alone", None, None, rate=routes.algbw, latency=latency),))


# --- baselines


def of_baseline(
    baseline: Baseline,
    graph: CapacityGraph,
    collective: Collective,
    root: int | None,
    player: Player,
    alone: bool = False,
) -> Source:
    """A baseline over trees; `alone`: without plans.

    Its library is that of the machine. Raises UnsupportedError where it does not serve that.
    """
    kept = forests_of(baseline, graph, collective, root)
    for forest in kept:
        check(forest)
    if alone:
        lowest = min(kept, key=lambda forest: forest.height)
        few = dict.fromkeys(map(id, (kept[0], lowest)))
        return Fixed([Plan(f.name, None, f) for f in kept if id(f) in few])
    if baseline.in_switch:
        program = lower_nvls(kept[0], MSCCLPP)
        return Fixed((Plan("mscclpp-json, NVLS", program, kept[0], every=True),))
    targets = _targets(graph, player.topology.name).values()
    rounded = [forest for forest in round_forests(kept, targets) if forest not in kept]
    # their names say whose GPUs and library they are for
    named = [replace(forest, name=player.topology.name) for forest in (*kept, *rounded)]
    return _theirs(named, [forest.name for forest in (*kept, *rounded)], graph, player)


def of_exchange(
    record: Exchange,
    graph: CapacityGraph,
    best: Optimum | None,
    player: Player,
) -> Source:
    """A baseline of an all-to-all; what plans cannot say, or are not asked to, as loads of links.

    `best`: the optimum of the same; None: without plans. Raises UnsupportedError where the baseline
    does not serve the machine, InfeasibleError where its blocks have no way.
    """
    rate, latency = record.rate(graph), record.hops(graph) * player.options.hop(BARE)
    if best is not None:
        routes = routes_over(best, record.flows(graph))
        if record.lowered:
            source = _theirs([routes], [""], graph, player)
            if any(source.contest.program(i) is not None for i in range(len(source.names))):
                return source
        topology = player.topology
        line = line_of(routes, BARE, topology.latencies(), topology.name, player.options)
        latency = float(line.latency)
    return Fixed((Plan("links alone", None, None, rate=rate, latency=latency),))


def _targets(graph: CapacityGraph, machine: str) -> dict[PlanFormat, Target]:
    """The runtimes that take the ranks as boxes hold them."""
    targets, _ = seat(targets_of(FORMATS, "any", sms_of(machine)), graph, machine, any_target=True)
    return targets


def _theirs(
    sources: Sequence[Forest | Routes],
    names: Sequence[str],
    graph: CapacityGraph,
    player: Player,
) -> Theirs:
    """Plans of forests or routes in the styles of the runtimes that take the ranks."""
    machine = player.topology.name
    by_style = {target.style: target for target in _targets(graph, machine).values()}

    def make(candidate: Candidate, tuned: bool) -> tuple[Program, str]:
        own, made = player.topology, player.made
        best = partial(best_program, candidate, topology=own, tuned=tuned, made=made)
        try:
            return best(by_style[candidate.kind[0]])
        except PlanError as refusal:
            try:
                return best(MSCCL.on(sms_of(machine)))
            except PlanError:
                raise refusal from None

    candidates = candidates_of(sources, by_style, player.topology, player.options)
    kinds = len(candidates) // len(sources)
    each = [name for name in names for _ in range(kinds)]
    return Theirs(player.contest(candidates, make), each)


# --- files


def of_file(path: Path, collective: Collective, ranks: int) -> Fixed:
    """A plan of either format, or a forest file; proven first.

    Raises PlanError where it is for something else, or wrong.
    """
    from forestcoll import plans
    from forestcoll.compile import verdict
    from forestcoll.schedule import forest_file
    from forestcoll.study import predict

    text = read_text(path, FILE_BYTES, UnsupportedError)
    if not verdict.is_plan(text):
        forest = forest_file.loads(text, str(path))
        check(forest)
        _check_same(path, (forest.collective, forest.n), (collective, ranks))
        return Fixed((Plan("forest alone", None, forest.expand()),))
    program = plans.loads(text, str(path))
    _check_same(path, (program.collective, program.n), (collective, ranks))
    verify(program)
    beside = predict.forest_beside(path)
    forest_beside = None if beside is None else forest_file.load(beside).expand()
    if forest_beside is not None and (forest_beside.collective, forest_beside.n) != (
        collective,
        ranks,
    ):
        forest_beside = None
    high = program.max_bytes or 2**62
    label = f"{plans.detect(text, str(path))}, {program.protocol}"
    low = max(1, program.min_bytes)
    return Fixed((Plan(label, program, forest_beside, low, high, proven=True),))


def _check_same(path: Path, own: tuple[Collective, int], wanted: tuple[Collective, int]) -> None:
    if own != wanted:
        raise PlanError(
            f"{path}: is for {own[0]} on {own[1]} ranks; compared is {wanted[0]} on {wanted[1]}"
        )


def reroute(plan: Plan, graph: CapacityGraph) -> Plan:
    """A plan on a fabric that has lost links: what took one goes the shortest way that is left.

    Raises UnsupportedError where ranks are gone, or the trees alone need a link that is.
    """
    forest = plan.forest
    if plan.program is not None and len(graph.ranks) != plan.program.n:
        raise UnsupportedError("the fabric has lost ranks that the plan has")
    if forest is None:
        return replace(plan, where=None)
    number = graph.node_of
    links = set(graph.ends)
    lost = False
    trees = []
    for tree in forest.trees:
        paths = [tuple(number.get(forest.graph.names[v], -1) for v in p) for p in tree.edges]
        kept = tuple(path for path in paths if all(step in links for step in pairwise(path)))
        lost |= len(kept) < len(paths)
        trees.append(replace(tree, root=number[forest.graph.names[tree.root]], edges=kept))
    if lost and plan.program is None:
        raise UnsupportedError("trees alone cannot do without a link that is gone")
    left = graph if forest.graph.copies else graph.plain
    return replace(plan, forest=replace(forest, graph=left, trees=tuple(trees)))
