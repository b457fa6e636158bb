"""What links allow a plan, trees or routes, and what limits that: in the words of all commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forestcoll.study.figures import Limit
from forestcoll.ui.report import words
from forestcoll.ui.report.limits import limits_of

if TYPE_CHECKING:
    from forestcoll.study.figures import Figures


def limit(found: Figures) -> str:
    """What bounds it; "" where that is unknown."""
    if found.limit is None:
        return ""
    if isinstance(found.limit, Limit):
        return words.bottleneck(found.limit.graph, found.limit.collective, found.limit.bound)
    return "; ".join(limits_of(found.limit))


def rows(found: Figures) -> list[tuple[str, str]]:
    """The rows of a table."""
    whose = ", of the best plan; this one's trees are unknown" if found.best else ""
    shown = [("algbw", f"{words.exact(found.algbw)} GB/s{whose}")]
    if found.bound is not None:
        shown.append(("bound", f"{words.exact(found.bound)} GB/s"))
        if not found.best:
            shown.append(("of optimal", words.percent(found.algbw, found.bound)))
        shown.append(("bottleneck", limit(found)))
    return shown + words.switches(found.in_switches)


def line(found: Figures) -> str:
    """`"1800/7 (257.143) GB/s, 99.64 % of the bound 8000/31 (258.065) GB/s"`."""
    text = f"{words.exact(found.algbw)} GB/s"
    if found.bound is None or found.best:
        return text
    share = words.percent(found.algbw, found.bound)
    return f"{text}, {share} of the bound {words.exact(found.bound)} GB/s"


def summary(found: Figures | None) -> dict[str, object]:
    """The same for machines; of what nothing is known of, null."""
    if found is None:
        return dict.fromkeys(("algbw", "bound", "percent", "bottleneck", "in_switches"))
    bound, other = found.bound, found.in_switches
    return {
        "algbw": str(found.algbw),
        "bound": None if bound is None else str(bound),
        "percent": None if bound is None or found.best else float(100 * found.algbw / bound),
        "bottleneck": limit(found) or None,
        "in_switches": None if other is None else str(other),
    }
