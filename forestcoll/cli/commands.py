"""The commands that make, judge and run schedules, and `doctor`."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

import click

from forestcoll.cli import alltoall, files, groups, plan_set, writing
from forestcoll.cli.completion import FileType, WordType
from forestcoll.cli.hints import examples
from forestcoll.cli.options import (
    ALLTOALL,
    COLLECTIVES,
    FORMATS,
    HOLDS,
    ROUTES,
    TARGETS,
    Problem,
    SizesType,
    choice_options,
    json_option,
    plan_options,
    problem_options,
)
from forestcoll.cli.talk import complain, draw, print_json, put, report, show_progress
from forestcoll.cli.verify import verify
from forestcoll.compile.budget import Budget

if TYPE_CHECKING:
    from fractions import Fraction
    from typing import Literal

    from forestcoll.compile.formats import Format, Place
    from forestcoll.program import Protocol
    from forestcoll.targets import TargetName


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
    type=WordType(TARGETS),
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
    required=True,
    metavar="DIR|FILE|-",
    help="Where to write; '-' is stdout.",
)
@click.option("--force", is_flag=True, help="Overwrite files.")
@json_option
def synthesize(
    problem: Problem,
    trees: int | Literal["auto"],
    min_percent: Fraction | None,
    exact: bool,
    max_height: int | None,
    budget: Budget,
    units: int | None,
    spread: bool,
    compact: bool | None,
    instances: int | Literal["auto"],
    protocol: Protocol | None,
    sms: int | None,
    nvls: Place | None,
    place: Place | None,
    target: TargetName,
    formats: tuple[Format, ...],
    sizes: tuple[int, int] | None,
    output: str,
    force: bool,
    as_json: bool,
) -> None:
    """Compute a schedule; write its forest and its plans."""
    if problem.collective in ALLTOALL:
        alltoall.synthesize(
            problem, units, min_percent, spread, protocol, target, formats, output, force, as_json
        )
        return
    if units is not None or spread or ROUTES in formats:
        raise click.UsageError("--units, --spread and --format routes are for -c alltoall")
    if nvls and target == "any":
        target = "mscclpp"  # no other knows switches that copy and add
    where = _destination(output, formats, target)
    if sizes is not None:
        wishes = (trees != "auto", min_percent, exact, max_height, protocol, compact, nvls)
        if any(wishes) or problem.groups or problem.shares:
            raise click.UsageError(
                "--sizes chooses trees and protocols by itself: leave --trees, --min-percent, "
                "--exact, --max-height, --protocol, --compact, --nvls, --groups and --shares away"
            )
        how = plan_set.How(sizes, budget, instances, sms, place, target)
        plan_set.synthesize(problem, how, where, force, as_json)
        return
    if nvls and place:
        raise click.UsageError("--nvls says the place already: leave --place away")
    if trees != "auto" and min_percent is not None:
        raise click.UsageError("--trees and --min-percent both say how many trees: give one")
    if exact and (trees != "auto" or min_percent is not None):
        raise click.UsageError("--exact asks for the optimum: leave --trees and --min-percent away")
    if where.formats == ("forest",):
        if budget.channels or budget.blocks or budget.operations:
            raise click.UsageError(
                "--budget: channels, blocks and operations limit plans; only a forest is asked"
            )
        if instances != "auto" or protocol or sms or place:
            raise click.UsageError(
                "--instances, --protocol, --place and --sms are for plans; only a forest is asked"
            )
    if compact and where.formats != ("forest",):
        raise click.UsageError("--compact is for the forest alone: add --format forest")
    if where.stdout and as_json:
        raise click.UsageError("--json and '--output -' both want standard output")
    if problem.groups:
        wished = min_percent or exact or max_height or protocol or sms or place
        if wished or nvls or budget != Budget():
            raise click.UsageError(
                "--groups go with --trees and --instances only, not with other wishes"
            )
        groups.synthesize(problem, trees, instances, target, where, force, as_json)
        return
    began = time.perf_counter()
    topology = problem.load()
    paths = where.paths(f"{topology.name}.{problem.collective}")
    writing.prepare(paths.values(), force)

    from forestcoll.compile.synthesize import synthesize
    from forestcoll.report import synthesis

    loaded = time.perf_counter() - began
    with show_progress() as progress:
        result = synthesize(
            topology,
            problem.collective,
            root=problem.root,
            ranks=problem.ranks,
            relays=problem.relays,
            shares=problem.shares,
            trees=trees,
            min_percent=min_percent,
            exact=exact,
            max_height=max_height,
            budget=budget,
            compact=compact,
            instances=instances,
            protocol=protocol,
            sms=sms,
            nvls=nvls,
            place=place,
            target=target,
            formats=where.formats,
            progress=progress,
        )
    if where.stdout:
        put(result.texts[where.formats[0]])
    else:
        writing.write_all({path: result.texts[f] for f, path in paths.items()}, force)
    timings = {"load": loaded, **result.timings}
    if as_json:
        print_json(synthesis.summary(result, timings, paths))
    else:
        report(synthesis.table(result, timings, paths), err=where.stdout)


@click.command(
    epilog=examples(
        "forestcoll optimum -t dgx-a100 --set boxes=2 -c allgather",
        "forestcoll optimum -t dgx-a100 --set boxes=2 -c allgather --explain",
        "forestcoll optimum -t my-machine.yaml -c broadcast --root box0/gpu3 --json",
        "forestcoll optimum -t dgx-a100 --set boxes=2 -c allgather --ranks 'box*/gpu[0-3]'",
        "forestcoll optimum -t dgx-a100 --set boxes=2 -c allgather --groups 'box0/*;box1/*'",
        "forestcoll optimum -t dgx-a100 --set boxes=128 -c alltoall --without box0/gpu3-fabric*",
        "forestcoll optimum -t mi250 -c alltoallv --matrix bytes.txt -o out/",
    )
)
@functools.partial(problem_options, collectives=(*COLLECTIVES, *ALLTOALL))
@click.option(
    "--matrix",
    type=FileType(),
    metavar="FILE",
    help="alltoallv: the bytes that each rank sends to each rank, a line a rank ('-': stdin).",
)
@click.option(
    "--output",
    "-o",
    type=FileType(),
    metavar="FILE|DIR|-",
    help="alltoall, alltoallv: write the flows and their proof, for 'forestcoll verify'.",
)
@click.option("--force", is_flag=True, help="Overwrite the file.")
@click.option(
    "--explain",
    is_flag=True,
    help="The links of the bottleneck, cuts within 5 % of it, what more links would give.",
)
@json_option
def optimum(
    problem: Problem,
    matrix: str | None,
    output: str | None,
    force: bool,
    explain: bool,
    as_json: bool,
) -> None:
    """The best possible algbw and what limits it, without any tree."""
    if explain and (problem.collective in ALLTOALL or problem.groups):
        raise click.UsageError("--explain is for one group and collectives over trees")
    if problem.collective in ALLTOALL:
        alltoall.optimum(problem, matrix, output, force, as_json)
        return
    if matrix is not None or output is not None or force:
        raise click.UsageError(
            f"--matrix, --output and --force are for {' and '.join(ALLTOALL)}; 'forestcoll "
            f"synthesize -c {problem.collective}' writes a forest with its proof"
        )
    if problem.groups:
        groups.optimum(problem, as_json)
        return
    topology = problem.load()

    from forestcoll import explain as explaining
    from forestcoll.compile import problem as problems
    from forestcoll.compile.in_switches import nvls_algbw
    from forestcoll.compile.optimum import optimum_of
    from forestcoll.report import explanation, synthesis

    began = time.perf_counter()
    with show_progress("optimum") as progress:
        asked = problems.Problem.of(
            topology,
            problem.collective,
            problem.root,
            problem.ranks,
            problem.relays,
            problem.shares,
        )
        best = optimum_of(asked)
        switched = nvls_algbw(asked) if best.in_switches is not None else None
        why = explaining.explain(asked, progress) if explain else None
    took = time.perf_counter() - began
    rank = -1 if asked.root is None else asked.root
    shown = (topology.name, asked.graph, asked.collective, best, rank, took, switched)
    if as_json:
        more = {} if why is None else {"explanation": explanation.summary(why)}
        print_json({**synthesis.optimum_summary(*shown), **more})
        return
    draw(synthesis.optimum_table(*shown))
    if why is not None:
        draw(explanation.table(why))


@click.command(epilog=examples("forestcoll doctor", "forestcoll doctor --json"))
@json_option
def doctor(as_json: bool) -> int:
    """Check this installation and this machine."""
    from forestcoll import doctor as clinic
    from forestcoll.report import table

    findings = clinic.examine()
    if as_json:
        print_json([f.as_dict() for f in findings])
    else:
        draw(table.columns(("what", "", "found"), [(f.what, f.state, f.found) for f in findings]))
    missing = [f.what for f in findings if f.state == clinic.MISSING]
    if missing:
        return complain(f"needed and missing: {', '.join(missing)}", 1)
    return 0


def _destination(output: str, formats: tuple[Format, ...], target: TargetName) -> files.Destination:
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


ALL = (synthesize, optimum, verify, doctor)
