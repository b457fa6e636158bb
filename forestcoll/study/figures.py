"""What links allow a plan, trees or routes, and what bounds that: all commands ask here.

For copies and sums on the GPUs, unless what is asked about has switches do them. `report.facts`
puts it into words.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from forestcoll.graph.bound import Bound
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.program import Collective, Program
    from forestcoll.schedule.forest import Forest
    from forestcoll.solver.alltoall.flows import Optimum
    from forestcoll.solver.alltoall.routes import Routes
    from forestcoll.topology import Topology


class Limit(NamedTuple):
    """What proves a bound, on which graph and of what; of an all-to-all it is an `Optimum`."""

    graph: CapacityGraph
    collective: Collective
    bound: Bound


class Figures(NamedTuple):
    """GB/s of 10^9 bytes, exact, and where they come from.

    `algbw`: what links allow what a plan, or trees alone, use of them. `bound`: what no schedule
    exceeds that copies and adds where these do; None: nothing is known. `in_switches`: what
    schedules reach that let switches copy and add, where these do not and that is more. `best`: all
    of it is of the best plan there is, for of the plan at hand no trees or routes are known.
    """

    algbw: Fraction
    source: str
    bound: Fraction | None = None
    limit: Limit | Optimum | None = None
    in_switches: Fraction | None = None
    best: bool = False


def figures_of(
    made_from: Forest | Routes | Optimum, program: Program | None = None, source: str = ""
) -> Figures:
    """Those of a forest, of routes, of flows; or of a plan that was made from them."""
    from forestcoll.schedule.forest import Forest

    if not isinstance(made_from, Forest):
        from forestcoll.solver.alltoall.routes import Routes

        best = made_from.optimum if isinstance(made_from, Routes) else made_from
        return Figures(made_from.algbw, source, best.bound, best)
    algbw, graph, bound = made_from.algbw, made_from.graph, made_from.bound
    if program is not None and program.in_switches:
        from forestcoll.lower.nvls import most_algbw

        algbw = most_algbw(made_from)
    elif program is not None and graph.copies:  # its trees may use the switches, the plan does not
        from forestcoll.compile.problem import Problem

        root = made_from.root if made_from.collective.has_root else None
        algbw, graph = made_from.plain_algbw, graph.plain
        bound = Problem(graph, made_from.collective, root).optimum().bound
    if bound is None:
        return Figures(algbw, source)
    limit = Limit(graph, made_from.collective, bound)
    other = made_from.algbw if graph is not made_from.graph and made_from.algbw > algbw else None
    return Figures(algbw, source, bound.algbw, limit, other)


def best_of(topology: Topology, collective: Collective, root: int | None = None) -> Figures:
    """What the best plans of all of its GPUs reach on a topology."""
    from forestcoll.compile.optimum import optimum
    from forestcoll.graph.capacity_graph import CapacityGraph

    source = f"the optimum of {topology.name}"
    if not collective.phases:
        from forestcoll.solver.alltoall.demand import uniform
        from forestcoll.solver.alltoall.flows import solve

        return figures_of(solve(uniform(topology)), source=source)._replace(best=True)
    best = optimum(topology, collective, root=root)
    limit = Limit(CapacityGraph.from_topology(topology), collective, best.bound)
    other = None if best.in_switches is None else best.in_switches.algbw
    return Figures(best.algbw, source, best.bound.algbw, limit, other, best=True)
