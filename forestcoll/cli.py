"""The command line. Everything heavy is imported inside the commands: `--help` must be quick.

This module alone prints and decides exit codes: 0 fine, 1 wrong input or failed check, 2 usage,
130 interrupted, 141 nobody reads the output any more.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

import forestcoll
from forestcoll import files
from forestcoll.errors import ForestCollError
from forestcoll.options import (
    DTYPES,
    FORMATS,
    HOLDS,
    OPS,
    TARGETS,
    SizeType,
    TreesType,
    json_option,
    problem_options,
    set_option,
    settings,
    split_ranks,
)

if TYPE_CHECKING:
    from forestcoll.topology import Topology


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code, after running the command in `arguments` (default: the process's own).

    The one place that turns exceptions into messages: one line on standard error.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # Not cli.main(): it has ways of its own with Ctrl-C and broken pipes.
        with cli.make_context("forestcoll", words) as context:
            code = cli.invoke(context)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as wanted:
        return wanted.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "forestcoll"
        return _complain(f"{_one_line(error.format_message())} (see '{where} --help')", 2)
    except click.ClickException as error:
        return _complain(error.format_message(), 1)
    except ForestCollError as error:
        return _complain(str(error), 1)
    except BrokenPipeError:
        # Python flushes standard output once more on its way out: give it a place to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return _complain(f"{name}{error.strerror or error}", 1)
    except MemoryError:
        return _complain("out of memory; a smaller topology, size or tree count needs less", 1)
    except KeyboardInterrupt:
        return _complain("interrupted", 130, kind="")


def _complain(message: str, code: int, kind: str = "error: ") -> int:
    click.echo(f"forestcoll: {kind}{message}", err=True)
    return code


def _one_line(text: str) -> str:
    return " ".join(text.split()).removesuffix(".")


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        click.echo(f"forestcoll {forestcoll.__version__}")
        ctx.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
    help="Show the version and exit.",
)  # fmt: skip
def cli() -> None:
    """Compile a topology into a proven bandwidth-optimal collective schedule, and run it."""


@cli.command()
@problem_options
@click.option(
    "--trees",
    type=TreesType(),
    default="auto",
    show_default=True,
    help="Trees per root. auto: the optimum, or the best that a plan's target can hold.",
)
@click.option(
    "--target",
    type=click.Choice(TARGETS),
    default="any",
    show_default=True,
    help="Runtime that the plans must fit.",
)
@click.option(
    "--format",
    "formats",
    type=click.Choice(FORMATS),
    multiple=True,
    help="What to write (repeatable). Default: the forest and every plan that the target reads.",
)
@click.option(
    "--output", "-o", required=True, metavar="DIR|FILE|-", help="Where to write; '-' is stdout."
)
@click.option("--force", is_flag=True, help="Overwrite files.")
@json_option
def synthesize(
    topology: str, pairs: tuple[tuple[str, str], ...], collective: str, root: str | None,
    ranks: tuple[str, ...], relays: str, trees: int | str, target: str, formats: tuple[str, ...],
    output: str, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Compute a schedule; write its forest and its plans."""
    where = _destination(output, formats, target)
    if where.stdout and as_json:
        raise click.UsageError("--json and '--output -' both want standard output")
    _check_root(collective, root)
    parsed_ranks, began = split_ranks(ranks), time.perf_counter()
    expanded = _load(topology, pairs)
    paths = where.paths(f"{expanded.name}.{collective}")
    files.check_free(paths.values(), force)

    from forestcoll import pipeline
    from forestcoll.report import synthesis
    from forestcoll.report.progress import StageProgress

    loaded = time.perf_counter() - began
    with StageProgress() as progress:
        result = pipeline.synthesize(
            expanded, collective, root=root, ranks=parsed_ranks, relays=relays, trees=trees,
            target=target, formats=where.formats, progress=progress,
        )  # fmt: skip
    if where.stdout:
        click.echo(result.texts[where.formats[0]], nl=False)
    else:
        files.write_all({path: result.texts[f] for f, path in paths.items()}, force)
    timings = {"load": loaded, **result.timings}
    if as_json:
        _print_json(synthesis.summary(result, timings, paths))
    else:
        _draw(synthesis.table(result, timings, paths), err=where.stdout)


