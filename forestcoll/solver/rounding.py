"""Rounding: the trees of a forest with new whole weights, so that chunks divide the sizes in use.

An optimum may ask for 13 units per root, and a plan of it serves multiples of 13 chunks: no power
of two. The same trees with weights that add up to a power of two are nearly as good: each tree
gains or loses about one unit at most, and which trees gain is free.

The weights are an integer program: minimise the largest load / bandwidth of a link; weights are
whole, and those of a root and phase have a given sum. It is solved by largest remainders and tabu
search: as long as a link carries more than it may, one unit moves from a tree over that link to
another tree of the same root. What comes out is counted anew by `Forest.plain_algbw`.

A reduce tree and a broadcast tree that carry the same chunks of an allreduce keep doing so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from forestcoll.graph.capacity_graph import CAPACITY_LIMIT
from forestcoll.program.sizes import is_power
from forestcoll.schedule.forest import Forest, Tree
from forestcoll.solver.shares import apportion

NEAR = Fraction(995, 1000)
"""Share of the goal's optimum that is looked for first, as long as units are FEW."""
FEW = 64
"""Units per root up to which NEAR is worth more of them."""
MOVES = 600
"""Units moved at most in one search."""
PAIRS = 256
"""Moves that are compared at most for one overloaded link."""
TENURE = 8
"""Moves for which a unit may not go back to where it came from."""
CELLS = 2**25
"""Columns times links up to which a forest is rounded."""

Ints = npt.NDArray[np.int64]


def count_parts(forest: Forest) -> int:
    """The parts of the data that have units of their own; 1 where shares of roots may change."""
    return sum(forest.graph.parts) if forest.collective.has_parts or forest.graph.shares else 1


