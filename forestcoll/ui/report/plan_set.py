"""A plan set as a table for people and as JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forestcoll.lower import usage
from forestcoll.program.sizes import Sizes
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.ui.report import reached, words
from forestcoll.ui.report.facts import Fact, Rows, as_table, grid, notes, seconds, texts, views
from forestcoll.ui.report.facts import model as the_model

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


def _rows(result: PlanSet) -> list[Row]:
    return [
        Row(form, entry.low, entry.high, entry.program, entry.candidate.made_from, entry.ends)
        for form, entry in ((plans.format, e) for plans in result.plans for e in plans.entries)
    ]


def _facts(
    result: PlanSet, files: Mapping[str, str], timings: Mapping[str, float], directory: Path | None
) -> list[Sequence[Fact] | Rows]:
    """A line a plan; what no plan serves; what was written. `files`: their texts by name."""
    rows = _rows(result)
    played = any(row.ends for row in rows)
    where = f"{words.plural(len(files), 'file')} in {directory}" if directory else ""
    title = f"{result.collective} on {result.name}, {_span(result.low, result.high)}"
    head = [
        Fact("index", json.loads(files["index.json"]), title, "plan set"),
        Fact("bound", result.bound, words.rate(result.bound)),
        Fact("plain_bound", result.bound),
        reached.switches(result.in_switches),
        Fact("", None, "bytes of float32 that a plan's sizes are multiples of", "multiple"),
        Fact("", None, "GB/s that they allow for many bytes", "links"),
        Fact("", None, SIMULATED if played else "", "us, GB/s"),
        Fact("simulated", simulated(rows)),
        _model(rows),
    ]
    gaps = [
        f"{plans.format}: {_span(gap.low, gap.high)}: {gap.why}"
        for plans in result.plans
        for gap in plans.unserved
    ]
    paths = [directory / file for file in files] if directory else []
    foot = [
        *texts("not served", gaps),
        *notes(result.notes),
        seconds(timings, whole=True),
        Fact("files", paths, where, "written"),
    ]
    return [head, _plans(rows), foot]


table, summary = views(_facts)


def _model(rows: Iterable[Row]) -> Fact:
    return the_model(row.ends[0] for row in rows if row.ends is not None)


def model(rows: Iterable[Row]) -> str:
    """The model that all of the plans were simulated with, in one line."""
    return str(_model(rows).text)


def plans_table(rows: Sequence[Row]) -> RenderableType:
    """A line a plan; without the columns of what is simulated where nothing is."""
    return as_table([_plans(rows)])


def _plans(rows: Sequence[Row]) -> Rows:
    noun = "units" if isinstance(rows[0].made_from, Routes) else "trees"
    heads = ["plans", "from", "to", "protocol", "hops", noun, "links", *ENDS, "blocks", "multiple"]
    return grid(heads, [_cells(row) for row in rows], right=(1, 2, 4, 5, 6, 7, 8, 9))


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


def _cells(row: Row) -> list[object]:
    source = row.made_from
    if isinstance(source, Routes):
        shape = source.hops, source.units, words.decimal(source.algbw, 1)
    else:
        shape = source.height, source.trees_per_root, words.decimal(source.plain_algbw, 1)
    return [
        row.format,
        words.size(row.low),
        words.size(row.high),
        row.program.protocol,
        *shape,
        *_ends(row),
        usage(row.program).thread_blocks,
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
