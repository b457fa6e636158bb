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


ENDS = "us at from", "GB/s at to"
"""Columns of what is simulated."""
SIMULATED = "simulated over links in order and fair ones, at 64 MiB at most"


def _heads(made: PlanSet) -> tuple[str, ...]:
    shape = "trees" if made.collective.phases else "units"
    return ("plans", "from", "to", "protocol", "hops", shape, "links", *ENDS, "blocks", "multiple")


def table(
    made: PlanSet, files: Iterable[str], timings: Mapping[str, float], directory: Path
) -> RenderableType:
    """A line a plan; what no plan serves; what was written."""
    from rich.console import Group

    entries = [(plans.format, entry) for plans in made.plans for entry in plans.entries]
    rows, heads = [[form, *_row(entry)] for form, entry in entries], _heads(made)
    played = any(entry.ends for _, entry in entries)
    if not played:
        kept = [i for i, head in enumerate(heads) if head not in ENDS]
        rows, heads = [[row[i] for i in kept] for row in rows], tuple(heads[i] for i in kept)
    facts = [
        ("plan set", f"{made.collective} on {made.name}, {_span(made.low, made.high)}"),
        ("bound", words.plain_bound(made.plain_bound, made.bound)),
        ("multiple", "bytes of float32 that a plan's sizes are multiples of"),
        ("links", "GB/s that they allow for many bytes"),
        *[("us, GB/s", SIMULATED)] * played,
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
        tables.facts(facts), "", tables.columns(heads, rows, (1, 2, *range(4, len(heads) - 1))), "",
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
        "simulated": [
            {
                "format": plans.format,
                "min_bytes": entry.low,
                "from": entry.ends[0].summary(),
                "to": entry.ends[1].summary(),
            }
            for plans in made.plans
            for entry in plans.entries
            if entry.ends is not None
        ],
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
        words.decimal(shape[2], 1),
        *_ends(entry),
        str(used.thread_blocks),
        f"{Sizes.of(entry.program).multiple()} bytes",
    ]


def _ends(entry: Entry) -> tuple[str, str]:
    """The time of the first size and the bandwidth of the last."""
    if entry.ends is None:
        return "", ""
    first, last = entry.ends
    time = "-".join(f"{time:.1f}" for time in sorted((first.fifo, first.fair)))
    return time, words.span(last).replace(" ", "")


def _span(low: int, high: int | None) -> str:
    return f"{words.size(low)} to {words.size(high)}" if high is not None else words.size(low)
