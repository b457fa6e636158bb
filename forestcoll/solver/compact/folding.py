"""Quotient of a packing: from all ranks of a part to one of each orbit, with equal link loads.

A part's own symmetry brings every tree of an orbit's ranks to its representative. All of them in
equal measure fill the links as evenly as before; but a representative has room for its own units
only. What matters of a tree is how much of each orbit of links it takes: trees with the same use
are one class, and whole numbers of units of each class are looked for, first in proportion and
rounded, then with one class traded for another as long as overfull orbits get emptier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
Use = tuple[tuple[int, int], ...]
"""(orbit of links, how often it is taken), sorted."""

WORK = 50_000
"""Exchanges of one class for another that are looked at, at most: some tenths of a second."""


@dataclass(frozen=True, slots=True)
class Pool(Generic[T]):
    """Things to choose from, (thing, use, units at hand); `wanted` units are needed."""

    items: Sequence[tuple[T, Use, int]]
    wanted: int


def choose_units(
    pools: Sequence[Pool[T]], room: Mapping[int, int]
) -> list[list[tuple[T, int]]] | None:
    """Per pool (thing, units), `wanted` in all; no orbit takes more than `room`. None if not found.

    A thing may be taken more often than it is at hand: only the use counts.
    """
    classes = [_classes(pool.items) for pool in pools]
    units = [
        _in_proportion([at_hand for _, _, at_hand in found], pool.wanted)
        for found, pool in zip(classes, pools, strict=True)
    ]
    if not _trade(classes, units, room):
        return None
    return [
        [(thing, count) for (thing, _, _), count in zip(found, counts, strict=True) if count]
        for found, counts in zip(classes, units, strict=True)
    ]


def use_of(orbits: Iterable[int]) -> Use:
    """The use of a tree whose edges run over links of these orbits."""
    times: dict[int, int] = defaultdict(int)
    for orbit in orbits:
        times[orbit] += 1
    return tuple(sorted(times.items()))


def _classes(items: Sequence[tuple[T, Use, int]]) -> list[tuple[T, Use, int]]:
    """One thing of each use, that with the most units, and the units of all of them."""
    best: dict[Use, tuple[T, int]] = {}
    total: dict[Use, int] = defaultdict(int)
    for thing, use, units in items:
        total[use] += units
        if use not in best or units > best[use][1]:
            best[use] = (thing, units)
    return [(thing, use, total[use]) for use, (thing, _) in best.items()]


def _in_proportion(at_hand: Sequence[int], wanted: int) -> list[int]:
    """`wanted`, divided as `at_hand` is; largest remainders are rounded up."""
    whole = sum(at_hand)
    units = [wanted * part // whole for part in at_hand]
    order = sorted(range(len(at_hand)), key=lambda i: (-(wanted * at_hand[i] % whole), i))
    for i in order[: wanted - sum(units)]:
        units[i] += 1
    return units


def _trade(
    classes: Sequence[Sequence[tuple[T, Use, int]]],
    units: list[list[int]],
    room: Mapping[int, int],
) -> bool:
    """Trades units of one class for another until all fits; whether it does."""
    left = defaultdict(int, room)
    for found, counts in zip(classes, units, strict=True):
        for (_, use, _), count in zip(found, counts, strict=True):
            for orbit, times in use:
                left[orbit] -= times * count
    pairs = sum(len(found) ** 2 for found in classes)
    for _ in range(1 + WORK // pairs):
        if all(spare >= 0 for spare in left.values()):
            return True
        best = None
        for pool, (found, counts) in enumerate(zip(classes, units, strict=True)):
            for i, (_, given, _) in enumerate(found):
                if not counts[i]:
                    continue
                for j, (_, taken, _) in enumerate(found):
                    gain = _gain(left, given, taken)
                    if gain > 0 and (best is None or gain > best[0]):
                        best = (gain, pool, i, j)
        if best is None:
            return False
        _, pool, i, j = best
        units[pool][i] -= 1
        units[pool][j] += 1
        for orbit, times in classes[pool][i][1]:
            left[orbit] += times
        for orbit, times in classes[pool][j][1]:
            left[orbit] -= times
    return False


def _gain(left: Mapping[int, int], given: Use, taken: Use) -> int:
    """How much less overfull orbits are when a unit of one use makes place for one of another."""
    change: dict[int, int] = dict(given)
    for orbit, times in taken:
        change[orbit] = change.get(orbit, 0) - times
    return sum(
        min(left.get(orbit, 0) + times, 0) - min(left.get(orbit, 0), 0)
        for orbit, times in change.items()
    )
