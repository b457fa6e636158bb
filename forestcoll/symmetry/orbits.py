"""Symmetries of a graph, checked before use, and the orbits that they make.

An allreduce has two halves, broadcast (0) and reduce (1), that share the links. A symmetry maps
nodes to nodes such that links map to links of the same capacity. One that turns links round, (u, v)
to (image of v, image of u), also trades the halves: a reduce tree is a broadcast tree turned round.
Averaging a schedule over all symmetries keeps what it reaches, so the links, flows (half, link) and
ranks of one orbit may be taken to be alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from forestcoll.bound import Symmetry
from forestcoll.errors import ForestError
from forestcoll.graph import CapacityGraph

HALVES = (0, 1)
"""Broadcast, reduce."""


@dataclass(frozen=True, slots=True)
class Orbits:
    """The least member of each one's orbit: of nodes, links, and (half, link) or (half, node).

    Flows are numbered half * links + link, sides half * nodes + node.
    """

    node: list[int]
    link: list[int]
    flow: list[int]
    side: list[int]


def orbits(graph: CapacityGraph, symmetries: Iterable[Symmetry]) -> Orbits:
    """The orbits under the group that `symmetries` generate; ForestError where one is none.

    Linear in the size of the graph, for each symmetry.
    """
    n, count = graph.n, len(graph.tail)
    number = {pair: e for e, pair in enumerate(zip(graph.tail, graph.head, strict=True))}
    nodes, links = Union(n), Union(count)
    flows, sides = Union(2 * count), Union(2 * n)
    for index, symmetry in enumerate(symmetries):
        image = _link_images(graph, number, symmetry, f"bound: symmetry {index}")
        for half in HALVES:
            other = 1 - half if symmetry.turned else half
            for v, to in enumerate(symmetry.image):
                sides.join(half * n + v, other * n + to)
            for e, to in enumerate(image):
                flows.join(half * count + e, other * count + to)
        for v, to in enumerate(symmetry.image):
            nodes.join(v, to)
        for e, to in enumerate(image):
            links.join(e, to)
    return Orbits(nodes.roots(), links.roots(), flows.roots(), sides.roots())


def is_symmetry(graph: CapacityGraph, symmetry: Symmetry) -> bool:
    """Whether the map keeps ranks, links, capacities, and what switches can do."""
    number = {pair: e for e, pair in enumerate(zip(graph.tail, graph.head, strict=True))}
    try:
        _link_images(graph, number, symmetry, "")
    except ForestError:
        return False
    return True


def _link_images(
    graph: CapacityGraph, number: dict[tuple[int, int], int], symmetry: Symmetry, where: str
) -> list[int]:
    """The image of each link, or ForestError with what the map does not keep."""
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


class Union:
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
