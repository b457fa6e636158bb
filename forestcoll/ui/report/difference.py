"""What differs between two topologies, as a table or for machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forestcoll.ui.report import table as tables

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forestcoll.topology.difference import Group

SHOWN = 3


def table(groups: Sequence[Group]) -> RenderableType:
    """A row a class: what differs, how many, the two sides, some of the names."""
    rows = [
        (
            found.kind,
            str(len(found.names)),
            found.pattern if len(found.names) > 1 else found.names[0],
            found.before or "-",
            found.after or "-",
            _examples(found),
        )
        for found in groups
    ]
    return tables.columns(("differs", "", "where", "A", "B", "such as"), rows, right=(1,))


def _examples(found: Group) -> str:
    if len(found.names) == 1:
        return ""
    shown = ", ".join(found.names[:SHOWN])
    return shown + (", ..." if len(found.names) > SHOWN else "")


def summary(groups: Sequence[Group]) -> list[dict[str, object]]:
    """The same for machines, every name in it."""
    return [
        {
            "differs": found.kind,
            "class": found.pattern,
            "before": found.before or None,
            "after": found.after or None,
            "names": list(found.names),
        }
        for found in groups
    ]
