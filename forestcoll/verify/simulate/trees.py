"""Threads of a forest alone: a flow for every edge of every tree, piece after piece.

What the trees allow without thread blocks, slots and order within a rank. A rank passes a piece on
when it has it: in a reduce tree from all its children; the root of an allreduce when the reduce
trees that carry any of it have brought it. In switches that copy or add, edges of a tree that share
a link share its load.

The pieces of an edge go one after the other. But where links serve in order, those of a broadcast
come to them as soon as their rank has them: what is there from the start first, the first piece of
each tree before the second of any. Sums are not sent so: what a rank has from the start would keep
others waiting for what it adds up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from forestcoll.program import Op
from forestcoll.schedule.forest import Forest, Tree, ranges
from forestcoll.schedule.routes import Path
from forestcoll.verify import _machine
from forestcoll.verify.columns import OPS
from forestcoll.verify.simulate.code import Coder
from forestcoll.verify.simulate.options import RULES

FIFO, SEND = RULES.index("fifo"), OPS.index(Op.SEND)
Range = tuple[int, int]  # of a root's share, in units of the trees' weights


def write_trees(forest: Forest, coder: Coder, size: int, pieces: int) -> None:
    """Adds a thread for every edge to the coder: `size` bytes in all, each tree's in pieces."""
    rank, parts = forest.graph.rank_of, ranges(forest)
    writer = _machine.TreeCoder(coder.threads, forest.n, SEND, pieces)
    routes: dict[object, tuple[int, bool]] = {}

    def route_of(path: Path, links: Sequence[int]) -> tuple[int, bool]:
        """The number of the route over a path's links, and whether all of them serve in order."""
        if (key := (path, *links)) not in routes:
            way = coder.fabric.way(path)._replace(stages=tuple((link,) for link in links))
            in_order = all(coder.fabric.rules[link] == FIFO for link in links)
            routes[key] = coder.route(way), in_order
        return routes[key]

    def write(number: int, gates: list[tuple[int, list[int]]]) -> int:
        tree = forest.trees[number]
        paths = zip(tree.edges, _links(forest, coder, tree), strict=True)
        edges = [(rank[p[0]], rank[p[-1]], *route_of(p, links)) for p, links in paths]
        piece = float(size * forest.share(tree) / pieces)
        return writer.write(number, tree.phase == "reduce", rank[tree.root], piece, edges, gates)

    sums: dict[int, list[tuple[Range, int]]] = defaultdict(list)  # root: what has arrived there
    for number, tree in enumerate(forest.trees):
        if tree.phase == "reduce":
            sums[tree.root].append((parts[number], write(number, [])))
    for number, tree in enumerate(forest.trees):
        if tree.phase == "broadcast":
            own = parts[number]
            gates = [
                (counter, _gate(own, other, pieces))
                for other, counter in sums[tree.root]
                if own[0] < other[1] and other[0] < own[1]
            ]
            write(number, gates)
    writer.write_posts()


def straight_links(forest: Forest) -> set[tuple[int, int]]:
    """The links, by their ends, that none but edges of one link take: one rank alone sends there.

    None where something is summed: what a rank has from the start would keep others waiting.
    """
    if forest.collective.reduces:
        return set()
    paths = [path for tree in forest.trees for path in tree.edges]
    through = {link for path in paths if len(path) > 2 for link in pairwise(path)}
    return {(path[0], path[1]) for path in paths if len(path) == 2} - through


def _gate(own: Range, other: Range, pieces: int) -> list[int]:
    """Per piece of a broadcast how many pieces of a sum it needs; [] where as many as it has."""
    if own == other:
        return []
    needs = []
    step, width = own[1] - own[0], other[1] - other[0]  # a piece's, in units of 1 / `pieces`
    for piece in range(pieces):
        low, high = own[0] * pieces + piece * step, own[0] * pieces + (piece + 1) * step
        overlap = low < other[1] * pieces and other[0] * pieces < high
        needs.append(min(pieces, -((other[0] * pieces - high) // width)) if overlap else 0)
    return needs


def _links(forest: Forest, coder: Coder, tree: Tree) -> list[list[int]]:
    """Per edge the links that it loads: where a switch copies or adds, only the first edge does."""
    graph, down = forest.graph, tree.phase == "broadcast"
    able = graph.multicast if down else graph.aggregation
    seen: set[int] = set()
    loaded = []
    for path in tree.edges:
        links = []
        for u, v in pairwise(path):
            link = coder.fabric.number[u, v]
            shared = able[v if down else u]
            if not shared or link not in seen:
                links.append(link)
            if shared:
                seen.add(link)
        loaded.append(links)
    return loaded
