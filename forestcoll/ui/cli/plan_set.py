"""`--sizes` of `synthesize`, and `verify` of a directory: plan sets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from forestcoll.common.errors import OutputError
from forestcoll.compile.budget import Budget
from forestcoll.ui.cli import writing
from forestcoll.ui.cli.messages import print_json, report, show_progress

if TYPE_CHECKING:
    from forestcoll.compile.formats import Place
    from forestcoll.compile.plan_set import Proven, Verdict
    from forestcoll.program.targets import TargetName
    from forestcoll.topology import Topology
    from forestcoll.ui.cli.files import Destination
    from forestcoll.ui.cli.options import Problem
    from forestcoll.ui.report.plan_set import Row


@dataclass(frozen=True, slots=True)
class How:
    """What the options say of a set."""

    sizes: tuple[int, int]
    budget: Budget = Budget()  # noqa: RUF009 (frozen)
    instances: int | Literal["auto"] = "auto"
    sms: int | None = None
    place: Place | None = None
    target: TargetName = "any"


def synthesize(problem: Problem, how: How, where: Destination, force: bool, as_json: bool) -> None:
    """Plans for all sizes, the forests they were made from, and their index."""
    if where.directory is None and not where.nowhere:
        raise click.UsageError("--sizes write several files: give --output a directory")
    formats = tuple(form for form in where.formats if form != "forest")
    if not formats:
        raise click.UsageError("--sizes make plans; only a forest is asked")
    began = time.perf_counter()
    topology = problem.load()
    from forestcoll.compile import plan_set
    from forestcoll.ui.report import plan_set as words

    if where.directory is not None:
        writing.prepare([where.directory / plan_set.INDEX], force)
        _earlier(where.directory, formats, force)  # an error now is better than one after minutes
    loaded = time.perf_counter() - began
    with show_progress() as progress:
        made = plan_set.make(
            topology,
            problem.collective,
            *how.sizes,
            root=problem.root,
            ranks=problem.ranks,
            relays=problem.relays,
            budget=how.budget,
            instances=how.instances,
            sms=how.sms,
            place=how.place,
            target=how.target,
            formats=formats,
            progress=progress,
        )
    texts = plan_set.files_of(made)
    if where.directory is not None:
        paths = {where.directory / file: text for file, text in texts.items()}
        writing.write_all(paths, force, partial(_earlier, where.directory, formats, force))
    timings = {"load": loaded, **made.timings}
    if as_json:
        print_json(words.summary(made, texts, timings, where.directory))
    else:
        report(words.table(made, texts, timings, where.directory))


def verify(source: str) -> Verdict:
    """What is proven of the set in that directory: a line a fact, figures, and its plans."""
    from forestcoll.compile import plan_set

    return plan_set.check(Path(source))


def play(proven: Sequence[Proven], topology: Topology | None) -> tuple[list[Row], str]:
    """The plans with what they reach in simulated time, as `synthesize` has it, and a note."""
    from forestcoll.compile.plan_set import ends_of
    from forestcoll.study import predict
    from forestcoll.ui.report.plan_set import Row

    rows, text = [], ""
    for plan in proven:
        low, high = plan.stated.min_bytes, plan.stated.max_bytes
        site = predict.site_with(plan.program, plan.made_from, topology)
        ends = ends_of(plan.program, site.where, site.links, low, high)
        rows.append(Row(plan.format, low, high, plan.program, plan.made_from, ends))
        text = text or site.note if ends else text
    return rows, text


def _earlier(directory: Path, formats: tuple[str, ...], force: bool) -> dict[Path, str]:
    """The files of an earlier set, which the new one replaces, with their SHA-256.

    A runtime reads every file where it looks, and the first that is no plan of the set may be
    fatal: OutputError where there is any that is not the earlier set's own.
    """
    from forestcoll.compile import plan_set

    folders = [directory / form for form in formats]
    found = sorted(path for f in folders if f.is_dir() for path in f.iterdir())
    writing.check_free(found, force)
    index = directory / plan_set.INDEX
    known = plan_set.files_named(index) if index.is_file() else {}
    for path in found:
        if path not in known:
            raise OutputError(
                f"{path}: is no plan of the set in {directory}, and a runtime would read it as "
                "one: take it away"
            )
        if writing.digest_of(path) != known[path]:
            raise OutputError(
                f"{path}: is not the file that the set in {directory} was written with, and a "
                "runtime would read it: take it away"
            )
    return known