@cli.command()
@problem_options
@json_option
def optimum(
    topology: str, pairs: tuple[tuple[str, str], ...], collective: str, root: str | None,
    ranks: tuple[str, ...], relays: str, as_json: bool,
) -> None:  # fmt: skip
    """The best possible algbw and what limits it, without any tree."""
    _check_root(collective, root)
    parsed_ranks = split_ranks(ranks)
    expanded = _load(topology, pairs)

    from forestcoll import pipeline
    from forestcoll.graph import CapacityGraph
    from forestcoll.report import synthesis
    from forestcoll.report.progress import StageProgress

    began = time.perf_counter()
    with StageProgress("optimum"):
        best = pipeline.optimum(expanded, collective, root=root, ranks=parsed_ranks, relays=relays)
    took = time.perf_counter() - began
    kind = pipeline.parse_collective(collective)
    graph = CapacityGraph.from_topology(expanded, ranks=parsed_ranks, relays=relays)
    number = pipeline.parse_root(graph, kind, root)
    shown = (expanded.name, graph, kind, best, -1 if number is None else number, took)
    if as_json:
        _print_json(synthesis.optimum_summary(*shown))
    else:
        _draw(synthesis.optimum_table(*shown))


@cli.command()
@click.argument("sources", nargs=-1, required=True, metavar="FILE...")
@json_option
def verify(sources: tuple[str, ...], as_json: bool) -> int:
    """Prove forests and plans right, or say what is wrong.

    Takes anybody's files; "-" is standard input. Exit 1 if any is wrong.
    """
    from forestcoll import pipeline
    from forestcoll.report.progress import StageProgress

    results: list[dict[str, object]] = []
    for source in sources:
        try:
            with StageProgress(f"verifying {source}"):
                verdict = pipeline.verify_text(files.read_text(source), source)
        except ForestCollError as error:
            message = str(error) if source in str(error) else f"{source}: {error}"
            results.append({"file": source, "ok": False, "error": message})
            _complain(message, 1)
            continue
        entry = {"file": source, "ok": True, "kind": verdict.kind, "proven": list(verdict.lines)}
        results.append({**entry, "figures": dict(verdict.figures)})
        if not as_json:
            click.echo(f"{source}: ok")
            for line in verdict.lines:
                click.echo(f"  {line}")
    if as_json:
        _print_json(results)
    return 0 if all(r["ok"] for r in results) else 1


@cli.command()
@click.argument("plan", metavar="PLAN")
@click.option(
    "--size",
    "sizes",
    type=SizeType(),
    multiple=True,
    default=("64M",),
    show_default="64M",
    help="Bytes as nccl-tests counts them: K, M, G are powers of 1024. Repeatable.",
)
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
@click.option("--op", type=click.Choice(OPS), default="sum", show_default=True)
@click.option(
    "--iterations",
    "-n",
    type=click.IntRange(1, 1_000_000),
    default=1,
    show_default=True,
    help="Timed runs of each row.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 86400),
    default=60.0,
    show_default=True,
    help="Seconds without any progress before the run is given up.",
)
@json_option
def run(
    plan: str, sizes: tuple[int, ...], dtype: str, op: str, iterations: int, timeout: float,
    as_json: bool,
) -> int:  # fmt: skip
    """Run a plan on this machine and check every element.

    Every rank has real buffers; the table is that of nccl-tests.
    """
    from forestcoll import plans
    from forestcoll.execute import cpu
    from forestcoll.report import nccl_tests

    program = plans.read_plan(Path(plan))
    if program.style == "onesided" and op != "sum" and program.collective.reduces:
        _note(f"MSCCL++'s own executor always sums; --op {op} holds on this machine only")
    results = [
        cpu.run(program, size, dtype=dtype, op=op, iterations=iterations, timeout=timeout)
        for size in sizes
    ]
    for text in dict.fromkeys(note for result in results for note in result.notes):
        _note(text)
    if as_json:
        _print_json(nccl_tests.summary(program, results))
    else:
        click.echo(nccl_tests.table(program, results))
    return 1 if any(result.wrong for result in results) else 0


