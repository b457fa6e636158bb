"""Boxes on a network: which links join boxes, and how many trees may enter each box where.

A box is a set of ranks with links of their own (NVSwitch, a mesh) that are wide enough to spread
every tree in it, wherever it enters. Then a forest is two things: how boxes hang on boxes, over the
other links, and how each box spreads what has entered it. A box whose own links are tight is taken
apart: every rank is a box of its own, and all links count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.solver.shallow.gated import Gated, Gates, Links
from forestcoll.solver.shallow.inside import Link
from forestcoll.solver.walks import by_box, hops, neighbours


@dataclass(frozen=True, slots=True)
class Boxes:
    """`box[v]`: the box of a rank, of a switch that serves one box only, or -1.

    `members`: the ranks of each box. `inner`: per link the box that it lies inside, or -1.
    `entries`: per rank how many trees may enter its box there, -1: any number. All for `supply`
    trees of each root and `capacity` trees over each link. `gated`: boxes that have trees inside,
    over links that others pass, too.
    """

    graph: CapacityGraph
    capacity: Sequence[int]
    supply: Sequence[int]
    box: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]
    inner: tuple[int, ...]
    entries: tuple[int, ...]
    gated: Mapping[int, Gated]

    @property
    def spread(self) -> list[int]:
        """Per box the hops from where a tree enters to all of its ranks, as far as is known."""
        return [
            self.gated[b].hops if b in self.gated else int(len(held) > 1)
            for b, held in enumerate(self.members)
        ]

    @property
    def count(self) -> int:
        """How many boxes there are."""
        return len(self.members)

    def links_inside(self) -> list[dict[Link, int]]:
        """Per box its own links and how many trees each may carry."""
        links: list[dict[Link, int]] = [{} for _ in self.members]
        for (t, h, box), c in zip(self.graph.along(self.inner), self.capacity, strict=True):
            if box >= 0 and c:
                links[box][t, h] = c
        return links

    @property
    def apart(self) -> bool:
        """Whether every rank is a box of its own, though by name some stand in boxes together."""
        ranks = self.graph.ranks
        named = by_box(self.graph, ranks).items()
        return self.count == len(ranks) and any(name and len(held) > 1 for name, held in named)


@lru_cache(maxsize=4)
def find_boxes(graph: CapacityGraph, capacity: tuple[int, ...], supply: tuple[int, ...]) -> Boxes:
    """The boxes of a graph by the names of its nodes.

    Those that hang together only by switches that also lead out are boxes, too, where trees inside
    them are found.
    """
    named, held_by = by_box(graph), by_box(graph, graph.ranks)
    lone = held_by.pop("", [])
    links = Links(graph, capacity)
    ranks = set(graph.ranks)
    gates = Gates(graph, links, supply, len(held_by) + len(lone))
    box, entries = [-1] * graph.n, [-1] * graph.n
    at: dict[int, int] = {}  # the box of a node inside one
    plans: dict[int, Gated] = {}
    members: list[tuple[int, ...]] = []
    for name, nodes in named.items():
        held = held_by.get(name, ())
        if len(held) < 2:
            continue
        inside, outward = _split_switches(links, nodes, held)
        parts = _components(links, held, inside)
        if not any(part.issuperset(held) for part in parts):
            whole = [p for p in _components(links, held, inside | outward) if p.issuperset(held)]
            for plan in gates.plans(held, whole[0]) if whole else []:
                plans[len(members)], parts = plan, []
                for v in plan.nodes:
                    box[v], entries[v] = len(members), plan.entries.get(v, -1)
                members.append(tuple(plan.entries))
        for part in parts:
            some = tuple(v for v in part if v in ranks)
            limits = _entry_limits(links, some, part, supply)
            if len(some) < 2 or limits is None:
                continue
            for v, most in zip(some, limits, strict=True):
                box[v], entries[v] = len(members), most
            at |= dict.fromkeys(part, len(members))
            if len(some) == len(held):
                for v in outward:
                    box[v] = len(members)
            members.append(some)
    for v in graph.ranks:
        if box[v] < 0:
            box[v] = len(members)
            members.append((v,))
    inner = tuple(at[t] if t in at and at[t] == at.get(h) else -1 for t, h in graph.ends)
    return Boxes(graph, capacity, supply, tuple(box), tuple(members), inner, tuple(entries), plans)


def has_gates(graph: CapacityGraph) -> bool:
    """Whether some box hangs together only by switches that also lead out of it."""
    named = by_box(graph, graph.ranks)
    named.pop("", None)
    links = [(graph.box(u), graph.box(v), u, v) for u, v in graph.ends]
    out = {u for home, other, u, _ in links if home != other and not graph.gpu[u]}
    near = neighbours(graph.n, ((u, v) for home, other, u, v in links if home == other))
    return any(
        hops(near, held[:1], lambda v: v not in out).keys() < hops(near, held[:1]).keys()
        for held in named.values()
    )


def _split_switches(
    links: Links, nodes: Sequence[int], ranks: Sequence[int]
) -> tuple[set[int], set[int]]:
    """(switches inside a box, switches through which it reaches others) among its nodes."""
    switches, own = set(nodes) - set(ranks), set(nodes)
    near = {v: (*links.out[v], *links.into[v]) for v in switches}
    inside = {v for v in switches if hops(near, [v], switches.__contains__).keys() <= own}
    return inside, switches - inside


def _components(links: Links, ranks: Sequence[int], inside: set[int]) -> list[set[int]]:
    """The strongly connected parts of a box over its own links, those of one node left out.

    Where a link between two of them leads one way only, neither is sound as a box: none then.
    """
    nodes = [*ranks, *sorted(inside)]
    among = set(nodes)
    out, into = (
        {v: [w for w in near[v] if w in among] for v in nodes} for near in (links.out, links.into)
    )
    joined = {v: hops(out, [v]).keys() & hops(into, [v]).keys() for v in nodes}
    if any(w not in joined[v] for v in nodes for w in out[v]):
        return []
    parts: list[set[int]] = []
    for part in joined.values():
        if len(part) > 1 and part not in parts:
            parts.append(part)
    return parts


def _entry_limits(
    links: Links, ranks: Sequence[int], part: set[int], supply: Sequence[int]
) -> list[int] | None:
    """Per rank how many trees may enter the box there (-1: any number); None where it is tight.

    Where every rank has a hop of its own to each other, trees spread as stars. Their number is
    limited where they start; without such hops the box's own packing says what is possible.
    """
    whole, own = sum(supply), sum(supply[v] for v in ranks)
    count = len(ranks)
    share = (whole - own) // count
    fans, useful = [], 0
    for v in ranks:
        entering = sum(c for u, c in links.into[v].items() if u not in part)
        room = sum(c for u, c in links.into[v].items() if u in part)
        if room < whole - supply[v] - min(share, entering):
            return None
        fans.append(_fan(links, v, ranks, part))
        useful += min(fans[-1], supply[v] + entering)
    if useful < whole:
        return [-1] * count
    return [max(0, fan - supply[v]) for v, fan in zip(ranks, fans, strict=True)]


def _fan(links: Links, rank: int, ranks: Sequence[int], part: set[int]) -> int:
    """How many stars can start at a rank of a box, as far as its own links tell."""
    hops = {v: c for v, c in links.out[rank].items() if v in part}
    among = set(ranks)
    least = sum(hops.values()) // (len(ranks) - 1)
    for v in ranks:
        if v != rank:
            way = hops.get(v, 0) + sum(
                min(c, links.out[s].get(v, 0)) for s, c in hops.items() if s not in among
            )
            least = min(least, way)
    return least
