"""What the lab measured, as a table for people and as JSON for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forestcoll.ui.report import words
from forestcoll.ui.report.facts import Fact, Part, Rows, machine, notes, texts, views

if TYPE_CHECKING:
    from forestcoll.execute.lab.measurement import Measured, Report


def _facts(report: Report) -> list[Part]:
    """A line a schedule: theory, measurement, and how many times faster the plan is.

    For machines bytes a second; `links`: bytes on them over those of theory.
    """
    title = f"{report.collective} on {report.name}, {words.plural(report.ranks, 'rank')}"
    scale = f"{float(report.scale) / 1e6:.4g} Mbit/s for each GB/s"
    head = [
        Fact("topology", report.name, title, "lab"),
        *machine(collective=report.collective, ranks=report.ranks, packet=report.packet),
        Fact(
            "bits_per_gbyte",
            float(report.scale),
            f"{scale}; packets of {report.packet} bytes",
            "scale",
        ),
        *notes(report.notes),
    ]
    wrong = [f"{row.name}: {text}" for row in report.rows for text in row.texts]
    rows = [_row(report, row) for row in report.rows]
    return [head, Rows("rows", rows), texts("wrong", wrong)]


table, summary = views(_facts)


def _row(report: Report, row: Measured) -> list[Fact]:
    theory, measured = report.ratios(row)
    faster = ["" if row is report.rows[0] else f"{ratio:.2f} x" for ratio in (measured, theory)]
    return [
        Fact("schedule", row.name, row.name),
        Fact("algbw", row.algbw, words.decimal(row.algbw), "GB/s"),
        Fact("predicted", row.predicted, f"{row.predicted / 1e6:.3f}", "predicted MB/s"),
        Fact("measured", row.measured, f"{row.measured / 1e6:.3f}", "measured MB/s"),
        Fact("of_predicted", row.share, f"{100 * row.share:.1f} %", "of predicted"),
        Fact("size", row.size, words.size(row.size)),
        Fact("seconds", row.seconds, words.seconds(row.seconds), "time"),
        Fact("plan_faster_measured", measured, faster[0], "plan is faster"),
        Fact("plan_faster_theory", theory, faster[1], "theory"),
        Fact("links", row.links, f"{row.links[0]:.2f}-{row.links[1]:.2f}"),
        Fact("wrong", row.wrong, str(row.wrong)),
        *machine(processors_busy=row.busy, wrong_elements=row.texts),
    ]
