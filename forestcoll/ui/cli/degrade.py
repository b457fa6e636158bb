"""`forestcoll degrade`: what single failures cost, and the plans for them made ahead."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from forestcoll.common.errors import OutputError
from forestcoll.ui.cli import files, writing
from forestcoll.ui.cli.completion import FileType, WordType
from forestcoll.ui.cli.guard import guarded
from forestcoll.ui.cli.hints import examples
from forestcoll.ui.cli.messages import draw, note, print_json, report, show_progress
from forestcoll.ui.cli.options import (
    FORMATS,
    HOLDS,
    TARGETS,
    Problem,
    force_option,
    json_option,
    problem_options,
)

if TYPE_CHECKING:
    from forestcoll.compile.formats import Format
    from forestcoll.program.targets import TargetName
    from forestcoll.schedule.forest import Forest
    from forestcoll.study import degrade as losses

KINDS = ("link", "adapter", "gpu", "switch")


@click.command(
    epilog=examples(
        "forestcoll degrade -t dgx-a100 --set boxes=16 -c allgather",
        "forestcoll degrade -t fabric.yaml -c allreduce --with out/fabric.allreduce.forest.json",
        "forestcoll degrade -t dgx-a100 --set boxes=2 -c allgather --plot losses.svg",
        "forestcoll degrade -t dgx-a100 --set boxes=2 -c allreduce --bundle plans/ --kinds adapter",
    )
)
@problem_options
@click.option(
    "--kinds",
    type=WordType(KINDS),
    multiple=True,
    help="What may fail (repeatable): one cable of a link, a network adapter, a GPU, a switch. "
    "Default: each of them.",
)
@click.option(
    "--with",
    "in_use",
    type=FileType(),
    metavar="FOREST",
    help="Forest file of the plan in use. Default: the one that synthesize makes.",
)
@click.option(
    "--worst",
    type=click.IntRange(1, 100_000),
    default=10,
    show_default=True,
    metavar="N",
    help="How many failures are shown, the largest losses first.",
)
@click.option("--plot", type=FileType(), metavar="FILE.svg|png", help="The worst ones as a plot.")
@click.option(
    "--bundle",
    type=FileType(),
    metavar="DIR",
    help="Also make the forest and plans for every failure, in a folder each. A run that was cut "
    "off goes on where it was.",
)
@click.option(
    "--target", type=WordType(TARGETS), default="any", show_default=True, help="Of the bundle."
)
@click.option(
    "--format",
    "formats",
    type=WordType(FORMATS),
    multiple=True,
    help="What the bundle holds (repeatable). Default: the forest and every plan of the target.",
)
@click.option(
    "--dask",
    metavar="ADDRESS|local|none",
    default=None,
    help="Who makes the bundle: a Dask scheduler (tcp://host:8786), workers on this machine, or "
    "this process alone. Default: local where Dask is installed (extra 'dask').",
)
@force_option("the plot")
@json_option
def degrade(
    problem: Problem,
    kinds: tuple[str, ...],
    in_use: str | None,
    worst: int,
    plot: str | None,
    bundle: str | None,
    target: TargetName,
    formats: tuple[Format, ...],
    dask: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """What every single failure costs, with the plan in use and with a new one.

    One cable, network adapter, GPU or switch at a time. The plan in use keeps its trees: it slows
    down with a link that has cables left, and stops where a link is gone. The new plan is the
    optimum of what is left. Failures that a symmetry of the fabric maps onto each other are solved
    once.
    """
    if problem.groups or problem.shares:
        raise click.UsageError("degrade looks at one group with equal parts: leave --groups away")
    if bundle is None and (formats or target != "any" or dask is not None):
        raise click.UsageError("--format, --target and --dask are of --bundle DIR")
    picture = None if plot is None else _picture(plot, force)

    from forestcoll.compile.problem import parse_collective
    from forestcoll.study import degrade as losses
    from forestcoll.ui.report import degrade as words

    topology = problem.load()
    asked = losses.Workload(
        topology,
        parse_collective(problem.collective),
        problem.root,
        None if problem.ranks is None else tuple(problem.ranks),
        problem.relays,
    )
    chosen = losses.check_kinds(kinds or KINDS)
    with show_progress("failures") as progress:
        found = losses.report_losses(
            asked, chosen, None if in_use is None else _forest(in_use), progress
        )
        whole, shown = losses.play_whole(found), losses.play_worst(found, worst, progress)
    if picture is not None:
        form = picture.suffix[1:]
        writing.write_all({picture: words.plot(found, worst, form)}, force)
    index = None if bundle is None else _bundle(found, Path(bundle), formats, target, dask)
    if as_json:
        made = {} if index is None else {"bundle": index}
        print_json({**words.summary(found, shown, whole), **made})
    else:
        draw(words.table(found, shown, whole))
        if picture is not None:
            report(words.written(picture))
        if index is not None:
            report(words.bundle_table(index, Path(str(bundle))))


def _picture(name: str, force: bool) -> Path:
    path = Path(name)
    if path.suffix not in (".svg", ".png"):
        raise click.UsageError(f"--plot '{name}': name a file that ends in .svg or .png")
    writing.prepare([path], force)
    return path


def _forest(name: str) -> Forest:
    """The forest of the plan in use, proven."""
    from forestcoll.schedule import certificate, forest_file

    text = files.read_text(name)
    with guarded(name, len(text)):
        forest = forest_file.loads(text, name)
        certificate.check(forest)
    return forest


def _bundle(
    found: losses.Report,
    folder: Path,
    formats: tuple[Format, ...],
    target: TargetName,
    dask: str | None,
) -> dict[str, object]:
    """Make what is missing of the bundle; its index."""
    from functools import partial

    from forestcoll.study.degrade import bundle, dask_cluster

    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder}: is not a directory")
    read = [form for form in FORMATS if target == "any" or form in ("forest", HOLDS[target])]
    request = bundle.Request(found.workload, tuple(dict.fromkeys(formats)) or tuple(read), target)
    failures = [loss.failure for loss in found.losses]
    if dask is None:
        dask = "local" if dask_cluster.installed() and len(failures) > 1 else "none"
        if dask == "none" and len(failures) > 1:
            note("one failure after the other: with the extra 'dask' every core makes some")
    spread = (
        None
        if dask == "none"
        else partial(dask_cluster.spread, address=None if dask == "local" else dask)
    )
    for failure in failures:  # what a run that was killed has begun there
        writing.prepare([folder / bundle.folder_of(failure) / bundle.NOTE], force=True)
    with show_progress("bundle") as progress:
        return bundle.make_bundle(
            request,
            failures,
            folder,
            lambda texts: writing.write_all(texts, force=False),
            spread,
            lambda done, of: progress(f"failure {done} of {of}", done / of),
        )
