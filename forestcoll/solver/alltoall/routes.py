"""Routes: k equal units for every pair of ranks, each whole on one path.

One source of each orbit of a group is routed, and the group moves its paths: a path stands for all
of its different images. Where the group moves every rank each has one image for each element; where
it keeps some ranks in place (equal boxes beside a broken one) elements that keep a whole path make
no new one. The links of an orbit carry alike, so only orbits of links have a load:

    load(O) = (images of the listed paths' crossings of O) / (links in O)

and with k units per pair the rate of a pair is k over the largest load(O) / c(O). What whole units
cost against the optimum is known as soon as the routes are: both numbers are exact.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from forestcoll.common.errors import ForestError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.abelian import AbelianGroup
from forestcoll.graph.symmetry.group import SymmetryGroup
from forestcoll.solver.alltoall.demand import Demand
from forestcoll.solver.alltoall.flows import Optimum

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
    """Paths for every pair: those listed, moved by `group` (None: all are listed).

    `units`: how many every pair has. `optimum`: what bounds them.
    """

    optimum: Optimum
    group: SymmetryGroup | AbelianGroup | None
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
        return 1 if self.group is None else self.group.size

    @property
    def total(self) -> int:
        """How many paths there are with all images."""
        if self.group is None:
            return len(self.routes)
        return sum(self.group.images_of(route.path) for route in self.routes)

    def expand(self) -> Iterator[Route]:
        """All paths, each image once."""
        if isinstance(self.group, AbelianGroup):
            for route in self.routes:
                for path in self.group.images(route.path):
                    yield Route(path, route.units)
            return
        identity = tuple(range(self.graph.n))
        for element in [identity] if self.group is None else self.group.elements():
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


def orbit_of(graph: CapacityGraph, group: SymmetryGroup | AbelianGroup | None) -> tuple[int, ...]:
    """Per link the least one of its orbit."""
    return tuple(range(len(graph.tail))) if group is None else group.link


def loads(
    graph: CapacityGraph, group: SymmetryGroup | AbelianGroup | None, routes: Sequence[Route]
) -> dict[int, Fraction]:
    """Units that each link of an orbit (its least link) carries; ForestError for a missing link."""
    number = {pair: e for e, pair in enumerate(zip(graph.tail, graph.head, strict=True))}
    orbit = orbit_of(graph, group)
    crossed: dict[int, int] = defaultdict(int)
    for route in routes:
        units = route.units * (1 if group is None else group.images_of(route.path))
        for hop in pairwise(route.path):
            if hop not in number:
                u, v = hop
                raise ForestError(f"routes: no link from {graph.names[u]} to {graph.names[v]}")
            crossed[orbit[number[hop]]] += units
    sizes = Counter(orbit)
    return {o: Fraction(count, sizes[o]) for o, count in crossed.items()}


def rate_of(graph: CapacityGraph, load: dict[int, Fraction], units: int) -> Fraction:
    """Units of capacity that a pair gets when all links are within theirs."""
    return units / max(amount / graph.capacity[o] for o, amount in load.items())


def check(found: Routes) -> Fraction:
    """The algbw in GB/s, once every pair is known to have all its units; else ForestError.

    Only for an all-to-all among all ranks. A path may not visit a node twice.
    """
    graph, group = found.graph, found.group
    if found.demand.matrix is not None or found.demand.groups:
        raise ForestError("routes: only for an all-to-all among all ranks")
    ranks = set(graph.ranks)
    seen: dict[int, Sequence[int]] = {}
    have: dict[tuple[int, int], int] = defaultdict(int)
    for route in found.routes:
        path = route.path
        if len(path) < 2 or len(set(path)) < len(path) or not {path[0], path[-1]} <= ranks:
            raise ForestError(
                f"routes: {[graph.names[v] for v in path]} is no path from a rank to another"
            )
        if route.units < 1:
            raise ForestError(f"routes: {route.units} units on a path")
        source, target = path[0], path[-1]
        if source not in seen:
            seen[source] = range(graph.n) if group is None else group.seen_from(source)
        times = 1
        if group is not None:  # images of the path for each image of the pair
            times = group.images_of(path) // group.images_of((source, target))
        have[source, seen[source][target]] += times * route.units
    home = group.node if group is not None else tuple(range(graph.n))
    sources = set(seen)
    if len({home[source] for source in sources}) < len(sources):
        raise ForestError("routes: two listed sources are images of each other")
    if {home[source] for source in sources} != {home[rank] for rank in ranks}:
        raise ForestError("routes: some rank is the image of no listed source")
    for source in sources:
        for target in ranks - {source}:
            units = have.get((source, seen[source][target]), 0)
            if units != found.units:
                raise ForestError(
                    f"routes: {units} units from {graph.names[source]} to "
                    f"{graph.names[target]}, not {found.units}"
                )
    return found.algbw
