"""Edges spread over planes and spines: whole flows by edge colouring, or shares of all paths.

The planes that a path's nodes stand for share it evenly. In a plane, an edge goes over one spine as
a whole: spines are colours of the flows from leaf to leaf, so that no leaf has more than the D-th
part of its flows on one of D spines (Koenig). Or it takes an even share of every spine: then each
link carries what the solver gave the merged one, exactly.

By group: all images of an edge by a forest's group, which brings every GPU to every other one,
take the spine of the first edge, moved on by as many places as the port of the source is. The group
is abelian, so the images that leave one leaf for a link, and those that come to one leaf by a link,
are those of all GPUs of a leaf; where all leaves have the same ports, all links from leaves and to
leaves carry alike, place by place. Edges of the first GPU follow each other round the spines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from typing import Literal

import numpy as np

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.kernel import _kernel
from forestcoll.solver.routes.edges import Array, Edges, bring_back, images_of, moves_all
from forestcoll.solver.routes.fabric import Fabric

Spread = Literal["flows", "shares", "group"]
MOST_ROWS = 8_000_000
FAR = 1 << 60
"""Larger than every key of a switch."""


@dataclass(frozen=True, slots=True)
class Spreading:
    """Every row of `edges` on one path of each of its planes.

    `chosen`: per index of switches in a plane (`spine`) its value in each row, -1 where it has
    none. `parts`: of how many rows that were one each is one: shares of an edge. `pairs`: how many
    values each row has, of a queue pair each. `leaf`: by group, the adapters of the first leaf and
    how far their ports are behind the first one's.
    """

    layout: Layout
    chosen: Mapping[str, Array]
    parts: int = 1
    pairs: int = 1
    leaf: Sequence[Array] = ()

    @property
    def fabric(self) -> Fabric:
        """What it is spread over."""
        return self.layout.fabric

    @property
    def edges(self) -> Edges:
        """The rows."""
        return self.layout.edges

    @property
    def total(self) -> int:
        """What weights are parts of."""
        return self.edges.total * self.parts


def spread(fabric: Fabric, edges: Edges, by: Spread, spared: int = 0) -> Spreading:
    """The edges on paths; flows over all spines but the last `spared`.

    Raises UnsupportedError where shares are too many.
    """
    layout = Layout.of(fabric, edges)
    if by != "flows":
        return _share(layout) if by == "shares" else _turn(layout)
    chosen: dict[str, Array] = {}
    for index in layout.indices:
        chosen[index] = np.full(len(edges), -1, np.int64)
        for rows, values, left, right in layout.groups(index, chosen):
            if index == layout.indices[0]:
                values = values[: len(values) - spared]
            order = np.argsort(-edges.weight[rows], kind="stable")
            ends = np.unique(np.r_[left[order], right[order] + FAR], return_inverse=True)[1]
            us, vs = (side.tolist() for side in np.split(ends, 2))
            colour = _kernel.colour_edges(int(ends.max()) + 1, us, vs, len(values))
            chosen[index][rows[order]] = np.array(values)[colour]
    return Spreading(layout, chosen)


def _turn(layout: Layout) -> Spreading:
    """All images of an edge on spines by their sources' ports; see the module."""
    edges, fabric, group = layout.edges, layout.fabric, layout.edges.group
    names, listed = edges.graph.names, [*layout.values.items()]
    if group is None or not moves_all(edges.graph, group) or [len(v) for _, v in listed] != [1]:
        raise UnsupportedError(
            "spread by group: needs a compact forest of two tiers whose group moves every GPU to "
            "every other one, and equal spines; take --spread flows"
        )
    [(index, [values])] = listed
    rows, size = bring_back(group, np.c_[edges.ends, edges.nodes]), len(values)
    classes, some, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    gpus, adapters, leaves = (images_of(group, v) for v in rows[0, [0, 2, 3]].tolist())
    ports = np.zeros(len(names), np.int64)
    ports[gpus] = [
        fabric.port(fabric.form[names[leaf]][0], names[v], {})
        for v, leaf in zip(adapters.tolist(), leaves.tolist(), strict=True)
    ]
    of = np.unique(leaves, return_inverse=True)[1] * size
    behind = (ports[gpus] - ports[gpus[0]]) % size
    each = np.bincount(of + behind, minlength=of.max() + size).reshape(-1, size)
    if (each != each[0]).any() or (rows[:, 3] != leaves[0]).any():
        raise UnsupportedError("spread by group: leaves have other ports than each other")
    over = layout.has[index][classes[:, 2:]].max(1)  # -1 where the leaf is the same
    turn = np.empty(len(classes), np.int64)
    turn[np.lexsort((-edges.weight[some], over < 0))] = np.arange(len(classes)) * each[0].sum()
    place = (turn[which] + ports[edges.ends[:, 0]]) % size
    chosen = np.where(over[which] < 0, -1, np.array(values)[place])
    here = leaves == leaves[0]
    return Spreading(layout, {index: chosen}, leaf=(adapters[here], behind[here]))


