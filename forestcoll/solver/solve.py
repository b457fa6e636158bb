"""Solve: from a graph and a collective to a checked forest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule.forest import Bound, Forest, Tree, check
from forestcoll.solver.allreduce import fix_joint, plan
from forestcoll.solver.fixed_trees import fit_trees
from forestcoll.solver.flows.joint import Joint
from forestcoll.solver.optimum import check_root
from forestcoll.solver.phase_packing import pack_both, pack_part, pack_phase
from forestcoll.solver.shallow.rehanging import suits
from forestcoll.solver.task import Task, analyse

SLACK = Fraction(249, 250)
"""What is left of an algbw at least where less is enough: the rest is room for low trees."""

Progress = Callable[[str, float], None]
"""Called with the name of the stage that begins and the part of the work done, from 0 to 1."""


def solve(
    graph: CapacityGraph,
    collective: Collective,
    root: int | None = None,
    trees: int | Literal["auto"] = "auto",
    name: str = "",
    progress: Progress | None = None,
    enough: Fraction | None = None,
    patient: bool = True,
) -> Forest:
    """A forest for `collective`, optimal with trees="auto", else the best with `trees` a root.

    `enough`: GB/s from which on lower trees count for more than the last parts of a percent, where
    a number of trees is given; not for allreduce. Unless `patient`, SlowError is raised where it
    would take minutes.
    `root` is a rank number, for broadcast and reduce. `name` is the topology's. The forest carries
    its upper bound. Raises InfeasibleError (ranks cannot reach each other; names the cut) and
    UnsupportedError (numbers too large, root or number of trees out of range).
    """
    root = check_root(graph, collective, root)
    report = _Stages(progress, phases=2 if collective is Collective.ALLREDUCE else 1)
    if collective is Collective.ALLREDUCE:
        phases, bound = _allreduce(graph, trees, report, patient)
    else:
        reverse = collective.reduces
        forward = graph.reverse() if reverse else graph
        phase = _Phase.of_graph(forward, root, trees, report, enough, patient)
        phases, bound = [phase.reverse() if reverse else phase], phase.bound
    report("checking", 1.0)
    forest = Forest(
        name=name,
        graph=graph,
        collective=collective,
        total=phases[0].total,
        trees=tuple(tree for phase in phases for tree in phase.trees),
        bound=bound,
        root=-1 if root is None else root,
    )
    _prove(forest, phases)
    return forest


class _Stages:
    """Turns the stages of one or two phases into one progress report."""

    def __init__(self, progress: Progress | None, phases: int) -> None:
        self._progress = progress
        self._phases = phases
        self.done = 0  # phases

    def __call__(self, stage: str, part: float) -> None:
        if self._progress is not None:
            self._progress(stage, min(1.0, (self.done + part) / self._phases))


@dataclass(frozen=True, slots=True)
class _Phase:
    """The trees of one direction: `total` units in all, `algbw` promised if alone on the links."""

    trees: list[Tree]
    total: int
    algbw: Fraction
    bound: Bound

    @classmethod
    def of_graph(
        cls,
        graph: CapacityGraph,
        root: int | None,
        trees: int | Literal["auto"],
        report: _Stages,
        enough: Fraction | None,
        patient: bool,
    ) -> _Phase:
        """Broadcast trees on `graph`."""
        report("optimum", 0.0)
        return cls.of_task(analyse(graph, root), trees, report, patient, enough)

    @classmethod
    def of_task(
        cls,
        task: Task,
        trees: int | Literal["auto"],
        report: _Stages,
        patient: bool,
        enough: Fraction | None = None,
    ) -> _Phase:
        """The trees of a task whose optimum is known."""
        k, links, capacity, algbw = fit_trees(task, trees)
        if enough is not None and trees != "auto" and suits(task.given, task.root):
            algbw = min(algbw, max(enough, algbw * SLACK))
        report("packing", 0.2)
        k, packed = pack_phase(task, k, links, capacity, algbw, patient)
        report.done += 1
        return cls(packed, k * task.roots, algbw, task.bound)

    def reverse(self) -> _Phase:
        """The same trees with data flowing the other way, towards the roots."""
        return replace(self, trees=[tree.turned() for tree in self.trees])

    def scale(self, total: int) -> _Phase:
        """The same shares in units of 1 / `total`, a multiple of the present one."""
        factor = total // self.total
        trees = [replace(tree, weight=tree.weight * factor) for tree in self.trees]
        return replace(self, trees=trees, total=total)


def _allreduce(
    graph: CapacityGraph, trees: int | Literal["auto"], report: _Stages, patient: bool
) -> tuple[list[_Phase], Bound]:
    """Reduce to all roots, then broadcast from them, with the same share of each root in both."""
    report("optimum", 0.0)
    chosen = plan(graph)
    joint = chosen.joint if trees == "auto" else fix_joint(graph, trees)
    if joint is not None:
        return _joint(graph, joint, report), chosen.bound
    gather = _Phase.of_task(chosen.gather, trees, report, patient)
    if chosen.scatter is chosen.gather:
        report.done += 1
        scatter = gather
    else:
        scatter = _Phase.of_task(chosen.scatter, trees, report, patient)
    total = math.lcm(gather.total, scatter.total)
    return [scatter.reverse().scale(total), gather.scale(total)], chosen.bound


def _joint(graph: CapacityGraph, joint: Joint, report: _Stages) -> list[_Phase]:
    """The trees of both phases, each over its own part of the links."""
    total, algbw = sum(joint.supply), 2 * joint.algbw  # in half the time each, if they took turns
    if joint.trees:
        report("checking", 0.9)
        phase = _Phase(list(joint.trees), total, algbw, joint.bound)
        return [phase.reverse(), phase]
    low = pack_both(graph, joint)
    if low is not None:
        report("checking", 0.9)
        phases = [_Phase(trees, total, algbw, joint.bound) for trees in low]
        return [phases[0].reverse(), phases[1]]
    gather = _part(graph, joint.carried[0])
    scatter = _part(graph.reverse(), joint.carried[1])
    out = _pack(gather, joint, report)
    if scatter.links == gather.links:
        report.done += 1
        back = out
    else:
        back = _pack(scatter, joint, report)
    phases = [_Phase(trees, total, algbw, joint.bound) for trees in (back, out)]
    return [phases[0].reverse(), phases[1]]


def _pack(part: CapacityGraph, joint: Joint, report: _Stages) -> list[Tree]:
    report("packing", 0.2)
    trees = pack_part(part, list(part.capacity), list(joint.supply))
    report("checking", 0.9)
    report.done += 1
    return trees


def _part(graph: CapacityGraph, carried: Sequence[int]) -> CapacityGraph:
    """The links that carry anything, with what they carry as their capacity."""
    return graph.keep([e for e, units in enumerate(carried) if units], carried)


def _prove(forest: Forest, phases: list[_Phase]) -> None:
    """Checks the whole forest; RuntimeError where it is slower than the phases promised.

    One link that carries more than it may is enough for that. No trees here let switches copy or
    add, so no load is counted once for many.
    """
    check(forest)
    reached = forest.plain_algbw
    promised = 1 / sum((1 / phase.algbw for phase in phases), Fraction(0))
    if reached < promised:
        raise RuntimeError(f"internal error: the forest reaches {reached} GB/s, not {promised}")
