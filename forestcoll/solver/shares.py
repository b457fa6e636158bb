"""Ranks whose parts of the data differ (allgatherv, reduce-scatterv): what callers may say of them.

A part of 0 makes a rank that only receives; one that alone has a part makes a broadcast of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from forestcoll.common.errors import TopologyError, did_you_mean
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.topology.globs import matcher

T = TypeVar("T")

LARGEST = 2**40
"""A single part may not be larger: sums of parts, times capacities, stay exact in 64 bits."""


def with_shares(
    graph: CapacityGraph, shares: Sequence[int | str] | None, even: bool = False
) -> CapacityGraph:
    """`graph` whose ranks have these parts, divided by what they have in common.

    Either one amount a rank, in rank order (3, 1, 0, 2), or `id=amount` for every rank, where a
    glob stands for all ranks that it matches and a later entry goes before an earlier one ("*=1",
    "box0/gpu0=4"). Equal parts, or None, give a graph without parts of its own; with `even` equal
    ones are parts, too: an allreduce's ranks sum equally much then, which else is its own choice.
    Raises `TopologyError` with the entry that is wrong, and the nearest rank.
    """
    if not shares:
        return replace(graph, shares=())
    if any(isinstance(entry, str) and "=" in entry for entry in shares):
        parts = _read_named(graph, shares)
    else:
        parts = [_amount(entry, entry) for entry in shares]
        if len(parts) != len(graph.ranks):
            raise TopologyError(
                f"shares: {len(parts)} amounts for {len(graph.ranks)} ranks; give one a rank, in "
                "rank order, or id=amount"
            )
    common = math.gcd(*parts)
    if not common:
        raise TopologyError("shares: all parts are 0, so there is nothing to send")
    parts = [part // common for part in parts]
    return replace(graph, shares=tuple(parts) if even or max(parts) > min(parts) else ())


def _read_named(graph: CapacityGraph, entries: Sequence[int | str]) -> list[int]:
    """The parts of all ranks that `id=amount` entries give."""
    names = graph.rank_names
    amounts: dict[str, int] = {}
    for entry in entries:
        pattern, equals, text = str(entry).rpartition("=")
        pattern = pattern.strip()
        if not equals or not pattern:
            raise TopologyError(
                f"shares: '{entry}' stands among entries of the form id=amount; give either one "
                "amount a rank, or id=amount for all"
            )
        matches = [pattern] if pattern in names else [*filter(matcher(pattern), names)]
        if not matches:
            hint = did_you_mean(pattern, names[:5_000])
            raise TopologyError(f"shares: no rank is called or matches '{pattern}'{hint}")
        amounts.update(dict.fromkeys(matches, _amount(text, entry)))
    missing = [name for name in names if name not in amounts]
    if missing:
        raise TopologyError(
            f"shares: no part is given for rank '{missing[0]}'"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + "; start with '*=0' where the others have none"
        )
    return [amounts[name] for name in names]


def _amount(value: int | str, entry: int | str) -> int:
    text = str(value).strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise TopologyError(f"shares: '{entry}' has no whole number from 0 for its part")
    if int(text) > LARGEST:
        raise TopologyError(f"shares: {text} is more than {LARGEST}; divide all parts by something")
    return int(text)


def apportion(amounts: Sequence[int] | Sequence[Fraction], total: int) -> list[int]:
    """Whole numbers that add up to `total`, in proportion to `amounts`: largest remainders."""
    whole = sum(amounts) or 1
    parts = [int(amount * total // whole) for amount in amounts]
    left = sorted(range(len(parts)), key=lambda i: -(amounts[i] * total % whole))
    for i in left[: total - sum(parts)]:
        parts[i] += 1
    return parts


def slices(ways: Sequence[list[tuple[T, int]]], units: int) -> Iterator[tuple[tuple[T, ...], int]]:
    """(a thing of each of the ways, how many units have these) for as many units in all.

    `ways`: things and the units that have them, one after the other.
    """
    queues = [iter(way) for way in ways]
    heads = [next(queue) for queue in queues]
    while True:
        weight = min([amount for _, amount in heads])
        yield tuple([thing for thing, _ in heads]), weight
        units -= weight
        if not units:
            return
        heads = [
            (thing, amount - weight) if amount > weight else next(queue)
            for (thing, amount), queue in zip(heads, queues, strict=True)
        ]
