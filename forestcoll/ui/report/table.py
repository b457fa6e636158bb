"""Tables as text, as wide as the terminal: no word or number is ever split.

Where a table is too wide, its long columns wrap at spaces; where that is not enough, its columns
stand below each other, on several lines a row.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from forestcoll.common.escape import escape

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.text import Text

WIDTH = 120
"""Columns when the output is no terminal: files and pipes should not be wrapped for a screen."""
GAP = 2
"""Spaces between columns, and before what stands on a further line."""
LEAST = 16
"""Columns that a column is made narrow to before columns go to a further line."""


def facts(rows: Iterable[tuple[str, str]]) -> RenderableType:
    """Two columns, names and values: `algbw   1040/3 (346.667) GB/s`."""
    return _Facts([(escape(name), escape(value)) for name, value in rows])


def columns(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Sequence[int] = (),
    wide: Sequence[int] = (),
    headed: bool = True,
) -> RenderableType:
    """A table with a head line; the columns numbered in `right` are right-aligned.

    `wide`: least widths of the columns, for rows that follow in a table that is not `headed`.
    """
    return _Columns(heads, [[*map(escape, row)] for row in rows], frozenset(right), wide, headed)


def write(table: RenderableType, stream: TextIO) -> None:
    """Draw `table` on `stream`; colours follow the terminal and NO_COLOR."""
    from rich.console import Console

    console = Console(file=stream, highlight=False)
    if console.is_terminal:
        console.print(table, crop=False)
        return
    text = io.StringIO()
    Console(file=text, highlight=False, width=WIDTH).print(table, crop=False)
    stream.writelines(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def width_of(stream: TextIO) -> int | None:
    """Columns of the terminal behind a stream, as COLUMNS or it says; None where there is none.

    What goes into a pipe is for no screen, though readline leaves COLUMNS to its children.
    """
    if not stream.isatty():
        return None
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and 0 < int(told) < 100_000:
        return int(told)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):  # the terminal does not say
        return None


def cells(text: str) -> int:
    """Columns of a terminal that a text takes."""
    from rich.cells import cell_len

    return cell_len(text)


def wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    """Lines of at most `width` columns, the further ones indented; longer only for a lone word."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        line, blank = "", ""
        for word in _words(paragraph):
            if line.strip() and cells(line) + cells(blank) + cells(word) > width:
                lines.append(line)
                line, blank = " " * indent, ""
            line, blank = line + blank + word.rstrip(" "), " " * (len(word) - len(word.rstrip(" ")))
        lines.append(line)
    return lines


def _words(text: str) -> Iterator[str]:
    """The words with the spaces behind them; those in front of the first stand with it."""
    start = 0
    for k in range(1, len(text)):
        if text[k] != " " and text[k - 1] == " " and text[start:k].strip():
            yield text[start:k]
            start = k
    yield text[start:]


def _longest(text: str) -> int:
    return max((cells(word) for word in text.split()), default=0)


@dataclass(frozen=True)
class _Facts:
    rows: list[tuple[str, str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        left = max((cells(name) for name, _ in self.rows), default=0) + GAP
        for name, value in self.rows:
            room = options.max_width - left
            if _longest(value) <= room:
                for k, text in enumerate(wrapped(value, room)):
                    yield _line([("" if k else name, left)], text, bold=True)
            else:  # a word that is too long beside the name is not below it
                yield _line([(name, 0)], bold=True)
                for text in wrapped(value, options.max_width - GAP):
                    yield _line([("", GAP)], text)


@dataclass(frozen=True)
class _Columns:
    heads: Sequence[str]
    rows: list[list[str]]
    right: frozenset[int]
    wide: Sequence[int]
    headed: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        rows = [[*self.heads], *self.rows]
        most = [max(cells(row[i]) for row in rows) for i in range(len(self.heads))]
        most = [max(pair) for pair in zip(most, self.wide or most, strict=True)]
        least = [
            min(
                width,
                max(LEAST, min(options.max_width - GAP, max(_longest(row[i]) for row in rows))),
            )
            for i, width in enumerate(most)
        ]
        lines = list(_lines(most, least, options.max_width))
        for k, row in enumerate(rows):
            if k or self.headed:
                yield from self._row(row, lines, bold=not k)

    def _row(self, row: Sequence[str], lines: Sequence[_Widths], bold: bool) -> Iterator[Text]:
        for number, line in enumerate(lines):
            indent = [("", GAP)] if number else []
            columns = [wrapped(row[i], width) for i, width in line]
            for k in range(max(map(len, columns))):
                texts = [column[k] if k < len(column) else "" for column in columns]
                placed = [
                    (" " * (width - cells(text)) * (i in self.right) + text, width + GAP)
                    for text, (i, width) in zip(texts, line, strict=True)
                ]
                yield _line([*indent, *placed], bold=bold)


_Widths = list[tuple[int, int]]
"""Columns of a line, by their numbers, and how wide each is."""


def _lines(most: Sequence[int], least: Sequence[int], width: int) -> Iterator[_Widths]:
    """The columns on as few lines as hold them at their least widths, there as wide as they fit."""
    line: list[int] = []
    room = width
    for i in range(len(most)):
        if line and sum(least[j] + GAP for j in line) + least[i] > room:
            yield _narrow(line, most, least, room)
            line, room = [], width - GAP
        line.append(i)
    if line:
        yield _narrow(line, most, least, room)


def _narrow(line: Sequence[int], most: Sequence[int], least: Sequence[int], room: int) -> _Widths:
    """The widest columns narrower, one after the other, until all fit."""
    widths = {i: most[i] for i in line}
    while sum(widths.values()) + GAP * (len(line) - 1) > room:
        wide = [i for i in line if widths[i] > least[i]]
        if not wide:
            break
        widths[max(wide, key=lambda i: widths[i])] -= 1
    return list(widths.items())


def _line(texts: Sequence[tuple[str, int]], end: str = "", bold: bool = False) -> Text:
    """Texts filled up to their widths, `bold` or not, and a plain one; nothing of it is wrapped."""
    from rich.text import Text

    text = "".join(cell + " " * max(0, width - cells(cell)) for cell, width in texts)
    line = Text(no_wrap=True, overflow="ignore")
    line.append(text if end else text.rstrip(" "), "bold" if bold else "")
    return line.append(end)
