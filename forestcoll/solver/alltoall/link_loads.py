"""What every link carries of an all-to-all's flows or routes, as the table that forests have."""

from __future__ import annotations

from fractions import Fraction

from forestcoll.graph.link_table import LinkLoad, LinkTable
from forestcoll.solver.alltoall.flows import Optimum, reached
from forestcoll.solver.alltoall.routes import Routes, loads


def link_loads(found: Optimum | Routes) -> LinkTable:
    """A row for each direction of a link: its load for each byte of a send buffer, how busy it is.

    Of flows and their images that is the average over links that symmetry makes alike.
    """
    graph, algbw = found.demand.graph, found.algbw
    if isinstance(found, Routes):
        crossed = loads(graph, found.group, found.routes)
        orbit = range(len(graph.tail)) if found.group is None else found.group.link
        unit = Fraction(1, len(graph.ranks) * found.units)
        share = {o: amount * unit for o, amount in crossed.items()}
    else:
        _, flows = reached(found.demand, found.folding, found.flows, found.rate)
        orbit = found.folding.link.tolist()
        share = {o: amount * graph.unit / algbw for o, amount in flows.items()}
    rows = []
    for e, (tail, head) in enumerate(zip(graph.tail, graph.head, strict=True)):
        bandwidth, load = graph.bandwidth(e), share.get(orbit[e], Fraction(0))
        percent = 100 * load * algbw / bandwidth
        rows.append(LinkLoad(graph.names[tail], graph.names[head], bandwidth, load, percent))
    return LinkTable(rows)
