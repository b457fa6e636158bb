"""The command `time`: how long a plan takes on a topology, simulated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forestcoll.common.errors import ForestCollError, PlanError, UnsupportedError
from forestcoll.ui.cli import files
from forestcoll.ui.cli.completion import FileType, RuleType, TopologyType, WordType
from forestcoll.ui.cli.guard import guarded, size_of
from forestcoll.ui.cli.hints import examples
from forestcoll.ui.cli.messages import draw, note, print_json, show_progress
from forestcoll.ui.cli.options import json_option, load, set_option, signal_option, sizes_option

if TYPE_CHECKING:
    from forestcoll.program import Program
    from forestcoll.schedule.forest import Forest
    from forestcoll.study.figures import Figures
    from forestcoll.topology import Topology
    from forestcoll.verify.simulate import Options, Rule, Timing

DEFAULT_SIZE = 2**30
MESSAGES = ("msccl", "rccl")
DEFAULT_RULES: tuple[Rule | None, ...] = (None, "fair", "fifo")


@click.command(
    "time",
    epilog=examples(
        "forestcoll time out/dgx-a100-2.allreduce.mscclpp.json -t dgx-a100 --set boxes=2",
        "forestcoll time PLAN --size 1M --size 1G --rule in-order --links 20",
    ),
)
@click.argument("plan", type=FileType(), metavar="PLAN|FOREST")
@click.option(
    "--topology",
    "-t",
    type=TopologyType(),
    help="What the plan runs on, with its latencies, over the ways of the forest file beside the "
    "plan where it has these links. Default: the links of that file, with the catalogue's "
    "latencies where they are its, else without any.",
)
@set_option
@sizes_option("1G")
@click.option(
    "--rule",
    type=RuleType(),
    help="How transfers meet on all links: share them evenly, one after the other, or in "
    "proportion to their bytes. Default: each link's own, and then all fair, and all in order.",
)
@click.option("--latency", type=float, metavar="US", help="Microseconds of every link.")
@signal_option
@click.option(
    "--block-rate", type=float, metavar="GB/s", help="What a thread block moves. Default: no limit."
)
@click.option(
    "--reduce-rate", type=float, metavar="GB/s", help="What one adds up. Default: no limit."
)
@click.option(
    "--switching",
    type=WordType(("cut-through", "store")),
    default="cut-through",
    show_default=True,
    help="Switches pass transfers on as they arrive, or when they are all there.",
)
@click.option(
    "--target",
    type=WordType(MESSAGES),
    help="Whose messages MSCCL XML has. Default: RCCL's on machines of AMD's GPUs, else msccl's.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**62),
    default=0,
    show_default=True,
    help="Draw who goes first among equals. 0: in order.",
)
@click.option(
    "--links",
    "shown",
    type=click.IntRange(0, 100_000),
    default=5,
    show_default=True,
    help="How many of the busiest links to list; those alike count as one.",
)
@json_option
def time(plan: str, as_json: bool, shown: int, **options: Any) -> int:
    """Simulate how long a plan, or a forest alone, takes.

    Plays all messages, signals and thread blocks on the links. No kernel launches, no caches.
    """
    from forestcoll.compile import verdict
    from forestcoll.program.targets import TARGETS
    from forestcoll.solver.alltoall.file import looks_like_one
    from forestcoll.ui.report import simulation
    from forestcoll.ui.view.subject import NO_ORDER
    from forestcoll.verify.simulate import Options

    settings = ("latency", "signal", "block_rate", "reduce_rate", "switching", "seed")
    runtime = TARGETS[options["target"]] if options["target"] else None
    chosen = Options(**{name: options[name] for name in settings}, runtime=runtime)
    if options["pairs"] and not options["topology"]:
        raise click.UsageError("--set is for a --topology")
    topology = load(options["topology"], options["pairs"]) if options["topology"] else None
    rules: tuple[Rule | None, ...] = (options["rule"],) if options["rule"] else DEFAULT_RULES
    sizes = tuple(dict.fromkeys(options["sizes"])) or (DEFAULT_SIZE,)
    text = files.read_text(plan)
    if looks_like_one(text):
        raise UnsupportedError(
            f"{plan}: {NO_ORDER}: 'forestcoll time' takes those ('forestcoll synthesize -c "
            "alltoall' writes them beside the routes)"
        )
    if verdict.is_plan(text):
        played = _plan(text, plan, topology, sizes, rules, chosen)
    else:
        played = _forest(text, plan, topology, sizes, rules, chosen)
    if as_json:
        print_json(simulation.summary(*played))
    else:
        draw(simulation.table(*played, shown))
    return 0


Found = tuple[str, "Figures", "list[Timing]", str]
"""A title, what links allow, the times, and the model in words."""


def _plan(
    text: str,
    source: str,
    topology: Topology | None,
    sizes: tuple[int, ...],
    rules: tuple[Rule | None, ...],
    chosen: Options,
) -> Found:
    from forestcoll import plans
    from forestcoll.study import predict
    from forestcoll.verify import simulate

    program, file = plans.loads(text, source), Path(source)
    beside = predict.forest_beside(file)
    if topology is not None:
        prediction = predict.by_topology(program, topology, beside)
    else:
        with guarded(source, size_of(*([beside] if beside else []))):
            known, why = predict.beside(program, file)
        if known is None:
            raise ForestCollError(why or _no_links(program, source))
        prediction = known
    if prediction.site.note and chosen.latency is None:
        note(prediction.site.note)
    where, links = prediction.site.where, prediction.site.links
    with show_progress(f"simulating {source}"):
        found = [
            timing
            for size in sizes
            for timing in simulate.run_each(
                program, where, size, rules, links=links, options=chosen
            )
        ]
    title = f"{program.collective} on {program.name or source}, {program.n} ranks"
    model = chosen.words([(program.style, program.protocol)], _said(rules), links is not None)
    return title, prediction.figures, found, model


def _said(rules: tuple[Rule | None, ...]) -> list[Rule]:
    """The rules in the order in which the model has them; a link's own is one of them."""
    from forestcoll.verify.simulate import BOTH

    return [rule for rule in (BOTH[::-1] if None in rules else rules) if rule is not None]


