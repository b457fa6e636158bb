"""The command `run`: a plan on this machine, as nccl-tests would show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forestcoll.cli import writing
from forestcoll.cli.completion import FileType, TopologyType, WordType
from forestcoll.cli.guard import guarded, size_of
from forestcoll.cli.hints import examples
from forestcoll.cli.numbers import FiniteRange
from forestcoll.cli.options import DTYPES, OPS, GpusType, SizeType, json_option, load, set_option
from forestcoll.cli.talk import note, print_json, put, show_progress
from forestcoll.errors import ForestCollError

if TYPE_CHECKING:
    from forestcoll.execute.result import RunResult
    from forestcoll.predict import Prediction
    from forestcoll.program import Program

Engine = Callable[..., "RunResult"]
"""Runs a plan at one size, in bytes; dtype, op, iterations, warmup and check by name."""

DEFAULT_SIZE = 64 << 20
MOST_SIZES = 1000
"""Sizes of one run: more of them are a slip of the keyboard."""


@click.command(
    epilog=examples(
        "forestcoll run out/dgx-a100-2.allreduce.mscclpp.json --size 64M",
        "forestcoll run PLAN -b 8 -e 1G -f 2 --dtype bfloat16 --csv rows.csv",
        "forestcoll run PLAN --engine gpu -b 1M -e 1G -f 4",
        "torchrun --nproc-per-node 8 --no-python forestcoll run PLAN --engine torch",
    )
)
@click.argument("plan", type=FileType(), metavar="PLAN")
@click.option(
    "--size",
    "sizes",
    type=SizeType(),
    multiple=True,
    help="Bytes as nccl-tests counts them: K, M, G are powers of 1024. Repeatable. Default: 64M.",
)
@click.option("--minbytes", "-b", "low", type=SizeType(), help="Sizes from this one ...")
@click.option("--maxbytes", "-e", "high", type=SizeType(), help="... to this one ...")
@click.option(
    "--stepfactor", "-f", "factor", type=click.IntRange(2), help="... times this. Default: 2."
)
@click.option("--stepbytes", "-i", "step", type=SizeType(), help="... or plus this.")
@click.option("--dtype", "-d", type=WordType(DTYPES), default="float32", show_default=True)
@click.option("--op", "-o", type=WordType(OPS), default="sum", show_default=True)
@click.option(
    "--iterations",
    "--iters",
    "-n",
    type=click.IntRange(1, 1_000_000),
    default=1,
    show_default=True,
    help="Timed runs of each row.",
)
@click.option(
    "--warmup",
    "--warmup-iters",
    "-w",
    type=click.IntRange(0, 1_000_000),
    default=1,
    show_default=True,
    help="Runs before them that are not timed.",
)
@click.option(
    "--check",
    "-c",
    type=click.IntRange(0, 1),
    default=1,
    show_default=True,
    help="1: compare every element of the first and the last run; 0: do not.",
)
@click.option(
    "--engine",
    type=WordType(("cpu", "gpu", "torch")),
    default="cpu",
    show_default=True,
    help="cpu: all ranks on this machine. gpu: on its GPUs, by CUDA or HIP. torch: this process is "
    "one of those that torchrun started, on any number of machines; over NCCL or RCCL where there "
    "are GPUs, else gloo.",
)
@click.option(
    "--ranks-as",
    type=WordType(("processes", "threads", "auto")),
    default="auto",
    show_default=True,
    help="A process for each rank, over shared memory, or threads of one process. auto: processes "
    "for at most 64 ranks.",
)
@click.option(
    "--gpus",
    type=GpusType(),
    metavar="N,N,...",
    help="GPUs that the ranks are dealt out to; several ranks may share one. Default: the GPU that "
    "a rank's name ends in.",
)
@click.option(
    "--depth",
    type=click.IntRange(1, 4096),
    help="Messages that a fifo connection holds. Default: as much as the plan's runtime holds.",
)
@click.option(
    "--timeout",
    type=FiniteRange(0.1, 86400),
    default=60.0,
    show_default=True,
    help="Seconds without any progress before the run is given up.",
)
@click.option(
    "--topology",
    "-t",
    type=TopologyType(),
    help="What the plan is for: adds its best algbw and, but for --engine cpu, the percentage of "
    "it that is reached. Default: by the forest file beside the plan, if there is one.",
)
@set_option
@click.option(
    "--forest", type=FileType(), metavar="FILE", help="The plan's forest: the same by its algbw."
)
@click.option("--csv", type=FileType(), metavar="FILE", help="Write the rows there as well.")
@click.option("--force", is_flag=True, help="Overwrite that file.")
@json_option
def run(plan: str, as_json: bool, csv: str | None, force: bool, **options: Any) -> int:
    """Run a plan on this machine and check every element.

    Every rank has real buffers; the table and its options are those of nccl-tests: -b 8 -e 1G -f 2.
    """
    sizes = _sizes(options)
    if options["topology"] and options["forest"]:
        raise click.UsageError("--topology and --forest both say what to expect: give one")
    if options["pairs"] and not options["topology"]:
        raise click.UsageError("--set is for a --topology")
    if options["gpus"] and options["engine"] != "gpu":
        raise click.UsageError("--gpus is for --engine gpu")
    if csv is not None:
        writing.prepare([Path(csv)], force)
    first = True
    if options["engine"] == "torch":
        from forestcoll.cli import torch_engine

        first = torch_engine.join(options)

    from forestcoll import plans
    from forestcoll.report import nccl_tests, words

    with show_progress(f"reading {plan}"):
        with guarded(plan, size_of(plan)):
            program = plans.read_plan(Path(plan))
        prediction = _prediction(program, Path(plan), options)
    if program.style == "onesided" and options["op"] != "sum" and program.collective.reduces:
        note(f"MSCCL++'s own executor always sums; --op {options['op']} holds here only")
    source = f"{words.exact(prediction.algbw)} GB/s, {prediction.source}" if prediction else ""
    results: list[RunResult] = []
    try:
        _measure(program, sizes, prediction, options, results)
    except (ForestCollError, KeyboardInterrupt):
        if results and first and not as_json:  # hours of smaller sizes, perhaps
            put(nccl_tests.table(program, results, source))
        raise
    if not first:  # the first rank speaks for all
        return 1 if any(result.wrong for result in results) else 0
    for text in dict.fromkeys(t for result in results for t in result.notes):
        note(text)
    if csv is not None:
        writing.write_all({Path(csv): nccl_tests.csv(results)}, force)
    if as_json:
        print_json(nccl_tests.summary(program, results, source))
    else:
        put(nccl_tests.table(program, results, source))
    return 1 if any(result.wrong for result in results) else 0


def _measure(
    program: Program,
    sizes: list[int],
    prediction: Prediction | None,
    options: dict[str, Any],
    results: list[RunResult],
) -> None:
    """A result for each size, added to `results`."""
    from forestcoll.report import words

    # What links of a machine reach is no measure of this processor's memory.
    reachable = None if options["engine"] == "cpu" else prediction
    engines = {"cpu": _cpu_engine, "gpu": _gpu_engine, "torch": _torch_engine}
    with engines[options["engine"]](program, options) as engine:
        for size in sizes:
            # ranks that torchrun started share a terminal: none of them draws on it
            alone = options["engine"] != "torch"
            with show_progress(f"running {words.size(size)}") if alone else nullcontext():
                result = engine(
                    size,
                    dtype=options["dtype"],
                    op=options["op"],
                    iterations=options["iterations"],
                    warmup=options["warmup"],
                    check=bool(options["check"]),
                )
            results.append(result.predicted(reachable.microseconds) if reachable else result)


@contextmanager
def _cpu_engine(program: Program, options: dict[str, Any]) -> Iterator[Engine]:
    from forestcoll.execute import cpu

    own = {"slots": options["depth"], "ranks_as": options["ranks_as"]}
    yield partial(cpu.run, program, timeout=options["timeout"], **own)


@contextmanager
def _gpu_engine(program: Program, options: dict[str, Any]) -> Iterator[Engine]:
    from forestcoll.execute import gpu

    own = {"devices": options["gpus"], "timeout": options["timeout"]}
    if options["depth"] is not None:
        own["slots"] = options["depth"]
    with gpu.Processes() as processes:
        yield partial(gpu.run, program, processes=processes, **own)


@contextmanager
def _torch_engine(program: Program, options: dict[str, Any]) -> Iterator[Engine]:
    from forestcoll.cli import torch_engine

    yield torch_engine.engine(program, options)


def _sizes(options: dict[str, Any]) -> list[int]:
    """What `--size`, or `-b`, `-e`, `-f` and `-i`, ask for."""
    low, high, factor, step = (options[name] for name in ("low", "high", "factor", "step"))
    given = list(options["sizes"])
    if low is None and high is None:
        if factor or step:
            raise click.UsageError("-f and -i say how to go from -b to -e: give those too")
        return given or [DEFAULT_SIZE]
    if given:
        raise click.UsageError("--size and -b or -e both say which sizes: give one")
    if factor and step:
        raise click.UsageError("-f and -i both say how to go on: give one")
    low, high = low or high, high or low
    if low > high:
        raise click.UsageError(f"-b {low} is more than -e {high}")
    found = []
    for size in _steps(low, high, factor, step):
        found.append(size)
        if len(found) > MOST_SIZES:
            raise click.UsageError(f"more than {MOST_SIZES} sizes: choose a larger -i")
    return found


def _steps(low: int, high: int, factor: int | None, step: int | None) -> Iterator[int]:
    size = low
    while size <= high:
        yield size
        size = size + step if step else size * (factor or 2)


def _prediction(program: Program, plan: Path, options: dict[str, Any]) -> Prediction | None:
    from forestcoll import predict

    try:
        if options["topology"]:
            return predict.by_topology(program, load(options["topology"], options["pairs"]))
        if options["forest"]:
            return predict.by_forest(program, Path(options["forest"]))
    except ForestCollError as error:
        option = "--topology" if options["topology"] else "--forest"
        raise type(error)(f"{option}: {error}") from error
    found, text = predict.beside(program, plan)
    if text:
        note(text)
    return found
