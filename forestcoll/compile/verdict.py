"""Verdict: what is proven of a file with a forest, groups of forests, or a plan."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from forestcoll.common import arguments
from forestcoll.common.errors import ForestCollError, ForestError, PlanError, UnsupportedError
from forestcoll.topology.numbers import decimal, percent

if TYPE_CHECKING:
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.program import Program
    from forestcoll.program.targets import PlanFormat
    from forestcoll.schedule.forest import Forest
    from forestcoll.solver.alltoall.flows import Optimum
    from forestcoll.solver.alltoall.routes import Routes
    from forestcoll.topology import Topology
    from forestcoll.verify import Verified
    from forestcoll.verify.dataflow import Dataflow


MOST_NODES = 4096
"""Of a graph that is compared with the catalogue's: larger ones take seconds to expand."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `verify_text` proved: one line a fact, and the figures for machines."""

    kind: Literal["forest", "groups", "alltoall"] | PlanFormat
    lines: list[str]
    figures: dict[str, object]


def bound_line(algbw: Fraction, bound: Fraction) -> str:
    """What a bound that is not reached proves."""
    return f"bound {bound} = {decimal(bound)} GB/s holds: at least {percent(algbw / bound)}"


def verify_text(text: str, source: str) -> Verdict:
    """What could be proven of a forest, groups or plan file; ForestError or PlanError if wrong.

    `source` names the text in messages; the forests that a groups file names are read from its
    directory.
    """
    text = arguments.text("text", text)
    arguments.path("source", source)
    if looks_like_forest(text):
        return verify_forest(text, source)[1]
    if _looks_like_groups(text):
        return _verify_groups(text, source)
    if _looks_like_alltoall(text):
        return _verify_alltoall(text, source)
    return _verify_plan(text, source)


def is_plan(text: str) -> bool:
    """Whether a text is to be taken for a plan: neither forest, groups nor all-to-all file."""
    others = (looks_like_forest, _looks_like_groups, _looks_like_alltoall)
    return not any(look(text) for look in others)


def looks_like_forest(text: str) -> bool:
    """Whether a text is to be taken for a forest file."""
    return text.lstrip()[:1] == "{" and '"forestcoll.forest/' in text[:4096]


def _looks_like_groups(text: str) -> bool:
    return '"forestcoll.groups/' in text[:4096]


def _looks_like_alltoall(text: str) -> bool:
    if '"forestcoll.alltoall/' not in text[:4096]:  # most files: none of the solver is loaded
        return False
    from forestcoll.solver.alltoall.file import looks_like_one

    return looks_like_one(text)


def verify_forest(text: str, source: str) -> tuple[Forest, Verdict]:
    """The forest of a file, and what could be proven of it; ForestError if it is wrong."""
    from forestcoll.schedule import certificate, forest_file

    forest, stated = forest_file.parse(text, source)
    try:
        algbw, bound = certificate.check(forest)
        if algbw != stated:
            raise ForestError(f"states algbw {stated}, its trees give {algbw}")
    except ForestError as error:
        raise ForestError(f"{source}: {error}") from None
    lines = [
        f"{forest.collective} on {forest.name}: {forest.n} ranks, {_count_trees(forest)} span, "
        f"height {forest.height}, shares add up",
        f"algbw {algbw} = {decimal(algbw)} GB/s, recomputed from the links",
    ]
    if bound is None:
        lines.append("no bound in the file: nothing proven about optimality")
    elif bound == algbw:
        lines.append(f"optimal: the bound ({forest.bound and forest.bound.method}) equals it")
    else:
        lines.append(bound_line(algbw, bound))
    machine = matches_catalogue(forest.graph, forest.name)
    if machine is False:
        lines.append(differs(forest.name))
    figures: dict[str, object] = {
        "collective": forest.collective.value,
        "topology": forest.name,
        "catalogue": machine,
        "ranks": forest.n,
        "trees": forest.count,
        "representatives": len(forest.trees),
        "height": forest.height,
        "algbw": str(algbw),
        "bound": None if bound is None else str(bound),
        "optimal": bound == algbw,
    }
    return forest, Verdict("forest", lines, figures)


def matches_catalogue(graph: CapacityGraph, name: str) -> bool | None:
    """Whether a graph is what the catalogue calls by that name; None where it knows no such name.

    Nodes, kinds and bandwidths are compared, with the same ranks. None also for graphs of more than
    MOST_NODES.
    """
    from forestcoll.topology import catalog

    topology = catalog.by_name(name, graph.n) if graph.n <= MOST_NODES else None
    return None if topology is None else has_links_of(graph, topology)


