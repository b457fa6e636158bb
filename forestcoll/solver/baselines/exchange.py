"""Exchanges in rounds of MPI's libraries: halving and doubling, Bruck's, and all to all at once.

In each round every rank hands on all that it has: a block's way is a binomial tree. Which distance
comes first decides what crosses between boxes: far first sends there what is still little. (Thakur,
Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", 2005; Bruck et
al., "Efficient Algorithms for All-to-All Communications in Multiport Message-Passing Systems",
1997.)
"""

from __future__ import annotations

from collections.abc import Iterator

from forestcoll.common.errors import UnsupportedError
from forestcoll.schedule.forest import Forest
from forestcoll.solver.baselines.order import boxes_of
from forestcoll.solver.baselines.shapes import Problem


def halving_doubling(problem: Problem) -> Iterator[Forest]:
    """Recursive halving for sums, recursive doubling for copies: log2(n) rounds of pairs.

    Where another number of ranks than a power of two shares one buffer, the odd ones are first
    folded into their neighbours, and are given the result at last.
    """
    order = [rank for box in boxes_of(problem.graph) for rank in box]
    n, power = len(order), 1 << (len(order).bit_length() - 1)
    extra = n - power
    if extra and problem.collective.dealt:
        raise UnsupportedError(f"{n} ranks are no power of two, which halving and doubling needs")
    folded = [(order[2 * k], order[2 * k + 1]) for k in range(extra)]
    active = [order[2 * k] for k in range(extra)] + order[2 * extra :]
    bits = [1 << k for k in range(power.bit_length() - 1)]
    for name, rounds in (("far first", bits[::-1]), ("near first", bits)):
        shapes = []
        for place, root in enumerate(active):
            edges, held = [], [place]
            for bit in rounds:
                edges += [(active[h], active[h ^ bit]) for h in held]
                held += [h ^ bit for h in held]
            shapes.append((root, 1, [*edges, *folded]))
        yield problem.forest(f"halving-doubling, {name}", shapes)


def bruck(problem: Problem) -> Iterator[Forest]:
    """Bruck's rounds: to the rank 1, 2, 4, ... further on, for any number of ranks."""
    order = [rank for box in boxes_of(problem.graph) for rank in box]
    n = len(order)
    for name in ("far first", "near first"):
        shapes = []
        for place, root in enumerate(order):
            edges = []
            for offset in range(1, n):
                last = offset & -offset if name == "far first" else 1 << (offset.bit_length() - 1)
                parent = offset - last
                edges.append((order[(place + parent) % n], order[(place + offset) % n]))
            shapes.append((root, 1, edges))
        yield problem.forest(f"bruck, {name}", shapes)


def direct(problem: Problem) -> Iterator[Forest]:
    """Everybody to everybody in one round: every rank's part straight to all others."""
    shapes = [
        (root, 1, [(root, rank) for rank in _after(problem.ranks, root)]) for root in problem.roots
    ]
    yield problem.forest("direct", shapes)


def _after(ranks: tuple[int, ...], root: int) -> tuple[int, ...]:
    """All other ranks, from the next one on: so not all begin with the same one."""
    place = ranks.index(root)
    return ranks[place + 1 :] + ranks[:place]
