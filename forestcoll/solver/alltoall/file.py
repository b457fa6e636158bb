"""All-to-all files: the topology, what is sent, flows or routes, and the proof; JSON, exact.

Whoever has the file needs nothing else to check it. Flows: at every node, what comes in less what
goes out is what its rank is sent. Where the file lists symmetries, one flow stands for those of all
ranks that the symmetries make of its source, and links that are images of each other carry the
average. Routes: `routes` says what is checked. Lengths: `fold` says what they prove.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forestcoll.common.errors import ForestError, TopologyError
from forestcoll.common.input_limits import LENGTH_STEPS
from forestcoll.common.text_file import Block, Rows, dump_block
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.group import Image, commuting_group
from forestcoll.schedule.forest_file import moves, topology_block
from forestcoll.solver.alltoall.demand import Demand, check_matrix
from forestcoll.solver.alltoall.flows import Flow, Optimum, reach_rate
from forestcoll.solver.alltoall.fold import Folding, bound, orbits
from forestcoll.solver.alltoall.routes import Route, Routes, check

if TYPE_CHECKING:
    from forestcoll.solver.alltoall.model import AllToAllModel, FlowModel, RoutesModel

FORMAT = "forestcoll.alltoall/1"
SCHEMA_PATH = Path(__file__).parents[2] / "schedule" / "alltoall.schema.json"
SUFFIX = ".flows.json"
ROUTES_SUFFIX = ".routes.json"


def schema() -> dict[str, Any]:
    """The JSON Schema of an all-to-all file."""
    from forestcoll.solver.alltoall.model import AllToAllModel

    return AllToAllModel.model_json_schema()


def looks_like_one(text: str) -> bool:
    """Whether a text is to be taken for an all-to-all file."""
    return text.lstrip()[:1] == "{" and f'"{FORMAT}"' in text[:4096]


def dumps(exchange: Optimum | Routes, name: str) -> str:
    """Flows or routes as canonical JSON: the same ones give the same bytes, a line each."""
    best = exchange.optimum if isinstance(exchange, Routes) else exchange
    demand, graph = best.demand, best.demand.graph
    names = graph.names
    block = Block(
        format=FORMAT,
        collective=word(demand),
        topology=topology_block(name, graph),
        ranks=graph.rank_names,
    )
    if demand.matrix is not None:
        block["matrix"] = demand.matrix
    if demand.groups:
        block["groups"] = [[names[graph.ranks[i]] for i in group] for group in demand.groups]
        block["closed"] = demand.closed
    block |= {"algbw": str(exchange.algbw), "theta": str(exchange.algbw / demand.scale)}
    block["bound"] = {"algbw": str(best.bound), "lengths": best.lengths}
    if best.folding.generators:
        block["symmetry"] = _generators(graph, best.folding.generators)
    if isinstance(exchange, Routes):
        block["routes"] = _routes(exchange)
    else:
        block["flows"] = Rows(map(json.dumps, _flows(exchange)), 2)
    return dump_block(block)


def _generators(graph: CapacityGraph, images: Iterable[Image]) -> dict[str, object]:
    return {"generators": [moves(graph.names, image) for image in images]}


def _flows(best: Optimum) -> Iterator[dict[str, object]]:
    graph = best.demand.graph
    for source, flow in zip(best.folding.sources, best.flows, strict=True):
        yield {
            "source": graph.names[source],
            "links": list(flow),
            "amounts": [str(amount * graph.unit) for amount in flow.values()],
        }


def _routes(routes: Routes) -> Block:
    graph = routes.graph
    block = Block(units=routes.units)
    if routes.group.generators:
        block["symmetry"] = _generators(graph, routes.group.generators)
    rows = (
        {"path": [graph.names[v] for v in route.path], "units": route.units}
        for route in routes.routes
    )
    block["paths"] = Rows(map(json.dumps, rows), 3)
    return block


def word(demand: Demand) -> str:
    """`"alltoall"`, or `"alltoallv"` where a matrix says what is sent."""
    return "alltoall" if demand.matrix is None else "alltoallv"


def loads(text: str, source: str = "alltoall") -> tuple[Optimum | Routes, str, Fraction]:
    """(what the file holds and proves, its topology's name, the proven bound in GB/s of algbw).

    Everything is recomputed from the links. Raises ForestError where a claim does not hold.
    """
    from forestcoll.schedule.forest_file.reading import parse_model
    from forestcoll.solver.alltoall.model import AllToAllModel

    model = parse_model(AllToAllModel, "all-to-all", text, source)
    try:
        exchange, proven = _read(model)
        return exchange, model.topology.name, proven
    except (ForestError, TopologyError) as e:
        raise ForestError(f"{source}: {e}") from None


def _read(model: AllToAllModel) -> tuple[Optimum | Routes, Fraction]:
    from forestcoll.schedule.forest_file.reading import generators_of, graph_of

    graph = graph_of(model.topology, model.ranks)
    if len(graph.tail) != len(model.topology.links):
        raise ForestError("topology.links: two links lead from one node to the same other")
    ids = graph.node_of
    demand = _demand(model, Demand(graph))
    generators = [] if model.symmetry is None else generators_of(model.symmetry, ids)
    for number, image in enumerate(generators):
        orbits(demand, [image])
        if not demand.keeps(image):
            raise ForestError(f"symmetry.generators[{number}] does not keep what is sent")
    folding = orbits(demand, generators)
    steps = len(folding.sources) * len(graph.tail)
    if steps > LENGTH_STEPS:
        raise ForestError(f"{steps:,} links to look at, all sources together {LENGTH_STEPS.note}")
    lengths = tuple(model.bound.lengths)
    if len(lengths) != len(graph.tail):
        raise ForestError(f"bound: {len(lengths)} lengths for {len(graph.tail)} links")
    rate = bound(demand, folding, lengths)
    stated = Fraction(model.theta) / graph.unit
    exchange: Optimum | Routes
    if (model.flows is None) == (model.routes is None):
        raise ForestError("flows, routes: one of the two has to be there, and not both")
    if model.routes is not None:
        best = Optimum(demand, folding, rate, (), lengths)
        exchange = _read_routes(model.routes, best)
        check(exchange)
    else:
        folding, flows = _read_flows(model.flows or [], demand, folding)
        fits, _ = reach_rate(demand, folding, flows, stated)
        if fits != stated:
            raise ForestError(f"states theta {model.theta}, the links let {fits * graph.unit} by")
        exchange = Optimum(demand, folding, stated, flows, lengths, rate)
    proven = rate * graph.unit * demand.scale
    for what, said, recomputed in (
        ("algbw", model.algbw, exchange.algbw),
        ("theta", model.theta, exchange.algbw / demand.scale),
        ("bound.algbw", model.bound.algbw, proven),
    ):
        if Fraction(said) != recomputed:
            raise ForestError(f"states {what} {said}, recomputed it is {recomputed}")
    return exchange, proven


def _read_routes(model: RoutesModel, best: Optimum) -> Routes:
    from forestcoll.schedule.forest_file.reading import generators_of

    graph = best.demand.graph
    ids = graph.node_of
    generators = [] if model.symmetry is None else generators_of(model.symmetry, ids)
    group = commuting_group(graph, generators)
    routes = []
    for number, given in enumerate(model.paths):
        unknown = next((name for name in given.path if name not in ids), None)
        if unknown is not None:
            raise ForestError(f"routes.paths[{number}]: unknown node {unknown!r}")
        routes.append(Route(tuple([ids[name] for name in given.path]), given.units))
    return Routes(best, group, model.units, tuple(routes))


def _demand(model: AllToAllModel, demand: Demand) -> Demand:
    graph = demand.graph
    if (model.matrix is None) != (model.collective == "alltoall"):
        raise ForestError(
            f"matrix: {model.collective} goes {'without' if model.matrix else 'with'} one"
        )
    if model.matrix is not None:
        if model.groups:
            raise ForestError("groups: an alltoallv has none")
        return Demand(graph, check_matrix(model.matrix, len(graph.ranks)))
    if model.groups is None:
        return demand
    number = {graph.names[v]: i for i, v in enumerate(graph.ranks)}
    listed = [name for group in model.groups for name in group]
    if sorted(listed) != sorted(number) or any(len(group) < 2 for group in model.groups):
        raise ForestError("groups: must hold every rank once, two in each at the least")
    groups = tuple(tuple(number[name] for name in group) for group in model.groups)
    return Demand(graph, None, groups, model.closed)


def _read_flows(
    given_flows: Sequence[FlowModel], demand: Demand, folding: Folding
) -> tuple[Folding, tuple[Flow, ...]]:
    """The flows in the order of the sources of the folding, which are those of the file."""
    graph = demand.graph
    ids = graph.node_of
    by_source: dict[int, tuple[int, Flow]] = {}
    for number, given in enumerate(given_flows):
        where = f"flows[{number}]"
        if ids.get(given.source) not in graph.ranks:
            raise ForestError(f"{where}.source: {given.source!r} is no rank")
        if len(given.links) != len(given.amounts) or len(set(given.links)) != len(given.links):
            raise ForestError(f"{where}: links must be different, with an amount each")
        if max(given.links, default=0) >= len(graph.tail):
            raise ForestError(f"{where}.links: there are {len(graph.tail)} links, from 0 on")
        node = ids[given.source]
        orbit = folding.node[node]
        if orbit in by_source:
            raise ForestError(f"{where}: another flow stands for {given.source!r} already")
        amounts = (Fraction(amount) / graph.unit for amount in given.amounts)
        by_source[orbit] = node, dict(zip(given.links, amounts, strict=True))
    for source in folding.sources:
        if source not in by_source:
            raise ForestError(f"flows: none stands for {graph.names[source]!r}")
    chosen = tuple(by_source[source][0] for source in folding.sources)
    flows = tuple(by_source[source][1] for source in folding.sources)
    return replace(folding, sources=chosen), flows