def has_links_of(graph: CapacityGraph, topology: Topology) -> bool:
    """Whether a graph is that of its ranks in a topology: nodes, kinds and bandwidths.

    Its switches copy and add as the topology's do, or none does: then its GPUs do it.
    """
    from forestcoll.common.errors import TopologyError
    from forestcoll.graph.capacity_graph import CapacityGraph

    ranks = [graph.names[node] for node in graph.ranks]
    spare = sum(graph.gpu) > len(ranks)
    try:
        ours = CapacityGraph.from_topology(topology, ranks, "all" if spare else "none")
    except TopologyError:  # other GPUs
        return False
    return _facts(graph) in (_facts(ours), _facts(ours.plain))


def machine_of(graph: CapacityGraph, name: str) -> Topology | None:
    """The catalogue's topology of that name where the graph is its: it has the latencies."""
    from forestcoll.topology import catalog

    return catalog.by_name(name, graph.n) if matches_catalogue(graph, name) else None


def differs(name: str) -> str:
    """What is to be said of a graph that is not what the catalogue calls by its name."""
    return (
        f"note: the topology is named {name}, but its nodes or links differ from the catalogue's "
        f"{name}"
    )


def _facts(graph: CapacityGraph) -> tuple[object, object]:
    """What nodes there are, and what links, whatever their order."""
    nodes = zip(graph.names, graph.gpu, graph.multicast, graph.aggregation, strict=True)
    names = graph.names
    links = {(names[u], names[v]): capacity * graph.unit for u, v, capacity in graph.arcs}
    return set(nodes), links


def _count_trees(forest: Forest) -> str:
    """`"16 trees"`; of a compact forest also how many of them stand in the file."""
    count = forest.count
    if forest.group is None:
        return f"{count} trees"
    few = "1 tree" if len(forest.trees) == 1 else f"{len(forest.trees)} trees"
    return f"{count} trees (the images of {few} under {forest.images} symmetries)"


def _verify_groups(text: str, source: str) -> Verdict:
    from forestcoll.schedule import groups_file

    proof = groups_file.verify(text, source)
    done, algbw, bound = proof.together, proof.algbw, proof.bound
    weights = list(dict.fromkeys(str(group.weight) for group in done.groups))
    times = f", times its weight ({', '.join(weights)})" if weights != ["1"] else ""
    lines = [
        f"{' and '.join(done.collectives)} of {len(done.groups)} groups at once: every forest "
        "spans, all of them together fit the machine's links",
        f"algbw {algbw} = {decimal(algbw)} GB/s in every group at the same time{times}",
    ]
    if bound == algbw:
        lines.append("optimal: no common algbw is larger (linear program, its dual recomputed)")
    else:
        lines.append(bound_line(algbw, bound))
    figures: dict[str, object] = {
        "collective": " and ".join(done.collectives),
        "groups": [len(group.graph.ranks) for group in done.groups],
        "algbw": str(algbw),
        "bound": str(bound),
        "optimal": bound == algbw,
    }
    return Verdict("groups", lines, figures)


def _how(exchange: Optimum | Routes) -> str:
    """What brings every rank what it is sent."""
    from forestcoll.solver.alltoall.routes import Routes

    if isinstance(exchange, Routes):
        units = "1 unit" if exchange.units == 1 else f"{exchange.units} units"
        listed = f"{len(exchange.routes)} paths"
        if exchange.images > 1:
            listed += f", moved by {exchange.images} symmetries,"
        return f"{listed} give every pair {units}"
    count, ranks = len(exchange.flows), len(exchange.demand.graph.ranks)
    flows = "1 flow" if count == 1 else f"{count} flows"
    if count < ranks:
        flows += f" (the images of which are those of all {ranks})"
    return f"{flows} bring every rank what it is sent and fit the links"


def _verify_alltoall(text: str, source: str) -> Verdict:
    from forestcoll.solver.alltoall import file
    from forestcoll.solver.alltoall.routes import Routes

    exchange, name, bound = file.loads(text, source)
    demand, graph = exchange.demand, exchange.demand.graph
    ranks = len(graph.ranks)
    what = file.word(demand)
    where = f"{what} on {name}: {ranks} ranks"
    if demand.groups:
        where += f" in {len(demand.groups)} groups"
    lines = [
        f"{where}; {_how(exchange)}",
        f"algbw {exchange.algbw} = {decimal(exchange.algbw)} GB/s, recomputed from the links",
    ]
    if bound == exchange.algbw:
        lines.append("optimal: the bound (lengths of links, shortest ways recomputed) equals it")
    else:
        lines.append(bound_line(exchange.algbw, bound))
    machine = matches_catalogue(graph, name)
    if machine is False:
        lines.append(differs(name))
    figures: dict[str, object] = {
        "collective": what,
        "topology": name,
        "catalogue": machine,
        "ranks": ranks,
        "algbw": str(exchange.algbw),
        "bound": str(bound),
        "optimal": bound == exchange.algbw,
    }
    if isinstance(exchange, Routes):
        figures |= {
            "paths": len(exchange.routes),
            "images": exchange.images,
            "units": exchange.units,
        }
    else:
        figures["flows"] = len(exchange.flows)
    return Verdict("alltoall", lines, figures)


