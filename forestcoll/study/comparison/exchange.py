"""Competitors of an all-to-all: plans of our routes and of the usual ways, or loads of links."""

from __future__ import annotations

from collections.abc import Iterator

from forestcoll.common.errors import PlanError
from forestcoll.compile import alltoall_plans as plans
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower.alltoall.lowering import lower_flows
from forestcoll.program import Program, Protocol
from forestcoll.program.targets import MSCCL, MSCCLPP, RCCL, Target
from forestcoll.solver.alltoall.demand import uniform
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.rounding import route
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.solver.baselines.alltoall import EXCHANGES, Exchange, by_name
from forestcoll.study.comparison.race import Plan, runtimes_for
from forestcoll.topology import Topology
from forestcoll.verify import verify

__all__ = ["EXCHANGES", "NOTE", "by_name", "ours", "theirs"]

NOTE = "what has no plan is counted: bytes over the fullest link, and a hop's announcements"
PROTOCOLS: tuple[Protocol, ...] = ("Simple", "LL128", "LL")


def ours(topology: Topology, lowered: bool, notes: list[str]) -> tuple[Plan, ...]:
    """Plans of the optimum's routes; their loads alone where none can be made, or is asked for.

    Raises UnsupportedError where routes are out of reach.
    """
    routes = route(solve(uniform(topology)), powers=lowered)
    own_plans = tuple(_ours(routes, topology.name, notes)) if lowered else ()
    return own_plans or (Plan("links alone", None, None, rate=routes.algbw, hops=routes.hops),)


def _ours(routes: Routes, name: str, notes: list[str]) -> Iterator[Plan]:
    for target in (RCCL, MSCCLPP):
        for protocol in PROTOCOLS:
            try:
                plan = plans.make(routes, target.format, target, name, protocol)
            except PlanError as error:
                if protocol == "Simple":
                    notes.append(f"no {target.format} of ours: {error}")
                continue
            yield _plan(plan.program, target, protocol)


def theirs(record: Exchange, graph: CapacityGraph, name: str, lowered: bool) -> tuple[Plan, ...]:
    """A baseline's plans; what plans cannot say, or are not asked to, as loads of links.

    Raises UnsupportedError where the baseline does not serve the machine.
    """
    if lowered and record.lowered:
        own_plans = tuple(_theirs(record, graph, name))
        if own_plans:
            return own_plans
    rate = record.rate(graph)
    return (Plan("links alone", None, None, rate=rate, hops=record.hops(graph)),)


def _theirs(record: Exchange, graph: CapacityGraph, name: str) -> Iterator[Plan]:
    flows = record.flows(graph)
    for target in (RCCL, *runtimes_for(graph, name, MSCCL, MSCCLPP)):
        for protocol in PROTOCOLS:
            try:
                program = lower_flows(graph, flows, 1, target, f"{record.name} on {name}", protocol)
            except PlanError:
                continue
            verify(program)
            yield _plan(program, target, protocol)


def _plan(program: Program, target: Target, protocol: Protocol) -> Plan:
    most = program.max_bytes or 2**62
    low = max(1, program.min_bytes)
    return Plan(f"{target.format}, {protocol}", program, None, low, most, proven=True)
