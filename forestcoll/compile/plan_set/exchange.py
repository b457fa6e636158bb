"""What plans of an all-to-all may be made from: direct and two-level ways, the optimum's routes.

The shortest way of every block; the way over the GPU of the own box that stands where the target
stands in its own; and the optimum's routes, with one unit of every pair, and with as many as come
near it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from forestcoll.common.errors import ForestCollError
from forestcoll.lower.alltoall.lowering import write_out
from forestcoll.program.sizes import is_power
from forestcoll.solver.alltoall.flows import Optimum
from forestcoll.solver.alltoall.rounding import MOST_UNITS, route
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.solver.alltoall.spread import routes_over
from forestcoll.solver.baselines.alltoall import by_name

OTHERS: Final = ("direct", "two-level")
"""The ways of others that are candidates (solver/baselines/alltoall.py)."""


def find_ways(best: Optimum) -> Iterator[Routes]:
    """The candidates' routes, none twice."""
    graph = best.demand.graph
    ways: list[Routes] = []
    for name in OTHERS:
        try:
            ways.append(routes_over(best, by_name(name).flows(graph)))
        except ForestCollError:  # no boxes, or a way that meets itself
            continue
    fastest = route(best, powers=True)
    ways.append(fastest)
    ways += [route(best, k) for k in _fewer(fastest.units)]
    seen: set[object] = set()
    for one in ways:
        carried = one.units, frozenset(write_out(one))
        if carried not in seen:
            seen.add(carried)
            yield one


def _fewer(units: int) -> list[int]:
    """Units a pair beside those of the routes that come nearest to the optimum."""
    powers = [k for k in (1, 2, 4, MOST_UNITS) if k <= units]
    return [1] if is_power(units) and units > 1 else powers if units > 1 else []
