"""Plans of fewer trees: rivals of a set's plans that the links' estimate cannot tell from them.

More trees have more bandwidth on the links, and the estimate takes them where heights are equal.
But they are more thread blocks and shorter messages, and plans of fewer are often faster in
simulated time. So each plan of a set has one rival: of the same protocol, no higher, with the
fewest trees per root that come near it by the estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from forestcoll.compile.plan_set.estimate import WORTH, Range
from forestcoll.compile.plan_set.settle import MANY, STEP, Time
from forestcoll.compile.plan_set.values import Candidate

PROMISE: Final = 1.025
"""How many times as fast a rival has to be at the first of these sizes, or it is left."""


def contest(
    ranges: Sequence[Range],
    candidates: Sequence[Candidate],
    make: Callable[[Range], bool],
    time: Time,
) -> list[Range]:
    """The ranges, with rivals in place of plans or before them where they are WORTH it.

    `make`: makes the plan of a range's candidate, and says whether it serves all of it.
    """
    ranges_left: list[Range] = []
    taken = {place.index for place in ranges}
    for place in ranges:
        other = rival(place, candidates, taken)
        if (
            other is None
            or _reaches(place, candidates[place.index], time)
            or not make(Range(place.low, place.high, other))
        ):
            ranges_left.append(place)
            continue
        taken.add(other)
        ranges_left += _decide(place, other, time)
    return ranges_left


def rival(place: Range, candidates: Sequence[Candidate], taken: set[int]) -> int | None:
    """The candidate that is worth a plan beside that of the range, if there is one."""
    one = candidates[place.index]
    size = min(STEP * place.low, place.high)
    near = WORTH * one.line.time(size)
    others = [
        i
        for i, other in enumerate(candidates)
        if i not in taken
        and other.protocol == one.protocol
        and other.forest.trees_per_root < one.forest.trees_per_root
        and other.forest.height <= one.forest.height
        and other.line.time(size) <= near
    ]
    return min(others, key=lambda i: (candidates[i].forest.trees_per_root, i), default=None)


def _reaches(place: Range, candidate: Candidate, time: Time) -> bool:
    """Whether the plan is for many bytes, and as fast as the links allow: no other is WORTH it."""
    return place.high > MANY and time(place.index, MANY) < 2 * WORTH * candidate.line.time(MANY)


def _decide(place: Range, other: int, time: Time) -> list[Range]:
    """The plan, its rival, or the rival for fewer bytes and then the plan."""
    sizes, most = [place.low], min(place.high, MANY)
    while sizes[-1] * STEP <= most:
        sizes.append(sizes[-1] * STEP)
    if most == MANY > sizes[0]:
        sizes[-1] = MANY
    if time(place.index, place.low) < PROMISE * time(other, place.low):
        return [place]
    ratios = [time(place.index, size) / time(other, size) for size in sizes]
    if max(ratios) < WORTH:
        return [place]
    split = next((i for i, ratio in enumerate(ratios) if ratio <= 1), len(ratios))
    lost, saved = 1 / min(ratios), max(ratios[split:], default=1.0)
    if lost <= max(saved, 1.0):  # the rival alone is nowhere slower than both are somewhere
        return [Range(place.low, place.high, other)]
    if split == 0:
        return [place]
    middle = round((sizes[split - 1] * sizes[split]) ** 0.5)
    later = time(place.index, middle) <= time(other, middle)
    border = middle if later else sizes[split]
    return [Range(place.low, border - 1, other), Range(border, place.high, place.index)]
