"""Solve: from a graph and a collective to a checked forest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Literal

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule.forest import Bound, Forest, Phase
from forestcoll.solver.allreduce import fix_joint, plan
from forestcoll.solver.fixed_trees import fit_trees
from forestcoll.solver.flows.joint import Joint
from forestcoll.solver.optimum import check_root
from forestcoll.solver.phase_packing import SlowError, pack_both, pack_part, pack_phase
from forestcoll.solver.shallow.rehanging import suits
from forestcoll.solver.task import (
    COMPACT_FROM,
    Packed,
    Task,
    analyse,
    assemble,
    check_promise,
    forward,
)

SLACK = Fraction(249, 250)
"""What is left of an algbw at least where less is enough: the rest is room for low trees."""
LARGE = 1_000
"""Roots, and trees of each, above both of which trees over links that were cut down to balance
switches take minutes, and a gigabyte to write."""

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
    apart: bool = False,
) -> Forest:
    """A forest for `collective`, optimal with trees="auto", else the best with `trees` a root.

    `enough`: GB/s from which on lower trees count for more than the last parts of a percent, where
    a number of trees is given; not for allreduce. Unless `patient`, SlowError is raised where it
    would take minutes. `apart`: an allreduce takes turns, each phase over all links, even where a
    joint optimum is more.
    `root` is a rank number, for broadcast and reduce. `name` is the topology's. The forest carries
    its upper bound. Raises InfeasibleError (ranks cannot reach each other; names the cut) and
    UnsupportedError (numbers too large, root or number of trees out of range).
    """
    root = check_root(graph, collective, root)
    report = _Stages(progress, len(collective.phases))
    report("optimum", 0.0)
    if collective is Collective.ALLREDUCE:
        phases, bound = _allreduce(graph, trees, report, patient, apart)
    else:
        task = analyse(forward(graph, collective), root)
        packed = _pack(task, trees, report, patient, enough)
        phases, bound = {collective.phases[0]: packed}, task.bound
    report("checking", 1.0)
    forest = assemble(name, graph, collective, phases, bound, root)
    check_promise(forest, 1 / sum((1 / phase.algbw for phase in phases.values()), Fraction(0)))
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


def _pack(
    task: Task,
    trees: int | Literal["auto"],
    report: _Stages,
    patient: bool,
    enough: Fraction | None = None,
) -> Packed:
    """The trees of a task whose optimum is known."""
    k = task.trees_per_root if trees == "auto" else trees
    if not patient and k > LARGE < task.roots and task.graph is not task.given:
        raise SlowError
    fit = fit_trees(task, trees)
    if enough is not None and trees != "auto" and suits(task.given, task.root):
        fit = replace(fit, algbw=min(fit.algbw, max(enough, fit.algbw * SLACK)))
    report("packing", 0.2)
    packed = pack_phase(task, fit, patient)
    report.done += 1
    return packed


def _allreduce(
    graph: CapacityGraph,
    trees: int | Literal["auto"],
    report: _Stages,
    patient: bool,
    apart: bool,
) -> tuple[dict[Phase, Packed], Bound]:
    """Reduce to all roots, then broadcast from them, with the same share of each root in both."""
    chosen = plan(graph)
    joint = chosen.joint if trees == "auto" else fix_joint(graph, trees)
    # beyond COMPACT_FROM whole forests of both phases together are out of reach
    if joint is not None and not apart and len(graph.ranks) <= COMPACT_FROM:
        return _joint(graph, joint, report), chosen.bound
    gather = scatter = _pack(chosen.gather, trees, report, patient)
    if chosen.scatter is not chosen.gather:
        scatter = _pack(chosen.scatter, trees, report, patient)
    return {"reduce": scatter, "broadcast": gather}, chosen.bound


def _joint(graph: CapacityGraph, joint: Joint, report: _Stages) -> dict[Phase, Packed]:
    """The trees of both phases, each over its own part of the links."""
    both = (joint.trees, joint.trees) if joint.trees else pack_both(graph, joint)
    if both is None:
        # per phase the links that carry anything, with what they carry as their capacity
        out, back = (
            way.keep([e for e, units in enumerate(carried) if units], carried)
            for way, carried in zip((graph, graph.reverse()), joint.carried, strict=True)
        )
        report("packing", 0.2)
        spread = gathered = pack_part(out, list(out.capacity), list(joint.supply))
        report.done += 1
        if back.links != out.links:
            report("packing", 0.2)
            gathered = pack_part(back, list(back.capacity), list(joint.supply))
        both = gathered, spread
    report("checking", 0.9)
    total, algbw = sum(joint.supply), 2 * joint.algbw  # in half the time each, if they took turns
    return {
        "reduce": Packed(both[0], total, algbw),
        "broadcast": Packed(both[1], total, algbw),
    }
