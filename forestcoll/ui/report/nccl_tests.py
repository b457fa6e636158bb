"""The table that nccl-tests prints, for runs on this machine: same columns, same definitions."""

from __future__ import annotations

import csv as csv_format
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from forestcoll.common.escape import escape
from forestcoll.ui.report import reached, words

if TYPE_CHECKING:
    from forestcoll.execute.result import Row, RunResult
    from forestcoll.program import Program
    from forestcoll.study.figures import Figures
    from forestcoll.verify.simulate import Band

MODES = ("out-of-place", "in-place")
DETAILS = 5
"""Wrong elements that are spelled out."""
_LEFT = "{:>12}  {:>12}  {:>8}  {:>6}  {:>4}"
_RIGHT = "  {:>10}  {:>7}  {:>7}  {:>6}"
_PERCENT = "  {:>17}"
_COLUMNS = (
    *("size", "count", "type", "redop", "root", "mode"),
    *("time_us", "algbw", "busbw", "wrong", "predicted_us", "percent_of_predicted"),
)


def table(
    program: Program,
    results: Sequence[RunResult],
    figures: Figures | None = None,
    band: Band | None = None,
) -> str:
    """Head, one line a size, and the closing averages; wrong elements are listed below.

    `figures`: what the links of the machine allow that the plan is for; `band`: what the plan
    reaches there in simulated time. Where rows have a percentage of their simulated time, those
    come last, so that who reads nccl-tests' columns by number finds them in their places.
    """
    rows = [row for result in results for row in result.rows]
    shared = any(row.predicted_us is not None for row in rows)
    names = _LEFT.format("size", "count", "type", "redop", "root")
    units = _LEFT.format("(B)", "(elements)", "", "", "")
    width = len(_RIGHT.format("", "", "", ""))
    percent = _PERCENT.format("of predicted (%)") if shared else ""
    lines = [
        f"# {program.collective.value}, {program.n} ranks, {program.name or 'unnamed plan'}",
        "#" + " " * len(names) + "".join(mode.center(width) for mode in MODES) + percent,
        "#" + names + _RIGHT.format("time", "algbw", "busbw", "#wrong") * 2,
        "#" + units + _RIGHT.format("(us)", "(GB/s)", "(GB/s)", "") * 2,
    ]
    if shared:
        lines[2] += _PERCENT.format("out-of-  in-place")
    lines.extend(" " + _line(result.rows, shared) for result in results)
    wrong = sum(result.wrong for result in results)
    average = sum(row.busbw for row in rows) / len(rows) if rows else 0.0
    lines.append(f"# Out of bounds values : {wrong} {'OK' if wrong == 0 else 'FAILED'}")
    lines.append(f"# Avg bus bandwidth    : {average:.4g}")
    if figures is not None:
        elsewhere = "" if shared else " (on its machine; the times are this processor's)"
        lines.append(f"# Allowed by links     : {_prediction(figures)}{elsewhere}")
        if figures.bound is not None:
            share = "" if figures.best else f", {words.percent(figures.algbw, figures.bound)}"
            lines.append(f"# Bound                : {words.exact(figures.bound)} GB/s{share}")
            lines.append(f"# Bottleneck           : {reached.limit(figures)}")
    if band is not None:
        lines.append(f"# Simulated algbw      : {words.band(band)}")
        lines.append(f"# Model                : {band.model}")
    lines.extend(f"# wrong: {text}" for text in _details(results))
    return "".join(f"{escape(line.rstrip())}\n" for line in lines)


def csv(results: Sequence[RunResult]) -> str:
    """The rows for spreadsheets: a head, a line a row; what there is not is left empty."""
    stream = io.StringIO()
    writer = csv_format.writer(stream, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in (row for result in results for row in result.rows):
        numbers = (row.time_us, row.algbw, row.busbw, row.wrong, row.predicted_us, row.of_predicted)
        writer.writerow((row.size, row.count, row.dtype, row.op, row.root, row.mode, *numbers))
    return stream.getvalue()


def summary(
    program: Program,
    results: Sequence[RunResult],
    figures: Figures | None = None,
    band: Band | None = None,
) -> dict[str, object]:
    """The same for machines."""
    return {
        "collective": program.collective.value,
        "ranks": program.n,
        "name": program.name,
        "rows": [
            {
                "mode": row.mode,
                "size": row.size,
                "count": row.count,
                "dtype": row.dtype,
                "op": row.op,
                "root": row.root,
                "time_us": row.time_us,
                "algbw": row.algbw,
                "busbw": row.busbw,
                "wrong": row.wrong,
                "predicted_us": row.predicted_us,
                "percent_of_predicted": row.of_predicted,
            }
            for result in results
            for row in result.rows
        ],
        "predicted": None if figures is None else _prediction(figures),
        **reached.summary(figures),
        "simulated": None if band is None else band.summary(),
        "wrong": _details(results),
        "notes": list(dict.fromkeys(note for result in results for note in result.notes)),
    }


def _prediction(figures: Figures) -> str:
    return f"{words.exact(figures.algbw)} GB/s, {figures.source}"


def _line(rows: Iterable[Row], predicted: bool) -> str:
    by_mode: dict[str, Row] = {row.mode: row for row in rows}
    first = next(iter(by_mode.values()))
    text = _LEFT.format(first.size, first.count, first.dtype, first.op, first.root)
    for mode in MODES:
        row = by_mode.get(mode)
        if row is None:
            text += _RIGHT.format("-", "-", "-", "N/A")
        else:
            text += _RIGHT.format(
                f"{row.time_us:.2f}", f"{row.algbw:.3f}", f"{row.busbw:.3f}", _count(row)
            )
    if predicted:
        text += _PERCENT.format("  ".join(f"{_share(by_mode.get(mode)):>7}" for mode in MODES))
    return text


def _share(row: Row | None) -> str:
    share = row.of_predicted if row else None
    return "-" if share is None else f"{share:.3g}" if share >= 0.001 else "0.000"


def _count(row: Row) -> int | str:
    return "N/A" if row.wrong is None else row.wrong


def _details(results: Iterable[RunResult]) -> list[str]:
    texts = [str(text) for result in results for text in result.mismatches]
    more = len(texts) - DETAILS
    return texts[:DETAILS] + ([f"... and {more} more"] if more > 0 else [])