def _share(layout: Layout) -> Spreading:
    """Every edge in even shares over all that its nodes stand for."""
    edges, chosen = layout.edges, dict[str, Array]()
    ways = np.ones(len(edges), np.int64)
    rows = np.arange(len(edges))
    for index in layout.indices:
        classes = layout.has[index][edges.nodes[rows]].max(1)
        listed = [*layout.values[index], [-1]]
        sizes = np.array([*map(len, listed)])
        if sizes[classes].sum() > MOST_ROWS:
            raise UnsupportedError(f"more than {MOST_ROWS:,} shares of edges: take whole flows")
        again = np.repeat(np.arange(len(rows)), sizes[classes])
        chosen = {name: column[again] for name, column in chosen.items()}
        chosen[index] = np.array([*chain.from_iterable(map(listed.__getitem__, classes.tolist()))])
        ways, rows = ways[again] * sizes[classes][again], rows[again]
    parts = math.lcm(*map(int, np.unique(ways))) if len(ways) else 1
    weight = edges.weight[rows] * (parts // ways)
    shared = replace(edges, ends=edges.ends[rows], nodes=edges.nodes[rows], weight=weight)
    return Spreading(replace(layout, edges=shared), chosen, parts)


@dataclass(frozen=True, slots=True)
class Loads:
    """Each link of the fabric that is used, of the planes that a node stands for one for all.

    `ends`: nodes of the graph; `chosen`: the values of both; `flows`: rows; `weight`: theirs, which
    all planes share; `planes`: how many.
    """

    spreading: Spreading
    ends: Array
    chosen: Mapping[str, Array]
    flows: Array
    weight: Array
    planes: Array

    @property
    def most_flows(self) -> int:
        """The most rows on a link between switches."""
        form = self.spreading.fabric.form
        switch = np.array([name in form for name in self.spreading.edges.graph.names])
        return int(self.flows[switch[self.ends].all(1)].max(initial=0))

    def slowest(self) -> tuple[Fraction, int]:
        """(GB/s of all data that the links allow, the number of the link that allows no more)."""
        names, links = self.spreading.edges.graph.names, self.spreading.fabric.links
        first = np.flatnonzero(np.r_[True, (self.ends[1:] != self.ends[:-1]).any(1)])
        most = np.maximum.reduceat(self.weight, first)
        columns = (each.tolist() for each in (self.ends[first], most, self.planes[first], first))
        rate, slowest = min(
            (links[names[u], names[v]] * Fraction(planes, weight), i)
            for (u, v), weight, planes, i in zip(*columns, strict=True)
        )
        return rate * self.spreading.total, slowest


def loads(spreading: Spreading) -> Loads:
    """What every link carries, sorted by its far end and its near one."""
    given = spreading
    if spreading.edges.images > 1:
        spreading = _take_leaf(spreading)
    layout, nodes = spreading.layout, spreading.edges.nodes
    rows, at = np.nonzero(nodes[:, 1:] >= 0)
    size = layout.planes.size
    code, pair = np.unique(nodes[rows, at + 1] * size + nodes[rows, at], return_inverse=True)
    pairs = np.c_[code % size, code // size]
    room, steps = np.ones(len(pairs), np.int64), dict[str, tuple[Array, int, int]]()
    for index, column in spreading.chosen.items():
        low, span = int(column.min()), int(np.ptp(column)) + 1
        with_it = (layout.has[index][pairs] >= 0).any(1)
        steps[index] = np.where(with_it, room, 0), low, span
        room = np.where(with_it, room * span, room)
    first = np.cumsum(room) - room
    flows, weight = (np.zeros(int(room.sum()), np.int64) for _ in range(2))
    carried = spreading.edges.weight[rows]
    for k in range(spreading.pairs):
        link = first[pair]
        for index, (step, low, _) in steps.items():
            link += step[pair] * (spreading.chosen[index].reshape(len(nodes), -1)[rows, k] - low)
        flows += np.bincount(link, minlength=len(flows))
        np.add.at(weight, link, carried)
    used = np.flatnonzero(flows)
    pair = np.searchsorted(first, used, side="right") - 1
    chosen = {
        index: np.where(
            step[pair], low + (used - first[pair]) // np.maximum(step[pair], 1) % span, -1
        )
        for index, (step, low, span) in steps.items()
    }
    ends = pairs[pair]
    sizes = np.array([*map(len, layout.sets), 1], np.int64)
    planes = sizes[layout.planes[ends].max(1)]
    return Loads(given, ends, chosen, flows[used], weight[used], planes)


def _take_leaf(spreading: Spreading) -> Spreading:
    """What the adapters of the first one's leaf send up; as much comes down, at every leaf."""
    layout, edges, count = spreading.layout, spreading.edges, len(spreading.leaf[0])
    adapters, behind = (np.tile(column, len(edges)) for column in spreading.leaf)
    [(index, chosen)], [[values]] = spreading.chosen.items(), layout.values.values()
    chosen, nodes = np.repeat(chosen, count), np.repeat(edges.nodes[:, :3], count, 0)
    nodes[:, 0], nodes[chosen < 0, 2] = adapters, -1
    place = (np.searchsorted(values, chosen) + behind) % len(values)
    turned = {index: np.where(chosen < 0, -1, np.array(values)[place])}
    some = replace(edges, nodes=nodes, weight=np.repeat(edges.weight, count), images=1)
    return replace(spreading, layout=replace(layout, edges=some), chosen=turned)


def hash_flows(spreading: Spreading, pairs: int, seed: int) -> Spreading:
    """What ECMP does instead: every edge is `pairs` queue pairs, each on spines of its own chance.

    Planes share evenly here too, as a host's adapter sees to that.
    """
    layout, rng = spreading.layout, np.random.default_rng(seed)
    chosen: dict[str, Array] = {}
    for index in layout.indices:
        classes = layout.has[index][spreading.edges.nodes].max(1)
        column = np.full((len(classes), pairs), -1, np.int64)
        for k, values in enumerate(layout.values[index]):
            mine = np.flatnonzero(classes == k)
            column[mine] = np.array(values)[rng.integers(0, len(values), (len(mine), pairs))]
        chosen[index] = column
    return replace(spreading, chosen=chosen, parts=spreading.parts * pairs, pairs=pairs)


@dataclass(frozen=True, slots=True)
class Layout:
    """What tells rows of edges apart: the forms of their nodes and what these stand for.

    `has[index]`: per node the number of the class of the index's values there, -1 for none;
    `values`: of each such class. `planes`: per node the number of what planes it stands for.
    """

    fabric: Fabric
    edges: Edges
    indices: tuple[str, ...]
    has: Mapping[str, Array]
    values: Mapping[str, Sequence[Sequence[int]]]
    planes: Array
    sets: Sequence[Sequence[int]]

    @staticmethod
    def of(fabric: Fabric, edges: Edges) -> Layout:
        """That of a fabric's edges; indices in the order in which paths come by them."""
        names = edges.graph.names
        has: dict[str, Array] = {}
        values: dict[str, dict[tuple[int, ...], int]] = {}
        planes = np.full(len(names) + 1, -1, np.int64)
        sets: dict[tuple[int, ...], int] = {}
        for v in np.unique(edges.nodes):
            if v < 0 or names[v] not in fabric.form:
                continue
            form, own = fabric.form[names[v]]
            planes[v] = sets.setdefault(tuple(fabric.planes_of(names[v])), len(sets))
            for index in fabric.kinds[form].inner:
                column = has.setdefault(index, np.full(len(names) + 1, -1, np.int64))
                listed = values.setdefault(index, {})
                column[v] = listed.setdefault(tuple(own[index].values), len(listed))
        first = {i: int(np.argmax(column[edges.nodes] >= 0, 1).max()) for i, column in has.items()}
        ordered = tuple(sorted(has, key=lambda index: (first[index], index)))
        classes = {index: [*listed] for index, listed in values.items()}
        return Layout(fabric, edges, ordered, has, classes, planes, [*sets])

    def keys(self, nodes: Array, chosen: Mapping[str, Array], rows: Array | slice) -> Array:
        """A number for the switch that each of `rows` has at `nodes`; that of all planes is one."""
        key = nodes
        for index, values in chosen.items():
            size = 2 + max(max(each) for each in self.values[index])
            key = key * size + np.where(self.has[index][nodes] >= 0, values[rows] + 1, 0)
        return key

    def groups(
        self, index: str, chosen: Mapping[str, Array]
    ) -> Iterator[tuple[Array, Sequence[int], Array, Array]]:
        """(rows, the index's values there, keys of the switches before it and behind it)."""
        nodes = self.edges.nodes
        classes = self.has[index][nodes]
        with_it = np.flatnonzero((classes >= 0).any(1))
        inside = classes[with_it] >= 0
        enter = np.argmax(inside, 1)
        leave = inside.shape[1] - 1 - np.argmax(inside[:, ::-1], 1)
        earlier = {name: values for name, values in chosen.items() if name != index}
        left = self.keys(nodes[with_it, enter - 1], earlier, with_it)
        right = self.keys(nodes[with_it, leave + 1], earlier, with_it)
        kind = classes[with_it, enter] * len(self.sets) + self.planes[nodes[with_it, enter]]
        for k in np.unique(kind):
            mine = kind == k
            values = self.values[index][int(k) // len(self.sets)]
            yield with_it[mine], values, left[mine], right[mine]
