"""Rates by known cuts: which numbers of trees per root can reach an algbw, many at once.

At `algbw` k trees per root take U = roots * k * unit / algbw units of time, in which link e carries
floor(U b(e)) of them. A cut asks for as many as have to leave it; so does any sum of cuts and
balances, such as the dual of a linear program. No flow is needed to see that a k cannot do it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from forestcoll.graph.capacity_graph import CapacityGraph

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[Any]  # int64, or Python's integers where those could overflow

CELLS = 2**19
"""Numbers (k times different bandwidths) that a test of many k at once holds in memory."""


class Rates:
    """How many trees links carry at an algbw, for many k at once, against what cuts ask for."""

    def __init__(self, graph: CapacityGraph, roots: int) -> None:
        self._graph = graph
        self._roots = roots
        self._bandwidths = sorted(set(graph.capacity))
        self._column = {c: i for i, c in enumerate(self._bandwidths)}
        self._cuts: dict[_Cut, int] = {}  # cut -> how many k it has refused
        self._heaviest = 1  # the largest sum of weights of a cut

    def add(self, roots: int, worth: Mapping[int, Fraction | int]) -> None:
        """k trees per root ask for sum of `worth` * trees over links >= `roots` * k.

        `worth`: per capacity, that of all links that have it, together.
        """
        weights = {self._column[c]: Fraction(z) for c, z in worth.items() if z}
        cut = _Cut.of(roots, weights)
        self._cuts.setdefault(cut, 0)
        self._heaviest = max(self._heaviest, cut.roots, sum(cut.weights))

    def hopeful(self, trees: Sequence[int], algbw: Fraction, strict: bool) -> Sequence[int]:
        """Those of `trees` that no known cut keeps from `algbw` GB/s (`strict`: from more)."""
        import numpy as np

        left: list[int] = []
        size = max(1, CELLS // len(self._bandwidths))
        for start in range(0, len(trees), size):
            some = trees[start : start + size]
            floors = self._floors(some, algbw, strict)
            ks = np.array(some, dtype=floors.dtype)
            for cut in sorted(self._cuts, key=lambda cut: -self._cuts[cut]):
                weights = np.array(cut.weights, dtype=floors.dtype)
                keep = floors[:, cut.columns] @ weights >= ks * cut.roots
                if not keep.all():
                    self._cuts[cut] += int((~keep).sum())
                    floors, ks = floors[keep], ks[keep]
            left += (int(k) for k in ks)
        return left

    def capacity(self, trees: int, algbw: Fraction, strict: bool) -> list[int]:
        """Per link how many trees it carries at that algbw."""
        by_bandwidth = self._floors([trees], algbw, strict)[0]
        return [int(by_bandwidth[self._column[c]]) for c in self._graph.capacity]

    def _floors(self, trees: Sequence[int], algbw: Fraction, strict: bool) -> Numbers:
        """Per k and different bandwidth how many trees a link carries at that algbw.

        `strict`: at an algbw that is larger by next to nothing.
        """
        import numpy as np

        u = self._roots * self._graph.unit / algbw  # for one tree per root
        p, q = u.as_integer_ratio()
        whole, rest = zip(*(divmod(p * c, q) for c in self._bandwidths), strict=True)
        largest = max(trees, default=0) * max(q, (max(whole) + 1) * self._heaviest)
        kind: type[np.int64] | type[object] = np.int64 if largest < 2**62 else object
        k = np.array(trees, dtype=kind)[:, None]
        floors: Numbers = (
            k * np.array(whole, dtype=kind)
            + (k * np.array(rest, dtype=kind) - (1 if strict else 0)) // q
        )
        return floors


@dataclass(frozen=True, slots=True)
class _Cut:
    """k trees per root ask for sum of `weights` * trees over links of `columns` >= `roots` * k."""

    roots: int
    columns: tuple[int, ...]  # positions among the different bandwidths
    weights: tuple[int, ...]

    @staticmethod
    def of(roots: int, weights: Mapping[int, Fraction]) -> _Cut:
        """The same in whole numbers."""
        common = math.lcm(*(w.denominator for w in weights.values()))
        pairs = sorted((i, int(w * common)) for i, w in weights.items())
        return _Cut(roots * common, tuple(i for i, _ in pairs), tuple(w for _, w in pairs))


def by_capacity(graph: CapacityGraph, worth: Sequence[Fraction]) -> dict[int, Fraction]:
    """What links are worth, those of equal capacity together: the same k trees fit on each."""
    found: dict[int, Fraction] = defaultdict(Fraction)
    for c, z in zip(graph.capacity, worth, strict=True):
        if z:
            found[c] += z
    return found