@cli.group()
def topology() -> None:
    """Look at topologies: the catalogue's and your own."""


@topology.command("list")
@json_option
def list_topologies(as_json: bool) -> None:
    """The catalogue: names, parameters with their defaults."""
    from forestcoll import catalog
    from forestcoll.report import table

    names = catalog.names()
    if as_json:
        _print_json([{"name": n, "description": catalog.describe(n)} for n in names])
    else:
        _draw(table.columns(("name", "what"), [(n, catalog.describe(n)) for n in names]))


@topology.command()
@click.argument("name", metavar="NAME|FILE")
@set_option
@click.option("--source", is_flag=True, help="Print the catalogue's YAML, comments and all.")
@json_option
def show(name: str, pairs: tuple[tuple[str, str], ...], source: bool, as_json: bool) -> None:
    """What a topology is made of."""
    from forestcoll import catalog
    from forestcoll.report import topologies

    if source:
        click.echo(catalog.source(name), nl=False)
        return
    expanded = _load(name, pairs)
    about = catalog.describe(name) if name.removesuffix(".yaml") in catalog.names() else ""
    if as_json:
        _print_json(topologies.summary(expanded, about))
    else:
        _draw(topologies.table(expanded, about))


@topology.command()
@click.argument("file", metavar="FILE|NAME")
@set_option
def check(file: str, pairs: tuple[tuple[str, str], ...]) -> None:
    """Well formed, and every GPU can reach every other?"""
    from forestcoll.graph import CapacityGraph
    from forestcoll.report import topologies
    from forestcoll.topology import check_connected

    expanded = _load(file, pairs)
    check_connected(expanded)
    CapacityGraph.from_topology(expanded)
    click.echo(f"{file}: ok: {topologies.census(expanded)}; every GPU reaches every other")


@topology.command()
@click.argument("name", metavar="NAME|FILE")
@set_option
@click.option("--output", "-o", default="-", metavar="FILE|-", help="Default: standard output.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
def expand(name: str, pairs: tuple[tuple[str, str], ...], output: str, force: bool) -> None:
    """Write the explicit form: every node and link by itself."""
    from forestcoll.topology import dumps_topology

    if output != "-":
        files.check_free([Path(output)], force)
    text = dumps_topology(_load(name, pairs))
    if output == "-":
        click.echo(text, nl=False)
    else:
        files.write_all({Path(output): text}, force)


@cli.command()
@json_option
def doctor(as_json: bool) -> int:
    """Check this installation and this machine."""
    from forestcoll import doctor as clinic
    from forestcoll.report import table

    findings = clinic.examine()
    if as_json:
        _print_json([f.as_dict() for f in findings])
    else:
        _draw(table.columns(("what", "", "found"), [(f.what, f.state, f.found) for f in findings]))
    missing = [f.what for f in findings if f.state == clinic.MISSING]
    if missing:
        return _complain(f"needed and missing: {', '.join(missing)}", 1)
    return 0


def _load(name: str, pairs: tuple[tuple[str, str], ...]) -> Topology:
    chosen = settings(pairs)

    from forestcoll import catalog

    return catalog.load(name, chosen)


def _destination(output: str, formats: tuple[str, ...], target: str) -> files.Destination:
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


def _check_root(collective: str, root: str | None) -> None:
    if root is not None and collective not in ("broadcast", "reduce"):
        raise click.UsageError(f"--root is for broadcast and reduce; {collective} has none")


def _note(text: str) -> None:
    click.echo(f"forestcoll: note: {text}", err=True)


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _draw(renderable: object, err: bool = False) -> None:
    from forestcoll.report import table

    table.write(renderable, sys.stderr if err else sys.stdout)  # type: ignore[arg-type]
