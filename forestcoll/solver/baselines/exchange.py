"""Exchanges in rounds of MPI's libraries: halving and doubling, Bruck's, and all to all at once.

In each round every rank hands on all that it has: a block's way is a binomial tree. Which distance
comes first decides what crosses between boxes: far first sends there what is still little. (Thakur,
Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", 2005; Bruck et
al., "Efficient Algorithms for All-to-All Communications in Multiport Message-Passing Systems",
1997.)

Trees of few hops: two binary ones that share the data, and the lowest single one.

Whoever is inside one of the two is a leaf of the other, as far as the number of ranks allows
(Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast", 2009).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    if extra and problem.collective.has_parts:
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
    """Everybody to everybody in one round: every rank's part straight to all others.

    From the next one on: so not all begin with the same one.
    """
    ranks = problem.ranks
    shapes = [
        (root, 1, [(root, rank) for rank in (*ranks[k + 1 :], *ranks[:k])])
        for k, root in enumerate(ranks)
        if root in problem.roots
    ]
    yield problem.forest("direct", shapes)


def double(problem: Problem) -> Iterator[Forest]:
    """Two binary trees over all ranks, in their order."""
    order = [rank for box in boxes_of(problem.graph) for rank in box]
    first = problem.roots[0] if problem.collective.has_root else None
    yield problem.forest("double-tree", [(r, 1, edges) for r, edges in two_trees(order, first)])


def two_trees(
    order: Sequence[int], first: int | None = None, turn: int = 0
) -> list[tuple[int, list[tuple[int, int]]]]:
    """(root, edges) of two binary trees over these ranks, half of which are leaves of each.

    The second tree is the first one with everybody moved up by one place. `first`: the root of
    both, by one hop more. `turn`: everybody is moved up by so many places in both.
    """
    if first is None:
        return _two(order, turn)
    others = [rank for rank in order if rank != first]
    if not others:
        return [(first, [])]
    return [(first, [(first, top), *edges]) for top, edges in _two(others, turn)]


def _two(order: Sequence[int], turn: int) -> list[tuple[int, list[tuple[int, int]]]]:
    n, steps = len(order), []
    parents = _binary(n)
    for move in (turn, turn + 1):
        place = [order[(k + move) % n] for k in range(n)]
        edges = [(place[p], place[k]) for k, p in enumerate(parents) if p >= 0]
        steps.append((place[parents.index(-1)], edges))
    return steps


def _binary(n: int) -> list[int]:
    """Parents in a binary tree in which every second place is a leaf; -1: the root."""
    parents = [-1] * n

    def plant(low: int, high: int, parent: int) -> None:
        """The places of [low, high); every second one is a leaf."""
        if low >= high:
            return
        size = 1
        while 2 * size <= high - low:
            size *= 2
        middle = low + size - 1 if high - low > 1 else low
        parents[middle] = parent
        plant(low, middle, middle)
        plant(middle + 1, high, middle)

    plant(0, n, -1)
    return parents


def lowest(problem: Problem) -> Iterator[Forest]:
    """One tree of the fewest hops, from the rank that makes it lowest."""
    near: dict[int, list[int]] = {u: [] for u in problem.ranks}
    for u, v in problem.ways:
        if (v, u) in problem.ways:
            near[u].append(v)
    _, root, edges = min(
        (_spanning(root, near) for root in problem.roots), key=lambda entry: entry[0]
    )
    if len(edges) < len(problem.ranks) - 1:
        raise UnsupportedError("the links that go both ways make no tree through all ranks")
    yield problem.forest("tree", [(root, 1, edges)])


def _spanning(
    root: int, near: dict[int, list[int]]
) -> tuple[tuple[int, int], int, list[tuple[int, int]]]:
    """((ranks not reached, height), root, edges) of the breadth-first tree."""
    depth, edges = {root: 0}, []
    for u in (queue := [root]):
        for v in near[u]:
            if v not in depth:
                depth[v] = depth[u] + 1
                edges.append((u, v))
                queue.append(v)
    return (len(near) - len(depth), max(depth.values())), root, edges
