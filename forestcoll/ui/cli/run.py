"""The commands that time plans: `run` here, `time` and `calendar` simulated, `measure` of pairs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forestcoll.common.errors import ExecutionError, ForestCollError, PlanError, UnsupportedError
from forestcoll.program import REDUCTIONS
from forestcoll.ui.cli import files
from forestcoll.ui.cli.files import Sink
from forestcoll.ui.cli.messages import answer, note, print_json, put, report, show_progress
from forestcoll.ui.cli.options import (
    BYTES,
    FORCE,
    HOLDS,
    JSON,
    SIGNAL,
    Machine,
    command,
    flag,
    machine_option,
    option,
    output_option,
    place,
    seconds_option,
    sizes_option,
)
from forestcoll.ui.cli.process import guard, size_of

if TYPE_CHECKING:
    from forestcoll.execute.cluster.group import Group
    from forestcoll.execute.result import RunResult
    from forestcoll.execute.torch.pairs import Pairs
    from forestcoll.program import Program
    from forestcoll.study.figures import Figures
    from forestcoll.study.predict import Prediction
    from forestcoll.topology import Topology
    from forestcoll.ui.report import runs
    from forestcoll.verify.simulate import Band, Options, Rule, Timing

Engine = Callable[..., "RunResult"]
"""Runs a plan at one size, in bytes; dtype, op, iterations, warmup and check by name."""

DEFAULT_SIZE = 64 << 20
DEFAULT_TIMED = 2**30
MOST_SIZES = 1000
"""Sizes of one run: more of them are a slip of the keyboard."""
MOST_BYTES = 2**34
"""Bytes of a message of `measure`."""
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64")
WIRES = ("float32", "float16", "bfloat16", "fp8")
OPS = REDUCTIONS
LAUNCHES = 1_000_000


@command(
    "forestcoll run out/dgx-a100-2.allreduce.mscclpp.json --size 64M",
    "forestcoll run PLAN -b 8 -e 1G -f 2 --dtype bfloat16 --csv rows.csv",
    "forestcoll run set/ -b 1K -e 1G -f 4 --format mscclpp-json",
    "forestcoll run PLAN --engine gpu -b 1M -e 1G -f 4",
    "torchrun --nproc-per-node 8 --no-python forestcoll run PLAN --engine torch",
    "forestcoll run PLAN --hosts node1,node2",
    "srun --ntasks-per-node 1 forestcoll run PLAN",
)
def run(
    plan: str = place("file", "PLAN|DIR"),
    size: tuple[int, ...] = sizes_option("64M"),
    low: int | None = option("size", "Sizes from this one ...", names="--minbytes -b"),
    high: int | None = option("size", "... to this one ...", names="--maxbytes -e"),
    factor: int | None = option(
        click.IntRange(2), "... times this. Default: 2.", names="--stepfactor -f"
    ),
    step: int | None = option("size", "... or plus this.", names="--stepbytes -i"),
    dtype: str = option(DTYPES, None, "float32", names="--dtype -d"),
    op: str = option(OPS, None, "sum", names="--op -o"),
    iterations: int = option(
        range(1, LAUNCHES + 1), "Timed runs of each row.", 1, names="--iterations --iters -n"
    ),
    warmup: int = option(
        range(LAUNCHES + 1),
        "Runs before them that are not timed.",
        1,
        names="--warmup --warmup-iters -w",
    ),
    check: int = option(
        range(2),
        "1: compare every element of the first and the last run; 0: do not.",
        1,
        names="--check -c",
    ),
    engine: str = option(
        ("cpu", "gpu", "torch"),
        "cpu: all ranks on this machine, or dealt out to the processes that torchrun, mpirun, srun "
        "or --hosts started. gpu: on its GPUs, by CUDA or HIP. torch: this process is one of those "
        "that torchrun started, on any number of machines; over NCCL or RCCL where there are GPUs, "
        "else gloo.",
        "cpu",
    ),
    ranks_as: str = option(
        ("processes", "threads", "auto"),
        "A process for each rank, over shared memory, or threads of one process. auto: processes "
        "for at most 64 ranks.",
        "auto",
    ),
    hosts: str | None = option(
        None,
        "Machines that ssh reaches: a process on each, with its share of the ranks, for --engine "
        "cpu. They find this folder and this command.",
        None,
        "HOST[:PROCESSES],...",
    ),
    wire: str = option(
        ("sockets", "ucx"),
        "What carries data between the processes of --engine cpu. ucx: RDMA, shared memory or TCP, "
        "as UCX finds them; compiled on first use.",
        "sockets",
    ),
    wire_dtype: str | None = option(
        WIRES,
        "The type in which --engine cpu moves the data and adds them up, where it is not --dtype. "
        "fp8: blocks of 32 values of 8 bits with one scale, 33 bytes.",
    ),
    accumulate: str | None = option(
        ("float32",),
        "With --engine cpu a rank adds up in float32 all that comes to it, and rounds once what "
        "leaves it. Default: every addition rounds, as the runtimes do it.",
    ),
    gpus: list[int] | None = option(
        "gpus",
        "GPUs that the ranks are dealt out to; several ranks may share one. Default: the GPU that "
        "a rank's name ends in.",
        None,
        "N,N,...",
    ),
    depth: int | None = option(
        range(1, 4097),
        "Messages that a fifo connection holds. Default: as much as the plan's runtime holds.",
    ),
    timeout: float = seconds_option(
        0.1, 86_400, "Seconds without any progress before the run is given up.", 60.0
    ),
    machine: Machine = machine_option(
        "What the plan is for: adds what its links allow the plan (without its forest file beside "
        "it, the best plan), what it reaches there in simulated time and, but for --engine cpu, "
        "the percentage of that. Default: by the forest file beside the plan, if there is one, "
        "with the catalogue's latencies where the links are its.",
        required=False,
    ),
    forest: str | None = option("file", "The plan's forest: the same by its algbw.", None, "FILE"),
    csv: str | None = option("file", "Write the rows there as well.", None, "FILE"),
    force: bool = flag("Overwrite that file."),
    form: str | None = option(
        click.Choice(sorted(set(HOLDS.values()))),
        "Whose plans of a plan set run. Default: those that its index has first.",
        names="--format",
    ),
    as_json: bool = JSON,
) -> int:
    """Run a plan and check every element, on this machine or on several.

    Every rank has real buffers; the table and its options are those of nccl-tests: -b 8 -e 1G -f 2.
    Of a plan set (the folder that synthesize --sizes wrote) each size runs the plan that serves it.
    """
    options = locals() | {"group": None}  # by name, for what runs at each size
    # At every process, before it waits for others: one that is refused would leave them waiting.
    sizes = _sizes(options)
    rows = None if csv is None else Sink.of(csv, force)
    if engine != "cpu":
        return _run(options, sizes, rows, engine != "torch" or _join(options))
    if hosts:
        from forestcoll.execute.cluster import hosts as machines

        return machines.run(machines.parse(hosts), _without_hosts(sys.argv[1:]))
    from forestcoll.execute.cluster.launchers import find

    place = find()
    if place is None:
        return _run(options, sizes, rows, True)
    from forestcoll.execute.cluster.group import Group

    with Group(place, timeout=timeout, join=timeout, wire=wire) as group:
        wrong = _run(options | {"group": group}, sizes, rows, group.process == 0)
        group.gather(None)  # process 0 may fail to write what it prints
    return wrong


def _without_hosts(words: list[str]) -> list[str]:
    """The command line for each of the hosts."""
    kept, skip = [], False
    for word in words:
        if not skip and not word.startswith("--hosts"):
            kept.append(word)
        skip = not skip and word == "--hosts"
    return kept


def _run(options: dict[str, Any], sizes: list[int], rows: Sink | None, first: bool) -> int:
    """All sizes of the plan or plans; `first`: whether this process speaks for all."""
    plan, op, as_json = (options[name] for name in ("plan", "op", "as_json"))
    with show_progress(f"reading {plan}"):
        jobs = _jobs(Path(plan), sizes, options)
    if options["group"] is not None:
        _agree(options["group"], jobs, options)
    some = jobs[0].program
    if some.style == "onesided" and op != "sum" and some.collective.reduces:
        note(f"MSCCL++'s own executor always sums; --op {op} holds here only")
    try:
        for job in jobs:
            _run_sizes(job, options)
    except (ForestCollError, KeyboardInterrupt):
        if first and not as_json:  # hours of smaller sizes, perhaps
            _print_tables(jobs, options)
        raise
    results = [result for job in jobs for result in job.results]
    wrong = int(any(result.wrong for result in results))
    if not first:  # the first rank speaks for all
        return wrong
    notes = [text for job in jobs for text in job.notes]
    for text in dict.fromkeys(notes + [t for result in results for t in result.notes]):
        note(text)

    from forestcoll.ui.report import facts, runs

    if rows is not None:
        rows.write(runs.csv(results))
    if as_json:
        told = [
            runs.run_facts(j.program, j.results, j.figures, j.band, _rounding(j, options))
            for j in jobs
        ]
        if jobs[0].of_set:
            told = [[facts.Fact("plan", j.plan), *own] for j, own in zip(jobs, told, strict=True)]
        answers = [*map(facts.as_json, told)]
        print_json(answers if jobs[0].of_set else answers[0])
    else:
        _print_tables(jobs, options)
    return wrong


def _rounding(job: _Job, options: dict[str, Any]) -> runs.Rounded | None:
    """How often the plan rounds in this type and what that may cost; None: it is not told."""
    from forestcoll.ui.report import runs
    from forestcoll.verify.dataflow import dataflow
    from forestcoll.verify.rounding import UNITS, error_bound, roundings

    dtype, op, accumulates = (options[name] for name in ("dtype", "op", "accumulate"))
    sums = job.program.collective.reduces and op in ("sum", "avg")
    if not job.results or not sums or dtype not in UNITS:
        return None
    wire = options["wire_dtype"] or dtype
    try:
        steps = roundings(dataflow(job.program))
    except (PlanError, UnsupportedError):  # what is wrong with it, its data have shown
        return None
    bound = error_bound(steps, dtype, wire, accumulates is not None, op == "avg")
    return runs.Rounded(steps, bound, accumulates is not None)


def _agree(group: Group, jobs: list[_Job], options: dict[str, Any]) -> None:
    """ExecutionError, at all, unless all processes run the same plans in the same way."""
    from importlib.metadata import version

    from forestcoll.common.text_file import digest

    plans = [digest(Path(job.plan).read_bytes()) for job in jobs]
    asked = (
        *("dtype", "op", "iterations", "warmup", "check", "depth", "size", "low", "high"),
        *("wire", "wire_dtype", "accumulate"),
    )
    mine = [
        version("forestcoll"),
        plans,
        [list(job.sizes) for job in jobs],
        [str(options[a]) for a in asked],
    ]
    for other in group.gather([group.name, *mine]):
        for what, theirs, ours in zip(
            ("version", "plan", "size", "option"), other[1:], mine, strict=True
        ):
            if theirs != ours:
                raise ExecutionError(
                    f"{other[0]} has another {what} than {group.name}: {theirs} in place of {ours}"
                )


@dataclass
class _Job:
    """A plan, the sizes that it runs, and what came of them so far."""

    plan: str
    program: Program
    prediction: Prediction | None
    sizes: list[int]
    notes: tuple[str, ...] = ()
    of_set: bool = False
    results: list[RunResult] = field(default_factory=list)

    @property
    def figures(self) -> Figures | None:
        """What the links allow, where that is known."""
        return None if self.prediction is None else self.prediction.figures

    @cached_property
    def band(self) -> Band | None:
        """What the plan reaches in simulated time, with the largest size that has run."""
        if self.prediction is None or not self.results:
            return None
        size = max(row.size for result in self.results for row in result.rows)
        try:
            with show_progress(f"simulating {self.plan}"):
                return self.prediction.band(size)
        except ForestCollError as error:
            note(f"no simulated time: {error}")
            return None


def _jobs(plan: Path, sizes: list[int], options: dict[str, Any]) -> list[_Job]:
    """What is to be run: the plan of a file, or those of a set that serve the sizes."""
    from forestcoll import plans

    if not plan.is_dir():
        if options["form"]:
            raise click.UsageError("--format is for a plan set, a folder")
        with guard(str(plan), size_of(plan)):
            program = plans.read_plan(plan)
        return [_Job(str(plan), program, _prediction(program, plan, options), sizes)]
    from forestcoll.compile import plan_set
    from forestcoll.execute.request import element_bytes

    if not (plan / plan_set.INDEX).is_file():
        raise ForestCollError(
            f"{plan}: is not a regular file, and as a directory has no {plan_set.INDEX} of a plan "
            "set; name a plan"
        )
    jobs = []
    chosen = plan_set.choose_plans(plan, sizes, element_bytes(options["dtype"]), options["form"])
    for each in chosen:
        with guard(str(each.file), len(each.text)):
            program = plans.loads(each.text, source=str(each.file))
        prediction = _prediction(program, each.file, options, each.forest)
        jobs.append(_Job(str(each.file), program, prediction, list(each.sizes), each.notes, True))
    return jobs


def _print_tables(jobs: list[_Job], options: dict[str, Any]) -> None:
    """A table for each plan that has run."""
    from forestcoll.common.escape import escape
    from forestcoll.ui.report import runs

    done = [job for job in jobs if job.results]
    names = [f"# {escape(job.plan)}\n" if job.of_set else "" for job in done]
    tables = [
        runs.run_table(j.program, j.results, j.figures, j.band, _rounding(j, options)) for j in done
    ]
    put("\n".join(name + table for name, table in zip(names, tables, strict=True)))


def _run_sizes(job: _Job, options: dict[str, Any]) -> None:
    """A result for each size, added to the job's."""
    from forestcoll.ui.report import words

    # What links of a machine reach is no measure of this processor's memory.
    reachable = None if options["engine"] == "cpu" else job.prediction
    predicted = cache(reachable.microseconds) if reachable else None
    asked = {name: options[name] for name in ("dtype", "op", "iterations", "warmup")}
    with _engine(job.program, options) as engine:
        for size in job.sizes:
            # ranks that torchrun started share a terminal: none of them draws on it
            alone = options["engine"] != "torch" and options["group"] is None
            with show_progress(f"running {words.size(size)}") if alone else nullcontext():
                result = engine(size, check=bool(options["check"]), **asked)
            job.results.append(result.with_predictions(predicted) if predicted else result)


