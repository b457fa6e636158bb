"""Routes: k equal units for every pair of ranks, each whole on one path.

One source of each orbit of a group is routed, and the group moves its paths: a path stands for all
of its different images. Where the group moves every rank each has one image for each element; where
it keeps some ranks in place (equal boxes beside a broken one) elements that keep a whole path make
no new one. The links of an orbit carry alike, so only orbits of links have a load:

    load(O) = (images of the listed paths' crossings of O) / (links in O)

and with k units per pair the rate of a pair is k over the largest load(O) / c(O). What whole units
cost against the optimum is known as soon as the routes are: both numbers are exact.

What every link carries of an all-to-all's flows or routes, as the table that forests have.

The order of each path's links: as few bytes as can be meet on a link in the same hop.

A onesided plan goes hop by hop, all ranks together, so its time is that of the fullest link of each
hop, added up. Symmetric routes may go along their links in another order, over images of the same
ones, which leaves all loads as they are: a torus that goes x first, then y, then z keeps a third of
its links busy, one whose paths take turns all of them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from random import Random

from forestcoll.common.errors import ForestError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.link_table import LinkTable
from forestcoll.graph.symmetry.group import AbelianGroup, SymmetryGroup
from forestcoll.solver.alltoall.demand import Demand
from forestcoll.solver.alltoall.flows import Optimum, reach_rate
from forestcoll.solver.walks import links_out

Group = SymmetryGroup | AbelianGroup
MOST_PATHS = 65_536
"""Paths of all pairs that are written out for a plan."""
Path = tuple[int, ...]
"""Nodes, from the source to the target."""


@dataclass(frozen=True, slots=True)
class Route:
    """`units` of the pair (path[0], path[-1]) and of all its images."""

    path: Path
    units: int


@dataclass(frozen=True, slots=True)
class Flow:
    """`count` chunks of what rank `ranks[0]` sends rank `ranks[-1]`, from the first-th on."""

    ranks: tuple[int, ...]
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Routes:
    """Paths for every pair: those listed, moved by `group` (of one element: all are listed).

    `units`: how many every pair has. `optimum`: what bounds them.
    """

    optimum: Optimum
    group: Group
    units: int
    routes: tuple[Route, ...]

    def __repr__(self) -> str:
        return f"<Routes: {len(self.routes)} paths, {self.units} units per pair, {self.algbw} GB/s>"

    @property
    def demand(self) -> Demand:
        """What is sent."""
        return self.optimum.demand

    @property
    def graph(self) -> CapacityGraph:
        """On what."""
        return self.optimum.demand.graph

    @property
    def images(self) -> int:
        """How many symmetries move the paths."""
        return self.group.size

    @property
    def total(self) -> int:
        """How many paths there are with all images."""
        return sum(self.group.images_of(route.path) for route in self.routes)

    def expand(self) -> Iterator[Route]:
        """All paths, each image once."""
        if isinstance(self.group, AbelianGroup):
            for route in self.routes:
                for path in self.group.images(route.path):
                    yield Route(path, route.units)
            return
        for element in self.group.elements():
            for route in self.routes:
                yield Route(tuple([element[v] for v in route.path]), route.units)

    @property
    def algbw(self) -> Fraction:
        """GB/s, from the loads."""
        rate = rate_of(self.graph, loads(self.graph, self.group, self.routes), self.units)
        return rate * self.graph.unit * len(self.graph.ranks)

    @property
    def hops(self) -> int:
        """GPU to GPU hops of the longest path."""
        gpu = self.graph.gpu
        return max(sum(gpu[v] for v in route.path[1:]) for route in self.routes)


def loads(graph: CapacityGraph, group: Group, routes: Sequence[Route]) -> dict[int, Fraction]:
    """Units that each link of an orbit (its least link) carries; ForestError for a missing link."""
    number = graph.numbers
    crossed: dict[int, int] = defaultdict(int)
    for route in routes:
        units = route.units * group.images_of(route.path)
        for hop in pairwise(route.path):
            if hop not in number:
                u, v = hop
                raise ForestError(f"routes: no link from {graph.names[u]} to {graph.names[v]}")
            crossed[group.link[number[hop]]] += units
    sizes = Counter(group.link)
    return {o: Fraction(count, sizes[o]) for o, count in crossed.items()}


def rate_of(graph: CapacityGraph, load: dict[int, Fraction], units: int) -> Fraction:
    """Units of capacity that a pair gets when all links are within theirs."""
    return units / max(amount / graph.capacity[o] for o, amount in load.items())


def check(routes: Routes) -> Fraction:
    """The algbw in GB/s, once every pair is known to have all its units; else ForestError.

    Only for an all-to-all among all ranks. A path may not visit a GPU twice.
    """
    graph, group = routes.graph, routes.group
    if not routes.demand.even:
        raise ForestError("routes: only for an all-to-all among all ranks")
    ranks = set(graph.ranks)
    seen: dict[int, Sequence[int]] = {}
    have: dict[tuple[int, int], int] = defaultdict(int)
    for route in routes.routes:
        path = route.path
        gpus = [v for v in path if graph.gpu[v]]
        if len(path) < 2 or len({*gpus}) < len(gpus) or not {path[0], path[-1]} <= ranks:
            raise ForestError(
                f"routes: {[graph.names[v] for v in path]} is no path from a rank to another"
            )
        if route.units < 1:
            raise ForestError(f"routes: {route.units} units on a path")
        source, target = path[0], path[-1]
        if source not in seen:
            seen[source] = group.least_images(source)
        # images of the path for each image of the pair
        times = group.images_of(path) // group.images_of((source, target))
        have[source, seen[source][target]] += times * route.units
    home, sources = group.node, set(seen)
    if len({home[source] for source in sources}) < len(sources):
        raise ForestError("routes: two listed sources are images of each other")
    if {home[source] for source in sources} != {home[rank] for rank in ranks}:
        raise ForestError("routes: some rank is the image of no listed source")
    for source in sources:
        for target in ranks - {source}:
            units = have.get((source, seen[source][target]), 0)
            if units != routes.units:
                raise ForestError(
                    f"routes: {units} units from {graph.names[source]} to "
                    f"{graph.names[target]}, not {routes.units}"
                )
    return routes.algbw


def link_loads(exchange: Optimum | Routes) -> LinkTable:
    """A row for each direction of a link: its load for each byte of a send buffer, how busy it is.

    Of flows and their images that is the average over links that symmetry makes alike.
    """
    graph, algbw = exchange.demand.graph, exchange.algbw
    if isinstance(exchange, Routes):
        crossed = loads(graph, exchange.group, exchange.routes)
        orbit = exchange.group.link
        unit = Fraction(1, len(graph.ranks) * exchange.units)
        share = {o: amount * unit for o, amount in crossed.items()}
    else:
        _, flows = reach_rate(exchange.demand, exchange.folding, exchange.flows, exchange.rate)
        orbit = exchange.folding.link.tolist()
        share = {o: amount * graph.unit / algbw for o, amount in flows.items()}
    return LinkTable.of(graph, (share.get(o, 0) for o in orbit), 1, algbw)


CHOICES = 24
"""Orders of a path that are tried."""
STEPS = 2_000
"""Links that are looked at for them."""
ROUNDS = 4
"""Times that every path is looked at."""
STEEP = 6
"""The power of a load: the fullest links of a hop count most."""

Key = tuple[int, int]  # hop, orbit of links


def even_out(routes: Routes) -> Routes:
    """The same routes, their links in the order that keeps hops most even; all loads stay."""
    orders = _Orders(routes)
    rng = Random(0)
    listed = list(routes.routes)
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
    if best == list(routes.routes):
        return routes
    ordered = replace(routes, routes=tuple(best))
    check(ordered)
    return ordered


class _Orders:
    """Loads of each hop on each orbit of links, for the listed routes."""

    def __init__(self, routes: Routes) -> None:
        graph, self.group = routes.graph, routes.group
        self.gpu = graph.gpu
        orbit = routes.group.link
        sizes = Counter(orbit)
        self.room = {o: sizes[o] * graph.capacity[o] for o in sizes}
        self.near = links_out(graph.n, graph.along(orbit))
        self.orbit = dict(zip(graph.ends, orbit, strict=True))
        self.load: dict[Key, float] = defaultdict(float)
        self.powers: dict[int, float] = defaultdict(float)  # per hop, of all loads
        for route in routes.routes:
            self._add(route, 1)

    def choices(self, path: Path, rng: Random) -> list[Path]:
        """Other paths between the same ends over images of the same links, and as many GPUs."""
        if sum(self.gpu[v] for v in path) < 3:
            return []
        left = Counter(self.orbit[hop] for hop in pairwise(path))
        images = self._images(path)
        choices: list[Path] = []
        steps = STEPS
        for other in self._walk([path[0]], path[-1], left, rng):
            steps -= 1
            if steps < 0 or len(choices) == CHOICES:
                break
            if other and other != path and self._images(other) == images:
                choices.append(other)
        return choices

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
        return self.group.images_of(path)
