"""Forests alone on machines whose switches copy and add: what a percentage of the optimum means.

Of a forest alone the optimum is that of all schedules, also those in which switches copy and add,
as in the report and in `verify`. (Plans copy and add on the GPUs, and so does their optimum.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from forestcoll.errors import UnsupportedError

if TYPE_CHECKING:
    from forestcoll.compile.wishes import Wishes
    from forestcoll.forest import Forest
    from forestcoll.graph import CapacityGraph
    from forestcoll.program import Collective
    from forestcoll.solver import Optimum


def copies(graph: CapacityGraph) -> bool:
    """Whether some switch copies or adds."""
    return any(graph.multicast) or any(graph.aggregation)


def choose_by_percent(
    problem: tuple[CapacityGraph, Collective, int | None, str],
    wishes: Wishes,
    best: Optimum,
    fewest: Callable[[Fraction], int],
) -> Forest | Wishes:
    """A forest whose switches copy and add, or what to wish of GPUs that do so.

    Whichever reaches the percentage of `best.bound` with fewer trees per root; the wishes are then
    in percent of `best.algbw`, which is what GPUs reach. `fewest` says how many trees GPUs take for
    a share of that. Raises UnsupportedError where neither is enough.
    """
    from forestcoll.solver import multicast

    assert wishes.min_percent is not None  # else there is nothing to choose by
    bound, wanted = best.bound.algbw, wishes.min_percent / 100 * best.bound.algbw
    share = wanted / best.algbw
    found = multicast.forest(*problem)
    reached = max(best.algbw, Fraction(0) if found is None else found.algbw)
    refusal = f"the best has {float(reached):.6g} GB/s, {float(100 * reached / bound):.2f} %"
    enough = found if found is not None and found.algbw >= wanted else None
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