@contextmanager
def _engine(program: Program, options: dict[str, Any]) -> Iterator[Engine]:
    """What runs a plan at one size."""
    depth, timeout = options["depth"], options["timeout"]
    if options["engine"] == "torch":
        yield _torch_engine(program, options["device"])
    elif options["engine"] == "gpu":
        from forestcoll.execute import gpu

        own = {"devices": options["gpus"], "timeout": timeout}
        if depth is not None:
            own["slots"] = depth
        with gpu.Processes() as processes:
            yield partial(gpu.run, program, processes=processes, **own)
    else:
        from forestcoll.execute import cpu

        own = {"ranks_as": options["ranks_as"], "group": options["group"]}
        own |= {"wire": options["wire_dtype"], "accumulate": options["accumulate"]}
        yield partial(cpu.run, program, timeout=timeout, slots=depth, **own)


def _join(options: dict[str, Any]) -> bool:
    """Join the other processes of torchrun; whether this one is the first, who speaks for all."""
    from forestcoll.execute.torch import measure  # which says so where PyTorch is missing

    import torch.distributed as dist  # isort: skip

    options["device"] = measure.join(options["timeout"])
    click.get_current_context().call_on_close(dist.destroy_process_group)
    return bool(dist.get_rank() == 0)


def _torch_engine(program: Program, device: Any) -> Engine:
    """What runs the plan at one size, with the same result at every process."""
    import torch.distributed as dist

    from forestcoll.execute.torch import Plan, measure

    if dist.get_world_size() != program.n:
        raise PlanError(
            f"the plan is for {program.n} ranks, but torchrun started {dist.get_world_size()} "
            f"processes: --nproc-per-node times --nnodes must be {program.n}"
        )
    return partial(measure.measure, Plan(program), device=device)


