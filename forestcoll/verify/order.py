"""Whether one event of a trace is certain to come after another."""

from __future__ import annotations

from collections.abc import Iterable

from forestcoll.verify.trace import Trace

_BATCH = 2048


def unordered(trace: Trace, pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those of the `pairs` (a, b), a < b, where no chain of arrows leads from a to b.

    Takes the first events of the pairs in batches; one sweep over the trace hands on, for each
    event, the set of those that lead to it (one bit each of an integer).
    """
    by_first: dict[int, list[int]] = {}
    for a, b in pairs:
        by_first.setdefault(a, []).append(b)
    firsts = sorted(by_first)
    found: list[tuple[int, int]] = []
    for start in range(0, len(firsts), _BATCH):
        batch = firsts[start : start + _BATCH]
        bits = {a: 1 << i for i, a in enumerate(batch)}
        low, high = batch[0], max(max(by_first[a]) for a in batch)
        reach = _sweep(trace, bits, low, high)
        for a in batch:
            found += [(a, b) for b in by_first[a] if not reach[b - low] & bits[a]]
    return found


def _sweep(trace: Trace, bits: dict[int, int], low: int, high: int) -> list[int]:
    """For each event from `low` to `high`: the union of `bits` of it and of all that lead to it."""
    prev, cross = trace.prev, trace.cross
    reach: list[int] = []
    for e in range(low, high + 1):
        p = prev[e]
        mask = reach[p - low] if p >= low else 0
        for c in cross[e]:
            if c >= low:
                mask |= reach[c - low]
        if e in bits:
            mask |= bits[e]
        reach.append(mask)
    return reach
