"""`forestcoll lab`: a fabric of network namespaces on this machine, and plans measured on it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from forestcoll.cli.completion import FileType, TopologyType, WordType
from forestcoll.cli.guard import guarded, size_of
from forestcoll.cli.hints import examples
from forestcoll.cli.options import edit_options, json_option, load, set_option
from forestcoll.cli.talk import draw, note, print_json, show_progress
from forestcoll.cli.value_types import FiniteRange, SizeType
from forestcoll.errors import UnsupportedError

if TYPE_CHECKING:
    from forestcoll.forest import Forest
    from forestcoll.program import Program
    from forestcoll.topology import Topology

AGAINST = ("ring", "rings", "tree", "double-tree", "gloo")


@click.command(
    epilog=examples(
        "sudo forestcoll lab -t dgx-a100 --set boxes=2",
        "sudo forestcoll lab -t rail --set boxes=4 --against ring --against rings",
        "sudo forestcoll lab -t mi250 --plan out/mi250-1.allreduce.msccl.xml --seconds 5",
    )
)
@click.option("--topology", "-t", type=TopologyType(), required=True, help="The fabric to build.")
@set_option
@edit_options
@click.option(
    "--plan",
    type=FileType(),
    metavar="FILE",
    help="Plan of either format, for all GPUs of the topology; its forest file beside it tells "
    "the paths. Default: an allreduce is synthesized.",
)
@click.option(
    "--against",
    type=WordType((*AGAINST, "none")),
    multiple=True,
    help="What to measure as well (repeatable): ring and rings for allreduce, allgather and "
    "reduce-scatter, the others for allreduce. Default: all that serve.",
)
@click.option(
    "--rate",
    type=FiniteRange(1, 1_000_000),
    metavar="MBIT",
    help="Mbit/s that all GPUs together can take in: all links are scaled to that. "
    "Default: 60 a processor.",
)
@click.option(
    "--seconds",
    type=FiniteRange(0.1, 3600),
    default=20.0,
    show_default=True,
    help="Every schedule gets the data that should take it so long.",
)
@click.option("--size", type=SizeType(), help="Or: every schedule gets these bytes.")
@click.option(
    "--iterations", "-n", type=click.IntRange(1, 1000), default=1, help="Best of so many runs."
)
@json_option
def lab(
    topology: str,
    pairs: tuple[tuple[str, str], ...],
    without: tuple[str, ...],
    scale: tuple[str, ...],
    plan: str | None,
    against: tuple[str, ...],
    rate: float | None,
    seconds: float,
    size: int | None,
    iterations: int,
    as_json: bool,
) -> int:
    """Measure a plan on a scaled copy of a fabric, beside rings, trees and gloo.

    A network namespace for each GPU and switch, links shaped to the topology's bandwidths, ranks
    over gloo. Needs root, Linux and PyTorch. Leaves nothing behind, however it ends.
    """
    if "none" in against and len(against) > 1:
        raise click.UsageError("--against none goes alone")
    wanted = load(topology, pairs, without, scale)

    from forestcoll.graph import CapacityGraph
    from forestcoll.lab import lacking

    reason = lacking()
    if reason:
        raise UnsupportedError(reason)
    if importlib.util.find_spec("torch") is None:
        import forestcoll.torch  # noqa: F401 (which says so; else only the ranks import it)
    from forestcoll.lab.comparing import compare
    from forestcoll.report import lab as report

    graph = CapacityGraph.from_topology(wanted)
    if plan:
        with guarded(plan, size_of(plan)):
            program, forest = _read(Path(plan))
    else:
        program, forest = _synthesize(wanted)
    with show_progress("building the fabric") as progress:
        result = compare(
            graph,
            program,
            forest,
            name=wanted.name,
            against=() if "none" in against else against or AGAINST,
            rate=rate or 0.0,
            seconds=seconds,
            size=size,
            iterations=iterations,
            progress=lambda name, done: progress(f"measuring {name}", done),
        )
    if as_json:
        print_json(report.summary(result))
    else:
        draw(report.table(result))
    return 1 if any(row.wrong for row in result.rows) else 0


def _read(plan: Path) -> tuple[Program, Forest | None]:
    """The plan, and the forest in the file beside it."""
    from forestcoll import forest_file, plans
    from forestcoll.predict import forest_beside

    program = plans.read_plan(plan)
    beside = forest_beside(plan)
    return program, None if beside is None else forest_file.load(beside)


def _synthesize(topology: Topology) -> tuple[Program, Forest]:
    from forestcoll.compile.synthesize import synthesize

    form: Literal["mscclpp-json"] = "mscclpp-json"
    made = synthesize(topology, "allreduce", target="mscclpp", formats=(form,))
    for text in made.notes:
        note(text)
    return made.programs[form], made.forest