def _sizes(options: dict[str, Any]) -> list[int]:
    """What `--size`, or `-b`, `-e`, `-f` and `-i`, ask for."""
    low, high = options["low"] or options["high"], options["high"] or options["low"]
    if low is None:
        return list(options["size"]) or [DEFAULT_SIZE]
    if low > high:
        raise click.UsageError(f"-b {low} is more than -e {high}")
    sizes = [low]
    while True:
        step = options["step"]
        size = sizes[-1] + step if step else sizes[-1] * (options["factor"] or 2)
        if size > high:
            return sizes
        sizes.append(size)
        if len(sizes) > MOST_SIZES:
            raise click.UsageError(f"more than {MOST_SIZES} sizes: choose a larger -i")


def _prediction(
    program: Program, plan: Path, options: dict[str, Any], forest: Path | None = None
) -> Prediction | None:
    """By the options, else by the plan's `forest`, else by the file that lies beside it."""
    from forestcoll.study import predict

    machine, text = options["machine"], ""
    prediction: Prediction | None
    try:
        if machine.topology:
            beside = forest or predict.forest_beside(plan)
            prediction = predict.by_topology(program, machine.load(), beside)
        elif options["forest"]:
            prediction = predict.by_forest(program, Path(options["forest"]))
    except ForestCollError as error:
        option = "--topology" if machine.topology else "--forest"
        raise type(error)(f"{option}: {error}") from error
    if not machine.topology and not options["forest"]:
        if forest is not None:
            prediction = predict.by_source(program, forest)
        else:
            prediction, text = predict.beside(program, plan)
    for each in (text, prediction.site.note if prediction else ""):
        if each:
            note(each)
    return prediction


