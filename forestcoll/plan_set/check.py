"""A plan set proven right: every file, and that the runtime finds the one that is meant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath

from forestcoll import pipeline, plans, verdict
from forestcoll.errors import ForestCollError, PlanError
from forestcoll.input_limits import PLAN_BYTES
from forestcoll.lint import Told, lint
from forestcoll.lower import usage
from forestcoll.plan_set.index import (
    FOREST_SUFFIX,
    FORESTS,
    INDEX,
    SUFFIX,
    Index,
    PlanFile,
    Runtime,
    digest,
    loads,
    multiple_of,
    place_of,
)
from forestcoll.program import Collective, Program


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was proven of a set: one line a fact, and the figures for machines."""

    lines: list[str]
    figures: dict[str, object]


def check(directory: Path) -> Verdict:
    """What is proven of the set in `directory`.

    Every forest and plan that the index names is there as it says, right, and within its runtime's
    rules; the ranges of a runtime follow each other without gap or overlap from the index's
    smallest size to where it says that the runtime ends; and no other file lies where the runtime
    looks. Raises PlanError or ForestError, with the file.
    """
    index = loads(_text(directory / INDEX), str(directory / INDEX))
    collective = pipeline.parse_collective(index.collective)
    lines = [f"{collective} on {index.topology}, {index.ranks} ranks: plans for each size"]
    for forest in index.forests:
        text = _same(directory, forest.file, forest.sha256)
        figures = verdict.verify_text(text, str(directory / forest.file)).figures
        for what, said in (("algbw", forest.algbw), ("height", forest.height)):
            if str(figures[what]) != str(said):
                raise PlanError(
                    f"{directory / forest.file}: its {what} is {figures[what]}; {INDEX} says {said}"
                )
    known = {forest.file for forest in index.forests}
    for runtime in index.runtimes:
        for plan in runtime.plans:
            _inside(directory, plan.file)
        _check_ranges(directory, index, runtime)
        _check_alone(directory, runtime)
        for plan in runtime.plans:
            if plan.forest not in known:
                raise PlanError(f"{directory / INDEX}: {plan.file}: no forest {plan.forest}")
            _check_plan(directory, index, collective, runtime, plan)
        last = runtime.plans[-1].max_bytes
        lines.append(
            f"{runtime.format}: {len(runtime.plans)} plans, each right and within the rules of "
            f"{runtime.target}; {index.min_bytes} to {last} bytes without gap or overlap"
        )
        lines += [f"  {text}" for text in _served(runtime)]
    figures = {
        "collective": index.collective,
        "ranks": index.ranks,
        "forests": len(index.forests),
        "runtimes": {
            r.format: [[p.min_bytes, p.max_bytes, p.file] for p in r.plans] for r in index.runtimes
        },
    }
    return Verdict(lines, figures)


def files_named(index: Path) -> dict[Path, str]:
    """The forests and plans of an index, where a set has them, with their SHA-256.

    What it names elsewhere is no file of a set. Raises PlanError where the file is no index.
    """
    known = loads(_text(index), str(index))
    listed = [(FORESTS, forest.file, forest.sha256) for forest in known.forests]
    listed += [(r.format, plan.file, plan.sha256) for r in known.runtimes for plan in r.plans]
    return {
        index.parent / file: sha256
        for folder, file, sha256 in listed
        if PurePosixPath(file).parts == (folder, PurePosixPath(file).name) and _ends_well(file)
    }


def _ends_well(file: str) -> bool:
    return file.endswith((FOREST_SUFFIX, *SUFFIX.values()))


def _check_ranges(directory: Path, index: Index, runtime: Runtime) -> None:
    """As the runtime picks plans: files by name, the first whose range holds the size."""
    where = f"{directory / INDEX}: {runtime.format}"
    if not runtime.plans:
        raise PlanError(f"{where}: has no plan")
    for plan in runtime.plans:
        if plan.min_bytes > plan.max_bytes:
            raise PlanError(f"{where}: {plan.file} serves {plan.min_bytes} to {plan.max_bytes}")
    if [p.file for p in runtime.plans] != sorted(p.file for p in runtime.plans):
        raise PlanError(f"{where}: the files' names are not in the order of their sizes")
    if runtime.plans[0].min_bytes != index.min_bytes:
        raise PlanError(
            f"{where}: begins at {runtime.plans[0].min_bytes} bytes, the set at {index.min_bytes}"
        )
    for before, after in pairwise(runtime.plans):
        if after.min_bytes <= before.max_bytes:
            raise PlanError(
                f"{where}: {before.file} and {after.file} both serve {after.min_bytes} bytes"
            )
        if after.min_bytes > before.max_bytes + 1:
            raise PlanError(
                f"{where}: nothing serves {before.max_bytes + 1} to {after.min_bytes - 1} bytes, "
                f"between {before.file} and {after.file}"
            )
    end = runtime.plans[-1].max_bytes
    gaps = [(g.min_bytes, g.max_bytes) for g in runtime.not_served]
    if end > index.max_bytes or (end < index.max_bytes and (end + 1, index.max_bytes) not in gaps):
        raise PlanError(
            f"{where}: ends at {end} bytes, the set at {index.max_bytes}, and not_served does not "
            "say so"
        )


