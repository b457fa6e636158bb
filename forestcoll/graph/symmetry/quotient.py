"""One flow for all ranks that are alike, on broken fabrics too: orbits, cells and their quotient.

A failed port leaves no symmetry that moves every rank, but most of the fabric is as regular as
before. Without some switches a graph falls into parts; parts of which colours say that they are
alike are rotated, group by group, while all else stays. Every such map is checked link by link, so
ranks of an orbit are alike for certain, whatever was guessed.

One rank of each orbit then gets a colour of its own, all at once, and colours are refined until
the nodes of a cell have the same bandwidth to and from each cell, which is checked exactly. A
maximum flow of the quotient (cells, with the sums of capacities between them) to a rank that is
alone in its cell is one of the graph: the flow F(A, B) between two cells lifts to
F(A, B) c(e) / C(A, B) on each link e between them, at most c(e) and conserved at every node, since
every node of A has the same share of C(A, B). The cut is a union of cells; it is counted again on
the whole graph.

Colours alone do not do: refinement sees no difference between a ring of six boxes and two rings of
three. It takes the maps to know that the ranks of a colour are alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from forestcoll.common.errors import ForestError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.kernel import _kernel
from forestcoll.graph.symmetry.components import find_translations, match_parts, refine
from forestcoll.graph.symmetry.group import Image, kinds, least_in_orbits, links_without_image

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.int64]
    Mask = NDArray[np.bool_]

ALIKE_FROM = 1_024
"""Above that many ranks, alike ones are looked for: one flow will do for all of them."""
TRIES = 3
"""Maps of a division that are tried: each leaves the parts alone that the one before tore."""
FAR = 4
"""Hops from ranks that are told apart."""


@lru_cache(maxsize=2)
def find_rotations(
    graph: CapacityGraph, fixed: int | None = None, tiers: bool = False
) -> tuple[Image, ...]:
    """Symmetries of the graph, each checked link by link; none where none is found.

    Per set of switches that is taken away one that rotates each group of alike parts. `fixed`: a
    node that stays where it is. `tiers`: those, too, that make switches alike, not only ranks.
    """
    translations = find_translations(graph) if fixed is None else None
    if translations is not None:
        return translations.generators
    different = {outside.tobytes(): outside for outside in _outsides(graph, tiers)}
    images = (_rotate_alike(graph, outside, fixed) for outside in different.values())
    return tuple(image for image in images if image is not None)


def _outsides(graph: CapacityGraph, tiers: bool) -> Iterator[Mask]:
    """Switches between the parts: hubs, those of no box, those far from ranks, all of them.

    `tiers`: and those as far from ranks as each other: planes of switches fall apart.
    """
    import numpy as np

    tail, head = np.asarray(graph.tail), np.asarray(graph.head)
    switch = np.ones(graph.n, dtype=bool)
    switch[list(graph.ranks)] = False
    hops = np.where(switch, FAR, 0)
    for _ in range(1, FAR):
        for near, far in ((tail, head), (head, tail)):
            np.minimum.at(hops, far, hops[near] + 1)
    degree = np.bincount(tail, minlength=graph.n)
    yield switch & (degree * degree > 2 * len(tail))
    yield switch & np.asarray([not graph.box(v) for v in range(graph.n)])
    for hop in range(FAR - 1, 0, -1):
        yield switch & (hops >= hop)
        if tiers:
            yield switch & (hops == hop)


def _rotate_alike(graph: CapacityGraph, outside: Mask, fixed: int | None) -> Image | None:
    """A symmetry that rotates alike parts of the graph without the nodes `outside`, if any does."""
    import numpy as np

    apart = np.flatnonzero(outside)
    alone = apart if fixed is None else np.append(apart, fixed)
    colours = refine(graph, kinds(graph, alone.tolist()))
    label = np.asarray(_kernel.components(*graph.wires, apart.tolist()))
    kind = np.asarray(kinds(graph))
    groups = match_parts(graph, label.tolist(), colours)
    for _ in range(TRIES):
        image = np.arange(graph.n)
        for rows in groups:
            image[rows] = np.roll(rows, -1, axis=0)
        torn = links_without_image(graph, image)
        if not torn.size:
            kept = bool(groups) and np.array_equal(kind[image], kind)
            return tuple(image.tolist()) if kept else None
        ends = np.asarray(graph.tail)[torn], np.asarray(graph.head)[torn]
        loose = np.zeros(graph.n + 1, dtype=bool)  # the last one: parts outside have label -1
        loose[label[np.concatenate(ends)]] = True
        loose[-1] = False
        whole = [rows[~loose[label[rows[:, 0]]]] for rows in groups]
        groups = [rows for rows in whole if len(rows) > 1]
    return None


@dataclass(frozen=True, slots=True)
class Quotient:
    """Cells of an equitable partition, and the capacity between each two of them.

    `cell`: of each node. `sinks`: the cells of the ranks that are alone in theirs. `links`: how
    many cells there are, tails, heads and capacities of the links between them; those inside of a
    cell are left out. `parts`: per cell those of its ranks.
    """

    graph: CapacityGraph
    cell: Array
    sinks: list[int]
    links: tuple[int, list[int], list[int], list[int]]
    parts: Array

    def least_cut(self, root: int | None = None) -> tuple[int, int, list[int]]:
        """(capacity that leaves, parts held, nodes) of the cut with the least ratio of the two.

        With a `root` (a node alone in its cell) of the cuts that hold it the one that least leaves;
        it counts as one part.
        """
        import numpy as np

        if root is None:
            holders = np.flatnonzero(self.parts).tolist()
            parts = self.parts[holders].tolist()
            cells = _kernel.best_ratio(*self.links, holders, parts, self.sinks)[2]
        else:
            cells = _kernel.least_flow(*self.links, int(self.cell[root]), self.sinks)[1]
        graph, inside = self.graph, np.isin(self.cell, cells)
        out = inside[list(graph.tail)] & ~inside[list(graph.head)]
        leaving = int(np.asarray(graph.capacity)[out].sum())
        held = 1 if root is not None else int(self.parts[cells].sum())
        return leaving, held, np.flatnonzero(inside).tolist()


def fold(graph: CapacityGraph, apart: Sequence[int]) -> Quotient:
    """The quotient in which each of the ranks `apart` (nodes) is alone in its cell.

    Raises ForestError where cells that colours took for even are not.
    """
    return divide(graph, apart, find_cells(graph, apart))


def find_cells(graph: CapacityGraph, apart: Sequence[int]) -> Array:
    """Per node its cell by colours, each of `apart` alone in one."""
    import numpy as np

    colour = np.asarray(kinds(graph, apart))
    cell = np.asarray(refine(graph, colour.tolist()))
    if len(np.unique(cell * (colour.max() + 1) + colour)) != int(cell.max()) + 1:
        raise ForestError("colours took nodes of different kinds for alike")
    return cell


def divide(graph: CapacityGraph, apart: Sequence[int], cell: Array) -> Quotient:
    """The quotient with these cells; ForestError where nodes of one have other sums of capacity."""
    import numpy as np

    count = int(cell.max()) + 1
    tail, head, capacity = (np.asarray(x) for x in (graph.tail, graph.head, graph.capacity))
    for near, far in ((tail, head), (head, tail)):
        _check_even(cell, near, cell[far], capacity)
    pair, between = sums(cell[tail] * count + cell[head], capacity)
    parts = np.zeros(count, dtype=np.int64)
    np.add.at(parts, cell[list(graph.ranks)], np.asarray(graph.parts))
    ends = np.stack((*np.divmod(pair, count), between))
    links = ends[:, ends[0] != ends[1]].tolist()
    return Quotient(graph, cell, cell[list(apart)].tolist(), (count, *links), parts)


def sums(keys: Array, amounts: Array) -> tuple[Array, Array]:
    """(different keys, the sum of the amounts of each)."""
    import numpy as np

    unique, place = np.unique(keys, return_inverse=True)
    total = np.zeros(len(unique), dtype=np.int64)
    np.add.at(total, place, amounts)
    return unique, total


def _check_even(cell: Array, near: Array, other: Array, capacity: Array) -> None:
    """ForestError unless all nodes of a cell have as much capacity to each other cell."""
    import numpy as np

    count = int(cell.max()) + 1
    pair, total = sums(near * count + other, capacity)
    key = cell[pair // count] * count + pair % count
    cells, first, place, size = np.unique(
        key, return_index=True, return_inverse=True, return_counts=True
    )
    if (total != total[first][place]).any() or (size != np.bincount(cell)[cells // count]).any():
        raise ForestError("colours took nodes for alike whose links differ")


def alike_ranks(graph: CapacityGraph, root: int | None = None) -> list[int]:
    """One rank (node) of each orbit of the symmetries that were found, and that keep `root`."""
    import numpy as np

    images = [np.asarray(image) for image in find_rotations(graph, root)]
    ranks: list[int] = np.unique(least_in_orbits(graph.n, images)[list(graph.ranks)]).tolist()
    return ranks
