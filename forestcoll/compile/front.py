"""Front: fewer trees per root against less algbw, with what plans of each point need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forestcoll.compile.choose import Chooser, Row
from forestcoll.compile.clock import Clock, Progress
from forestcoll.compile.problem import Problem, Shares, topology_of
from forestcoll.compile.wishes import Wishes
from forestcoll.targets import TARGETS

if TYPE_CHECKING:
    from os import PathLike

    from forestcoll.graph import CapacityGraph, Relays
    from forestcoll.program import Collective
    from forestcoll.solver import Optimum
    from forestcoll.topology import Topology

PLANS_QUICK = 64
"""Ranks up to which `front` makes the plans of every row in seconds."""


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
    """Fewer trees per root against less algbw: every number that beats all smaller ones.

    From one tree per root to the least that reaches 99 %, the least that reaches 99.9 %, and the
    exact optimum. `forests`: with the height of each; `plans`: with what its plans need of each
    target; None: for up to PLANS_QUICK ranks. A long front is shown in part unless `everything` is
    asked for.
    """
    clock = Clock(progress)
    with clock.stage("graph"):
        problem = Problem.of(topology_of(topology), collective, root, ranks, relays, shares)
    with clock.stage("optimum"):
        best = problem.optimum()
    graph = problem.graph
    if plans is None:
        plans = forests and not graph.shares and len(graph.ranks) <= PLANS_QUICK
    chooser = Chooser(problem, {}, Wishes(), best, clock)
    shown = TARGETS.values() if plans else ()
    links = problem.links if forests or plans else None
    rows = tuple(chooser.rows(links, everything, shown))
    left_out = len(chooser.front.points()) - len(rows)
    return FrontTable(problem.name, graph, problem.collective, best, rows, left_out, clock.seconds)
