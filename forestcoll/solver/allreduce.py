"""Which allreduce: reduce-scatter and allgather over the same trees, or the joint optimum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from forestcoll.errors import UnsupportedError
from forestcoll.forest import Bound
from forestcoll.graph import CapacityGraph
from forestcoll.solver.bounds import allreduce_bound
from forestcoll.solver.joint import Joint, joint
from forestcoll.solver.optimum import Task, analyse, is_symmetric


@dataclass(frozen=True, slots=True)
class Plan:
    """The better of the two ways, with its bound.

    `gather` and `scatter` are the phases alone on the links, `scatter` on the reversed graph (the
    same task where the graph is symmetric). `joint` is None where both, one after the other, are as
    good. `note` says why the bound may be out of reach, or is empty.
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
        """The least k in whole units; that of the largest share where roots differ."""
        if self.joint is not None:
            return max(self.joint.supply)
        return math.lcm(self.gather.trees_per_root, self.scatter.trees_per_root)


@lru_cache(maxsize=4)
def plan(graph: CapacityGraph) -> Plan:
    """The better way, proven optimal unless `note` says otherwise.

    The joint program is solved only where cuts and partitions leave a gap above the same trees.
    Raises InfeasibleError where ranks cannot reach each other.
    """
    gather = analyse(graph, None)
    scatter = gather if is_symmetric(graph) else analyse(graph.reverse(), None)
    same = Plan(gather, scatter, None, allreduce_bound(graph))
    if same.bound.algbw == same.same_algbw:
        return same
    try:
        best = joint(graph)
    except UnsupportedError as reason:
        note = f"reduce-scatter and allgather over the same trees, no joint optimum: {reason}"
        return Plan(gather, scatter, None, same.bound, note)
    bound = min(same.bound, best.bound, key=lambda b: b.algbw)
    note = ""
    if bound.algbw > best.algbw:
        note = "the bound allows for copies and sums in switches, which these trees do not use"
    better = best if best.algbw > same.same_algbw else None
    return Plan(gather, scatter, better, bound, note)
