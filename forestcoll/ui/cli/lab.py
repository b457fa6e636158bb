"""`forestcoll lab`: a fabric of network namespaces on this machine, and plans measured on it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from forestcoll.common.errors import UnsupportedError
from forestcoll.ui.cli import files
from forestcoll.ui.cli.completion import FileType, TopologyType, WordType
from forestcoll.ui.cli.guard import guarded, size_of
from forestcoll.ui.cli.hints import examples
from forestcoll.ui.cli.messages import draw, note, print_json, show_progress
from forestcoll.ui.cli.options import ALLTOALL, edit_options, json_option, load, set_option
from forestcoll.ui.cli.value_types import FiniteRange, SizeType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forestcoll.execute.lab.measurement import Report, Wishes
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.program import Program
    from forestcoll.schedule.forest import Forest
    from forestcoll.solver.alltoall.demand import Matrix
    from forestcoll.topology import Topology

AGAINST = ("ring", "rings", "tree", "double-tree", "direct", "two-level", "gloo")
COLLECTIVES = ("allreduce", *ALLTOALL)


@click.command(
    epilog=examples(
        "sudo forestcoll lab -t dgx-a100 --set boxes=2",
        "sudo forestcoll lab -t rail --set boxes=4 --against ring --against rings",
        "sudo forestcoll lab -t mi250 --plan out/mi250-1.allreduce.msccl.xml --seconds 5",
        "sudo forestcoll lab -t dgx-a100 --set boxes=2 -c alltoall --without box0/gpu0-fabric",
        "sudo forestcoll lab -t dgx-a100 --set boxes=2 -c alltoallv --matrix bytes.txt",
    )
)
@click.option("--topology", "-t", type=TopologyType(), required=True, help="The fabric to build.")
@set_option
@edit_options
@click.option(
    "--collective",
    "-c",
    type=WordType(COLLECTIVES),
    help="What to synthesize a plan for where none is given. Default: allreduce.",
)
@click.option(
    "--matrix",
    type=FileType(),
    metavar="FILE",
    help="alltoallv: the bytes that each rank sends to each rank, a line a rank; all are scaled.",
)
@click.option(
    "--plan",
    type=FileType(),
    metavar="FILE",
    help="Plan of either format, for all GPUs of the topology; its forest file (or routes file) "
    "beside it tells the paths. Default: one is synthesized.",
)
@click.option(
    "--against",
    type=WordType((*AGAINST, "none")),
    multiple=True,
    help="What to measure as well (repeatable): ring and rings for allreduce, allgather and "
    "reduce-scatter, tree and double-tree for allreduce, direct and two-level for alltoall, gloo "
    "for allreduce and alltoall. Default: all that serve.",
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
    collective: str | None,
    matrix: str | None,
    plan: str | None,
    against: tuple[str, ...],
    rate: float | None,
    seconds: float,
    size: int | None,
    iterations: int,
    as_json: bool,
) -> int:
    """Measure a plan on a scaled copy of a fabric, beside rings, trees, direct sending and gloo.

    A network namespace for each GPU and switch, links shaped to the topology's bandwidths, ranks
    over gloo. Needs root, Linux and PyTorch. Leaves nothing behind, however it ends.
    """
    if "none" in against and len(against) > 1:
        raise click.UsageError("--against none goes alone")
    text = None if matrix is None else files.read_text(matrix)
    wanted = load(topology, pairs, without, scale)

    from forestcoll.execute.lab import lacking
    from forestcoll.graph.capacity_graph import CapacityGraph

    reason = lacking()
    if reason:
        raise UnsupportedError(reason)
    if importlib.util.find_spec("torch") is None:
        import forestcoll.execute.torch  # noqa: F401 (which says so; else only the ranks import it)
    from forestcoll.execute.lab.measurement import Wishes
    from forestcoll.ui.report import lab as report

    graph = CapacityGraph.from_topology(wanted)
    program = _read(plan) if plan else None
    kind = _kind(collective, text, program)
    with show_progress("building the fabric") as progress:
        wishes = Wishes(
            rate or 0.0,
            seconds,
            size,
            iterations,
            lambda name, done: progress(f"measuring {name}", done),
        )
        names = () if "none" in against else against or None
        if kind in ALLTOALL:
            result = _all_to_all(wanted, graph, program, plan, names, wishes, text)
        else:
            result = _by_trees(wanted, graph, program, plan, names, wishes)
    if as_json:
        print_json(report.summary(result))
    else:
        draw(report.table(result))
    return 1 if any(row.wrong for row in result.rows) else 0


def _read(plan: str) -> Program:
    """The plan in that file."""
    from forestcoll import plans

    with guarded(plan, size_of(plan)):
        return plans.read_plan(Path(plan))


def _kind(collective: str | None, matrix: str | None, program: Program | None) -> str:
    """The collective that is meant; a usage error where the options contradict each other."""
    kind = collective or (program.collective.value if program is not None else "allreduce")
    if matrix is not None and kind == "alltoall" and collective is None:
        kind = "alltoallv"
    if (kind == "alltoallv") != (matrix is not None):
        raise click.UsageError(
            "-c alltoallv needs --matrix FILE: a line a rank, the bytes it sends to each rank"
            if matrix is None
            else "--matrix is for -c alltoallv"
        )
    if program is not None and program.collective.value != kind.removesuffix("v"):
        raise click.UsageError(f"the plan is for {program.collective}, not for -c {kind}")
    return kind


def _by_trees(
    topology: Topology,
    graph: CapacityGraph,
    program: Program | None,
    plan: str | None,
    against: Sequence[str] | None,
    wishes: Wishes,
) -> Report:
    """A collective that a forest carries."""
    from forestcoll.execute.lab.measurement import AGAINST, compare

    forest = None
    if program is None:
        program, forest = _synthesize(topology)
    elif plan is not None:
        forest = _forest(Path(plan))
    names = AGAINST if against is None else against
    return compare(graph, program, forest, name=topology.name, against=names, wishes=wishes)


def _all_to_all(
    topology: Topology,
    graph: CapacityGraph,
    program: Program | None,
    plan: str | None,
    against: Sequence[str] | None,
    wishes: Wishes,
    matrix: str | None,
) -> Report:
    """An all-to-all, or one of blocks that differ."""
    from forestcoll.compile.alltoall_plans import routes_beside
    from forestcoll.execute.lab import exchange
    from forestcoll.execute.lab.measurement import EXCHANGES
    from forestcoll.solver.alltoall import demand
    from forestcoll.solver.alltoall.matrix import parse

    blocks: Matrix | None = None
    if matrix is not None:
        blocks = demand.check_matrix(parse(matrix, "--matrix"), len(graph.ranks))
    paths = None if plan is None else routes_beside(Path(plan))
    if program is None:
        program, paths = exchange.make_plan(topology, ragged=blocks is not None)
    names = EXCHANGES if against is None else against
    return exchange.compare(
        graph, program, paths, name=topology.name, against=names, wishes=wishes, matrix=blocks
    )


def _forest(plan: Path) -> Forest | None:
    """The forest in the file beside a plan."""
    from forestcoll.schedule import forest_file
    from forestcoll.study.predict import forest_beside

    beside = forest_beside(plan)
    return None if beside is None else forest_file.load(beside)


def _synthesize(topology: Topology) -> tuple[Program, Forest]:
    from forestcoll.compile.synthesize import synthesize

    form: Literal["mscclpp-json"] = "mscclpp-json"
    made = synthesize(topology, "allreduce", target="mscclpp", formats=(form,))
    for text in made.notes:
        note(text)
    return made.programs[form], made.forest
