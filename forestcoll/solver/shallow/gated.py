"""Boxes whose inner switches also lead out: room for what passes, trees inside on what is left.

A server of two sockets has its GPUs behind PCIe switches, and its adapters there, too: what enters,
what leaves and what the server spreads share its links. So they are shared out beforehand. Trees
enter over the adapters as these are wide and to the ranks that are nearest; each rank sends its own
trees to all other boxes, and a part of what is left leaves with trees of others. What the trees
inside need is packed on the rest, lowest first. Then boxes hang on boxes over whatever links these
trees leave: capacity is split, so that loads stay within it whatever is found.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise, product

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.solver.shallow.inside import Interior, Link, Spread
from forestcoll.solver.shares import apportion
from forestcoll.solver.walks import hops

QUARTERS = (4, 2, 1, 0)
"""Of what may leave beyond a box's own trees: how much is kept for those of others, most first."""
HIGHEST = 3
"""Hops inside a box up to which trees are searched."""

FAILURES = 4
"""Different boxes in which nothing is found, after which no others are looked at."""


@dataclass(frozen=True, slots=True)
class Gated:
    """How one box spreads what starts in it: per rank trees, of which `entries` come from outside.

    `nodes`: ranks first.
    """

    nodes: Sequence[int]
    entries: Mapping[int, int]
    spreads: Mapping[int, list[Spread]]

    @property
    def hops(self) -> int:
        """The height of the highest tree."""
        return max((spread.height for spread in chain(*self.spreads.values())), default=1)

    @property
    def loads(self) -> Mapping[Link, int]:
        """What the trees take of the links inside."""
        loads = Counter[Link]()
        for spread in chain(*self.spreads.values()):
            for link in chain.from_iterable(map(pairwise, spread.paths)):
                loads[link] += spread.weight
        return loads

    def move(self, nodes: Sequence[int]) -> Gated:
        """The same for a box that is alike, of these nodes."""
        to = dict(zip(self.nodes, nodes, strict=True))
        return Gated(
            nodes,
            {to[v]: units for v, units in self.entries.items()},
            {to[v]: [spread.move(to) for spread in some] for v, some in self.spreads.items()},
        )


class Links:
    """The links of a graph by their ends."""

    def __init__(self, graph: CapacityGraph, capacity: Sequence[int]) -> None:
        self.out: list[dict[int, int]] = [{} for _ in range(graph.n)]
        self.into: list[dict[int, int]] = [{} for _ in range(graph.n)]
        for t, h, c in graph.along(capacity):
            if c:
                self.out[t][h] = self.into[h][t] = c


@dataclass(frozen=True, slots=True)
class Gates:
    """Finds that for every box; boxes that are alike share their trees."""

    graph: CapacityGraph
    links: Links
    supply: Sequence[int]
    boxes: int
    known: dict[object, Gated | None] = field(default_factory=dict)

    def plans(self, ranks: Sequence[int], part: set[int]) -> list[Gated]:
        """Of a box of these ranks and nodes, else of what stands around each switch; or nothing.

        Where switches are joined by less than what their ranks need, trees come to each on its own.
        """
        whole = self._plan(ranks, part)
        if whole is not None:
            return [whole]
        around: dict[int, list[int]] = defaultdict(list)
        for v in ranks:
            near = [s for s in self.links.out[v] if s in part and s not in ranks]
            if len(near) == 1:
                around[near[0]].append(v)
        plans = [self._plan(held, {switch, *held}) for switch, held in around.items()]
        known = [plan for plan in plans if plan is not None]
        return known if sum(len(plan.entries) for plan in known) == len(ranks) else []

    def _plan(self, ranks: Sequence[int], part: set[int]) -> Gated | None:
        """Trees in a box; None where nothing is found."""
        nodes = [*ranks, *sorted(part.difference(ranks))]
        place = {v: number for number, v in enumerate(nodes)}
        box = _Box(ranks, part, self.links)
        key = (
            len(ranks),
            tuple((place[t], place[h], c) for (t, h), c in sorted(box.links.items())),
            *(tuple((place[v], c) for v, c in sorted(ports.items())) for ports in box.ports),
            *(self.supply[v] for v in ranks),
        )
        if key not in self.known:
            failed = [*self.known.values()].count(None)
            self.known[key] = self._solve(box, nodes) if failed < FAILURES else None
        gated = self.known[key]
        return gated if gated is None or gated.nodes == nodes else gated.move(nodes)

    def _solve(self, box: _Box, nodes: Sequence[int]) -> Gated | None:
        own = {v: self.supply[v] for v in box.ranks}
        whole = sum(self.supply)
        entering = list(box.entering(whole - sum(own.values())))
        entries = dict.fromkeys(box.ranks, 0)
        for _, rank, units in entering:
            entries[rank] += units
        if sum((*entries.values(), *own.values())) < whole:
            return None
        starts = {v: own[v] + entries[v] for v in box.ranks}
        sends = {v: own[v] * (self.boxes - 1) for v in box.ranks}
        rooms: list[dict[Link, int]] = []
        for quarters in QUARTERS:
            room = box.room(entering, entries, sends, quarters)
            sent = sum(units for (rank, _), units in room.items() if rank in starts)
            if room not in rooms and sent >= whole * (len(box.ranks) - 1):
                rooms.append(room)
        interior = Interior(self.graph, box.ranks, box.links)
        for height, room in product(range(1, HIGHEST + 1), rooms):
            spreads = interior.hang(starts, room, height)
            if spreads is not None:
                return Gated(nodes, entries, spreads)
        return None


