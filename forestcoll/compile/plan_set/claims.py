"""What an index says, one by one, beside what its forests and plans are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from forestcoll.common.errors import ForestCollError, PlanError
from forestcoll.compile.formats import check_routes
from forestcoll.compile.plan_set.estimate import line_of
from forestcoll.compile.plan_set.index import (
    INDEX,
    TYPES,
    ForestFile,
    Index,
    PlanFile,
    RoutesFile,
    Runtime,
    gaps,
    multiple_of,
)
from forestcoll.compile.plan_set.others import Other
from forestcoll.lower import usage
from forestcoll.lower.layout import layout
from forestcoll.plans import FORMATS, home_of
from forestcoll.program.targets import TARGETS
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.verify import link_loads

if TYPE_CHECKING:
    from forestcoll.program import Collective, Program
    from forestcoll.schedule.forest import Forest
    from forestcoll.verify import Verified

Claim = tuple[str, object, object]
"""(what, what the index says, what is so)."""


def compare(source: str, claims: Iterator[Claim]) -> None:
    """PlanError for the first claim of the index that is not so."""
    for what, said, value in claims:
        if said != value:
            raise PlanError(f"{source}: {what} is {_words(value)}; {INDEX} says {_words(said)}")


def _words(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_words, value)) or "nothing"
    return "none" if value is None else str(value)


def of_set(index: Index) -> Iterator[Claim]:
    """Of the index by itself: nothing stands twice, and forests have plans, if one has."""
    sources = [forest.file for forest in index.forests]
    sources += [routes.file for routes in index.routes]
    files = [*sources]
    files += [plan.file for runtime in index.runtimes for plan in runtime.plans]
    yield "the number of times that a file is named", max(map(files.count, files), default=0), 1
    formats = [runtime.format for runtime in index.runtimes]
    yield "the number of runtimes of a format", max(map(formats.count, formats), default=0), 1
    used = {plan.forest for runtime in index.runtimes for plan in runtime.plans} - {None}
    spare = next((file for file in sources[not used :] if file not in used), None)
    yield "the forest without a plan", spare, None


def of_forest(
    index: Index, collective: Collective, stated: ForestFile, forest: Forest
) -> Iterator[Claim]:
    """Of a forest: what it is for, and its figures."""
    root = forest.graph.names[forest.graph.ranks[forest.root]] if forest.root >= 0 else None
    yield "the topology", index.topology, forest.name
    yield "the collective", collective, forest.collective
    yield "the number of ranks", index.ranks, forest.n
    yield "the root", index.root, root
    yield "its algbw", stated.algbw, str(forest.algbw)
    yield "its height", stated.height, forest.height
    yield "its number of trees per root", stated.trees_per_root, forest.trees_per_root


def of_routes(index: Index, stated: RoutesFile, routes: Routes, name: str) -> Iterator[Claim]:
    """Of routes: what they are for, and their figures."""
    yield "the topology", index.topology, name
    yield "the number of ranks", index.ranks, len(routes.graph.ranks)
    yield "the root", index.root, None
    yield "its algbw", stated.algbw, str(routes.algbw)
    yield "its number of hops", stated.hops, routes.hops
    yield "its number of units", stated.units, routes.units


def check_one_machine(directory: str, sources: Mapping[str, Forest | Routes]) -> None:
    """PlanError where two forests, or routes, are not of the same graph."""
    first = next(iter(sources.items()), None)
    for file, source in sources.items():
        if first is not None and source.graph != first[1].graph:
            raise PlanError(
                f"{directory}/{file}: its machine is another than that of {first[0]}: nodes, links "
                "or ranks differ"
            )


def of_runtime(index: Index, collective: Collective, runtime: Runtime) -> Iterator[Claim]:
    """Of a runtime: whose it is, where its plans lie, what it can do, what it does not serve."""
    runtimes = [name for name, target in TARGETS.items() if target.format == runtime.format]
    yield (
        f"one of {', '.join(runtimes)}: the target",
        runtime.target,
        _one_of(runtime.target, runtimes),
    )
    yield "the directory", runtime.directory, runtime.format
    able = FORMATS[runtime.format].operations if collective.reduces else ()
    yield "the list of operations", runtime.operations, able
    yield "the list of types", runtime.types, TYPES
    yield "the way plans are looked up", runtime.lookup, FORMATS[runtime.format].lookup
    first, last = runtime.plans[0], runtime.plans[-1]
    not_served = gaps(
        index.min_bytes, index.max_bytes, first.min_bytes, first.multiple, last.max_bytes
    )
    said = tuple((gap.min_bytes, gap.max_bytes) for gap in runtime.not_served)
    yield "what is not served (bytes)", said, tuple((low, high) for low, high, _ in not_served)
    silent = [gap.min_bytes for gap in runtime.not_served if not gap.why.strip()]
    yield "the size that is not served without a reason", next(iter(silent), None), None


def _one_of(word: str, choices: list[str]) -> str:
    return word if word in choices else choices[0]


def of_plan(
    index: Index,
    collective: Collective,
    runtime: Runtime,
    plan: PlanFile,
    program: Program,
    text: str,
) -> Iterator[Claim]:
    """Of a plan: what its file says too."""
    first = program.ranks[0]
    used = usage(program)
    _, in_place, out_of_place = home_of(runtime.format).offer(text, program)
    yield "the collective", collective, program.collective
    yield "the number of ranks", index.ranks, program.n
    yield "the protocol", plan.protocol, program.protocol
    yield "the smallest size", plan.min_bytes, program.min_bytes
    yield "the largest size", plan.max_bytes, program.max_bytes
    chunks = max(first.input_chunks, first.output_chunks)
    yield "the multiple", plan.multiple, multiple_of(runtime.format, chunks)
    yield "the number of thread blocks", plan.thread_blocks, used.thread_blocks
    yield "the number of steps", plan.steps, used.steps
    yield "the number of channels", plan.channels, used.channels
    yield "whether it serves in place", runtime.in_place, in_place
    yield "whether it serves out of place", runtime.out_of_place, out_of_place


def of_plan_and_source(
    index: Index, plan: PlanFile, program: Program, verified: Verified, source: Forest | Routes
) -> Iterator[Claim]:
    """Of a plan that has been run: that it is one of its forest, and what is estimated of it.

    Where it is of none, `source` is another plan's.

    The latencies of the links stand in no file of the set: the estimate's is held against the least
    that it can be, with links that take no time. `source` may be an all-to-all's routes.
    """
    made_from: Forest | Routes | Other = source
    try:
        if plan.forest is None:
            made_from = Other(Path(plan.file), "", program, verified, source.graph)
            yield "the number of instances", plan.instances, 1
        elif isinstance(source, Routes):
            check_routes(source, verified)
            yield "the number of instances", plan.instances, 1
        else:
            yield "the root", source.root, verified.root
            link_loads(program, source)
            yield "the number of instances", plan.instances, _instances(plan, verified, source)
    except ForestCollError as error:
        raise PlanError(f"no plan of {plan.forest}: {error}") from None
    names = source.graph.names
    ends = source.graph.ends
    links = {(names[u], names[v]): Fraction(0) for u, v in ends}
    line = line_of(made_from, (program.style, program.protocol), links, index.topology)
    yield "the estimated algbw", _fraction(plan.algbw), Fraction(line.algbw)
    stated = _fraction(plan.latency)
    yield "the estimated latency", stated, max(stated or Fraction(0), line.latency)


def _instances(plan: PlanFile, verified: Verified, forest: Forest) -> int:
    """What is stated, if that can be: every tree's chunks are cut into as many parts."""
    units = Fraction(verified.chunks, layout(forest).chunks)  # trees over other switches are one
    possible = plan.instances > 0 and (units / plan.instances).denominator == 1
    return plan.instances if possible else 1


def _fraction(text: str) -> Fraction | None:
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        return None
