"""Who has each part of a result first, as the sum over all ranks: there an epilogue belongs.

What is done to every element once (a scale, a bias, an optimizer's step) goes between the phases of
a collective: after the last addition, before anybody copies its sum. That takes a program in which
each sum becomes whole in one place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

from forestcoll.common.errors import UnsupportedError
from forestcoll.verify.dataflow import Completion, Dataflow


def owners(flow: Dataflow) -> dict[int, Fraction]:
    """By rank what share of the sums becomes whole there, and nowhere else.

    Raises UnsupportedError where some do at several ranks, or in a switch.
    """
    sums = (value for value in flow.values if value.complete and len(value.made_from) > 1)
    return _cover(flow, ((v.start, v.length, v.rank) for v in sums))


def completions(flow: Dataflow) -> tuple[Completion, ...]:
    """The instructions behind whose last addition an epilogue goes: once to each element.

    Raises UnsupportedError where the same sum becomes whole twice, at several ranks or at one.
    """
    _cover(flow, ((c.start, c.length, c.place[0]) for c in flow.completions))
    return flow.completions


def _cover(flow: Dataflow, parts: Iterable[tuple[int, int, int]]) -> dict[int, Fraction]:
    """The share of each rank where parts (start, length, rank) cover all data, each once."""
    if flow.in_switches:
        raise UnsupportedError("a switch makes sums, and hands them on at once")
    end, before, shares = 0, -1, Counter[int]()
    for start, length, rank in sorted(parts):
        if start < end:
            where = f"twice at rank {rank}" if rank == before else "at several ranks"
            raise UnsupportedError(f"the same sums are made {where}")
        end, before = start + length, rank
        shares[rank] += length
    if sum(shares.values()) != flow.units:
        raise UnsupportedError("some of the result is no sum that a rank makes")
    return {rank: Fraction(length, flow.units) for rank, length in sorted(shares.items())}
