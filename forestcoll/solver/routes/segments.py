"""Paths as segment lists: the 16-bit numbers that an IPv6 destination carries through the switches.

One address holds a block of 32 bits, which names the plane, and up to six numbers. The first names
the host's leaf (left out where the others are six already: the leaf reaches its neighbours anyhow),
then come the switches on the way, the last leaf's local number of the port to the target's adapter,
and the number at which a host takes the outer header off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np

from forestcoll.common.errors import UnsupportedError
from forestcoll.schedule.routes import CARRIED
from forestcoll.solver.routes.fabric import DECAPSULATION, LOCAL_SEGMENTS, Fabric
from forestcoll.solver.routes.spread import Spreading


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


def segments_of(fabric: Fabric, path: Sequence[str]) -> tuple[int, ...]:
    """What an address carries for a path of ids."""
    inner = [fabric.switches[name] for name in path[1:-1]]
    numbers = [fabric.segment(form, values) for form, values in inner]
    port = fabric.port(inner[-1][0], path[-1], {})
    return (*numbers, LOCAL_SEGMENTS + port, DECAPSULATION)[-CARRIED:]


def edges_with_ways(spreading: Spreading) -> list[Edge]:
    """Every edge with its paths. Raises UnsupportedError where a path has too many switches."""
    edges, layout, chosen = spreading.edges, spreading.layout, spreading.chosen
    names, (count, width) = edges.graph.names, edges.nodes.shape
    keys = layout.keys(edges.nodes, {n: c[:, None] for n, c in chosen.items()}, slice(None))
    _, some, which = np.unique(keys, return_index=True, return_inverse=True)
    said, numbers = zip(
        *(
            _say(
                spreading.fabric, names[edges.nodes[row, k]], {n: c[row] for n, c in chosen.items()}
            )
            for row, k in zip(*divmod(some, width), strict=True)
        ),
        strict=True,
    )
    texts = np.array(said, object)[which.reshape(count, width)].tolist()
    sets, planes = [*map(tuple, layout.sets)], layout.planes[edges.nodes].max(1).tolist()
    lengths = (edges.nodes >= 0).sum(1)
    if count and lengths.max() > CARRIED + 1:
        row = int(lengths.argmax())
        raise UnsupportedError(
            f"{' -> '.join(texts[row])}: {lengths[row]} segments; an address holds {CARRIED}"
        )
    rows = np.arange(count)
    last = np.take_along_axis(edges.nodes, lengths[:, None] - [2, 1], 1)
    pairs, of = np.unique(last, axis=0, return_inverse=True)
    ports = [
        spreading.fabric.port(spreading.fabric.form[names[v]][0], names[w], {})
        for v, w in pairs.tolist()
    ]
    if max(ports, default=0) >= DECAPSULATION - LOCAL_SEGMENTS:
        raise UnsupportedError(f"{max(ports) + 1:,} ports of a leaf: too many local segments")
    segments = np.pad(np.array(numbers)[which.reshape(count, width)], ((0, 0), (0, 1)))
    segments[rows, lengths - 1] = LOCAL_SEGMENTS + np.array(ports)[of.reshape(-1)]
    segments[rows, lengths] = DECAPSULATION
    columns = planes, texts, lengths.tolist(), segments.tolist(), edges.weight.tolist()
    ways = (
        Way(sets[p], tuple(nodes[:n]), tuple(carried[max(1, n + 1 - CARRIED) : n + 1]), weight)
        for p, nodes, n, carried, weight in zip(*columns, strict=True)
    )
    ends = ((names[i], names[j]) for i, j in edges.ends.tolist())
    return [
        Edge(src, dst, tuple([way for _, way in mine]))
        for (src, dst), mine in groupby(zip(ends, ways, strict=True), key=itemgetter(0))
    ]


def _say(fabric: Fabric, node: str, values: dict[str, int]) -> tuple[str, int]:
    """The name of a switch, and its number; 0 of what is none."""
    if node not in fabric.form:
        return node, 0
    form, own = fabric.form[node]
    fixed = {n: str(a.values[0]) if a.size == 1 else f"{{{n}}}" for n, a in own.items()}
    inner = {name: int(values[name]) for name in fabric.kinds[form].inner}
    return form.format(**fixed | inner), fabric.segment(form, inner)
