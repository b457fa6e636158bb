"""Schedules that copy and add in the switches (NVLS, SHARP): forests, and plans of one switch.

Of a forest alone the optimum is that of all schedules, also those in which switches copy and add.
Most plans copy and add on the GPUs: they, their optimum and the graph in their forest's file know
of no switches that do (`CapacityGraph.plain`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.program.targets import MSCCLPP
from forestcoll.topology.numbers import percent

if TYPE_CHECKING:
    from forestcoll.compile.problem import Problem
    from forestcoll.compile.request import Request
    from forestcoll.schedule.forest import Forest
    from forestcoll.solver import Optimum


def find_forest(problem: Problem) -> Forest | None:
    """A forest whose trees copy and add in the switches, if there is one."""
    from forestcoll.solver import multicast

    return multicast.forest(problem.graph, problem.collective, problem.root, problem.name)


def choose_by_percent(
    problem: Problem, wishes: Request, best: Optimum, fewest: Callable[[Fraction], int]
) -> Forest | Request:
    """A forest whose switches copy and add, or what to wish of GPUs that do so.

    Whichever reaches the percentage of the bound of all schedules with fewer trees per root; the
    wishes are then in percent of `best.algbw`, which is what GPUs reach. `fewest` says how many
    trees GPUs take for a share of that. Raises UnsupportedError where neither is enough.
    """
    assert wishes.min_percent is not None  # else there is nothing to choose by
    bound = problem.optimum().bound.algbw
    wanted = wishes.min_percent / 100 * bound
    share = wanted / best.algbw
    forest = find_forest(problem)
    reached = max(best.algbw, Fraction(0) if forest is None else forest.algbw)
    refusal = f"the best has {float(reached):.6g} GB/s, {percent(reached / bound)}"
    enough = forest if forest is not None and forest.algbw >= wanted else None
    if enough is not None and (share > 1 or enough.trees_per_root <= fewest(share)):
        problems = wishes.refusal(enough)
        if problems is None:
            return enough
        refusal = problems
    if share <= 1:
        return replace(wishes, min_percent=100 * share)
    raise UnsupportedError(
        f"no forest with {float(wishes.min_percent):g} % of {float(bound):.6g} GB/s or more was "
        f"found that suits: {refusal}"
    )


def prefer_switches(problem: Problem, forest: Forest, best: Optimum) -> tuple[Forest, Optimum]:
    """A forest that copies and adds in the switches where that is faster, lower or smaller.

    It may have the trees of `forest`, whose paths fan out of the switches. `best`: of GPUs.
    """
    if not problem.graph.copies:
        return forest, best
    from forestcoll.solver import multicast

    same = replace(forest, graph=problem.graph, bound=problem.optimum().bound)
    other = find_forest(problem) if multicast.may_beat(same) else None

    def worth(f: Forest) -> tuple[Fraction, int, int]:
        return f.algbw, -f.height, -len(f.trees) * f.images

    better = other if other is not None and other.bound and worth(other) > worth(same) else same
    return (
        (better, optimum_in_switches(better, best))
        if worth(better) > worth(forest)
        else (forest, best)
    )


def require_forest(problem: Problem) -> Forest:
    """The forest of a plan that copies and adds in a switch; PlanError where there is none."""
    forest = find_forest(problem)
    if forest is None or forest.bound is None:
        raise PlanError(
            f"{problem.collective} on {problem.name}: no switch between all GPUs copies and adds "
            "what it takes"
        )
    return forest


def nvls_algbw(problem: Problem) -> Fraction | None:
    """GB/s that a plan which copies and adds in a switch reaches at most; None: there is none."""
    from forestcoll.lower.nvls import lower_nvls, most_algbw

    forest = find_forest(replace(problem, name=""))
    try:
        if forest is not None and lower_nvls(forest, MSCCLPP).n:
            return most_algbw(forest)
    except PlanError:
        pass
    return None


def nvls_note(forest: Forest) -> str:
    """What to know of a plan that has a switch copy and add."""
    from forestcoll.lower.nvls import most_algbw

    most = most_algbw(forest)
    types = " no uint8, FP8 from sm_100 on;" if forest.collective.reduces else ""
    return (
        "the plan has the switch copy and add: GPUs from sm_90 on, buffers that MSCCL++ "
        f"allocates (GpuBuffer);{types} the runtime moves own shares too, which leaves "
        f"{float(most):.1f} GB/s at most"
    )


def optimum_in_switches(forest: Forest, best: Optimum) -> Optimum:
    """The figures of a forest that copies and adds in the fabric."""
    assert forest.bound is not None  # multicast.py gives one to all of them
    shared = 1 if forest.collective.has_root else sum(forest.graph.parts)
    return replace(
        best,
        algbw=forest.algbw,
        rate=forest.algbw / shared,
        trees_per_root=forest.trees_per_root,
        bound=forest.bound,
    )
