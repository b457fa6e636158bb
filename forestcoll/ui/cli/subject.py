"""The file that is shown or exported: a plan, a forest or a topology; what lies beside it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forestcoll.common.errors import ForestCollError, PlanError
from forestcoll.ui.cli import files
from forestcoll.ui.cli.completion import TopologyType
from forestcoll.ui.cli.guard import guarded, size_of
from forestcoll.ui.cli.options import load, set_option

if TYPE_CHECKING:
    from forestcoll.program import Program
    from forestcoll.schedule.forest import Forest
    from forestcoll.solver.alltoall.flows import Optimum
    from forestcoll.solver.alltoall.routes import Routes
    from forestcoll.topology import Topology
    from forestcoll.ui.view import Subject

SAMPLE = 65_536
"""Characters of a file that are looked at to know what it is."""


def subject_options(command: Callable[..., object]) -> Callable[..., object]:
    """The argument FILE, `--topology` and `--set`; a topology without a file is the subject."""

    @functools.wraps(command)
    def with_file(file: str | None, topology: str | None, **given: Any) -> object:
        if file is None and topology is None:
            raise click.UsageError("give a plan, a forest or a topology: FILE, or --topology NAME")
        if file is None:
            file, topology = topology, None
        return command(file=file, topology=topology, **given)

    found = click.option(
        "--topology",
        "-t",
        type=TopologyType(),
        help="What a plan or forest runs on, with its latencies. Default: the links of the forest "
        "file (of a plan: the one beside it), with the catalogue's latencies where they are its. "
        "Without FILE the topology itself.",
    )(set_option(with_file))
    return click.argument("file", type=TopologyType(), metavar="[FILE|NAME]", required=False)(found)


def load_subject(source: str, topology: str | None, pairs: tuple[tuple[str, str], ...]) -> Subject:
    """The subject in a file, or the topology of that name. Raises ForestCollError."""
    from forestcoll import plans
    from forestcoll.compile import verdict
    from forestcoll.schedule import forest_file
    from forestcoll.solver.alltoall import file as exchanges
    from forestcoll.study.figures import figures_of
    from forestcoll.ui.report import reached
    from forestcoll.ui.view import Subject

    if source != "-" and not Path(source).is_file():
        return _topology(source, topology, pairs)
    text = files.read_text(source)
    _refuse_others(text, source)
    if pairs and not topology and (_is_plan(text) or not verdict.is_plan(text)):
        raise click.UsageError("--set is for a --topology, or for a topology as FILE")
    if exchanges.looks_like_one(text):
        if topology:
            raise click.UsageError("flows and routes have their links: leave --topology away")
        return _exchange(text, source)
    if not verdict.is_plan(text):
        with guarded(source, len(text)):
            forest = forest_file.loads(text, source)
        where = load(topology, pairs) if topology else None
        machine = verdict.machine_of(forest.graph, forest.name)
        said = tuple(reached.rows(figures_of(forest)))
        return Subject(forest.name, "forest", where, forest, machine=machine, said=said)
    if not _is_plan(text):
        return _topology(source, topology, pairs)
    with guarded(source, len(text)):
        program = plans.loads(text, source)
    return _plan(program, source, load(topology, pairs) if topology else None)


def _refuse_others(text: str, source: str) -> None:
    """ForestCollError for a file of ours that is neither forest nor topology."""
    if '"forestcoll.groups/' in text[:4096]:
        raise ForestCollError(f"{source}: several forests at once; name one of the files in it")
    form = re.search(r'"format":\s*"forestcoll\.(\w+)/', text[:4096])
    if form is not None and form[1] not in ("alltoall", "forest", "topology"):
        raise ForestCollError(
            f"{source}: a file of format forestcoll.{form[1]}; give a plan, a forest or a topology"
        )


def _exchange(text: str, source: str) -> Subject:
    """Flows or routes of an all-to-all, proven from the file."""
    from forestcoll.solver.alltoall import file as exchanges

    with guarded(source, len(text)):
        found, name, _ = exchanges.loads(text, source)
    return _of_exchange(found, name)


def _of_exchange(found: Optimum | Routes, name: str) -> Subject:
    from forestcoll.solver.alltoall.file import word
    from forestcoll.solver.alltoall.link_loads import link_loads
    from forestcoll.solver.alltoall.routes import Routes
    from forestcoll.study.figures import figures_of
    from forestcoll.ui.report import reached
    from forestcoll.ui.report.alltoall import paths_of
    from forestcoll.ui.view import Subject
    from forestcoll.ui.view.subject import Exchange

    facts = [("paths", paths_of(found))] if isinstance(found, Routes) else []
    shown = Exchange(word(found.demand), found.demand.graph, link_loads(found))
    said = (*reached.rows(figures_of(found)), *facts)
    return Subject(name, "exchange", exchange=shown, said=said)


def _is_plan(text: str) -> bool:
    head = text[:SAMPLE].lstrip("\ufeff \t\r\n")
    return re.search(r"<algo\b", head) is not None or (head[:1] == "{" and '"gpus"' in text)


def _topology(source: str, topology: str | None, pairs: tuple[tuple[str, str], ...]) -> Subject:
    from forestcoll.ui.view import Subject

    found = load(source, () if topology else pairs)
    if topology is not None:
        raise click.UsageError(f"'{source}' is a topology itself: leave --topology away")
    return Subject(found.name, "topology", found)


def _plan(program: Program, source: str, topology: Topology | None) -> Subject:
    from forestcoll.compile.alltoall_plans import routes_beside
    from forestcoll.compile.verdict import machine_of
    from forestcoll.study import predict
    from forestcoll.study.figures import figures_of
    from forestcoll.ui.cli.timing import forest_beside
    from forestcoll.ui.report import reached
    from forestcoll.ui.view import Subject

    if not program.collective.phases and topology is None:
        routes = routes_beside(Path(source))
        if routes is not None:
            machine = predict.by_routes(program, routes).site.links
            name = Path(source).name.partition(".")[0]
            found = _of_exchange(routes, name)
            return replace(found, kind="plan", program=program, machine=machine)
    beside = predict.forest_beside(Path(source))
    forest = None
    if beside is not None and topology is not None:
        forest = _fitting(program, topology, beside)
    elif beside is not None:
        forest = forest_beside(program, source)
    where = topology or forest
    name = where.name if where is not None else Path(source).name.partition(".")[0] or "plan"
    machine = None if forest is None else machine_of(forest.graph, forest.name)
    said = () if forest is None else tuple(reached.rows(figures_of(forest, program)))
    return Subject(name, "plan", topology, forest, program, machine=machine, said=said)


def _fitting(program: Program, topology: Topology, beside: Path) -> Forest | None:
    """The forest beside a plan, where it is the plan's and has the links of the topology."""
    from forestcoll.compile.verdict import has_links_of
    from forestcoll.study import predict

    try:
        with guarded(str(beside), size_of(beside)):
            forest = predict.forest_of(program, beside)
    except PlanError:
        return None
    return forest if has_links_of(forest.graph, topology) else None
