"""Oracle: the whole solver once more, plain and slow, to test and time the package against.

Nothing but dictionaries, integers and one max-flow of its own. The three stages are those of the
published method (Zhao et al., ForestColl, after Edmonds; Bang-Jensen, Frank and Jackson; Berczi and
Frank):

    plain_cut        the best rate a rank can send at, and the cut that proves it
    split_switches   logical links between ranks only, and the way back to real paths
    pack             spanning trees in those logical links

Every non-rank (switch, idle GPU) must receive as much as it sends; `task.balance` makes it so.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise

from forestcoll.common.errors import InfeasibleError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule.forest import Bound, Forest, Path, Tree

Links = dict[tuple[int, int], int]  # (tail, head) -> units
Residual = dict[int, dict[int, int]]  # what may still be sent from node to node
Routes = dict[tuple[int, int], list[tuple[int, Path]]]  # logical link -> (units, real path), ...
Batch = tuple[int, list[int], list[tuple[int, int]]]  # equal trees: how many, nodes, edges


# ---------------------------------------------------------------------------------- max-flow


def residual_of(links: Mapping[tuple[int, int], int], extra: Iterable[int] = ()) -> Residual:
    """What an empty flow leaves: all of `links`, and nothing backwards. `extra` are more nodes."""
    residual: Residual = {v: {} for v in extra}
    for (u, v), units in links.items():
        out = residual.setdefault(u, {})
        out[v] = out.get(v, 0) + units
        residual.setdefault(v, {}).setdefault(u, 0)
    return residual


def ways(residual: Residual, source: int, sink: int | None = None) -> dict[int, int]:
    """Per node that `source` can still send to, the node before it; stops at `sink`."""
    before = {source: source}
    queue = deque([source])
    while queue and sink not in before:
        u = queue.popleft()
        for v, units in residual[u].items():
            if units > 0 and v not in before:
                before[v] = u
                queue.append(v)
    return before


def push(residual: Residual, source: int, sink: int, limit: int) -> int:
    """Units sent from `source` to `sink`: the maximum, or `limit`, over one shortest way a time."""
    sent = 0
    while sent < limit and sink in (before := ways(residual, source, sink)):
        path = [sink]
        while path[-1] != source:
            path.append(before[path[-1]])
        links = list(pairwise(path[::-1]))
        units = min(limit - sent, *(residual[u][v] for u, v in links))
        for u, v in links:
            residual[u][v] -= units
            residual[v][u] += units
        sent += units
    return sent


def worst_cut(
    residual: Residual, source: int, sinks: Sequence[int], need: int
) -> tuple[int, int, frozenset[int]] | None:
    """The first sink that cannot receive `need`: (units it can, sink, source side of its cut).

    None if all can. The flow is kept between sinks: what has reached v is sent on from v to the
    next one, v'. Where that fails, v can still give units back to the source, so the source is on
    v's side of the cut, and the cut is a minimum cut between source and v'.
    """
    at = source
    for sink in sinks:
        if sink == at:
            continue
        units = push(residual, at, sink, need)
        if units < need:
            return units, sink, frozenset(ways(residual, at))
        at = sink
    return None


# ----------------------------------------------------------------------------------- optimum


def links_of(graph: CapacityGraph) -> Links:
    """The links of `graph` with their capacities (those of capacity 0 left out)."""
    links: Links = defaultdict(int)
    for u, v, units in zip(graph.tail, graph.head, graph.capacity, strict=True):
        if units > 0:
            links[u, v] += units
    return dict(links)


def plain_cut(graph: CapacityGraph, root: int | None = None) -> tuple[Fraction, frozenset[int]]:
    """The smallest (capacity leaving S) / (sources in S), in units, and that S; S lacks some rank.

    Sources are all ranks, or rank number `root`. Always an upper bound of what each can send to all
    ranks at once; the optimum itself where every switch is balanced. Discrete Newton: x is possible
    when, with a source joined to each of theirs by x, every rank can receive all of it; a rank that
    cannot yields a cut with a smaller ratio, which is the next x.
    """
    links, ranks, source = links_of(graph), graph.ranks, graph.n
    sources = ranks if root is None else (ranks[root],)
    cuts = [frozenset(range(graph.n)) - {v} for v in ranks if sources != (v,)]
    rate, cut = min(((_ratio(links, sources, s), s) for s in cuts), key=lambda pair: pair[0])
    while rate > 0:
        scaled = {link: units * rate.denominator for link, units in links.items()}
        scaled.update({(source, v): rate.numerator for v in sources})
        residual = residual_of(scaled, range(graph.n))
        worst = worst_cut(residual, source, ranks, len(sources) * rate.numerator)
        if worst is None:
            return rate, cut
        cut = worst[2] - {source}
        rate = _ratio(links, sources, cut)
    raise InfeasibleError(f"no link leaves {sorted(cut)}")


def _ratio(links: Links, sources: Sequence[int], nodes: frozenset[int]) -> Fraction:
    leaving = sum(units for (u, v), units in links.items() if u in nodes and v not in nodes)
    return Fraction(leaving, sum(v in nodes for v in sources))


# ---------------------------------------------------------------------------- switch removal


def split_switches(links: Links, switches: Sequence[int], supply: Mapping[int, int]) -> Routes:
    """Logical links between ranks only, each with the real paths that carry its units.

    `supply` says how many units start at which rank; every node of `ranks` (all nodes that are no
    switch) still receives all of them afterwards. For switch w, units of (u, w) and (w, t) become
    units of u -> t: as many as leave every rank its whole supply. All at once is tried first, and
    what the worst rank then lacks is given back until nobody lacks anything. A pair that takes no
    more never will, as cuts only shrink; so one pass over the pairs clears a balanced switch.
    """
    routes: Routes = defaultdict(list)
    for link, units in links.items():
        routes[link].append((units, link))
    left = dict(links)
    ranks = [v for v in dict.fromkeys(v for link in links for v in link) if v not in set(switches)]
    for w in switches:
        tails = [u for u, v in left if v == w]
        heads = [v for u, v in left if u == w]
        for t in heads:
            for u in sorted(tails, key=lambda u: u == t):  # u -> w -> u is only waste: last
                units = _splittable(left, ranks, supply, (u, w, t))
                if units:
                    _move(left, (u, w, t), units)
                    _join(routes, (u, w, t), units)
        assert not any(units for link, units in left.items() if w in link), "an unbalanced switch"
        left = {link: units for link, units in left.items() if units}
    return {link: parts for link, parts in routes.items() if parts}


def _splittable(
    links: Links, ranks: list[int], supply: Mapping[int, int], pair: tuple[int, int, int]
) -> int:
    """The most units of (u, w), (w, t) that can become units of u -> t."""
    u, w, t = pair
    units = min(links.get((u, w), 0), links.get((w, t), 0))
    need = sum(supply.values())
    while units > 0:
        trial = dict(links)
        _move(trial, pair, units)
        trial.update({(-1, v): amount for v, amount in supply.items()})
        worst = worst_cut(residual_of(trial, ranks), -1, ranks, need)
        if worst is None:
            break
        units -= need - worst[0]
        ranks.remove(worst[1])  # whoever lacked something is asked first the next time
        ranks.insert(0, worst[1])
    return max(units, 0)


def _move(links: Links, pair: tuple[int, int, int], units: int) -> None:
    u, w, t = pair
    links[u, w] -= units
    links[w, t] -= units
    if u != t:
        links[u, t] = links.get((u, t), 0) + units


def _join(routes: Routes, pair: tuple[int, int, int], units: int) -> None:
    """Chain `units` units of the paths u ~> w and w ~> t into paths u ~> t."""
    u, w, t = pair
    while units:
        (first, to_w), (second, from_w) = routes[u, w].pop(), routes[w, t].pop()
        step = min(first, second, units)
        if first > step:
            routes[u, w].append((first - step, to_w))
        if second > step:
            routes[w, t].append((second - step, from_w))
        if u != t:
            routes[u, t].append((step, shortcut(to_w + from_w[1:])))
        units -= step


def shortcut(path: Path) -> Path:
    """The path without the loops it makes."""
    out: list[int] = []
    for v in path:
        if v in out:
            del out[out.index(v) :]
        out.append(v)
    return tuple(out)


# ----------------------------------------------------------------------------------- packing


def pack(links: Links, ranks: Sequence[int], supply: Mapping[int, int]) -> list[Batch]:
    """Batches of equal spanning trees, `supply[r]` trees rooted at r, that fit into `links`.

    A batch's nodes are in the order in which they joined (root first), and so are its edges. A
    batch of m grows by (x, y) for mu trees; the rest stays behind as a batch of its own. Edmonds'
    condition (every node set is entered by as many units as trees still have to get in) must hold
    afterwards: mu <= max-flow from x to y, with the nodes of every other batch reachable from x by
    that batch's m, less all those m.
    """
    left = {link: units for link, units in links.items() if units}
    waiting: list[Batch] = [(m, [r], []) for r, m in supply.items() if m]
    done: list[Batch] = []
    while waiting:
        m, nodes, edges = waiting.pop()
        while len(nodes) < len(ranks):
            x, y, units = _grow(left, ranks, waiting, m, nodes)
            if units < m:
                waiting.append((m - units, list(nodes), list(edges)))
                m = units
            left[x, y] -= units
            nodes.append(y)
            edges.append((x, y))
        done.append((m, nodes, edges))
    return done


def _grow(
    left: Links, ranks: Sequence[int], others: list[Batch], m: int, nodes: list[int]
) -> tuple[int, int, int]:
    """The first edge (x, y) that may be added, and for how many trees; low nodes come first."""
    waiting = sum(batch[0] for batch in others)
    for x in nodes:
        for y in ranks:
            units = min(m, left.get((x, y), 0))
            if y in nodes or not units:
                continue
            network = dict(left)
            for i, (amount, members, _) in enumerate(others):
                if len(members) == 1:
                    v = members[0]
                    if v != x:
                        network[x, v] = network.get((x, v), 0) + amount
                else:
                    network[x, -1 - i] = amount
                    network.update({(-1 - i, v): amount for v in members})
            free = push(residual_of(network, ranks), x, y, waiting + units) - waiting
            if free > 0:
                return x, y, min(units, free)
    raise InfeasibleError(f"no way to grow a tree over the nodes {nodes}: the links do not suffice")


# ------------------------------------------------------------------------------------ forest


def forest(graph: CapacityGraph, root: int | None = None) -> Forest:
    """An allgather, or a broadcast from rank number `root`, that reaches the cut that proves it."""
    rate, cut = plain_cut(graph, root)
    sources = list(graph.ranks) if root is None else [graph.ranks[root]]
    trees, k = _trees(graph, rate, sources)
    return Forest(
        name="",
        graph=graph,
        collective=Collective.ALLGATHER if root is None else Collective.BROADCAST,
        total=k * len(sources),
        trees=tuple(trees),
        bound=Bound(rate * graph.unit * len(sources), "cut", (cut,)),
        root=-1 if root is None else root,
    )


def _trees(graph: CapacityGraph, rate: Fraction, sources: list[int]) -> tuple[list[Tree], int]:
    """(broadcast trees, how many a root) when each of `sources` sends at `rate` units."""
    links = links_of(graph)
    g = math.gcd(rate.numerator, *links.values())
    k = rate.numerator // g
    scaled = {link: units // g * rate.denominator for link, units in links.items()}
    weights: dict[tuple[int, tuple[Path, ...]], int] = defaultdict(int)
    for tree in pack_paths(graph, scaled, dict.fromkeys(sources, k)):
        weights[tree.root, tree.edges] += tree.weight
    return [Tree(v, "broadcast", units, paths) for (v, paths), units in weights.items()], k


def pack_paths(graph: CapacityGraph, links: Links, supply: Mapping[int, int]) -> Iterator[Tree]:
    """Broadcast trees over real paths, `supply[r]` from rank r, that fit into `links`."""
    ranks = set(graph.ranks)
    routes = split_switches(links, [v for v in range(graph.n) if v not in ranks], supply)
    logical = {link: sum(units for units, _ in parts) for link, parts in routes.items()}
    for m, nodes, edges in pack(logical, graph.ranks, supply):
        for units, paths in _expand(routes, m, edges):
            yield Tree(nodes[0], "broadcast", units, paths)


def _expand(
    routes: Routes, m: int, edges: list[tuple[int, int]]
) -> Iterable[tuple[int, tuple[Path, ...]]]:
    """(trees, one real path an edge), m trees in all, and takes those paths out of `routes`."""
    while m:
        parts = [routes[edge].pop() for edge in edges]
        step = min(m, *(units for units, _ in parts))
        for edge, (units, path) in zip(edges, parts, strict=True):
            if units > step:
                routes[edge].append((units - step, path))
        yield step, tuple(path for _, path in parts)
        m -= step
