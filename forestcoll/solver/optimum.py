"""Optimum of a collective: how fast it can be at all, exactly, and what proves it. No trees."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.solver.allreduce import fix_joint, fix_same, plan
from forestcoll.solver.fixed_trees import fit_trees
from forestcoll.solver.task import Optimum, analyse, forward
from forestcoll.topology.numbers import percent


def optimum(
    graph: CapacityGraph, collective: Collective, root: int | None = None, patient: bool = True
) -> Optimum:
    """The best algbw of `collective` on `graph`, with its certificate.

    `root` is a rank number, for broadcast and reduce only. Unless `patient`, an allreduce that
    would take minutes is left at reduce-scatter and allgather, and `note` says so; `trees_per_root`
    may be more than are needed. InfeasibleError names the cut where some ranks cannot reach others.
    """
    root = check_root(graph, collective, root)
    if collective is Collective.ALLREDUCE:
        return _allreduce(graph, patient)
    task = analyse(forward(graph, collective), root)
    return Optimum(
        algbw=task.algbw,
        rate=task.rate * task.graph.unit,
        trees_per_root=task.trees_per_root,
        bound=task.bound,
    )


def _allreduce(graph: CapacityGraph, patient: bool) -> Optimum:
    chosen = plan(graph, patient)
    note = chosen.note
    if graph.shares:
        free = max(plan(replace(graph, shares=()), patient).algbw, chosen.algbw)
        note = (
            f"{note}{note and '; '}these shares of the sums leave {percent(chosen.algbw / free)} "
            f"of {float(free):.6g} GB/s ({free}), which the best reach"
        )
    return Optimum(
        algbw=chosen.algbw,
        rate=chosen.algbw / sum(graph.parts),
        trees_per_root=chosen.trees_per_root,
        bound=chosen.bound,
        note=note,
    )


def algbw_of_trees(
    graph: CapacityGraph, collective: Collective, root: int | None, trees: int
) -> Fraction:
    """GB/s that a forest with `trees` trees per root reaches at least, without packing it."""
    if collective is Collective.ALLREDUCE:
        joint = fix_joint(graph, trees)
        return fix_same(graph, trees) if joint is None else joint.algbw
    return fit_trees(analyse(forward(graph, collective), root), trees).algbw


def check_root(graph: CapacityGraph, collective: Collective, root: int | None) -> int | None:
    """`root` where the collective has one, else None; UnsupportedError where it does not fit."""
    count = len(graph.ranks)
    if count < 2:
        raise UnsupportedError(f"{collective} needs at least 2 ranks, there is only {count}")
    if graph.shares and not collective.weighable:
        raise UnsupportedError(
            f"{collective} has no parts that could differ; shares are for allgather, "
            "reduce-scatter and allreduce"
        )
    if not collective.has_root:
        if root is not None:
            raise UnsupportedError(f"{collective} has no root; leave the root out")
        return None
    if root is None or not 0 <= root < count:
        raise UnsupportedError(f"{collective} needs a root, a rank number from 0 to {count - 1}")
    return root
