"""The command `synthesize`: schedules and their plans, written to files."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

import click

from forestcoll.compile.budget import Budget
from forestcoll.ui.cli import alltoall, files, groups, plan_set, writing
from forestcoll.ui.cli.completion import STOCK, FileType, WordType
from forestcoll.ui.cli.hints import examples
from forestcoll.ui.cli.messages import note, print_json, put, report, show_progress
from forestcoll.ui.cli.options import (
    ALLTOALL,
    COLLECTIVES,
    FORMATS,
    HOLDS,
    ROUTES,
    TARGETS,
    Problem,
    choice_options,
    force_option,
    json_option,
    plan_options,
    problem_options,
)
from forestcoll.ui.cli.value_types import SizesType

if TYPE_CHECKING:
    from forestcoll.compile.formats import Format
    from forestcoll.program.targets import TargetName


@click.command(
    epilog=examples(
        "forestcoll synthesize -t dgx-a100 --set boxes=2 -c allreduce -o out/",
        "forestcoll synthesize -t H100-topology.xml -c allgather --target mscclpp -o out/",
        "forestcoll synthesize -t mi300x -c allreduce --target rccl --sizes 1K:8G -o plans/",
        "forestcoll synthesize -t dgx-h100 -c broadcast --root box0/gpu3 --format forest -o -",
        "forestcoll synthesize -t torus-3d -c alltoall -o out/",
        "forestcoll synthesize -t dgx-a100 --set boxes=2 -c allreduce \\",
        "    --without box0/gpu3-fabric --min-percent 99 -o out/",
    )
)
@functools.partial(problem_options, collectives=(*COLLECTIVES, "alltoall"))
@choice_options
@click.option(
    "--units",
    type=click.IntRange(1, 1024),
    metavar="K",
    help="alltoall: equal units of every pair, each on one path. Default: the fewest that reach "
    "99 % of the optimum (--min-percent), at most 8.",
)
@click.option(
    "--spread",
    is_flag=True,
    help="alltoall between boxes: every block leaves over all NICs of its box, so that blocks of "
    "any size take at most 1 + 2 NIC / NVLink times the best.",
)
@plan_options
@click.option(
    "--compact/--whole",
    default=None,
    help="A few trees and the symmetries that make the others, or every tree. Default: compact "
    "above 2048 ranks, with --format forest.",
)
@click.option(
    "--target",
    type=WordType(TARGETS, STOCK),
    default="any",
    show_default=True,
    help="Runtime that the plans must fit.",
)
@click.option(
    "--format",
    "formats",
    type=WordType((*FORMATS, ROUTES)),
    multiple=True,
    help="What to write (repeatable). Default: the forest and every plan that the target reads; "
    "of an alltoall its routes and plans.",
)
@click.option(
    "--sizes",
    type=SizesType(),
    metavar="LOW:HIGH",
    help="A plan set: a plan for each range of sizes from LOW to HIGH bytes (1K:8G), and an index "
    "that says which one serves what.",
)
@click.option(
    "--output",
    "-o",
    type=FileType(),
    metavar="DIR|FILE|-",
    help="Where to write; '-' is stdout. Default: nowhere, a report alone.",
)
@force_option("files")
@json_option
def synthesize(output: str | None, **options: Any) -> None:
    """Compute a schedule; write its forest and its plans."""
    _synthesize(output=output, **options)
    if output is None:
        note("nothing is written; --output DIR writes the files")


def _synthesize(
    problem: Problem,
    units: int | None,
    spread: bool,
    formats: tuple[Format, ...],
    sizes: tuple[int, int] | None,
    output: str | None,
    force: bool,
    as_json: bool,
    **wishes: Any,
) -> None:
    if problem.collective in ALLTOALL:
        asked = [wishes[name] for name in ("min_percent", "protocol", "target")]
        percent, protocol, target = asked
        if sizes is not None:
            alltoall.refuse_others()
            if units or spread or percent or protocol or problem.groups or ROUTES in formats:
                raise click.UsageError(
                    "--sizes chooses routes and protocols by itself: leave --units, --min-percent, "
                    "--spread, --protocol, --groups and --format routes away"
                )
            how = plan_set.How(sizes, target=target)
            where = _destination(output, formats, target)
            plan_set.synthesize(problem, how, where, force, as_json)
            return
        alltoall.synthesize(
            problem, units, percent, spread, protocol, target, formats, output, force, as_json
        )
        return
    if units is not None or spread or ROUTES in formats:
        raise click.UsageError("--units, --spread and --format routes are for -c alltoall")
    if wishes["nvls"] and wishes["target"] == "any":
        wishes["target"] = "mscclpp"  # no other knows switches that copy and add
    where = _destination(output, formats, wishes["target"])
    if sizes is not None:
        _refuse_with_sizes(problem, wishes)
        named = ("budget", "instances", "sms", "place", "target")
        how = plan_set.How(sizes, **{name: wishes[name] for name in named})
        plan_set.synthesize(problem, how, where, force, as_json)
        return
    _refuse_contradictions(wishes)
    _refuse_of_forests(where.formats, wishes)
    if where.stdout and as_json:
        raise click.UsageError("--json and '--output -' both want standard output")
    if problem.groups:
        _refuse_with_groups(wishes)
        chosen = {name: wishes[name] for name in ("trees", "instances", "target")}
        groups.synthesize(problem, **chosen, where=where, force=force, as_json=as_json)
        return
    _synthesize_one(problem, wishes, where, force, as_json)


def _synthesize_one(
    problem: Problem, wishes: dict[str, Any], where: files.Destination, force: bool, as_json: bool
) -> None:
    """One schedule; `wishes` are arguments of `forestcoll.synthesize`."""
    began = time.perf_counter()
    topology = problem.load()
    paths = where.paths(f"{topology.name}.{problem.collective}")
    writing.prepare(paths.values(), force)

    from forestcoll.compile.synthesize import synthesize
    from forestcoll.ui.report import synthesis

    loaded = time.perf_counter() - began
    with show_progress() as progress:
        result = synthesize(
            topology,
            problem.collective,
            root=problem.root,
            ranks=problem.ranks,
            relays=problem.relays,
            shares=problem.shares,
            formats=where.formats,
            progress=progress,
            **wishes,
        )
    if where.stdout:
        put(result.texts[where.formats[0]])
    else:
        paths = {form: path for form, path in paths.items() if form in result.texts}
        writing.write_all({path: result.texts[f] for f, path in paths.items()}, force)
    timings = {"load": loaded, **result.timings}
    if as_json:
        print_json(synthesis.summary(result, timings, paths))
    else:
        report(synthesis.table(result, timings, paths), err=where.stdout)


def _refuse_with_sizes(problem: Problem, wishes: dict[str, Any]) -> None:
    named = ("min_percent", "exact", "max_height", "protocol", "compact", "nvls")
    wished = wishes["trees"] != "auto" or any(wishes[name] for name in named)
    if wished or problem.groups or problem.shares:
        raise click.UsageError(
            "--sizes chooses trees and protocols by itself: leave --trees, --min-percent, "
            "--exact, --max-height, --protocol, --compact, --nvls, --groups and --shares away"
        )


def _refuse_contradictions(wishes: dict[str, Any]) -> None:
    if wishes["nvls"] and wishes["place"]:
        raise click.UsageError("--nvls says the place already: leave --place away")
    trees = wishes["trees"] != "auto"
    if trees and wishes["min_percent"] is not None:
        raise click.UsageError("--trees and --min-percent both say how many trees: give one")
    if wishes["exact"] and (trees or wishes["min_percent"] is not None):
        raise click.UsageError("--exact asks for the optimum: leave --trees and --min-percent away")


def _refuse_of_forests(formats: tuple[Format, ...], wishes: dict[str, Any]) -> None:
    """A usage error for wishes about plans where a forest is made alone, and the other way."""
    if formats != ("forest",):
        if wishes["compact"]:
            raise click.UsageError("--compact is for the forest alone: add --format forest")
        return
    budget = wishes["budget"]
    if budget.channels or budget.blocks or budget.operations:
        raise click.UsageError(
            "--budget: channels, blocks and operations limit plans; only a forest is asked"
        )
    if wishes["instances"] != "auto" or any(wishes[n] for n in ("protocol", "sms", "place")):
        raise click.UsageError(
            "--instances, --protocol, --place and --sms are for plans; only a forest is asked"
        )


def _refuse_with_groups(wishes: dict[str, Any]) -> None:
    named = ("min_percent", "exact", "max_height", "protocol", "sms", "place", "nvls")
    if any(wishes[name] for name in named) or wishes["budget"] != Budget():
        raise click.UsageError(
            "--groups go with --trees and --instances only, not with other wishes"
        )


def _destination(
    output: str | None, formats: tuple[Format, ...], target: TargetName
) -> files.Destination:
    """`--output`, `--format` and `--target` together; what contradicts itself is a usage error."""
    default = FORMATS if target == "any" else ("forest", HOLDS[target])
    try:
        where = files.destination(output, formats, default)
    except ValueError as error:
        raise click.UsageError(f"--output: {error}") from None
    for asked in where.formats:
        if target != "any" and asked not in ("forest", HOLDS[target]):
            raise click.UsageError(f"--target {target} reads {HOLDS[target]}, not {asked}")
    return where