class _Box:
    """The nodes of a box, its own links, and what comes in and goes out where.

    `ports`: where links from outside end, and where links to the outside begin, with what all of
    them carry.
    """

    def __init__(self, ranks: Sequence[int], part: set[int], links: Links) -> None:
        self.ranks = ranks
        out, into = links.out, links.into
        self.links = {(t, h): c for t in sorted(part) for h, c in out[t].items() if h in part}
        across = [
            {v: sum(c for w, c in ends[v].items() if w not in part) for v in sorted(part)}
            for ends in (into, out)
        ]
        self.ports = [{v: c for v, c in some.items() if c} for some in across]
        among = set(ranks)  # they pass nothing on
        self._near = [
            {v: () if v in among else part.intersection(ends[v]) for v in part}
            for ends in (out, into)
        ]
        self._far = [
            {port: hops(near, [port]) for port in ports}
            for ports, near in zip(self.ports, self._near, strict=True)
        ]

    def entering(self, units: int) -> Iterator[tuple[int, int, int]]:
        """(port, rank, units) of these: ports as they are wide, the ranks nearest to them alike."""
        ports = self.ports[0]
        for port, quota in zip(ports, apportion([*ports.values()], units), strict=True):
            far = self._far[0][port]
            least = min((far[v] for v in self.ranks if v in far), default=None)
            nearest = [v for v in self.ranks if far.get(v, -1) == least]
            for rank, some in zip(nearest, apportion([1] * len(nearest), quota), strict=True):
                yield port, rank, some

    def _leaving(self, sends: Mapping[int, int]) -> Iterator[tuple[int, int, int]]:
        """(port, rank, units): the ports nearest to each rank, as they are wide."""
        for rank, units in sends.items():
            ways = {p: far[rank] for p, far in self._far[1].items() if rank in far}
            nearest = [p for p, far in ways.items() if far == min(ways.values())]
            wide = [self.ports[1][p] for p in nearest]
            for port, some in zip(nearest, apportion(wide, units), strict=True):
                yield port, rank, some

    def room(
        self,
        entering: Iterable[tuple[int, int, int]],
        entries: Mapping[int, int],
        own: Mapping[int, int],
        quarters: int,
    ) -> dict[Link, int]:
        """What is left of the links for trees inside, where so much of the rest relays."""
        room = dict(self.links)
        egress, wanted = sum(self.ports[1].values()), sum(own.values())
        sends = list(own.values())
        if wanted > egress:
            sends = apportion(sends, egress)
        else:
            more = apportion(list(entries.values()), (egress - wanted) * quarters // 4)
            sends = [units + some for units, some in zip(sends, more, strict=True)]
        leaving = self._leaving(dict(zip(self.ranks, sends, strict=True)))
        for side, ways in enumerate((entering, leaving)):
            for port, rank, units in ways:
                far, near = self._far[side][port], self._near[side]
                v = rank
                while far[v]:
                    u = next(u for u in far if far[u] < far[v] and v in near[u])
                    room[(v, u) if side else (u, v)] -= units
                    v = u
        return {link: c for link, c in room.items() if c > 0}
