"""Pareto front of algbw against trees per root, as a table for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forestcoll.ui.report import words
from forestcoll.ui.report.facts import Fact, Rows, machine, model, seconds, views

if TYPE_CHECKING:
    from forestcoll.compile.front import FrontTable, Row
    from forestcoll.lower import Usage


def _facts(front: FrontTable) -> list[Sequence[Fact] | Rows]:
    """A line a point, and what plans need or why there is none."""
    ranks, best = len(front.graph.ranks), front.optimum.algbw
    bands = [row.band for row in front.rows if row.band is not None]
    plans = "thread blocks per rank / channels / steps per thread block"
    left = f"{words.plural(front.left_out, 'point')} between; --all" if front.left_out else ""
    title = f"{front.collective} on {front.name}, {words.plural(ranks, 'rank')}"
    facts = [
        Fact("topology", front.name, title, "front"),
        *machine(collective=front.collective, ranks=ranks, optimum_decimal=float(best)),
        Fact("optimum", best, words.rate(best)),
        seconds(front.timings, whole=True),
        Fact("", None, "GB/s of the trees alone at 1 GB" if bands else "", "simulated"),
        model(bands),
        Fact("left_out", front.left_out, left, "left out"),
        Fact("", None, plans if front.rows[0].needs else "", "plans"),
    ]
    points = [_point(row, front) for row in front.rows]
    return [facts, Rows("points", points, right=range(7))]


table, summary = views(_facts)


def _point(row: Row, front: FrontTable) -> list[Fact]:
    """A row; of points without a forest only what the trees per root say."""
    algbw, late = row.point.algbw, row.latency
    facts = [
        Fact("trees_per_root", row.point.trees, str(row.point.trees), "trees per root"),
        Fact("algbw", algbw, words.decimal(algbw)),
        Fact("algbw_decimal", float(algbw)),
        Fact(
            "percent",
            float(100 * row.point.share),
            words.percent(algbw, front.optimum.algbw),
            "of optimal",
        ),
    ]
    if row.height is not None:
        facts += [
            Fact("simulated", row.band, "" if row.band is None else words.span(row.band)),
            Fact("height", row.height, _height(row, len(front.graph.ranks))),
            Fact("height_bound", row.least_height),
        ]
    if late is not None:
        facts.append(Fact("latency_us", late, words.microseconds(late), "latency"))
        facts.append(Fact("latency_us_decimal", float(late)))
    if row.height is not None:
        facts.append(
            Fact("different_trees_per_root", row.different, str(row.different), "different")
        )
    facts += [Fact("", None, _need(need), target) for target, need in row.needs.items()]
    if row.needs:
        facts.append(Fact("plans", {target: _plan(need) for target, need in row.needs.items()}))
    return facts


def _plan(need: Usage | str) -> dict[str, object]:
    if isinstance(need, str):
        return {"fits": False, "reason": need}
    keys = ("thread_blocks", "channels", "steps")
    return {"fits": True, **{key: getattr(need, key) for key in keys}}


def _height(row: Row, ranks: int) -> str:
    """Hops, and behind them the lower bound where it is not met."""
    least = row.least_height
    known = least in (None, row.height) or ranks <= words.BOUNDED_FROM
    return str(row.height) if known else f"{row.height} (>= {least})"


def _need(need: Usage | str) -> str:
    """`"16 / 8 / 40"`, or the figure that is too large."""
    if isinstance(need, str):
        return "no: " + need.partition("; ")[0].rpartition(": ")[2]
    return f"{need.thread_blocks} / {need.channels} / {need.steps}"
