"""Who has each part of a result first, as the sum over all ranks: there an epilogue belongs.

What is done to every element once (a scale, a bias, an optimizer's step) goes between the phases of
a collective: after the last addition, before anybody copies its sum. That takes a program in which
each sum becomes whole in one place.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from forestcoll.common.errors import UnsupportedError
from forestcoll.verify.dataflow import Dataflow


def owners(flow: Dataflow) -> dict[int, Fraction]:
    """By rank what share of the sums becomes whole there, and nowhere else.

    Raises UnsupportedError where some do twice, at several ranks or at one, or in a switch.
    """
    if flow.in_switches:
        raise UnsupportedError("a switch makes sums, and hands them on at once")
    end, before, shares = 0, -1, Counter[int]()
    for start, length, rank in sorted((s, k, place[0]) for place, s, k in flow.completions):
        if start < end:
            where = f"twice at rank {rank}" if rank == before else "at several ranks"
            raise UnsupportedError(f"the same sums are made {where}")
        end, before = start + length, rank
        shares[rank] += length
    if shares.total() != flow.units:
        raise UnsupportedError("some of the result is no sum that a rank makes")
    return {rank: Fraction(length, flow.units) for rank, length in sorted(shares.items())}
