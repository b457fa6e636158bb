"""Classes of failures that a symmetry of the fabric maps onto each other.

What is optimal after one failure of a class is as fast after every other, so one member is solved
for all. Symmetries come from `symmetry.automorphisms`, each checked link by link; a failure that
no symmetry moves is a class of its own, so a fabric without any is only slower.
"""

from __future__ import annotations

from collections.abc import Sequence

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.automorphisms import find_symmetries
from forestcoll.graph.symmetry.orbits import DisjointSets
from forestcoll.study.degrade.failures import Failure


def classes(
    graph: CapacityGraph, failures: Sequence[Failure], root: int | None = None
) -> list[int]:
    """Per failure the number of the first one of its class.

    `graph`: the whole fabric before any failure, with the ranks of the collective. `root`: a rank
    number; only symmetries that leave that rank where it is count.
    """
    number = {name: v for v, name in enumerate(graph.names)}
    keys = []
    for failure in failures:
        arcs = frozenset(
            (number[u], number[v], left)
            for (u, v), left in failure.left
            if u in number and v in number
        )
        keys.append((None if failure.node is None else number.get(failure.node), arcs))
    place = {key: i for i, key in enumerate(keys)}
    union = DisjointSets(len(failures))
    for i, key in enumerate(keys):
        union.join(place[key], i)
    for symmetry in find_symmetries(graph):
        image = symmetry.image
        if symmetry.turned or (root is not None and image[graph.ranks[root]] != graph.ranks[root]):
            continue
        for (node, arcs), i in place.items():
            mapped = frozenset((image[u], image[v], left) for u, v, left in arcs)
            other = place.get((None if node is None else image[node], mapped))
            if other is not None:
                union.join(i, other)
    return union.roots()
