"""What the lab measured, as a table for people and as JSON for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forestcoll.ui.report import table as tables
from forestcoll.ui.report import words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forestcoll.execute.lab.comparing import Measured, Report


def table(report: Report) -> RenderableType:
    """A line a schedule: theory, measurement, and how many times faster the plan is."""
    from rich.console import Group

    title = f"{report.collective} on {report.name}, {words.plural(report.ranks, 'rank')}"
    scale = float(report.scale) / 1e6
    facts = [
        ("lab", title),
        ("scale", f"{scale:.4g} Mbit/s for each GB/s; packets of {report.packet} bytes"),
        *(("note", note) for note in report.notes),
    ]
    heads = ["schedule", "GB/s", "predicted MB/s", "measured MB/s", "of predicted"]
    heads += ["size", "time", "plan is faster", "theory", "links", "wrong"]
    rows = [_row(report, row) for row in report.rows]
    lines = tables.columns(heads, rows, range(1, len(heads)))
    wrong = [("wrong", f"{row.name}: {text}") for row in report.rows for text in row.texts]
    return Group(tables.facts(facts), "", lines, *([tables.facts(wrong)] if wrong else []))


def _row(report: Report, row: Measured) -> list[str]:
    theory, measured = report.ratios(row)
    plan = row is report.rows[0]
    return [
        row.name,
        words.decimal(row.algbw),
        f"{row.predicted / 1e6:.3f}",
        f"{row.measured / 1e6:.3f}",
        f"{100 * row.share:.1f} %",
        words.size(row.size),
        words.seconds(row.seconds),
        "" if plan else f"{measured:.2f} x",
        "" if plan else f"{theory:.2f} x",
        f"{row.links[0]:.2f}-{row.links[1]:.2f}",
        str(row.wrong),
    ]


def summary(report: Report) -> dict[str, object]:
    """The same for machines: bytes a second; `links`: bytes on them over those of theory."""
    return {
        "topology": report.name,
        "ranks": report.ranks,
        "collective": report.collective.value,
        "bits_per_gbyte": float(report.scale),
        "packet": report.packet,
        "notes": list(report.notes),
        "rows": [
            {
                "schedule": row.name,
                "algbw": str(row.algbw),
                "predicted": row.predicted,
                "measured": row.measured,
                "of_predicted": row.share,
                "size": row.size,
                "seconds": row.seconds,
                "plan_faster_theory": report.ratios(row)[0],
                "plan_faster_measured": report.ratios(row)[1],
                "links": list(row.links),
                "processors_busy": row.busy,
                "wrong": row.wrong,
                "wrong_elements": list(row.texts),
            }
            for row in report.rows
        ],
    }
