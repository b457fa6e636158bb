"""The commands that hold plans against others: `advise`, `compare`, `degrade` and `lab`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forestcoll.common.errors import OutputError, PlanError, UnsupportedError
from forestcoll.compile.formats import FORMATS, formats_of
from forestcoll.ui.cli import files, writing
from forestcoll.ui.cli.messages import (
    answer,
    as_json,
    draw,
    note,
    print_json,
    put,
    quiet,
    report,
    say,
    show_progress,
)
from forestcoll.ui.cli.options import (
    ALLTOALL,
    COLLECTIVES,
    EDITED_MACHINE,
    MACHINE,
    SIGNAL,
    Machine,
    command,
    each,
    flag,
    like,
    load,
    machine_option,
    option,
    request_options,
)
from forestcoll.ui.cli.process import guard
from forestcoll.ui.cli.types import FiniteRange

if TYPE_CHECKING:
    from forestcoll.compile.formats import Format
    from forestcoll.compile.request import Request
    from forestcoll.program import Program
    from forestcoll.program.targets import PlanFormat, TargetName
    from forestcoll.schedule.forest import Forest
    from forestcoll.solver.alltoall.demand import Matrix
    from forestcoll.solver.alltoall.routes import Routes
    from forestcoll.study.comparison.outcome import Comparison
    from forestcoll.study.degrade import losses
    from forestcoll.topology import Topology
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
KINDS = ("link", "adapter", "gpu", "switch", "plane")
MEASURED = ("ring", "rings", "tree", "double-tree", "direct", "two-level", "gloo")
"""What `lab` measures beside a plan."""


def _names(against: tuple[str, ...]) -> tuple[str, ...] | None:
    """The baselines that `--against` asks for; None: all."""
    if "none" not in against:
        return against or None
    if len(against) > 1:
        raise click.UsageError("--against none goes alone")
    return ()


def _picture(name: str | None, force: bool, wrong: type[Exception]) -> Path | None:
    """The file of `--plot`, free to be written; `wrong`: the error for a name that is no plot's."""
    if name is None:
        return None
    path = Path(name)
    if path.suffix.lower() not in PLOTS:
        raise wrong(f"--plot '{name}': name a file that ends in {' or '.join(PLOTS)}")
    writing.prepare([path], force)
    return path


@command(
    "forestcoll advise dgx-h100 --set boxes=4",
    "forestcoll advise nccl-topo.xml --set boxes=4 -c allgather",
    "forestcoll advise mi250 --without box0/gpu0-box0/gpu4",
    "forestcoll advise dgx-h100 --set boxes=4 --measured all_reduce_perf.log",
)
def advise(
    machine: Machine = EDITED_MACHINE,
    collective: str = like(
        "collective",
        "What is done.",
        kind=COLLECTIVES,
        default="allreduce",
        required=False,
    ),
    measured: str | None = option(
        "file",
        "What nccl-tests, the inspector or the example profiler timed there: says which sizes are "
        "below what the links allow.",
    ),
) -> None:
    """Whether plans are worth it on a machine, and how to get them there.

    What no schedule exceeds and what limits it; what rings and trees as NCCL and RCCL build them
    reach, by the links; by how much plans are faster for small, medium and large calls, simulated
    as `compare` does; the same with the worst adapter, cable and GPU out; and each way to have it,
    with the next command.
    """
    text = None if measured is None else files.read_text(measured)
    topology = machine.load()

    from forestcoll.study import advice
    from forestcoll.topology.calibrate import calls
    from forestcoll.ui.report import comparison

    timed = None if text is None else calls.read(text, measured or "")
    with show_progress("making plans") as progress:
        result = advice.advise(topology, collective, progress)
    if timed is not None:
        result = advice.hold(result, timed, measured or "")
    answer(comparison.advice(result, machine.words))


