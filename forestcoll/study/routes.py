"""Routes through a fabric: made of a schedule's file, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from forestcoll.common.errors import ForestError, UnsupportedError
from forestcoll.solver.routes.edges import (
    Edges,
    edges_of_exchange,
    edges_of_forest,
    edges_of_loads,
)
from forestcoll.solver.routes.fabric import Fabric
from forestcoll.solver.routes.repair import Repair, repair
from forestcoll.solver.routes.segments import Edge, edges_with_ways
from forestcoll.solver.routes.spread import Loads, Spread, hash_flows, loads, spread

if TYPE_CHECKING:
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.topology import Topology

QUEUE_PAIRS = (1, 4, 16)
DRAWS = 3  # one where edges are many
MOST_DRAWN = 100_000
"""Queue pairs that ECMP throws dice for more than once."""


class Sent(NamedTuple):
    """A schedule's `edges`; `algbw`: GB/s that its own file promises. `stem`: of files' names."""

    stem: str
    what: str
    edges: Edges
    algbw: Fraction


class Pinned(NamedTuple):
    """Routes, and what ECMP reaches instead by queue pairs: GB/s, mean of `DRAWS` draws.

    `spares`: the loads of other colourings, over all spines but the last, but the last two.
    """

    sent: Sent
    edges: list[Edge]
    loads: Loads
    by: Spread
    hashed: Mapping[int, Fraction]
    spares: Sequence[Loads] = ()


def read(text: str, source: str, topology: Topology, compact: bool = False) -> Sent:
    """What a file sends over `topology`; `compact` as in `edges_of_forest`. ForestCollError."""
    from forestcoll.compile.verdict import looks_like_forest
    from forestcoll.schedule import forest_file
    from forestcoll.solver.alltoall import file as exchanges
    from forestcoll.solver.alltoall.routes import Routes

    if looks_like_forest(text):
        forest = forest_file.loads(text, source)
        _check(forest.graph, topology, source)
        stem = f"{forest.name}.{forest.collective}"
        return Sent(stem, str(forest.collective), edges_of_forest(forest, compact), forest.algbw)
    if exchanges.looks_like_one(text):
        exchange, name, algbw = exchanges.loads(text, source)
        if not isinstance(exchange, Routes):
            raise ForestError(
                f"{source}: flows of an optimum; 'forestcoll synthesize -c alltoall' makes routes"
            )
        _check(exchange.graph, topology, source)
        word = exchanges.word(exchange.demand)
        return Sent(f"{name}.{word}", word, edges_of_exchange(exchange), algbw)
    from forestcoll import plans
    from forestcoll.compile.alltoall_plans import routes_beside
    from forestcoll.lower.alltoall.lowering import edges_of
    from forestcoll.schedule.routes import routes
    from forestcoll.study import predict
    from forestcoll.verify.dataflow import dataflow

    program = plans.loads(text, source)
    if program.collective.phases:
        file, kind = predict.forest_beside(Path(source)), "forest file"
        own = None if file is None else predict.forest_of(program, file)
        ways = None if own is None else routes(own.graph, own)
    else:
        paths, kind = routes_beside(Path(source)), "file of routes"
        ways = None if paths is None else routes(paths.graph, edges=edges_of(paths))
    if ways is None:
        raise ForestError(f"{source}: no {kind} beside the plan, which tells its paths")
    _check(ways.graph, topology, source)
    shares = dataflow(program).verified.loads
    what = str(program.collective)
    return Sent(f"{topology.name}.{what}", what, edges_of_loads(ways, shares), ways.algbw(shares))


def _check(graph: CapacityGraph, topology: Topology, source: str) -> None:
    from forestcoll.compile.verdict import has_links_of

    if not has_links_of(graph, topology):
        raise ForestError(
            f"{source}: made for other links than those of {topology.name}; give the same --set, "
            "--without and --scale that it was made with"
        )


def pin(
    sent: Sent, whole: Topology, left: Topology, by: Spread, seed: int, spares: int = 0
) -> Pinned:
    """Its routes on `left`, numbered as `whole` is. Raises UnsupportedError without any."""
    fabric, edges = Fabric(whole, left), sent.edges
    if not len(edges):
        raise UnsupportedError(f"{sent.what}: nothing goes from box to box: no routes to pin")
    spreading = spread(fabric, edges, by)
    carried, layout = loads(spreading), spreading.layout
    sizes = [len(values) for index in layout.indices[:1] for values in layout.values[index]]
    if spares and (by != "flows" or min(sizes, default=0) <= spares):
        raise UnsupportedError(
            f"spare colourings are of whole flows, over more than {spares} equal spines that the "
            "topology has merged (alike:)"
        )
    hashed = {}
    flows = spread(fabric, edges, "flows") if by == "shares" else spreading
    # else no switches are known to be alike, or edges are too many
    counted = flows.chosen and edges.images == 1
    for pairs in QUEUE_PAIRS if counted else ():
        draws = DRAWS if pairs * len(edges) <= MOST_DRAWN else 1
        rates = [loads(hash_flows(flows, pairs, seed + k)).slowest()[0] for k in range(draws)]
        hashed[pairs] = sum((min(r, sent.algbw) for r in rates), Fraction(0)) / draws
    others = [loads(spread(fabric, edges, by, 1 + k)) for k in range(spares)]
    return Pinned(sent, edges_with_ways(spreading), carried, by, hashed, others)


def mend(pinned: Pinned, failed: Sequence[str]) -> Repair | None:
    """The routes after failures, None without any. Raises ForestCollError, InfeasibleError."""
    if not failed:
        return None
    if pinned.sent.edges.images > 1 or pinned.spares:
        raise UnsupportedError(
            "templates and spare colourings are of a whole fabric: make a schedule of what is left"
        )
    from forestcoll.topology.edit import edit

    spreading = pinned.loads.spreading
    fabric = spreading.fabric
    left = Fabric(fabric.whole, edit(fabric.left, failed))
    repaired = repair(left, pinned.edges, spreading.total)
    rates = left.left.rates()
    for here, there in fabric.left.rates():
        if not {here, there} & fabric.form.keys() and (here, there) not in rates:
            raise UnsupportedError(
                f"{here} to {there} is a link inside a box, and no route goes around it: make a "
                "schedule of what is left (--without)"
            )
    return repaired
