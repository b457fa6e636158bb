"""A comparison as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from forestcoll.ui.report import reached, words
from forestcoll.ui.report import table as tables
from forestcoll.verify.simulate import RULE_WORDS

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forestcoll.study.comparison import Cell, Comparison

OURS = "forestcoll"


def table(found: Comparison, busiest: int = 2) -> RenderableType:
    """Facts, then for each rule of links ours beside the best baseline, and everybody's algbw."""
    from rich.console import Group

    return Group(heading(found), *body(found, busiest))


def heading(found: Comparison) -> RenderableType:
    """What is compared, and what no schedule exceeds."""
    title = f"{found.collective} on {found.name}, {words.plural(found.ranks, 'rank')}"
    facts = [
        ("compare", title),
        ("bound", f"{words.exact(found.bound)} GB/s"),
        *([("bottleneck", reached.limit(found.best))] if found.best else []),
        *words.switches(found.in_switches),
        ("model", found.model),
    ]
    return tables.facts(facts)


def body(found: Comparison, busiest: int = 2) -> list[RenderableType]:
    """The tables."""
    parts: list[RenderableType] = []
    for rule in found.rules:
        parts += ["", tables.facts([("links", _RULES[rule])]), "", _ours(found, rule)]
        others = list(_others(found, rule))
        if others:
            heads = ["schedule", "size", "time", "algbw", "of bound", "ours", "it takes"]
            parts += ["", tables.columns(heads, others, (1, 2, 3, 4, 5))]
        parts += ["", _everybody(found, rule)]
        parts += ["", tables.facts(_leads(found, rule))]
        used = list(_busiest(found, rule, busiest))
        if used:
            parts += [
                "",
                tables.columns(["schedule", "busiest link", "GB/s", "used"], used, (2, 3)),
            ]
    refused = [(e.name, e.why) for e in found.entrants if e.why]
    if refused:
        parts += ["", tables.columns(["not here", "why"], refused)]
    notes = [("note", text) for text in found.notes]
    if found.partial:
        notes.insert(0, ("partial", "cut off before all was played: what is missing is left out"))
    if notes:
        parts += ["", tables.facts(notes)]
    return parts


def rows(
    found: Comparison, seen: set[tuple[str, int]], names: Sequence[str]
) -> RenderableType | None:
    """What is known and not `seen` yet, a row for each schedule and size; adds it to `seen`.

    `names`: of all schedules that may come.
    """
    made = []
    for name, size in dict.fromkeys((cell.name, cell.size) for cell in found.cells):
        if (name, size) not in seen:
            cells = [cell for r in found.rules if (cell := found.cell(name, size, r)) is not None]
            rates = [text for cell in cells for text in _rate(cell)]
            made.append([name, words.size(size), *rates, cells[0].plan or "what links allow"])
    if not made:
        return None
    heads = ["schedule", "size"]
    wide = [max(map(len, (*names, "schedule"))), 8]
    for rule in found.rules:
        heads += [f"{RULE_WORDS[rule]}, us", "GB/s"]
        wide += [len(heads[-2]), 6]
    right = range(1, len(heads))
    first = not seen
    seen.update((cell.name, cell.size) for cell in found.cells)
    return tables.columns([*heads, "plan"], made, right, [*wide, 16], headed=first)


def _rate(cell: Cell) -> tuple[str, str]:
    if not cell.plan:
        return f"> {cell.time:.1f}", f"< {cell.algbw:.3g}"
    return f"{cell.time:.1f}", f"{cell.algbw:.4g}"


_RULES = {
    "fair": "fair: transfers share a link evenly",
    "fifo": "in order: a link serves one transfer after the other",
    "weighted": "weighted: transfers share a link in proportion to their bytes",
}


def time_words(microseconds: float) -> str:
    """Microseconds for people."""
    if microseconds < 1000:
        return f"{microseconds:.2f} us"
    return words.seconds(microseconds / 1e6)


def _ours(found: Comparison, rule: str) -> RenderableType:
    heads = [
        "size",
        "time",
        "algbw",
        "busbw",
        "of bound",
        "plan",
        "best baseline",
        "time",
        "faster",
    ]
    rows = []
    for size in found.sizes:
        mine, best = found.cell(OURS, size, rule), found.best_baseline(size, rule)
        times = found.speedup(size, rule)
        rows.append(
            [
                words.size(size),
                *(_cell(mine) if mine else ["no plan", "", "", "", ""]),
                *([best.name, time_words(best.time)] if best else ["", ""]),
                "" if times is None else f"{times:.2f} x",
            ]
        )
    return tables.columns(heads, rows, (1, 2, 3, 4, 7, 8))


def _cell(cell: Cell) -> list[str]:
    rates = [f"{cell.algbw:.4g}", f"{cell.busbw:.4g}", f"{cell.percent:.1f} %"]
    return [time_words(cell.time), *rates, cell.plan]


def _others(found: Comparison, rule: str) -> Iterator[list[str]]:
    """Old plans and files, with how many times as fast ours is, and what they take of the links."""
    for entrant in found.present:
        for size in found.sizes if entrant.kind in ("old", "file") else ():
            cell, mine = found.cell(entrant.name, size, rule), found.cell(OURS, size, rule)
            if cell is not None:
                ours = "" if mine is None else f"{cell.time / mine.time:.2f} x"
                own = [time_words(cell.time), f"{cell.algbw:.4g}", f"{cell.percent:.1f} %"]
                yield [entrant.name, words.size(size), *own, ours, cell.use]


def _everybody(found: Comparison, rule: str) -> RenderableType:
    heads = ["algbw, GB/s", *map(words.size, found.sizes)]
    rows = []
    for entrant in found.present:
        cells = [found.cell(entrant.name, size, rule) for size in found.sizes]
        rows.append([entrant.name, *(_algbw(c) if c else "-" for c in cells)])
    return tables.columns(heads, rows, range(1, len(heads)))


def _algbw(cell: Cell) -> str:
    return f"{'' if cell.plan else '< '}{cell.algbw:.3g}"


def _leads(found: Comparison, rule: str) -> Iterator[tuple[str, str]]:
    for lead in found.leads(rule):
        yield "fastest", f"{lead.name}, {about(lead.low)} to {about(lead.high)}"


def about(size: int) -> str:
    """Bytes in two or three digits where they are no round number: where lines cross."""
    if len(words.size(size)) <= len("1023 GiB") or size < 1024:
        return words.size(size)
    step = (size.bit_length() - 1) // 10
    return f"about {size / 1024**step:.3g} {' KMGT'[step]}iB"


def _busiest(found: Comparison, rule: str, most: int) -> Iterator[list[str]]:
    if not found.cells:
        return
    best = found.best_baseline(max(found.sizes), rule)
    shown = {e.name for e in found.present if e.kind != "baseline"}
    shown |= {best.name} if best is not None else set()
    for name, own, use, share in found.busiest(most):
        if own == rule and name in shown:
            link = f"{use.src} -> {use.dst}"
            yield [name, link, f"{use.bandwidth:.4g}", f"{100 * share:.1f} %"]
