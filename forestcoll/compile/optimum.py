"""Optimum: the best algbw of a problem and what proves it, with and without copies in switches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from forestcoll.compile.problem import Problem
from forestcoll.compile.request import STATEMENT, Request, keywords

if TYPE_CHECKING:
    from forestcoll.solver import Optimum
    from forestcoll.topology import Topology

FEWER_SOUGHT = 4096
"""Ranks up to which `optimum` looks for fewer trees than all links have in common."""


@keywords(*STATEMENT)
def optimum(topology: Topology, request: Request, *, fabric: bool = True) -> Optimum:
    """The best algbw that any schedule on the GPUs can reach, with the bound that proves it.

    No trees. For allreduce: of schedules that reduce-scatter and allgather over spanning trees.
    Where switches copy and add, and trees that let them are faster, `in_switches` of the result
    says by how much, unless `fabric` is off. `shares`: see `problem.capacity_graph`.
    """
    return optimum_of(request.problem(topology), fabric=fabric)


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
