"""Column generation: flows and lengths within a millionth of each other where nothing is alike.

A source's flow is a mixture of trees. Prices of links follow the load of the cheapest trees under
the prices before (Frank and Wolfe's method on the softened maximum of the loads); the trees of the
last rounds are columns of a small program that mixes them, a row a source and a row an orbit of
links. Its duals are new prices; what is cheaper under these are further columns, until the mixture
reaches what the prices prove. The solver goes on each time from the vertex where it stopped.

Floating point proposes. Shares of a mixture are rounded so that they add up, lengths to whole
numbers: flows and lengths are then right as they stand, whatever they prove. They are not one
number, as an optimum of hundreds of uneven links has a denominator of hundreds of digits.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from forestcoll.solver.alltoall.demand import Demand
from forestcoll.solver.alltoall.fold import Folding
from forestcoll.solver.alltoall.lengths import bound
from forestcoll.solver.alltoall.trees import CheapestTrees, step_length

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from forestcoll.solver.alltoall.trees import Floats

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
        found = program.solve(pool.columns)
        if found is None:
            return None
        worst, shares, prices = found
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

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from ortools.linear_solver import pywraplp
        self.folding = folding
        self.solver = pywraplp.Solver.CreateSolver("GLOP")
        self.solver.SetSolverSpecificParametersAsString(
            "use_preprocessing: false use_scaling: false"
        )
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
            price = trees.average(price)
            _, each = trees.each(price)
            other = trees.average(trees.images @ each)
            load += step_length(use, other / capacity, steepness) * (other - load)
            if number >= ROUNDS - KEPT:
                self.add(each)
            if number % EVERY == EVERY - 1:
                steepness *= STEEPER

    def lengths(self, prices: Floats) -> tuple[int, ...]:
        """Prices as whole numbers, without a common factor."""
        largest = float(prices.max())
        found = [round(price / largest * PARTS) for price in prices.tolist()]
        common = math.gcd(*found)
        return tuple(length // common for length in found)

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
        return Fraction(int(most * 10**DIGITS * self._grain(most)), 10**DIGITS * self._grain(most))

    @staticmethod
    def _grain(rate: Fraction) -> int:
        """A power of ten by which small rates count."""
        grain = 1
        while rate * grain < 1:
            grain *= 10
        return grain
