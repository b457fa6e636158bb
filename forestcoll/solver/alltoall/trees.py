"""Cheapest trees from all sources at once, under prices of links; in floating point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forestcoll.solver.alltoall.demand import Demand
from forestcoll.solver.alltoall.fold import Folding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

HALVINGS = 12
"""Of the interval in which the length of a step is looked for."""


def step_length(use: Floats, other: Floats, steepness: float) -> float:
    """How far to go from one set of loads to the other until the softened maximum is least."""
    import numpy as np

    low, high, change = 0.0, 1.0, other - use
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        there = use + middle * change
        weight = np.exp(steepness * (there - there.max()) / use.max())
        if float(weight @ change) > 0:
            high = middle
        else:
            low = middle
    return low


class CheapestTrees:
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
        far, loads = self.each(price)
        return far, self.average(self.images @ loads)

    def average(self, loads: Floats) -> Floats:
        """Per link the average over its orbit."""
        import numpy as np

        return (np.bincount(self.orbit, weights=loads) / self.sizes)[self.orbit]

    def each(self, price: Floats) -> tuple[Floats, Floats]:
        """(per source the distance of each node, per source and link what its own tree carries)."""
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
        held, load = self.amounts.copy(), np.zeros((count, len(cost)))
        outermost = np.argsort(-far, axis=1, kind="stable")
        for k in range(self.n - 1):
            v = outermost[:, k]
            link, amount = parent[rows, v], held[rows, v]
            load[rows, link] += amount
            held[rows, self.from_[link]] += amount
        given = np.empty_like(load)
        given[:, self.order] = load
        return far, given
