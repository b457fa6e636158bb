"""The order of each path's links: as few bytes as can be meet on a link in the same hop.

A onesided plan goes hop by hop, all ranks together, so its time is that of the fullest link of each
hop, added up. Symmetric routes may go along their links in another order, over images of the same
ones, which leaves all loads as they are: a torus that goes x first, then y, then z keeps a third of
its links busy, one whose paths take turns all of them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from random import Random

from forestcoll.solver.alltoall.routes import Path, Route, Routes, check, orbit_of

CHOICES = 24
"""Orders of a path that are tried."""
STEPS = 2_000
"""Links that are looked at for them."""
ROUNDS = 4
"""Times that every path is looked at."""
STEEP = 6
"""The power of a load: the fullest links of a hop count most."""

Key = tuple[int, int]  # hop, orbit of links


def even_out(found: Routes) -> Routes:
    """The same routes, their links in the order that keeps hops most even; all loads stay."""
    orders = _Orders(found)
    rng = Random(0)
    listed = list(found.routes)
    choices = [orders.choices(route.path, rng) for route in listed]
    best, cost = list(listed), orders.time()
    for _ in range(ROUNDS):
        moved = False
        for number in rng.sample(range(len(listed)), len(listed)):
            path = orders.better(listed[number], choices[number])
            if path != listed[number].path:
                listed[number] = replace(listed[number], path=path)
                moved = True
        now = orders.time()
        if now < cost:
            best, cost = list(listed), now
        if not moved:
            break
    if best == list(found.routes):
        return found
    ordered = replace(found, routes=tuple(best))
    check(ordered)
    return ordered


class _Orders:
    """Loads of each hop on each orbit of links, for the listed routes."""

    def __init__(self, found: Routes) -> None:
        graph, self.group = found.graph, found.group
        self.gpu = graph.gpu
        orbit = orbit_of(graph, found.group)
        sizes = Counter(orbit)
        self.room = {o: sizes[o] * graph.capacity[o] for o in sizes}
        self.near: list[list[tuple[int, int]]] = [[] for _ in range(graph.n)]
        self.orbit: dict[tuple[int, int], int] = {}
        for e, (u, v) in enumerate(zip(graph.tail, graph.head, strict=True)):
            self.orbit[u, v] = orbit[e]
            self.near[u].append((v, orbit[e]))
        self.load: dict[Key, float] = defaultdict(float)
        self.powers: dict[int, float] = defaultdict(float)  # per hop, of all loads
        for route in found.routes:
            self._add(route, 1)

    def choices(self, path: Path, rng: Random) -> list[Path]:
        """Other paths between the same ends over images of the same links, and as many GPUs."""
        if sum(self.gpu[v] for v in path) < 3:
            return []
        left = Counter(self.orbit[hop] for hop in pairwise(path))
        images = self._images(path)
        found: list[Path] = []
        steps = STEPS
        for other in self._walk([path[0]], path[-1], left, rng):
            steps -= 1
            if steps < 0 or len(found) == CHOICES:
                break
            if other and other != path and self._images(other) == images:
                found.append(other)
        return found

    def _walk(
        self, path: list[int], target: int, left: Counter[int], rng: Random
    ) -> Iterator[Path]:
        """All such paths, in a random order; () for every link that is looked at."""
        u = path[-1]
        if u == target:
            if not +left:
                yield tuple(path)
            return
        for v, orbit in rng.sample(self.near[u], len(self.near[u])):
            yield ()
            if left[orbit] > 0 and v not in path:
                left[orbit] -= 1
                path.append(v)
                yield from self._walk(path, target, left, rng)
                path.pop()
                left[orbit] += 1

    def better(self, route: Route, choices: list[Path]) -> Path:
        """The path of these that meets least; the loads are then with it."""
        if not choices:
            return route.path
        self._add(route, -1)
        path = min((route.path, *choices), key=lambda path: self._cost(replace(route, path=path)))
        self._add(replace(route, path=path), 1)
        return path

    def time(self) -> float:
        """That of the fullest links of all hops."""
        worst: dict[int, float] = defaultdict(float)
        for (hop, _), load in self.load.items():
            worst[hop] = max(worst[hop], load)
        return sum(worst.values())

    def _cost(self, route: Route) -> float:
        """About what `time` would be with the route: the norms of all hops' loads, added up."""
        more: dict[Key, float] = defaultdict(float)
        for key, amount in self._keys(route):
            more[key] += amount
        powers = dict(self.powers)
        for key, amount in more.items():
            now = self.load.get(key, 0.0)
            powers[key[0]] = powers.get(key[0], 0.0) + (now + amount) ** STEEP - now**STEEP
        return sum(math.pow(max(0.0, power), 1 / STEEP) for power in powers.values())

    def _add(self, route: Route, sign: int) -> None:
        for key, more in self._keys(route):
            now = self.load[key]
            self.load[key] = now + sign * more
            self.powers[key[0]] += (now + sign * more) ** STEEP - now**STEEP

    def _keys(self, route: Route) -> Iterator[tuple[Key, float]]:
        images = route.units * self._images(route.path)
        hop = -1
        for u, v in pairwise(route.path):
            hop += self.gpu[u]
            orbit = self.orbit[u, v]
            yield (hop, orbit), images / self.room[orbit]

    def _images(self, path: Path) -> int:
        return 1 if self.group is None else self.group.images_of(path)
