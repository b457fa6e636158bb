"""Single failures as tables for people, as JSON for machines, and as a plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from io import BytesIO, StringIO
from typing import TYPE_CHECKING, Any

from forestcoll.common.errors import UnsupportedError
from forestcoll.ui.report import table as tables
from forestcoll.ui.report import words

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rich.console import RenderableType

    from forestcoll.study.degrade import Loss, Report, Worst
    from forestcoll.verify.simulate import Band

STOPS = "stops"
"""What a plan does whose link is gone."""
SIMULATED = "; simulated: what the trees alone reach at 1 GB over links in order and fair ones"
NOTES = 3
"""Reasons that are told why new plans may be faster than is said."""
REASONS = 4
"""Failures of which a reason is given why there is no plan."""


def table(report: Report, worst: Sequence[Worst], whole: Band | None) -> RenderableType:
    """What the failures of each kind cost, and the worst of all.

    `whole`: what the forest in use reaches while all works, where that is simulated.
    """
    from rich.console import Group

    workload = report.workload
    played = "" if whole is None else f"; simulated {words.rates(whole)}, the trees alone"
    facts = [
        ("failures", f"{workload.collective} on {workload.topology.name}, one at a time"),
        ("in use", f"{words.exact(report.before)} GB/s{played}"),
    ]
    if report.before != report.optimum:
        facts.append(("optimum", f"{words.exact(report.optimum)} GB/s"))
    total = sum(loss.failure.copies for loss in report.losses)
    facts += [
        (
            "looked at",
            f"{total}, in {words.plural(report.solved, 'class')} by the fabric's symmetry",
        ),
        ("GB/s", "what links allow" + SIMULATED * (whole is not None)),
        *([] if whole is None else [("model", whole.model)]),
        ("wall time", words.seconds(sum(report.timings.values()))),
        *_notes(report),
    ]
    heads = ["kind", "failures", "plan in use stops", "new plan, worst", "new plan, median"]
    kinds = [[str(cell) for cell in row] for row in _by_kind(report)]
    parts: list[RenderableType] = [
        tables.facts(facts),
        "",
        tables.columns(heads, kinds, range(1, 5)),
        "",
        _worst(report, worst),
    ]
    lost = [(w.loss.failure.name, _clause(w.loss.reason)) for w in worst if w.loss.reason]
    if lost:
        facts = [("no plan", f"{name}: {why}") for name, why in lost[:REASONS]]
        parts += ["", tables.facts(facts)]
    return Group(*parts)


def _worst(report: Report, worst: Sequence[Worst]) -> RenderableType:
    """A line a failure; without columns for what is simulated where nothing is."""
    heads = ["fails", "alike", "plan in use, GB/s", "simulated"]
    heads += ["new plan, GB/s", "simulated", "see it with"]
    rows = [
        [
            _title(entry.loss),
            str(entry.alike),
            _rate(entry.loss.old, report.before, ""),
            _rates(entry.old),
            _new(entry.loss, report.before),
            _rates(entry.new),
            entry.loss.failure.options,
        ]
        for entry in worst
    ]
    kept = [i for i, head in enumerate(heads) if head != "simulated" or any(r[i] for r in rows)]
    rows = [[row[i] for i in kept] for row in rows]
    return tables.columns([heads[i] for i in kept], rows, range(1, len(kept) - 1))


def _rates(band: Band | None) -> str:
    return "" if band is None else words.span(band)


def _new(loss: Loss, whole: Fraction) -> str:
    if loss.reason:
        return "none"
    return ("at least " if loss.note else "") + _rate(loss.new, whole, "")


def _notes(report: Report) -> list[tuple[str, str]]:
    """Why new plans may be faster than is said, if they may: the commonest reasons."""
    told = Counter(loss.note for loss in report.losses if loss.note)
    return [
        ("note", f"{words.plural(count, 'new plan')} may be faster than said: {note}")
        for note, count in told.most_common(NOTES)
    ]


def summary(report: Report, worst: Sequence[Worst], whole: Band | None) -> dict[str, object]:
    """The same for machines, and every failure: fractions as strings, None where a plan stops."""
    workload = report.workload
    return {
        "topology": workload.topology.name,
        "collective": workload.collective.value,
        "root": workload.root,
        "algbw": str(report.before),
        "algbw_decimal": float(report.before),
        "simulated": None if whole is None else whole.summary(),
        "optimum": str(report.optimum),
        "classes": report.solved,
        "worst": [_worst_entry(entry) for entry in worst],
        "failures": [_entry(loss) for loss in report.losses],
        "seconds": dict(report.timings),
    }


def _worst_entry(worst: Worst) -> dict[str, object]:
    return {
        **_entry(worst.loss),
        "alike": worst.alike,
        "old_simulated": None if worst.old is None else worst.old.summary(),
        "new_simulated": None if worst.new is None else worst.new.summary(),
    }


def _entry(loss: Loss) -> dict[str, object]:
    failure = loss.failure
    found: dict[str, object] = {
        "kind": failure.kind,
        "name": failure.name,
        "copies": failure.copies,
        "without": list(failure.without),
        "scale": {change.pattern: str(change.factor) for change in failure.scale},
        "old_algbw": None if loss.old is None else str(loss.old),
        "new_algbw": None if loss.new is None else str(loss.new),
        "class": loss.member_of,
    }
    if loss.reason:
        found["reason"] = loss.reason
    if loss.note:
        found["note"] = loss.note
    return found


def _title(loss: Loss) -> str:
    """What fails, with what it is where the name alone does not say it."""
    failure = loss.failure
    kind = {"gpu": "GPU ", "switch": "switch "}.get(failure.kind, "")
    return kind + failure.name


def _by_kind(report: Report) -> list[list[object]]:
    """A row for each kind that there is."""
    rows: list[list[object]] = []
    for kind in dict.fromkeys(loss.failure.kind for loss in report.losses):
        losses = [loss for loss in report.losses if loss.failure.kind == kind]
        rates = sorted(
            rate for loss in losses for rate in [loss.new or Fraction(0)] * loss.failure.copies
        )
        stopped = sum(loss.failure.copies for loss in losses if loss.old is None)
        rows.append(
            [
                kind,
                len(rates),
                stopped,
                _rate(rates[0], report.before),
                _rate(rates[len(rates) // 2], report.before),
            ]
        )
    return rows


def _rate(rate: Fraction | None, whole: Fraction, unit: str = " GB/s") -> str:
    """`"320 GB/s (92.31 %)"`."""
    if rate is None:
        return STOPS
    return f"{words.decimal(rate)}{unit} ({words.percent(rate, whole)})"


def plot(report: Report, count: int, form: str) -> bytes | str:
    """Bars of the `count` worst failures: percent of today's algbw, by both plans.

    `form`: "svg" (text) or "png" (bytes). Raises UnsupportedError where matplotlib is missing.
    """
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise UnsupportedError(
            "plots need matplotlib: install the extra 'plot' (pip install '.[plot]')"
        ) from None
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "forestcoll"  # the same figures give the same file
    import matplotlib.pyplot as plt

    entries = report.worst(count)[::-1]
    names = [_title(loss) + (f"  (x{alike})" if alike > 1 else "") for loss, alike in entries]
    figure, axis = plt.subplots(figsize=(9, 1.6 + 0.42 * len(entries)), layout="constrained")
    try:
        places = range(len(entries))
        for offset, label, colour, none, rates in (
            (-0.19, "plan in use", "#b8c4d6", STOPS, [loss.old for loss, _ in entries]),
            (0.19, "new plan", "#2f6db5", "no plan", [loss.new for loss, _ in entries]),
        ):
            percents = [float(100 * (rate or 0) / report.before) for rate in rates]
            at = [place - offset for place in places]
            axis.barh(at, percents, height=0.36, label=label, color=colour)
            for y, rate, percent in zip(at, rates, percents, strict=True):
                text = none if rate is None else f"{words.decimal(rate, 1)} GB/s"
                axis.text(percent + 1, y, text, va="center", fontsize=8)
        axis.set_yticks(list(places), names, fontsize=8)
        axis.set_xlim(0, 118)
        axis.axvline(100, color="#666666", linewidth=0.8, linestyle="--")
        axis.set_xlabel(f"percent of {words.decimal(report.before)} GB/s, what links allow before")
        workload = report.workload
        axis.set_title(f"Worst single failures: {workload.collective} on {workload.topology.name}")
        axis.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
        return _saved(figure, form)
    finally:
        plt.close(figure)


def _saved(figure: Any, form: str) -> bytes | str:
    if form == "svg":
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        return text.getvalue()
    data = BytesIO()
    figure.savefig(data, format="png", dpi=150)
    return data.getvalue()


def _clause(reason: str) -> str:
    """What is wrong, without the names of all ranks and the ways out."""
    return reason.partition(":")[0].partition(";")[0]


def written(path: Path) -> RenderableType:
    """A line about a file."""
    return tables.facts([("written", str(path))])


def bundle_table(index: Mapping[str, Any], folder: Path) -> RenderableType:
    """What a bundle holds."""
    failures = index["failures"]
    without = [entry for entry in failures if entry["reason"]]
    facts = [
        ("bundle", f"{words.plural(len(failures), 'failure')}, {', '.join(index['formats'])}"),
        ("made now", str(len(failures) - index["resumed"])),
    ]
    if index["resumed"]:
        facts.append(("there before", str(index["resumed"])))
    facts += [("no plan", f"{entry['name']}: {_clause(entry['reason'])}") for entry in without[:5]]
    if len(without) > 5:
        facts.append(("no plan", f"and {len(without) - 5} more, see {folder}/bundle.json"))
    facts.append(("written", f"{folder}/bundle.json and a folder for each failure"))
    return tables.facts(facts)
