"""Reference routes: every block takes its shortest ways, whatever the others do.

Between two ranks all ways of the fewest links share the block (ECMP): at each node in proportion to
the bandwidth of the links that lead on. "direct": no rank passes anything on, as in libraries that
send each block straight to its target. "shortest": ranks do, as on a mesh they must.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

from forestcoll.solver.alltoall.demand import Demand
from forestcoll.solver.alltoall.fold import Folding, quotient
from forestcoll.solver.walks import hops, links_out, neighbours

Reference = Literal["direct", "shortest"]
WAYS: tuple[Reference, ...] = ("direct", "shortest")


def reference_algbw(demand: Demand, folding: Folding, way: Reference) -> Fraction | None:
    """GB/s of algbw; None where some block has no such way."""
    graph = demand.graph
    load = orbit_loads(demand, folding, way)
    if load is None:
        return None
    capacity = dict(zip(folding.link.tolist(), graph.capacity, strict=True))
    rate: Fraction = min(capacity[o] / carried for o, carried in load.items() if carried)
    return rate * graph.unit * demand.scale


def orbit_loads(demand: Demand, folding: Folding, way: Reference) -> dict[int, Fraction] | None:
    """Units of demand that each link of an orbit carries; None where some block has no such way.

    Of targets that look alike from a source (`fold.quotient`) one is followed.
    """
    graph = demand.graph
    out = links_out(graph.n, graph.along(range(len(graph.tail))))
    into = neighbours(graph.n, zip(graph.head, graph.tail, strict=True))
    orbit = folding.link.tolist()
    load: dict[int, Fraction] = defaultdict(Fraction)
    for source, images in zip(folding.sources, folding.images, strict=True):
        closed = set(demand.nodes_to_avoid(source))
        if way == "direct":
            closed |= {v for v in range(graph.n) if graph.gpu[v]}
        colour = quotient(demand, folding, source).colour.tolist()
        wanted: dict[int, tuple[int, int]] = {}  # colour -> (a target, units for all of them)
        for v, amount in enumerate(demand.amounts(source).tolist()):
            if amount:
                wanted[colour[v]] = v, amount + wanted.get(colour[v], (v, 0))[1]
        for target, amount in wanted.values():
            shares = _shares(graph.capacity, out, into, closed, source, target)
            if shares is None:
                return None
            for e, share in shares.items():
                load[orbit[e]] += images * amount * share / folding.sizes[orbit[e]]
    return load


def _shares(
    capacity: Sequence[int],
    out: Sequence[Sequence[tuple[int, int]]],
    into: Sequence[Sequence[int]],
    closed: set[int],
    source: int,
    target: int,
) -> dict[int, Fraction] | None:
    """The share of a block that each link carries, `closed` nodes passing nothing on."""
    far = hops(into, [target], lambda v: v not in closed)
    if source not in far:
        return None
    at: dict[int, Fraction] = {source: Fraction(1)}
    shares: dict[int, Fraction] = {}
    layer = [source]
    while layer != [target]:
        following: dict[int, Fraction] = defaultdict(Fraction)
        for u in layer:
            on = [
                (v, e)
                for v, e in out[u]
                if far.get(v) == far[u] - 1 and (v == target or v not in closed)
            ]
            room = sum(capacity[e] for _, e in on)
            for v, e in on:
                share = at[u] * Fraction(capacity[e], room)
                shares[e] = shares.get(e, Fraction(0)) + share
                following[v] += share
        at, layer = following, list(following)
    return shares
