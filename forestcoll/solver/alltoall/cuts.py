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

from forestcoll.common.errors import ForestError
from forestcoll.solver.alltoall.demand import Demand
from forestcoll.solver.alltoall.fold import Folding
from forestcoll.solver.alltoall.lengths import bound, whole
from forestcoll.solver.alltoall.trees import CheapestTrees, step_length

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from forestcoll.solver.alltoall.demand import Array
    from forestcoll.solver.alltoall.trees import Floats

    Cut = tuple[float, NDArray[np.bool_]]  # (rate, per link whether it leaves the cut)

ROUNDS = 32
"""Times that trees are found and prices follow."""
SWEPT = 16
"""Of these rounds every so many is swept for cuts."""
STEEPNESS = 10.0
"""Prices are exp(STEEPNESS * (load / room)), the largest being 1, over the capacity."""
FLOOR = 1e-9
"""Price of an empty link beside that of the fullest."""
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

    trees = CheapestTrees(demand, folding)
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
        load += step_length(use, other / capacity, STEEPNESS) * (other - load)
        if number % SWEPT == SWEPT - 1:
            for order in _orders(trees, far):
                best = _sweep(trees, capacity, amounts, order, best)
    if best is None or proven < (1 - NEAR) * best[0]:
        return None
    crossing = np.bincount(folding.link, weights=best[1], minlength=len(folding.sizes))
    shares = [Fraction(round(c), s) for c, s in zip(crossing, folding.sizes, strict=True)]
    lengths = whole(shares)
    return tuple(lengths[orbit] for orbit in folding.link.tolist())


def _orders(trees: CheapestTrees, far: Floats) -> Iterator[Array]:
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
    trees: CheapestTrees, capacity: Floats, amounts: Floats, order: Array, best: Cut | None
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
