"""Units of trees: packed inside a part, sent over the paths of a flow, handed out, and chosen.

Quotient of a packing: from all ranks of a part to one of each orbit, with equal link loads.

A part's own symmetry brings every tree of an orbit's ranks to its representative. All of them in
equal measure fill the links as evenly as before; but a representative has room for its own units
only. What matters of a tree is how much of each orbit of links it takes: trees with the same use
are one class, and whole numbers of units of each class are looked for, first in proportion and
rounded, then with one class traded for another as long as overfull orbits get emptier.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.kernel import _kernel
from forestcoll.schedule.forest import Path, Tree
from forestcoll.solver.packing import pack, rename, trim_to_supply
from forestcoll.solver.shares import apportion

EDGES = 6_000_000
"""Tree edges of all representatives together, at most."""

A = TypeVar("A")
B = TypeVar("B")
Edges = tuple[Path, ...]
Links = dict[tuple[int, int], int]


def pack_inside(
    graph: CapacityGraph, left: Links, supply: Mapping[int, int]
) -> dict[int, list[Tree]] | None:
    """Per rank of `supply` so many trees over links of a part; None where they do not suffice."""
    if len(supply) == 1:
        return {v: [Tree(v, "broadcast", units, ())] for v, units in supply.items()}
    links = {pair: units for pair, units in left.items() if units}
    nodes = sorted({*supply, *(v for pair in links for v in pair)})
    inner = graph.restrict(nodes, links)
    wanted = [supply.get(v, 0) for v in nodes]
    capacity = trim_to_supply(inner, wanted)
    if capacity is None:
        return None
    trees: dict[int, list[Tree]] = {v: [] for v in supply}
    for tree in rename(pack(inner, capacity, wanted), nodes):
        trees[tree.root].append(tree)
    return trees


def split(
    items: Iterable[tuple[A, int]], units: int
) -> tuple[list[tuple[A, int]], list[tuple[A, int]]]:
    """(the first `units` units of `items`, the rest)."""
    first: list[tuple[A, int]] = []
    rest: list[tuple[A, int]] = []
    for item, amount in items:
        taken = min(amount, units)
        units -= taken
        if taken:
            first.append((item, taken))
        if amount > taken:
            rest.append((item, amount - taken))
    return first, rest


def hand_out(
    entered: Iterable[tuple[int, tuple[A, int]]], roots: Sequence[int], each: int
) -> dict[int, list[tuple[A, int]]]:
    """`each` unit for every root: first of what it sends by itself, then of what mates send.

    `entered`: who sends it, what came in, and how many units of it.
    """
    sent: dict[int, list[tuple[A, int]]] = {v: [] for v in roots}
    spare: list[tuple[A, int]] = []
    for root, item in entered:
        sent[root].append(item)
    for v in roots:
        sent[v], rest = split(sent[v], each)
        spare += rest
    for v in roots:
        more, spare = split(spare, each - sum(units for _, units in sent[v]))
        sent[v] += more
    return sent


def height_of(tree: Tree) -> int:
    depth = {tree.root: 0}
    for path in tree.edges:
        depth[path[-1]] = depth[path[0]] + 1
    return max(depth.values())


def walks(
    nodes: int, arcs: Sequence[tuple[int, int, int]], source: int, sink: int
) -> Iterator[tuple[list[int], int]]:
    """(nodes from source to sink, units): a maximum flow as paths, without what goes in circles.

    `arcs`: tail, head, the most that may flow.
    """
    tail, head, limit = zip(*arcs, strict=True)
    flow = _kernel.maximum_flow(nodes, tail, head, limit, source, sink)
    left: dict[int, list[list[int]]] = defaultdict(list)  # node -> [head, units] of its arcs
    for (u, v, _), units in zip(arcs, flow, strict=True):
        if units > 0:
            left[u].append([v, units])

    def take(passed: list[list[int]]) -> int:
        units = min(arc[1] for arc in passed)
        for arc in passed:
            arc[1] -= units
        return units

    while True:
        walk, passed = [source], list[list[int]]()
        while walk[-1] != sink:
            ways = left[walk[-1]]
            while ways and not ways[-1][1]:
                ways.pop()
            if not ways:
                return
            passed.append(ways[-1])
            node = ways[-1][0]
            if node in walk:  # a circle: take it away and go on from where it began
                start = walk.index(node)
                take(passed[start:])
                del walk[start + 1 :], passed[start:]
            else:
                walk.append(node)
        yield walk, take(passed)


T = TypeVar("T")
Use = tuple[tuple[int, int], ...]
"""(orbit of links, how often it is taken), sorted."""

WORK = 50_000
"""Exchanges of one class for another that are looked at, at most: some tenths of a second."""


Pool = tuple[Sequence[tuple[T, Use, int]], int]
"""Things to choose from, (thing, use, units at hand), and how many units are needed."""


def choose_units(
    pools: Sequence[Pool[T]], room: Mapping[int, int]
) -> list[list[tuple[T, int]]] | None:
    """Per pool (thing, units), `wanted` in all; no orbit takes more than `room`. None if not found.

    A thing may be taken more often than it is at hand: only the use counts.
    """
    classes = [_classes(items) for items, _ in pools]
    units = [
        apportion([at_hand for _, _, at_hand in pool], wanted)
        for pool, (_, wanted) in zip(classes, pools, strict=True)
    ]
    if not _trade(classes, units, room):
        return None
    return [
        [(thing, count) for (thing, _, _), count in zip(pool, counts, strict=True) if count]
        for pool, counts in zip(classes, units, strict=True)
    ]


def use_of(orbits: Iterable[int]) -> Use:
    """The use of a tree whose edges run over links of these orbits."""
    return tuple(sorted(Counter(orbits).items()))


def _classes(items: Sequence[tuple[T, Use, int]]) -> list[tuple[T, Use, int]]:
    """One thing of each use, that with the most units, and the units of all of them."""
    best: dict[Use, tuple[T, int]] = {}
    total: dict[Use, int] = defaultdict(int)
    for thing, use, units in items:
        total[use] += units
        if use not in best or units > best[use][1]:
            best[use] = (thing, units)
    return [(thing, use, total[use]) for use, (thing, _) in best.items()]


def _trade(
    classes: Sequence[Sequence[tuple[T, Use, int]]],
    units: list[list[int]],
    room: Mapping[int, int],
) -> bool:
    """Trades units of one class for another until all fits; whether it does."""
    left = defaultdict(int, room)
    for things, counts in zip(classes, units, strict=True):
        for (_, use, _), count in zip(things, counts, strict=True):
            for orbit, times in use:
                left[orbit] -= times * count
    pairs = sum(len(things) ** 2 for things in classes)
    for _ in range(1 + WORK // pairs):
        over = {orbit for orbit, spare in left.items() if spare < 0}
        if not over:
            return True
        best = None
        for pool, (things, counts) in enumerate(zip(classes, units, strict=True)):
            for i, (_, given, _) in enumerate(things):
                if not counts[i] or over.isdisjoint(orbit for orbit, _ in given):
                    continue  # nothing gets emptier
                for j, (_, taken, _) in enumerate(things):
                    gain = _gain(left, given, taken)
                    if gain > 0 and (best is None or gain > best[0]):
                        best = (gain, pool, i, j)
        if best is None:
            return False
        _, pool, i, j = best
        units[pool][i] -= 1
        units[pool][j] += 1
        for orbit, times in classes[pool][i][1]:
            left[orbit] += times
        for orbit, times in classes[pool][j][1]:
            left[orbit] -= times
    return False


def _gain(left: Mapping[int, int], given: Use, taken: Use) -> int:
    """How much less overfull orbits are when a unit of one use makes place for one of another."""
    change: dict[int, int] = dict(given)
    for orbit, times in taken:
        change[orbit] = change.get(orbit, 0) - times
    return sum(
        min(left.get(orbit, 0) + times, 0) - min(left.get(orbit, 0), 0)
        for orbit, times in change.items()
    )
