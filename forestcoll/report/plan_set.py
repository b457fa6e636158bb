"""A plan set as a table for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from forestcoll.alltoall.routes import Routes
from forestcoll.lower import usage
from forestcoll.report import table as tables
from forestcoll.report import words
from forestcoll.sizes import Sizes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forestcoll.compile.plan_set import Entry, PlanSet


def _heads(made: PlanSet) -> tuple[str, ...]:
    shape = ("height", "trees") if made.collective.phases else ("hops", "units")
    sizes = ("blocks", "instances", "float32, multiple of")
    return ("plans", "from", "to", "protocol", *shape, "algbw", *sizes)


def table(
    made: PlanSet, files: Iterable[str], timings: Mapping[str, float], directory: Path
) -> RenderableType:
    """A line a plan; what no plan serves; what was written."""
    from rich.console import Group

    rows = []
    for plans in made.plans:
        for entry in plans.entries:
            rows.append([plans.format, *_row(entry)])
    facts = [
        ("plan set", f"{made.collective} on {made.name}, {_span(made.low, made.high)}"),
        ("bound", words.plain_bound(made.plain_bound, made.bound)),
    ]
    after = [
        ("not served", f"{plans.format}: {_span(gap.low, gap.high)}: {gap.why}")
        for plans in made.plans
        for gap in plans.unserved
    ]
    after += [("note", note) for note in made.notes]
    after.append(("time", words.seconds(sum(timings.values()))))
    after.append(("written", f"{words.plural(len(list(files)), 'file')} in {directory}"))
    return Group(
        tables.facts(facts), "", tables.columns(_heads(made), rows, (1, 2, 4, 5, 6, 7, 8)), "",
        tables.facts(after),
    )  # fmt: skip


def summary(
    made: PlanSet, files: Mapping[str, str], timings: Mapping[str, float], directory: Path
) -> dict[str, object]:
    """The index, the notes and the files, for machines."""
    import json

    return {
        "index": json.loads(files["index.json"]),
        "bound": str(made.bound),
        "plain_bound": str(made.plain_bound),
        "notes": list(made.notes),
        "seconds": dict(timings),
        "files": [str(directory / file) for file in files],
    }


def _row(entry: Entry) -> list[str]:
    source = entry.candidate.made_from
    used = usage(entry.program)
    if isinstance(source, Routes):
        shape = source.hops, source.units, source.algbw
    else:
        shape = source.height, source.trees_per_root, source.plain_algbw
    return [
        words.size(entry.low),
        words.size(entry.high),
        entry.program.protocol,
        *map(str, shape[:2]),
        words.decimal(shape[2]),
        str(used.thread_blocks),
        str(used.instances),
        f"{Sizes.of(entry.program).multiple()} bytes",
    ]


def _span(low: int, high: int | None) -> str:
    return f"{words.size(low)} to {words.size(high)}" if high is not None else words.size(low)