@command(
    "forestcoll compare -t dgx-a100 --set boxes=2 -c allgather --sizes 1M:1G",
    "forestcoll compare -t mi250 -c allreduce --with mine.xml --plot compare.svg",
    "forestcoll compare -t dgx-a100 --set boxes=2 --without box0/gpu3-fabric",
    "forestcoll compare -t dgx-a100 --set boxes=2 -c alltoall",
)
def compare(
    machine: Machine = machine_option("The machine.", edits=True),
    collective: str = like(
        "collective",
        "What is done.",
        kind=(*COLLECTIVES, "alltoall"),
        default="allreduce",
        required=False,
    ),
    root: str | None = like("root", "For broadcast and reduce. Default: rank 0."),
    sizes: str = option(
        None,
        "Sizes in bytes, by factors of 4; or a list: 64K,1M,1G.",
        "1K:4G",
        "LOW:HIGH[:FACTOR]",
    ),
    against: tuple[str, ...] = each(
        (*BASELINES, *EXCHANGES, "none"), "Baselines that take part (repeatable). Default: all."
    ),
    files: tuple[str, ...] = each(
        "file",
        "A plan of either format, or a forest, of anybody's. Repeatable.",
        "FILE",
        "--with",
    ),
    other: str | None = option(
        "topology",
        "The machine as it is now: the plan for --topology runs on it beside a new one.",
        names="--on",
    ),
    rule: tuple[str, ...] = each("rule", "Of links. Default: fair, and in order."),
    signal: float | None = SIGNAL,
    quick: bool = flag(
        "No plan of a baseline where its links alone make it slower than another: the most that "
        "they allow stands, marked <."
    ),
    plot: str | None = option(None, "A plot as well: FILE.svg or FILE.png.", None, "FILE"),
    dark: bool = flag("The plot for dark pages."),
    as_csv: bool = flag("The cells as CSV.", "--csv"),
    force: bool = flag("Overwrite the file of --plot."),
) -> int:
    """Compare our plans with rings, trees and other ways, by size.

    All are simulated on the same links. --without and --scale break the machine: new plans for it
    are compared with what the plan for the sound one does there.
    """
    names = _names(against)
    picture = _picture(plot, force, UnsupportedError)
    sound = machine.load_whole()
    worn = load(other, {}) if other else None
    if machine.without or machine.scale:
        worn = machine.change(sound)

    from forestcoll.study.comparison import play

    told = _Answer(as_csv, (*BASELINES, *(Path(file).name for file in files)))
    try:
        with show_progress("making plans") as progress:
            compared = play.compare(
                sound,
                collective,
                sizes=sizes,
                root=root,
                against=names,
                files=files,
                broken=worn,
                rules=rule or play.DEFAULT_RULES,  # type: ignore[arg-type]
                signal=signal,
                quick=quick,
                progress=progress,
                seen=lambda comparison: told.take(comparison, progress),
            )
            told.take(compared, progress)
    finally:  # what is known of a comparison that is cut off is not lost
        told.tell()
    if picture is not None:
        from forestcoll.ui.report.figures import save

        plotted = save(compared.plot(dark=dark), picture.suffix[1:].lower())
        writing.write_all({picture: plotted}, force)
    return 0


class _Answer:
    """What is known of a comparison: rows as they come, and tables or a document in the end."""

    def __init__(self, as_csv: bool, names: Sequence[str]) -> None:
        self.as_csv, self.names = as_csv, names
        self.found: Comparison | None = None
        self.seen: set[tuple[str, int]] = set()

    def take(self, outcome: Comparison, progress: StageProgress) -> None:
        """Keep it, and show what is new."""
        from forestcoll.ui.report import comparison

        self.found = outcome
        if as_json() or self.as_csv or quiet():
            return
        first = not self.seen
        new = comparison.rows(outcome, self.seen, self.names)
        if new.rows:
            with progress.hide():
                if first:
                    draw(comparison.heading(outcome))
                    say("")
                draw(new)
                sys.stdout.flush()

    def tell(self) -> None:
        """The tables, or the document; nothing where nothing is known."""
        from forestcoll.ui.report import comparison, facts

        outcome = self.found
        if outcome is None:
            return
        if as_json():
            result = [comparison.heading(outcome), *comparison.body(outcome)]
            print_json(facts.as_json(result))
        elif self.as_csv:
            put(outcome.to_csv())
        else:
            if not self.seen:
                draw(comparison.heading(outcome))
            say("")
            draw(comparison.body(outcome))
        if outcome.partial and (as_json() or self.as_csv):
            note("partial: what was not played yet is missing")


