"""Abelian groups of symmetries that leave some ranks in place: equal boxes beside a broken one.

`group` proves groups that move every rank; here an element may keep some. So all elements are
written out, and what keeps a node in place (its stabiliser) is known by looking. A path has as many
different images as the group has elements for each that keeps all of its nodes in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forestcoll.common.errors import ForestError
from forestcoll.common.input_limits import GROUP_STEPS
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.group import Image, SymmetryGroup, link_images, symmetry_group

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.int64]
    Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class AbelianGroup:
    """An abelian group by its generators; made by `abelian_group`.

    `table`: a row an element, the image of each node. `node` and `link` have the least member of
    each one's orbit.
    """

    generators: tuple[Image, ...]
    table: Array
    node: Image
    link: Image
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

    def kept_with(self, nodes: Sequence[int]) -> list[int]:
        """The nodes that stay in place whenever these do."""
        rows = self.table[self.keeping(nodes)]
        found: list[int] = (rows == rows[0]).all(axis=0).nonzero()[0].tolist()
        return found

    def images_of(self, nodes: Sequence[int]) -> int:
        """How many different images these nodes have, in their order."""
        return self.size // int(self.keeping(nodes).sum())

    def images(self, nodes: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """The different images."""
        rows = self.table[:, list(nodes)].tolist()
        yield from dict.fromkeys(map(tuple, rows))

    def seen_from(self, node: int) -> list[int]:
        """Per node the least of those to which elements that keep `node` bring it."""
        found: list[int] = self.table[self.keeping([node])].min(axis=0).tolist()
        return found


def abelian_group(graph: CapacityGraph, generators: Sequence[Image]) -> AbelianGroup:
    """The group that `generators` generate, all elements written out.

    Raises ForestError that says which generator does not keep the graph, which two do not commute,
    or that the group is too large.
    """
    import numpy as np

    maps = [np.asarray(generator, dtype=np.int64) for generator in generators]
    links = [link_images(graph, image, f"generator {i}") for i, image in enumerate(maps)]
    for i, a in enumerate(maps):
        for j, b in enumerate(maps[:i]):
            if not np.array_equal(a[b], b[a]):
                raise ForestError(f"generators {j} and {i} do not commute")
    rows = [np.arange(graph.n)]
    for image in maps:
        known = {row.tobytes() for row in rows}
        power, grown = image, list(rows)
        while power.tobytes() not in known:
            if (len(grown) + len(rows)) * graph.n > GROUP_STEPS:
                raise ForestError(
                    f"the group has over {len(grown):,} elements on {graph.n:,} nodes "
                    f"{GROUP_STEPS.note}"
                )
            grown += [power[row] for row in rows]
            power = power[image]
        rows = grown
    table = np.stack(rows)
    return AbelianGroup(
        tuple(tuple(image.tolist()) for image in maps),
        table,
        tuple(table.min(axis=0).tolist()),
        tuple(_least(len(graph.tail), links)),
    )


def _least(count: int, maps: Sequence[Array]) -> list[int]:
    """The least link of each one's orbit."""
    import numpy as np

    label = np.arange(count)
    while True:
        before = label
        for image in maps:
            step = image
            for _ in range(max(1, math.ceil(math.log2(count + 1)))):
                label, step = np.minimum(label, label[step]), step[step]
        if np.array_equal(before, label):
            found: list[int] = label.tolist()
            return found


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
