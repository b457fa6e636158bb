"""Quotient of a demand by symmetry: one source of each orbit of ranks, one row of each of links.

The average of optimal flows over a group of symmetries is optimal, so ranks of one orbit may be
taken to send alike, and links of one orbit to carry alike. For any flow x of a source s, its images
under the group (|orbit of s| sources, each once on the average) load every link of an orbit O with
|orbit of s| * x(O) / |O|, x(O) being the sum of x over O. So nothing needs to be known of the group
but generators, which are checked link by link.

The flow of one source is folded by colour refinement that starts from the source: nodes of one
colour have as many links of each orbit from and to nodes of each colour, so the average over links
of one orbit between two colours is again a flow that loads each orbit as before (Grohe, Kersting,
Mladenov, Selman, Dimension Reduction via Colour Refinement, 2014).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.automorphisms import find_symmetries
from forestcoll.graph.symmetry.group import Image, kinds, link_images
from forestcoll.graph.symmetry.structures import find_structures
from forestcoll.solver.alltoall.demand import Demand

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from forestcoll.solver.alltoall.demand import Array

SEARCHED_LINKS = 60_000
"""Above that many links only rotations of equal parts are looked for, not all symmetries."""


@dataclass(frozen=True, slots=True)
class Folding:
    """Orbits under the group of `generators`.

    `sources`: a rank (node) of each orbit; `images`: how many ranks it stands for. `node`: per
    node, the least of its orbit. `link`: per link, the number of its orbit; `sizes`: links of each.
    """

    generators: tuple[Image, ...]
    sources: tuple[int, ...]
    images: tuple[int, ...]
    node: tuple[int, ...]
    link: Array
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Quotient:
    """The graph as one source sees it.

    `colour`: per node; `label`: per link the number of its class (links of one orbit between nodes
    of two colours), -1 where nothing of the source goes. Per class `ends` (colours), `orbit` and
    `count` (links).
    """

    source: int
    colour: Array
    label: Array
    ends: tuple[tuple[int, int], ...]
    orbit: tuple[int, ...]
    count: tuple[int, ...]


def fold(demand: Demand) -> Folding:
    """The orbits under all symmetries that were found and keep what is sent."""
    graph = demand.graph
    known = [image for image in find_generators(graph) if demand.keeps(image)]
    return orbits(demand, known)


def find_generators(graph: CapacityGraph) -> list[Image]:
    """Symmetries of the graph that keep links and kinds of nodes, none of them the identity."""
    found = [image for s in find_structures(graph) for image in s.group.generators]
    if len(graph.tail) <= SEARCHED_LINKS:
        found += [s.image for s in find_symmetries(graph) if not s.turned]
    identity, kind = tuple(range(graph.n)), kinds(graph)
    return [
        image
        for image in dict.fromkeys(found)
        if image != identity and all(kind[to] == look for to, look in zip(image, kind, strict=True))
    ]


def orbits(demand: Demand, generators: list[Image]) -> Folding:
    """The orbits under `generators`; ForestError where one does not keep the graph."""
    import numpy as np

    graph = demand.graph
    maps = [np.asarray(image, dtype=np.int64) for image in generators]
    on_links = [link_images(graph, image, f"generator {i}") for i, image in enumerate(maps)]
    node = _least(np.arange(graph.n), maps)
    least, link = np.unique(_least(np.arange(len(graph.tail)), on_links), return_inverse=True)
    ranks = node[list(graph.ranks)]
    sources, images = np.unique(ranks, return_counts=True)
    sizes = np.bincount(link, minlength=len(least))
    return Folding(
        tuple(generators),
        tuple(sources.tolist()),
        tuple(images.tolist()),
        tuple(node.tolist()),
        link,
        tuple(sizes.tolist()),
    )


def _least(label: Array, maps: list[Array]) -> Array:
    """The least label of each orbit."""
    import numpy as np

    while True:
        before = label
        for image in maps:
            step = image
            while True:  # labels are the least of the next 1, 2, 4, ... steps along the cycle
                lower = np.minimum(label, label[step])
                if np.array_equal(lower, label):
                    break
                label, step = lower, step[step]
        if np.array_equal(label, before):
            return label


def quotient(demand: Demand, folding: Folding, source: int) -> Quotient:
    """Colour refinement from `source`, until it says nothing new."""
    import numpy as np

    graph = demand.graph
    tail, head = np.asarray(graph.tail), np.asarray(graph.head)
    barred = np.zeros(graph.n, dtype=bool)
    barred[list(demand.barred(source))] = True
    start = np.stack([np.asarray(kinds(graph)), demand.amounts(source), barred])
    start[1, source] = -1
    colour = np.unique(start, axis=1, return_inverse=True)[1].ravel()
    used = ~(barred[tail] | barred[head]) & (head != source)
    colour = _refine(colour, tail[used], head[used], folding.link[used])
    inner = colour[tail] == colour[head]  # carries as much into each node as out: of no use
    used &= ~inner
    key = (colour[tail] * graph.n + colour[head])[used]
    ends, at = np.unique(key, return_inverse=True)
    key = at * len(folding.sizes) + folding.link[used]
    classes, at, count = np.unique(key, return_inverse=True, return_counts=True)
    label = np.full(len(tail), -1, dtype=np.int64)
    label[used] = at
    pairs = ends[classes // len(folding.sizes)]
    return Quotient(
        source,
        colour,
        label,
        tuple(zip((pairs // graph.n).tolist(), (pairs % graph.n).tolist(), strict=True)),
        tuple((classes % len(folding.sizes)).tolist()),
        tuple(count.tolist()),
    )


def _refine(colour: Array, tail: Array, head: Array, orbit: Array) -> Array:
    """The coarsest colouring under `colour` with equal numbers of links between colours.

    Neighbours are compared by sums of 64-bit hashes. Should two sums ever agree by chance, the flow
    does not add up, which `flows.solve` finds.
    """
    import numpy as np

    sides = [_Side(tail, len(colour)), _Side(head, len(colour))]
    others = [head, tail]
    count = int(colour.max()) + 1
    while True:
        looks: NDArray[np.uint64] = _mix(colour.astype(np.uint64))
        for number, (side, other) in enumerate(zip(sides, others, strict=True)):
            seen = _mix(colour[other].astype(np.uint64) + _mix(orbit.astype(np.uint64)))
            looks = _mix(looks + np.uint64(number)) + side.sums(seen)
        order = np.stack([colour.astype(np.uint64), looks])
        finer = np.unique(order, axis=1, return_inverse=True)[1].ravel()
        if int(finer.max()) + 1 == count:
            return colour
        colour, count = finer, int(finer.max()) + 1


class _Side:
    """Sums over the links at each node."""

    def __init__(self, node: Array, n: int) -> None:
        import numpy as np

        self.n = n
        self.order = np.argsort(node, kind="stable")
        self.nodes, self.first = np.unique(node[self.order], return_index=True)

    def sums(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        import numpy as np

        out = np.zeros(self.n, dtype=np.uint64)
        if len(self.nodes):
            out[self.nodes] = np.add.reduceat(values[self.order], self.first)
        return out


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash of 64 bits (the finaliser of splitmix64)."""
    import numpy as np

    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
