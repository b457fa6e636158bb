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

Proof by lengths of links: why no all-to-all is faster.

Give every link a length l >= 0. Whatever goes from s to t uses up at least dist(s, t) of length for
each byte, and the links have sum of c(e) l(e) to give. So at theta units of demand a second

    theta <= sum of c(e) l(e) / sum over s, t of d(s, t) dist(s, t)

with the shortest distances under l. Whole-number lengths make both sums whole numbers.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from forestcoll.common.errors import ForestError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.automorphisms import find_symmetries
from forestcoll.graph.symmetry.components import find_structures
from forestcoll.graph.symmetry.group import Image, find_orbits, kinds
from forestcoll.graph.symmetry.quotient import ALIKE_FROM, find_rotations
from forestcoll.solver.alltoall.demand import Demand
from forestcoll.solver.walks import links_out

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from forestcoll.solver.alltoall.demand import Array


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
    symmetries = [image for image in find_generators(graph) if demand.keeps(image)]
    return orbits(demand, symmetries)


def find_generators(graph: CapacityGraph) -> list[Image]:
    """Symmetries of the graph that keep links and kinds of nodes, none of them the identity."""
    images = [image for s in find_structures(graph) for image in s.group.generators]
    if len(graph.ranks) > ALIKE_FROM:
        images += find_rotations(graph, tiers=True)
    else:
        images += [s.image for s in find_symmetries(graph) if not s.turned]
    identity, kind = tuple(range(graph.n)), kinds(graph)
    return [
        image
        for image in dict.fromkeys(images)
        if image != identity and all(kind[to] == look for to, look in zip(image, kind, strict=True))
    ]


def orbits(demand: Demand, generators: list[Image]) -> Folding:
    """The orbits under `generators`; ForestError where one does not keep the graph."""
    import numpy as np

    graph = demand.graph
    _, node, alike = find_orbits(graph, generators)
    least, link = np.unique(alike, return_inverse=True)
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


def quotient(demand: Demand, folding: Folding, source: int) -> Quotient:
    """Colour refinement from `source`, until it says nothing new."""
    import numpy as np

    graph = demand.graph
    tail, head = np.asarray(graph.tail), np.asarray(graph.head)
    barred = np.zeros(graph.n, dtype=bool)
    barred[list(demand.nodes_to_avoid(source))] = True
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


def whole(lengths: Sequence[Fraction]) -> list[int]:
    """The same lengths as the least whole numbers in proportion."""
    lcm = math.lcm(*(length.denominator for length in lengths))
    numbers = [int(length * lcm) for length in lengths]
    common = math.gcd(*numbers) or 1
    return [number // common for number in numbers]


def bound(demand: Demand, folding: Folding, lengths: Sequence[int]) -> Fraction:
    """Units of capacity for a unit of demand that nothing beats; `lengths` per link.

    They have to be alike on every orbit of `folding` (ForestError), whose sources then stand for
    all. ForestError too where no demand has a length.
    """
    graph = demand.graph
    least: dict[int, int] = {}
    for orbit, length in zip(folding.link.tolist(), lengths, strict=True):
        if length < 0 or least.setdefault(orbit, length) != length:
            raise ForestError("bound: lengths are negative, or differ between links that are alike")
    room = sum(c * length for c, length in zip(graph.capacity, lengths, strict=True))
    near = links_out(graph.n, graph.along(lengths))
    need = 0
    for source, images in zip(folding.sources, folding.images, strict=True):
        far = distances(near, source, demand.nodes_to_avoid(source))
        amounts = demand.amounts(source)
        for v in amounts.nonzero()[0].tolist():
            if v not in far:
                raise ForestError(f"nothing leads to {graph.names[v]}")
            need += images * int(amounts[v]) * far[v]
    if need == 0:
        raise ForestError("bound: every way has length 0: it bounds nothing")
    return Fraction(room, need)


def distances(
    near: Sequence[Sequence[tuple[int, int]]], source: int, barred: frozenset[int] = frozenset()
) -> dict[int, int]:
    """Shortest distances from `source` (Dijkstra); `near`: per node (neighbour, length)."""
    far: dict[int, int] = {}
    heap = [(0, source)]
    best = {source: 0}
    while heap:
        d, u = heapq.heappop(heap)
        if u in far:
            continue
        far[u] = d
        for v, length in near[u]:
            to = d + length
            if v not in barred and (v not in best or to < best[v]):
                best[v] = to
                heapq.heappush(heap, (to, v))
    return far
