"""Routes that somebody else chose: blocks' ways over ranks, each hop the shortest way of links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from forestcoll.schedule.routes import routes
from forestcoll.solver.alltoall.flows import Optimum
from forestcoll.solver.alltoall.routes import Flow, Route, Routes, check


def routes_over(best: Optimum, flows: Sequence[Flow], units: int = 1) -> Routes:
    """The same as listed routes. Where no switches lead from rank to rank, others pass on.

    Raises InfeasibleError where a hop has no way at all, ForestError where the flows do not give
    every pair its units, or one would pass a node twice.
    """
    graph = best.demand.graph
    ways = routes(graph).ways
    listed: Counter[tuple[int, ...]] = Counter()
    for flow in flows:
        path = [graph.ranks[flow.ranks[0]]]
        for hop in pairwise(flow.ranks):
            path += ways[hop][1:]
        listed[tuple(path)] += flow.count
    found = Routes(best, None, units, tuple(Route(*pair) for pair in listed.items()))
    check(found)
    return found
