"""The command `export`: plans, forests and topologies in the formats of other tools."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forestcoll.common.errors import OutputError
from forestcoll.ui import export as exports
from forestcoll.ui.cli import writing
from forestcoll.ui.cli.completion import WordType
from forestcoll.ui.cli.hints import examples
from forestcoll.ui.cli.messages import put, report, show_progress
from forestcoll.ui.cli.options import BYTES, force_option, output_option, size_option
from forestcoll.ui.cli.subject import load_subject, subject_options
from forestcoll.ui.cli.value_types import FiniteRange

if TYPE_CHECKING:
    from forestcoll.ui.export import Format
    from forestcoll.ui.view import Subject


@click.command(
    epilog=examples(
        "forestcoll export out/dgx-a100-2.allreduce.mscclpp.json --to chakra -o traces/",
        "forestcoll export out/dgx-a100-2.allreduce.forest.json --to svg --tree 0 -o tree.svg",
        "forestcoll export schedules/mi250-1/allgather.forest.json --to goal --pieces 16 -o a.goal",
    )
)
@subject_options
@click.option(
    "--to", "form", type=WordType(tuple(exports.FORMATS)), required=True, help="The format."
)
@output_option("FILE|DIR|-", "Chakra traces take a directory. Default: standard output.")
@size_option("1G", BYTES)
@click.option(
    "--pieces",
    type=click.IntRange(1, exports.MOST_PIECES),
    default=1,
    show_default=True,
    metavar="N",
    help="Messages (chakra, goal) are sent in N pieces, one after the other: pipelining.",
)
@click.option(
    "--order",
    type=WordType(("connection", "data")),
    default="connection",
    show_default=True,
    help="Messages between two ranks follow each other, or only what their data asks for.",
)
@click.option(
    "--reduce-rate",
    type=FiniteRange(0, 1e9, min_open=True),
    metavar="GB/s",
    help="What a rank adds up (chakra, goal). Default: sums take no time.",
)
@click.option(
    "--tree",
    type=click.IntRange(0),
    metavar="N",
    help="Draw this tree of a forest alone (svg, dot). Default: all links with their loads.",
)
@force_option("files")
def export(
    file: str,
    topology: str | None,
    pairs: tuple[tuple[str, str], ...],
    form: str,
    output: str,
    force: bool,
    **settings: Any,
) -> None:
    """Write a plan, a forest or a topology for another tool.

    Messages are those of the plan (or of the forest's trees), proven right first. What each format
    holds, and how its tool reads it: docs/exports.md.
    """
    from forestcoll.ui.export.settings import Settings

    wanted = exports.FORMATS[form]
    if output == "-":
        _check_stdout(wanted)
    elif not _is_folder(output, wanted):
        writing.prepare([Path(output)], force)
    with show_progress(f"reading {file}"):
        subject = load_subject(file, topology, pairs)
    with show_progress(f"writing {wanted.what}"):
        found = exports.export(subject, form, Settings(**settings))
    if output == "-":
        put(next(iter(found.values())))
        return
    folder = _is_folder(output, wanted)
    texts = {Path(output) / name: data for name, data in found.items()} if folder else {}
    texts = texts or {Path(output): next(iter(found.values()))}
    writing.write_all(texts, force)
    _tell(wanted, subject, Path(output), texts)


def _check_stdout(wanted: Format) -> None:
    if wanted.folder:
        raise click.UsageError(f"{wanted.name} is several files: name a directory with --output")
    if wanted.binary and sys.stdout.isatty():
        raise OutputError(f"{wanted.name} is no text; name a file with --output")


def _is_folder(output: str, wanted: Format) -> bool:
    return wanted.folder or output.endswith("/") or Path(output).is_dir()


def _tell(wanted: Format, subject: Subject, where: Path, texts: Mapping[Path, bytes]) -> None:
    from forestcoll.ui.report import table, words

    size = words.size(sum(len(data) for data in texts.values()))
    if len(texts) == 1:
        rows = [("written", f"{next(iter(texts))} ({size})")]
    else:
        rows = [("written", f"{words.plural(len(texts), 'file')} in {where} ({size})")]
    report(table.facts([("format", wanted.what), *subject.said, *rows]))
