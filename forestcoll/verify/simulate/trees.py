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
from dataclasses import replace
from itertools import pairwise

from forestcoll.program import Op
from forestcoll.schedule.forest import Forest, Tree, ranges
from forestcoll.schedule.routes import Path
from forestcoll.verify.columns import OPS
from forestcoll.verify.simulate.code import TREES, Coder
from forestcoll.verify.simulate.options import RULES

FIFO, SEND = RULES.index("fifo"), OPS.index(Op.SEND)
Range = tuple[int, int]  # of a root's share, in units of the trees' weights


def write_trees(forest: Forest, coder: Coder, size: int, pieces: int) -> None:
    """Adds a thread for every edge to the coder: `size` bytes in all, each tree's in pieces."""
    parts, writer = ranges(forest), _Writer(forest, coder, size, pieces)
    sums: dict[int, list[tuple[Range, int]]] = defaultdict(list)  # root: what has arrived there
    for number, tree in enumerate(forest.trees):
        if tree.phase == "reduce":
            sums[tree.root].append((parts[number], writer.write(number, [])))
    for number, tree in enumerate(forest.trees):
        if tree.phase == "broadcast":
            own = parts[number]
            gates = [
                (counter, _gate(own, other, pieces))
                for other, counter in sums[tree.root]
                if own[0] < other[1] and other[0] < own[1]
            ]
            writer.write(number, gates)
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


class _Writer:
    """Writes the threads of trees.

    `_posts`: per rank the pieces that it sends from the start over links that serve in order; of
    each edge: the hops that follow it, tree, peer, route, bytes of a piece, counter of arrivals.
    """

    def __init__(self, forest: Forest, coder: Coder, size: int, pieces: int) -> None:
        self._forest, self._coder, self._size, self._pieces = forest, coder, size, pieces
        self._rank = forest.graph.rank_of
        self._ways: dict[tuple[object, ...], tuple[int, bool]] = {}
        self._posts: dict[int, list[tuple[int, int, int, int, float, int]]] = defaultdict(list)

    def write(self, number: int, gates: list[tuple[int, list[int]]]) -> int:
        """The threads of a tree's edges; the counter of pieces that a reduce tree's root has."""
        coder, pieces, tree = self._coder, self._pieces, self._forest.trees[number]
        piece = float(self._size * self._forest.share(tree) / pieces)
        inward: dict[int, list[int]] = defaultdict(list)  # node: counters of the edges to there
        heights = _heights(tree)
        for path, links in zip(tree.edges, _links(self._forest, coder, tree), strict=True):
            arrived = coder.threads.counter()
            rank, peer = self._rank[path[0]], self._rank[path[-1]]
            route, in_order = self._way(path, links)
            starts = in_order and tree.phase == "broadcast"
            waits = [*inward[path[0]]]
            gated = []
            if tree.phase == "broadcast" and path[0] == tree.root:
                waits += [counter for counter, needs in gates if not needs]
                gated = [(counter, needs) for counter, needs in gates if needs]
            if starts and not waits and not gated:
                self._posts[rank].append((heights[path[-1]], number, peer, route, piece, arrived))
            else:
                thread = coder.threads.thread(rank, number, False)
                thread.begin(number, SEND, peer)
                thread.loop(1 if gated else pieces)
                for p in range(pieces if gated else 1):
                    for counter, needs in gated:
                        thread.reach(counter, needs[p], 0)
                    for counter in waits:
                        thread.reach(counter, 1, 1)
                    thread.transfer(not starts, route, piece, arrived)
            inward[path[-1]].append(arrived)
        return self._all_of(number, inward[tree.root]) if tree.phase == "reduce" else -1

    def _way(self, path: Path, links: Sequence[int]) -> tuple[int, bool]:
        """The number of the route over a path's links, and whether all of them serve in order."""
        if (key := (path, *links)) not in self._ways:
            way, rules = self._coder.fabric.way(path), self._coder.fabric.rules
            route = self._coder.route(replace(way, stages=tuple((link,) for link in links)))
            self._ways[key] = route, all(rules[link] == FIFO for link in links)
        return self._ways[key]

    def _all_of(self, number: int, counters: list[int]) -> int:
        """A counter of pieces that have come from all children of a reduce tree's root."""
        if len(counters) == 1:
            return counters[0]
        threads, root = self._coder.threads, self._forest.trees[number].root
        done, thread = threads.counter(), threads.thread(self._rank[root], number, True)
        thread.loop(self._pieces)
        for counter in counters:
            thread.reach(counter, 1, 1)
        thread.post(done)
        return done

    def write_posts(self) -> None:
        """A thread for each rank: piece after piece, of all trees, the highest trees first."""
        for rank, edges in self._posts.items():
            thread = self._coder.threads.thread(rank, TREES, False)
            thread.loop(self._pieces)
            for _, tree, peer, route, piece, arrived in sorted(edges, key=lambda edge: -edge[0]):
                thread.begin(tree, SEND, peer)
                thread.transfer(False, route, piece, arrived)


def _heights(tree: Tree) -> dict[int, int]:
    """Per node the hops that data still go from there."""
    after: dict[int, list[int]] = defaultdict(list)
    for path in tree.edges:
        after[path[0]].append(path[-1])
    heights: dict[int, int] = {}
    order = [path[-1] for path in tree.edges]
    for node in [*reversed(order), tree.edges[0][0]] if tree.edges else []:
        heights[node] = max((1 + heights.get(child, 0) for child in after[node]), default=0)
    return heights


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
