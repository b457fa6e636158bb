"""Free groups: symmetries that commute and leave no rank in place, as large a group as is found.

Routes are written for one source of each orbit, and moved by the group. Where the graph is regular
in an obvious way (`structures`) its group is taken. Otherwise members are drawn from all symmetries
that were found: random products of them and powers of those. A power of a map that turns and
shifts is often a mere shift, so shifts of tori are found whatever the nodes are called.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import numpy as np

from forestcoll.common.errors import ForestError
from forestcoll.graph.symmetry.group import SymmetryGroup, symmetry_group
from forestcoll.graph.symmetry.structures import find_structures
from forestcoll.solver.alltoall.fold import find_generators

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forestcoll.solver.alltoall.demand import Demand

    Array = NDArray[np.int64]

DRAWN = 120
"""Random symmetries of which powers are tried."""
POWERS = (1, 2, 3, 4, 6)
ORDERS = 12
"""Orders in which they are put together; the largest group counts."""
ELEMENTS = 2**24
"""Nodes times random symmetries that are drawn at most."""


def free_group(demand: Demand) -> SymmetryGroup | None:
    """A large group that is free on the ranks and keeps what is sent; None where none is found."""
    graph = demand.graph
    best: SymmetryGroup | None = None
    for structure in find_structures(graph):
        group = structure.group
        if all(map(demand.keeps, group.generators)) and (best is None or group.size > best.size):
            best = group
    images = [image for image in find_generators(graph) if demand.keeps(image)]
    most = _most(demand, images)
    if best is not None and best.size >= most:
        return best
    pool = _draw(demand, images)
    dice = random.Random(0)
    for _ in range(ORDERS):
        if best is not None and best.size >= most:
            break
        drawn = _greedy(demand, pool, most)
        if drawn is not None and (best is None or drawn.size > best.size):
            best = drawn
        dice.shuffle(pool)
    return best


def _most(demand: Demand, images: list[tuple[int, ...]]) -> int:
    """No free group is larger than what divides the size of every orbit of ranks."""
    from forestcoll.solver.alltoall.fold import orbits

    return math.gcd(*orbits(demand, images).images)


def _draw(demand: Demand, images: list[tuple[int, ...]]) -> list[Array]:
    """Symmetries without a fixed rank, all of whose powers are so or the identity; largest order
    first."""
    ranks = np.asarray(demand.graph.ranks)
    dice = random.Random(1)
    maps = [np.asarray(image) for image in images]
    members = list(maps)
    for _ in range(min(DRAWN, ELEMENTS // demand.graph.n) if maps else 0):
        a, b = dice.choice(members), dice.choice(maps)
        members.append(a[b] if dice.random() < 0.5 else b[a])
    found: dict[bytes, tuple[int, Array]] = {}
    for member in members:
        image = member
        for power in range(1, max(POWERS) + 1):
            if power in POWERS:
                order = _order(image, ranks)
                if order > 1:
                    found.setdefault(image.tobytes(), (order, image))
            image = image[member]
    return [image for _, image in sorted(found.values(), key=lambda f: -f[0])]


def _order(image: Array, ranks: Array) -> int:
    """The length of all cycles of ranks where they are equal, and the map's order; else 0."""
    at, lengths = image.tolist(), set()
    seen: set[int] = set()
    for rank in ranks.tolist():
        if rank in seen:
            continue
        length, v = 0, rank
        while v not in seen:
            seen.add(v)
            v = at[v]
            length += 1
        lengths.add(length)
        if len(lengths) > 1:
            return 0
    return lengths.pop()


def _greedy(demand: Demand, pool: list[Array], most: int) -> SymmetryGroup | None:
    """Each of the pool that commutes with those before and keeps the group free."""
    graph, group = demand.graph, None
    chosen: list[Array] = []
    for image in pool:
        if group is not None and group.size >= most:
            break
        if any(not np.array_equal(image[other], other[image]) for other in chosen):
            continue
        known = () if group is None else group.generators
        try:
            larger = symmetry_group(graph, [*known, tuple(image.tolist())])
        except ForestError:  # some product of them keeps a rank in place
            continue
        if group is None or larger.size > group.size:
            group = larger
            chosen.append(image)
    return group
