"""Max-flow in integers of any size, and sub-capacities raised by it as far as in = out allows."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.kernel import _kernel

Links = dict[tuple[int, int], int]  # (tail, head) -> units
Residual = dict[int, dict[int, int]]  # what may still be sent from node to node


def cut_off(
    graph: CapacityGraph, carried: Sequence[int], supply: Sequence[int], sinks: Sequence[int]
) -> frozenset[int] | None:
    """A node set out of which `carried` cannot bring `supply` to one of `sinks`; else None."""
    cut = _kernel.violated(*graph.wires, carried, supply, sinks)
    return None if cut is None else frozenset(cut[1])


def short_side(
    graph: CapacityGraph, carried: Sequence[int], supply: Sequence[int], sink: int
) -> frozenset[int] | None:
    """The same for one sink, and numbers that are too long for the kernel."""
    links: Links = defaultdict(int)
    for u, v, units in graph.along(carried):
        links[u, v] += units
    links.update({(-1, v): units for v, units in enumerate(supply) if units})
    residual = residual_of(links, range(-1, graph.n))
    total = sum(supply)
    if push(residual, -1, sink, total) == total:
        return None
    return frozenset(reachable(residual, -1)) - {-1}


def residual_of(links: Mapping[tuple[int, int], int], extra: Iterable[int] = ()) -> Residual:
    """What an empty flow leaves: all of `links`, and nothing backwards. `extra` are more nodes."""
    residual: Residual = {v: {} for v in extra}
    for (u, v), units in links.items():
        out = residual.setdefault(u, {})
        out[v] = out.get(v, 0) + units
        residual.setdefault(v, {}).setdefault(u, 0)
    return residual


def reachable(residual: Residual, source: int, sink: int | None = None) -> dict[int, int]:
    """Hops from `source` to every node it can still send to; stops once `sink` is among them."""
    level = {source: 0}
    queue = deque([source])
    while queue and sink not in level:
        u = queue.popleft()
        for v, units in residual[u].items():
            if units > 0 and v not in level:
                level[v] = level[u] + 1
                queue.append(v)
    return level


def push(residual: Residual, source: int, sink: int, limit: int) -> int:
    """Units sent from `source` to `sink`: the maximum, or `limit`. Dinic's algorithm, in place."""
    sent = 0
    while sent < limit and sink in (level := reachable(residual, source, sink)):
        arcs = {u: list(residual[u]) for u in level}
        path = [source]
        while path and sent < limit:
            u = path[-1]
            if u == sink:
                units = min(limit - sent, min(residual[a][b] for a, b in pairwise(path)))
                for a, b in pairwise(path):
                    residual[a][b] -= units
                    residual[b][a] += units
                sent += units
                path = [source]
                continue
            todo, out, deeper = arcs[u], residual[u], level[u] + 1
            while todo and not (out[todo[-1]] > 0 and level.get(todo[-1]) == deeper):
                todo.pop()
            if todo:
                path.append(todo[-1])
            else:
                path.pop()
                if path:
                    arcs[path[-1]].pop()
    return sent


def fill(graph: CapacityGraph, used: Links) -> Links:
    """`used` (in = out at non-ranks), made as large as in = out allows.

    Links between ranks are taken whole; the rest is a maximum flow through the switches from all
    ranks to all ranks in what `used` leaves. Spare capacity gives the trees room.
    """
    ranks, source, sink = set(graph.ranks), -1, -2
    links = {pair: units for pair, units in graph.links.items() if units > 0}
    spare: Links = {}
    for (u, v), units in links.items():
        if u in ranks and v in ranks:
            continue
        # a rank that sends is one node, the same rank as a receiver is the common sink
        pair = (u, sink if v in ranks else v)
        spare[pair] = spare.get(pair, 0) + units - used.get((u, v), 0)
    total = sum(links.values())
    network = dict(spare)
    network.update({(source, r): total for r in ranks})
    residual = residual_of(network, (source, sink))
    push(residual, source, sink, total)
    out: Links = {}
    for (u, v), units in links.items():
        if u in ranks and v in ranks:
            out[u, v] = units
            continue
        pair = (u, sink if v in ranks else v)
        room = units - used.get((u, v), 0)
        taken = max(0, min(room, spare[pair] - residual[pair[0]][pair[1]]))
        spare[pair] -= taken
        out[u, v] = used.get((u, v), 0) + taken
    return out
