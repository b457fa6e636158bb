"""A comparison as tables for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from forestcoll.report import table as tables
from forestcoll.report import words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forestcoll.comparison import Cell, Comparison

OURS = "forestcoll"


def table(found: Comparison, busiest: int = 2) -> RenderableType:
    """Facts, then for each rule of links ours beside the best baseline, and everybody's algbw."""
    from rich.console import Group

    title = f"{found.collective} on {found.name}, {words.plural(found.ranks, 'rank')}"
    parts: list[RenderableType] = [
        tables.facts([("compare", title), ("bound", f"{words.exact(found.bound)} GB/s")])
    ]
    for rule in found.rules:
        parts += ["", tables.facts([("links", _rule(rule))]), "", _ours(found, rule)]
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
    if found.notes:
        parts += ["", tables.facts([("note", text) for text in found.notes])]
    return Group(*parts)


def _rule(rule: str) -> str:
    return {
        "fair": "fair: transfers share a link evenly",
        "fifo": "fifo: a link serves one transfer after the other",
        "weighted": "weighted: transfers share a link in proportion to their bytes",
    }[rule]


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


def _everybody(found: Comparison, rule: str) -> RenderableType:
    heads = ["algbw, GB/s", *map(words.size, found.sizes)]
    rows = []
    for entrant in found.present:
        cells = [found.cell(entrant.name, size, rule) for size in found.sizes]
        rows.append([entrant.name, *(f"{c.algbw:.3g}" if c else "-" for c in cells)])
    return tables.columns(heads, rows, range(1, len(heads)))


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
    shown = {OURS, "old plan", *(() if best is None else (best.name,))}
    for name, own, use, share in found.busiest(most):
        if own == rule and name in shown:
            link = f"{use.src} -> {use.dst}"
            yield [name, link, f"{use.bandwidth:.4g}", f"{100 * share:.1f} %"]
