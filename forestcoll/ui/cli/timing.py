"""The commands of simulated times: `time` of a plan or a forest on its links, and `calendar`, which
bytes of a plan are ready, and which are needed, when.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from forestcoll.common.errors import ForestCollError, PlanError, UnsupportedError
from forestcoll.ui.cli import files
from forestcoll.ui.cli.files import Sink, sink_option
from forestcoll.ui.cli.messages import answer, note, show_progress
from forestcoll.ui.cli.options import (
    BYTES,
    ORDER,
    PRODUCER,
    SIGNAL,
    TILES,
    Machine,
    command,
    each,
    machine_option,
    option,
    place,
)
from forestcoll.ui.cli.process import guard

if TYPE_CHECKING:
    from forestcoll.program import Program
    from forestcoll.study.predict import Prediction
    from forestcoll.topology import Topology
    from forestcoll.verify.simulate import Rule

DEFAULT_TIMED = 2**30


@command(
    "forestcoll time out/dgx-a100-2.allreduce.mscclpp.json -t dgx-a100 --set boxes=2",
    "forestcoll time PLAN --size 1M --size 1G --rule in-order --links 20",
)
def time(
    plan: str = place("file", "PLAN|FOREST"),
    machine: Machine = machine_option(
        "What the plan runs on, with its latencies, over the ways of the forest file beside the "
        "plan where it has these links. Default: the links of that file, with the catalogue's "
        "latencies where they are its, else without any.",
        required=False,
    ),
    size: tuple[int, ...] = each("size", f"{BYTES} Repeatable. Default: 1G."),
    rule: Rule | None = option(
        "rule",
        "How transfers meet on all links: share them evenly, one after the other, or in "
        "proportion to their bytes. Default: each link's own, and then all fair, and all in "
        "order.",
    ),
    latency: float | None = option(float, "Microseconds of every link.", None, "US"),
    signal: float | None = SIGNAL,
    block_rate: float | None = option(
        float, "What a thread block moves. Default: no limit.", None, "GB/s"
    ),
    reduce_rate: float | None = option(float, "What one adds up. Default: no limit.", None, "GB/s"),
    switching: str = option(
        ("cut-through", "store"),
        "Switches pass transfers on as they arrive, or when they are all there.",
        "cut-through",
    ),
    target: str | None = option(
        ("msccl", "rccl"),
        "Whose messages MSCCL XML has. Default: RCCL's on machines of AMD's GPUs, else msccl's.",
    ),
    seed: int = option(range(2**62 + 1), "Draw who goes first among equals. 0: in order.", 0),
    shown: int = option(
        range(100_001),
        "How many of the busiest links to list; those alike count as one.",
        5,
        names="--links",
    ),
) -> int:
    """Simulate how long a plan, or a forest alone, takes.

    Plays all messages, signals and thread blocks on the links. No kernel launches, no caches.
    """
    from forestcoll import plans
    from forestcoll.compile import verdict
    from forestcoll.program.targets import TARGETS
    from forestcoll.schedule import forest_file
    from forestcoll.schedule.forest import check
    from forestcoll.solver.alltoall.file import looks_like_one
    from forestcoll.study.figures import figures_of
    from forestcoll.study.predict import NO_LATENCIES
    from forestcoll.ui.report import runs
    from forestcoll.ui.view.subject import NO_ORDER
    from forestcoll.verify import simulate

    chosen = simulate.Options(
        latency=latency,
        signal=signal,
        block_rate=block_rate,
        reduce_rate=reduce_rate,
        switching=switching,  # type: ignore[arg-type]
        seed=seed,
        runtime=TARGETS[target] if target else None,
    )
    topology = machine.load_if_any()
    rules: tuple[Rule | None, ...] = (rule,) if rule else (None, "fair", "fifo")
    sizes = tuple(dict.fromkeys(size)) or (DEFAULT_TIMED,)
    text = files.read_text(plan)
    if looks_like_one(text):
        raise UnsupportedError(
            f"{plan}: {NO_ORDER}: 'forestcoll time' takes those ('forestcoll synthesize -c "
            "alltoall' writes them beside the routes)"
        )
    if verdict.is_plan(text):
        program = plans.loads(text, plan)
        prediction = predict(program, plan, topology, *sizes)
        site, figures, kinds = (
            prediction.site,
            prediction.figures,
            [(program.style, program.protocol)],
        )
        title = f"{program.collective} on {program.name or plan}, {program.n} ranks"
        unknown, links = site.note, site.links
        played = (
            simulate.run_each(program, site.where, size, rules, links=links, options=chosen)
            for size in sizes
        )
    else:
        forest = forest_file.loads(text, plan)
        check(forest)
        links = topology or verdict.machine_of(forest.graph, forest.name)
        figures, kinds = figures_of(forest), []
        title = f"{forest.collective} on {forest.name}, {forest.n} ranks, the trees alone"
        unknown = NO_LATENCIES if links is None else ""
        run = partial(simulate.run_forest, forest, topology=links, options=chosen)
        played = ([run(size, rule=rule) for rule in rules] for size in sizes)
    if unknown and latency is None:
        note(unknown)
    with show_progress(f"simulating {plan}"):
        timings = [timing for each in played for timing in each]
    model = chosen.words(kinds, rules_of(rules), links is not None)
    answer(runs.simulation(title, figures, timings, model, shown))
    return 0


@command(
    "forestcoll calendar out/mi250-1.allreduce.mscclpp.json -t mi250 --size 64M",
    "forestcoll calendar PLAN --size 1M --rule fair --json > calendar.json",
    "forestcoll calendar PLAN --tiles 16 --rows 0",
    "forestcoll calendar PLAN --order tiles.txt --producer 900 -o ordered.json",
)
def calendar(
    plan: str = place("file", "PLAN"),
    machine: Machine = machine_option(
        "What the plan runs on, as for 'forestcoll time'.", edits=True, required=False
    ),
    size: int = option("size", BYTES, "1G"),
    rule: Rule | None = option(
        "rule", "How transfers meet on all links. Default: each link's own.", None
    ),
    shown: int = option(
        range(100_001), "How many rows of each buffer to list.", 4, "N", names="--rows"
    ),
    order: str | None = ORDER,
    tiles: int | None = TILES,
    producer: float | None = PRODUCER,
    sink: Sink = sink_option(
        "FILE|-", "Where the plan with tiles goes, in the format of PLAN.", None
    ),
) -> int:
    """List which bytes of a plan are ready when, and which are needed when, by rank.

    An output's bytes are ready when the rank has them for good, an input's are needed when somebody
    reads them first. From the simulation of 'forestcoll time'; --json has all rows.
    """
    from forestcoll import plans
    from forestcoll.program.tiles import read_order
    from forestcoll.program.tiles import tiles as tile
    from forestcoll.ui.report import runs
    from forestcoll.verify import simulate, verify

    topology, output = machine.load_if_any(), sink.prepare().output
    text = files.read_text(plan)
    program = plans.loads(text, plan)
    taken = read_order(files.read_text(order), order) if order else range(tiles or 0)
    site = predict(program, plan, topology, size).site
    if site.note:
        note(site.note)
    with show_progress(f"simulating {plan}"):
        gain = None
        if taken:
            gain = simulate.overlap(
                program, site.where, size, taken, producer=producer, rule=rule, links=site.links
            )
            program = tile(program, taken)
            verify(program)
        dates = simulate.calendar(program, site.where, size, rule=rule, links=site.links)
    title = f"{program.collective} on {program.name or plan}, {program.n} ranks"
    kinds = [(program.style, program.protocol)]
    model = simulate.DEFAULTS.words(kinds, rules_of((rule,)), site.links is not None)
    if output is not None:
        try:
            written = plans.dumps(program, plans.detect(text, plan))
        except PlanError as error:
            raise PlanError(f"{len(taken)} tiles: {error}, or fewer tiles") from error
        sink.write(written, lambda: f"{len(taken)} tiles")
    if output != "-":
        answer(runs.calendar(title, dates, model, shown, gain))
    return 0


def predict(program: Program, source: str, topology: Topology | None, *sizes: int) -> Prediction:
    """Of a plan's file, on the topology or by what lies beside it; a note on what it serves not."""
    from forestcoll.compile.plan_set.contest import largest_call
    from forestcoll.study import predict as predictions

    low, high = program.min_bytes, largest_call(program)
    for size in sizes:
        if not low <= size <= high:
            note(f"the plan serves {low} to {high} bytes: no runtime takes it for {size}")

    beside = predictions.forest_beside(Path(source))
    if topology is not None:
        return predictions.by_topology(program, topology, beside)
    with guard(source, beside):
        prediction, why = predictions.beside(program, Path(source))
    if prediction is None:
        kind = "forest" if program.collective.phases else "routes"
        raise ForestCollError(
            why
            or f"{source}: no {kind} file beside it, so "
            "its links are unknown; give the topology with --topology NAME or FILE"
        )
    return prediction


def rules_of(rules: tuple[Rule | None, ...]) -> list[Rule]:
    """The rules in the order in which the model has them; a link's own is one of them."""
    from forestcoll.verify.simulate import BOTH

    return [rule for rule in (BOTH[::-1] if None in rules else rules) if rule is not None]
