"""Allreduce: reduce-scatter and allgather over the same trees, or the joint optimum of both."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph, is_symmetric
from forestcoll.graph.symmetry.quotient import alike_ranks
from forestcoll.schedule.forest import Bound
from forestcoll.solver.fixed_trees import fit_trees
from forestcoll.solver.flows.joint import Joint, fit_joint, joint
from forestcoll.solver.joint_boxes import joint_of_boxes
from forestcoll.solver.partitions import allreduce_bound
from forestcoll.solver.task import COMPACT_FROM, PATIENT, Task, analyse

FEW = 8
"""Trees a root that are few: where the optimum has more, it is tried to be reached with these."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The better of the two ways, with its bound.

    `gather` and `scatter` are the phases alone on the links, `scatter` on the reversed graph (the
    same task where the graph is symmetric). `joint` is None where both, one after the other, are as
    good. `note` says why there is no joint optimum to compare with, or is empty.
    """

    gather: Task
    scatter: Task
    joint: Joint | None
    bound: Bound
    note: str = ""

    @property
    def same_algbw(self) -> Fraction:
        """GB/s of reduce-scatter, then allgather."""
        return 1 / (1 / self.gather.algbw + 1 / self.scatter.algbw)

    @property
    def algbw(self) -> Fraction:
        """GB/s of the better way."""
        return self.same_algbw if self.joint is None else self.joint.algbw

    @property
    def trees_per_root(self) -> int:
        """The least k in whole units that was found; the largest, where roots differ."""
        if self.joint is not None:
            return max(self.joint.supply) // max(self.gather.graph.parts)
        return math.lcm(self.gather.trees_per_root, self.scatter.trees_per_root)


@lru_cache(maxsize=4)
def plan(graph: CapacityGraph, patient: bool = True) -> Plan:
    """The better way; nothing beats it but copies and sums in switches, unless `note` says why not.

    The joint program is solved only where cuts and partitions leave a gap above the same trees; for
    many ranks it may take minutes, and is left out unless `patient`; nor are few trees sought then.
    Raises InfeasibleError where ranks cannot reach each other.
    """
    gather = analyse(graph, None)
    scatter = gather if is_symmetric(graph) else analyse(graph.reverse(), None)
    same = Plan(gather, scatter, None, allreduce_bound(graph))
    if same.bound.algbw == same.same_algbw:
        return same
    large = len(graph.ranks) > COMPACT_FROM
    if large and 2 * len(alike_ranks(graph)) > len(graph.ranks):
        note = (
            "reduce-scatter and allgather over the same trees; a joint optimum is not looked for "
            f"beyond {COMPACT_FROM:,} ranks that are not alike"
        )
        return replace(same, note=note)
    boxed = None if large or graph.shares else joint_of_boxes(graph, same.bound)
    if boxed is not None and boxed.algbw > same.same_algbw:
        note = ""
        if boxed.algbw < boxed.bound.algbw:
            note = (
                f"both phases over the same {sum(boxed.supply)} trees, which are low: for so many "
                "ranks no more trees are sought to come nearer to the bound"
            )
        return Plan(gather, scatter, boxed, same.bound, note)
    try:
        if not patient and PATIENT < len(graph.ranks) <= COMPACT_FROM:
            raise UnsupportedError(f"for {len(graph.ranks)} ranks it may take minutes")
        best = joint(graph, patient)
    except UnsupportedError as reason:
        note = f"reduce-scatter and allgather over the same trees, no joint optimum: {reason}"
        return Plan(gather, scatter, None, same.bound, note)
    bound = min(same.bound, best.bound, key=lambda b: b.algbw)
    if best.algbw <= same.same_algbw:
        return Plan(gather, scatter, None, bound)
    return Plan(gather, scatter, best if large or not patient else _fewer(graph, best), bound)


@lru_cache(maxsize=64)
def fix_joint(graph: CapacityGraph, trees: int) -> Joint | None:
    """The joint allreduce with `trees` trees per root on the average.

    None where reduce-scatter and allgather with `trees` trees per root each are as good. Looked for
    only where the joint optimum is better than theirs.
    """
    best, roots = plan(graph).joint, sum(graph.parts)
    if best is None or trees < 1 or len(graph.ranks) > COMPACT_FROM:
        return None
    if best.trees:
        return best if sum(best.supply) <= trees * roots else None
    solutions = []
    with suppress(UnsupportedError):  # there are other ways
        solutions.append(fit_joint(graph, trees, best))
    times, rest = divmod(trees * roots, sum(best.supply))
    if not rest:
        solutions.append(best.times(times))
    better = max((j for j in solutions if j is not None), key=lambda j: j.algbw, default=None)
    return better if better is not None and better.algbw > fix_same(graph, trees) else None


def fix_same(graph: CapacityGraph, trees: int) -> Fraction:
    """GB/s of reduce-scatter, then allgather, with `trees` trees per root each."""
    tasks = plan(graph).gather, plan(graph).scatter
    return 1 / sum((1 / fit_trees(task, trees).algbw for task in tasks), Fraction(0))


def _fewer(graph: CapacityGraph, best: Joint) -> Joint:
    """`best`, or the same algbw with fewer trees where `best` has many and few are enough."""
    if max(best.supply) <= FEW:
        return best
    for trees in range(1, FEW + 1):
        if trees * sum(graph.parts) >= sum(best.supply):
            break
        try:
            fewer = fit_joint(graph, trees, best, exact=True)
        except UnsupportedError:  # `best` is there already
            break
        if fewer is not None:
            return fewer
    return best
