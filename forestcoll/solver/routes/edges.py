"""What a schedule sends through the fabric: paths from one box to another, with their weights."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.group import SymmetryGroup
from forestcoll.schedule.forest import Forest, Path
from forestcoll.schedule.routes import Loads
from forestcoll.schedule.routes import Routes as Ways
from forestcoll.solver.alltoall.routes import Routes

MOST_EDGES = 4_000_000
Array = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Edges:
    """Row by row: GPU and GPU (`ends`), the nodes from one's adapter to the other's (`nodes`, -1
    behind the last), and `weight` of `total`: the share of all data.

    `group`: of the forest. `images`: how many rows, moved by the group, each of these stands for.
    """

    graph: CapacityGraph
    ends: Array
    nodes: Array
    weight: Array
    total: int
    group: SymmetryGroup | None = None
    images: int = 1

    def __len__(self) -> int:
        return len(self.weight)


def edges_of_forest(forest: Forest, compact: bool = False) -> Edges:
    """The edges of all trees that leave their box, images included.

    With `compact`, of more than `MOST_EDGES` those from the first GPU, which a group moves.
    """
    if any(1 < forest.images_of(tree.root) < forest.images for tree in forest.trees):
        forest = forest.expand()
    group, graph, total = forest.group, forest.graph, forest.total
    each = [(tree, forest.images_of(tree.root)) for tree in forest.trees]
    count = sum(size * len(tree.edges) for tree, size in each)
    few = not compact or count <= MOST_EDGES or group is None or not moves_all(graph, group)
    sent = [(tree.edges, tree.weight, few and size > 1) for tree, size in each]
    edges = collect(graph, sent, total, group)
    if few or group is None:
        return edges
    rows = bring_back(group, np.c_[edges.ends, edges.nodes])
    return replace(_merge(graph, rows, edges.weight, total, group), images=group.size)


def moves_all(graph: CapacityGraph, group: SymmetryGroup) -> bool:
    """Whether the group brings the first GPU to each other one, in one way."""
    return group.size == len(graph.ranks) and len({group.node[v] for v in graph.ranks}) == 1


def images_of(group: SymmetryGroup, nodes: int | Array) -> Array:
    """Where each element of the group, in their order, brings a node, or some; -1 stays."""
    at = np.array(nodes)[None]
    for image, order in zip(group.generators, group.orders, strict=True):
        step, columns = np.append(image, -1), [at]
        for _ in range(order - 1):
            columns.append(step[columns[-1]])
        at = np.stack(columns, 1).reshape(order * len(at), *at.shape[1:])
    return at


def bring_back(group: SymmetryGroup, rows: Array) -> Array:
    """Rows of nodes, moved such that the first of each is the least of its orbit."""
    number = np.empty(len(group.node), np.int64)
    number[images_of(group, group.node[int(rows[0, 0])])] = np.arange(group.size)
    element = number[rows[:, 0]]
    for image, order in zip(group.generators[::-1], group.orders[::-1], strict=True):
        element, times = np.divmod(element, order)
        back = np.append(np.argsort(image), -1)
        while times.any():
            rows = np.where((times & 1)[:, None] > 0, back[rows], rows)
            back, times = back[back], times >> 1
    return rows


def edges_of_exchange(routes: Routes) -> Edges:
    """Those of an all-to-all's routes, all images."""
    paths = (((route.path,), route.units, False) for route in routes.expand())
    return collect(routes.graph, paths, routes.units * len(routes.graph.ranks))


def edges_of_loads(ways: Ways, loads: Loads) -> Edges:
    """Those of shares between ranks, each pair's on its way."""
    total = math.lcm(*(load.denominator for load in loads.values()))
    paths = (((ways.ways[pair],), int(load * total), False) for pair, load in loads.items())
    return collect(ways.graph, paths, total)


def collect(
    graph: CapacityGraph,
    sent: Iterable[tuple[Sequence[Path], int, bool]],
    total: int,
    group: SymmetryGroup | None = None,
) -> Edges:
    """The same of (paths, weight, whether the group moves them). Raises UnsupportedError."""
    outside = [not graph.gpu[v] and "/" not in name for v, name in enumerate(graph.names)]
    counted: dict[tuple[int, bool], Counter[Path]] = defaultdict(Counter)
    for paths, weight, moves in sent:
        counted[weight, moves].update(paths)
    rows = [
        (weight * count, moves, *hop)
        for (weight, moves), times in counted.items()
        for path, count in times.items()
        for hop in _hops(graph, path, outside)
    ]
    size = 1 if group is None else group.size
    count = sum(size if moves else 1 for _, moves, *_ in rows)
    if count > MOST_EDGES:
        raise UnsupportedError(
            f"{count:,} edges between boxes are more than {MOST_EDGES:,}: take fewer GPUs, or, "
            "of a compact forest, --spread group"
        )
    columns = [*zip_longest(*rows, fillvalue=-1)] or [()] * 6
    (amounts, moved), nodes = np.array(columns[:2], np.int64), np.array(columns[2:], np.int64).T
    if group is not None:
        images = images_of(group, nodes[moved > 0]).reshape(-1, nodes.shape[1])
        nodes = np.concatenate([nodes[moved == 0], images])
        amounts = np.r_[amounts[moved == 0], np.tile(amounts[moved > 0], size)]
    return _merge(graph, nodes, amounts, total, group)


def _merge(
    graph: CapacityGraph, rows: Array, weight: Array, total: int, group: SymmetryGroup | None
) -> Edges:
    """Equal rows as one."""
    if len(rows):
        order = np.lexsort(rows.T[::-1])  # the first column first
        first = np.flatnonzero(np.r_[True, (rows[order[1:]] != rows[order[:-1]]).any(1)])
        rows, weight = rows[order[first]], np.add.reduceat(weight[order], first)
    return Edges(graph, rows[:, :2], rows[:, 2:], weight, total, group)


def _hops(graph: CapacityGraph, path: Path, outside: list[bool]) -> Iterator[Path]:
    """From GPU to GPU, those through the fabric: the two GPUs, then the nodes between boxes."""
    stops = [i for i, v in enumerate(path) if graph.gpu[v]]
    for a, b in pairwise(stops):
        over = [i for i in range(a + 1, b) if outside[path[i]]]
        if over:
            yield (path[a], path[b], *path[over[0] - 1 : over[-1] + 2])
