"""A plan set proven right: every file, and that the runtime finds the one that is meant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from forestcoll import plans
from forestcoll.common.errors import PlanError
from forestcoll.common.input_limits import PLAN_BYTES
from forestcoll.common.text_file import digest, read_text
from forestcoll.compile import verdict
from forestcoll.compile.plan_set import claims
from forestcoll.compile.plan_set.index import (
    FOREST_SUFFIX,
    FORESTS,
    INDEX,
    ROUTES,
    ForestFile,
    Index,
    PlanFile,
    RoutesFile,
    Runtime,
    loads,
)
from forestcoll.compile.problem import parse_any
from forestcoll.plans import FORMATS
from forestcoll.plans.lint import Told, lint
from forestcoll.program import Collective, Program
from forestcoll.solver.alltoall.file import ROUTES_SUFFIX
from forestcoll.solver.alltoall.file import loads as load_exchange
from forestcoll.solver.alltoall.routes import Routes

if TYPE_CHECKING:
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.program.targets import PlanFormat
    from forestcoll.schedule.forest import Forest


@dataclass(frozen=True, slots=True)
class Proven:
    """A plan of a set that is right, with what the index says of it and what it was made from.

    `graph`: of the set's machine.
    """

    format: PlanFormat
    stated: PlanFile
    program: Program
    made_from: Forest | Routes | None
    graph: CapacityGraph


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was proven of a set: one line a fact, the figures for machines, and the plans."""

    lines: list[str]
    figures: dict[str, object]
    plans: list[Proven]


def check(directory: Path) -> Verdict:
    """What is proven of the set in `directory`.

    Every forest and plan that the index names is there, right, within its runtime's rules, a plan
    of its forest, and all that the index says of it is so; the forests are of one machine; the
    ranges of a runtime follow each other without gap or overlap from the index's smallest size to
    where it says that the runtime ends; and no other file lies where the runtime looks. Raises
    PlanError or ForestError, with the file.
    """
    index, where = read_index(directory), str(directory / INDEX)
    collective = parse_any(index.collective)
    lines = [f"{collective} on {index.topology}, {index.ranks} ranks: plans for each size"]
    claims.compare(where, claims.of_set(index))
    sources: dict[str, Forest | Routes] = {}
    for stated in index.forests if collective.phases else ():
        sources[stated.file] = _check_forest(directory, index, collective, stated)
    for routes in index.routes if not collective.phases else ():
        sources[routes.file] = _check_routes(directory, index, routes)
    if not sources:
        raise PlanError(f"{where}: names no {FORESTS if collective.phases else ROUTES}")
    claims.check_one_machine(str(directory), sources)
    proven: list[Proven] = []
    machine = verdict.matches_catalogue(next(iter(sources.values())).graph, index.topology)
    if machine is False:
        lines.append(verdict.differs(index.topology))
    for runtime in index.runtimes:
        for plan in runtime.plans:
            _inside(directory, plan.file)
        _check_ranges(directory, index, runtime)
        claims.compare(f"{where}: {runtime.format}", claims.of_runtime(index, collective, runtime))
        _check_alone(directory, runtime)
        for plan in runtime.plans:
            if plan.forest is not None and plan.forest not in sources:
                raise PlanError(f"{where}: {plan.file}: no forest {plan.forest}")
            source = next(iter(sources.values())) if not plan.forest else sources[plan.forest]
            program = _check_plan(directory, index, collective, runtime, plan, source)
            own = source if plan.forest else None
            proven.append(Proven(runtime.format, plan, program, own, source.graph))
        last = runtime.plans[-1].max_bytes
        lines.append(
            f"{runtime.format}: {len(runtime.plans)} plans, each right and within the rules of "
            f"{runtime.target}; {index.min_bytes} to {last} bytes without gap or overlap"
        )
        lines += [f"  {text}" for text in _list_sizes(runtime)]
    figures = {
        "collective": index.collective,
        "ranks": index.ranks,
        "forests": len(index.forests) + len(index.routes),
        "runtimes": {
            r.format: [[p.min_bytes, p.max_bytes, p.file] for p in r.plans] for r in index.runtimes
        },
    }
    return Verdict(lines, figures, proven)


def read_index(directory: Path) -> Index:
    """The index of the set in `directory`; PlanError where there is none, or it is none."""
    return loads(read_text(directory / INDEX, PLAN_BYTES, PlanError), str(directory / INDEX))


def list_files(index: Path) -> dict[Path, str]:
    """The forests and plans of an index, where a set has them, with their SHA-256.

    What it names elsewhere is no file of a set. Raises PlanError where the file is no index.
    """
    index_read = loads(read_text(index, PLAN_BYTES, PlanError), str(index), sealed=False)
    listed = [(FORESTS, forest.file, forest.sha256) for forest in index_read.forests]
    listed += [(ROUTES, routes.file, routes.sha256) for routes in index_read.routes]
    listed += [(r.format, plan.file, plan.sha256) for r in index_read.runtimes for plan in r.plans]
    return {
        index.parent / file: sha256
        for folder, file, sha256 in listed
        if PurePosixPath(file).parts == (folder, PurePosixPath(file).name) and _ends_well(file)
    }


def _ends_well(file: str) -> bool:
    return file.endswith(
        (FOREST_SUFFIX, ROUTES_SUFFIX, *(form.suffix for form in FORMATS.values()))
    )


