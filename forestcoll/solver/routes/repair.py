"""Routes after a failure: the paths to retire, and those that replace them.

A path that is gone in a plane is replaced in that plane by the one over other switches between its
leaves whose fullest link is the least full. Where the plane has none any more (a port, a leaf or
the plane is gone), the edge's other paths share what it carried. All other paths stay as they are.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise, product

from forestcoll.common.errors import InfeasibleError
from forestcoll.solver.routes.fabric import Fabric
from forestcoll.solver.routes.segments import Edge, Way, segments_of

Hop = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """A path that is retired in a plane, and the one that replaces it there; None: others do."""

    edge: Edge
    plane: int
    retired: Way
    replaced: Way | None


@dataclass(frozen=True, slots=True)
class Repair:
    """`edges` on what is left, weights in parts of `total`; `hops`: what each link carries."""

    fabric: Fabric
    edges: list[Edge]
    total: int
    changes: list[Change]
    hops: dict[Hop, int]
    algbw: Fraction  # GB/s of all data that the links of the fabric allow


def repair(fabric: Fabric, edges: Sequence[Edge], total: int) -> Repair:
    """`edges` (in parts of `total`) on what is left in `fabric`.

    Raises InfeasibleError where two boxes have no path left.
    """
    search = _Search(fabric)
    gone = [
        [[p for p in w.planes if not search.stands(search.names(w.nodes, p))] for w in edge.ways]
        for edge in edges
    ]
    hit = [(at, edges[at], lost) for at, lost in enumerate(gone) if any(lost)]
    pieces = {len(way.planes) for edge in edges for way in edge.ways}
    for _, edge, lost in hit:
        left = sum(
            plane not in planes or any(search.paths(way.nodes, plane))
            for way, planes in zip(edge.ways, lost, strict=True)
            for plane in way.planes
        )
        if not left:
            raise InfeasibleError(
                f"no path is left from {edge.src} to {edge.dst} by adapters that the schedule "
                "uses; a new one may go around (--without)"
            )
        pieces.add(left)
    scale = math.lcm(*pieces)
    kept = []
    for edge, lost in zip(edges, gone, strict=True):
        ways = [
            replace(way, planes=stay, weight=way.weight * scale // len(way.planes) * len(stay))
            for way, planes in zip(edge.ways, lost, strict=True)
            if (stay := tuple(p for p in way.planes if p not in planes))
        ]
        kept.append(replace(edge, ways=tuple(ways)))
        for way in ways:
            search.load(way)
    changes: list[Change] = []
    for at, edge, lost in hit:
        done, orphaned = [*kept[at].ways], 0
        for way, planes in zip(edge.ways, lost, strict=True):
            weight = way.weight * scale // len(way.planes)
            for plane in planes:
                new = search.replace(way, plane, weight)
                changes.append(Change(edge, plane, way, new))
                if new is None:
                    orphaned += weight
                else:
                    done.append(new)
        share = orphaned // sum(len(way.planes) for way in done)
        more = [replace(way, weight=share * len(way.planes)) for way in done]
        for way in more:
            search.load(way)
        both = zip(done, more, strict=True)
        ways = [replace(way, weight=way.weight + other.weight) for way, other in both]
        kept[at] = replace(edge, ways=tuple(ways))
    total *= scale
    return Repair(fabric, kept, total, changes, dict(search.hops), search.rate(total))


class _Search:
    """Paths on what is left, by the ids of switches, and what their links carry."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric, self.links, self.hops = fabric, fabric.links, Counter[Hop]()
        self.near: dict[str, list[str]] = defaultdict(list)
        for here, there in self.links:
            if here in fabric.form and there in fabric.form:
                self.near[here].append(there)
        self._tried: dict[tuple[str, str, int], list[tuple[str, ...]]] = {}
        self.node, self.planes = fabric.nodes, fabric.plane_values

    def names(self, nodes: Sequence[str], plane: int) -> list[str]:
        """The ids of a path's nodes in that plane."""
        return [node.format(**self.planes[plane]) for node in nodes]

    def stands(self, names: Sequence[str]) -> bool:
        """Whether every link of a path is there."""
        return all(hop in self.links for hop in pairwise(self.node.get(n, n) for n in names))

    def load(self, way: Way) -> None:
        """Puts the path's weight on its links."""
        for plane in way.planes:
            for hop in pairwise(self.names(way.nodes, plane)):
                self.hops[hop] += way.weight // len(way.planes)

    def paths(self, nodes: Sequence[str], plane: int) -> Iterator[list[str]]:
        """The paths of as many switches between the same two adapters and leaves."""
        names = self.names(nodes, plane)
        if not self.stands(names[:2]) or not self.stands(names[-2:]):
            return
        switches = self.fabric.switches  # of the whole: also those that are gone
        fixed = switches[names[1]][1] | switches[names[-2]][1]
        for route in self._routes(self.node[names[1]], self.node[names[-2]], len(names) - 2):
            forms = [self.fabric.form[node] for node in route]
            span = {n: a.values for _, own in forms for n, a in own.items() if n not in fixed}
            for chosen in product(*span.values()):
                values = fixed | dict(zip(span, chosen, strict=True))
                path = [names[0], *(form.format(**values) for form, _ in forms), names[-1]]
                if self.stands(path):
                    yield path

    def _routes(self, start: str, end: str, length: int) -> list[tuple[str, ...]]:
        """Those over nodes of `left`, which may stand for several switches."""
        key = start, end, length
        if key not in self._tried:
            routes: list[tuple[str, ...]] = [(start,)]
            for k in range(length - 1):
                routes = [
                    (*route, node)
                    for route in routes
                    for node in self.near[route[-1]]
                    if node not in route and (node == end) == (k == length - 2)
                ]
            self._tried[key] = routes
        return self._tried[key]

    def replace(self, way: Way, plane: int, weight: int) -> Way | None:
        """The path that takes its place, with its weight on its links."""

        def fullest(path: list[str]) -> list[float]:
            loads = ((self.hops[hop] + weight) / float(self._rate(hop)) for hop in pairwise(path))
            return sorted(loads, reverse=True)

        path = min(self.paths(way.nodes, plane), key=fullest, default=None)
        if path is None:
            return None
        new = Way((plane,), tuple(path), segments_of(self.fabric, path), weight)
        self.load(new)
        return new

    def rate(self, total: int) -> Fraction:
        """GB/s of all data that the links allow."""
        return min(self._rate(hop) * total / weight for hop, weight in self.hops.items())

    def _rate(self, hop: Hop) -> Fraction:
        return self.links[self.node.get(hop[0], hop[0]), self.node.get(hop[1], hop[1])]
