"""The command `compare`: our plans beside baselines and anybody's plans, by size."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forestcoll.common.errors import UnsupportedError
from forestcoll.ui.cli import writing
from forestcoll.ui.cli.completion import FileType, RuleType, TopologyType, WordType
from forestcoll.ui.cli.hints import examples
from forestcoll.ui.cli.messages import draw, note, print_json, put, quiet, say, show_progress
from forestcoll.ui.cli.options import (
    COLLECTIVES,
    edit_options,
    force_option,
    json_option,
    load,
    set_option,
    signal_option,
)

if TYPE_CHECKING:
    from forestcoll.study.comparison import Comparison
    from forestcoll.ui.report.progress import StageProgress

BASELINES = (
    "ring",
    "rings",
    "tree",
    "double-tree",
    "halving-doubling",
    "bruck",
    "hierarchical",
    "direct",
    "in-switch",
    "blink",
    "multitree",
)
EXCHANGES = ("direct-ecmp", "two-level", "two-level-sequence")
"""Baselines of an all-to-all besides "direct" and "bruck", which it has too."""
PLOTS = (".svg", ".png")


@click.command(
    epilog=examples(
        "forestcoll compare -t dgx-a100 --set boxes=2 -c allgather --sizes 1M:1G",
        "forestcoll compare -t mi250 -c allreduce --with mine.xml --plot compare.svg",
        "forestcoll compare -t dgx-a100 --set boxes=2 --without box0/gpu3-fabric",
        "forestcoll compare -t dgx-a100 --set boxes=2 -c alltoall",
    )
)
@click.option("--topology", "-t", type=TopologyType(), required=True, help="The machine.")
@set_option
@click.option(
    "--collective",
    "-c",
    type=WordType((*COLLECTIVES, "alltoall")),
    default="allreduce",
    show_default=True,
    help="What is done.",
)
@click.option("--root", metavar="ID|RANK", help="For broadcast and reduce. Default: rank 0.")
@click.option(
    "--sizes",
    default="1K:4G",
    show_default=True,
    metavar="LOW:HIGH[:FACTOR]",
    help="Sizes in bytes, by factors of 4; or a list: 64K,1M,1G.",
)
@click.option(
    "--against",
    type=WordType((*BASELINES, *EXCHANGES, "none")),
    multiple=True,
    help="Baselines that take part (repeatable). Default: all.",
)
@click.option(
    "--with",
    "files",
    type=FileType(),
    multiple=True,
    metavar="FILE",
    help="A plan of either format, or a forest, of anybody's. Repeatable.",
)
@click.option(
    "--on",
    "other",
    type=TopologyType(),
    help="The machine as it is now: the plan for --topology runs on it beside a new one.",
)
@edit_options
@click.option(
    "--rule", type=RuleType(), multiple=True, help="Of links. Default: fair, and in order."
)
@signal_option
@click.option(
    "--quick",
    is_flag=True,
    help="Of a baseline one plan for each runtime, and none where its links alone make it slower "
    "than another: then the most that they allow stands, marked <.",
)
@click.option("--plot", metavar="FILE", help="A plot as well: FILE.svg or FILE.png.")
@click.option("--dark", is_flag=True, help="The plot for dark pages.")
@click.option("--csv", "as_csv", is_flag=True, help="The cells as CSV.")
@force_option("the file of --plot")
@json_option
def compare(
    topology: str,
    pairs: tuple[tuple[str, str], ...],
    collective: str,
    root: str | None,
    sizes: str,
    against: tuple[str, ...],
    files: tuple[str, ...],
    other: str | None,
    without: tuple[str, ...],
    scale: tuple[str, ...],
    rule: tuple[str, ...],
    signal: float | None,
    quick: bool,
    plot: str | None,
    dark: bool,
    as_csv: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Compare our plans with rings, trees and other ways, by size.

    All are simulated on the same links. --without and --scale break the machine: new plans for it
    are compared with what the plan for the sound one does there.
    """
    if "none" in against and len(against) > 1:
        raise click.UsageError("--against none goes alone")
    if as_csv and as_json:
        raise click.UsageError("--csv or --json, not both")
    if other and (without or scale):
        raise click.UsageError("--on names the broken machine: leave --without and --scale away")
    target = _plot_path(plot, force)
    sound = load(topology, pairs)
    worn = load(topology, pairs, without, scale) if without or scale else None

    from forestcoll.study import comparison as comparing

    answer = _Answer(as_json, as_csv, (*BASELINES, *(Path(file).name for file in files)))
    try:
        with show_progress("making plans") as progress:
            found = comparing.compare(
                sound,
                collective,
                sizes=sizes,
                root=root,
                against=() if "none" in against else against or None,
                files=files,
                broken=load(other, ()) if other else worn,
                rules=rule or comparing.DEFAULT_RULES,  # type: ignore[arg-type]
                signal=signal,
                quick=quick,
                progress=progress,
                seen=lambda known: answer.take(known, progress),
            )
            answer.take(found, progress)
    finally:  # what is known of a comparison that is cut off is not lost
        answer.tell()
    if target is not None:
        _write_plot(found, target, dark, force)
    return 0


class _Answer:
    """What is known of a comparison: rows as they come, and tables or a document in the end."""

    def __init__(self, as_json: bool, as_csv: bool, names: Sequence[str]) -> None:
        self.as_json, self.as_csv, self.names = as_json, as_csv, names
        self.found: Comparison | None = None
        self.seen: set[tuple[str, int]] = set()

    def take(self, found: Comparison, progress: StageProgress) -> None:
        """Keep it, and show what is new."""
        from forestcoll.ui.report import comparison

        self.found = found
        if self.as_json or self.as_csv or quiet():
            return
        first = not self.seen
        new = comparison.rows(found, self.seen, self.names)
        if new is not None:
            with progress.hidden():
                if first:
                    draw(comparison.heading(found))
                    say("")
                draw(new)
                sys.stdout.flush()

    def tell(self) -> None:
        """The tables, or the document; nothing where nothing is known."""
        from forestcoll.ui.report import comparison, reached

        found = self.found
        if found is None:
            return
        if self.as_json:
            limit = None if found.best is None else reached.limit(found.best)
            print_json({**found.summary(), "bottleneck": limit})
        elif self.as_csv:
            put(found.to_csv())
        else:
            if not self.seen:
                draw(comparison.heading(found))
            for part in comparison.body(found):
                draw(part)
        if found.partial and (self.as_json or self.as_csv):
            note("partial: what was not played yet is missing")


def _plot_path(plot: str | None, force: bool) -> Path | None:
    if plot is None:
        return None
    path = Path(plot)
    if path.suffix.lower() not in PLOTS:
        raise UnsupportedError(f"{plot}: a plot is a file of {' or '.join(PLOTS)}")
    writing.prepare([path], force)
    return path


def _write_plot(found: Comparison, path: Path, dark: bool, force: bool) -> None:
    import io

    stream = io.BytesIO()
    form = path.suffix.lower().removeprefix(".")
    plain = {"Date": None} if form == "svg" else None  # the same file every time
    found.plot(dark=dark).savefig(stream, format=form, dpi=150, metadata=plain)
    writing.write_all({path: stream.getvalue()}, force)
