"""Alike pairs, cuts and order of a fabric's GPUs: what a search over placements has to know.

What tells pairs of GPUs apart is counted in walks over links, so it is the same for all that an
automorphism maps to each other, whatever nodes are called. GPUs are numbered as ranks of the graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.kernel import _kernel
from forestcoll.solver.walks import neighbours
from forestcoll.study.explain.trees import boxes_of, levels_of

Array = NDArray[np.int64]
Floats = NDArray[np.float64]

NODES = 4_096
"""Nodes of a fabric at most: pairs of them are compared."""
SQUARINGS = 4
"""Walks of up to two to the power of that many links tell pairs apart."""
PRIME = 1_000_003
"""Walks are counted modulo this: sums of products stay exact in floating point."""


@dataclass
class Fabric:
    """`pairs[i, j]`: a number of GPUs i and j, the same for pairs that symmetries make alike.

    `order`: the GPUs, neighbours in the hierarchy of links together. `box`: a number per GPU.
    `inside[c, i]`: whether cut c holds GPU i; `leaving`: GB/s that leave it.
    """

    graph: CapacityGraph
    pairs: Array
    order: list[int]
    box: list[int]
    sides: list[frozenset[int]]
    inside: Floats
    leaving: Floats

    def learn(self, sides: Iterable[frozenset[int]]) -> None:
        """Takes more cuts, with what they leave out."""
        graph, ranks = self.graph, list(self.graph.ranks)
        have, everything = set(self.sides), frozenset(range(graph.n))
        both = dict.fromkeys(s for side in sides for s in (side, everything - side))
        fresh = [s for s in both if s not in have]
        if not fresh:
            return
        held = np.zeros((len(fresh), graph.n), dtype=bool)
        for row, side in zip(held, fresh, strict=True):
            row[list(side)] = True
        tail, head, units = (np.asarray(x) for x in (graph.tail, graph.head, graph.capacity))
        leaving = np.array([float(units[row[tail] & ~row[head]].sum()) for row in held])
        counts = held[:, ranks].sum(axis=1)
        kept = [
            int(i) for i in np.flatnonzero((counts > 0) & (counts < len(ranks)) & (leaving > 0))
        ]
        self.sides += [fresh[i] for i in kept]
        self.inside = np.vstack([self.inside, held[kept][:, ranks].astype(float)])
        self.leaving = np.concatenate([self.leaving, leaving[kept] * float(graph.unit)])


def survey(graph: CapacityGraph) -> Fabric:
    """What is known of a fabric before any group is placed; UnsupportedError past `NODES`."""
    if graph.n > NODES:
        raise UnsupportedError(
            f"the fabric has {graph.n:,} nodes; jobs are placed on up to {NODES:,}"
        )
    count, levels = len(graph.ranks), _levels(graph)
    boxes = {name: i for i, name in enumerate(dict.fromkeys(map(graph.box, graph.ranks)))}
    place: list[list[int]] = [[] for _ in range(graph.n)]
    for level in levels:
        home = {v: i for i, part in enumerate(level) for v in part}
        for v in range(graph.n):
            place[v].append(home.get(v, -1))
    # those together that are together at ever finer levels
    order = sorted(range(count), key=lambda i: (place[graph.ranks[i]], i))
    fabric = Fabric(
        graph,
        _compare(graph),
        order,
        [boxes[graph.box(v)] for v in graph.ranks],
        [],
        np.zeros((0, count)),
        np.zeros(0),
    )
    singles = [frozenset([rank]) for rank in graph.ranks]
    fabric.learn([*singles, *(part for level in levels for part in level)])
    return fabric


def _compare(graph: CapacityGraph) -> Array:
    """A number per pair of ranks, by walks between them of up to 2 ** SQUARINGS links."""
    walks = np.zeros((graph.n, graph.n))
    kinds = {c: 7919 * (i + 1) for i, c in enumerate(sorted(set(graph.capacity)))}
    walks[list(graph.tail), list(graph.head)] = [kinds[c] % PRIME for c in graph.capacity]
    own = [17 + 2 * graph.gpu[v] for v in range(graph.n)]
    walks[np.arange(graph.n), np.arange(graph.n)] = own
    for _ in range(SQUARINGS):
        walks = (walks @ walks + 31 * walks) % PRIME
        walks = (walks * walks + 12_345) % PRIME
    ranks = list(graph.ranks)
    return walks[np.ix_(ranks, ranks)].astype(np.int64)


def _levels(graph: CapacityGraph) -> list[list[frozenset[int]]]:
    """Ways to cut the fabric up, coarse ones first: by boxes, width of links, tiers of switches."""
    hops = dict.fromkeys(graph.ranks, 0)
    near = neighbours(graph.n, graph.ends)
    edge = list(graph.ranks)
    while edge:
        edge = [w for w in dict.fromkeys(w for v in edge for w in near[v]) if w not in hops]
        hops.update(dict.fromkeys(edge, 1 + max(hops.values())))
    levels = [boxes_of(graph), *levels_of(graph)]
    for tier in range(1, 1 + max(hops.values())):
        far = [v for v in range(graph.n) if hops.get(v, 0) >= tier]
        parts: dict[int, set[int]] = {}
        for v, label in enumerate(_kernel.components(*graph.wires, far)):
            if label >= 0:
                parts.setdefault(label, set()).add(v)
        levels.append([frozenset(part) for part in parts.values()])
    return sorted(levels, key=len)


def mix(values: Array) -> Array:
    """Scrambled numbers, so that sums of them tell sets apart."""
    out = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    out = (out ^ (out >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    out = (out ^ (out >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (out ^ (out >> np.uint64(31))).astype(np.int64)


def shapes(pairs: Array, groups: Array) -> Array:
    """Per row of `groups`, GPUs: a number, the same for those that symmetries make alike."""
    own = mix(pairs[groups[:, :, None], groups[:, None, :]]).sum(axis=2)
    codes: Array = mix(mix(own).sum(axis=1))
    return codes
