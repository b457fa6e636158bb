"""`forestcoll time`: how long a plan, or a forest alone, takes on its links."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forestcoll.common.errors import UnsupportedError
from forestcoll.ui.cli import files
from forestcoll.ui.cli.messages import answer, note, show_progress
from forestcoll.ui.cli.options import (
    JSON,
    SIGNAL,
    Machine,
    command,
    machine_option,
    option,
    place,
    sizes_option,
)
from forestcoll.ui.cli.times import predict, rules_of

if TYPE_CHECKING:
    from forestcoll.study.figures import Figures
    from forestcoll.topology import Topology
    from forestcoll.verify.simulate import Options, Rule, Timing

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
    size: tuple[int, ...] = sizes_option("1G"),
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
    as_json: bool = JSON,
) -> int:
    """Simulate how long a plan, or a forest alone, takes.

    Plays all messages, signals and thread blocks on the links. No kernel launches, no caches.
    """
    from forestcoll.compile import verdict
    from forestcoll.program.targets import TARGETS
    from forestcoll.solver.alltoall.file import looks_like_one
    from forestcoll.ui.report import runs
    from forestcoll.ui.view.subject import NO_ORDER
    from forestcoll.verify.simulate import Options

    chosen = Options(
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
    play = _time_plan if verdict.is_plan(text) else _time_forest
    played = play(text, plan, topology, sizes, rules, chosen)
    answer(as_json, runs.simulation(*played, shown))
    return 0


Found = tuple[str, "Figures", "list[Timing]", str]
"""A title, what links allow, the times, and the model in words."""


def _time_plan(
    text: str,
    source: str,
    topology: Topology | None,
    sizes: tuple[int, ...],
    rules: tuple[Rule | None, ...],
    chosen: Options,
) -> Found:
    from forestcoll import plans
    from forestcoll.verify import simulate

    program = plans.loads(text, source)
    prediction = predict(program, source, topology)
    if prediction.site.note and chosen.latency is None:
        note(prediction.site.note)
    where, links = prediction.site.where, prediction.site.links
    with show_progress(f"simulating {source}"):
        timings = [
            timing
            for size in sizes
            for timing in simulate.run_each(
                program, where, size, rules, links=links, options=chosen
            )
        ]
    title = f"{program.collective} on {program.name or source}, {program.n} ranks"
    model = chosen.words([(program.style, program.protocol)], rules_of(rules), links is not None)
    return title, prediction.figures, timings, model


def _time_forest(
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
    from forestcoll.study.figures import figures_of
    from forestcoll.study.predict import NO_LATENCIES
    from forestcoll.verify import simulate

    forest = forest_file.loads(text, source)
    check(forest)
    topology = topology or machine_of(forest.graph, forest.name)
    if topology is None and chosen.latency is None:
        note(NO_LATENCIES)
    with show_progress(f"simulating {source}"):
        timings = [
            simulate.run_forest(forest, size, topology=topology, rule=rule, options=chosen)
            for size in sizes
            for rule in rules
        ]
    title = f"{forest.collective} on {forest.name}, {forest.n} ranks, the trees alone"
    model = chosen.words((), rules_of(rules), topology is not None)
    return title, figures_of(forest), timings, model
