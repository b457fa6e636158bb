"""Optimum: the best algbw of a problem and what proves it, with and without copies in switches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from forestcoll.compile.problem import Problem, Shares, topology_of

if TYPE_CHECKING:
    from os import PathLike

    from forestcoll.graph.capacity_graph import Relays
    from forestcoll.program import Collective
    from forestcoll.solver import Optimum
    from forestcoll.topology import Topology

FEWER_SOUGHT = 4096
"""Ranks up to which `optimum` looks for fewer trees than all links have in common."""


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
    says by how much, unless `fabric` is off. `shares`: see `problem.capacity_graph`.
    """
    problem = Problem.of(topology_of(topology), collective, root, ranks, relays, shares)
    return optimum_of(problem, fabric=fabric)


def optimum_of(problem: Problem, *, fabric: bool = True) -> Optimum:
    """The same of a problem."""
    best = problem.plain.optimum()
    if fabric:
        best = replace(best, in_switches=in_switches(problem))
    if best.trees_per_root == 1 or len(problem.graph.ranks) > FEWER_SOUGHT:
        return best
    from forestcoll.solver.front import Front

    front = Front(problem.graph, problem.collective, problem.root, best)
    return replace(best, trees_per_root=front.exact.trees)


def in_switches(problem: Problem) -> Optimum | None:
    """What trees that let switches copy and add reach, where that is more than GPUs reach."""
    if not problem.graph.copies:
        return None
    from forestcoll.solver import multicast

    if not multicast.usable(problem.graph, problem.collective):
        return None
    return multicast.better(problem.graph, problem.collective, problem.root, problem.optimum())