def _no_links(program: Program, source: str) -> str:
    kind = "forest" if program.collective.phases else "routes"
    return (
        f"{source}: no {kind} file beside it, so "
        "its links are unknown; give the topology with --topology NAME or FILE"
    )


def forest_beside(program: Program, source: str) -> Forest:
    """The forest file that lies beside a plan, as `synthesize` writes it."""
    from forestcoll.study import predict

    path = predict.forest_beside(Path(source))
    if path is None:
        raise ForestCollError(_no_links(program, source))
    try:
        with guarded(str(path), size_of(path)):
            return predict.forest_of(program, path)
    except PlanError as error:
        raise PlanError(f"{error}; give the topology with --topology NAME or FILE") from None


def _forest(
    text: str,
    source: str,
    topology: Topology | None,
    sizes: tuple[int, ...],
    rules: tuple[Rule | None, ...],
    chosen: Options,
) -> Found:
    from forestcoll.compile.verdict import machine_of
    from forestcoll.schedule import forest_file
    from forestcoll.schedule.forest import check
    from forestcoll.study import predict
    from forestcoll.study.figures import figures_of
    from forestcoll.verify import simulate

    forest = forest_file.loads(text, source)
    check(forest)
    topology = topology or machine_of(forest.graph, forest.name)
    if topology is None and chosen.latency is None:
        note(predict.NO_LATENCIES)
    with show_progress(f"simulating {source}"):
        found = [
            simulate.run_forest(forest, size, topology=topology, rule=rule, options=chosen)
            for size in sizes
            for rule in rules
        ]
    title = f"{forest.collective} on {forest.name}, {forest.n} ranks, the trees alone"
    model = chosen.words((), _said(rules), topology is not None)
    return title, figures_of(forest), found, model
