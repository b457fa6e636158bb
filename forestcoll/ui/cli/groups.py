"""`--groups` of `optimum` and `synthesize`: several groups at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from forestcoll.ui.cli import writing
from forestcoll.ui.cli.messages import draw, print_json, report, show_progress
from forestcoll.ui.cli.options import Problem

if TYPE_CHECKING:
    from typing import Literal

    from forestcoll.program.targets import TargetName
    from forestcoll.ui.cli.files import Destination


def optimum(problem: Problem, as_json: bool) -> None:
    """The largest algbw that all groups reach at the same time."""
    topology = problem.load()

    from forestcoll.compile import together
    from forestcoll.ui.report import groups as words

    began = time.perf_counter()
    asked = together.problem(
        topology, problem.collective, problem.groups, root=problem.root, relays=problem.relays
    )
    with show_progress("optimum"):
        best = together.optimum(asked)
        alone = together.alone(asked, best.algbw)
    took = time.perf_counter() - began
    if as_json:
        print_json(words.optimum_summary(asked, best, alone, took))
    else:
        draw(words.optimum_table(asked, best, alone, took))


def synthesize(
    problem: Problem,
    trees: int | Literal["auto"],
    instances: int | Literal["auto"],
    target: TargetName,
    where: Destination,
    force: bool,
    as_json: bool,
) -> None:
    """A forest and plans for every group, and the file that says what they share."""
    if where.directory is None and not where.nowhere:
        raise click.UsageError("--groups write several files: give --output a directory")
    began = time.perf_counter()
    topology = problem.load()

    from forestcoll.compile import together
    from forestcoll.ui.report import groups as words

    loaded = time.perf_counter() - began
    asked = together.problem(
        topology, problem.collective, problem.groups, root=problem.root, relays=problem.relays
    )
    with show_progress() as progress:
        result = together.synthesize(
            asked,
            trees=trees,
            instances=instances,
            target=target,
            formats=where.formats,
            progress=progress,
        )
    texts = {}
    if where.directory is not None:
        texts = {where.directory / name: text for name, text in result.texts.items()}
        writing.write_all(texts, force)
    timings = {"load": loaded, **result.timings}
    if as_json:
        print_json(words.summary(asked, result, timings, list(texts)))
    else:
        report(words.table(asked, result, timings, list(texts)))