def _check_alone(directory: Path, runtime: Runtime) -> None:
    """Only plans lie where the runtime looks: it parses every file there."""
    folder = directory / runtime.directory
    named = {(directory / plan.file).name for plan in runtime.plans}
    try:
        found = sorted(path.name for path in folder.iterdir())
    except ValueError:  # a null character, half of a surrogate pair
        raise PlanError(f"{folder}: cannot be the name of a directory") from None
    except OSError as error:
        raise PlanError(f"{folder}: {error.strerror or error}") from None
    for name in found:
        if name not in named:
            raise PlanError(
                f"{folder / name}: is not in {INDEX}; the runtime would read every file of this "
                "directory: take it away"
            )


def _check_plan(
    directory: Path, index: Index, collective: Collective, runtime: Runtime, plan: PlanFile
) -> None:
    source = str(directory / plan.file)
    if Path(plan.file).parent.as_posix() != runtime.directory:
        raise PlanError(f"{source}: does not lie in {runtime.directory}")
    text = _same(directory, plan.file, plan.sha256)
    program = plans.loads(text, source=source, format=runtime.format)
    for what, said, found in _claims(index, collective, runtime, plan, program, text):
        if said != found:
            raise PlanError(f"{source}: {what} is {found}; {INDEX} says {said}")
    told = Told(collective=collective)
    report = lint(text, source, runtime.target, told=told, sms=index.sms)
    if not report.ok:
        raise PlanError(f"{source}: {report.findings[0]}")


def _claims(
    index: Index,
    collective: Collective,
    runtime: Runtime,
    plan: PlanFile,
    program: Program,
    text: str,
) -> Iterator[tuple[str, object, object]]:
    """(what, what the index says, what the plan says)."""
    first = program.ranks[0]
    used = usage(program)
    in_place, out_of_place = place_of(runtime.format, text, program.in_place, program.out_of_place)
    yield "the collective", collective, program.collective
    yield "the number of ranks", index.ranks, program.n
    yield "the protocol", plan.protocol, program.protocol
    yield "the smallest size", plan.min_bytes, program.min_bytes
    yield "the largest size", plan.max_bytes, program.max_bytes
    chunks = max(first.input_chunks, first.output_chunks)
    yield "the multiple", plan.multiple, multiple_of(runtime.format, chunks)
    yield "the number of thread blocks", plan.thread_blocks, used.thread_blocks
    yield "whether it serves in place", runtime.in_place, in_place
    yield "whether it serves out of place", runtime.out_of_place, out_of_place


def _served(runtime: Runtime) -> Iterator[str]:
    for plan in runtime.plans:
        yield (
            f"{plan.min_bytes} to {plan.max_bytes} bytes, "
            f"{plan.multiple.sizes.words()}: {plan.protocol}, {Path(plan.file).name}"
        )


def _same(directory: Path, file: str, sha256: str) -> str:
    """The text of a file of the set, once it is the one that the index means."""
    path = directory / _inside(directory, file)
    text = _text(path)
    if digest(text) != sha256:
        raise PlanError(f"{path}: is not the file that {INDEX} was written for (SHA-256 differs)")
    return text


def _inside(directory: Path, file: str) -> str:
    """The file's name, once it is known to lie below the directory."""
    if Path(file).is_absolute() or ".." in Path(file).parts:
        raise PlanError(f"{directory / INDEX}: {file}: must lie in the set's directory")
    return file


def _text(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            data = stream.read(PLAN_BYTES + 1)
    except ValueError:  # a null character, half of a surrogate pair
        raise PlanError(f"{path}: cannot be the name of a file") from None
    except OSError as error:
        raise PlanError(f"{path}: {error.strerror or error}") from None
    if len(data) > PLAN_BYTES:
        raise PlanError(f"{path}: more than {PLAN_BYTES >> 20} MiB {PLAN_BYTES.note}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ForestCollError(f"{path}: not text (byte {error.start} is not UTF-8)") from None
