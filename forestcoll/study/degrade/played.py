"""The worst failures in simulated time: the trees in use and new ones, on what is left.

`losses` says what links allow. Trees also have hops, starts and ends; how much that costs is
simulated for the failures that a report shows, as far as forests alone are simulated at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forestcoll.common.errors import ForestCollError
from forestcoll.study.degrade.losses import Loss, Report, best_forest
from forestcoll.verify import simulate

if TYPE_CHECKING:
    from forestcoll.compile.clock import Progress
    from forestcoll.compile.problem import Problem
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.schedule.forest import Forest
    from forestcoll.verify.simulate import Band


@dataclass(frozen=True, slots=True)
class Worst:
    """A loss and how many failures lose just the same, with what trees reach in simulated time.

    `old`, `new`: of the forest in use and of a new one; None where there is none, or it is not
    simulated.
    """

    loss: Loss
    alike: int
    old: Band | None = None
    new: Band | None = None


def play_whole(report: Report) -> Band | None:
    """What the forest in use reaches while all works; None where that is not simulated."""
    problem = report.workload.problem()
    return simulate.simulated_band(_move(report.forest, problem.graph), problem.links)


def play_worst(report: Report, count: int, progress: Progress | None = None) -> list[Worst]:
    """The `count` worst failures, simulated."""
    found = []
    for done, (loss, alike) in enumerate(report.worst(count)):
        if progress is not None:
            progress("simulate", done / count)
        found.append(_play(report, loss, alike))
    return found


def _play(report: Report, loss: Loss, alike: int) -> Worst:
    if report.forest.n > simulate.RANKS or loss.new is None:
        return Worst(loss, alike)
    problem = report.workload.after(loss.failure).problem()
    old = None
    if loss.old is not None:
        old = simulate.simulated_band(_move(report.forest, problem.graph), problem.links)
    if loss.old == loss.new:
        return Worst(loss, alike, old, old)
    return Worst(loss, alike, old, _play_new(problem))


def _play_new(problem: Problem) -> Band | None:
    try:
        forest = best_forest(problem, problem.optimum())
    except ForestCollError:  # an optimum without trees that are found
        return None
    return simulate.simulated_band(forest, problem.links)


def _move(forest: Forest, graph: CapacityGraph) -> Forest:
    """The same trees on a graph that has all of their nodes and links, by their names."""
    number = {name: v for v, name in enumerate(graph.names)}
    at = [number.get(name, -1) for name in forest.graph.names]
    trees = tuple(
        replace(
            tree,
            root=at[tree.root],
            edges=tuple(tuple(at[v] for v in path) for path in tree.edges),
        )
        for tree in forest.trees
    )
    return replace(forest, graph=graph, trees=trees, bound=None)