def _check_ranges(directory: Path, index: Index, runtime: Runtime) -> None:
    """As the runtime picks plans: files by name, the first whose range holds the size."""
    where = f"{directory / INDEX}: {runtime.format}"
    if not runtime.plans:
        raise PlanError(f"{where}: has no plan")
    for plan in runtime.plans:
        if plan.min_bytes > plan.max_bytes:
            raise PlanError(f"{where}: {plan.file} serves {plan.min_bytes} to {plan.max_bytes}")
    if [p.file for p in runtime.plans] != sorted(p.file for p in runtime.plans):
        raise PlanError(f"{where}: the files' names are not in the order of their sizes")
    if runtime.plans[0].min_bytes != index.min_bytes:
        raise PlanError(
            f"{where}: begins at {runtime.plans[0].min_bytes} bytes, the set at {index.min_bytes}"
        )
    for before, after in pairwise(runtime.plans):
        if after.min_bytes <= before.max_bytes:
            raise PlanError(
                f"{where}: {before.file} and {after.file} both serve {after.min_bytes} bytes"
            )
        if after.min_bytes > before.max_bytes + 1:
            raise PlanError(
                f"{where}: nothing serves {before.max_bytes + 1} to {after.min_bytes - 1} bytes, "
                f"between {before.file} and {after.file}"
            )
    end = runtime.plans[-1].max_bytes
    gaps = [(g.min_bytes, g.max_bytes) for g in runtime.not_served]
    if end > index.max_bytes or (end < index.max_bytes and (end + 1, index.max_bytes) not in gaps):
        raise PlanError(
            f"{where}: ends at {end} bytes, the set at {index.max_bytes}, and not_served does not "
            "say so"
        )


def _check_alone(directory: Path, runtime: Runtime) -> None:
    """Only plans lie where the runtime looks: it parses every file there."""
    folder = directory / runtime.directory
    named = {(directory / plan.file).name for plan in runtime.plans}
    try:
        files = sorted(path.name for path in folder.iterdir())
    except ValueError:  # a null character, half of a surrogate pair
        raise PlanError(f"{folder}: cannot be the name of a directory") from None
    except OSError as error:
        raise PlanError(f"{folder}: {error.strerror or error}") from None
    for name in files:
        if name not in named:
            raise PlanError(
                f"{folder / name}: is not in {INDEX}; the runtime would read every file of this "
                "directory: take it away"
            )


def _check_forest(
    directory: Path, index: Index, collective: Collective, stated: ForestFile
) -> Forest:
    source = str(directory / stated.file)
    if PurePosixPath(stated.file).parent.as_posix() != FORESTS:
        raise PlanError(f"{source}: does not lie in {FORESTS}")
    forest, _ = verdict.verify_forest(read_same(directory, stated.file, stated.sha256), source)
    claims.compare(source, claims.of_forest(index, collective, stated, forest))
    return forest


def _check_routes(directory: Path, index: Index, stated: RoutesFile) -> Routes:
    source = str(directory / stated.file)
    if PurePosixPath(stated.file).parent.as_posix() != ROUTES:
        raise PlanError(f"{source}: does not lie in {ROUTES}")
    routes, name, _ = load_exchange(read_same(directory, stated.file, stated.sha256), source)
    if not isinstance(routes, Routes):
        raise PlanError(f"{source}: holds flows, no routes")
    claims.compare(source, claims.of_routes(index, stated, routes, name))
    return routes


def _check_plan(
    directory: Path,
    index: Index,
    collective: Collective,
    runtime: Runtime,
    plan: PlanFile,
    made_from: Forest | Routes,
) -> Program:
    source = str(directory / plan.file)
    if PurePosixPath(plan.file).parent.as_posix() != runtime.directory:
        raise PlanError(f"{source}: does not lie in {runtime.directory}")
    text = read_same(directory, plan.file, plan.sha256)
    program = plans.loads(text, source=source, format=runtime.format)
    claims.compare(source, claims.of_plan(index, collective, runtime, plan, program, text))
    root = None if isinstance(made_from, Routes) or made_from.root < 0 else made_from.root
    told = Told(collective=collective, root=root)
    report = lint(text, source, runtime.target, told=told, sms=index.sms)
    if not report.ok or report.program is None or report.verified is None:
        raise PlanError(f"{source}: {report.findings[0]}")
    plan_claims = claims.of_plan_and_source(index, plan, report.program, report.verified, made_from)
    try:
        claims.compare(source, plan_claims)
    except PlanError as error:
        raise PlanError(str(error) if source in str(error) else f"{source}: {error}") from None
    return program


def _list_sizes(runtime: Runtime) -> Iterator[str]:
    for plan in runtime.plans:
        yield (
            f"{plan.min_bytes} to {plan.max_bytes} bytes, "
            f"{plan.multiple.sizes.words()}: {plan.protocol}, {Path(plan.file).name}"
        )


def read_same(directory: Path, file: str, sha256: str) -> str:
    """The text of a file of the set, once it is the one that the index means."""
    path = directory / _inside(directory, file)
    text = read_text(path, PLAN_BYTES, PlanError)
    if digest(text) != sha256:
        raise PlanError(f"{path}: is not the file that {INDEX} was written for (SHA-256 differs)")
    return text


def _inside(directory: Path, file: str) -> str:
    """The file's name, once it is known to lie below the directory."""
    if Path(file).is_absolute() or ".." in Path(file).parts:
        raise PlanError(f"{directory / INDEX}: {file}: must lie in the set's directory")
    return file
