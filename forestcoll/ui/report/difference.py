"""What differs between two topologies, as a table or for machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forestcoll.ui.report.facts import Fact, Rows, as_json, as_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forestcoll.topology.difference import Group

SHOWN = 3


def _row(group: Group) -> list[Fact]:
    names, more = group.names, ", ..." * (len(group.names) > SHOWN)
    alone = len(names) == 1
    return [
        Fact("differs", group.kind, group.kind),
        Fact("", None, str(len(names)), ""),
        Fact("class", group.pattern, names[0] if alone else group.pattern, "where"),
        Fact("before", group.before or None, group.before or "-", "A"),
        Fact("after", group.after or None, group.after or "-", "B"),
        Fact("names", names, "" if alone else ", ".join(names[:SHOWN]) + more, "such as"),
    ]


def table(groups: Sequence[Group]) -> RenderableType:
    """A row a class: what differs, how many, the two sides, some of the names."""
    return as_table([Rows("", [_row(group) for group in groups], right=(1,))])


def summary(groups: Sequence[Group]) -> list[dict[str, object]]:
    """The same for machines, every name in it."""
    return [as_json(_row(group)) for group in groups]
