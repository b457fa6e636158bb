"""What was found for several groups at once, as a table for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from forestcoll.ui.report import table as tables
from forestcoll.ui.report import words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forestcoll.compile.together import GroupsProblem, Schedules
    from forestcoll.solver.groups.split import Split

ROWS = 32
"""Groups that the table names one by one."""


def optimum_table(
    asked: GroupsProblem, best: Split, alone: Sequence[Fraction], took: float
) -> RenderableType:
    """The common algbw with its bound, and what each group would have alone."""
    rows = [*_head("optimum", asked, best.algbw, best.bound.algbw)]
    rows += _each(asked, [f"{words.exact(rate)} GB/s alone on all links" for rate in alone])
    rows.append(("wall time", words.seconds(took)))
    if best.note:
        rows.append(("note", best.note))
    return tables.facts(rows)


def optimum_summary(
    asked: GroupsProblem, best: Split, alone: Sequence[Fraction], took: float
) -> dict[str, object]:
    """The same for machines."""
    return {
        **_facts(asked, best.algbw, best.bound.algbw),
        "alone": [str(rate) for rate in alone],
        "seconds": took,
        "notes": [best.note] if best.note else [],
    }


def table(
    asked: GroupsProblem, result: Schedules, timings: Mapping[str, float], paths: Sequence[Path]
) -> RenderableType:
    """The common algbw, each group's trees, where the time went, and what was written."""
    done = result.done
    rows = [*_head("schedules", asked, done.algbw, done.bound.algbw)]
    rows += _each(
        asked,
        [
            f"{words.plural(len(forest.trees), 'tree')}, {forest.trees_per_root} per root, height "
            f"{words.height(forest, latency)}"
            for forest, latency in zip(done.forests, result.latencies, strict=True)
        ],
    )
    rows.append(("wall time", words.seconds(sum(timings.values()))))
    if paths:
        total = sum(path.stat().st_size for path in paths)
        where = f"{words.plural(len(paths), 'file')} in {paths[0].parent}"
        rows.append(("written", f"{where} ({words.size(total)})"))
    rows.extend(("note", note) for note in result.notes)
    return tables.facts(rows)


def summary(
    asked: GroupsProblem, result: Schedules, timings: Mapping[str, float], paths: Sequence[Path]
) -> dict[str, object]:
    """The same for machines: fractions as strings, seconds as numbers."""
    forests = result.done.forests
    return {
        **_facts(asked, result.done.algbw, result.done.bound.algbw),
        "trees_per_root": [forest.trees_per_root for forest in forests],
        "height": [forest.height for forest in forests],
        "latency_us": [str(latency) for latency in result.latencies],
        "seconds": dict(timings),
        "files": [str(path) for path in paths],
        "notes": list(result.notes),
    }


def _head(
    what: str, asked: GroupsProblem, algbw: Fraction, bound: Fraction
) -> list[tuple[str, str]]:
    groups = words.plural(len(asked.members), "group")
    return [
        (what, f"{asked.collective} on {asked.name}, {groups} at once"),
        ("algbw", f"{words.exact(algbw)} GB/s in every group"),
        ("bound", f"{words.exact(bound)} GB/s"),
        ("of optimal", words.percent(algbw, bound)),
    ]


def _each(asked: GroupsProblem, texts: Sequence[str]) -> list[tuple[str, str]]:
    """A line a group: its ranks, then the text."""
    rows = []
    for g, (members, text) in enumerate(zip(asked.members, texts, strict=True)):
        if g == ROWS:
            rows.append(("...", f"{len(texts) - ROWS} groups more"))
            break
        ranks = words.label(asked.machine, frozenset(members))
        rows.append((f"group {g}", f"{ranks}: {text}"))
    return rows


def _facts(asked: GroupsProblem, algbw: Fraction, bound: Fraction) -> dict[str, object]:
    names = asked.machine.names
    return {
        "topology": asked.name,
        "collective": asked.collective.value,
        "groups": [[names[v] for v in members] for members in asked.members],
        "algbw": str(algbw),
        "algbw_decimal": float(algbw),
        "bound": str(bound),
        "optimal": algbw == bound,
    }