@command(
    "forestcoll degrade -t dgx-a100 --set boxes=16 -c allgather",
    "forestcoll degrade -t fabric.yaml -c allreduce --with out/fabric.allreduce.forest.json",
    "forestcoll degrade -t dgx-a100 --set boxes=2 -c allgather --plot losses.svg",
    "forestcoll degrade -t dgx-a100 --set boxes=2 -c allreduce --bundle plans/ --kinds adapter",
)
def degrade(
    machine: Machine = MACHINE,
    request: Request = request_options("degrade"),
    kinds: tuple[str, ...] = each(
        KINDS,
        "What may fail (repeatable): one cable of a link, a network adapter, a GPU, a switch, a "
        "plane of the fabric. Default: each of them.",
    ),
    in_use: str | None = option(
        "file",
        "Forest file of the plan in use. Default: the one that synthesize makes.",
        None,
        "FOREST",
        names="--with",
    ),
    worst: int = option(
        range(1, 100_001),
        "How many failures are shown, the largest losses first.",
        10,
        "N",
    ),
    plot: str | None = option("file", "The worst ones as a plot.", None, "FILE.svg|png"),
    resume: str | None = option(
        "file",
        "Keeps what is solved, class by class: a run that was cut off goes on where it was.",
    ),
    bundle: str | None = option(
        "file",
        "Also make the forest and plans for every failure, in a folder each. A run that was cut "
        "off goes on where it was.",
        None,
        "DIR",
    ),
    target: TargetName = like("target", "Of the bundle.", ways=None),
    formats: tuple[Format, ...] = each(
        tuple(FORMATS),
        "What the bundle holds (repeatable). Default: the forest and every plan of the target.",
        None,
        "--format",
    ),
    dask: str | None = option(
        None,
        "Who makes the bundle: a Dask scheduler (tcp://host:8786), workers on this machine, or "
        "this process alone. Default: local where Dask is installed (extra 'dask').",
        None,
        "ADDRESS|local|none",
    ),
    force: bool = flag("Overwrite the plot."),
) -> None:
    """What every single failure costs, with the plan in use and with a new one.

    One cable, network adapter, GPU or switch at a time. The plan in use keeps its trees: it slows
    down with a link that has cables left, and stops where a link is gone. The new plan is the
    optimum of what is left. Failures that a symmetry of the fabric maps onto each other are solved
    once.
    """
    picture = _picture(plot, force, click.UsageError)

    from forestcoll.compile.problem import parse_collective
    from forestcoll.schedule import certificate, forest_file
    from forestcoll.study.degrade import losses
    from forestcoll.ui.report import degrade as words
    from forestcoll.ui.report.facts import Fact, line

    topology = machine.load()
    asked = losses.Workload(
        topology,
        parse_collective(request.collective or ""),
        None if request.root is None else str(request.root),
        None if request.ranks is None else tuple(request.ranks),
        request.relays,
    )
    with show_progress("failures") as progress:
        forest = None
        if in_use is not None:
            text = files.read_text(in_use)
            with guard(in_use, len(text)):
                forest = forest_file.loads(text, in_use)
                certificate.check(forest)
        solved = None if resume is None else losses.Journal(Path(resume), asked)
        lost = losses.report_losses(asked, kinds or KINDS, forest, progress, solved)  # type: ignore[arg-type]
        whole, shown = losses.play_whole(lost), losses.play_worst(lost, worst, progress)
    if picture is not None:
        writing.write_all({picture: words.plot(lost, worst, picture.suffix[1:].lower())}, force)
    index = None if bundle is None else _bundle(lost, Path(bundle), formats, target, dask)
    answer([*words.losses(lost, shown, whole), [Fact("bundle", index)] if index else []])
    if picture is not None:
        report([line("written", str(picture))])
    if index is not None:
        report(words.bundle(index, Path(str(bundle))))


