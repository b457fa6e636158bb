"""A comparison as facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from forestcoll.study.comparison.outcome import OURS
from forestcoll.ui.report import words
from forestcoll.ui.report.facts import (
    Fact,
    Part,
    Rows,
    grid,
    limit,
    line,
    machine,
    notes,
    switches,
    texts,
)
from forestcoll.verify.simulate import RULE_WORDS

if TYPE_CHECKING:
    from forestcoll.study.comparison import Cell, Comparison

COLUMNS = ["size", "time", "algbw", "busbw", "of bound", "plan", "best baseline", "time", "faster"]
USED = ["schedule", "busiest link", "GB/s", "used"]
OTHERS = ["schedule", "size", "time", "algbw", "of bound", "ours", "it takes"]


def heading(result: Comparison) -> list[Fact]:
    """What is compared, and what no schedule exceeds."""
    title = f"{result.collective} on {result.name}, {words.plural(result.ranks, 'rank')}"
    why = limit(result.best) if result.best else ""
    return [
        *machine(topology=result.name, collective=result.collective.value, ranks=result.ranks),
        line("compare", title),
        Fact("bound", result.bound, words.rate(result.bound)),
        Fact("bottleneck", why or None, why),
        switches(result.in_switches),
        Fact("model", result.model, result.model),
        *machine(sizes=result.sizes, rules=result.rules),
    ]


def body(result: Comparison, busiest: int = 2) -> list[Part]:
    """For each rule of links ours beside the best baseline, and everybody's algbw.

    For machines all cells, who is fastest from where to where, and links that are used most.
    """
    leads = [lead for rule in result.rules for lead in result.leads(rule)]
    parts: list[Part] = [
        _rows(
            "schedules",
            (
                {"schedule": e.name, "kind": e.kind, "is": e.words, "refused": e.why or None}
                for e in result.entrants
            ),
        ),
        _rows("rows", result.rows()),
        _rows(
            "fastest",
            ({"links": x.rule, "schedule": x.name, "from": x.low, "to": x.high} for x in leads),
        ),
        _rows("busiest", result.busiest()),
    ]
    for rule in result.rules:
        parts += [
            texts("links", [_RULES[rule]]),
            ours(result, rule),
            grid(OTHERS, _others(result, rule), range(1, 6)),
            everybody(result, rule),
            texts(
                "fastest",
                (f"{x.name}, {about(x.low)} to {about(x.high)}" for x in leads if x.rule == rule),
            ),
            grid(USED, _busiest(result, rule, busiest), (2, 3)),
        ]
    refused = [(e.name, e.why) for e in result.entrants if e.why]
    partial = "cut off before all was played: what is missing is left out"
    parts += [
        grid(("not here", "why"), refused, ()),
        [Fact("partial", result.partial, partial * result.partial), *notes(result.notes)],
    ]
    return parts


def rows(result: Comparison, seen: set[tuple[str, int]], names: Sequence[str]) -> Rows:
    """What is known and not `seen` yet, a row for each schedule and size; adds it to `seen`.

    `names`: of all schedules that may come.
    """
    rows_made = []
    for name, size in dict.fromkeys((cell.name, cell.size) for cell in result.cells):
        if (name, size) not in seen:
            cells = [cell for r in result.rules if (cell := result.cell(name, size, r)) is not None]
            rates = [text for cell in cells for text in _rate(cell)]
            rows_made.append([name, words.size(size), *rates, cells[0].plan or "what links allow"])
    heads = ["schedule", "size"]
    wide = [max(map(len, (*names, "schedule"))), 8]
    for rule in result.rules:
        heads += [f"{RULE_WORDS[rule]}, us", "GB/s"]
        wide += [len(heads[-2]), 6]
    table = grid([*heads, "plan"], rows_made, range(1, len(heads)))
    table = replace(table, wide=[*wide, 16], headed=not seen)
    seen.update((cell.name, cell.size) for cell in result.cells)
    return table


def _rate(cell: Cell) -> tuple[str, str]:
    if not cell.plan:
        return f"> {cell.time:.1f}", f"< {cell.algbw:.3g}"
    return f"{cell.time:.1f}", f"{cell.algbw:.4g}"


_RULES = {
    "fair": "fair: transfers share a link evenly",
    "fifo": "in order: a link serves one transfer after the other",
    "weighted": "weighted: transfers share a link in proportion to their bytes",
}


def ours(result: Comparison, rule: str) -> Rows:
    """Ours beside the best baseline, a row a size."""
    rows = []
    for size in result.sizes:
        mine, best = result.cell(OURS, size, rule), result.best_baseline(size, rule)
        times = result.speedup(size, rule)
        own, other = ["no plan", "", "", "", ""], ["", ""]
        if mine:
            rates = [f"{mine.algbw:.4g}", f"{mine.busbw:.4g}", f"{mine.percent:.1f} %"]
            own = [words.duration(mine.time), *rates, mine.plan]
        if best:
            other = [best.name, words.duration(best.time)]
        faster = "" if times is None else f"{times:.2f} x"
        rows.append([words.size(size), *own, *other, faster])
    return grid(COLUMNS, rows, (1, 2, 3, 4, 7, 8))


def _others(result: Comparison, rule: str) -> Iterator[list[str]]:
    """Old plans and files, with how many times as fast ours is, and what they take of the links."""
    for entrant in result.present:
        for size in result.sizes if entrant.kind in ("old", "file") else ():
            cell, mine = result.cell(entrant.name, size, rule), result.cell(OURS, size, rule)
            if cell is not None:
                ours = "" if mine is None else f"{cell.time / mine.time:.2f} x"
                own = [words.duration(cell.time), f"{cell.algbw:.4g}", f"{cell.percent:.1f} %"]
                yield [entrant.name, words.size(size), *own, ours, cell.use]


def everybody(result: Comparison, rule: str) -> Rows:
    """Everybody's algbw, a row each."""
    heads = ["algbw, GB/s", *map(words.size, result.sizes)]
    rows = []
    for entrant in result.present:
        cells = [result.cell(entrant.name, size, rule) for size in result.sizes]
        rates = [f"{'' if c.plan else '< '}{c.algbw:.3g}" if c else "-" for c in cells]
        rows.append([entrant.name, *rates])
    return grid(heads, rows)


def _rows(key: str, rows: Iterable[Mapping[str, object]]) -> Rows:
    """Rows for machines alone."""
    return Rows(key, [machine(**row) for row in rows])


def about(size: int) -> str:
    """Bytes in two or three digits where they are no round number: where lines cross."""
    if len(words.size(size)) <= len("1023 GiB") or size < 1024:
        return words.size(size)
    step = (size.bit_length() - 1) // 10
    return f"about {size / 1024**step:.3g} {' KMGT'[step]}iB"


def _busiest(result: Comparison, rule: str, most: int) -> Iterator[list[str]]:
    if not result.cells:
        return
    best = result.best_baseline(max(result.sizes), rule)
    shown = {e.name for e in result.present if e.kind != "baseline"}
    shown |= {best.name} if best is not None else set()
    for row in result.busiest(most):
        if row["links"] == rule and row["schedule"] in shown:
            rate, used = f"{row['bandwidth']:.4g}", f"{100 * row['used']:.1f} %"
            yield [row["schedule"], row["link"], rate, used]
