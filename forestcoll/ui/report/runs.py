"""Times of plans: nccl-tests' table of runs on this machine, simulated runs, the lab's."""

from __future__ import annotations

import csv as csv_format
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from forestcoll.common.escape import escape
from forestcoll.ui.report import words
from forestcoll.ui.report.facts import (
    Fact,
    Part,
    Rows,
    bandwidth_facts,
    grid,
    limit,
    machine,
    notes,
    same,
    texts,
)
from forestcoll.verify.simulate import RULE_WORDS

if TYPE_CHECKING:
    from forestcoll.execute.lab.measurement import Measured, Report
    from forestcoll.execute.lab.pinned import Report as Pinned
    from forestcoll.execute.result import Row, RunResult
    from forestcoll.program import Program
    from forestcoll.study.figures import Figures
    from forestcoll.verify.rounding import Bound, Roundings
    from forestcoll.verify.simulate import Band, Calendar, Overlap, Timing

MODES = ("out-of-place", "in-place")
DETAILS = 5
"""Wrong elements that are spelled out."""
_LEFT = "{:>12}  {:>12}  {:>8}  {:>6}  {:>4}"
_RIGHT = "  {:>10}  {:>7}  {:>7}  {:>6}"
_PERCENT = "  {:>17}"
COLUMNS = (
    *("size", "count", "type", "redop", "root", "mode"),
    *("time_us", "algbw", "busbw", "wrong", "predicted_us", "percent_of_predicted"),
)
"""Columns of a CSV."""
ROW_NAMES = {"type": "dtype", "redop": "op", "percent_of_predicted": "prediction_percent"}
"""What a row calls those of them that have another name there."""


class Rounded(NamedTuple):
    """How often a plan rounds, and by how much a sum may be wrong with the options of a run.

    `accumulates`: with --accumulate; None where that is not for the type.
    """

    steps: Roundings
    bound: Bound
    accumulates: bool | None

    @property
    def words(self) -> str:
        """For people."""
        steps, other = self.steps if not self.accumulates else self.steps[::-1]
        text = f"{steps}"
        if self.accumulates is not None:
            text += f" ({other} {'without' if self.accumulates else 'with'} --accumulate float32)"
        text += f"; error at most {100 * self.bound.share:.3g} % of the sum of magnitudes"
        if self.bound.of_block:
            text += f" and {100 * self.bound.of_block:.2g} % of that of the blocks' largest"
        return text