def _bundle(
    losses_report: losses.Report,
    folder: Path,
    formats: tuple[Format, ...],
    target: TargetName,
    dask: str | None,
) -> dict[str, object]:
    """Make what is missing of the bundle; its index."""
    from forestcoll.study.degrade import bundle, dask_cluster

    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder}: is not a directory")
    wanted = tuple(dict.fromkeys(formats)) or formats_of(None, target)
    request = bundle.Request(losses_report.workload, wanted, target)
    failures = [loss.failure for loss in losses_report.losses]
    if dask is None:
        dask = "local" if dask_cluster.is_installed() and len(failures) > 1 else "none"
        if dask == "none" and len(failures) > 1:
            note("one failure after the other: with the extra 'dask' every core makes some")
    spread = (
        None
        if dask == "none"
        else partial(dask_cluster.spread, address=None if dask == "local" else dask)
    )
    for failure in failures:  # what a run that was killed has begun there
        writing.prepare([folder / bundle.folder_of(failure) / bundle.NOTE], force=True)
    with show_progress("bundle") as progress:
        return bundle.make_bundle(
            request,
            failures,
            folder,
            lambda texts: writing.write_all(texts, force=False),
            spread,
            lambda done, of: progress(f"failure {done} of {of}", done / of),
        )


@command(
    "sudo forestcoll lab -t dgx-a100 --set boxes=2",
    "sudo forestcoll lab -t rail --set boxes=4 --against ring --against rings",
    "sudo forestcoll lab -t mi250 --plan out/mi250-1.allreduce.msccl.xml --seconds 5",
    "sudo forestcoll lab -t dgx-a100 --set boxes=2 -c alltoall --without box0/gpu0-fabric",
    "sudo forestcoll lab -t dgx-a100 --set boxes=2 -c alltoallv --matrix bytes.txt",
    "sudo forestcoll lab -t multi-plane-clos --set planes=2 --set gpus=1 --routes a.forest.json",
)
def lab(
    machine: Machine = machine_option("The fabric to build.", edits=True),
    collective: str | None = like(
        "collective",
        "What to synthesize a plan for where none is given. Default: allreduce.",
        kind=("allreduce", *ALLTOALL),
        required=False,
    ),
    matrix: str | None = option(
        "file",
        "alltoallv: the bytes that each rank sends to each rank, a line a rank; all are scaled.",
    ),
    plan: str | None = option(
        "file",
        "Plan of either format, for all GPUs of the topology; its forest file (or routes file) "
        "beside it tells the paths. Default: one is synthesized.",
    ),
    against: tuple[str, ...] = each(
        (*MEASURED, "none"),
        "What to measure as well (repeatable): ring and rings for allreduce, allgather and "
        "reduce-scatter, tree and double-tree for allreduce, direct and two-level for alltoall, "
        "gloo for allreduce and alltoall. Default: all that serve.",
    ),
    rate: float | None = option(
        FiniteRange(1, 1_000_000),
        "Mbit/s that all GPUs together can take in: all links are scaled to that. "
        "Default: 60 a processor, up to 240 where the slowest link needs it.",
        None,
        "MBIT",
    ),
    seconds: float = option(
        FiniteRange(0.1, 3600), "Every schedule gets the data that should take it so long.", 20.0
    ),
    size: int | None = option("size", "Or: every schedule gets these bytes."),
    iterations: int = option(range(1, 1001), "Best of so many runs.", 1, names="--iterations -n"),
    routes: str | None = option(
        "file",
        "Instead of a plan: what 'forestcoll routes' makes of this file, by segment routing in the "
        "kernel, beside six draws of ECMP; then with a link cut and its paths replaced.",
    ),
    engine: str = option(
        ("cpu", "torch"),
        "What runs plans, rings and trees. cpu: every transfer by itself, as the plan says. torch: "
        "in rounds, over gloo; alltoallv is always run so.",
        "cpu",
    ),
) -> int:
    """Measure a plan on a scaled copy of a fabric, beside rings, trees, direct sending and gloo.

    A network namespace for each GPU and switch, links shaped to the topology's bandwidths, a
    process for each rank. Needs root, Linux and (but for --routes) PyTorch. Leaves nothing behind,
    however it ends.
    """
    if routes is not None:
        return _lab_routes(routes, machine, rate or 0.0, seconds)
    names = _names(against)
    text = None if matrix is None else files.read_text(matrix)
    topology = machine.load()

    from forestcoll import plans
    from forestcoll.compile.alltoall_plans import routes_beside
    from forestcoll.execute.lab import lacking
    from forestcoll.graph.capacity_graph import CapacityGraph

    if reason := lacking():
        raise UnsupportedError(reason)
    if importlib.util.find_spec("torch") is None:
        import forestcoll.execute.torch  # noqa: F401 (which says so; else only the ranks import it)
    from forestcoll.execute.lab.measurement import Wishes, compare, make_plan
    from forestcoll.schedule import forest_file
    from forestcoll.solver.alltoall import demand
    from forestcoll.study.predict import forest_beside
    from forestcoll.ui.cli.work.alltoall import check_matrix
    from forestcoll.ui.report import runs

    graph = CapacityGraph.from_topology(topology)
    program = None
    if plan:
        with guard(plan):
            program = plans.read_plan(Path(plan))
    kind = collective or (program.collective.value if program is not None else "allreduce")
    if text is not None and kind == "alltoall" and collective is None:
        kind = "alltoallv"
    check_matrix(kind, text)
    if program is not None and program.collective.value != kind.removesuffix("v"):
        raise click.UsageError(f"the plan is for {program.collective}, not for -c {kind}")
    made_from: Forest | Routes | None = None
    with show_progress("building the fabric") as progress:
        how = rate or 0.0, seconds, size, iterations, engine
        wishes = Wishes(*how, lambda name, done: progress(f"measuring {name}", done))
        blocks: Matrix | None = None
        if text is not None:
            blocks = demand.check_matrix(demand.parse(text, "--matrix"), len(graph.ranks))
        if plan is not None:
            beside = forest_beside(Path(plan))
            if kind in ALLTOALL:
                made_from = routes_beside(Path(plan))
            elif beside is not None:
                made_from = forest_file.load(beside)
        elif kind in ALLTOALL:
            program, made_from = make_plan(topology, ragged=blocks is not None)
        else:
            program, made_from = plan_for_lab(topology)
        assert program is not None
        measured = compare(
            graph,
            program,
            made_from,
            name=topology.name,
            against=names,
            wishes=wishes,
            matrix=blocks,
        )
    answer(runs.measurement_parts(measured))
    return 1 if any(row.wrong for row in measured.rows) else 0


