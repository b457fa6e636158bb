"""The commands that hand plans on: `export` to other tools, `view` as a page, `deploy`."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forestcoll.common.errors import OutputError
from forestcoll.ui import export as exports
from forestcoll.ui.cli import writing
from forestcoll.ui.cli.files import SOURCE, Sink, Source, read_sent, read_text
from forestcoll.ui.cli.messages import answer, draw, put, report, show_progress
from forestcoll.ui.cli.options import (
    BYTES,
    FORCE,
    FORCE_FILES,
    ORDER,
    PRODUCER,
    TILES,
    Machine,
    command,
    each,
    machine_option,
    option,
    output_option,
    place,
)
from forestcoll.ui.cli.process import guard
from forestcoll.ui.cli.types import FiniteRange

if TYPE_CHECKING:
    from forestcoll.execute.deploy.runtimes import Runtime
    from forestcoll.solver.routes.spread import Spread
    from forestcoll.ui.export import Order
    from forestcoll.ui.view import Subject

ROUTE_FORMATS = ("json", "sonic", "frr", "ip", "evs")
RUNTIMES = ("mscclpp", "msccl", "nccl", "rccl", "torch")


@command(
    "forestcoll export out/dgx-a100-2.allreduce.mscclpp.json --to chakra -o traces/",
    "forestcoll export out/dgx-a100-2.allreduce.forest.json --to svg --tree 0 -o tree.svg",
    "forestcoll export schedules/mi250-1/allgather.forest.json --to goal --pieces 16 -o a.goal",
    json=False,
)
def export(
    source: Source = SOURCE,
    form: str = option(
        tuple(exports.FORMATS), "The format.", names="--to", required=True, old=("--format",)
    ),
    output: str = output_option(
        "FILE|DIR|-", "Chakra traces take a directory. Default: standard output."
    ),
    size: int = option("size", BYTES, "1G"),
    pieces: int = option(
        range(1, exports.MOST_PIECES + 1),
        "Messages (chakra, goal) are sent in N pieces, one after the other: pipelining.",
        1,
        "N",
    ),
    order: Order = option(
        ("connection", "data"),
        "Messages between two ranks follow each other, or only what their data asks for.",
        "connection",
    ),
    reduce_rate: float | None = option(
        FiniteRange(0, 1e9, min_open=True),
        "What a rank adds up (chakra, goal). Default: sums take no time.",
        None,
        "GB/s",
    ),
    tree: int | None = option(
        click.IntRange(0),
        "Draw this tree of a forest alone (svg, dot). Default: all links with their loads.",
        None,
        "N",
    ),
    measured: tuple[str, ...] = each(
        "file",
        "Sweeps of nccl-tests or the example profiler's file that a table is made of (nccl-tuner). "
        "Repeatable.",
        "FILE",
        "--measured",
    ),
    force: bool = FORCE_FILES,
) -> None:
    """Write a plan, a forest or a topology for another tool.

    Messages are those of the plan (or of the forest's trees), proven right first. What each format
    holds, and how its tool reads it: docs/check.md.
    """
    from forestcoll.ui.report import words

    wanted, where = exports.FORMATS[form], Path(output)
    folder = wanted.folder or output.endswith("/") or where.is_dir()
    if output == "-":
        if wanted.folder:
            raise click.UsageError(
                f"{wanted.name} is several files: name a directory with --output"
            )
        if wanted.binary and sys.stdout.isatty():
            raise OutputError(f"{wanted.name} is no text; name a file with --output")
    elif not folder:
        writing.prepare([where], force)
    with show_progress(f"reading {source.file}"):
        subject = source.load()
    texts_of = tuple((name, read_text(name)) for name in measured)
    settings = exports.Settings(size, pieces, order, reduce_rate, tree, measured=texts_of)
    with show_progress(f"writing {wanted.what}"):
        files = exports.export(subject, form, settings)
    if output == "-":
        put(next(iter(files.values())))
        return
    texts = {where / name if folder else where: data for name, data in files.items()}
    writing.write_all(texts, force)
    what = words.plural(len(texts), "file") + f" in {where}"
    size_of_all = words.size(sum(map(len, texts.values())))
    told = f"{what if len(texts) > 1 else next(iter(texts))} ({size_of_all})"
    _tell_subject(subject, told, wanted.what)


def _folder(output: str | None) -> Path | None:
    """The folder that is written into; OutputError where that is a file."""
    folder = None if output is None else Path(output)
    if folder is not None and folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder}: is no directory")
    return folder


def _tell_subject(subject: Subject, written: str, form: str = "") -> None:
    from forestcoll.ui.report.facts import line

    said = [("format", form), *subject.said, ("written", written)]
    report([line(*each) for each in said])


@command(
    "forestcoll routes out/a.allgather.forest.json -t multi-plane-clos --set leaves=8 -o routes/",
    "forestcoll routes a2a.alltoall.json -t fabric.yaml --spread shares --format json -o routes/",
)
def routes(
    file: str = place("file", "FILE"),
    machine: Machine = machine_option(
        "The fabric, as the file's schedule was made for it, with the same edits.", edits=True
    ),
    output: str = output_option("DIR", "The directory of all files.", None),
    by: Spread = option(
        ("flows", "shares", "group"),
        "flows: an edge takes one spine of each plane, by edge colouring. shares: even shares of "
        "all spines, as sprayed packets do. group: one spine, turned by the symmetry of a compact "
        "forest; of millions of edges the file is templates.",
        "flows",
        names="--spread",
    ),
    formats: tuple[str, ...] = each(
        ROUTE_FORMATS,
        "What to write, repeatable: json; SONiC's CONFIG_DB and FRR's configuration of a switch; a "
        "script of ip -6 route and lists of entropy values of a host. Default: all.",
        names="--format",
    ),
    failed: tuple[str, ...] = each(
        None,
        "What has failed since FILE was made, as for --without: its paths are retired, others take "
        "their place, and a file says which. Repeatable.",
        "NODE|LINK",
    ),
    spares: int = option(
        range(3), "Also spines for when one, or one or two, are gone: in the JSON.", 0, "N"
    ),
    seed: int = option(range(2**31), "Of the chances of ECMP.", 1, "N"),
    force: bool = FORCE_FILES,
) -> None:
    """Pin every edge of a schedule to paths through the fabric, as segment lists of SRv6.

    FILE is a forest, a file of all-to-all routes, or a plan (with its forest or routes beside it).
    Planes share an edge evenly. All files are read back, every address is walked by the switches'
    tables, and the load of each link recomputed. The report has the most flows on a link, the
    slowest link, and what ECMP would lose. docs/routes.md has formats and addresses.
    """
    from forestcoll.solver.routes.segments import edges_with_ways
    from forestcoll.study.routes import mend, pin
    from forestcoll.ui.export import segments
    from forestcoll.ui.report.topologies import routes_facts

    if output in ("", "-"):
        raise click.UsageError("routes are several files: name a directory with --output")
    folder = _folder(output)
    sent, whole, left = read_sent(file, machine, by == "group")
    with show_progress("routes"):
        pinned = pin(sent, whole, left, by, seed, spares)
        repaired = mend(pinned, failed)
        book = segments.Book.of(pinned, repaired)
    with show_progress("writing"):
        wanted = tuple(formats) or (ROUTE_FORMATS[:1] if book.images else ROUTE_FORMATS)
        if book.images and {"ip", "evs"} & {*wanted}:
            raise click.UsageError("files of hosts list all paths: too many of templates")
        some = {} if not book.images or {"sonic", "frr"} & {*wanted} else {"planes": (0,)}
        texts = dict(book.files(tuple({*wanted, "json", "sonic"}), **some))
        walked, parts = segments.read_back(texts, book.fabric, sent.edges.graph)
        if not book.images:
            segments.check_loads(walked, parts, repaired or pinned.loads)
        tables = {n: text for n, text in texts.items() if segments.format_of(n) == "sonic"}
        for spare in pinned.spares:
            other = replace(book, edges=edges_with_ways(spare.spreading), spares=())
            walks = segments.read_back(tables | dict(other.files(("json",))), book.fabric)
            segments.check_loads(*walks, spare)
    kept = {n: text for n, text in texts.items() if segments.format_of(n) in wanted}
    if folder is not None:
        paths = {folder / name: text for name, text in kept.items()}
        writing.write_all(
            paths, force, partial(segments.earlier, folder, wanted) if force else None
        )
    facts = routes_facts(pinned, repaired, walked, folder, kept)
    answer(facts, draw if folder is None else report)


@command(
    "forestcoll view out/dgx-a100-2.allreduce.mscclpp.json -o view.html",
    "forestcoll view out/dgx-a100-2.allreduce.msccl.xml -t dgx-a100 --set boxes=2 -o view.html",
    "forestcoll view fat-tree --set leaves=4 -o fabric.html",
    "forestcoll view placed/layout.json -o placed.html",
    json=False,
)
def view(
    source: Source = SOURCE,
    output: str = output_option(
        "FILE.html|-", "Default: standard output, where that is no terminal."
    ),
    size: int = option("size", "Bytes of the simulated run, as nccl-tests counts them.", "64M"),
    trees: tuple[int, ...] = each(
        click.IntRange(0),
        "A tree of the forest that is in the page. Repeatable. Default: all, as far as they fit.",
        "N",
        "--tree",
    ),
    order: str | None = ORDER,
    tiles: int | None = TILES,
    producer: float | None = PRODUCER,
    consumer: float | None = option(
        FiniteRange(0, 1e9),
        "Microseconds of work on the result, tile after tile. Default: as long as the plan.",
        None,
        "US",
    ),
    force: bool = FORCE,
) -> None:
    """Make a page that shows a plan, a forest, a topology or a layout.

    One HTML file that asks for nothing else: the fabric, trees to step through, link loads, the
    limiting cut, and the time line of a simulated run to play; with --tiles also what overlaps with
    it. docs/check.md has the keys. Of a layout: its groups, before and after.
    """
    from forestcoll.program.tiles import read_order
    from forestcoll.ui.report import words
    from forestcoll.ui.view import groups
    from forestcoll.ui.view.data import collect, page
    from forestcoll.ui.view.timeline import Work

    if output == "-" and sys.stdout.isatty():
        raise OutputError("a page is nothing for a terminal; name a file with --output")
    sink = Sink(output, force).prepare()
    with show_progress(f"reading {source.file}"):
        placement = source.load_placement()
        if placement is not None and not (order or tiles or trees or source.machine.topology):
            sink.write(groups.page(placement))
            return
        subject = source.load()
    work = None
    if order or tiles:
        if subject.program is None:
            raise click.UsageError("--order and --tiles are for a plan")
        taken = read_order(read_text(order), order) if order else range(tiles or 0)
        work = Work(taken, producer, consumer)
    with show_progress("drawing"):
        limit = dict(subject.said).get("bottleneck", "") if subject.forest is not None else ""
        band = subject.band(size)  # what it reaches in simulated time, as far as reports have that
        if band is not None:
            told = (("simulated", words.band(band)), ("model", band.model))
            subject = subject._replace(said=(*subject.said, *told))
        text = page(subject.title, collect(subject, size, limit, trees, work))
    sink.write(text)
    if sink.path is not None:
        _tell_subject(subject, f"{output} ({words.size(len(text.encode()))})")


@command(
    "forestcoll deploy out/dgx-a100-2.allreduce.mscclpp.json --runtime mscclpp -o deployed/",
    "forestcoll deploy plans/ --runtime rccl",
    "forestcoll deploy graphs/ --runtime nccl -o deployed/",
    "bash deployed/run.sh python train.py",
)
def deploy(
    plans: tuple[str, ...] = place("file", "PLAN|DIR...", many=True),
    runtime: Runtime = option(RUNTIMES, "Who runs the plans.", required=True),
    output: str | None = output_option(
        "DIR",
        "Write plans, environment, checks and run.sh there. Default: only say what is needed.",
        None,
    ),
    force: bool = FORCE_FILES,
) -> None:
    """Make a runtime use plans, and prove that it did.

    Takes plan files, or folders of them; for nccl and rccl as they are shipped, trees or rings of
    'export'. With --output, a folder that is copied to every node:
    run.sh starts a command (by default a check of every element) with the plans switched on, and
    fails where the runtime's log does not show them at work.
    """
    from forestcoll.execute import deploy as deployment
    from forestcoll.ui.report import plans as words

    folder = _folder(output)
    inside = (file for folder in plans for file in Path(folder).glob("*"))
    with show_progress("reading plans"), guard("the plans", *plans, *inside):
        deployed = deployment.deploy([Path(p) for p in plans], runtime)
    written: list[Path] = []
    if folder is not None:
        texts = {folder / name: text for name, text in deployed.files.items()}
        ours, place = {p.name for p in texts}, folder / "plans"

        def earlier() -> dict[Path, str]:
            """No files go; OutputError for others: runtimes read every file that is there."""
            others = [p.name for p in place.glob("*") if p.name not in ours]
            if others:
                raise OutputError(
                    f"{place}: holds {others[0]} too, and runtimes load every file of the folder; "
                    "take another folder or remove it"
                )
            return {}

        writing.write_all(texts, force, earlier)
        written = list(texts)
    say = report if written else draw  # what is needed is the result where nothing is written
    say(words.size_rows(deployed))
    answer(words.needs(deployed, written), say)
