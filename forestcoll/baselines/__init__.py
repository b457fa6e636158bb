"""What everybody else does, as forests: rings, and allreduce over trees.

A ring is two chains for each rank: one that adds up towards it, one that spreads its result. So
whatever lowers, proves, runs or measures a forest does so with these, and its `algbw` is what the
links allow them. They are no optimum, and say so: `bound` is None.
"""

from __future__ import annotations

from itertools import pairwise

from forestcoll.baselines.order import Order, box_orders, cycles, rail_orders
from forestcoll.baselines.paths import paths
from forestcoll.errors import UnsupportedError
from forestcoll.forest import Forest, Phase, Tree, in_order
from forestcoll.graph import CapacityGraph
from forestcoll.program import Collective

__all__ = ["double_tree", "ring", "rings", "tree"]


RINGED = tuple(c for c in Collective if c.phases and not c.rooted)
"""What rings are made for."""


def ring(
    graph: CapacityGraph, name: str = "", collective: Collective = Collective.ALLREDUCE
) -> Forest:
    """One ring: box after box, along rails where that is faster; or along the links of a mesh.

    Raises UnsupportedError where the links make no ring, and for a broadcast or reduce.
    """
    made = [_rings(graph, name, orders[:1], collective) for orders in _orders(graph)]
    return max(made, key=lambda forest: forest.plain_algbw)  # the first of the fastest


def rings(
    graph: CapacityGraph, name: str = "", collective: Collective = Collective.ALLREDUCE
) -> Forest:
    """Several rings that share the data: one for each GPU of a box to enter by.

    In a mesh, rings are taken one after another along links that are still free, the widest first.
    Otherwise as `ring`.
    """
    made = [_rings(graph, name, orders, collective) for orders in _orders(graph)]
    return max(made, key=lambda forest: forest.plain_algbw)


def double_tree(graph: CapacityGraph, name: str = "") -> Forest:
    """Allreduce over two binary trees with half of the data each.

    Whoever is inside one tree is a leaf of the other (Sanders, Speck, Traeff, 2009), as far as the
    number of ranks allows. Box after box. Raises UnsupportedError where two ranks that should be
    neighbours have no path over links and switches.
    """
    order, _ = box_orders(graph)[0]
    n, way = len(order), paths(graph)
    parents = _binary(n)
    trees: list[Tree] = []
    for turn in (0, 1):
        # The second tree is the first one with everybody moved up by one place.
        place = [order[(k + turn) % n] for k in range(n)]
        edges = [(place[p], place[k]) for k, p in enumerate(parents) if p >= 0]
        root = place[parents.index(-1)]
        trees += [_tree(graph, root, phase, edges, way, 1) for phase in ("reduce", "broadcast")]
    trees.sort(key=lambda tree: tree.phase != "reduce")
    return Forest(name or "double-tree", graph, Collective.ALLREDUCE, 2, tuple(trees))


def tree(graph: CapacityGraph, name: str = "") -> Forest:
    """Allreduce up and down one tree of the fewest hops, from the rank that makes it lowest."""
    way = paths(graph)
    near: dict[int, list[int]] = {u: [] for u in graph.ranks}
    for u, v in way:
        if (v, u) in way:
            near[u].append(v)
    found = min((_spanning(root, near) for root in graph.ranks), key=lambda entry: entry[0])
    _, root, edges = found
    if len(edges) < len(graph.ranks) - 1:
        raise UnsupportedError("the links that go both ways make no tree through all ranks")
    phases: tuple[Phase, ...] = ("reduce", "broadcast")
    trees = tuple(_tree(graph, root, phase, edges, way, 1) for phase in phases)
    return Forest(name or "tree", graph, Collective.ALLREDUCE, 1, trees)


def _spanning(root: int, near: dict[int, list[int]]) -> tuple[tuple[int, int], int, Edges]:
    """((ranks not reached, height), root, edges) of the breadth-first tree."""
    depth, edges = {root: 0}, []
    for u in (queue := [root]):
        for v in near[u]:
            if v not in depth:
                depth[v] = depth[u] + 1
                edges.append((u, v))
                queue.append(v)
    return (len(near) - len(depth), max(depth.values())), root, edges


Edges = list[tuple[int, int]]
Way = dict[tuple[int, int], tuple[int, ...]]


def _orders(graph: CapacityGraph) -> list[list[Order]]:
    """Sets of rings: by boxes and by rails where anybody reaches anybody, else along links."""
    way = paths(graph)
    ranks = graph.ranks
    if all((u, v) in way for u in ranks for v in ranks if u != v):
        return [orders for orders in (box_orders(graph), rail_orders(graph)) if orders]
    return [cycles(graph, way)]


def _rings(graph: CapacityGraph, name: str, orders: list[Order], collective: Collective) -> Forest:
    if collective not in RINGED:
        raise UnsupportedError(f"rings are for {', '.join(RINGED)}, not for {collective}")
    way, n = paths(graph), len(graph.ranks)
    trees: list[Tree] = []
    for order, share in orders:
        for k in range(n):
            turned = order[k:] + order[:k]
            spread = list(pairwise(turned))
            gather = list(zip(turned[1:], turned[2:] + turned[:1], strict=True))
            if "broadcast" in collective.phases:
                trees.append(_tree(graph, turned[0], "broadcast", spread, way, share))
            gather = [(v, u) for u, v in gather]
            if "reduce" in collective.phases:
                trees.append(_tree(graph, turned[0], "reduce", gather, way, share))
    trees.sort(key=lambda tree: tree.phase != "reduce")
    total = n * sum(share for _, share in orders)
    kind = "ring" if len(orders) == 1 else f"{len(orders)}-rings"
    return Forest(name or kind, graph, collective, total, tuple(trees))


def _tree(
    graph: CapacityGraph, root: int, phase: Phase, edges: Edges, way: Way, weight: int
) -> Tree:
    """A tree of edges (nearer to the root, farther)."""
    found = []
    for near, far in edges:
        pair = (near, far) if phase == "broadcast" else (far, near)
        if pair not in way:
            raise UnsupportedError(
                f"{graph.names[pair[0]]} and {graph.names[pair[1]]} have no path over links and "
                "switches alone: this baseline needs one"
            )
        found.append(way[pair])
    return Tree(root, phase, weight, in_order(root, phase, found))


def _binary(n: int) -> list[int]:
    """Parents in a binary tree in which every second place is a leaf; -1: the root."""
    parents = [-1] * n

    def plant(low: int, high: int, parent: int) -> None:
        """The places of [low, high); every second one is a leaf."""
        if low >= high:
            return
        size = 1
        while 2 * size <= high - low:
            size *= 2
        middle = low + size - 1 if high - low > 1 else low
        parents[middle] = parent
        plant(low, middle, middle)
        plant(middle + 1, high, middle)

    plant(0, n, -1)
    return parents
