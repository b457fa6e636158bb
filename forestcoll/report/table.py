"""Tables as text: rich draws them, in colour on a terminal that wants it."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from forestcoll.escape import escape

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH = 120
"""Columns when the output is no terminal: files and pipes should not be wrapped for a screen."""


def facts(rows: Iterable[tuple[str, str]]) -> RenderableType:
    """Two columns, names and values: `algbw   1040/3 (346.667) GB/s`."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(_plain(name), _plain(value))
    return table


def columns(
    heads: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()
) -> RenderableType:
    """A table with a head line; the columns numbered in `right` are right-aligned."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for i, head in enumerate(heads):
        table.add_column(head, justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_plain, row))
    return table


def write(table: RenderableType, stream: TextIO) -> None:
    """Draw `table` on `stream`; colours follow the terminal and NO_COLOR."""
    from rich.console import Console

    console = Console(file=stream, highlight=False)
    if console.is_terminal:
        console.print(table)
        return
    text = io.StringIO()
    Console(file=text, highlight=False, width=WIDTH).print(table)
    stream.writelines(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def _plain(text: str) -> RenderableType:
    """The text itself: square brackets of ids are no markup, and nothing moves the cursor."""
    from rich.text import Text

    return Text(escape(text))
