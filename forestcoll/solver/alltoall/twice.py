"""Twice uniform: a static plan for blocks of any size, on any fabric.

Every rank cuts all that it sends in as many equal shares as there are ranks, and sends each rank
one of them; then every rank delivers what it holds (Valiant's two phases). Both are all-to-alls of
equal blocks, over the same routes whatever the sizes, so nothing is solved per call:

    time <= (largest sum of a row + largest sum of a column) / algbw of equal blocks

with what stays at its rank left out. No static plan is much better for all matrices at once: the
even matrix with such rows alone takes half of that.

A process group carries it out as two calls of a plan of equal blocks: the first with the largest
row's share as block, padded, the second with the largest column's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from forestcoll.common.errors import UnsupportedError
from forestcoll.solver.alltoall.flows import Optimum


@dataclass(frozen=True, slots=True)
class Twice:
    """Nanoseconds that spreading and delivering take at most, one after the other.

    `shares`: bytes of a block in each of the two, exact (a call rounds up).
    """

    spreading: Fraction
    delivering: Fraction
    shares: tuple[Fraction, Fraction]

    @property
    def nanoseconds(self) -> Fraction:
        """Both."""
        return self.spreading + self.delivering


def twice_uniform(even: Optimum, matrix: Sequence[Sequence[int]]) -> Twice:
    """What two all-to-alls of equal blocks take for `matrix` (bytes from rank to rank).

    `even`: the optimum of equal blocks among the same ranks; routes of whole units take longer by
    what they stay below it. Raises UnsupportedError where it is one of a matrix or of groups.
    """
    if even.demand.matrix is not None or even.demand.groups:
        raise UnsupportedError("twice uniform takes the optimum of equal blocks among all ranks")
    n = len(even.demand.graph.ranks)
    rows = [sum(amount for j, amount in enumerate(row) if j != i) for i, row in enumerate(matrix)]
    columns = [sum(matrix[i][j] for i in range(n) if i != j) for j in range(n)]
    shares = Fraction(max(rows), n), Fraction(max(columns), n)
    return Twice(shares[0] / even.theta, shares[1] / even.theta, shares)
