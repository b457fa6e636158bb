"""A plan beside what it is measured against, on one fabric: predicted and measured.

What trees carry is held against rings, trees and gloo's own allreduce; an all-to-all against

direct     every block straight to its rank, by the engine that also runs the plan
two-level  first to the GPU of the own box that has the target's place, then to the target's box
gloo       torch.distributed's all_to_all_single, which sends straight too

Straight means by the shortest way of the fabric, where a mesh's GPUs pass packets on.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from forestcoll.common.errors import ExecutionError, PlanError, UnsupportedError, did_you_mean
from forestcoll.execute.lab.network import Network, scale_of
from forestcoll.execute.lab.ranks import Trial, run
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import UNIT_BYTES, lower, slice_pipelines
from forestcoll.lower.alltoall import lowering as alltoall
from forestcoll.lower.alltoall.filling import fill
from forestcoll.program import Collective, Program
from forestcoll.program.targets import MSCCLPP
from forestcoll.schedule.forest import Forest, check
from forestcoll.schedule.routes import Loads, Pair, Routes, routes
from forestcoll.solver import baselines
from forestcoll.solver.alltoall.demand import uniform
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.rounding import route
from forestcoll.solver.alltoall.routes import Routes as Paths
from forestcoll.solver.alltoall.spread import spread
from forestcoll.solver.baselines.alltoall import direct, two_level
from forestcoll.topology import Topology
from forestcoll.verify.dataflow import Dataflow, dataflow, levels

PLAN = "plan"
GLOO = "gloo"
DIRECT, TWO_LEVEL = "direct", "two-level"
AGAINST = ("ring", "rings", "tree", "double-tree", GLOO)
"""What a plan can be measured against."""
EXCHANGES = (DIRECT, TWO_LEVEL, GLOO)
"""What an all-to-all can be measured against."""

Matrix = tuple[tuple[int, ...], ...]
"""Bytes that each rank sends to each."""

LEAD = 2
"""Steps of the engine under way at a time."""
STEP_SECONDS = 0.02
"""What a step of the engine costs besides the transfers, here where ranks share processors."""
REAL_SIZE = 10**9
"""Bytes that the data of a run stand for: what a plan moves at a time shrinks as they do, ..."""
LEAST_SLICE = 8192
"""... to so many bytes, of which headers of packets and of the wire take 2.5 %."""
PATIENCE = 20.0
"""How many times the predicted time a run may take."""


BUSY = 0.6
"""Share of the processors that ranks may take before the report says so."""


class Measured(NamedTuple):
    """One schedule on the fabric. GB/s and bytes a second as nccl-tests counts them (algbw)."""

    name: str
    algbw: Fraction  # GB/s at the links' real bandwidth, by the links that it loads
    predicted: float  # bytes a second at the fabric's
    measured: float
    size: int
    seconds: float
    busy: float  # processors' share that the ranks took
    wrong: int
    texts: tuple[str, ...]  # wrong elements in words
    links: tuple[float, float]  # least and most bytes on a link, of those that theory says

    @property
    def share(self) -> float:
        """Of the predicted bandwidth, what was reached."""
        return self.measured / self.predicted


class Report(NamedTuple):
    """The plan first, then what it was measured against."""

    name: str
    ranks: int
    collective: Collective
    scale: Fraction  # bits a second for each GB/s
    packet: int
    rows: tuple[Measured, ...]
    notes: tuple[str, ...]

    def ratios(self, row: Measured) -> tuple[float, float]:
        """How many times faster than `row` the plan is: by theory, and measured."""
        plan = self.rows[0]
        return float(plan.algbw / row.algbw), plan.measured / row.measured


class Entry(NamedTuple):
    """A schedule to measure: its program (None: gloo's own), ways, and shares of the data."""

    name: str
    program: Program | None
    routes: Routes
    loads: Loads
    rounds: int

    @property
    def algbw(self) -> Fraction:
        """GB/s that the links allow it."""
        return self.routes.algbw(self.loads)


class Wishes(NamedTuple):
    """How to measure. `rate`: Mbit/s that all ranks together can take in (0: DEFAULT_RATE a
    processor). Every schedule gets the data that take it `seconds` by prediction, or `size` bytes.
    `engine`: "cpu" or "torch", what runs programs where all blocks are alike.
    """

    rate: float = 0.0
    seconds: float = 20.0
    size: int | None = None
    iterations: int = 1
    engine: str = "cpu"
    progress: Callable[[str, float], None] | None = None


def compare(
    graph: CapacityGraph,
    program: Program,
    made_from: Forest | Paths | None,
    *,
    name: str = "",
    against: Sequence[str] | None = None,
    wishes: Wishes | None = None,
    matrix: Matrix | None = None,
) -> Report:
    """Measure the plan and what it is measured against on the fabric of `graph`.

    `made_from`: the plan's forest, or the routes of an all-to-all's, whose paths are taken; None:
    shortest ways. `against`: None: all that serve. `matrix`: of an all-to-all the bytes from rank
    to rank, where they differ. Raises PlanError (the plan is for other ranks), UnsupportedError
    (this machine cannot), ExecutionError (a run failed).
    """
    wishes, collective, rows = wishes or Wishes(), program.collective, list[Measured]()
    entries, notes = entries_of(graph, program, made_from, against, matrix)
    scale = scale_of(graph, wishes.rate)
    with Network(graph, scale) as network:
        for k, entry in enumerate(entries):
            if wishes.progress is not None:
                wishes.progress(entry.name, k / len(entries))
            rows.append(_measure(network, entry, scale, collective, wishes, matrix))
        packet = network.packet
    busiest = max(rows, key=lambda row: row.busy)
    if busiest.busy > BUSY:
        notes.append(
            f"{busiest.name} kept the processors {busiest.busy:.0%} busy: they may be what was "
            "measured; a lower --rate leaves them time"
        )
    ranks = len(graph.ranks)
    return Report(name, ranks, collective, scale, packet, tuple(rows), tuple(notes))


def entries_of(
    graph: CapacityGraph,
    program: Program,
    made_from: Forest | Paths | None,
    against: Sequence[str] | None = None,
    matrix: Matrix | None = None,
) -> tuple[list[Entry], list[str]]:
    """The plan and what it is measured against, each with its ways and loads; and notes."""
    _check_plan(graph, program)
    notes, collective = list[str](), program.collective
    exchanges = collective.transposes
    what, who = ("routes", "ranks") if exchanges else ("forest", "pairs of ranks")
    if isinstance(made_from, Forest):
        paths = (path for tree in made_from.trees for path in tree.edges)
        _check_paths(graph, made_from.graph, paths, what)
        ways = routes(graph, made_from)
    elif made_from is not None:
        _check_paths(graph, made_from.graph, (way.path for way in made_from.expand()), what)
        ways = routes(graph, edges=alltoall.edges_of(made_from))
    else:
        notes.append(f"no {what} beside the plan: {who} take the shortest way")
        ways = routes(graph)
    straight = routes(graph)
    if ways.split:  # one way here, and several where the plan comes from
        notes.append(
            f"{len(ways.split)} pairs of ranks have several ways in the {what}, but one in the "
            "lab: the busiest; the prediction counts that"
        )
    if exchanges:
        served = _check_against(against, EXCHANGES, "what trees carry", collective, notes)
    else:
        trees = _check_against(against, AGAINST, "an all-to-all", collective, notes)
        able = [other for other in AGAINST if _serves(other, collective)]
        served = _check_against(trees, able, "allreduce", collective, notes)
    entries = [entry_of(PLAN, program, ways, matrix)]
    for other in served:
        try:
            entries.append(_other(graph, other, straight, collective, matrix))
        except (PlanError, UnsupportedError) as error:
            notes.append(f"no {other}: {error}")
    return entries, notes


def _other(
    graph: CapacityGraph, name: str, straight: Routes, collective: Collective, matrix: Matrix | None
) -> Entry:
    """What a plan is measured against."""
    if name == GLOO:
        return Entry(GLOO, None, straight, _gloo_loads(len(graph.ranks), collective, matrix), 1)
    if collective.transposes:
        flows = direct(graph) if name == DIRECT else two_level(graph)
        program = alltoall.lower_flows(graph, flows, 1, MSCCLPP, name)
        return entry_of(name, program, straight, matrix)
    theirs = baselines.forests(name, graph, collective)[0]
    check(theirs)
    return entry_of(name, lower(theirs, MSCCLPP), routes(graph, theirs))


def _gloo_loads(n: int, collective: Collective, matrix: Matrix | None) -> Loads:
    if not collective.transposes:  # a ring in rank order, the way its numbers fall
        return {(i, (i - 1) % n): Fraction(2 * (n - 1), n) for i in range(n)}
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    if matrix is None:
        return dict.fromkeys(pairs, Fraction(1, n))
    most = max(map(sum, matrix))
    return {(i, j): Fraction(matrix[i][j], most) for i, j in pairs if matrix[i][j]}


def make_plan(topology: Topology, *, ragged: bool = False) -> tuple[Program, Paths]:
    """A plan for all GPUs with its routes; `ragged`: of static routes for any sizes, if boxes are.

    Raises UnsupportedError and PlanError where there is none.
    """
    best = solve(uniform(topology))
    try:
        if not ragged:
            raise UnsupportedError("for even blocks the optimum's routes are better")
        ways = spread(best)
    except UnsupportedError:
        ways = route(best)
    return fill(ways, MSCCLPP, topology.name, None)[0], ways


def _check_plan(graph: CapacityGraph, program: Program) -> None:
    """PlanError unless the plan is for the GPUs of the graph."""
    names = graph.rank_names
    if program.n != len(names):
        raise PlanError(f"the plan is for {program.n} ranks, the topology has {len(names)} GPUs")
    if program.names and any(program.names) and program.names != names:
        raise PlanError(
            f"the plan's rank 0 is {program.names[0]}, the topology's {names[0]}: a plan for "
            "another machine, or for its GPUs in another order"
        )


def _check_against(
    against: Sequence[str] | None,
    served: Sequence[str],
    others: str,
    collective: Collective,
    notes: list[str],
) -> list[str]:
    """Those of `against` (None: all) that are `served`; a note for those for `others` alone.

    UnsupportedError for a name that is none of the baselines.
    """
    schedules = tuple(dict.fromkeys((*AGAINST, *EXCHANGES)))
    against = served if against is None else against
    for other in against:
        if other not in schedules:
            raise UnsupportedError(f"unknown baseline {other!r}{did_you_mean(other, schedules)}")
    left = [other for other in against if other not in served]
    if left:
        notes.append(f"{' and '.join(left)}: for {others}, not for {collective}")
    return [other for other in against if other in served]


def _serves(name: str, collective: Collective) -> bool:
    """Whether what a plan is measured against can do the plan's collective."""
    if name == GLOO:
        return collective.two_phases
    return not collective.has_root and collective in baselines.by_name(name).serves


def _check_paths(
    graph: CapacityGraph, theirs: CapacityGraph, paths: Iterable[Iterable[int]], what: str
) -> None:
    """PlanError where the file beside the plan uses links that are not there; slower is fine.

    `theirs`: the graph that it was made for, `paths`: its nodes in a row, `what`: it is.
    """
    if (theirs.names, theirs.ranks) != (graph.names, graph.ranks):
        raise PlanError(f"the {what} file beside the plan is for another topology")
    used = {step for path in paths for step in pairwise(path)}
    for tail, head in sorted(used - {*graph.ends}):
        raise PlanError(
            f"the {what} file beside the plan uses a link that this fabric lacks, from "
            f"{graph.names[tail]} to {graph.names[head]}"
        )


def entry_of(name: str, program: Program, ways: Routes, matrix: Matrix | None = None) -> Entry:
    """A program to measure; `matrix`: bytes from rank to rank, where an all-to-all's differ."""
    flow = dataflow(program)
    shares = flow.verified.loads if matrix is None else _loads(flow, matrix)
    return Entry(name, program, ways, shares, max(levels(flow), default=0) + 1)


def _loads(flow: Dataflow, matrix: Matrix) -> Loads:
    """What goes from rank to rank, as shares of the largest send buffer."""
    units, most = flow.units // flow.parts, max(map(sum, matrix))
    loads: dict[Pair, Fraction] = defaultdict(Fraction)
    source: list[int] = []
    for k, value in enumerate(flow.values):
        if not value.made_from:
            source.append(value.rank)
            continue
        before = value.made_from[0]
        source.append(source[before])
        amount = matrix[source[k]][value.start // units] * value.length
        if amount:
            loads[flow.values[before].rank, value.rank] += Fraction(amount, units * most)
    return loads


def _measure(
    network: Network,
    entry: Entry,
    scale: Fraction,
    collective: Collective,
    wishes: Wishes,
    matrix: Matrix | None,
) -> Measured:
    network.route(entry.routes)
    iterations = wishes.iterations
    predicted = float(entry.algbw * scale / 8)
    wanted = wishes.size or max(4096, int(predicted * wishes.seconds) // 4096 * 4096)
    expected = wanted / predicted
    slices = math.sqrt(LEAD * max(1, entry.rounds - 1) * expected / STEP_SECONDS)
    program, unit = entry.program, None
    if wishes.engine == "cpu" and program is not None and matrix is None:
        unit = max(LEAST_SLICE, UNIT_BYTES * wanted // REAL_SIZE // 16 * 16)
        program = slice_pipelines(program, unit)
    trial = Trial(
        program=program,
        collective=collective,
        size=wanted,
        slices=max(1, round(slices)),
        lead=LEAD,
        iterations=iterations,
        timeout=max(60.0, PATIENCE * expected),
        blocks=None if matrix is None else _blocks(matrix, wanted),
        slice_bytes=unit,
    )
    before = network.counters()
    spaces = [network.space(rank) for rank in range(len(network.graph.ranks))]
    try:
        outcome = run(trial, spaces, network.control, 60.0 + iterations * PATIENCE * expected)
    except ExecutionError as error:
        raise ExecutionError(f"{entry.name}: {error}") from error
    after = network.counters()
    shares = [
        (after[link] - before[link]) / (float(load) * outcome.size * iterations)
        for link, load in entry.routes.link_loads(entry.loads).items()
        if load
    ]
    return Measured(
        entry.name,
        entry.algbw,
        predicted,
        outcome.size / min(outcome.each),
        outcome.size,
        min(outcome.each),
        outcome.processor / sum(outcome.each) / len(os.sched_getaffinity(0)),
        outcome.wrong,
        outcome.texts,
        (min(shares), max(shares)),
    )


def _blocks(matrix: Matrix, size: int) -> Matrix:
    """Elements of 4 bytes from rank to rank, such that the largest buffer has `size` bytes."""
    most = max(map(sum, matrix))
    return tuple(tuple(round(entry * size / most / 4) for entry in row) for row in matrix)
