"""Automorphisms of a graph by colour refinement: equal boxes, equal GPUs, tori, mirror images.

Two copies of the graph are coloured side by side. A node is set apart in the first copy and one of
the same colour in the second; refinement spreads the difference; again, until every colour stands
for one node on each side: a map, which is then checked link by link. The choice in the second copy
is random (seeded): random members of a group generate it after few. A wrong choice ends an attempt,
never in a wrong answer: fewer symmetries only make the caller's problem larger.
(McKay and Piperno, Practical graph isomorphism II, describes search by refinement.)
"""

from __future__ import annotations

import random
from collections import defaultdict
from functools import lru_cache

from forestcoll.graph.bound import Symmetry
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.group import DisjointSets, SymmetryGroup, extend_group, is_symmetry

WORK = 8_000_000
"""Links that the search may look at in all, about: some seconds at most, whatever the graph."""
IDLE = 6
"""Attempts in a row that bring nothing new before the search ends."""

Labelled = list[list[tuple[int, int]]]  # per node: (neighbour, label of direction and capacity)


@lru_cache(maxsize=4)
def find_symmetries(graph: CapacityGraph) -> tuple[Symmetry, ...]:
    """Generators of symmetries that were found and checked; the same graph gives the same ones.

    Among those that turn links round, one is enough: the others follow from it.
    """
    search = _Search(graph)
    generators = search.plain()
    turned = search.find_turn()
    return tuple(generators + ([turned] if turned else []))


def find_free_group(graph: CapacityGraph) -> SymmetryGroup | None:
    """A group of symmetries that commute and leave no rank in place, or None if none was found.

    Made of `symmetries`, each where it goes with those before it.
    """
    group = None
    for symmetry in find_symmetries(graph):
        if not symmetry.turned:
            group = extend_group(graph, group, symmetry.image) or group
    return group


class _Failed(Exception):
    """The two copies differ, or the work is used up."""


class _Search:
    def __init__(self, graph: CapacityGraph) -> None:
        self.graph = graph
        self.work = WORK
        self.random = random.Random(0)
        self.label: dict[tuple[int, bool], int] = {}
        for c in sorted(set(graph.capacity)):
            self.label[c, True] = len(self.label)
            self.label[c, False] = len(self.label)

    def plain(self) -> list[Symmetry]:
        """Generators that keep the direction of links."""
        graph = self.graph
        start = self.start(turned=False)
        nodes, links = DisjointSets(graph.n), DisjointSets(len(graph.tail))
        number = graph.numbers
        generators: list[Symmetry] = []
        idle = 0
        while start is not None and idle < IDLE and self.work > 0:
            cells = [a for a, _ in start.cells.values() if len(a) > 1]
            if not cells:
                break
            # nodes that may be alike and are not known to be, while there are some
            apart = [c for c in cells if len({nodes.find(v) for v in c}) > 1]
            cell = sorted(self.random.choice(apart or cells))
            first = self.random.choice(cell)
            other = [v for v in cell if nodes.find(v) != nodes.find(first)] or cell
            image = self.attempt(start.copy(), first, self.random.choice(other))
            idle += 1
            if image is None or not is_symmetry(graph, Symmetry(image)):
                continue
            joined = [nodes.join(v, w) for v, w in enumerate(image)]
            joined += [links.join(e, number[image[u], image[v]]) for (u, v), e in number.items()]
            if any(joined):
                generators.append(Symmetry(image))
                idle = 0
        return generators

    def find_turn(self) -> Symmetry | None:
        """One that turns links round: the identity where it does, or else whichever is found."""
        identity = Symmetry(tuple(range(self.graph.n)), turned=True)
        if is_symmetry(self.graph, identity):
            return identity
        start = self.start(turned=True)
        if start is None:
            return None
        for _ in range(IDLE):
            image = self.attempt(start.copy())
            if image is not None and is_symmetry(self.graph, Symmetry(image, turned=True)):
                return Symmetry(image, turned=True)
        return None

    def start(self, turned: bool) -> _Colouring | None:
        """Both copies (the second one turned round), coloured as far as refinement goes."""
        graph = self.graph
        other = graph.reverse() if turned else graph
        near = self.label_links(graph, 0) + self.label_links(other, graph.n)
        kinds: dict[tuple[bool, bool, bool], list[int]] = defaultdict(list)
        for half, g in enumerate((graph, other)):
            ranks = set(g.ranks)
            for v in range(g.n):
                kinds[v in ranks, g.multicast[v], g.aggregation[v]].append(half * g.n + v)
        colouring = _Colouring(near, graph.n)
        try:
            self.work -= colouring.set_apart([kinds[kind] for kind in sorted(kinds)])
        except _Failed:
            return None
        return colouring

    def label_links(self, graph: CapacityGraph, offset: int) -> Labelled:
        near: Labelled = [[] for _ in range(graph.n)]
        for u, v, c in graph.arcs:
            near[u].append((offset + v, self.label[c, True]))
            near[v].append((offset + u, self.label[c, False]))
        return near

    def attempt(
        self, colouring: _Colouring, first: int | None = None, image: int | None = None
    ) -> tuple[int, ...] | None:
        """The map of one random descent, `first` going to `image`; None where it fails."""
        n = self.graph.n
        try:
            while True:
                if first is None or image is None:
                    cell = min(
                        (c for c in colouring.cells.values() if len(c[0]) > 1),
                        key=lambda c: (len(c[0]), min(c[0])),
                        default=None,
                    )
                    if cell is None:
                        break
                    first = min(cell[0])
                    image = self.random.choice(sorted(cell[1])) - n
                self.work -= colouring.set_apart([[first, n + image]])
                first = image = None
                if self.work <= 0:
                    return None
        except _Failed:
            return None
        out = [0] * n
        for (v,), (w,) in colouring.cells.values():
            out[v] = w - n
        return tuple(out)


