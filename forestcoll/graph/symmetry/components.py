"""Isomorphic components of a graph around a few switches: boxes on a fabric, pods below spines.

Found from the links alone, whatever the nodes are called. Without the switches "outside", a graph
falls into parts; where all parts are alike and hang on the same outside nodes in the same way, they
may be rotated: part b takes the place of part b + 1. What is found is checked link by link
(`symmetry_group`), so a wrong guess costs time, never correctness.

Structure of a regular graph: groups of its symmetries, each checked link by link.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.kernel import _kernel
from forestcoll.graph.symmetry.group import (
    Image,
    SymmetryGroup,
    extend_group,
    kinds,
    symmetry_group,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.int64]

CLASSES_TRIED = 8
"""Sets of switches that are tried as the outside, beside the obvious ones."""
ALIGNMENTS = 200
"""Refinements that may be spent on matching the nodes of parts where their order does not do."""
SAMPLED = 8
"""Ranks at which a translation is tried before it is checked everywhere."""
INNER_NODES = 4_096
"""Parts (with the outside) beyond this are not searched for symmetries of their own."""


@dataclass(frozen=True, slots=True)
class Components:
    """`members[b][i]` is node i of part b: all parts in the same order, ranks of part 0 by number.

    `rotation` maps `members[b][i]` to `members[b + 1][i]`, the last part to the first, and keeps
    `outside` in place, node by node; it is a symmetry of the graph.
    """

    outside: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]
    rotation: Image

    def everywhere(self, image: dict[int, int]) -> Image:
        """A map of part 0 and the outside, done in every part alike."""
        out = list(range(len(self.rotation)))
        place = {v: i for i, v in enumerate(self.members[0])}
        for v in self.outside:
            out[v] = image[v]
        for i, v in enumerate(self.members[0]):
            to = place[image[v]]
            for part in self.members:
                out[part[i]] = part[to]
        return tuple(out)


def find_components(graph: CapacityGraph) -> Iterator[Components]:
    """Ways to see the graph as equal parts, the fewest parts first."""
    ranks = set(graph.ranks)
    links = graph.wires
    colours = refine(graph, kinds(graph))
    seen: set[tuple[int, ...]] = set()
    divisions = []
    for candidate in _outsides(graph, colours):
        labels = _kernel.components(*links, candidate)
        with_ranks = {labels[v] for v in ranks}
        if -1 in with_ranks or len(with_ranks) < 2:
            continue
        whole = tuple(v for v in range(graph.n) if labels[v] not in with_ranks)
        if whole not in seen:
            seen.add(whole)
            divisions.append((len(with_ranks), whole, labels))
    for _, outside, labels in sorted(divisions, key=lambda f: (f[0], f[1])):
        parts = _align(graph, outside, labels)
        if parts is not None:
            yield parts


def find_inner_symmetries(graph: CapacityGraph, parts: Components) -> SymmetryGroup:
    """The rotation of the parts, and what moves the ranks of every part freely and alike.

    Tried are rotations of digits of a rank's number in its part (all, halves, every other, ...),
    which takes in equal GPUs, equal boxes of a pod, meshes and cubes.
    """
    group = symmetry_group(graph, [parts.rotation])
    if len(parts.members[0]) + len(parts.outside) > INNER_NODES:
        return group
    inside = set(graph.ranks)
    ranks = [v for v in parts.members[0] if v in inside]
    near = _neighbours(graph, {*parts.members[0], *parts.outside})
    for image in digit_rotations(len(ranks)):
        if group.size == len(graph.ranks):
            break
        if group.node[ranks[image[0]]] == group.node[ranks[0]]:
            continue
        whole = _extend(near, {ranks[i]: ranks[to] for i, to in enumerate(image)})
        if whole is not None:
            group = extend_group(graph, group, parts.everywhere(whole)) or group
    return group


def find_translations(graph: CapacityGraph) -> SymmetryGroup | None:
    """What moves the ranks of a graph without switches freely: tori, cubes, meshes, rings.

    Ranks are taken to be numbered in order of their coordinates, as in `inner_generators`. None
    where there are switches, or no such symmetry.
    """
    count = len(graph.ranks)
    if graph.n != count:
        return None
    links = graph.links
    number = graph.rank_of
    sample = set(graph.ranks[:: max(1, count // SAMPLED)])
    near = [pair for pair in links if pair[0] in sample]
    group = None
    for size, step in _digits(count):

        def to(v: int, size: int = size, step: int = step) -> int:
            return graph.ranks[_turn_digit(number[v], size, step)]

        first = graph.ranks[0]
        if group is not None and group.node[to(first)] == group.node[first]:
            continue
        if any(links.get((to(u), to(v))) != links[u, v] for u, v in near):
            continue
        group = extend_group(graph, group, tuple(map(to, range(graph.n)))) or group
        if group is not None and group.size == count:
            break
    return group


def digit_rotations(count: int) -> Iterator[Image]:
    """Maps of 0 .. count - 1 that add 1 to one digit of the number, without carry.

    A digit is (number // step) % size, for all steps and sizes whose product divides the count; the
    largest sizes come first. Digits of size 2 turn bits over.
    """
    for size, step in _digits(count):
        yield tuple(_turn_digit(v, size, step) for v in range(count))


def _digits(count: int) -> list[tuple[int, int]]:
    """(size, step), the largest sizes first."""
    divisors = [d for d in range(1, count + 1) if count % d == 0]
    digits = [(d, step) for d in divisors[1:] for step in divisors if count // d % step == 0]
    return sorted(digits, key=lambda digit: (-digit[0], digit[1]))


def _turn_digit(v: int, size: int, step: int) -> int:
    """`v` with 1 added to its digit."""
    return v - step * (size - 1) if v // step % size == size - 1 else v + step


def _outsides(graph: CapacityGraph, colours: Sequence[int]) -> Iterator[list[int]]:
    """Sets of nodes that may be the outside: switches of one colour, without a box, all of them."""
    ranks = set(graph.ranks)
    relays = [v for v in range(graph.n) if v not in ranks]
    classes: dict[int, list[int]] = defaultdict(list)
    for v in relays:
        classes[colours[v]].append(v)
    yield from sorted(classes.values(), key=lambda c: (len(c), c))[:CLASSES_TRIED]
    yield [v for v in relays if not graph.box(v)]
    yield relays


def refine(graph: CapacityGraph, colours: Sequence[int]) -> list[int]:
    """Colours by which nodes differ, these and where links lead from each."""
    return _kernel.refine_colours(*graph.wires, graph.capacity, colours)


def _align(
    graph: CapacityGraph, outside: tuple[int, ...], labels: Sequence[int]
) -> Components | None:
    """The parts with their nodes in matching order, or None where they are not alike."""
    ranks = {labels[v] for v in graph.ranks}
    kept = [label if label in ranks else -1 for label in labels]
    groups = match_parts(graph, kept, refine(graph, kinds(graph, outside)))
    if len(groups) != 1 or groups[0].size < len(kept) - kept.count(-1):
        return None
    in_order: list[list[int]] = groups[0].tolist()
    aligned = _rotate(graph, outside, in_order)
    if aligned is not None:
        return aligned
    matched = [in_order[0]]
    budget = [ALIGNMENTS]
    for part in in_order[1:]:
        match = _match_by_search(graph, outside, in_order[0], part, budget)
        if match is None:
            return None
        matched.append(match)
    return _rotate(graph, outside, matched)


def match_parts(graph: CapacityGraph, labels: Sequence[int], colours: Sequence[int]) -> list[Array]:
    """Parts that have nodes of the same colours as others, as rows of nodes in matching order.

    `labels`: part of each node, -1 outside. Ranks come by number, then the others, as far as
    colours leave a choice; in the first part in this order altogether. The parts of a group and the
    groups come by their least ranks.
    """
    import numpy as np

    label, colour = np.asarray(labels), np.asarray(colours)
    ranks = np.asarray(graph.ranks)
    place = np.arange(graph.n) + len(ranks)
    place[ranks] = np.arange(len(ranks))
    inside = np.flatnonzero(label >= 0)
    if not inside.size:
        return []
    first = np.full(int(label.max()) + 1, 2 * graph.n)
    np.minimum.at(first, label[inside], place[inside])
    nodes = inside[np.lexsort((place[inside], colour[inside], first[label[inside]]))]
    starts = np.flatnonzero(np.diff(label[nodes], prepend=-1))
    sizes = np.diff(starts, append=len(nodes))
    seen = colour[nodes]
    alike: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        alike[size, seen[start : start + size].tobytes()].append(start)
    groups = [
        nodes[np.add.outer(begins, np.arange(size))]
        for (size, _), begins in alike.items()
        if len(begins) > 1
    ]
    return [rows[:, np.argsort(place[rows[0]])] for rows in groups]


def _rotate(
    graph: CapacityGraph, outside: tuple[int, ...], members: Sequence[Sequence[int]]
) -> Components | None:
    image = list(range(graph.n))
    for part, following in zip(members, [*members[1:], members[0]], strict=True):
        for v, to in zip(part, following, strict=True):
            image[v] = to
    if extend_group(graph, None, tuple(image)) is None:
        return None
    return Components(outside, tuple(tuple(part) for part in members), tuple(image))


def _match_by_search(
    graph: CapacityGraph,
    outside: tuple[int, ...],
    first: Sequence[int],
    part: Sequence[int],
    budget: list[int],
) -> list[int] | None:
    """`part` in the order of `first`, by setting nodes apart until all differ; None if that fails.

    A node of `first` and one of `part` that looks like it get a colour of their own; where that
    leads nowhere, the next one that looks like it is tried.
    """
    nodes = sorted({*outside, *first, *part})
    number = {v: i for i, v in enumerate(nodes)}
    among = graph.induce(nodes)

    def search(colours: list[int]) -> list[int] | None:
        if budget[0] <= 0:
            return None
        budget[0] -= 1
        colours = refine(among, colours)
        mine, other = (_by_colour(side, colours, number) for side in (first, part))
        if any(len(other.get(colour, ())) != len(same) for colour, same in mine.items()):
            return None
        unsettled = [colour for colour, same in mine.items() if len(same) > 1]
        if not unsettled:
            return [other[colours[number[v]]][0] for v in first]
        colour = min(unsettled, key=lambda c: len(mine[c]))
        for v in other[colour]:
            split = list(colours)
            split[number[mine[colour][0]]] = split[number[v]] = max(colours) + 1
            matching = search(split)
            if matching is not None:
                return matching
        return None

    start = refine(graph, kinds(graph, outside))
    return search([start[v] for v in nodes])


def _by_colour(
    side: Sequence[int], colours: Sequence[int], number: dict[int, int]
) -> dict[int, list[int]]:
    classes: dict[int, list[int]] = defaultdict(list)
    for v in side:
        classes[colours[number[v]]].append(v)
    return classes


Near = dict[int, dict[int, tuple[int, int]]]  # node -> neighbour -> (capacity to it, from it)


def _neighbours(graph: CapacityGraph, keep: set[int]) -> Near:
    import numpy as np

    kept = np.zeros(graph.n, dtype=bool)
    kept[list(keep)] = True
    tail, head = np.asarray(graph.tail), np.asarray(graph.head)
    near: Near = {v: {} for v in sorted(keep)}
    for e in np.flatnonzero(kept[tail] & kept[head]).tolist():
        u, v, c = graph.tail[e], graph.head[e], graph.capacity[e]
        near[u][v] = (c, near[u].get(v, (0, 0))[1])
        near[v][u] = (near[v].get(u, (0, 0))[0], c)
    return near


def _extend(near: Near, image: dict[int, int]) -> dict[int, int] | None:
    """`image`, extended to all nodes of `near` such that links may go to links; None if it fails.

    A node goes where its neighbours' images say; to itself where several places would do.
    """
    image = dict(image)
    taken = set(image.values())
    while len(image) < len(near):
        wanted = {
            v: {(image[u], *width) for u, width in around.items() if u in image}
            for v, around in near.items()
            if v not in image
        }
        ready = [v for v, look in wanted.items() if look]
        if not ready:
            for v in wanted:  # nothing that moves touches it
                if v in taken:
                    return None
                image[v] = v
            break
        for v in ready:
            options = (v, *(w for w in near if w not in taken))
            for w in options:
                look = {(u, *width) for u, width in near[w].items() if u in taken}
                if w not in taken and wanted[v] <= look:
                    image[v] = w
                    taken.add(w)
                    break
            else:
                return None
    return image


@dataclass(frozen=True, slots=True)
class Structure:
    """A group of a graph, with the parts that it rotates; no parts where it moves single ranks."""

    group: SymmetryGroup
    parts: Components | None


@lru_cache(maxsize=2)
def find_structures(graph: CapacityGraph) -> tuple[Structure, ...]:
    """Ways in which the graph is regular, checked link by link; empty where none is found."""
    if graph.shares:
        return ()
    moved = find_translations(graph)
    if moved is not None:
        return (Structure(moved, None),)
    return tuple(
        Structure(find_inner_symmetries(graph, parts), parts) for parts in find_components(graph)
    )
