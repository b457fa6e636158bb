"""Balanced sub-capacities of large fabrics: one variable for all links that are alike.

The linear program of `task` has an optimum that symmetries keep: the mean of all images of one. So
links of an orbit have one variable, and the row for the switches of an orbit is the sum of theirs.
Cuts are looked for in the quotient whose cells have as many links of each orbit to each cell.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CAPACITY_LIMIT, CapacityGraph
from forestcoll.graph.kernel import _kernel
from forestcoll.graph.symmetry.group import find_orbits
from forestcoll.graph.symmetry.quotient import divide, find_cells, find_rotations, sums
from forestcoll.program import Collective
from forestcoll.schedule.dual import as_bound
from forestcoll.schedule.forest import Bound, Symmetry
from forestcoll.schedule.group import GroupsBound, WeighedCut
from forestcoll.solver.flows import exact_lp
from forestcoll.solver.flows.model import MISSED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.int64]

LARGE = 8
"""What algbw is worth beside the mean of what links carry: they keep what others do not need."""


class Folded:
    """The program of one phase: allgather (root None), or broadcast from rank `root`.

    `sinks`: a rank (node) of each orbit.
    """

    def __init__(self, graph: CapacityGraph, root: int | None) -> None:
        import numpy as np

        self.graph = graph
        self.source = None if root is None else graph.ranks[root]
        self.total = sum(graph.parts) if root is None else 1
        self.maps = find_rotations(graph, self.source)
        _, self.node, alike = find_orbits(graph, self.maps)
        first, self.orbit = np.unique(alike, return_inverse=True)  # the variable of each link
        self.upper = [graph.capacity[e] for e in first.tolist()]
        self.sinks: list[int] = np.unique(self.node[list(graph.ranks)]).tolist()
        self.ends = np.asarray(graph.tail), np.asarray(graph.head)
        self.cell = find_cells(self.along(self.orbit + 1), self.sinks)

    def along(self, values: Array) -> CapacityGraph:
        """The graph with these capacities."""
        return replace(self.graph, capacity=tuple(values.tolist()))

    def solve(
        self, cut: frozenset[int], able: bool = False
    ) -> tuple[Fraction, Bound, list[int], int]:
        """(GB/s, what proves them, what each link carries, how much of that is a unit of capacity).

        `cut`: one to begin with. `able`: switches that copy may send more than they receive.
        """
        import numpy as np

        algbw, scale = len(self.upper), max(self.upper)
        cuts, pool, balances = [cut], [self.row(cut)], self.balances()
        balanced = [not (able and self.graph.multicast[v]) for v in balances]
        rows = [exact_lp.Row(*row) for row in zip(balances.values(), balanced, strict=True)]
        worth = [*np.bincount(self.orbit).tolist(), LARGE * len(self.orbit)]
        program = exact_lp.Program([*self.upper, None], worth, rows)

        def separate(values: exact_lp.Values, rough: bool) -> list[dict[int, int]]:
            least = values[algbw] * self.total / 2**MISSED if rough else 0
            fresh: list[dict[int, int]] = []
            for side in self.find_cuts(values, rough):
                row = self.row(side)
                missed = -sum(a * values[j] for j, a in row.items())
                if missed > least and row not in pool + fresh:
                    cuts.append(side)
                    fresh.append(row)
            return fresh

        def confirm(values: exact_lp.Values, rough: bool) -> list[dict[int, int]]:
            return [] if rough or values[algbw] == carried[algbw] else separate(values, rough)

        carried = exact_lp.solve_by_cuts(program, pool, separate, scale).primal
        program.cost = [0] * algbw + [1]
        best = exact_lp.solve_by_cuts(program, pool, confirm, scale)
        if carried[algbw] != best.value:
            carried = best.primal
        prices = dict(zip(balances, best.dual, strict=False))
        weighed = zip(cuts, best.dual[len(rows) :], strict=True)
        proof = GroupsBound(
            best.value * self.graph.unit,
            tuple(WeighedCut(0, "broadcast", side, y * self.total) for side, y in weighed if y),
            tuple((0, "broadcast", v, prices[w]) for v, w in enumerate(self.node) if w in prices),
            tuple(Symmetry((*image, self.graph.n)) for image in self.maps),
        )
        collective = Collective.ALLGATHER if self.source is None else Collective.BROADCAST
        common, units = exact_lp.whole(carried)
        taken = [units[j] for j in self.orbit.tolist()]
        bound = as_bound(self.graph, proof, collective)
        if any(p < 0 and self.graph.multicast[v] for v, p in bound.potentials):
            bound = self.solve(cut, able=True)[1]
        return proof.algbw, bound, taken, common

    def balances(self) -> dict[int, dict[int, int]]:
        """Per orbit of switches what leaves them less what enters them."""
        import numpy as np

        count, ranks = len(self.upper), set(self.graph.ranks)
        keys = [self.node[ends] * count + self.orbit for ends in self.ends]
        signs = np.repeat((1, -1), len(self.orbit))
        rows: dict[int, dict[int, int]] = defaultdict(dict)
        for key, amount in np.stack(sums(np.concatenate(keys), signs), axis=1).tolist():
            v, j = divmod(key, count)
            if amount and v not in ranks:
                rows[v][j] = amount
        return rows

    def row(self, side: frozenset[int]) -> dict[int, int]:
        """What leaves, times all parts, less the algbw times the parts inside."""
        import numpy as np

        inside = np.zeros(self.graph.n, dtype=bool)
        inside[list(side)] = True
        out = np.bincount(self.orbit[inside[self.ends[0]] & ~inside[self.ends[1]]])
        held = 1 if self.source is not None else self.graph.parts_in(side)
        row = {j: self.total * count for j, count in enumerate(out.tolist()) if count}
        return row | {len(self.upper): -held}

    def find_cuts(self, values: exact_lp.Values, rough: bool) -> Iterator[frozenset[int]]:
        """Per sink a cut that misses most; in `rough` of values rounded down."""
        import numpy as np

        whole = [*values[:-1], values[-1] / self.total]
        most = CAPACITY_LIMIT // (4 * sum(self.graph.capacity))
        fine = most if rough else exact_lp.whole(whole)[0]
        if fine > most:
            raise UnsupportedError("the optimum's fractions are too long for 64-bit flows")
        *units, rate = [int(value * fine) for value in whole]
        cells = divide(self.along(np.asarray(units)[self.orbit]), self.sinks, self.cell)
        supply = cells.parts * rate
        if self.source is not None:
            supply = rate * (np.arange(len(supply)) == self.cell[self.source])
        for sink in cells.sinks:
            cut = _kernel.violated(*cells.links, supply.tolist(), [sink])
            if cut is not None:
                yield frozenset(np.flatnonzero(np.isin(self.cell, cut[1])).tolist())
