"""What `forestcoll run` does: plans at every size, on this machine or on several."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from forestcoll import plans
from forestcoll.common.errors import ExecutionError, ForestCollError, PlanError, UnsupportedError
from forestcoll.common.escape import escape
from forestcoll.common.text_file import digest
from forestcoll.execute.cluster.group import Group
from forestcoll.execute.result import RunResult
from forestcoll.program import Program
from forestcoll.study import predict
from forestcoll.ui.cli.files import Sink
from forestcoll.ui.cli.messages import as_json, note, print_json, put, show_progress
from forestcoll.ui.cli.options import refuse
from forestcoll.ui.cli.process import guard
from forestcoll.ui.report import facts, runs, words
from forestcoll.verify.dataflow import dataflow
from forestcoll.verify.rounding import UNITS, error_bound, roundings
from forestcoll.verify.simulate import Band

Engine = Callable[..., RunResult]
"""Runs a plan at one size, in bytes; dtype, op, iterations, warmup and check by name."""

Options = dict[str, Any]
"""Of the command, by their names."""

DEFAULT_SIZE = 64 << 20
MOST_SIZES = 1000
"""Sizes of one run: more of them are a slip of the keyboard."""


def run(options: Options) -> int:
    """The exit code; `options` by name, for what runs at each size."""
    options["group"] = None
    # At every process, before it waits for others: one that is refused would leave them waiting.
    options["sizes"] = _sizes(options)
    engine, csv = options["engine"], options["csv"]
    options["csv"] = csv and Sink(csv, options["force"]).prepare()
    if engine != "cpu":
        return _run(options, engine != "torch" or _join(options))
    if options["hosts"]:
        from forestcoll.execute.cluster import hosts

        line, skip = [], False  # the command line for each of them
        for word in sys.argv[1:]:
            if not skip and not word.startswith("--hosts"):
                line.append(word)
            skip = not skip and word == "--hosts"
        return hosts.run(hosts.parse(options["hosts"]), line)
    from forestcoll.execute.cluster.launchers import find

    place, timeout = find(), options["timeout"]
    if place is None:
        return _run(options, True)
    with Group(place, timeout=timeout, join=timeout, wire=options["wire"]) as group:
        wrong = _run(options | {"group": group}, group.process == 0)
        group.gather(None)  # process 0 may fail to write what it prints
    return wrong


def _run(options: Options, first: bool) -> int:
    """All sizes of the plan or plans; `first`: whether this process speaks for all."""
    if not first:
        click.get_current_context().meta["forestcoll.quiet"] = True
    plan, op = options["plan"], options["op"]
    with show_progress(f"reading {plan}"):
        jobs = _jobs(Path(plan), options)
    if options["group"] is not None:
        _agree(options["group"], jobs, options)
    some = jobs[0].program
    given = {name: options[name] for name in ("op", "accumulate", "depth")}
    refuse(given | {"collective": some.collective, "style": some.style}, "run", {})
    if some.style == "onesided" and op != "sum" and some.collective.reduces:
        note(f"MSCCL++'s own executor always sums; --op {op} holds here only")
    try:
        for job in jobs:
            _run_sizes(job, options)
    except (ForestCollError, KeyboardInterrupt):
        if first and not as_json():  # hours of smaller sizes, perhaps
            _print_tables(jobs, options)
        raise
    results = [result for job in jobs for result in job.results]
    wrong = int(any(result.wrong for result in results))
    if not first:  # the first rank speaks for all
        return wrong
    notes = [text for job in jobs for text in job.notes]
    for text in dict.fromkeys(notes + [t for result in results for t in result.notes]):
        note(text)
    if options["csv"]:
        options["csv"].write(runs.csv(results))
    if not as_json():
        _print_tables(jobs, options)
        return wrong
    answers = [facts.as_json(runs.run_facts(*job.parts(options))) for job in jobs]
    if jobs[0].of_set:
        print_json([{"plan": j.plan, **told} for j, told in zip(jobs, answers, strict=True)])
    else:
        print_json(answers[0])
    return wrong


def _agree(group: Group, jobs: list[_Job], options: Options) -> None:
    """ExecutionError, at all, unless all processes run the same plans in the same way."""
    asked = (
        *("dtype", "op", "iterations", "warmup", "check", "depth"),
        *("wire", "wire_dtype", "accumulate", "epilogue"),
    )
    mine = {
        "version": version("forestcoll"),
        "plan": " ".join(digest(Path(job.plan).read_bytes()) for job in jobs),
        "size": " ".join(str(size) for job in jobs for size in job.sizes),
        **{f"--{name.replace('_', '-')}": str(options[name]) for name in asked},
    }
    for name, theirs in group.gather([group.name, mine]):
        for what, ours in mine.items():
            if theirs[what] != ours:
                raise ExecutionError(
                    f"{name} has another {what} than {group.name}: {theirs[what]} in place of "
                    f"{ours}"
                )


@dataclass
class _Job:
    """A plan, the sizes that it runs, and what came of them so far."""

    plan: str
    program: Program
    prediction: predict.Prediction | None
    sizes: list[int]
    notes: tuple[str, ...] = ()
    of_set: bool = False
    results: list[RunResult] = field(default_factory=list)

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

    def parts(self, options: Options) -> tuple[Any, ...]:
        """What a report is made of: with what the links allow, where that is known."""
        figures = self.prediction and self.prediction.figures
        return self.program, self.results, figures, self.band, self.rounding(options)

    def rounding(self, options: Options) -> runs.Rounded | None:
        """How often the plan rounds in this type and what that may cost; None: not told."""
        dtype, op, accumulates = (options[name] for name in ("dtype", "op", "accumulate"))
        sums = self.program.collective.reduces and op in ("sum", "avg")
        if not self.results or not sums or dtype not in UNITS or options["epilogue"]:
            return None
        wire = options["wire_dtype"] or dtype
        try:
            steps = roundings(dataflow(self.program))
        except (PlanError, UnsupportedError):  # what is wrong with it, its data have shown
            return None
        bound = error_bound(steps, dtype, wire, accumulates is not None, op == "avg")
        return runs.Rounded(steps, bound, None if dtype == "float64" else accumulates is not None)


def _jobs(plan: Path, options: Options) -> list[_Job]:
    """What is to be run: the plan of a file, or those of a set that serve the sizes."""
    sizes = options["sizes"]
    if not plan.is_dir():
        if options["form"]:
            raise click.UsageError("--format is for a plan set, a folder")
        with guard(plan):
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
        with guard(each.file, len(each.text)):
            program = plans.loads(each.text, source=str(each.file))
        prediction = _prediction(program, each.file, options, each.forest)
        jobs.append(_Job(str(each.file), program, prediction, list(each.sizes), each.notes, True))
    return jobs


def _print_tables(jobs: list[_Job], options: Options) -> None:
    """A table for each plan that has run."""
    tables = []
    for job in jobs:
        if job.results:
            name = f"# {escape(job.plan)}\n" if job.of_set else ""
            tables.append(name + runs.run_table(*job.parts(options)))
    put("\n".join(tables))


def _run_sizes(job: _Job, options: Options) -> None:
    """A result for each size, added to the job's."""
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
def _engine(program: Program, options: Options) -> Iterator[Engine]:
    """What runs a plan at one size."""
    depth, timeout = options["depth"], options["timeout"]
    if options["engine"] == "torch":
        import torch.distributed as dist

        from forestcoll.execute.torch import Plan, measure

        if dist.get_world_size() != program.n:
            raise PlanError(
                f"the plan is for {program.n} ranks, but torchrun started {dist.get_world_size()} "
                f"processes: --nproc-per-node times --nnodes must be {program.n}"
            )
        yield partial(measure.measure, Plan(program), device=options["device"])
    elif options["engine"] == "gpu":
        from forestcoll.execute import gpu

        own = {} if depth is None else {"slots": depth}
        with gpu.Processes() as processes:
            own |= {"processes": processes, "devices": options["gpus"], "timeout": timeout}
            yield partial(gpu.run, program, **own)
    else:
        from forestcoll.execute import cpu

        own = {name: options[name] for name in ("ranks_as", "group", "accumulate", "epilogue")}
        own |= {"wire": options["wire_dtype"], "timeout": timeout, "slots": depth}
        yield partial(cpu.run, program, **own)


def _join(options: Options) -> bool:
    """Join the other processes of torchrun; whether this one is the first, who speaks for all."""
    from forestcoll.execute.torch import measure  # which says so where PyTorch is missing

    import torch.distributed as dist  # isort: skip

    options["device"] = measure.join(options["timeout"])
    click.get_current_context().call_on_close(dist.destroy_process_group)
    return bool(dist.get_rank() == 0)


def _sizes(options: Options) -> list[int]:
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
    program: Program, plan: Path, options: Options, forest: Path | None = None
) -> predict.Prediction | None:
    """By the options, else by the plan's `forest`, else by the file that lies beside it."""
    machine, text = options["machine"], ""
    prediction: predict.Prediction | None
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
