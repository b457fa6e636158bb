"""Column generation: flows and lengths within a millionth of each other where nothing is alike.

A source's flow is a mixture of trees. Prices of links follow the load of the cheapest trees under
the prices before (Frank and Wolfe's method on the softened maximum of the loads); the trees of the
last rounds are columns of a small program that mixes them, a row a source and a row an orbit of
links. Its duals are new prices; what is cheaper under these are further columns, until the mixture
reaches what the prices prove. The solver goes on each time from the vertex where it stopped.

Floating point proposes. Shares of a mixture are rounded so that they add up, lengths to whole
numbers: flows and lengths are then right as they stand, whatever they prove. They are not one
number, as an optimum of hundreds of uneven links has a denominator of hundreds of digits.

Cheapest trees from all sources at once, under prices of links; in floating point.

Sparse cuts: a bound on the rate before any program is solved, by sweeps over distances.

Prices of links rise with the load of the cheapest trees under the prices before (Frank and Wolfe's
method on the softened maximum of the loads). Where a cut limits, its links become dear, and the
nodes in order of their distance from a source fall apart there. The best of all such cuts bounds
the rate; whether it is the optimum is for the program to say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from forestcoll.common.errors import ForestError
from forestcoll.solver.alltoall.demand import Demand
from forestcoll.solver.alltoall.fold import Folding, bound, whole
from forestcoll.solver.flows.exact_lp import glop

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from forestcoll.solver.alltoall.demand import Array

    Cut = tuple[float, NDArray[np.bool_]]  # (rate, per link whether it leaves the cut)
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
        """The rate that the prices, taken for lengths, prove (see `fold.bound`)."""
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


ROUNDS = 240
"""Times that trees are found and prices follow."""
KEPT = 15
"""The last of these, whose trees are columns."""
STEEP, STEEPER, EVERY = 12.0, 1.18, 20
"""Prices are exp(steepness * (load / room)), the largest being 1; it grows every so many rounds."""
FLOOR = -18.0
"""The least exponent: prices so far apart still add up in floating point."""
MIXTURES = 60
"""Times at most that the small program is solved; links that are few take some 25."""
NEAR = 1e-6
"""The gap, as a share, at which it is enough."""
PARTS = 2**30
"""Parts of a mixture; lengths go up to as many too."""
DIGITS = 9
"""Of the rate, which is rounded down."""


@dataclass(frozen=True, slots=True)
class Mixed:
    """`rate` that the flows reach (per source, links with what they carry), and what `lengths`
    prove, in units of capacity for a unit of demand."""

    rate: Fraction
    flows: tuple[dict[int, Fraction], ...]
    lengths: tuple[int, ...]
    proven: Fraction


def mix(demand: Demand, folding: Folding) -> Mixed | None:
    """Flows and lengths near each other; None where no program could be solved."""
    import numpy as np

    pool = _Pool(demand, folding)
    pool.approach()
    program = _Program(folding, pool.capacity)
    best: Floats | None = None
    least = math.inf
    shares: list[float] = []
    for _ in range(MIXTURES):
        solution = program.solve(pool.columns)
        if solution is None:
            return None
        worst, shares, prices = solution
        # where links are free, distances would tie, and trees be none
        far, trees = pool.trees.each(np.maximum(prices, prices.max() / PARTS))
        pool.add(trees)
        proven = pool.trees.bound(prices, pool.capacity, far)
        if proven < least:
            best, least = prices, proven
        if least * worst <= 1 + NEAR:
            break
    if best is None:
        return None
    lengths = pool.lengths(best)
    rate, flows = pool.flows(shares)
    return Mixed(rate, flows, lengths, bound(demand, folding, lengths))


class _Program:
    """The small program: rows are shares of each orbit's bandwidth, in one unit, so that numbers
    are near 1 without the solver's scaling, which would make it begin anew."""

    def __init__(self, folding: Folding, capacity: Floats) -> None:
        import numpy as np

        self.folding = folding
        self.solver = glop("use_preprocessing: false use_scaling: false")
        self.infinity = self.solver.infinity()
        count = len(folding.sizes)
        self.room = np.bincount(folding.link, weights=capacity, minlength=count)
        self.worst = self.solver.NumVar(0, self.infinity, "")
        self.rows = [self.solver.Constraint(-self.infinity, 0) for _ in range(count)]
        for row in self.rows:
            row.SetCoefficient(self.worst, -1)
        self.whole = [self.solver.Constraint(1, 1) for _ in folding.sources]
        self.solver.Objective().SetCoefficient(self.worst, 1)
        self.solver.Objective().SetMinimization()
        self.shares: list[Any] = []
        self.unit = 0.0

    def solve(
        self, columns: Sequence[tuple[int, Floats]]
    ) -> tuple[float, list[float], Floats] | None:
        """(the fullest orbit's use for a unit of demand, share of each column, prices of links).

        `columns`: (source, loads of links), those of the last time first. None: not solved.
        """
        import numpy as np

        orbits, count = self.folding.link, len(self.room)
        for source, loads in columns[len(self.shares) :]:
            share = self.solver.NumVar(0, self.infinity, "")
            self.shares.append(share)
            self.whole[source].SetCoefficient(share, 1)
            images = float(self.folding.images[source])
            use = images * np.bincount(orbits, weights=loads, minlength=count) / self.room
            self.unit = self.unit or float(use.max()) * len(self.whole) / count
            for orbit in np.flatnonzero(use).tolist():
                self.rows[orbit].SetCoefficient(share, float(use[orbit]) / self.unit)
        if self.solver.Solve() != self.solver.OPTIMAL:
            return None
        dual = np.array([max(0.0, -row.dual_value()) for row in self.rows])
        shares = [share.solution_value() for share in self.shares]
        return self.worst.solution_value() * self.unit, shares, (dual / self.room)[orbits]