def _lab_routes(file: str, machine: Machine, rate: float, seconds: float) -> int:
    """Flows on pinned paths, and hashed ones."""
    from forestcoll.execute.lab import lacking, pinned
    from forestcoll.study.routes import pin
    from forestcoll.ui.report import runs

    sent, whole, left = files.read_sent(file, machine)
    routes = pin(sent, whole, left, "flows", 1)
    if reason := lacking():
        raise UnsupportedError(reason)
    spreading = routes.loads.spreading
    with show_progress("building the fabric") as progress:
        report = pinned.measure(
            spreading.fabric, routes.edges, spreading.total, rate, seconds, progress
        )
    answer(runs.flow_parts(report, f"{sent.what} on {left.name}"))
    return 0


def plan_for_lab(topology: Topology) -> tuple[Program, Forest]:
    """An allreduce plan for all GPUs, and its forest: of MSCCL where MSCCL++ bars the machine.

    The engines read either format. Raises PlanError where neither serves.
    """
    from forestcoll.compile.synthesize import synthesize

    form: PlanFormat = "mscclpp-json"
    try:
        synthesis = synthesize(topology, "allreduce", target="mscclpp", formats=(form,))
    except PlanError as error:
        note(f"{error}; a plan for msccl is measured")
        form = "msccl-xml"
        synthesis = synthesize(topology, "allreduce", target="msccl", formats=(form,))
    for text in synthesis.notes:
        note(text)
    return synthesis.programs[form], synthesis.forest
