"""Pareto front of algbw against trees per root, as a table for people and as JSON for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forestcoll.ui.report import table as tables
from forestcoll.ui.report import words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forestcoll.compile.front import FrontTable, Row


def table(front: FrontTable) -> RenderableType:
    """A line a point, and under it what plans need or why there is none."""
    from rich.console import Group

    heads = ["trees per root", "algbw", "of optimal", "simulated", "height", "latency", "different"]
    plans = list(front.rows[0].needs)
    rows = []
    for row in front.rows:
        line = [
            str(row.point.trees),
            words.decimal(row.point.algbw),
            words.percent(row.point.algbw, front.optimum.algbw),
            _simulated(row),
            _height(row, len(front.graph.ranks)),
            "" if row.latency is None else words.microseconds(row.latency),
            "" if row.different is None else str(row.different),
        ]
        rows.append([*line, *(_need(row, target) for target in plans)])
    if all(row.band is None for row in front.rows):
        heads, rows = heads[:3] + heads[4:], [row[:3] + row[4:] for row in rows]
    if front.rows[0].height is None:
        heads, rows = heads[:3], [row[:3] for row in rows]
    title = f"{front.collective} on {front.name}, {words.plural(len(front.graph.ranks), 'rank')}"
    facts = [
        ("front", title),
        ("optimum", f"{words.exact(front.optimum.algbw)} GB/s"),
        ("wall time", words.seconds(sum(front.timings.values()))),
    ]
    if any(row.band is not None for row in front.rows):
        facts.append(("simulated", "GB/s of the trees alone at 1 GB"))
        facts.append(("model", _model(front)))
    if front.left_out:
        facts.append(("left out", f"{words.plural(front.left_out, 'point')} between; --all"))
    if plans:
        facts.append(("plans", "thread blocks per rank / channels / steps per thread block"))
    return Group(tables.facts(facts), "", tables.columns([*heads, *plans], rows, range(len(heads))))


def _model(front: FrontTable) -> str:
    return words.model(row.band for row in front.rows if row.band is not None)


def _simulated(row: Row) -> str:
    """Least and most GB/s of the trees alone over links in order and links that share."""
    return "" if row.band is None else words.span(row.band)


def _height(row: Row, ranks: int) -> str:
    """Hops, and behind them the lower bound where it is not met."""
    if row.height is None:
        return ""
    least = row.least_height
    known = least in (None, row.height) or ranks <= words.BOUNDED_FROM
    return str(row.height) if known else f"{row.height} (>= {least})"


def summary(front: FrontTable) -> dict[str, object]:
    """The same for machines: fractions as strings; `plan` is None where there is a `reason`."""
    return {
        "topology": front.name,
        "collective": front.collective.value,
        "ranks": len(front.graph.ranks),
        "optimum": str(front.optimum.algbw),
        "optimum_decimal": float(front.optimum.algbw),
        "left_out": front.left_out,
        "model": _model(front) or None,
        "points": [_point(row) for row in front.rows],
        "seconds": dict(front.timings),
    }


def _point(row: Row) -> dict[str, object]:
    point = row.point
    found: dict[str, object] = {
        "trees_per_root": point.trees,
        "algbw": str(point.algbw),
        "algbw_decimal": float(point.algbw),
        "percent": float(100 * point.share),
    }
    if row.height is not None:
        found |= {"height": row.height, "height_bound": row.least_height}
        found |= {"different_trees_per_root": row.different}
        found |= {"simulated": None if row.band is None else row.band.summary()}
    if row.latency is not None:
        found |= {"latency_us": str(row.latency), "latency_us_decimal": float(row.latency)}
    if row.needs:
        found["plans"] = {
            target: {"fits": False, "reason": need}
            if isinstance(need, str)
            else {
                "fits": True,
                "thread_blocks": need.thread_blocks,
                "channels": need.channels,
                "steps": need.steps,
            }
            for target, need in row.needs.items()
        }
    return found


def _need(row: Row, target: str) -> str:
    """`"16 / 8 / 40"`, or the figure that is too large."""
    need = row.needs[target]
    if isinstance(need, str):
        return "no: " + need.partition("; ")[0].rpartition(": ")[2]
    return f"{need.thread_blocks} / {need.channels} / {need.steps}"
