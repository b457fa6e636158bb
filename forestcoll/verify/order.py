"""In which order a program adds up, for every part of its result.

Sums of floating-point numbers depend on their order: two plans give the same bits if, and only if,
their expressions are the same. (Which of two summands comes first makes no difference.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from forestcoll.common.errors import UnsupportedError
from forestcoll.common.text_file import digest
from forestcoll.schedule.forest import Forest
from forestcoll.verify.dataflow import Dataflow


class Sum(NamedTuple):
    """A part of the collective's whole data, from `start` to `end` (0 to 1), and its sum.

    `expression`: "((0+1)+2)", of ranks. `ranks`: those whose output has it so.
    """

    start: Fraction
    end: Fraction
    expression: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """The sums of a result, by their start.

    `digest`: SHA-256 of all, the same for all plans that add up alike, however they are cut.
    """

    sums: tuple[Sum, ...]
    digest: str

    @property
    def is_alike(self) -> bool:
        """Whether every rank that has a part has the same bits."""
        return all(one.end <= other.start for one, other in pairwise(self.sums))


def check_told(flow: Dataflow) -> None:
    """UnsupportedError where the file does not tell in which order its program adds up."""
    if flow.in_switches:
        raise UnsupportedError("a switch adds up, in an order of its own")
    if flow.reordered:
        raise UnsupportedError("a rank adds up the same data in two orders")


def reduction_order(flow: Dataflow) -> Order:
    """The order in which the program of `flow` adds up.

    UnsupportedError: the file does not tell it. A switch does it, or some rank adds the same up in
    two orders, and the flow, which takes them for one value, has only one of them.
    """
    check_told(flow)
    expressions: list[tuple[str, int]] = []  # text, its smallest rank
    for value in flow.values:
        if not value.made_from:
            expressions.append((str(value.rank), value.rank))
        elif len(value.made_from) == 1:
            expressions.append(expressions[value.made_from[0]])
        else:
            one, other = sorted((expressions[k] for k in value.made_from), key=lambda e: e[1])
            expressions.append((f"({one[0]}+{other[0]})", one[1]))
    holders: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    for rank, output in enumerate(flow.outputs):
        for k in output:
            value = flow.values[k]
            holders[value.start, value.start + value.length, expressions[k][0]].append(rank)
    rows = sorted((text, tuple(ranks), start, end) for (start, end, text), ranks in holders.items())
    sums: list[Sum] = []
    for text, ranks, start, end in rows:  # what adjoins and is added up alike is one part
        begin = Fraction(start, flow.units)
        if sums and sums[-1][1:] == (begin, text, ranks):
            begin = sums.pop().start
        sums.append(Sum(begin, Fraction(end, flow.units), text, ranks))
    sums.sort()
    return Order(tuple(sums), _digest(sums))


def digest_of(forest: Forest) -> str:
    """The digest of the order of any plan of a forest that prescribes its sums."""
    collective = forest.collective
    everyone = (forest.root,) if collective.has_root else tuple(range(forest.n))
    holders = [(rank,) for rank in everyone] if collective.output_is_part else [everyone]
    n = len(holders)
    return _digest(
        Sum(Fraction(k, n), Fraction(k + 1, n), forest.sums, own) for k, own in enumerate(holders)
    )


def _digest(sums: Iterable[Sum]) -> str:
    return digest("".join(f"{s.start} {s.end} {s.expression} {s.ranks}\n" for s in sums))
