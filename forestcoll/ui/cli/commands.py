"""The commands `optimum` and `doctor`; the list of those about schedules."""

from __future__ import annotations

import functools
import time

import click

from forestcoll.ui.cli import alltoall, groups
from forestcoll.ui.cli.completion import FileType
from forestcoll.ui.cli.hints import examples
from forestcoll.ui.cli.messages import complain, draw, print_json, show_progress
from forestcoll.ui.cli.options import (
    ALLTOALL,
    COLLECTIVES,
    Problem,
    force_option,
    json_option,
    problem_options,
)
from forestcoll.ui.cli.synthesize import synthesize
from forestcoll.ui.cli.verify import verify


@click.command(
    epilog=examples(
        "forestcoll optimum -t dgx-a100 --set boxes=2 -c allgather",
        "forestcoll optimum -t dgx-a100 --set boxes=2 -c allgather --explain",
        "forestcoll optimum -t my-machine.yaml -c broadcast --root box0/gpu3 --json",
        "forestcoll optimum -t dgx-a100 --set boxes=2 -c allgather --ranks 'box*/gpu[0-3]'",
        "forestcoll optimum -t dgx-a100 --set boxes=2 -c allgather --groups 'box0/*;box1/*'",
        "forestcoll optimum -t dgx-a100 --set boxes=128 -c alltoall --without box0/gpu3-fabric*",
        "forestcoll optimum -t mi250 -c alltoallv --matrix bytes.txt -o out/",
        "forestcoll optimum -t dgx-h100 --set boxes=2 -c alltoallv --matrix bytes.txt --explain",
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
@force_option()
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
    if explain and problem.groups:
        raise click.UsageError("--explain is for one group: leave --groups away")
    if problem.collective in ALLTOALL:
        alltoall.optimum(problem, matrix, output, force, explain, as_json)
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

    from forestcoll.compile import problem as problems
    from forestcoll.compile.in_switches import nvls_algbw
    from forestcoll.compile.optimum import optimum_of
    from forestcoll.ui.report import explanation, synthesis

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
        why = None
        if explain:
            from forestcoll.study import explain as explaining  # with all-to-all, twice the imports

            why = explaining.explain(asked, progress)
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
    from forestcoll.execute import doctor as clinic
    from forestcoll.ui.report import table

    findings = clinic.examine()
    if as_json:
        print_json([f.as_dict() for f in findings])
    else:
        draw(table.columns(("what", "", "found"), [(f.what, f.state, f.found) for f in findings]))
    missing = [f.what for f in findings if f.state == clinic.MISSING]
    if missing:
        return complain(f"needed and missing: {', '.join(missing)}", 1)
    return 0


ALL = (synthesize, optimum, verify, doctor)
