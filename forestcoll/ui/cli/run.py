"""The commands that measure: `run` of plans, `measure` of pairs of ranks."""

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
from forestcoll.ui.cli.files import Sink
from forestcoll.ui.cli.messages import note, print_json, put, report, show_progress
from forestcoll.ui.cli.options import (
    FORCE,
    HOLDS,
    JSON,
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
    from forestcoll.ui.report import runs
    from forestcoll.verify.simulate import Band

Engine = Callable[..., "RunResult"]
"""Runs a plan at one size, in bytes; dtype, op, iterations, warmup and check by name."""

DEFAULT_SIZE = 64 << 20
MOST_SIZES = 1000
"""Sizes of one run: more of them are a slip of the keyboard."""
MOST_BYTES = 2**34
"""Bytes of a message of `measure`."""
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64")
WIRES = ("float32", "float16", "bfloat16", "fp8")
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
    op: str = option(
        "operator",
        "Or with --engine cpu LIBRARY.so:SYMBOL, an associative function of the user's: void "
        "op(void *acc, const void *in, size_t n), which makes acc op in of n elements.",
        "sum",
        names="--op -o",
    ),
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
    epilogue: str | None = option(
        None,
        "What --engine cpu does once to each complete sum, in float32, before other ranks get it, "
        "one after the other: scale=NUMBER, avg, cast=TYPE (rounded to float16 or bfloat16), bias, "
        "dropout=SHARE, adam=RATE (the sum is a gradient, the result the new weights).",
        None,
        "STEP,...",
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
    if not job.results or not sums or dtype not in UNITS or options["epilogue"]:
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
        *("wire", "wire_dtype", "accumulate", "epilogue"),
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
        own |= {"epilogue": options["epilogue"]}
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
    from forestcoll.topology.calibrate.calls import dump_measurement
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
