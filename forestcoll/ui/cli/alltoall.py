"""`optimum` and `synthesize` of an all-to-all; `optimum` of an all-to-all-v."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from forestcoll.ui.cli import files, writing
from forestcoll.ui.cli.messages import draw, print_json, put, report, show_progress
from forestcoll.ui.cli.options import ALLTOALL, ROUTES, Problem

if TYPE_CHECKING:
    from fractions import Fraction

    from forestcoll.compile.alltoall_plans import Plan
    from forestcoll.program import Protocol
    from forestcoll.program.targets import PlanFormat, Target, TargetName
    from forestcoll.solver.alltoall.demand import Demand
    from forestcoll.solver.alltoall.flows import Optimum
    from forestcoll.solver.alltoall.routes import Routes
    from forestcoll.solver.alltoall.usual import Usual
    from forestcoll.topology import Topology
    from forestcoll.verify.simulate import Band

COMPARED = 1024
"""Ranks up to which the usual ways are counted beside the optimum."""


def optimum(
    problem: Problem,
    matrix: str | None,
    output: str | None,
    force: bool,
    explain: bool,
    as_json: bool,
) -> None:
    """The optimum of an all-to-all with its proof, written to `output` where that is given."""
    if as_json and output == "-":
        raise click.UsageError("--json and '--output -' both want standard output")
    if explain and output == "-":
        raise click.UsageError("--explain and '--output -' both want standard output")
    began = time.perf_counter()
    asked = demand_options(problem, matrix)
    topology = problem.load()

    from forestcoll.solver.alltoall import file, flows, usual
    from forestcoll.study import explain as explaining
    from forestcoll.ui.report import alltoall as words
    from forestcoll.ui.report import explanation as exchange

    path = None
    if output is not None and output != "-":
        path = path_of(output, f"{topology.name}.{problem.collective}", file.SUFFIX)
        writing.prepare([path], force)
    demand = demand_of(topology, problem, asked)
    loaded = time.perf_counter()
    with show_progress("optimum") as progress:
        best = flows.solve(demand)
        solved = time.perf_counter()
        ways: dict[Usual, Fraction | None] = {}
        if len(demand.graph.ranks) <= COMPARED:
            ways = {way: usual.usual(demand, best.folding, way) for way in usual.WAYS}
        compared = time.perf_counter()
        why = explaining.explain_exchange(best, progress) if explain else None
    timings = {"load": loaded - began, "solve": solved - loaded, "compare": compared - solved}
    if why is not None:
        timings["explain"] = time.perf_counter() - compared
    if output == "-":
        put(file.dumps(best, topology.name))
        return
    if path is not None:
        writing.write_all({path: file.dumps(best, topology.name)}, force)
    if as_json:
        more = {} if why is None else {"explanation": exchange.summary(why)}
        print_json({**words.optimum_summary(best, topology.name, timings, path, ways), **more})
        return
    draw(words.optimum_table(best, topology.name, timings, path, ways))
    if why is not None:
        draw(exchange.table(why))


TAKEN = frozenset(
    (
        *("topology", "pairs", "without", "scale", "collective", "ranks", "relays", "groups"),
        *("units", "min_percent", "spread", "protocol", "sizes"),
        *("target", "formats", "output", "force", "as_json"),
    )
)
"""Options that `synthesize -c alltoall` takes."""


def synthesize(
    problem: Problem,
    units: int | None,
    min_percent: Fraction | None,
    spread: bool,
    protocol: Protocol | None,
    target: TargetName,
    formats: tuple[str, ...],
    output: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Routes of an all-to-all and plans of them, written to `output`."""
    refuse_others()
    _refuse_contradictions(units, min_percent, spread, formats)
    if as_json and output == "-":
        raise click.UsageError("--json and '--output -' both want standard output")
    began = time.perf_counter()
    topology = problem.load()

    from forestcoll.compile import alltoall_plans as plans
    from forestcoll.solver.alltoall import file, flows
    from forestcoll.ui.report import alltoall as words

    limits = plans.targets_of(target, topology.name)
    for form in formats:
        if form != ROUTES and form not in limits:
            raise click.UsageError(f"--target {target} reads {', '.join(limits)}, not {form}")
    wanted = formats or (ROUTES, *limits)
    paths = _paths(output, f"{topology.name}.{problem.collective}", wanted)
    writing.prepare(paths.values(), force)
    demand = demand_of(topology, problem, None)
    times = {"load": time.perf_counter() - began}
    notes: list[str] = []
    with show_progress("optimum") as progress:
        with _timed(times, "optimum"):
            best = flows.solve(demand)
        progress("routes", 0.3)
        with _timed(times, "routes"):
            found = _routes(best, units, min_percent, spread, wanted == (ROUTES,), notes)
        made: list[Plan] = []
        for form in (form for form in limits if form in wanted):
            progress(form, 0.6)
            needed = form in formats or (target != "any" and not formats)
            with _timed(times, form):
                plan = _plan(found, form, limits[form], topology.name, protocol, needed, notes)
                made += () if plan is None else (plan,)
        progress("simulating", 0.8)
        bands = _simulate(made, topology, times)
    texts: dict[str, str] = {plan.format: plan.text for plan in made}
    if ROUTES in wanted:
        texts[ROUTES] = file.dumps(found, topology.name)
    paths = _write(texts, paths, output, wanted[0], force)
    done = words.Made(found, topology.name, times, paths, tuple(made), tuple(notes), bands)
    if as_json:
        print_json(words.routes_summary(done))
    else:
        report(words.routes_table(done), err=output == "-")


