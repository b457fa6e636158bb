"""Paths as segment lists: the 16-bit numbers that an IPv6 destination carries through the switches.

One address holds a block of 32 bits, which names the plane, and up to six numbers. The first names
the host's leaf (left out where the others are six already: the leaf reaches its neighbours anyhow),
then come the switches on the way, the last leaf's local number of the port to the target's adapter,
and the number at which a host takes the outer header off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from forestcoll.common.errors import UnsupportedError
from forestcoll.solver.routes.edges import Array
from forestcoll.solver.routes.fabric import DECAPSULATION, LOCAL_SEGMENTS, Fabric
from forestcoll.solver.routes.spread import Layout, Spreading

CARRIED = 6
"""Numbers that an address holds behind its block."""


@dataclass(frozen=True, slots=True)
class Way:
    """One path of an edge, the same in all `planes`. `nodes`: ids, with braces for the plane."""

    planes: tuple[int, ...]
    nodes: tuple[str, ...]
    segments: tuple[int, ...]
    weight: int


@dataclass(frozen=True, slots=True)
class Edge:
    """GPU to GPU by these ways; weights are parts of `Spreading.total`."""

    src: str
    dst: str
    ways: tuple[Way, ...]

    @property
    def weight(self) -> int:
        """Of all ways together."""
        return sum(way.weight for way in self.ways)


def segments_of(
    fabric: Fabric, switches: Mapping[str, tuple[str, dict[str, int]]], path: Sequence[str]
) -> tuple[int, ...]:
    """What an address carries for a path of ids; `switches`: `Fabric.switches()`."""
    inner = [switches[name] for name in path[1:-1]]
    numbers = [fabric.kinds[form].segment(values) for form, values in inner]
    port = fabric.port(inner[-1][0], path[-1], {})
    return (*numbers, LOCAL_SEGMENTS + port, DECAPSULATION)[-CARRIED:]


def edges_with_ways(spreading: Spreading) -> list[Edge]:
    """Every edge with its paths. Raises UnsupportedError where a path has too many switches."""
    edges, fabric = spreading.edges, spreading.fabric
    names, layout = edges.graph.names, Layout.of(spreading.fabric, edges)
    segments = _segments(spreading).tolist()
    chosen = {name: column.tolist() for name, column in spreading.chosen.items()}
    sets = [tuple(each) for each in layout.sets]
    planes = layout.planes[edges.nodes].max(1).tolist()
    weights, said = edges.weight.tolist(), dict[tuple[int, ...], str]()
    ways: list[tuple[tuple[int, int], Way]] = []
    for row, (ends, path) in enumerate(zip(edges.ends.tolist(), edges.nodes.tolist(), strict=True)):
        nodes = []
        for v in path:
            if v < 0:
                break
            key = (v, *(column[row] for column in chosen.values()))
            if key not in said:
                said[key] = _name(fabric, names[v], {n: c[row] for n, c in chosen.items()})
            nodes.append(said[key])
        carried = tuple(s for s in segments[row] if s)
        way = Way(sets[planes[row]], tuple(nodes), carried[-CARRIED:], weights[row])
        if len(carried) > CARRIED + 1:
            raise UnsupportedError(
                f"{' -> '.join(nodes)}: {len(carried)} segments; an address holds {CARRIED}"
            )
        ways.append(((ends[0], ends[1]), way))
    return [
        Edge(names[i], names[j], tuple(way for _, way in mine))
        for (i, j), mine in groupby(ways, key=lambda each: each[0])
    ]


def _name(fabric: Fabric, node: str, values: dict[str, int]) -> str:
    if node not in fabric.form:
        return node
    form, own = fabric.form[node]
    kind = fabric.kinds[form]
    fixed = {n: str(a.values[0]) if a.size == 1 else f"{{{n}}}" for n, a in own.items()}
    return form.format(**fixed | {name: str(values[name]) for name in kind.inner})


def _segments(spreading: Spreading) -> Array:
    """Row by row the numbers, 0 where there is none."""
    edges, fabric, names = spreading.edges, spreading.fabric, spreading.edges.graph.names
    first = np.zeros(len(names) + 1, np.int64)
    stride = {name: np.zeros(len(names) + 1, np.int64) for name in spreading.chosen}
    for v, name in enumerate(names):
        if name not in fabric.form:
            continue
        kind = fabric.kinds[fabric.form[name][0]]
        start = {index: kind.span[index].start for index in kind.inner}
        first[v] = kind.segment(start)
        for index in kind.inner:
            more = kind.segment({**start, index: start[index] + 1})
            if kind.span[index].stop > start[index] + 1:
                stride[index][v] = more - first[v]
                first[v] -= start[index] * stride[index][v]
    number: Array = first[edges.nodes]
    for name, column in spreading.chosen.items():
        number += stride[name][edges.nodes] * column[:, None]
    last = (edges.nodes >= 0).sum(1) - 1
    rows = np.arange(len(edges))
    ends = np.c_[edges.nodes[rows, last - 1], edges.nodes[rows, last]]
    pairs, which = np.unique(ends, axis=0, return_inverse=True)
    ports = [fabric.port(fabric.form[names[v]][0], names[w], {}) for v, w in pairs.tolist()]
    if max(ports, default=0) >= DECAPSULATION - LOCAL_SEGMENTS:
        raise UnsupportedError(f"{max(ports) + 1:,} ports of a leaf: too many local segments")
    number = np.pad(number, ((0, 0), (0, 1)))
    number[rows, last] = LOCAL_SEGMENTS + np.array(ports, np.int64)[which.reshape(-1)]
    number[rows, last + 1] = DECAPSULATION
    return number
