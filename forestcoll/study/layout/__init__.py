"""Layout: which GPU is which rank of a parallel job, what its groups reach, and their plans.

fabric   what is alike among GPUs, cuts, and an order of GPUs
costs    what a placement costs, exactly and at least
search   a placement under search: from orders of the fabric by trades of GPUs to the best placement
folder   the files of a layout, for frameworks, launchers and `forestcoll.torch`
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from forestcoll.common.clock import Progress
from forestcoll.common.errors import InfeasibleError, TopologyError, UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph, Relays
from forestcoll.schedule.layout_file import Job, weights
from forestcoll.study.layout.costs import GIGA, Costs, Row, StepCost, seconds_of
from forestcoll.study.layout.fabric import survey
from forestcoll.study.layout.search import search
from forestcoll.topology import Topology


class RowResult(NamedTuple):
    """A row of traffic. `algbw`, `default` and `bound` in GB/s.

    `default`: in the topology's order, None where that cannot be served. `bound`: what no
    placement exceeds were the row alone. `tried`: that is a group's that exists, not only a cut's.
    """

    row: Row
    algbw: Fraction
    default: Fraction | None
    bound: float
    tried: bool


class StepResult(NamedTuple):
    """Rows that run together: what they reach, and the same in the topology's order."""

    rows: tuple[RowResult, ...]
    cost: StepCost
    default: StepCost | None


class Layout(NamedTuple):
    """A job on a fabric. `placement[r]` is the GPU of rank r, as a rank number of `costs`' graph.

    `default`, `bound`: seconds of the topology's order (None: not served), and of no placement
    less. `stopped`: the search was interrupted. `exact`: exact programs that were solved.
    """

    topology: Topology
    costs: Costs
    placement: tuple[int, ...]
    steps: tuple[StepResult, ...]
    default: Fraction | None
    bound: float
    stopped: bool = False
    exact: int = 0

    @property
    def job(self) -> Job:
        """What was asked for."""
        return self.costs.job

    @property
    def seconds(self) -> Fraction:
        """Of all steps."""
        return sum((step.cost.seconds for step in self.steps), Fraction(0))

    @property
    def names(self) -> tuple[str, ...]:
        """The GPU of each rank."""
        names = self.costs.fabric.graph.rank_names
        return tuple(names[i] for i in self.placement)


def lay_out(
    topology: Topology,
    job: Job,
    ranks: Sequence[str] | None = None,
    relays: Relays = "none",
    progress: Progress | None = None,
) -> Layout:
    """The placement of a job that takes the least time in communication, as far as it was found.

    `ranks`: ids or globs of the GPUs, in the default's order (all). Never worse than that order.
    Raises TopologyError where there are not as many GPUs as ranks, InfeasibleError where no
    placement was found that serves every group, UnsupportedError.
    """
    graph = CapacityGraph.from_topology(topology, ranks, relays).plain
    world = job.parallel.world
    if len(graph.ranks) != world:
        raise TopologyError(
            f"the job has {world} ranks, and {topology.name} {len(graph.ranks)} GPUs"
            + ("; choose them with --ranks" if world < len(graph.ranks) else "")
        )
    costs = Costs(job, survey(graph), relays)
    bounds = [[costs.best_alone(row) for row in step] for step in costs.steps]
    if not all(most for limits in bounds for most, _ in limits):  # a GPU that nothing reaches
        _refuse(costs, job)
    bound = sum(
        max(row.total / (limit[0] * GIGA) for row, limit in zip(step, limits, strict=True))
        for step, limits in zip(costs.steps, bounds, strict=True)
    )
    default = tuple(range(world))
    best = search(costs, bound, progress)
    if best.seconds is None:
        _refuse(costs, job)
    steps, plains = [], [*costs.all_steps(default)]
    for number, (step, limits, plain) in enumerate(zip(costs.steps, bounds, plains, strict=True)):
        cost = costs.solve(number, best.placement)
        parts = weights([row.traffic for row in step])
        rows = tuple(
            RowResult(row, cost.algbw * part, None if plain is None else plain.algbw * part, *limit)
            for row, part, limit in zip(step, parts, limits, strict=True)
        )
        steps.append(StepResult(rows, cost, plain))
    return Layout(
        topology,
        costs,
        best.placement,
        tuple(steps),
        seconds_of(plains),
        bound,
        best.interrupted,
        costs.evaluated,
    )


def _refuse(costs: Costs, job: Job) -> None:
    """InfeasibleError: which groups are the reason."""
    default = tuple(range(job.parallel.world))
    for number, step in enumerate(costs.steps):
        if costs.step(number, default) is None:
            names = " and ".join(row.traffic.name for row in step)
            raise InfeasibleError(
                f"no placement was found that serves all groups: in the topology's order those of "
                f"{names} cannot be; --relays all lets GPUs of other groups pass data on"
            )
    kept = ", ".join(job.keep)
    raise UnsupportedError(f"no placement was found that keeps each group of {kept} in a box")
