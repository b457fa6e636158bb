"""Which plan of a set serves which size, as its runtime would pick it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forestcoll.common.errors import PlanError, did_you_mean
from forestcoll.compile.plan_set.check import read_index, read_same
from forestcoll.compile.plan_set.index import INDEX, PlanFile, Runtime
from forestcoll.plans import FORMATS


@dataclass(frozen=True, slots=True)
class Chosen:
    """A plan of a set, its text, its forest's file if any, and the bytes that it serves."""

    file: Path
    text: str
    forest: Path | None
    sizes: tuple[int, ...]
    notes: tuple[str, ...]


def choose_plans(
    directory: Path, sizes: Sequence[int], element: int, format: str | None = None
) -> list[Chosen]:
    """The plans that serve `sizes`, of elements of so many bytes, in the order of the sizes.

    `format`: whose plans; None: those that the index has first. Raises PlanError where the folder
    holds no set, or no plan serves a size.
    """
    index = read_index(directory)
    formats = [runtime.format for runtime in index.runtimes]
    if format is not None and format not in formats:
        hint = did_you_mean(format, formats) or f"; it has {' and '.join(formats)}"
        raise PlanError(f"{directory}: the set has no plans for {format}{hint}")
    if not formats:
        raise PlanError(f"{directory / INDEX}: names no plans")
    runtime = index.runtimes[0 if format is None else formats.index(format)]
    chosen: list[Chosen] = []
    for size in sizes:
        plan = _serving(directory, runtime, size)
        notes = _odd_size(runtime, plan, size, element)
        if chosen and chosen[-1].file == directory / plan.file:
            last = chosen[-1]
            both = (*last.sizes, size), (*last.notes, *notes)
            chosen[-1] = Chosen(last.file, last.text, last.forest, *both)
            continue
        text = read_same(directory, plan.file, plan.sha256)
        forest = None if plan.forest is None else directory / plan.forest
        chosen.append(Chosen(directory / plan.file, text, forest, (size,), notes))
    return chosen


def _serving(directory: Path, runtime: Runtime, size: int) -> PlanFile:
    for plan in runtime.plans:
        if plan.min_bytes <= size <= plan.max_bytes:
            return plan
    gaps = [gap for gap in runtime.not_served if gap.max_bytes is None or size <= gap.max_bytes]
    why = next((f": {gap.why}" for gap in gaps if gap.min_bytes <= size), "")
    raise PlanError(f"{directory}: no {runtime.format} plan of the set serves {size} bytes{why}")


def _odd_size(runtime: Runtime, plan: PlanFile, size: int, element: int) -> tuple[str, ...]:
    """A note where the plan runs here, but would not in its runtime."""
    unit = plan.multiple.count * (element if plan.multiple.unit == "elements" else 1)
    if size % unit == 0:
        return ()
    what = FORMATS[runtime.format].odd_size
    return (f"{size} bytes are no multiple of {unit}: the runtime {what}, here they are padded",)
