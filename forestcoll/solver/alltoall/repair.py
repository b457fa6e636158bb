"""Repair of routes: units leave the fullest links for ways that cost less.

A price on each orbit of links rises steeply with its load. One unit after another that crosses the
fullest orbits is taken off and put on its cheapest way; the move stays where the loads, from the
fullest on, have become smaller.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.solver.alltoall.routes import Path

STEEPNESS = 30.0
"""Prices are exp(STEEPNESS * (load / room - 1))."""
HOP = 0.02
"""Price of a link whatever its load: no long way round for nothing."""
TRIES = 2000
"""Units that are taken off and put on again at most."""
FULL = 1e-9
"""Loads are equal to the room where they differ by less, as a share."""


@dataclass(frozen=True, slots=True)
class Commodity:
    """What one source sends to targets that the same symmetries keep in place with it.

    `open`: the nodes that its paths may use. `weight`: images of a path, as a share of the group.
    """

    source: int
    targets: tuple[int, ...]
    open: frozenset[int]
    weight: float

    def links(self, graph: CapacityGraph) -> int:
        """How many links its paths may use."""
        return sum(
            u in self.open and v in self.open for u, v in zip(graph.tail, graph.head, strict=True)
        )


class Load:
    """Crossings of each orbit, beside how many it has room for at the optimum."""

    def __init__(self, room: Sequence[float], units: float) -> None:
        self.room = [r * units for r in room]
        self.count: list[float] = [0] * len(self.room)

    def price(self, orbit: int, more: float = 0) -> float:
        """What one further crossing costs, with `more` there already."""
        over = (self.count[orbit] + more + 1) / self.room[orbit] - 1
        return math.exp(min(STEEPNESS * over, 200.0))

    def share(self, orbit: int) -> float:
        """How full an orbit is: 1 at the optimum."""
        return self.count[orbit] / self.room[orbit]

    def worst(self) -> float:
        """The largest share."""
        return max(map(self.share, range(len(self.room))))


class Repair:
    """The work on one set of routes: `routes` (path -> units) and `load` are changed in place."""

    def __init__(
        self,
        graph: CapacityGraph,
        orbit: Sequence[int],
        orbits: Callable[[Path], list[int]],
        of: Mapping[tuple[int, int], Commodity],
        routes: dict[Path, int],
        load: Load,
    ) -> None:
        self.graph, self.orbits, self.of = graph, orbits, of
        self.routes, self.load = routes, load
        self.near: list[list[tuple[int, int]]] = [[] for _ in range(graph.n)]
        self.into: list[set[int]] = [set() for _ in range(graph.n)]
        for e, (u, v) in enumerate(zip(graph.tail, graph.head, strict=True)):
            self.near[u].append((v, orbit[e]))
            self.into[v].add(orbit[e])

    def run(self) -> None:
        """Until nothing is over its room, or nothing helps."""
        tries = TRIES
        while tries > 0:
            worst = self.load.worst()
            if worst <= 1 + FULL:
                return
            full = {o for o in range(len(self.load.room)) if self.load.share(o) > worst - FULL}
            moved = False
            for path in self.routes:  # which a move changes, and ends the loop
                if full.isdisjoint(self.orbits(path)):
                    continue
                tries -= 1
                if self._move(path, full):
                    moved = True
                    break
                if tries <= 0:
                    return
            if not moved:
                return

    def _move(self, path: Path, full: set[int]) -> bool:
        """Whether one unit of `path` found a better way."""
        before, load = self.orbits(path), self.load
        commodity = self.of[path[0], path[-1]]
        weight = commodity.weight
        for orbit in before:
            load.count[orbit] -= weight
        other = self._cheapest(path, commodity.open)
        after = self.orbits(other)
        for orbit in after:
            load.count[orbit] += weight
        touched = set(before) | set(after)
        if other != path and self._better(before, after, touched, weight):
            self._shift(path, -1)
            self._shift(other, 1)
            return True
        for orbit in after:
            load.count[orbit] -= weight
        for orbit in before:
            load.count[orbit] += weight
        return False

    def _better(
        self, before: list[int], after: list[int], touched: set[int], weight: float
    ) -> bool:
        """Whether the fullest of the orbits that a move has touched were fuller before it."""
        load = self.load
        new = sorted((load.share(o) for o in touched), reverse=True)
        old = sorted(
            (
                (load.count[o] + weight * (before.count(o) - after.count(o))) / load.room[o]
                for o in touched
            ),
            reverse=True,
        )
        for a, b in zip(new, old, strict=True):
            if abs(a - b) > FULL:
                return a < b
        return False

    def _shift(self, path: Path, units: int) -> None:
        count = self.routes.get(path, 0) + units
        if count:
            self.routes[path] = count
        else:
            del self.routes[path]

    def _cheapest(self, path: Path, open_: frozenset[int]) -> Path:
        """The cheapest way at the present prices (Dijkstra), no dearer than the path itself."""
        source, target = path[0], path[-1]
        prices = [HOP + self.load.price(o) for o in range(len(self.load.room))]
        most = sum(prices[o] for o in self.orbits(path)) * (1 + FULL)
        most_before = most - min(prices[o] for o in self.into[target]) * (1 - FULL)
        best, parent = {source: 0.0}, {source: source}
        heap, done = [(0.0, source)], set()
        while heap:
            d, u = heapq.heappop(heap)
            if u in done:
                continue
            done.add(u)
            if u == target:
                break
            for v, orbit in self.near[u]:
                to = d + prices[orbit]
                if to > (most if v == target else most_before) or v in done or v not in open_:
                    continue  # the last link is still to come
                if to < best.get(v, math.inf):
                    best[v], parent[v] = to, u
                    heapq.heappush(heap, (to, v))
        if target not in parent:
            return path
        found = [target]
        while found[-1] != source:
            found.append(parent[found[-1]])
        return tuple(reversed(found))
