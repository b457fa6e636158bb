"""A plan set as a table for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forestcoll.lower import usage
from forestcoll.program.sizes import Sizes
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.ui.report import table as tables
from forestcoll.ui.report import words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forestcoll.compile.plan_set import Ends, PlanSet
    from forestcoll.program import Program
    from forestcoll.program.targets import PlanFormat
    from forestcoll.schedule.forest import Forest


ENDS = "us at from", "GB/s at to"
"""Columns of what is simulated."""
SIMULATED = "simulated, at 64 MiB at most"


@dataclass(frozen=True, slots=True)
class Row:
    """A plan of a set: bytes that it serves, what it was made from, what is simulated of it."""

    format: PlanFormat
    low: int
    high: int
    program: Program
    made_from: Forest | Routes
    ends: Ends | None


def _rows(made: PlanSet) -> list[Row]:
    return [
        Row(form, entry.low, entry.high, entry.program, entry.candidate.made_from, entry.ends)
        for form, entry in ((plans.format, e) for plans in made.plans for e in plans.entries)
    ]


def table(
    made: PlanSet, files: Collection[str], timings: Mapping[str, float], directory: Path | None
) -> RenderableType:
    """A line a plan; what no plan serves; what was written."""
    from rich.console import Group

    rows = _rows(made)
    played = any(row.ends for row in rows)
    facts = [
        ("plan set", f"{made.collective} on {made.name}, {_span(made.low, made.high)}"),
        ("bound", f"{words.exact(made.bound)} GB/s"),
        *words.switches(made.in_switches),
        ("multiple", "bytes of float32 that a plan's sizes are multiples of"),
        ("links", "GB/s that they allow for many bytes"),
        *([("us, GB/s", SIMULATED), ("model", model(rows))] if played else []),
    ]
    after = [
        ("not served", f"{plans.format}: {_span(gap.low, gap.high)}: {gap.why}")
        for plans in made.plans
        for gap in plans.unserved
    ]
    after += [("note", note) for note in made.notes]
    after.append(("wall time", words.seconds(sum(timings.values()))))
    if directory is not None:
        after.append(("written", f"{words.plural(len(files), 'file')} in {directory}"))
    return Group(
        tables.facts(facts), "", plans_table(rows), "", tables.facts(after),
    )  # fmt: skip


def model(rows: Iterable[Row]) -> str:
    """The model that all of the plans were simulated with, in one line."""
    return words.model(row.ends[0] for row in rows if row.ends is not None)


def plans_table(rows: Sequence[Row]) -> RenderableType:
    """A line a plan; without the columns of what is simulated where nothing is."""
    shape = "units" if isinstance(rows[0].made_from, Routes) else "trees"
    heads = ["plans", "from", "to", "protocol", "hops", shape, "links", *ENDS, "blocks", "multiple"]
    cells = [_cells(row) for row in rows]
    if not any(row.ends for row in rows):
        kept = [i for i, head in enumerate(heads) if head not in ENDS]
        cells, heads = [[row[i] for i in kept] for row in cells], [heads[i] for i in kept]
    return tables.columns(heads, cells, (1, 2, *range(4, len(heads) - 1)))


def simulated(rows: Iterable[Row]) -> list[dict[str, object]]:
    """What was simulated of each plan, for machines."""
    return [
        {
            "format": row.format,
            "min_bytes": row.low,
            "from": row.ends[0].summary(),
            "to": row.ends[1].summary(),
        }
        for row in rows
        if row.ends is not None
    ]


def summary(
    made: PlanSet, files: Mapping[str, str], timings: Mapping[str, float], directory: Path | None
) -> dict[str, object]:
    """The index, the notes and the files, for machines."""
    import json

    return {
        "index": json.loads(files["index.json"]),
        "bound": str(made.bound),
        "plain_bound": str(made.bound),
        "in_switches": None if made.in_switches is None else str(made.in_switches),
        "simulated": simulated(_rows(made)),
        "model": model(_rows(made)) or None,
        "notes": list(made.notes),
        "seconds": dict(timings),
        "files": [str(directory / file) for file in files] if directory else [],
    }


def _cells(row: Row) -> list[str]:
    source, used = row.made_from, usage(row.program)
    if isinstance(source, Routes):
        shape = source.hops, source.units, source.algbw
    else:
        shape = source.height, source.trees_per_root, source.plain_algbw
    return [
        row.format,
        words.size(row.low),
        words.size(row.high),
        row.program.protocol,
        *map(str, shape[:2]),
        words.decimal(shape[2], 1),
        *_ends(row),
        str(used.thread_blocks),
        f"{Sizes.of(row.program).multiple()} bytes",
    ]


def _ends(row: Row) -> tuple[str, str]:
    """The time of the first size and the bandwidth of the last."""
    if row.ends is None:
        return "", ""
    first, last = row.ends
    time = "-".join(f"{time:.1f}" for time in sorted((first.fifo, first.fair)))
    return time, words.span(last).replace(" ", "")


def _span(low: int, high: int | None) -> str:
    return f"{words.size(low)} to {words.size(high)}" if high is not None else words.size(low)