def _refuse_contradictions(
    units: int | None, min_percent: Fraction | None, spread: bool, formats: tuple[str, ...]
) -> None:
    if units is not None and min_percent is not None:
        raise click.UsageError("--units and --min-percent both say how many units: give one")
    if spread and (units is not None or min_percent is not None):
        raise click.UsageError("--spread has as many units as a box has GPUs: leave others away")
    if "forest" in formats:
        raise click.UsageError(f"no forest carries an alltoall: --format {ROUTES} has its paths")


def _routes(
    best: Optimum,
    units: int | None,
    min_percent: Fraction | None,
    spread: bool,
    alone: bool,
    notes: list[str],
) -> Routes:
    """Whole units of the optimum's flows; `alone`: no plan is made of them."""
    from forestcoll.solver.alltoall import rounding
    from forestcoll.solver.alltoall import spread as spreading

    if spread:
        factor = spreading.boxes_of(best.demand.graph).factor
        notes.append(
            f"blocks of any size: at most {factor} times the best time, whatever the sizes"
        )
        return spreading.spread(best)
    share = None if min_percent is None else min_percent / 100
    return rounding.route(best, units, share, share is None and not alone)


def _plan(
    found: Routes,
    form: PlanFormat,
    limit: Target,
    name: str,
    protocol: Protocol | None,
    needed: bool,
    notes: list[str],
) -> Plan | None:
    """The plan of routes; without one that is not `needed`, a note says why."""
    from forestcoll.common.errors import PlanError
    from forestcoll.compile import alltoall_plans as plans

    try:
        made = plans.make(found, form, limit, name, protocol)
    except PlanError as error:
        if needed:
            raise
        notes.append(f"no {form}: {error}")
        return None
    if made.note:
        notes.append(made.note)
    return made


def _write(
    texts: dict[str, str], paths: dict[str, Path], output: str | None, first: str, force: bool
) -> dict[str, Path]:
    """Put the texts where they go, `first` on standard output; the files that were written."""
    if output == "-":
        put(texts[first])
    written = {form: path for form, path in paths.items() if form in texts}
    if written:
        writing.write_all({path: texts[form] for form, path in written.items()}, force)
    return written


def _simulate(plans: list[Plan], topology: Topology, times: dict[str, float]) -> dict[str, Band]:
    """What each plan reaches in simulated time with much data, where that is not too many ranks."""
    from forestcoll.verify import simulate

    if not plans:
        return {}
    with _timed(times, "simulate"):
        found = {plan.format: simulate.plan_band(plan.program, topology) for plan in plans}
    return {form: band for form, band in found.items() if band is not None}


@contextmanager
def _timed(times: dict[str, float], what: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    times[what] = time.perf_counter() - began


def _paths(output: str | None, stem: str, wanted: tuple[str, ...]) -> dict[str, Path]:
    """Where each format goes: one file, or a directory of them; nowhere for standard output."""
    if output is None:
        return {}
    from forestcoll.plans import FORMATS
    from forestcoll.solver.alltoall.file import ROUTES_SUFFIX

    suffixes = {ROUTES: ROUTES_SUFFIX} | {form: about.suffix for form, about in FORMATS.items()}
    path = Path(output)
    if output == "-" or not (output.endswith("/") or path.is_dir() or not path.suffix):
        told = next((form for form, end in suffixes.items() if output.endswith(end)), None)
        if len(wanted) > 1 and told in wanted:
            wanted = (told,)
        if len(wanted) > 1:
            raise click.UsageError(
                f"--output '{output}' is one file: name one of {', '.join(wanted)} with --format"
            )
        return {} if output == "-" else {wanted[0]: path}
    return {form: path / f"{stem}{suffixes[form]}" for form in wanted}


def refuse_others() -> None:
    """A usage error for options that say something of trees or plans."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in TAKEN:
            raise click.UsageError(f"{parameter.opts[0]} is not for -c alltoall: leave it away")


def path_of(output: str, stem: str, suffix: str) -> Path:
    """The file that `--output` means: one, or `stem` with `suffix` in a directory."""
    path = Path(output)
    if output.endswith("/") or path.is_dir() or not path.suffix:
        return path / f"{stem}{suffix}"
    return path


def demand_options(problem: Problem, matrix: str | None) -> str | None:
    """The text of `--matrix`, which an alltoallv needs and nothing else has."""
    if problem.collective not in ALLTOALL:
        return None
    if (matrix is None) == (problem.collective == "alltoallv"):
        raise click.UsageError(
            "-c alltoallv needs --matrix FILE: a line a rank, the bytes it sends to each rank"
            if matrix is None
            else "--matrix is for -c alltoallv"
        )
    if matrix is not None and problem.groups:
        raise click.UsageError("--groups go with -c alltoall; a matrix may have zeros instead")
    return None if matrix is None else files.read_text(matrix)


def demand_of(topology: Topology, problem: Problem, matrix: str | None) -> Demand:
    """What the options ask to send; `matrix` is the text of a file."""
    from forestcoll.solver.alltoall import demand
    from forestcoll.solver.alltoall.matrix import parse

    if problem.groups:
        return demand.grouped(topology, problem.groups, problem.relays)
    if matrix is None:
        return demand.uniform(topology, problem.ranks, problem.relays)
    return demand.ragged(topology, parse(matrix, "--matrix"), problem.ranks, problem.relays)