def round_to_power(forest: Forest, best: Fraction, least: Fraction, most: int) -> Forest | None:
    """The forest with a power of two of units, or None where none is fast enough.

    `most`: units at most, of all roots together. `least` (GB/s) is what it has to reach; NEAR times
    `best` is preferred where FEW units per root are enough for it.
    """
    parts = count_parts(forest)
    roots = forest.n if parts == 1 and not forest.collective.has_root else 1
    start = (roots - 1).bit_length()
    limit = (most // parts).bit_length()
    table = cache(partial(_table, forest))
    for wanted, powers in (
        (max(least, NEAR * best), range(start, min(limit, (FEW * roots).bit_length()))),
        (least, range(start, limit)),
    ):
        for power in powers:
            rounded = round_weights(forest, 1 << power, wanted, table)
            if rounded is not None:
                return rounded
    return None


def round_weights(
    forest: Forest, units: int, algbw: Fraction, table: Callable[[], _Table] | None = None
) -> Forest | None:
    """The forest with `units` units of weight per root, or None where `algbw` (GB/s) is not found.

    For allreduce, broadcast and reduce `units` are those of the whole data; the roots of an
    allreduce then have shares of their own, unless they are given. `algbw` is that of
    `plain_algbw`: GPUs copy and add. Parts of different size, shares that add up to no power of
    two, compact forests and very large ones are not rounded.
    `table`: the forest's, where several numbers of units are tried.
    """
    graph, parts = forest.graph, count_parts(forest)
    if graph.shares and (forest.collective.has_parts or not is_power(parts)):
        return None
    if forest.group is not None or algbw > forest.plain_algbw:
        return None
    if len(forest.trees) * len(graph.tail) > CELLS:
        return None
    total = units * parts
    caps = [int(c * graph.unit * total // algbw) for c in graph.capacity]
    if max(caps) >= CAPACITY_LIMIT // 2:
        return None
    columns, crossings = (table or partial(_table, forest))()
    weights = _Search(columns, crossings, total, caps).run()
    if weights is None:
        return None
    of_tree = {t: w for column, w in zip(columns, weights, strict=True) for t in column.trees}
    trees = tuple(replace(t, weight=of_tree[i]) for i, t in enumerate(forest.trees) if of_tree[i])
    rounded = replace(forest, trees=trees, total=total)
    if rounded.plain_algbw < algbw:
        raise RuntimeError("internal error: rounded weights load a link more than was counted")
    return rounded


@dataclass(frozen=True, slots=True)
class _Column:
    """Trees that have one weight: one, or a reduce and a broadcast tree of a root."""

    trees: tuple[int, ...]
    weight: int
    group: tuple[int, str]  # root node, and the phase or "both"; units move within a group


_Table = tuple[list[_Column], Ints]


def _columns(trees: Sequence[Tree]) -> list[_Column]:
    """Pairs of mirror images, then pairs of equal weight, then what is left alone."""
    reduce = [i for i, t in enumerate(trees) if t.phase == "reduce"]
    broadcast = [i for i, t in enumerate(trees) if t.phase == "broadcast"]
    pairs = []
    for alike in (lambda t: (t.root, t.weight, frozenset(t.edges)), lambda t: (t.root, t.weight)):
        partner: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for i in reversed(broadcast):
            partner[alike(trees[i])].append(i)
        alone = []
        for i in reduce:
            images = partner[alike(trees[i].reverse())]
            if images:
                pairs.append((i, images.pop()))
            else:
                alone.append(i)
        reduce = alone
        taken = {b for _, b in pairs}
        broadcast = [i for i in broadcast if i not in taken]
    columns = [
        _Column(pair, trees[pair[0]].weight, (trees[pair[0]].root, "both")) for pair in pairs
    ]
    for i in (*reduce, *broadcast):
        columns.append(_Column((i,), trees[i].weight, (trees[i].root, trees[i].phase)))
    return columns


class _Search:
    """Weights of the columns such that link e carries at most `caps[e]` units."""

    def __init__(
        self, columns: Sequence[_Column], crossings: Ints, total: int, caps: Sequence[int]
    ) -> None:
        self.caps = np.array(caps, dtype=np.int64)
        self.columns = columns
        self.groups: dict[tuple[int, str], list[int]] = defaultdict(list)
        for i, column in enumerate(columns):
            self.groups[column.group].append(i)
        self.crossings = crossings
        self.most = int(self.crossings.max())  # that one unit adds to a link
        self.weights = self._first(total)
        self.loads: Ints = np.array(self.weights, dtype=np.int64) @ self.crossings

    def run(self) -> list[int] | None:
        """The weights, or None where the search does not find any."""
        if self._hopeless():
            return None
        scale = np.maximum(1, self.caps)
        tabu: dict[tuple[int, int], int] = {}  # (from, to) -> move before which it is not made
        for move in range(MOVES):
            excess = self.loads - self.caps
            if excess.max() <= 0:
                return self.weights
            worst = int((excess / scale).argmax())
            pairs = [pair for pair in self._pairs(worst) if tabu.get(pair, 0) <= move]
            if not pairs:
                return None
            source, sink = self._best(pairs)
            self.weights[source] -= 1
            self.weights[sink] += 1
            self.loads += self.crossings[sink] - self.crossings[source]
            tabu[sink, source] = move + TENURE
        return None

    def _hopeless(self) -> bool:
        """Whether some group's columns could not hold its units, were they alone on the links."""
        with np.errstate(divide="ignore"):
            alone = np.where(self.crossings > 0, self.caps // self.crossings, CAPACITY_LIMIT)
        most = alone.min(axis=1)
        return any(
            sum(min(int(most[i]), CAPACITY_LIMIT) for i in own) < sum(self.weights[i] for i in own)
            for own in self.groups.values()
        )

    def _pairs(self, link: int) -> list[tuple[int, int]]:
        """(from, to): moves of a unit that take load from the link."""
        over = self.crossings[:, link]
        pairs = [
            (source, sink)
            for source in np.flatnonzero(over).tolist()
            if self.weights[source]
            for sink in self.groups[self.columns[source].group]
            if over[sink] < over[source]
        ]
        return pairs[:: -(-len(pairs) // PAIRS)] if pairs else []

    def _best(self, pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """The move after which all links together are over their caps by the least."""
        sources, sinks = (list(side) for side in zip(*pairs, strict=True))
        excess = self.loads - self.caps
        near = np.flatnonzero(excess >= -self.most)  # the others have room
        moved = self.crossings.take(sinks, 0) - self.crossings.take(sources, 0)
        over = np.maximum(0, moved.take(near, 1) + excess[near])
        return pairs[int(over.sum(axis=1).argmin())]

    def _first(self, total: int) -> list[int]:
        """Weights by largest remainders: of the roots' shares, of their groups, of the columns."""
        weight = {g: sum(self.columns[i].weight for i in own) for g, own in self.groups.items()}
        roots = list(dict.fromkeys(root for root, _ in self.groups))
        kinds = {r: [k for k in ("both", "broadcast", "reduce") if (r, k) in weight] for r in roots}
        # the phases of a root are alike: what is not paired has the same sum in both
        owned = [
            [weight[r, k] for k in kinds[r] if k != "reduce" or len(kinds[r]) == 1] for r in roots
        ]
        weights = [0] * len(self.columns)
        for place, (root, share) in enumerate(
            zip(roots, apportion([sum(o) for o in owned], total), strict=True)
        ):
            parts = apportion(owned[place], share)
            for kind, part in zip(kinds[root], [*parts, *parts[-1:]], strict=False):
                members = self.groups[root, kind]
                first = place % len(members)  # ties go to another tree for each root
                order = members[first:] + members[:first]
                amounts = [self.columns[i].weight for i in order]
                for i, units in zip(order, apportion(amounts, part), strict=True):
                    weights[i] = units
        return weights


def _table(forest: Forest) -> _Table:
    """The columns, and per column and link how often a unit of the column crosses the link."""
    columns, number = _columns(forest.trees), forest.graph.numbers
    counts = np.zeros((len(columns), len(number)), dtype=np.int64)
    for row, column in zip(counts, columns, strict=True):
        for path in (path for i in column.trees for path in forest.trees[i].edges):
            for hop in pairwise(path):
                row[number[hop]] += 1
    return columns, counts
