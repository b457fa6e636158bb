"""`optimum` and `synthesize` of an all-to-all; `optimum` of an all-to-all-v."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import click

from forestcoll.common.clock import Clock
from forestcoll.common.errors import PlanError
from forestcoll.compile import alltoall_plans
from forestcoll.compile.alltoall_plans import Plan
from forestcoll.compile.request import ROUTES, Request
from forestcoll.solver.alltoall import demand as demands
from forestcoll.solver.alltoall import file, flows, reference_routes, rounding, spread
from forestcoll.study.explain.exchange import explain_exchange
from forestcoll.topology import Topology
from forestcoll.ui.cli import files, writing
from forestcoll.ui.cli.messages import answer, put, show_progress
from forestcoll.ui.cli.options import Machine
from forestcoll.ui.report import alltoall as words
from forestcoll.ui.report import explanation
from forestcoll.verify import simulate

COMPARED = 1024
"""Ranks up to which the usual ways are counted beside the optimum."""


def optimum(
    machine: Machine,
    request: Request,
    matrix: str | None,
    output: str | None,
    force: bool,
    explain: bool,
) -> None:
    """The optimum of an all-to-all with its proof, written to `output` where that is given."""
    clock = Clock()
    with clock.stage("load"):
        check_matrix(str(request.collective), matrix)
        text = None if matrix is None else files.read_text(matrix)
        topology = machine.load()
        where = files.destination(output, ("flows",), (), {"flows": file.SUFFIX})
        path = where.paths(f"{topology.name}.{request.collective}").get("flows")
        writing.prepare([path] if path else [], force)
        demand = _demand_of(topology, request, text)
    with show_progress("optimum") as progress:
        with clock.stage("solve"):
            best = flows.solve(demand)
        ways: dict[reference_routes.Reference, Fraction | None] = {}
        with clock.stage("compare"):
            if len(demand.graph.ranks) <= COMPARED:
                ways = {
                    way: reference_routes.reference_algbw(demand, best.folding, way)
                    for way in reference_routes.WAYS
                }
        why = None
        if explain:
            with clock.stage("explain"):
                why = [*explanation.exchange(explain_exchange(best, progress))]
    if output == "-":
        put(file.dumps(best, topology.name))
        return
    if path is not None:
        writing.write_all({path: file.dumps(best, topology.name)}, force)
    result = words.optimum(best, topology.name, clock.seconds, path, ways)
    answer(result, explanation=why)


def synthesize(job: files.Job, needed: bool) -> None:
    """Routes of an all-to-all and plans of them; those that are `needed`, or it is an error."""
    clock, notes, request, where = Clock(), list[str](), job.request, job.where
    with clock.stage("load"):
        topology = job.machine.load()
        paths: dict[Any, Any] = where.paths(f"{topology.name}.{request.collective}")
        writing.prepare(paths.values(), job.force)
        demand = _demand_of(topology, request, None)
    with show_progress("optimum") as progress:
        with clock.stage("optimum"):
            best = flows.solve(demand)
        progress("routes", 0.3)
        with clock.stage("routes"):
            if request.spread:
                factor = spread.boxes_of(best.demand.graph).factor
                most = f"at most {factor} times the best time, whatever the sizes"
                notes.append(f"blocks of any size: {most}")
                routes = spread.spread(best)
            else:
                share = None if request.min_percent is None else request.min_percent / 100
                plain = share is None and request.files != (ROUTES,)
                routes = rounding.route(best, request.units, share, plain)
        plans: list[Plan] = []
        for form, target in request.targets(topology.name).items():
            progress(form, 0.6)
            with clock.stage(form):
                try:
                    plan = alltoall_plans.make(
                        routes, form, target, topology.name, request.protocol
                    )
                except PlanError as error:
                    if needed:
                        raise
                    notes.append(f"no {form}: {error}")
                    continue
                plans.append(plan)
                notes += [plan.note] if plan.note else []
        progress("simulating", 0.8)
        bands: dict[str, simulate.Band] = {}
        if plans:  # what each reaches in simulated time, where that is not too many ranks
            with clock.stage("simulate"):
                played = [(p.format, simulate.plan_band(p.program, topology)) for p in plans]
            bands = {form: band for form, band in played if band is not None}
    texts: dict[str, str] = {plan.format: plan.text for plan in plans}
    if ROUTES in request.files:
        texts[ROUTES] = file.dumps(routes, topology.name)
    paths = job.write_texts(texts, paths)
    seconds = clock.seconds
    job.tell(words.routes(routes, topology.name, plans, bands, seconds, paths, notes))


def check_matrix(kind: str, matrix: object) -> None:
    """A usage error for an all-to-all-v without a matrix, or a matrix of anything else."""
    if (matrix is None) == (kind == "alltoallv"):
        raise click.UsageError(
            "-c alltoallv needs --matrix FILE: a line a rank, the bytes it sends to each rank"
            if matrix is None
            else "--matrix is for -c alltoallv"
        )


def _demand_of(topology: Topology, request: Request, matrix: str | None) -> demands.Demand:
    """What the options ask to send; `matrix` is the text of a file."""
    ranks, relays = request.ranks, request.relays
    if request.groups:
        return demands.in_groups(topology, request.groups, relays)
    if matrix is None:
        return demands.uniform(topology, ranks, relays)
    return demands.alltoallv(topology, demands.parse(matrix, "--matrix"), ranks, relays)