def run_table(
    program: Program,
    results: Sequence[RunResult],
    figures: Figures | None = None,
    band: Band | None = None,
    rounded: Rounded | None = None,
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
            lines.append(f"# Bottleneck           : {limit(figures)}")
    if band is not None:
        lines.append(f"# Simulated algbw      : {words.band(band)}")
        lines.append(f"# Model                : {band.model}")
    if rows and rows[0].wire != rows[0].dtype:
        sent = 100 * sum(row.wire_bytes for row in rows) / sum(row.size for row in rows)
        lines.append(f"# Sent as              : {rows[0].wire}, {sent:.4g} % of the bytes")
    if rounded is not None:
        lines.append(f"# Rounding steps       : {rounded.words}")
    lines.extend(f"# wrong: {text}" for text in _details(results))
    return "".join(f"{escape(line.rstrip())}\n" for line in lines)


def csv(results: Sequence[RunResult]) -> str:
    """The rows for spreadsheets: a head, a line a row; what there is not is left empty."""
    stream = io.StringIO()
    writer = csv_format.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in results:
        for row in result.rows:
            writer.writerow([getattr(row, ROW_NAMES.get(name, name)) for name in COLUMNS])
    return stream.getvalue()


def run_facts(
    program: Program,
    results: Sequence[RunResult],
    figures: Figures | None = None,
    band: Band | None = None,
    rounded: Rounded | None = None,
) -> list[Fact]:
    """The same for machines."""
    steps = (None, None) if rounded is None else rounded.steps
    bound = (None, None) if rounded is None else rounded.bound
    rows = (row for result in results for row in result.rows)
    return machine(
        collective=program.collective,
        ranks=program.n,
        name=program.name,
        rows=[{**asdict(row), "percent_of_predicted": row.prediction_percent} for row in rows],
        predicted=None if figures is None else _prediction(figures),
        **{fact.key: fact.value for fact in bandwidth_facts(figures)},
        simulated=band,
        rounding_steps=steps[0],
        rounding_steps_at_ranks=steps[1],
        error_bound=bound[0],
        error_bound_of_block=bound[1],
        wrong=_details(results),
        notes=list(dict.fromkeys(note for result in results for note in result.notes)),
    )


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
            wrong = "N/A" if row.wrong is None else row.wrong
            rates = f"{row.algbw:.3f}", f"{row.busbw:.3f}"
            text += _RIGHT.format(f"{row.time_us:.2f}", *rates, wrong)
    if predicted:
        shares = [row.prediction_percent if row else None for row in map(by_mode.get, MODES)]
        said = ["-" if x is None else f"{x:.3g}" if x >= 0.001 else "0.000" for x in shares]
        text += _PERCENT.format("  ".join(f"{share:>7}" for share in said))
    return text


def _details(results: Iterable[RunResult]) -> list[str]:
    texts = [str(text) for result in results for text in result.mismatches]
    more = len(texts) - DETAILS
    return texts[:DETAILS] + ([f"... and {more} more"] if more > 0 else [])


# --- simulated runs -------------------------------------------------------------------------------


def simulation(
    title: str, figures: Figures, timings: Sequence[Timing], model: str, shown: int = 0
) -> list[Part]:
    """A row for each size and rule, and the `shown` busiest links of each; equal ones once."""
    shares = [100 * timing.algbw / float(figures.algbw) for timing in timings]
    both = list(zip(timings, shares, strict=True))
    rates = [
        (
            timing,
            (
                words.duration(timing.time),
                f"{timing.algbw:.5g} GB/s",
                f"{timing.busbw:.5g} GB/s",
                f"{share:.1f} %",
            ),
        )
        for timing, share in both
    ]
    links = []
    for timing in timings:
        alike: dict[tuple[str, str], list[str]] = {}
        for use in timing.busiest:
            said = f"{use.bandwidth:.4g} GB/s", f"{100 * use.utilisation:.1f} %"
            alike.setdefault(said, []).append(f"{use.src} -> {use.dst}")
        most = [
            (f"{names[0]} and {len(names) - 1} alike" if names[1:] else names[0], *said)
            for said, names in islice(alike.items(), shown)
        ]
        links.append((timing, tuple(most)))
    used = [[*row[:2], *use] for row in _fold(links) for use in row[2:]]
    head = [
        same("simulated", title),
        *bandwidth_facts(figures),
        same("model", model),
        Fact("timings", [{**timing.summary(), "percent": share} for timing, share in both]),
    ]
    return [
        head,
        grid(("size", "links", "time", "algbw", "busbw", "of algbw"), _fold(rates), range(2, 6)),
        grid(("size", "links", "busiest", "bandwidth", "used"), used, (3, 4)),
    ]


def calendar(
    title: str, dates: Calendar, model: str, shown: int, gain: Overlap | None = None
) -> list[Part]:
    """By rank what is ready and what is needed, in this order; `shown` rows of each for people.

    `gain`: of a producer, beside what it would take otherwise.
    """
    words_of = {"output": "ready", "input": "needed"}
    buffers = {"output": dates.outputs, "input": dates.inputs}
    rows = [
        (rank, f"{name} {words_of[name]}", entry.offset, entry.bytes, words.duration(entry.us))
        for name, ranks in buffers.items()
        for rank, entries in enumerate(ranks)
        for entry in entries[:shown]
    ]
    head = [
        same("simulated", title),
        Fact("size", dates.size, words.size),
        Fact("links", dates.rule or "by link", RULE_WORDS[dates.rule] if dates.rule else "own"),
        Fact("time_us", dates.time, words.duration, "time"),
        same("model", model),
    ]
    if gain is not None:
        head += machine(overlap=asdict(gain) | {"bound": gain.bound})
        rows_of = {"producer": gain.producer, "plan": gain.plan, "unordered": gain.unordered}
        rows_of |= {f"{gain.tiles} tiles in order": gain.ordered, "bound": gain.bound}
        head += [Fact("", None, words.duration(us), label) for label, us in rows_of.items()]
    head += machine(
        **{
            f"{name}s": [
                [
                    {"offset": e.offset, "bytes": e.bytes, f"{words_of[name]}_us": e.us}
                    for e in entries
                ]
                for entries in ranks
            ]
            for name, ranks in buffers.items()
        }
    )
    return [head, grid(("rank", "buffer", "offset", "bytes", "at"), rows, (0, 2, 3, 4))]


def _fold(rows: Sequence[tuple[Timing, tuple[Any, ...]]]) -> list[list[Any]]:
    """Size, rules and what is said of them: rules of a size that differ in nothing share a row."""
    rules: dict[tuple[int, tuple[Any, ...]], list[str]] = {}
    for timing, said in rows:
        name = RULE_WORDS[timing.rule] if timing.rule else "own"
        rules.setdefault((timing.size, said), []).append(name)
    return [[words.size(size), ", ".join(names), *said] for (size, said), names in rules.items()]


# --- the lab --------------------------------------------------------------------------------------


def measurement_parts(report: Report) -> list[Part]:
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
    rows = [_schedule(report, row) for row in report.rows]
    return [head, Rows("rows", rows), texts("wrong", wrong)]


def flow_parts(report: Pinned, title: str) -> list[Part]:
    """A line a run of flows: how long all of them took, and the slowest one's rate."""
    hashed = [trial.seconds for trial in report.trials if trial.name.startswith("ECMP")]
    mean = sum(hashed) / len(hashed)
    faster = mean / report.trials[0].seconds
    where = " to ".join(report.cut)
    head = [
        same("lab", title),
        Fact("flows", report.flows, f"{report.flows}, each TCP over a path of its own"),
        Fact("link", report.link, f"{report.link / 1e6:.4g} Mbit/s between switches", "slowest"),
        Fact("pinned_faster", faster, f"{faster:.2f} times as fast as ECMP's mean", "pinned"),
        Fact("cut", report.cut, f"{where}: {1e3 * report.trials[-1].replaced:.0f} ms to reroute"),
    ]
    rows = []
    for trial in report.trials:
        predicted = report.mended if trial is report.trials[-1] else report.predicted
        least, total = min(trial.rates) / 1e6, sum(trial.rates) / 1e6
        share = predicted / trial.seconds
        rows.append(
            [
                same("run", trial.name),
                Fact("seconds", trial.seconds, words.seconds, "all done in"),
                Fact("share", share, f"{share:.1%}", "of predicted"),
                Fact("least", least, f"{least:.2f}", "slowest flow, Mbit/s"),
                Fact("sum", total, f"{total:.1f}", "all, Mbit/s"),
            ]
        )
    return [head, Rows("rows", rows)]


def _schedule(report: Report, row: Measured) -> list[Fact]:
    theory, measured = report.ratios(row)
    faster = ["" if row is report.rows[0] else f"{ratio:.2f} x" for ratio in (measured, theory)]
    return [
        same("schedule", row.name),
        Fact("algbw", row.algbw, words.decimal, "GB/s"),
        Fact("predicted", row.predicted, f"{row.predicted / 1e6:.3f}", "predicted MB/s"),
        Fact("measured", row.measured, f"{row.measured / 1e6:.3f}", "measured MB/s"),
        Fact("of_predicted", row.share, f"{100 * row.share:.1f} %", "of predicted"),
        Fact("size", row.size, words.size),
        Fact("seconds", row.seconds, words.seconds, "time"),
        Fact("plan_faster_measured", measured, faster[0], "plan is faster"),
        Fact("plan_faster_theory", theory, faster[1], "theory"),
        Fact("links", row.links, f"{row.links[0]:.2f}-{row.links[1]:.2f}"),
        same("wrong", row.wrong),
        *machine(processors_busy=row.busy, wrong_elements=row.texts),
    ]