@command(
    "torchrun --nproc-per-node 8 --no-python forestcoll measure -o measured.json",
    "forestcoll topology calibrate dump.xml --measured measured.json -o real.yaml",
)
def measure(
    size: int = option("size", "Bytes of a message.", "64M"),
    repeat: int = option(range(1, 1001), "Timings of each pair; the median counts.", 5, "N"),
    pairs: str = option(("all", "ring"), "All ordered pairs, or of each rank the next one.", "all"),
    timeout: float = seconds_option(
        1, 86_400, "A transfer that takes longer fails.", 300.0, "SECONDS"
    ),
    output: str = output_option(),
    force: bool = FORCE,
) -> None:
    """Bandwidth and latency of each pair of ranks by itself, over torch.distributed.

    Runs in the processes that torchrun starts, on NCCL, RCCL or gloo. The file is for 'forestcoll
    topology calibrate'.
    """
    if size > MOST_BYTES:
        raise click.UsageError(f"--size {size} is not between 1 byte and {MOST_BYTES >> 30} GiB")
    from forestcoll.execute.torch import (
        measure as processes,  # which says so where PyTorch is missing
    )
    from forestcoll.execute.torch.pairs import choose_pairs, measure_pairs

    import torch.distributed as dist  # isort: skip

    speaks = os.environ.get("RANK", "0") == "0"
    sink = Sink.of(output if speaks else None, force)  # before minutes of measuring
    device = processes.join(timeout, "measure")
    click.get_current_context().call_on_close(dist.destroy_process_group)
    first, ranks = dist.get_rank() == 0, dist.get_world_size()
    if ranks < 2:
        raise click.UsageError("one process: a pair takes two (torchrun --nproc-per-node N)")
    progress: Any = show_progress("measuring") if first else nullcontext(lambda stage, share: None)
    with progress as tell:
        try:
            measured = measure_pairs(choose_pairs(ranks, pairs), size, repeat, device, tell)
        except RuntimeError as error:  # PyTorch's own: a process is gone, a transfer timed out
            raise ExecutionError(f"a transfer failed: {str(error).splitlines()[0]}") from error
    if first:
        _tell_pairs(measured, ranks, sink)


