"""The command `view`: a page that shows a fabric, its trees, its loads and a simulated run."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forestcoll.common.errors import OutputError
from forestcoll.ui.cli import writing
from forestcoll.ui.cli.hints import examples
from forestcoll.ui.cli.messages import put, report, show_progress
from forestcoll.ui.cli.options import force_option, output_option, size_option
from forestcoll.ui.cli.subject import load_subject, subject_options

if TYPE_CHECKING:
    from forestcoll.ui.view import Subject


@click.command(
    epilog=examples(
        "forestcoll view out/dgx-a100-2.allreduce.mscclpp.json -o view.html",
        "forestcoll view out/dgx-a100-2.allreduce.msccl.xml -t dgx-a100 --set boxes=2 -o view.html",
        "forestcoll view fat-tree --set leaves=4 -o fabric.html",
    )
)
@subject_options
@output_option("FILE.html|-", "Default: standard output, where that is no terminal.")
@size_option("64M", "Bytes of the simulated run, as nccl-tests counts them.")
@click.option(
    "--tree",
    "trees",
    type=click.IntRange(0),
    multiple=True,
    metavar="N",
    help="A tree of the forest that is in the page. Repeatable. Default: all, as far as they fit.",
)
@force_option()
def view(
    file: str,
    topology: str | None,
    pairs: tuple[tuple[str, str], ...],
    output: str,
    size: int,
    trees: tuple[int, ...],
    force: bool,
) -> None:
    """Make a page that shows a plan, a forest or a topology.

    One HTML file that asks for nothing else: the fabric, trees to step through, link loads, the
    limiting cut, and the time line of a simulated run to play. docs/view.md has the keys.
    """
    from forestcoll.ui.report import table, words
    from forestcoll.ui.view.data import collect, page

    if output == "-" and sys.stdout.isatty():
        raise OutputError("a page is nothing for a terminal; name a file with --output")
    if output != "-":
        writing.prepare([Path(output)], force)
    with show_progress(f"reading {file}"):
        subject = load_subject(file, topology, pairs)
    with show_progress("drawing"):
        limit = dict(subject.said).get("bottleneck", "") if subject.forest is not None else ""
        subject = _played(subject, size)
        text = page(subject.title, collect(subject, size, limit, trees))
    if output == "-":
        put(text)
        return
    writing.write_all({Path(output): text}, force)
    written = ("written", f"{output} ({words.size(len(text.encode()))})")
    report(table.facts([*subject.said, written]))


def _played(subject: Subject, size: int) -> Subject:
    """The subject with what it reaches in simulated time, as far as reports have that."""
    from forestcoll.ui.report import words

    band = subject.band(size)
    if band is None:
        return subject
    said = (*subject.said, ("simulated", words.band(band)), ("model", band.model))
    return replace(subject, said=said)
