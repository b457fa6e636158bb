"""Which way the traffic of every pair of ranks takes through the fabric, and how fast it can be.

A pair of ranks has one way: that of the forest's edges between them (or of an all-to-all's paths),
where it has some, so that these use their links. What none says goes the shortest way, through
switches if there is such a way, else through other ranks too (a ring in rank order over a mesh).
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from forestcoll.common.errors import InfeasibleError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.schedule.forest import Forest

Pair = tuple[int, int]  # rank numbers
Path = tuple[int, ...]  # nodes
Loads = Mapping[Pair, Fraction]

CARRIED = 6
"""Segments that the destination of a packet holds, of a way through a fabric of switches."""
THROUGH_RANK = 1000
"""Hops that passing through a rank counts as."""


@dataclass(frozen=True, slots=True)
class Routes:
    """`ways[i, j]`: the nodes from rank i to rank j; `split`: pairs whose forest has several ways.

    Of several ways `ways` has the busiest, and `split` all with their weight in the forest. `algbw`
    counts what really meets on the links where everything takes `ways`.
    """

    graph: CapacityGraph
    ways: dict[Pair, Path]
    split: dict[Pair, tuple[tuple[Path, int], ...]]

    def link_loads(self, loads: Loads) -> dict[Pair, Fraction]:
        """The share of all data on each link (node, node), from the shares between ranks."""
        on_link: dict[Pair, Fraction] = defaultdict(Fraction)
        for pair, load in loads.items():
            for step in pairwise(self.ways[pair]):
                on_link[step] += load
        return dict(on_link)

    def algbw(self, loads: Loads) -> Fraction:
        """GB/s at the links' full speed, for traffic with these shares between ranks."""
        graph = self.graph
        bandwidth = {(tail, head): graph.bandwidth(e) for e, (tail, head) in enumerate(graph.ends)}
        return min(bandwidth[link] / load for link, load in self.link_loads(loads).items())


def routes(
    graph: CapacityGraph,
    forest: Forest | None = None,
    edges: Iterable[tuple[Path, int]] = (),
) -> Routes:
    """A way for every pair of ranks. Raises InfeasibleError where there is none.

    `edges`: more paths from rank to rank that are wanted, with their weights.
    """
    number = graph.rank_of
    seen: dict[Pair, Counter[Path]] = defaultdict(Counter)
    for tree in forest.trees if forest is not None else ():
        for path in tree.edges:
            seen[number[path[0]], number[path[-1]]][path] += tree.weight
    for path, weight in edges:
        seen[number[path[0]], number[path[-1]]][path] += weight
    ways = {pair: paths.most_common(1)[0][0] for pair, paths in seen.items()}
    split = {p: tuple(paths.items()) for p, paths in sorted(seen.items()) if len(paths) > 1}
    links, out = set(graph.ends), wide_links(graph)
    for (i, j), path in list(ways.items()):  # the way back, of acknowledgements at least
        back = path[::-1]
        if (j, i) not in ways and all(step in links for step in pairwise(back)):
            ways[j, i] = back
    for i, source in enumerate(graph.ranks):
        if all((i, j) in ways for j in range(len(graph.ranks)) if j != i):
            continue
        shortest = shortest_ways(graph, out, source)
        for j, target in enumerate(graph.ranks):
            if i != j and (i, j) not in ways:
                if target not in shortest:
                    names = graph.names
                    raise InfeasibleError(f"no way from {names[source]} to {names[target]}")
                ways[i, j] = shortest[target]
    return Routes(graph, ways, split)


kept_routes = lru_cache(16)(routes)
"""Of the forests that are looked at in turn: each is lowered and played dozens of times."""
Wide = Mapping[int, Sequence[tuple[int, int]]]
"""Per node (neighbour, capacity of the link to it)."""


def wide_links(graph: CapacityGraph) -> Wide:
    """Per node (neighbour, capacity of the link to it)."""
    out: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for tail, head, capacity in graph.arcs:
        out[tail].append((head, capacity))
    return out


def shortest_ways(
    graph: CapacityGraph, out: Wide, source: int, over_gpus: bool = True
) -> dict[int, Path]:
    """The way to every node; the widest of the shortest. `over_gpus`: GPUs pass on, at a price."""
    done: dict[int, Path] = {}
    queue: list[tuple[int, int, Path]] = [(0, 0, (source,))]
    while queue:
        hops, width, path = heapq.heappop(queue)
        node = path[-1]
        if node in done:
            continue
        done[node] = path
        through = graph.gpu[node] and node != source
        if through and not over_gpus:
            continue
        for head, capacity in out.get(node, ()):
            if head not in done:
                narrowest = -capacity if node == source else max(width, -capacity)
                more = 1 + THROUGH_RANK * through
                heapq.heappush(queue, (hops + more, narrowest, (*path, head)))
    return done
