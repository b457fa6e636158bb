"""The command `front`, the Pareto front of a machine: fewer trees per root against less algbw."""

from __future__ import annotations

import functools

import click

from forestcoll.ui.cli.hints import examples
from forestcoll.ui.cli.messages import draw, print_json, show_progress
from forestcoll.ui.cli.options import Problem, json_option, problem_options


@click.command(
    epilog=examples(
        "forestcoll front -t mi250",
        "forestcoll front -t dgx-a100 --set boxes=2 -c allreduce --no-plans",
        "forestcoll front -t dgx-a100 --set boxes=64 -c allgather --rates --all",
    )
)
@functools.partial(problem_options, collective="allgather")
@click.option(
    "--plans/--no-plans",
    default=None,
    help="Also what the plans need of every target. Without either: up to 64 GPUs.",
)
@click.option("--rates", is_flag=True, help="Rates only, no trees: quick on large machines.")
@click.option("--all", "everything", is_flag=True, help="Every point of a long front.")
@json_option
def front(
    problem: Problem, plans: bool | None, rates: bool, everything: bool, as_json: bool
) -> None:
    """What fewer trees cost: algbw, height, thread blocks, from 1 to the optimum.

    A row is a number of trees per root that beats all smaller ones. The least that reach 99 % and
    99.9 % are always among them. `synthesize` takes one by --trees, --min-percent, --max-height or
    --budget.
    """
    if plans and rates:
        raise click.UsageError("--plans needs trees, --rates makes none: give one of them")
    if problem.groups:
        raise click.UsageError("there is no front of several groups: leave --groups away")
    topology = problem.load()

    from forestcoll.compile.front import front
    from forestcoll.ui.report import front as report

    with show_progress("front") as progress:
        found = front(
            topology,
            problem.collective,
            root=problem.root,
            ranks=problem.ranks,
            relays=problem.relays,
            shares=problem.shares,
            forests=not rates,
            plans=plans,
            everything=everything,
            progress=progress,
        )
    if as_json:
        print_json(report.summary(found))
    else:
        draw(report.table(found))
