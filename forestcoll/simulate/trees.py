"""Threads of a forest alone: a flow for every edge of every tree, piece after piece.

What the trees allow without thread blocks, slots and order within a rank. A rank passes a piece on
when it has it: in a reduce tree from all its children; the root of an allreduce when the reduce
trees that carry any of it have brought it. In switches that copy or add, edges of a tree that share
a link share its load.
"""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction
from itertools import pairwise

from forestcoll.forest import Forest, Tree
from forestcoll.program import Op
from forestcoll.simulate.code import MOVE, Coder, Origin, Size

Range = tuple[Fraction, Fraction]  # of a root's share


def write_trees(forest: Forest, coder: Coder, size: int, pieces: int) -> None:
    """Adds a thread for every edge to the coder: `size` bytes in all, each tree's in pieces."""
    ranges = _ranges(forest)
    sums: dict[int, list[tuple[Range, int]]] = defaultdict(list)  # root: what has arrived there
    for number, tree in enumerate(forest.trees):
        if tree.phase == "reduce":
            counter = _write_tree(forest, coder, number, size, pieces, [])
            sums[tree.root].append((ranges[number], counter))
    for number, tree in enumerate(forest.trees):
        if tree.phase == "broadcast":
            own = ranges[number]
            gates = [_gate(own, other, c, pieces) for other, c in sums[tree.root]]
            found = [(c, needs) for c, needs in gates if any(needs)]
            _write_tree(forest, coder, number, size, pieces, found)


def _ranges(forest: Forest) -> list[Range]:
    """Per tree its part of its root's share: trees of a phase one after the other."""
    begun: dict[tuple[int, str], Fraction] = defaultdict(Fraction)
    found = []
    for tree in forest.trees:
        start = begun[tree.root, tree.phase]
        begun[tree.root, tree.phase] = start + forest.share(tree)
        found.append((start, start + forest.share(tree)))
    return found


def _gate(own: Range, other: Range, counter: int, pieces: int) -> tuple[int, list[int]]:
    """Per piece of a broadcast how many pieces of a sum, counted by `counter`, it needs."""
    needs = []
    step, width = (own[1] - own[0]) / pieces, (other[1] - other[0]) / pieces
    for piece in range(pieces):
        low, high = own[0] + piece * step, own[0] + (piece + 1) * step
        overlap = low < other[1] and other[0] < high
        needs.append(min(pieces, math.ceil((high - other[0]) / width)) if overlap else 0)
    return counter, needs


def _write_tree(
    forest: Forest,
    coder: Coder,
    number: int,
    size: int,
    pieces: int,
    gates: list[tuple[int, list[int]]],
) -> int:
    """The threads of a tree's edges; the counter of pieces that the root of a reduce tree has."""
    tree = forest.trees[number]
    piece = float(size * forest.share(tree) / pieces)
    inward: dict[int, list[int]] = defaultdict(list)  # node: counters of the edges that lead there
    children: dict[int, int] = defaultdict(int)
    for path, links in zip(tree.edges, _links(forest, coder, tree), strict=True):
        arrived = coder.counter()
        thread = coder.thread(forest.graph.ranks.index(path[0]), number)
        thread.origin = Origin(number, Op.SEND, forest.graph.ranks.index(path[-1]))
        way = coder.fabric.way(path)
        stages = tuple((link,) for link in links) or way.stages[:0]
        route = coder.route(type(way)(stages, way.latency))
        waits = [*inward[path[0]]]
        at_root = tree.phase == "broadcast" and path[0] == tree.root
        if at_root and gates:
            for p in range(pieces):
                for counter, needs in gates:
                    thread.reach(counter, needs[p], 0)
                thread.transfer(MOVE, route, Size(piece, piece), 0.0, arrived)
        else:
            thread.loop(pieces)
            for counter in waits:
                thread.reach(counter, 1, 1)
            thread.transfer(MOVE, route, Size(piece, piece), 0.0, arrived)
        inward[path[-1]].append(arrived)
        children[path[-1]] += 1
    if tree.phase == "broadcast":
        return -1
    return _all_of(forest, coder, tree, number, inward[tree.root], pieces)


def _all_of(
    forest: Forest, coder: Coder, tree: Tree, number: int, counters: list[int], pieces: int
) -> int:
    """A counter of pieces that have come from all children of a reduce tree's root."""
    if len(counters) == 1:
        return counters[0]
    done = coder.counter()
    thread = coder.thread(forest.graph.ranks.index(tree.root), number, proxy=True)
    thread.loop(pieces)
    for counter in counters:
        thread.reach(counter, 1, 1)
    thread.post(done)
    return done


def _links(forest: Forest, coder: Coder, tree: Tree) -> list[list[int]]:
    """Per edge the links that it loads: where a switch copies or adds, only the first edge does."""
    graph, down = forest.graph, tree.phase == "broadcast"
    able = graph.multicast if down else graph.aggregation
    seen: set[int] = set()
    found = []
    for path in tree.edges:
        links = []
        for u, v in pairwise(path):
            link = coder.fabric.number[u, v]
            shared = able[v if down else u]
            if not shared or link not in seen:
                links.append(link)
            if shared:
                seen.add(link)
        found.append(links)
    return found
