"""Single failures as tables for people, as JSON for machines, and as a plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from forestcoll.ui.report import figures, words
from forestcoll.ui.report.facts import Fact, Part, Rows, grid, line, machine, same, seconds, texts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from forestcoll.study.degrade.losses import Loss, Report, Worst
    from forestcoll.verify.simulate import Band

STOPS = "stops"
"""What a plan does whose link is gone."""
SIMULATED = "; simulated: what the trees alone reach at 1 GB over links in order and fair ones"
KINDS = ("kind", "failures", "plan in use stops", "new plan, worst", "new plan, median")
NOTES = 3
"""Reasons that are told why new plans may be faster than is said."""
REASONS = 4
"""Failures of which a reason is given why there is no plan."""


def losses(report: Report, worst: Sequence[Worst], whole: Band | None) -> list[Part]:
    """What the failures of each kind cost, and the worst of all; every failure for machines.

    `whole`: what the forest in use reaches while all works, where that is simulated.
    """
    workload, before, classes = report.workload, report.before, report.solved
    played = "" if whole is None else f"; simulated {words.rates(whole)}, the trees alone"
    total = sum(loss.failure.copies for loss in report.losses)
    title = f"{workload.collective} on {workload.topology.name}, one at a time"
    best = words.rate(report.optimum) if before != report.optimum else ""
    of_classes = f"{total}, in {words.plural(classes, 'class')} by the fabric's symmetry"
    why = Counter(loss.note for loss in report.losses if loss.note).most_common(NOTES)
    slower = [f"{words.plural(n, 'new plan')} may be faster than said: {w}" for w, n in why]
    head = [
        Fact("topology", workload.topology.name, title, "failures"),
        *machine(collective=workload.collective, root=workload.root, algbw_decimal=float(before)),
        Fact("algbw", before, words.rate(before) + played, "in use"),
        Fact("optimum", report.optimum, best),
        Fact("classes", classes, of_classes, "looked at"),
        Fact("simulated", whole, "what links allow" + SIMULATED * (whole is not None), "GB/s"),
        line("model", "" if whole is None else whole.model),
        seconds(report.timings, whole=True),
        Fact("failures", map(_entry, report.losses)),
        *texts("note", slower),
    ]
    lost = [w.loss for w in worst if w.loss.reason][:REASONS]
    none = [f"{loss.failure.name}: {_clause(loss.reason)}" for loss in lost]
    kinds = []
    for kind in dict.fromkeys(x.failure.kind for x in report.losses):
        of_kind = [x for x in report.losses if x.failure.kind == kind]
        rates = sorted(x.new or Fraction(0) for x in of_kind for _ in range(x.failure.copies))
        stopped = sum(x.failure.copies for x in of_kind if x.old is None)
        least, median = (_rate(rates[k], before) for k in (0, len(rates) // 2))
        kinds.append([kind, len(rates), stopped, least, median])
    rows = [_worst(entry, before) for entry in worst]
    return [
        head,
        grid(KINDS, kinds),
        Rows("worst", rows, right=range(1, 6)),
        texts("no plan", none),
    ]


def _worst(worst: Worst, before: Fraction) -> list[Fact]:
    """A row of the worst failures: what is said of it, and what is simulated."""
    loss, none = worst.loss, "none" if worst.loss.reason else ""
    new = none or "at least " * bool(loss.note) + _rate(loss.new, before, "")
    return [
        *machine(**_entry(loss)),
        line("fails", _title(loss)),
        same("alike", worst.alike),
        line("plan in use, GB/s", _rate(loss.old, before, "")),
        Fact("old_simulated", worst.old, words.span, "simulated"),
        line("new plan, GB/s", new),
        Fact("new_simulated", worst.new, words.span, "simulated"),
        line("see it with", loss.failure.options),
    ]


def _entry(loss: Loss) -> dict[str, object]:
    failure = loss.failure
    entry: dict[str, object] = {
        "kind": failure.kind,
        "name": failure.name,
        "copies": failure.copies,
        "without": failure.without,
        "scale": {change.pattern: change.factor for change in failure.scale},
        "old_algbw": loss.old,
        "new_algbw": loss.new,
        "class": loss.member_of,
    }
    more = {"reason": loss.reason, "note": loss.note}
    return entry | {key: text for key, text in more.items() if text}


def _rate(rate: Fraction | None, whole: Fraction, unit: str = " GB/s") -> str:
    """`"320 GB/s (92.31 %)"`."""
    if rate is None:
        return STOPS
    return f"{words.decimal(rate)}{unit} ({words.percent(rate, whole)})"


def _title(loss: Loss) -> str:
    """What fails, with what it is where the name alone does not say it."""
    kind = {"gpu": "GPU ", "switch": "switch "}.get(loss.failure.kind, "")
    return kind + loss.failure.name


def plot(report: Report, count: int, form: str) -> bytes:
    """Bars of the `count` worst failures: percent of today's algbw, by both plans.

    `form`: "svg" or "png". Raises UnsupportedError where matplotlib is missing.
    """
    entries = report.worst(count)[::-1]
    names = [_title(loss) + (f"  (x{alike})" if alike > 1 else "") for loss, alike in entries]
    figure, _ = figures.new_figure(9, 1.6 + 0.42 * len(entries), dark=False)
    axis = figure.subplots()
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
    return figures.save(figure, form)


def _clause(reason: str) -> str:
    """What is wrong, without the names of all ranks and the ways out."""
    return reason.partition(":")[0].partition(";")[0]


def bundle(index: Mapping[str, Any], folder: Path) -> list[Fact]:
    """What a bundle holds."""
    failures, earlier = index["failures"], index["resumed"]
    none = [f"{e['name']}: {_clause(e['reason'])}" for e in failures if e["reason"]]
    if len(none) > 5:
        none[5:] = [f"and {len(none) - 5} more, see {folder}/bundle.json"]
    return [
        line("bundle", f"{words.plural(len(failures), 'failure')}, {', '.join(index['formats'])}"),
        line("made now", str(len(failures) - earlier)),
        line("there before", str(earlier or "")),
        *texts("no plan", none),
        line("written", f"{folder}/bundle.json and a folder for each failure"),
    ]
