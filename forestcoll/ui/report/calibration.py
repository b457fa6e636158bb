"""Nominal beside measured, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forestcoll.ui.report import table as tables
from forestcoll.ui.report import words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forestcoll.topology.calibrate import Calibration

SHOWN = 8


def table(fit: Calibration) -> RenderableType:
    """A row a class of links, and one for each link that is off its class."""
    rows = []
    for one in fit.classes:
        links = str(one.links)
        if one.measured_links < one.links:
            links = f"{one.measured_links} of {one.links}"
        rows.append(
            (
                one.name,
                links,
                words.decimal(one.nominal),
                words.decimal(one.measured),
                words.percent(one.measured, one.nominal),
                "" if one.latency is None else words.decimal(one.latency),
            )
        )
        for (src, dst), rate in one.slow[:SHOWN]:
            percent = words.percent(rate, one.nominal)
            rows.append((f"  {src} -> {dst}", "1", "", words.decimal(rate), percent, ""))
        if len(one.slow) > SHOWN:
            rows.append((f"  and {len(one.slow) - SHOWN} more", "", "", "", "", ""))
    heads = ("links", "measured", "nominal", "measured GB/s", "", "us")
    return tables.columns(heads, rows, right=range(1, 6))


def odd_pairs(fit: Calibration) -> list[str]:
    """What to say of pairs that the links do not explain, the worst first."""
    worst = sorted(fit.odd, key=lambda one: one.measured / one.expected)
    said = [
        f"{one.src} -> {one.dst} measured {one.measured:.4g} GB/s where its links give "
        f"{one.expected:.4g}: look at this pair; it changes no link"
        for one in worst[:SHOWN]
    ]
    if len(worst) > SHOWN:
        said.append(f"{len(worst) - SHOWN} more pairs are off by more than 15 %")
    return said
