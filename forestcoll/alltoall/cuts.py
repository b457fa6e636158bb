"""Sparse cuts: a bound on the rate before any program is solved, by sweeps over distances.

Prices of links rise with the load of the cheapest trees under the prices before (Frank and Wolfe's
method on the softened maximum of the loads). Where a cut limits, its links become dear, and the
nodes in order of their distance from a source fall apart there. The best of all such cuts bounds
the rate; whether it is the optimum is for the program to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from forestcoll.alltoall.demand import Demand
from forestcoll.alltoall.fold import Folding
from forestcoll.alltoall.lengths import bound, whole
from forestcoll.errors import ForestError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from forestcoll.alltoall.demand import Array

    Floats = NDArray[np.float64]
    Cut = tuple[float, NDArray[np.bool_]]  # (rate, per link whether it leaves the cut)

ROUNDS = 32
"""Times that trees are found and prices follow."""
SWEPT = 16
"""Of these rounds every so many is swept for cuts."""
STEEPNESS = 10.0
"""Prices are exp(STEEPNESS * (load / room)), the largest being 1, over the capacity."""
FLOOR = 1e-9
"""Price of an empty link beside that of the fullest."""
HALVINGS = 12
"""Of the interval in which the length of a step is looked for."""
NEAR = 1e-9
"""Rates are equal where they differ by less, as a share."""
MOST_NODES = 1024
"""Sweeps take (nodes)^3 steps."""


def sparse_cut(demand: Demand, folding: Folding) -> tuple[Fraction, tuple[int, ...]] | None:
    """(rate that nothing beats, lengths that prove it).

    None where no sweep finds a cut, or where prices prove that none that was found is the optimum.

    Lengths are 1 on the links that leave a set of nodes; where symmetries move that set, the
    average over its images.
    """
    if demand.closed or demand.graph.n > MOST_NODES:
        return None
    lengths = _sweeps(demand, folding)
    if lengths is None:
        return None
    try:
        return bound(demand, folding, lengths), lengths
    except ForestError:  # what goes through the cut has another way for free
        return None


def _sweeps(demand: Demand, folding: Folding) -> tuple[int, ...] | None:
    import numpy as np

    trees = _Trees(demand, folding)
    capacity = np.asarray(demand.graph.capacity, dtype=np.float64)
    ranks = list(demand.graph.ranks)
    amounts = np.zeros((demand.graph.n, demand.graph.n))
    for source in ranks:
        amounts[source] = demand.amounts(source)
    best: Cut | None = None
    proven = np.inf
    _, load = trees.grow(1 / capacity)
    for number in range(ROUNDS):
        use = load / capacity
        price = (np.exp(STEEPNESS * (use / use.max() - 1)) + FLOOR) / capacity
        far, other = trees.grow(price)
        proven = min(proven, trees.bound(price, capacity, far))
        load += _step(use, other / capacity) * (other - load)
        if number % SWEPT == SWEPT - 1:
            for order in _orders(trees, far):
                best = _sweep(trees, capacity, amounts, order, best)
    if best is None or proven < (1 - NEAR) * best[0]:
        return None
    crossing = np.bincount(folding.link, weights=best[1], minlength=len(folding.sizes))
    shares = [Fraction(round(c), s) for c, s in zip(crossing, folding.sizes, strict=True)]
    lengths = whole(shares)
    return tuple(lengths[orbit] for orbit in folding.link.tolist())


def _step(use: Floats, other: Floats) -> float:
    """How far to go from one set of loads to the other until the softened maximum is least."""
    import numpy as np

    low, high, change = 0.0, 1.0, other - use
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        there = use + middle * change
        weight = np.exp(STEEPNESS * (there - there.max()) / use.max())
        if float(weight @ change) > 0:
            high = middle
        else:
            low = middle
    return low


def _orders(trees: _Trees, far: Floats) -> Iterator[Array]:
    """Nodes by their distance from a source, and by how much nearer they are to it than to another:
    on a torus balls come out of the one and slabs out of the other."""
    import numpy as np

    far = np.where(np.isinf(far), far[np.isfinite(far)].max() + 1, far)
    row = {int(source): i for i, source in enumerate(trees.sources)}
    yield from np.argsort(far, axis=1, kind="stable")
    for u, v in zip(trees.tail.tolist(), trees.head.tolist(), strict=True):
        if u in row and v in row:
            yield np.argsort(far[row[u]] - far[row[v]], kind="stable")


def _sweep(
    trees: _Trees, capacity: Floats, amounts: Floats, order: Array, best: Cut | None
) -> Cut | None:
    """The best cut before, or a better one round the first k nodes of an order."""
    import numpy as np

    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    last = np.maximum.outer(place, place).ravel()
    inside = np.cumsum(np.bincount(last, weights=amounts.ravel()))
    for axis in (1, 0):  # out of the first k nodes, and into them
        ends = place[trees.tail], place[trees.head]
        a, b = ends if axis else ends[::-1]
        out = _crossing(a, b, capacity, len(order))
        # what the first k send to the others: all they send less what stays among them
        through = (np.cumsum(amounts.sum(axis=axis)[order]) - inside)[:-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.where(through > 0, out / through, np.inf)
        k = int(rate.argmin())
        if through[k] > 0 and (best is None or rate[k] < best[0]):
            best = float(rate[k]), (a <= k) & (b > k)
    return best


def _crossing(a: Array, b: Array, capacity: Floats, n: int) -> Floats:
    """Capacity of the links from the first k nodes to the others, for k = 1 to n - 1."""
    import numpy as np

    on = a < b
    steps = np.zeros(n)
    steps += np.bincount(a[on], weights=capacity[on], minlength=n)
    steps -= np.bincount(b[on], weights=capacity[on], minlength=n)
    return np.cumsum(steps)[:-1]


class _Trees:
    """Cheapest trees from all sources of a folding at once."""

    def __init__(self, demand: Demand, folding: Folding) -> None:
        import numpy as np

        graph = demand.graph
        self.n = graph.n
        self.tail, self.head = np.asarray(graph.tail), np.asarray(graph.head)
        self.order = np.argsort(self.head, kind="stable")
        self.from_, into = self.tail[self.order], self.head[self.order]
        self.first = np.flatnonzero(np.r_[True, into[1:] != into[:-1]])
        self.nodes = into[self.first]
        self.links = np.diff(np.r_[self.first, len(into)])
        self.sources = np.asarray(folding.sources)
        self.images = np.asarray(folding.images, dtype=np.float64)
        self.amounts = np.stack([demand.amounts(s) for s in folding.sources]).astype(np.float64)
        self.orbit, self.sizes = folding.link, np.asarray(folding.sizes, dtype=np.float64)

    def bound(self, price: Floats, capacity: Floats, far: Floats) -> float:
        """The rate that the prices, taken for lengths, prove (see `lengths`)."""
        ranks = self.amounts > 0
        need = (self.images[:, None] * self.amounts)[ranks] @ far[ranks]
        return float(price @ capacity / need)

    def grow(self, price: Floats) -> tuple[Floats, Floats]:
        """(per source the distance of each node, per link what all trees together carry).

        Loads are those of all images of the sources, averaged over the links of an orbit.
        """
        import numpy as np

        cost, count = price[self.order], len(self.sources)
        rows = np.arange(count)
        far = np.full((count, self.n), np.inf)
        far[rows, self.sources] = 0
        while True:
            over = far[:, self.from_] + cost
            least = np.minimum.reduceat(over, self.first, axis=1)
            nearer = np.minimum(far[:, self.nodes], least)
            if np.array_equal(nearer, far[:, self.nodes]):
                break
            far[:, self.nodes] = nearer
        tight = over <= np.repeat(least, self.links, axis=1)
        number = np.where(tight, np.arange(len(cost)), len(cost))
        parent = np.zeros((count, self.n), dtype=np.int64)
        parent[:, self.nodes] = np.minimum.reduceat(number, self.first, axis=1)
        held, load = self.amounts.copy(), np.zeros(len(cost))
        outermost = np.argsort(-far, axis=1, kind="stable")
        for k in range(self.n - 1):
            v = outermost[:, k]
            link, amount = parent[rows, v], held[rows, v]
            np.add.at(load, link, self.images * amount)
            held[rows, self.from_[link]] += amount
        given = np.empty_like(load)
        given[self.order] = load
        return far, (np.bincount(self.orbit, weights=given) / self.sizes)[self.orbit]
