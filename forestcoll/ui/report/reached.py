"""What links allow a plan, trees or routes, and what limits that: in the words of all commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forestcoll.study.figures import Limit
from forestcoll.ui.report import words
from forestcoll.ui.report.facts import Fact, as_json

if TYPE_CHECKING:
    from fractions import Fraction

    from forestcoll.study.figures import Figures

KEYS = ("algbw", "bound", "percent", "bottleneck", "in_switches")


def limit(figures: Figures) -> str:
    """What bounds it; "" where that is unknown."""
    if figures.limit is None:
        return ""
    if isinstance(figures.limit, Limit):
        return words.bottleneck(figures.limit.graph, figures.limit.collective, figures.limit.bound)
    return "; ".join(words.limits_of(figures.limit))


def facts(figures: Figures, more: str = "", simulated: str = "") -> list[Fact]:
    """The five facts KEYS. `more`, `simulated`: words behind the algbw, and behind its share."""
    algbw, bound, why = figures.algbw, figures.bound, limit(figures)
    if figures.best:
        more += ", of the best plan; this one's trees are unknown"
    share, of_optimal = None, ""
    if bound is not None and not figures.best:
        share, of_optimal = float(100 * algbw / bound), words.percent(algbw, bound) + simulated
    return [
        Fact("algbw", algbw, words.rate(algbw) + more),
        Fact("bound", bound, "" if bound is None else words.rate(bound)),
        Fact("percent", share, of_optimal, "of optimal"),
        Fact("bottleneck", why or None, why),
        switches(figures.in_switches),
    ]


def switches(algbw: Fraction | None) -> Fact:
    """What copies and adds on the GPUs could reach in switches; no words where that is unknown."""
    text = "" if algbw is None else f"{words.in_switches(algbw)}; here the GPUs do"
    return Fact("in_switches", algbw, text, "switches")


def rows(figures: Figures) -> list[tuple[str, str]]:
    """The rows of a table."""
    return [(fact.head, str(fact.text)) for fact in facts(figures) if fact.text]


def line(figures: Figures) -> str:
    """`"1800/7 (257.143) GB/s, 99.64 % of the bound 8000/31 (258.065) GB/s"`."""
    text = words.rate(figures.algbw)
    if figures.bound is None or figures.best:
        return text
    share = words.percent(figures.algbw, figures.bound)
    return f"{text}, {share} of the bound {words.rate(figures.bound)}"


def summary(figures: Figures | None) -> dict[str, object]:
    """The same for machines; of what nothing is known of, null."""
    return dict.fromkeys(KEYS) if figures is None else as_json(facts(figures))
