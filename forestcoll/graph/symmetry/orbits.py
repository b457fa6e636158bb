"""Orbits: symmetries of a graph checked link by link, and the sets of what they make alike.

A symmetry maps nodes to nodes such that links map to links of the same capacity. One that turns
links round, (u, v) to (image of v, image of u), makes reduce trees of broadcast trees.
"""

from __future__ import annotations

from forestcoll.common.errors import ForestError
from forestcoll.graph.bound import Symmetry
from forestcoll.graph.capacity_graph import CapacityGraph

Places = dict[tuple[int, int], int]  # (tail, head) -> number of the link


def is_symmetry(graph: CapacityGraph, symmetry: Symmetry) -> bool:
    """Whether the map keeps ranks, links, capacities, and what switches can do."""
    try:
        link_images(graph, symmetry, "")
    except ForestError:
        return False
    return True


def number_links(graph: CapacityGraph) -> Places:
    """The number of the link between each two nodes."""
    return {pair: e for e, pair in enumerate(zip(graph.tail, graph.head, strict=True))}


def link_images(
    graph: CapacityGraph, symmetry: Symmetry, where: str, places: Places | None = None
) -> list[int]:
    """The image of each link, or ForestError with what the map does not keep.

    `places`: `number_links` of the graph, where many maps are asked about.
    """
    number = number_links(graph) if places is None else places
    image, names, ranks = symmetry.image, graph.names, set(graph.ranks)
    if sorted(image) != list(range(graph.n)):
        raise ForestError(f"{where} is no permutation of the nodes")
    copies, adds = graph.multicast, graph.aggregation
    after = (adds, copies) if symmetry.turned else (copies, adds)
    for v, to in enumerate(image):
        if (v in ranks) != (to in ranks) or (copies[v], adds[v]) != (after[0][to], after[1][to]):
            raise ForestError(f"{where} maps {names[v]} to {names[to]}, which is of another kind")
    out = []
    for u, v, units in zip(graph.tail, graph.head, graph.capacity, strict=True):
        pair = (image[v], image[u]) if symmetry.turned else (image[u], image[v])
        if pair not in number or graph.capacity[number[pair]] != units:
            raise ForestError(
                f"{where} maps the link {names[u]} -> {names[v]} to "
                f"{names[pair[0]]} -> {names[pair[1]]}, which has another bandwidth or is no link"
            )
        out.append(number[pair])
    return out


class DisjointSets:
    """Sets that grow together; the least member stands for each."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def find(self, a: int) -> int:
        """The least member of the set that holds `a`."""
        parent = self._parent
        while parent[a] != a:
            parent[a] = a = parent[parent[a]]
        return a

    def join(self, a: int, b: int) -> bool:
        """Makes one set of two; False where they were one already."""
        a, b = self.find(a), self.find(b)
        self._parent[max(a, b)] = min(a, b)
        return a != b

    def roots(self) -> list[int]:
        """Per member, the least one of its set."""
        return [self.find(a) for a in range(len(self._parent))]