class _Colouring:
    """Cells of nodes that look alike, as (nodes of the first copy, nodes of the second)."""

    def __init__(self, near: Labelled, n: int) -> None:
        self.near = near
        self.n = n
        self.colour = [0] * (2 * n)
        self.cells: dict[int, tuple[set[int], set[int]]] = {
            0: (set(range(n)), set(range(n, 2 * n)))
        }
        self.next = 1

    def copy(self) -> _Colouring:
        """One that changes apart from this one."""
        out = _Colouring.__new__(_Colouring)
        out.near, out.n, out.next = self.near, self.n, self.next
        out.colour = list(self.colour)
        out.cells = {c: (set(a), set(b)) for c, (a, b) in self.cells.items()}
        return out

    def set_apart(self, groups: list[list[int]]) -> int:
        """Gives each group a colour of its own and spreads the difference; returns the work."""
        queue: list[int] = []
        for group in groups:
            queue.append(self._split(self.colour[group[0]], group))
        work = 0
        while queue:
            splitter = queue.pop()
            touched: dict[int, list[int]] = defaultdict(list)
            for side in self.cells.get(splitter, ()):
                for u in side:
                    work += len(self.near[u])
                    for v, label in self.near[u]:
                        touched[v].append(label)
            looks: dict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
            for v, labels in touched.items():
                looks[self.colour[v], tuple(sorted(labels))].append(v)
            for colour, look in sorted(looks):
                if len(self.cells[colour][0]) > 1:
                    self._spread(queue, colour, looks[colour, look])
                elif len(looks[colour, look]) != 2:
                    raise _Failed
        return work

    def _spread(self, queue: list[int], colour: int, group: list[int]) -> None:
        """Splits `group` off its colour, where it is a part, and puts what is new on the queue."""
        cell = self.cells[colour]
        if len(group) == len(cell[0]) + len(cell[1]):
            return
        new = self._split(colour, group)
        # what the rest looks like follows from the whole and the new part
        small = new
        if colour not in queue and len(self.cells[colour][0]) < len(self.cells[new][0]):
            small = colour
        queue.append(small)

    def _split(self, colour: int, group: list[int]) -> int:
        a = {v for v in group if v < self.n}
        b = {v for v in group if v >= self.n}
        if len(a) != len(b):
            raise _Failed
        cell = self.cells[colour]
        cell[0].difference_update(a)
        cell[1].difference_update(b)
        if not cell[0]:
            del self.cells[colour]
        new, self.next = self.next, self.next + 1
        self.cells[new] = (a, b)
        for v in group:
            self.colour[v] = new
        return new
