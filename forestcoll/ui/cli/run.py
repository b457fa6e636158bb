"""The command `run`: a plan on this machine, as nccl-tests would show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forestcoll.common.errors import ForestCollError
from forestcoll.ui.cli import writing
from forestcoll.ui.cli.completion import FileType, TopologyType, WordType
from forestcoll.ui.cli.guard import guarded, size_of
from forestcoll.ui.cli.hints import examples
from forestcoll.ui.cli.messages import note, print_json, put, show_progress
from forestcoll.ui.cli.options import (
    DTYPES,
    HOLDS,
    OPS,
    json_option,
    load,
    set_option,
    sizes_option,
)
from forestcoll.ui.cli.value_types import FiniteRange, GpusType, SizeType

if TYPE_CHECKING:
    from forestcoll.execute.result import RunResult
    from forestcoll.program import Program
    from forestcoll.study.figures import Figures
    from forestcoll.study.predict import Prediction
    from forestcoll.verify.simulate import Band

Engine = Callable[..., "RunResult"]
"""Runs a plan at one size, in bytes; dtype, op, iterations, warmup and check by name."""

DEFAULT_SIZE = 64 << 20
MOST_SIZES = 1000
"""Sizes of one run: more of them are a slip of the keyboard."""


@click.command(
    epilog=examples(
        "forestcoll run out/dgx-a100-2.allreduce.mscclpp.json --size 64M",
        "forestcoll run PLAN -b 8 -e 1G -f 2 --dtype bfloat16 --csv rows.csv",
        "forestcoll run set/ -b 1K -e 1G -f 4 --format mscclpp-json",
        "forestcoll run PLAN --engine gpu -b 1M -e 1G -f 4",
        "torchrun --nproc-per-node 8 --no-python forestcoll run PLAN --engine torch",
    )
)
@click.argument("plan", type=FileType(), metavar="PLAN|DIR")
@sizes_option("64M")
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
    help="What the plan is for: adds what its links allow the plan (without its forest file beside "
    "it, the best plan), what it reaches there in simulated time and, but for --engine cpu, the "
    "percentage of that. Default: by the forest file beside the plan, if there is one, with the "
    "catalogue's latencies where the links are its.",
)
@set_option
@click.option(
    "--forest", type=FileType(), metavar="FILE", help="The plan's forest: the same by its algbw."
)
@click.option("--csv", type=FileType(), metavar="FILE", help="Write the rows there as well.")
@click.option("--force", is_flag=True, help="Overwrite that file.")
@click.option(
    "--format",
    type=click.Choice(sorted(set(HOLDS.values()))),
    help="Whose plans of a plan set run. Default: those that its index has first.",
)
@json_option
def run(plan: str, as_json: bool, csv: str | None, force: bool, **options: Any) -> int:
    """Run a plan on this machine and check every element.

    Every rank has real buffers; the table and its options are those of nccl-tests: -b 8 -e 1G -f 2.
    Of a plan set (the folder that synthesize --sizes wrote) each size runs the plan that serves it.
    """
    sizes = _sizes(options)
    _check_options(options)
    if csv is not None:
        writing.prepare([Path(csv)], force)
    first = True
    if options["engine"] == "torch":
        from forestcoll.ui.cli import torch_engine

        first = torch_engine.join(options)

    with show_progress(f"reading {plan}"):
        jobs = _jobs(Path(plan), sizes, options)
    some = jobs[0].program
    if some.style == "onesided" and options["op"] != "sum" and some.collective.reduces:
        note(f"MSCCL++'s own executor always sums; --op {options['op']} holds here only")
    try:
        for job in jobs:
            _measure(job, options)
    except (ForestCollError, KeyboardInterrupt):
        if first and not as_json:  # hours of smaller sizes, perhaps
            _print_tables(jobs)
        raise
    results = [result for job in jobs for result in job.results]
    wrong = any(result.wrong for result in results)
    if not first:  # the first rank speaks for all
        return int(wrong)
    notes = [text for job in jobs for text in job.notes]
    for text in dict.fromkeys(notes + [t for result in results for t in result.notes]):
        note(text)

    from forestcoll.ui.report import nccl_tests

    if csv is not None:
        writing.write_all({Path(csv): nccl_tests.csv(results)}, force)
    if as_json:
        found = [nccl_tests.summary(j.program, j.results, j.figures, j.band) for j in jobs]
        of_set = [{"plan": job.plan, **each} for job, each in zip(jobs, found, strict=True)]
        print_json(of_set if jobs[0].of_set else found[0])
    else:
        _print_tables(jobs)
    return int(wrong)


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


def _check_options(options: dict[str, Any]) -> None:
    if options["topology"] and options["forest"]:
        raise click.UsageError("--topology and --forest both say what to expect: give one")
    if options["pairs"] and not options["topology"]:
        raise click.UsageError("--set is for a --topology")
    if options["gpus"] and options["engine"] != "gpu":
        raise click.UsageError("--gpus is for --engine gpu")


def _jobs(plan: Path, sizes: list[int], options: dict[str, Any]) -> list[_Job]:
    """What is to be run: the plan of a file, or those of a set that serve the sizes."""
    from forestcoll import plans

    if not plan.is_dir():
        if options["format"]:
            raise click.UsageError("--format is for a plan set, a folder")
        with guarded(str(plan), size_of(plan)):
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
    chosen = plan_set.choose_plans(plan, sizes, element_bytes(options["dtype"]), options["format"])
    for each in chosen:
        with guarded(str(each.file), len(each.text)):
            program = plans.loads(each.text, source=str(each.file))
        found = _prediction(program, each.file, options, each.forest)
        jobs.append(_Job(str(each.file), program, found, list(each.sizes), each.notes, True))
    return jobs


def _print_tables(jobs: list[_Job]) -> None:
    """A table for each plan that has run."""
    from forestcoll.common.escape import escape
    from forestcoll.ui.report import nccl_tests

    done = [job for job in jobs if job.results]
    names = [f"# {escape(job.plan)}\n" if job.of_set else "" for job in done]
    tables = [nccl_tests.table(j.program, j.results, j.figures, j.band) for j in done]
    put("\n".join(name + table for name, table in zip(names, tables, strict=True)))


def _measure(job: _Job, options: dict[str, Any]) -> None:
    """A result for each size, added to the job's."""
    from forestcoll.ui.report import words

    # What links of a machine reach is no measure of this processor's memory.
    reachable = None if options["engine"] == "cpu" else job.prediction
    predicted = cache(reachable.microseconds) if reachable else None
    engines = {"cpu": _cpu_engine, "gpu": _gpu_engine, "torch": _torch_engine}
    with engines[options["engine"]](job.program, options) as engine:
        for size in job.sizes:
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
            job.results.append(result.predicted(predicted) if predicted else result)


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
    from forestcoll.ui.cli import torch_engine

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


def _prediction(
    program: Program, plan: Path, options: dict[str, Any], forest: Path | None = None
) -> Prediction | None:
    """By the options, else by the plan's `forest`, else by the file that lies beside it."""
    found, text = _predict(program, plan, options, forest)
    for each in (text, found.site.note if found else ""):
        if each:
            note(each)
    return found


def _predict(
    program: Program, plan: Path, options: dict[str, Any], forest: Path | None
) -> tuple[Prediction | None, str]:
    from forestcoll.study import predict

    try:
        if options["topology"]:
            topology = load(options["topology"], options["pairs"])
            forest = forest or predict.forest_beside(plan)
            return predict.by_topology(program, topology, forest), ""
        if options["forest"]:
            return predict.by_forest(program, Path(options["forest"])), ""
    except ForestCollError as error:
        option = "--topology" if options["topology"] else "--forest"
        raise type(error)(f"{option}: {error}") from error
    if forest is not None:
        return predict.by_source(program, forest), ""
    return predict.beside(program, plan)