def _tell_pairs(result: Pairs, ranks: int, sink: Sink) -> None:
    from statistics import median

    from forestcoll.topology.calibrate import Measured
    from forestcoll.topology.calibrate.measured import dump_measurement
    from forestcoll.ui.report.facts import grid

    measured = Measured("forestcoll measure", ranks, result.rates, result.latencies)
    rows = [
        (name, f"{min(values):.4g}", f"{median(values):.4g}", f"{max(values):.4g}")
        for name, values in (
            ("GB/s", list(result.rates.values())),
            ("us", list(result.latencies.values())),
        )
    ]
    pairs = f"{len(result.rates)} pairs"
    heads = (pairs, "least", "median", "most")
    report(grid(heads, rows), err=sink.path is None)
    sink.write(dump_measurement(measured), lambda: f"{ranks} ranks, {pairs}")


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
    prediction = _predict(program, source, topology)
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
    model = chosen.words([(program.style, program.protocol)], _rules_of(rules), links is not None)
    return title, prediction.figures, timings, model


def _predict(program: Program, source: str, topology: Topology | None) -> Prediction:
    """Of a plan's file, on the topology or by what lies beside it."""
    from forestcoll.study import predict

    beside = predict.forest_beside(Path(source))
    if topology is not None:
        return predict.by_topology(program, topology, beside)
    with guard(source, size_of(*([beside] if beside else []))):
        prediction, why = predict.beside(program, Path(source))
    if prediction is None:
        raise ForestCollError(why or _no_links(program, source))
    return prediction


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
    order: str | None = option(
        "file",
        "In which order a producer finishes its input: lines 'offset bytes', or a JSON list of "
        "such pairs. Tiles of the data go through the plan in this order.",
        None,
        "FILE",
    ),
    tiles: int | None = option(
        range(1, 257), "The same for so many equal tiles from the first byte on.", None, "N"
    ),
    producer: float | None = option(
        click.FloatRange(0, 1e9),
        "Microseconds that the producer takes. Default: as long as the plan.",
        None,
        "US",
    ),
    output: str | None = output_option(
        "FILE|-", "Where the plan with tiles goes, in the format of PLAN.", None
    ),
    force: bool = FORCE,
    as_json: bool = JSON,
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

    topology, sink = machine.load_if_any(), Sink.of(output, force)
    text = files.read_text(plan)
    program = plans.loads(text, plan)
    taken = read_order(files.read_text(order), order) if order else range(tiles or 0)
    site = _predict(program, plan, topology).site
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
    model = simulate.DEFAULTS.words(kinds, _rules_of((rule,)), site.links is not None)
    if output is not None:
        try:
            written = plans.dumps(program, plans.detect(text, plan))
        except PlanError as error:
            raise PlanError(f"{len(taken)} tiles: {error}, or fewer tiles") from error
        sink.write(written, None if as_json else lambda: f"{len(taken)} tiles")
    if output != "-":
        answer(as_json, runs.calendar(title, dates, model, shown, gain))
    return 0


def _rules_of(rules: tuple[Rule | None, ...]) -> list[Rule]:
    """The rules in the order in which the model has them; a link's own is one of them."""
    from forestcoll.verify.simulate import BOTH

    return [rule for rule in (BOTH[::-1] if None in rules else rules) if rule is not None]


def _no_links(program: Program, source: str) -> str:
    kind = "forest" if program.collective.phases else "routes"
    return (
        f"{source}: no {kind} file beside it, so "
        "its links are unknown; give the topology with --topology NAME or FILE"
    )


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
    from forestcoll.study import predict
    from forestcoll.study.figures import figures_of
    from forestcoll.verify import simulate

    forest = forest_file.loads(text, source)
    check(forest)
    topology = topology or machine_of(forest.graph, forest.name)
    if topology is None and chosen.latency is None:
        note(predict.NO_LATENCIES)
    with show_progress(f"simulating {source}"):
        timings = [
            simulate.run_forest(forest, size, topology=topology, rule=rule, options=chosen)
            for size in sizes
            for rule in rules
        ]
    title = f"{forest.collective} on {forest.name}, {forest.n} ranks, the trees alone"
    model = chosen.words((), _rules_of(rules), topology is not None)
    return title, figures_of(forest), timings, model