class _Pool:
    """Trees of each source; `columns` are (source, loads of links), none twice."""

    def __init__(self, demand: Demand, folding: Folding) -> None:
        import numpy as np

        self.trees = CheapestTrees(demand, folding)
        self.graph, self.folding = demand.graph, folding
        self.capacity = np.asarray(demand.graph.capacity, dtype=np.float64)
        self.columns: list[tuple[int, NDArray[np.float64]]] = []
        self._seen: set[tuple[int, bytes]] = set()

    def add(self, trees: Floats) -> None:
        """The trees of a round, those that are new."""
        for source, loads in enumerate(trees):
            key = source, loads.tobytes()
            if key not in self._seen:
                self._seen.add(key)
                self.columns.append((source, loads.copy()))

    def approach(self) -> None:
        """Make the trees under prices near the optimum's columns."""
        import numpy as np

        trees, capacity, steepness = self.trees, self.capacity, STEEP
        _, load = trees.grow(1 / capacity)
        for number in range(ROUNDS):
            use = load / capacity
            price = np.exp(np.maximum(FLOOR, steepness * (use / use.max() - 1))) / capacity
            _, each = trees.each(trees.average(price))
            other = trees.average(trees.images @ each)
            load += step_length(use, other / capacity, steepness) * (other - load)
            if number >= ROUNDS - KEPT:
                self.add(each)
            if number % EVERY == EVERY - 1:
                steepness *= STEEPER

    def lengths(self, prices: Floats) -> tuple[int, ...]:
        """Prices as whole numbers, without a common factor."""
        largest = float(prices.max())
        return tuple(whole([Fraction(round(p / largest * PARTS)) for p in prices.tolist()]))

    def flows(self, shares: list[float]) -> tuple[Fraction, tuple[dict[int, Fraction], ...]]:
        """(rate, per source what each link carries), from shares that are made to add up."""
        parts = [max(0, round(share * PARTS)) for share in shares]
        mixed: list[dict[int, int]] = [{} for _ in self.folding.sources]
        for source, flow in enumerate(mixed):
            mine = [k for k, (of, _) in enumerate(self.columns[: len(parts)]) if of == source]
            largest = max(mine, key=parts.__getitem__)
            parts[largest] += PARTS - sum(parts[k] for k in mine)
            for k in mine:
                loads = self.columns[k][1] if parts[k] else ()
                for e, load in enumerate(loads):
                    if load:
                        flow[e] = flow.get(e, 0) + parts[k] * round(load)
        rate = self._rate(mixed)
        unit = rate / PARTS
        return rate, tuple({e: v * unit for e, v in sorted(flow.items())} for flow in mixed)

    def _rate(self, mixed: list[dict[int, int]]) -> Fraction:
        """The most that the links let by, rounded down."""
        orbits = self.folding.link.tolist()
        load = [0] * len(self.folding.sizes)
        room = [0] * len(self.folding.sizes)
        for e, orbit in enumerate(orbits):
            room[orbit] += self.graph.capacity[e]
        for images, flow in zip(self.folding.images, mixed, strict=True):
            for e, amount in flow.items():
                load[orbits[e]] += images * amount
        most = min(Fraction(r * PARTS, v) for r, v in zip(room, load, strict=True) if v)
        grain = 10**DIGITS
        while most * grain < 10**DIGITS:
            grain *= 10
        return Fraction(int(most * grain), grain)


CUT_ROUNDS = 32
"""Times that trees are found and prices follow."""
SWEPT = 16
"""Of these rounds every so many is swept for cuts."""
STEEPNESS = 10.0
"""Prices are exp(STEEPNESS * (load / room)), the largest being 1, over the capacity."""
CUT_FLOOR = 1e-9
"""Price of an empty link beside that of the fullest."""
CUT_NEAR = 1e-9
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
    for number in range(CUT_ROUNDS):
        use = load / capacity
        price = (np.exp(STEEPNESS * (use / use.max() - 1)) + CUT_FLOOR) / capacity
        far, other = trees.grow(price)
        proven = min(proven, trees.bound(price, capacity, far))
        load += step_length(use, other / capacity, STEEPNESS) * (other - load)
        if number % SWEPT == SWEPT - 1:
            for order in _orders(trees, far):
                best = _sweep(trees, capacity, amounts, order, best)
    if best is None or proven < (1 - CUT_NEAR) * best[0]:
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
