"""How often a plan rounds, and what that may cost.

A sum along a tree is wrong by at most as many roundings as lie on its longest way from an input to
the result, whatever the number of ranks: a ring has one less than ranks, a tree its additions.
"""

from __future__ import annotations

from typing import NamedTuple

from forestcoll.verify.dataflow import Dataflow
from forestcoll.verify.order import check_told

UNITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53, "fp8": 4}
"""A rounding to the type changes a value by at most 2^-this of it."""
FLOOR = 17
"""fp8: or by at most 2^-this of the largest value of its block (elements.hpp: block_top)."""


class Roundings(NamedTuple):
    """At most, on any way from an input to the result.

    `steps`: where every addition rounds; `at_ranks`: where a rank adds up in float32 all that comes
    to it, and rounds what leaves it.
    """

    steps: int
    at_ranks: int


def roundings(flow: Dataflow) -> Roundings:
    """Of the program of `flow`. UnsupportedError: the file does not tell its order."""
    check_told(flow)
    steps: list[int] = []
    exact: list[int] = []  # of the value before it is rounded
    leaving: list[int] = []
    for value in flow.values:
        sources = value.made_from
        adds = len(sources) > 1
        steps.append(adds + max((steps[k] for k in sources), default=0))
        before = exact if adds else leaving
        exact.append(max((before[k] for k in sources), default=0))
        leaving.append(exact[-1] + adds)
    ends = [k for output in flow.outputs for k in output]
    return Roundings(
        max((steps[k] for k in ends), default=0), max((leaving[k] for k in ends), default=0)
    )


class Bound(NamedTuple):
    """An element is wrong by at most `share` of the sum of its summands' magnitudes.

    And, of fp8, by `of_block` of the sum of the largest magnitudes in the blocks that these are in.
    Nothing may overflow, nor fall below the smallest normal number of the wire's type.
    """

    share: float
    of_block: float = 0.0


def error_bound(
    found: Roundings, dtype: str, wire: str, accumulates: bool, average: bool = False
) -> Bound:
    """The bound of sums of `dtype`, sent as `wire`; `average`: divided by the ranks at the end."""
    unit, own = 2.0 ** -UNITS[wire], 2.0 ** -UNITS[dtype]
    steps = (found.at_ranks if accumulates else found.steps) + (unit > own)
    share, of_block = steps * unit, 0.0
    if wire == "fp8":
        share, floor = 0.0, 2.0**-FLOOR
        for _ in range(steps):  # what is rounded next is wrong already
            of_block += unit * of_block + floor * (1 + share + of_block)
            share += unit * (1 + share)
    factor = (1 + own) ** ((own > unit) + average)
    if accumulates:
        factor *= 1 + found.steps * 2.0 ** -UNITS["float32"]
    return Bound((1 + share) * factor - 1, of_block * factor)
