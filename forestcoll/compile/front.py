"""Pareto front: fewer trees per root against less algbw, with what plans of each point need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from forestcoll.common.clock import Clock, Progress
from forestcoll.common.errors import PlanError
from forestcoll.compile.budget import different_trees
from forestcoll.compile.choose import Chooser
from forestcoll.compile.request import STATEMENT, Request, keywords
from forestcoll.program.targets import TARGETS, Target

if TYPE_CHECKING:
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.lower import Usage
    from forestcoll.program import Collective
    from forestcoll.schedule.forest import Forest
    from forestcoll.schedule.latency import Latencies
    from forestcoll.solver import Optimum
    from forestcoll.solver.front import Point
    from forestcoll.topology import Topology
    from forestcoll.verify.simulate import Band

PLANS_QUICK = 64
"""Ranks up to which `front` makes the plans of every row in seconds."""


@dataclass(frozen=True, slots=True)
class Row:
    """A point of the front; where its forest was made also that, and what its plans need.

    `needs`: per target the largest figures of its plan, or why it has none. `band`: what the trees
    alone reach in simulated time, where that is quick.
    """

    point: Point
    height: int | None = None  # hops
    least_height: int | None = None  # no forest with as many trees, as fast, has fewer hops
    latency: Fraction | None = None  # us of the links on the longest way
    different: int | None = None  # trees of a root in one phase
    needs: Mapping[str, Usage | str] = field(default_factory=dict)
    band: Band | None = None


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


@keywords(*STATEMENT)
def front(
    topology: Topology,
    request: Request,
    *,
    forests: bool = True,
    plans: bool | None = False,
    everything: bool = False,
    progress: Progress | None = None,
) -> FrontTable:
    """Fewer trees per root against less algbw: every number that beats all smaller ones.

    From one tree per root to the least that reaches 99 %, the least that reaches 99.9 %, and the
    exact optimum. `forests`: with the height of each; `plans`: with what its plans need of each
    target; None: for up to PLANS_QUICK ranks. A long front is shown in part unless `everything` is
    asked for.
    """
    clock = Clock(progress)
    with clock.stage("graph"):
        problem = request.problem(topology).plain
    with clock.stage("optimum"):
        best = problem.optimum()
    graph = problem.graph
    if plans is None:
        plans = forests and not graph.shares and len(graph.ranks) <= PLANS_QUICK
    chooser = Chooser(problem, {}, request, best, clock)
    shown = TARGETS.values() if plans else ()
    links = problem.links if forests or plans else None
    rows = tuple(_rows(chooser, links, everything, shown))
    left_out = len(chooser.front.points()) - len(rows)
    return FrontTable(problem.name, graph, problem.collective, best, rows, left_out, clock.seconds)


def _rows(
    chooser: Chooser, links: Latencies | None, everything: bool, targets: Iterable[Target]
) -> Iterator[Row]:
    """The front, k ascending; all of it or, where it is long, what is worth reading.

    `links`: makes the forest of every row, and says how long it takes over links with these
    latencies; without, rates are all there is, and quick.
    `targets`: whose figures the rows have.
    """
    from forestcoll.schedule.latency import latency
    from forestcoll.solver.shallow.height import forest_bound
    from forestcoll.verify.simulate import band_of_trees

    targets = tuple(targets)
    points = chooser.front.points()
    for point in points if everything else _worth_reading(points):
        if links is None:
            yield Row(point)
            continue
        forest = chooser.forest_of(point)
        needs = {t.name: _need(chooser, forest, t) for t in targets}
        waited = latency(forest, links)
        height, least = forest.height, forest_bound(forest)
        with chooser.stage("simulate"):
            band = band_of_trees(forest, links)
        yield Row(point, height, least, waited, different_trees(forest), needs, band)


def _need(chooser: Chooser, forest: Forest, target: Target) -> Usage | str:
    from forestcoll.compile.formats import seat
    from forestcoll.lower import hopeless, lower, usage

    k, n = forest.trees_per_root, len(chooser.graph.ranks)
    with chooser.stage("lower"):
        try:
            seat({target.format: target}, chooser.graph, forest.name, any_target=False)
            return hopeless(target, chooser.collective, n, k) or usage(lower(forest, target))
        except PlanError as error:
            return str(error)


def _worth_reading(points: Sequence[Point]) -> list[Point]:
    """The first that reach GOALS, the ends, and what comes a good part nearer to the optimum."""
    from forestcoll.solver.front import GOALS

    kept: list[Point] = []
    for point in points:
        before = kept[-1].share if kept else Fraction(0)
        goal = any(before < g <= point.share for g in GOALS)
        if goal or point in (points[0], points[-1]) or 4 * (1 - point.share) <= 3 * (1 - before):
            kept.append(point)
    return kept
