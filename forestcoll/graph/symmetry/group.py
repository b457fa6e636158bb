"""Abelian groups of symmetries: rotations of boxes, translations of tori, equal GPUs.

A forest may list one tree an orbit and leave the rest to a group. What is proven here makes that
exact without writing out the images:

* every generator keeps the graph: kinds, ranks, parts, links and their capacities;
* the generators commute, so the group G is abelian;
* G moves ranks freely: only the identity leaves a rank in place. Then the images of a tree by the
  |G| elements are all different (their roots are), every rank of the root's orbit gets exactly
  one, and of these images |G| / |O| times as many cross a link of orbit O as the tree has edges
  over links of O.

Freedom is proven from one rank r. Generator by generator, let n_j be the least power that brings r
back to where the generators before it can bring it. Those n_j relations generate all products that
leave r in place (they are in Hermite form); each is multiplied out and must be the identity. So
|G| = n_1 n_2 ..., and all orbits of ranks must have that size.

Abelian groups of symmetries that leave some ranks in place: equal boxes beside a broken one.

`group` proves groups that move every rank; here an element may keep some. So all elements are
written out, and what keeps a node in place (its stabiliser) is known by looking. A path has as many
different images as the group has elements for each that keeps all of its nodes in place.

Orbits: symmetries of a graph checked link by link, and the sets of what they make alike.

A symmetry maps nodes to nodes such that links map to links of the same capacity. One that turns
links round, (u, v) to (image of v, image of u), makes reduce trees of broadcast trees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from forestcoll.common.errors import ForestError
from forestcoll.common.input_limits import GROUP_STEPS
from forestcoll.graph.bound import Symmetry
from forestcoll.graph.capacity_graph import CapacityGraph

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.int64]
    Mask = NDArray[np.bool_]

Image = tuple[int, ...]
"""Per node, where it goes."""


@dataclass(frozen=True, slots=True)
class SymmetryGroup:
    """An abelian group that moves ranks freely, by its generators; made by `symmetry_group`.

    An element is the product of generator j taken e_j times, 0 <= e_j < `orders[j]`: each element
    once. `node` and `link` have the least member of each one's orbit.
    """

    generators: tuple[Image, ...]
    node: Image
    link: Image
    orders: tuple[int, ...]

    def __repr__(self) -> str:
        return f"<SymmetryGroup of {self.size} elements on {len(self.node)} nodes>"

    @property
    def size(self) -> int:
        """How many elements there are."""
        return math.prod(self.orders)

    def images_of(self, nodes: Sequence[int]) -> int:
        """How many different images nodes have, a rank among them: one for each element."""
        return self.size

    def least_images(self, node: int) -> range:
        """Per node the least of those to which elements that keep the rank `node` bring it."""
        return range(len(self.node))

    def elements(self) -> Iterator[Image]:
        """Every element once, the identity first, as the image of each node."""
        n = len(self.node)

        def build(at: int, element: Image) -> Iterator[Image]:
            if at == len(self.generators):
                yield element
                return
            generator = self.generators[at]
            for _ in range(self.orders[at]):
                yield from build(at + 1, element)
                element = tuple([generator[v] for v in element])

        yield from build(0, tuple(range(n)))


@dataclass(frozen=True, slots=True)
class Rotation(SymmetryGroup):
    """Generators that each move some nodes in cycles of one length and keep all others in place.

    So equal boxes go round beside a broken one. A rank has an image for each product of the
    generators that move it; those that do not keep it. Made by `rotation_group`.
    """

    def images_of(self, nodes: Sequence[int]) -> int:
        """How many different images nodes have: one where all of them stay."""
        each = zip(self.generators, self.orders, strict=True)
        return math.prod(order for image, order in each if any(image[v] != v for v in nodes))


def rotation_group(graph: CapacityGraph, generators: Sequence[Image]) -> Rotation:
    """The group of generators that keep nodes in place; ForestError where it is none such."""
    import numpy as np

    maps, node, images = _commute(graph, generators)
    orders, ways = [], np.ones(graph.n)  # per node how many images its generators allow
    for i, image in enumerate(maps):
        cycle, moved = least_in_orbits(graph.n, [image]), image != np.arange(graph.n)
        lengths = np.unique(np.bincount(cycle)[cycle[moved]])
        if len(lengths) != 1:
            raise ForestError(f"generator {i} moves nodes in cycles of different lengths, or none")
        orders.append(int(lengths[0]))
        ways[moved] *= orders[-1]
    sizes = np.bincount(node)[node]
    odd = [v for v in graph.ranks if sizes[v] != ways[v]]
    if odd:
        raise ForestError(
            f"{graph.names[odd[0]]} has {sizes[odd[0]]} images, its generators {ways[odd[0]]:g}"
        )
    return Rotation(*images, tuple(orders))


def find_orbits(
    graph: CapacityGraph, generators: Sequence[Image]
) -> tuple[list[Array], Array, Array]:
    """(maps, the least node and the least link of each one's orbit); ForestError where one is none.

    Each is checked link by link.
    """
    import numpy as np

    maps = [np.asarray(generator, dtype=np.int64) for generator in generators]
    links = [link_images(graph, image, f"generator {i}") for i, image in enumerate(maps)]
    return maps, least_in_orbits(graph.n, maps), least_in_orbits(len(graph.tail), links)


def _commute(
    graph: CapacityGraph, generators: Sequence[Image]
) -> tuple[list[Array], Array, tuple[tuple[Image, ...], Image, Image]]:
    """(maps, orbits of nodes, what every group has); ForestError where maps do not commute."""
    import numpy as np

    maps, node, link = find_orbits(graph, generators)
    for i, a in enumerate(maps):
        for j, b in enumerate(maps[:i]):
            if not np.array_equal(a[b], b[a]):
                raise ForestError(f"generators {j} and {i} do not commute")
    *images, nodes, links = (tuple(image.tolist()) for image in (*maps, node, link))
    return maps, node, (tuple(images), nodes, links)


def symmetry_group(graph: CapacityGraph, generators: Sequence[Image]) -> SymmetryGroup:
    """The group that `generators` generate, once it is known to be one that can be relied on.

    Linear in the size of the graph for each generator, but for logarithms. Raises ForestError that
    says which generator does not keep the graph, which two do not commute, or that ranks are not
    moved freely.
    """
    import numpy as np

    maps, node, images = _commute(graph, generators)
    orders = _orders(graph, maps)
    size = math.prod(orders)
    ranks = np.asarray(graph.ranks, dtype=np.int64)
    sizes = np.bincount(node[ranks], minlength=graph.n)[node[ranks]]
    if int(sizes.min()) != size:
        odd = graph.names[graph.ranks[int(sizes.argmin())]]
        raise ForestError(
            f"the group has {size} elements, but {odd} only {int(sizes.min())} images: some keep "
            "it in place"
        )
    return SymmetryGroup(*images, orders)


def extend_group(
    graph: CapacityGraph, group: SymmetryGroup | None, image: Image
) -> SymmetryGroup | None:
    """The group with one generator more.

    None: that is no symmetry, keeps some rank in place, or does not commute with the others.
    """
    try:
        return symmetry_group(graph, [*(group.generators if group else ()), image])
    except ForestError:
        return None


def kinds(graph: CapacityGraph, apart: Sequence[int] = ()) -> list[int]:
    """Per node a number for what it is: GPU or switch, what it can do, rank with which part.

    Each of the nodes `apart` has a number of its own.
    """
    numbers: list[int] = _links(graph).kinds[0].tolist()
    for number, v in enumerate(apart, max(numbers) + 1):
        numbers[v] = number
    return numbers


def links_without_image(graph: CapacityGraph, image: Array) -> Array:
    """The numbers of links that a permutation brings to no link of the same capacity."""
    return _links(graph).look_up(image)[1]


def link_images(
    graph: CapacityGraph, image: Array, where: str, *, turned: bool = False, gpus: bool = True
) -> Array:
    """The image of each link under a map of the nodes.

    `turned`: as `Symmetry` has it. `gpus`: whether these have to go to GPUs, ranks or not. Raises
    ForestError that begins with `where` and says what the map does not keep.
    """
    import numpy as np

    links, names = _links(graph, gpus), graph.names
    if image.shape != (graph.n,) or not np.array_equal(np.sort(image), np.arange(graph.n)):
        raise ForestError(f"{where} is no permutation of the nodes")
    wrong = np.flatnonzero(links.kinds[turned][image] != links.kinds[0])
    if wrong.size:
        v = int(wrong[0])
        raise ForestError(
            f"{where} maps {names[v]} to {names[int(image[v])]}, which is of another kind"
        )
    images, bad = links.look_up(image, turned)
    if bad.size:
        ends = graph.tail[bad[0]], graph.head[bad[0]]
        to = [names[image[v]] for v in (ends[::-1] if turned else ends)]
        raise ForestError(
            f"{where} maps the link {names[ends[0]]} -> {names[ends[1]]} to {to[0]} -> {to[1]}, "
            "which has another bandwidth or is no link"
        )
    return images


class _Links:
    """The links of a graph, ready to be looked up; what nodes are, and are with links turned."""

    def __init__(self, graph: CapacityGraph, gpus: bool = True) -> None:
        import numpy as np

        self.n = graph.n
        self.tail = np.asarray(graph.tail, dtype=np.int64)
        self.head = np.asarray(graph.head, dtype=np.int64)
        self.keys = self.tail * graph.n + self.head
        self.order = np.argsort(self.keys, kind="stable")
        self.sorted = self.keys[self.order]
        self.width = np.asarray(graph.capacity, dtype=np.int64)  # 62 bits at most
        part = [-1] * graph.n
        for v, amount in zip(graph.ranks, graph.parts, strict=True):
            part[v] = amount
        gpu, can = [gpus and each for each in graph.gpu], (graph.multicast, graph.aggregation)
        looks = [[*zip(gpu, *way, part, strict=True)] for way in (can, can[::-1])]
        kinds = {look: number for number, look in enumerate(dict.fromkeys(looks[0] + looks[1]))}
        self.kinds = [np.asarray([kinds[look] for look in way]) for way in looks]

    def look_up(self, image: Array, turned: bool = False) -> tuple[Array, Array]:
        """(the image of each link, the numbers of links that have none)."""
        import numpy as np

        tail, head = (self.head, self.tail) if turned else (self.tail, self.head)
        wanted = image[tail] * self.n + image[head]
        place = np.minimum(np.searchsorted(self.sorted, wanted), max(0, len(self.sorted) - 1))
        images = self.order[place]
        right = (self.keys[images] == wanted) & (self.width[images] == self.width)
        return images, np.flatnonzero(~right)


_links = lru_cache(maxsize=4)(_Links)


def _orders(graph: CapacityGraph, maps: Sequence[Array]) -> tuple[int, ...]:
    """n_1, n_2, ... of the head of this file; ForestError where a relation is not the identity."""
    import numpy as np

    start = graph.ranks[0]
    points = [start]  # where the elements so far bring it: the last generator runs fastest
    orders: list[int] = []
    for index, image in enumerate(maps):
        place = {v: number for number, v in enumerate(points)}
        steps = image.tolist()
        rows, at = [points], steps[start]
        while at not in place:  # commuting maps: no row meets another before it meets the first
            rows.append([steps[v] for v in rows[-1]])
            at = steps[at]
        # the last of the generators before it runs fastest
        exponents = np.unravel_index(place[at], orders)
        back = np.arange(graph.n)
        for earlier, exponent in zip(maps, exponents, strict=False):
            back = _power(earlier, int(exponent))[back]
        if not np.array_equal(_power(image, len(rows)), back):
            raise ForestError(
                f"generator {index}, taken {len(rows)} times, moves some nodes but not "
                f"{graph.names[start]} (after generators before it): ranks are not moved freely"
            )
        points = [v for column in zip(*rows, strict=True) for v in column]
        orders.append(len(rows))
    return tuple(orders)


def _power(image: Array, exponent: int) -> Array:
    import numpy as np

    out = np.arange(len(image), dtype=np.int64)
    while exponent:
        if exponent & 1:
            out = image[out]
        image = image[image]
        exponent >>= 1
    return out


def _least_in_orbit(label: Array, image: Array) -> Array:
    """The least label along each cycle of `image`."""
    import numpy as np

    far = image
    while not np.array_equal(label, label[image]):
        label = np.minimum(label, label[far])  # the least of twice as many steps from here on
        far = far[far]
    return label


@dataclass(frozen=True, eq=False)
class AbelianGroup:
    """An abelian group by its generators; made by `abelian_group`.

    `table`: a row an element, the image of each node. `node` and `link` have the least member of
    each one's orbit.
    """

    generators: tuple[Image, ...]
    node: Image
    link: Image
    table: Array
    _masks: dict[frozenset[int], Mask] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> int:
        """How many elements there are."""
        return len(self.table)

    def elements(self) -> Iterator[Image]:
        """Every element once, the identity first, as the image of each node."""
        for row in self.table:
            yield tuple(row.tolist())

    def keeping(self, nodes: Sequence[int]) -> Mask:
        """Which elements keep all of the nodes in place."""
        import numpy as np

        key = frozenset(nodes)
        mask = self._masks.get(key)
        if mask is None:
            if len(key) == 1:
                mask = self.table[:, nodes[0]] == nodes[0]
            else:
                mask = np.ones(self.size, dtype=np.bool_)
                for node in key:
                    mask &= self.keeping([node])
            if len(key) < 3:  # pairs and ranks come again, paths do not
                self._masks[key] = mask
        return mask

    def nodes_in_place(self, nodes: Sequence[int]) -> list[int]:
        """The nodes that stay in place whenever these do."""
        rows = self.table[self.keeping(nodes)]
        stay: list[int] = (rows == rows[0]).all(axis=0).nonzero()[0].tolist()
        return stay

    def images_of(self, nodes: Sequence[int]) -> int:
        """How many different images these nodes have, in their order."""
        return self.size // int(self.keeping(nodes).sum())

    def images(self, nodes: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """The different images."""
        rows = self.table[:, list(nodes)].tolist()
        yield from dict.fromkeys(map(tuple, rows))

    def least_images(self, node: int) -> list[int]:
        """Per node the least of those to which elements that keep `node` bring it."""
        least: list[int] = self.table[self.keeping([node])].min(axis=0).tolist()
        return least


def abelian_group(graph: CapacityGraph, generators: Sequence[Image]) -> AbelianGroup:
    """The group that `generators` generate, all elements written out.

    Raises ForestError that says which generator does not keep the graph, which two do not commute,
    or that the group is too large.
    """
    import numpy as np

    maps, _, images = _commute(graph, generators)
    rows = [np.arange(graph.n)]
    for image in maps:
        rows_seen = {row.tobytes() for row in rows}
        power, grown = image, list(rows)
        while power.tobytes() not in rows_seen:
            if (len(grown) + len(rows)) * graph.n > GROUP_STEPS:
                raise ForestError(
                    f"the group has over {len(grown):,} elements on {graph.n:,} nodes "
                    f"{GROUP_STEPS.note}"
                )
            grown += [power[row] for row in rows]
            power = power[image]
        rows = grown
    return AbelianGroup(*images, np.stack(rows))


def least_in_orbits(count: int, maps: Sequence[Array]) -> Array:
    """The least member of each one's orbit among 0 .. count - 1 under these maps."""
    import numpy as np

    label = np.arange(count)
    while True:
        before = label
        for image in maps:
            label = _least_in_orbit(label, image)
        if np.array_equal(before, label):
            return label


def commuting_group(
    graph: CapacityGraph, generators: Sequence[Image]
) -> SymmetryGroup | AbelianGroup:
    """The group of commuting generators, whether it moves every rank or keeps some in place.

    Raises ForestError as `abelian_group`.
    """
    try:
        return symmetry_group(graph, generators)
    except ForestError:
        return abelian_group(graph, generators)


def is_symmetry(graph: CapacityGraph, symmetry: Symmetry) -> bool:
    """Whether the map keeps ranks, their parts, links, capacities, and what switches can do."""
    try:
        symmetry_images(graph, symmetry, "")
    except ForestError:
        return False
    return True


def symmetry_images(graph: CapacityGraph, symmetry: Symmetry, where: str) -> Array:
    """The image of each link, as `link_images`; GPUs that are no ranks are nodes like any other."""
    import numpy as np

    image, turned = np.asarray(symmetry.image), symmetry.turned
    return link_images(graph, image, where, turned=turned, gpus=False)


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
