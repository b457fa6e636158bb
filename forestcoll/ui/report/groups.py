"""What was found for several groups at once, as a table for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from forestcoll.ui.report import words
from forestcoll.ui.report.facts import Fact, machine, notes, seconds, views

if TYPE_CHECKING:
    from forestcoll.compile.together import GroupsProblem, Schedules
    from forestcoll.solver.groups.split import Split

ROWS = 32
"""Groups that the table names one by one."""


def _optimum(
    asked: GroupsProblem, best: Split, alone: Sequence[Fraction], took: float
) -> list[Fact]:
    """The common algbw with its bound, and what each group would have alone."""
    texts = [f"{words.rate(rate)} alone on all links" for rate in alone]
    return [
        *_head("optimum", asked, best.algbw, best.bound.algbw),
        Fact("alone", alone),
        *_each(asked, texts),
        seconds(took),
        *notes([best.note] if best.note else []),
    ]


optimum_table, optimum_summary = views(_optimum)


def _schedules(
    asked: GroupsProblem, result: Schedules, timings: Mapping[str, float], paths: Sequence[Path]
) -> list[Fact]:
    """The common algbw, each group's trees, where the time went, and what was written."""
    done, forests = result.done, result.done.forests
    texts = [
        f"{words.plural(len(forest.trees), 'tree')}, {forest.trees_per_root} per root, height "
        f"{words.height(forest, latency)}"
        for forest, latency in zip(forests, result.latencies, strict=True)
    ]
    written = ""
    if paths:
        total = words.size(sum(path.stat().st_size for path in paths))
        written = f"{words.plural(len(paths), 'file')} in {paths[0].parent} ({total})"
    return [
        *_head("schedules", asked, done.algbw, done.bound.algbw),
        *machine(
            trees_per_root=[forest.trees_per_root for forest in forests],
            height=[forest.height for forest in forests],
            latency_us=result.latencies,
        ),
        *_each(asked, texts),
        seconds(timings, whole=True),
        Fact("files", paths, written, "written"),
        *notes(result.notes),
    ]


table, summary = views(_schedules)


def _head(label: str, asked: GroupsProblem, algbw: Fraction, bound: Fraction) -> list[Fact]:
    names = asked.machine.names
    title = (
        f"{asked.collective} on {asked.name}, {words.plural(len(asked.members), 'group')} at once"
    )
    return [
        Fact("topology", asked.name, title, label),
        Fact("collective", asked.collective),
        Fact("groups", [[names[v] for v in members] for members in asked.members]),
        Fact("algbw", algbw, f"{words.rate(algbw)} in every group"),
        Fact("algbw_decimal", float(algbw)),
        Fact("bound", bound, words.rate(bound)),
        Fact("optimal", algbw == bound, words.percent(algbw, bound), "of optimal"),
    ]


def _each(asked: GroupsProblem, texts: Sequence[str]) -> list[Fact]:
    """A line a group: its ranks, then the text."""
    rows = []
    for g, (members, text) in enumerate(zip(asked.members, texts, strict=True)):
        if g == ROWS:
            rows.append(Fact("", None, f"{len(texts) - ROWS} groups more", "..."))
            break
        ranks = words.label(asked.machine, frozenset(members))
        rows.append(Fact("", None, f"{ranks}: {text}", f"group {g}"))
    return rows
