"""Ranks whose parts of the data differ (allgatherv, reduce-scatterv): reading them, and the cut.

With parts a(v), one unit of time at rate x moves x a(v) of the data of rank v to everyone:

    1 / x = max over node sets S, not holding all ranks, of a(S) / bandwidth leaving S

A part of 0 makes a rank that only receives; one that alone has a part makes a broadcast of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from forestcoll.errors import TopologyError, UnsupportedError, did_you_mean
from forestcoll.graph import CapacityGraph
from forestcoll.kernel import _kernel
from forestcoll.topology.globs import matcher

LARGEST = 2**40
"""A single part may not be larger: sums of parts, times capacities, stay exact in 64 bits."""


def with_shares(graph: CapacityGraph, shares: Sequence[int | str] | None) -> CapacityGraph:
    """`graph` whose ranks have these parts, divided by what they have in common.

    Either one amount a rank, in rank order (3, 1, 0, 2), or `id=amount` for every rank, where a
    glob stands for all ranks that it matches and a later entry goes before an earlier one ("*=1",
    "box0/gpu0=4"). Equal parts, or None, give a graph without parts of its own.
    Raises `TopologyError` with the entry that is wrong, and the nearest rank.
    """
    if not shares:
        return replace(graph, shares=())
    if any(isinstance(entry, str) and "=" in entry for entry in shares):
        parts = _named(graph, shares)
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
    return replace(graph, shares=() if max(parts) == min(parts) else tuple(parts))


def _named(graph: CapacityGraph, entries: Sequence[int | str]) -> list[int]:
    """The parts of all ranks that `id=amount` entries give."""
    names = [graph.names[v] for v in graph.ranks]
    found: dict[str, int] = {}
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
        found.update(dict.fromkeys(matches, _amount(text, entry)))
    missing = [name for name in names if name not in found]
    if missing:
        raise TopologyError(
            f"shares: no part is given for rank '{missing[0]}'"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + "; start with '*=0' where the others have none"
        )
    return [found[name] for name in names]


def _amount(value: int | str, entry: int | str) -> int:
    text = str(value).strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise TopologyError(f"shares: '{entry}' has no whole number from 0 for its part")
    if int(text) > LARGEST:
        raise TopologyError(f"shares: {text} is more than {LARGEST}; divide all parts by something")
    return int(text)


def least_ratio(graph: CapacityGraph) -> tuple[Fraction, frozenset[int]]:
    """(capacity leaving S / parts in S, S) at its least, over the S that do not hold all ranks.

    In units of capacity per unit of a part; 0 where a rank with a part cannot reach another rank.
    Discrete Newton as for equal parts: x is possible when every rank can receive all parts, x times
    over, at once; a rank that cannot yields a cut with a smaller ratio, the next x.
    """
    parts, total = graph.parts, sum(graph.parts)
    if sum(graph.capacity) * total >= 2**62:
        raise UnsupportedError(
            f"the links add up to {sum(graph.capacity)} units and the parts to {total}: too many "
            "for exact 64-bit flows (limit 2^62); give parts or bandwidths with fewer digits"
        )
    everything = frozenset(range(graph.n))
    cuts = [everything - {v} for v, part in zip(graph.ranks, parts, strict=True) if part < total]
    entering = [0] * graph.n
    for head, capacity in zip(graph.head, graph.capacity, strict=True):
        entering[head] += capacity
    best, rate = min(
        ((cut, Fraction(entering[min(everything - cut)], graph.held(cut))) for cut in cuts),
        key=lambda pair: pair[1],
    )
    while rate > 0:
        p, q = rate.numerator, rate.denominator
        supply = [0] * graph.n
        for v, part in zip(graph.ranks, parts, strict=True):
            supply[v] = p * part
        capacities = [c * q for c in graph.capacity]
        violation = _kernel.violated(
            graph.n, graph.tail, graph.head, capacities, supply, graph.ranks
        )
        if violation is None:
            break
        best = frozenset(violation[1])
        rate = Fraction(_leaving(graph, best), graph.held(best))
    return rate, best


def _leaving(graph: CapacityGraph, nodes: frozenset[int]) -> int:
    return sum(
        c
        for t, h, c in zip(graph.tail, graph.head, graph.capacity, strict=True)
        if t in nodes and h not in nodes
    )
