"""The commands `optimum`, `front`, `synthesize`, of one group or several, `layout`, `doctor`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forestcoll.common.errors import OutputError
from forestcoll.compile.formats import FORMATS, formats_of
from forestcoll.compile.request import ROUTES, Request
from forestcoll.ui.cli import files, writing
from forestcoll.ui.cli.messages import answer, complain, draw, note, report, show_progress
from forestcoll.ui.cli.options import (
    ALLTOALL,
    COLLECTIVES,
    FORCE,
    FORCE_FILES,
    HOLDS,
    MACHINE,
    Machine,
    check_files,
    command,
    flag,
    like,
    option,
    output_option,
    place,
    request_options,
    restate,
)

if TYPE_CHECKING:
    from forestcoll.compile.together import GroupsProblem
    from forestcoll.topology import Topology


@command(
    "forestcoll optimum -t dgx-a100 --set boxes=2 -c allgather",
    "forestcoll optimum -t dgx-a100 --set boxes=2 -c allgather --explain",
    "forestcoll optimum -t my-machine.yaml -c broadcast --root box0/gpu3 --json",
    "forestcoll optimum -t dgx-a100 --set boxes=2 -c allgather --ranks 'box*/gpu[0-3]'",
    "forestcoll optimum -t dgx-a100 --set boxes=2 -c allgather --groups 'box0/*;box1/*'",
    "forestcoll optimum -t dgx-a100 --set boxes=128 -c alltoall --without box0/gpu3-fabric*",
    "forestcoll optimum -t mi250 -c alltoallv --matrix bytes.txt -o out/",
    "forestcoll optimum -t dgx-h100 --set boxes=2 -c alltoallv --matrix bytes.txt --explain",
)
def optimum(
    machine: Machine = MACHINE,
    request: Request = request_options("optimum", collective={"kind": (*COLLECTIVES, *ALLTOALL)}),
    matrix: str | None = option(
        "file",
        "alltoallv: the bytes that each rank sends to each rank, a line a rank ('-': stdin).",
    ),
    output: str | None = output_option(
        "FILE|DIR|-",
        "alltoall, alltoallv: write the flows and their proof, for 'forestcoll verify'.",
        None,
    ),
    force: bool = FORCE,
    explain: bool = flag(
        "The links of the bottleneck, cuts within 5 % of it, what more links would give."
    ),
) -> None:
    """The best possible algbw and what limits it, without any tree."""
    if request.is_alltoall:
        from forestcoll.ui.cli.work import alltoall

        alltoall.optimum(machine, request, matrix, output, force, explain)
        return
    topology = machine.load()
    began = time.perf_counter()

    from forestcoll.compile.in_switches import nvls_algbw
    from forestcoll.compile.optimum import optimum_of
    from forestcoll.ui.report import explanation, synthesis

    if request.groups:
        from forestcoll.compile import together

        groups = _groups_of(topology, request)
        with show_progress("optimum"):
            common = together.optimum(groups)
            alone = together.alone(groups, common.algbw)
        took = time.perf_counter() - began
        answer(synthesis.groups_optimum(groups, common, alone, took))
        return
    with show_progress("optimum") as progress:
        asked = request.problem(topology)
        best = optimum_of(asked)
        switched = nvls_algbw(asked) if best.in_switches is not None else None
        why = None
        if explain:
            from forestcoll.study.explain.trees import explain as explain_trees

            why = explain_trees(asked, progress)
    took = time.perf_counter() - began
    result = synthesis.optimum(topology.name, asked, best, took, switched)
    answer(result, explanation=[*explanation.trees(why)] if why else None)


@command(
    "forestcoll front -t mi250",
    "forestcoll front -t dgx-a100 --set boxes=2 -c allreduce --no-plans",
    "forestcoll front -t dgx-a100 --set boxes=64 -c allgather --rates --all",
)
def front(
    machine: Machine = MACHINE,
    request: Request = request_options(
        "front", collective={"default": "allgather", "required": False}
    ),
    plans: bool | None = flag(
        "Also what the plans need of every target. Without either: up to 64 GPUs.",
        "--plans/--no-plans",
        None,
    ),
    rates: bool = flag("Rates only, no trees: quick on large machines."),
    everything: bool = flag("Every point of a long front.", "--all"),
) -> None:
    """What fewer trees cost: algbw, height, thread blocks, from 1 to the optimum.

    A row is a number of trees per root that beats all smaller ones. The least that reach 99 % and
    99.9 % are always among them. `synthesize` takes one by --trees, --min-percent, --max-height or
    --budget.
    """
    topology = machine.load()

    from forestcoll.compile.front import front
    from forestcoll.ui.report import synthesis

    asked = {"forests": not rates, "plans": plans, "everything": everything}
    with show_progress("front") as progress:
        points = front(topology, request, **asked, progress=progress)
    answer(synthesis.pareto_front(points))


@command(
    "forestcoll synthesize -t dgx-a100 --set boxes=2 -c allreduce -o out/",
    "forestcoll synthesize -t H100-topology.xml -c allgather --target mscclpp -o out/",
    "forestcoll synthesize -t mi300x -c allreduce --target rccl --sizes 1K:8G -o plans/",
    "forestcoll synthesize -t dgx-h100 -c broadcast --root box0/gpu3 --format forest -o -",
    "forestcoll synthesize -t torus-3d -c alltoall -o out/",
    "forestcoll synthesize -t dgx-a100 --set boxes=2 -c allreduce \\",
    "    --without box0/gpu3-fabric --min-percent 99 -o out/",
)
def synthesize(
    machine: Machine = MACHINE,
    request: Request = request_options(
        "synthesize", collective={"kind": (*COLLECTIVES, "alltoall")}
    ),
    output: str | None = output_option(
        "DIR|FILE|-", "Where to write; '-' is stdout. Default: nowhere, a report alone.", None
    ),
    force: bool = FORCE_FILES,
) -> None:
    """Compute a schedule; write its forest and its plans."""
    began = time.perf_counter()
    if request.nvls and request.target == "any":  # no other knows switches that copy and add
        request = restate(request, target="mscclpp")
    suffixes: dict[Any, str] = {**FORMATS}
    if request.is_alltoall:
        from forestcoll.solver.alltoall.file import ROUTES_SUFFIX

        suffixes[ROUTES] = ROUTES_SUFFIX
    where = files.destination(output, request.formats or (), request.files, suffixes)
    named = request.target != "any" or request.formats or where.formats != request.files
    plans = tuple(form for form in where.formats if form in HOLDS.values())
    request = restate(request, formats=plans if request.sizes else where.formats)
    job = files.Job(machine, request, where, force, began)
    if request.sizes is not None:
        _make_set(job, *request.sizes)
    elif request.is_alltoall:
        from forestcoll.ui.cli.work import alltoall

        alltoall.synthesize(job, bool(named))
    else:
        check_files(request, "synthesize")
        (_make_groups if request.groups else _make_one)(job)
    if output is None:
        note("nothing is written; --output DIR writes the files")


def _make_one(job: files.Job) -> None:
    """One schedule: its forest and its plans."""
    topology = job.machine.load()
    paths = job.where.paths(f"{topology.name}.{job.request.collective}")
    writing.prepare(paths.values(), job.force)

    from forestcoll.compile.synthesize import synthesize
    from forestcoll.ui.report import synthesis as words

    loaded = job.seconds
    with show_progress() as progress:
        synthesis = synthesize(topology, job.request, progress=progress)
    paths = job.write_texts(synthesis.texts, paths)
    job.tell(words.schedule(synthesis, {"load": loaded, **synthesis.timings}, paths))


def _make_groups(job: files.Job) -> None:
    """A forest and plans for every group, and the file that says what they share."""
    job.need_directory("--groups")
    topology = job.machine.load()

    from forestcoll.compile import together
    from forestcoll.ui.report import synthesis

    loaded, request = job.seconds, job.request
    asked = _groups_of(topology, request)
    with show_progress() as progress:
        groups = together.synthesize(
            asked,
            trees=request.trees,
            instances=request.instances,
            target=request.target,
            formats=request.files,
            progress=progress,
        )
    paths = job.write_folder(groups.texts)
    job.tell(synthesis.schedules(asked, groups, {"load": loaded, **groups.timings}, paths))


def _make_set(job: files.Job, low: int, high: int) -> None:
    """Plans for all sizes, the forests they were made from, and their index."""
    job.need_directory("--sizes")
    if not job.request.formats:
        raise click.UsageError("--sizes make plans; only a forest is asked")
    topology, folder = job.machine.load(), job.where.directory

    from forestcoll.compile import plan_set
    from forestcoll.ui.report import plans as words

    if folder is not None:
        writing.prepare([folder / plan_set.INDEX], job.force)

        def earlier() -> dict[Path, str]:
            """The files of an earlier set, which the new one replaces, with their SHA-256.

            A runtime reads every file where it looks, and the first that is no plan of the set may
            be fatal: OutputError where there is any that is not the earlier set's own.
            """
            folders = [folder / form for form in job.request.files]
            present = sorted(path for f in folders if f.is_dir() for path in f.iterdir())
            writing.check_free(present, job.force)
            index = folder / plan_set.INDEX
            hashes = plan_set.list_files(index) if index.is_file() else {}
            for path in present:
                if path not in hashes:
                    raise OutputError(
                        f"{path}: is no plan of the set in {folder}, and a runtime would read it "
                        "as one: take it away"
                    )
                if writing.digest_of(path) != hashes[path]:
                    raise OutputError(
                        f"{path}: is not the file that the set in {folder} was written with, and a "
                        "runtime would read it: take it away"
                    )
            return hashes

        earlier()  # an error now is better than one after minutes
    loaded = job.seconds
    with show_progress() as progress:
        plans = plan_set.make(topology, job.request, low, high, progress=progress)
    texts = plan_set.files_of(plans)
    job.write_folder(texts, None if folder is None else earlier)
    job.tell(words.plan_set(plans, texts, {"load": loaded, **plans.timings}, folder))


def _groups_of(topology: Topology, request: Request) -> GroupsProblem:
    from forestcoll.compile import together

    stated = {"root": request.root, "relays": request.relays}
    return together.problem(topology, str(request.collective), request.groups, **stated)  # type: ignore[arg-type]


@command("forestcoll doctor", "forestcoll doctor --json")
def doctor() -> int:
    """Check this installation and this machine."""
    from forestcoll.execute import doctor as clinic
    from forestcoll.ui.report.facts import Rows, same

    findings = clinic.examine()
    heads = {"what": None, "state": "", "found": None}
    rows = [[same(key, getattr(f, key), head) for key, head in heads.items()] for f in findings]
    answer(Rows("", rows, right=()))
    missing = [f.what for f in findings if f.state == clinic.MISSING]
    if missing:
        return complain(f"needed and missing: {', '.join(missing)}", 1)
    return 0


# --- a job ----------------------------------------------------------------------------------------


@command(
    "forestcoll layout job.yaml -t mi250 --relays all -o placed/",
    "forestcoll layout job.yaml -t fat-tree --set oversubscription=2 --json",
)
def layout(
    file: str = place("file", "FILE"),
    machine: Machine = MACHINE,
    ranks: Any = like(
        "ranks", "GPUs of the job, ids or globs, in the order that the search is to beat: all."
    ),
    relays: Any = like("relays", "Which GPUs pass data on for groups that they are not in."),
    target: Any = like("target"),
    output: str | None = output_option(
        "DIR", "Where to write the files. Default: nowhere, a report alone.", None
    ),
    force: bool = FORCE_FILES,
) -> None:
    """Place a parallel job: which GPU is which rank.

    FILE (forestcoll.layout/1) has the sizes of the dimensions, the order of Megatron-LM or
    DeviceMesh, and what each dimension sends in a step. Written are plan sets for every group,
    proven together, and files for launchers. Ctrl-C ends the search, or the making of plans, and
    writes what is there.
    """
    from forestcoll.schedule import layout_file
    from forestcoll.schedule.placement_file import INDEX, loads

    began = time.perf_counter()
    topology = machine.load()
    job = layout_file.loads(files.read_text(file), file)

    from forestcoll.study.layout import lay_out
    from forestcoll.study.layout.folder import FILES, files_of, folders_of
    from forestcoll.ui.report import synthesis
    from forestcoll.ui.view import groups

    texts: dict[str, str] = {}
    notes = ["nothing is written; --output DIR writes the files"]
    if output is not None:
        files_before = [p for d in folders_of(job) for p in Path(output, d).rglob("*")]
        own = [*(Path(output, name) for name in FILES), *(p for p in files_before if p.is_file())]
        writing.prepare(own, force)
    with show_progress("layout") as progress:
        done = lay_out(topology, job, ranks, relays, progress)
        if output is not None:
            texts, notes = files_of(done, target, formats_of(None, target), progress)
            texts["layout.svg"] = groups.draw(loads(texts[INDEX], output))
    paths = {Path(output or "", name): text for name, text in texts.items()}
    writing.write_all(paths, force)
    result = synthesis.layout(done, time.perf_counter() - began, notes, list(paths))
    answer(result, draw if output is None else report)
