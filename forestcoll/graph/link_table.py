"""The links of a forest by name: what crosses each of them, and how busy that keeps it."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import networkx as nx

    from forestcoll.graph.capacity_graph import CapacityGraph

SHOWN = 20
"""Rows of a table that are printed."""


class LinkLoad(NamedTuple):
    """One direction of a link. All numbers are exact."""

    src: str
    dst: str
    bandwidth: Fraction  # GB/s of 10^9 bytes
    load: Fraction  # bytes that cross it, for each byte of the collective's size (nccl-tests')
    percent: Fraction  # how busy it is, of the time that the schedule takes at the links' bandwidth


class LinkTable(tuple[LinkLoad, ...]):
    """A row for each direction of a link, in the graph's order; printed as a table.

    A sequence of named tuples: `pandas.DataFrame(forest.links)` takes it as it is.
    """

    __slots__ = ()

    @staticmethod
    def of(
        graph: CapacityGraph, loads: Iterable[Fraction | int], total: int, algbw: Fraction
    ) -> LinkTable:
        """`loads`: units of weight on each link, of `total`; `algbw`: GB/s of the schedule."""
        rows = []
        for e, (tail, head, units) in enumerate(graph.along(loads)):
            bandwidth, load = graph.bandwidth(e), Fraction(units, total)
            percent = 100 * load * algbw / bandwidth
            rows.append(LinkLoad(graph.names[tail], graph.names[head], bandwidth, load, percent))
        return LinkTable(rows)

    def __repr__(self) -> str:
        numbers = [f"{float(v):.6g}" for row in self[:SHOWN] for v in row[2:]]
        cells = [LinkLoad._fields] + [
            (row.src, row.dst, *numbers[3 * k : 3 * k + 3]) for k, row in enumerate(self[:SHOWN])
        ]
        wide = [max(len(row[column]) for row in cells) for column in range(5)]
        lines = [
            "  ".join(
                cell.ljust(width) if column < 2 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, wide, strict=True))
            )
            for row in cells
        ]
        if len(self) > SHOWN:
            lines.append(f"... and {len(self) - SHOWN} links more")
        return "\n".join(lines)


def link_graph(graph: CapacityGraph, table: LinkTable) -> nx.DiGraph[Any]:
    """Nodes by name (kind, rank or None), an edge for each row (bandwidth, load, percent)."""
    import networkx as nx

    drawn: nx.DiGraph[Any] = nx.DiGraph()
    rank = graph.rank_of
    for node, name in enumerate(graph.names):
        drawn.add_node(name, kind="gpu" if graph.gpu[node] else "switch", rank=rank.get(node))
    for row in table:
        drawn.add_edge(
            row.src, row.dst, bandwidth=row.bandwidth, load=row.load, percent=row.percent
        )
    return drawn
