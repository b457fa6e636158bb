"""Why an all-to-all is no faster: whose blocks load what limits, what comes next, what helps.

The lengths that prove the optimum (`alltoall.fold`) price every block: amount times distance.
All prices together are the optimum's time, so a rank's share of them is what its blocks cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from forestcoll.common.errors import UnsupportedError
from forestcoll.solver.alltoall.demand import Demand
from forestcoll.solver.alltoall.flows import Optimum, solve
from forestcoll.solver.alltoall.fold import distances
from forestcoll.solver.alltoall.spread import Boxes, Twice, boxes_of, spread, twice_uniform, waits
from forestcoll.study.explain.trees import (
    NEAR,
    Line,
    Progress,
    Raised,
    parts_of,
    raise_kinds,
    take_over,
    widen,
)

MOST_VARIABLES = 40_000
"""Sources times links up to which links are raised: each step of that is an optimum."""
MOST_SETS = 20_000
"""Parts of the machine times ranks up to which cuts round them are counted."""


class Share(NamedTuple):
    """Ranks (their numbers) whose blocks cost the same, and what those of one of them cost.

    `of_all`: of the optimum's time.
    """

    ranks: tuple[int, ...]
    of_all: Fraction


class Cut(NamedTuple):
    """What leaves a set of nodes (or enters it): GB/s of algbw that nothing beats."""

    nodes: frozenset[int]
    leaves: bool
    algbw: Fraction


class Static(NamedTuple):
    """The static plan between boxes (`alltoall.spread`) for the matrix.

    `nanoseconds`: until the last link is done. `waits`: per rank, when the last of what it sends or
    takes in is through, and the link (its number) that this waits for.
    """

    boxes: Boxes
    nanoseconds: Fraction
    waits: tuple[tuple[Fraction, int], ...]


class Exchange(NamedTuple):
    """Shares of senders and of receivers, the largest first; cuts within 5 %; wider links.

    `static`: for a matrix, the static plan, or why there is none; `twice`: that of two uniform
    all-to-alls, which any fabric has. `small`: links were raised.
    """

    best: Optimum
    senders: tuple[Share, ...]
    receivers: tuple[Share, ...]
    near: tuple[Cut, ...]
    raised: tuple[Raised[Optimum], ...]
    small: bool
    static: Static | str | None
    twice: Twice | None = None


def explain_exchange(best: Optimum, progress: Progress | None = None) -> Exchange:
    """The explanation of an all-to-all's or all-to-all-v's optimum."""
    demand, graph = best.demand, best.demand.graph
    limiting = [e for e, length in enumerate(best.lengths) if length]
    small = len(best.folding.sources) * len(graph.tail) <= MOST_VARIABLES

    def grow(links: tuple[int, ...]) -> Raised[Optimum]:
        def at(factor: Fraction) -> tuple[Fraction, Optimum]:
            wider = solve(replace(best.demand, graph=widen(graph, links, factor)))
            return wider.algbw, wider

        def line(other: Optimum) -> Line:
            """What the lengths prove: length that the links have, over what blocks need of it."""
            need, still, growing = Fraction(0), Fraction(0), Fraction(0)
            for e, length in enumerate(other.lengths):
                need += length * other.demand.graph.bandwidth(e) / other.algbw
                here = length * graph.bandwidth(e)
                still, growing = (still, growing + here) if e in own else (still + here, growing)
            return still / need, growing / need

        own = set(links)
        return take_over(links, best, best.algbw, at, line)

    raised: tuple[Raised[Optimum], ...] = ()
    if small:
        raised = raise_kinds(graph, limiting, grow, progress)
    static: Static | str | None = None
    twice = None
    if demand.matrix is not None and small:
        even = solve(replace(demand, matrix=None))
        twice = twice_uniform(even, demand.matrix)
        try:
            static = Static(boxes_of(graph), *waits(spread(even), demand.matrix))
        except UnsupportedError as error:
            static = str(error)
    senders, receivers = (_shares(best, into=into) for into in (False, True))
    return Exchange(best, senders, receivers, tuple(_near(best)), raised, small, static, twice)


def _shares(best: Optimum, *, into: bool) -> tuple[Share, ...]:
    """What the blocks of each sender, or each receiver, cost; ranks that symmetry makes alike have
    one entry, as have those that cost the same."""
    demand, graph = best.demand, best.demand.graph
    near: list[list[tuple[int, int]]] = [[] for _ in range(graph.n)]
    for u, v, length in graph.along(best.lengths):
        near[v if into else u].append((u if into else v, length))
    cost = {}
    for node in best.folding.sources:
        far = distances(near, node, demand.nodes_to_avoid(node))
        amounts = demand.amounts(node).tolist()
        if into and demand.matrix is not None:  # else it is the same both ways
            column = graph.ranks.index(node)
            for v, row in zip(graph.ranks, demand.matrix, strict=True):
                amounts[v] = 0 if v == node else row[column]
        cost[node] = sum(amount * far[v] for v, amount in enumerate(amounts) if amount)
    home = {best.folding.node[node]: node for node in best.folding.sources}
    groups: dict[int, list[int]] = defaultdict(list)
    for number, v in enumerate(graph.ranks):
        groups[cost[home[best.folding.node[v]]]].append(number)
    total = sum(worth * len(ranks) for worth, ranks in groups.items())
    return tuple(
        Share(tuple(groups[worth]), Fraction(worth, total))
        for worth in sorted(groups, reverse=True)
    )


def _near(best: Optimum) -> Iterator[Cut]:
    """Cuts round parts of the machine that allow at most NEAR times the optimum, tightest first.

    Those whose links are the limiting ones themselves are left out.
    """
    demand, graph = best.demand, best.demand.graph
    parts = list(parts_of(graph))
    if len(parts) * len(graph.ranks) > MOST_SETS and demand.matrix is not None:
        parts = [part for part in parts if len(part) > 1]
    limiting = {e for e, length in enumerate(best.lengths) if length}
    cuts = []
    for number, part in enumerate(parts):
        inside = [v in part for v in range(graph.n)]
        for leaves in (True, False):
            links = {
                e
                for e, (u, v) in enumerate(graph.ends)
                if inside[u] != inside[v] and inside[u] == leaves
            }
            needed = _across(demand, inside, leaves)
            if not needed or links <= limiting:
                continue
            room = sum(graph.capacity[e] for e in links)
            algbw = Fraction(room, needed) * graph.unit * demand.scale
            if algbw <= NEAR * best.algbw:
                cuts.append((algbw, number, Cut(part, leaves, algbw)))
    yield from (cut for _, _, cut in sorted(cuts, key=lambda entry: entry[:2]))


def _across(demand: Demand, inside: Sequence[bool], leaves: bool) -> int:
    """Units that ranks inside send to those outside, or the other way."""
    ranks = demand.graph.ranks
    near = [number for number, v in enumerate(ranks) if inside[v]]
    far = [number for number, v in enumerate(ranks) if not inside[v]]
    if demand.matrix is not None:
        rows, columns = (near, far) if leaves else (far, near)
        return sum(demand.matrix[i][j] for i in rows for j in columns)
    if not demand.groups:
        return len(near) * len(far)
    chosen = set(near)
    return sum(
        demand.scale // len(group) * len(chosen & set(group)) * len(set(group) - chosen)
        for group in demand.groups
    )