def _verify_plan(text: str, source: str) -> Verdict:
    from forestcoll import plans
    from forestcoll.verify import verify

    form = plans.detect(text, source)
    program = plans.loads(text, source=source, format=form)
    try:
        verdict = verdict_of(program, verify(program), form)
    except ForestCollError as error:
        raise type(error)(f"{source}: {error}") from None
    notes = program.extra.get("notes", "").splitlines()
    verdict.lines.extend(f"note: {note}" for note in notes)
    verdict.figures["notes"] = notes
    return verdict


def verdict_of(program: Program, done: Verified, form: PlanFormat) -> Verdict:
    """What was proven of a plan's program, in words and figures."""
    blocks = max(len(r.thread_blocks) for r in program.ranks)
    modes = " and ".join(done.modes)
    rooted = f", root {done.root}" if done.root >= 0 else ""
    lines = [
        f"{program.collective}{rooted}, {program.n} ranks, at most {blocks} thread blocks per rank",
        f"every output chunk is right, {modes}; no deadlock with bounded queues, no race",
    ]
    busiest = max(done.loads, key=lambda pair: done.loads[pair], default=None)
    if busiest is not None:
        lines.append(
            f"{done.moved} chunks move between ranks ({done.chunks} are the whole data); most from "
            f"rank {busiest[0]} to rank {busiest[1]}, {done.loads[busiest]} of the data"
        )
    figures: dict[str, object] = {
        "collective": program.collective.value,
        "ranks": program.n,
        "root": done.root if done.root >= 0 else None,
        "thread_blocks": blocks,
        "modes": list(done.modes),
        "chunks": done.chunks,
        "moved_chunks": str(done.moved),
        "busiest_pair": None if busiest is None else list(busiest),
        "busiest_load": None if busiest is None else str(done.loads[busiest]),
    }
    if program.collective.reduces and done.moved:
        from forestcoll.verify.dataflow import dataflow

        flow = dataflow(program, done)
        lines += [*_tell_order(program, flow, figures), _tell_owners(flow, figures)]
    return Verdict(form, lines, figures)


def _tell_owners(flow: Dataflow, figures: dict[str, object]) -> str:
    """Where an epilogue goes, once to each element before any broadcast: a line, its figures."""
    from forestcoll.verify.owners import owners

    try:
        shares = owners(flow)
    except UnsupportedError as error:
        figures["epilogue"] = {"once": False, "why": str(error), "owners": []}
        return f"epilogue: does not go once to each element ({error})"
    rows = [{"rank": rank, "share": str(share)} for rank, share in shares.items()]
    figures["epilogue"] = {"once": True, "why": None, "owners": rows}
    low, high = min(shares.values()), max(shares.values())
    return (
        f"epilogue: once to each element, before any broadcast: at {len(shares)} of {flow.ranks} "
        f"ranks, a share of {low if low == high else f'{low} to {high}'} each"
    )


def _tell_order(program: Program, flow: Dataflow, figures: dict[str, object]) -> list[str]:
    """How the result is added up, and how often rounded: lines, and their figures."""
    from forestcoll.verify.order import reduction_order
    from forestcoll.verify.rounding import UNITS, error_bound, roundings

    stated = program.extra.get("sums")
    try:
        order, steps = reduction_order(flow), roundings(flow)
    except UnsupportedError as error:
        if stated is not None:
            raise PlanError(f"states the order of sums {stated[:16]}, but {error}") from None
        return [f"order of the sums: not told ({error})"]
    if stated not in (None, order.digest):
        raise PlanError(
            f"states the order of sums {stated[:16]}, but adds up in the order {order.digest[:16]}"
        )
    figures["reduction_order"] = {
        "sha256": order.digest,
        "additions_in_a_row": steps.steps,
        "same_at_every_rank": order.is_alike,
        "sums": [
            {"from": str(s.start), "to": str(s.end), "sum": s.expression, "ranks": list(s.ranks)}
            for s in order.sums
        ],
    }
    figures["rounding_steps"], figures["rounding_steps_at_ranks"] = steps
    figures["error_bounds"] = {t: error_bound(steps, t, t, False).share for t in UNITS}
    units = ", ".join(f"2^-{UNITS[t]} of {t}" for t in ("bfloat16", "float16", "float32"))
    return [
        f"order of sums {order.digest[:16]}: at most {steps.steps} additions in a row, "
        f"{'' if order.is_alike else 'not '}the same at every rank",
        f"rounding steps: {steps.steps} ({steps.at_ranks} where ranks add up in float32); error at "
        f"most {steps.steps} u of the sum of magnitudes, u {units}",
    ]
