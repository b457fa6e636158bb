"""Tables as text, as wide as the terminal: no word or number is ever split.

Where a table is too wide, its long columns wrap at spaces; where that is not enough, its columns
stand below each other, on several lines a row.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TextIO

from forestcoll.common.escape import escape

WIDTH = 120
"""Columns when the output is no terminal: files and pipes should not be wrapped for a screen."""
GAP = 2
"""Spaces between columns, and before what stands on a further line."""
LEAST = 16
"""Columns that a column is made narrow to before columns go to a further line."""

Line = tuple[str, str]
"""What is bold, and what stands behind it."""
Table = Callable[[int], Iterable[Line]]
"""The lines of a table that is so many columns wide."""


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Two columns, names and values: `algbw   1040/3 (346.667) GB/s`."""
    pairs = [(escape(name), escape(value)) for name, value in rows]
    left = max((cells(name) for name, _ in pairs), default=0) + GAP

    def lines(width: int) -> Iterator[Line]:
        for name, value in pairs:
            if _longest(value) <= width - left:
                for k, text in enumerate(wrap(value, width - left)):
                    yield _fill("" if k else name, left), text
            else:  # a word that is too long beside the name is not below it
                yield name, ""
                yield from (("", " " * GAP + text) for text in wrap(value, width - GAP))

    return lines


def columns(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Sequence[int] = (),
    wide: Sequence[int] = (),
    headed: bool = True,
) -> Table:
    """A table with a head line; the columns numbered in `right` are right-aligned.

    `wide`: least widths of the columns, for rows that follow in a table that is not `headed`.
    """
    body = [[*heads], *([*map(escape, row)] for row in rows)]
    most = [max(map(cells, column)) for column in zip(*body, strict=True)]
    most = [max(pair) for pair in zip(most, wide or most, strict=True)]
    longest = [max(map(_longest, column)) for column in zip(*body, strict=True)]

    def lines(width: int) -> Iterator[Line]:
        least = [
            min(own, max(LEAST, min(width - GAP, word)))
            for own, word in zip(most, longest, strict=True)
        ]
        places = list(_arrange(most, least, width))
        for row in body[not headed :]:
            for text in _row(row, places, right):
                yield (text, "") if row is body[0] else ("", text)

    return lines


def stack(tables: Sequence[Table]) -> Table:
    """Tables below each other, with an empty line between them."""

    def lines(width: int) -> Iterator[Line]:
        for k, table in enumerate(tables):
            yield from [("", "")] * bool(k)
            yield from table(width)

    return lines


def write(table: Table, stream: TextIO) -> None:
    """Draw `table` on `stream`: bold on terminals alone, and not where NO_COLOR is set."""
    width = width_of(stream)
    plain = width is None or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    for bold, text in table(width or WIDTH):
        head = bold if plain or not bold else f"\x1b[1m{bold}\x1b[0m"
        stream.write(f"{head}{text}".rstrip() + "\n")


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


def wrap(text: str, width: int, indent: int = 0) -> list[str]:
    """Lines of at most `width` columns, the further ones indented; longer only for a lone word."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        line, blank = "", ""
        # the words with the spaces behind them; those in front of the first stand with it
        for word in re.findall(r"^ *[^ ]* *|[^ ]+ *", paragraph):
            if line.strip() and cells(line) + cells(blank) + cells(word) > width:
                lines.append(line)
                line, blank = " " * indent, ""
            line, blank = line + blank + word.rstrip(" "), " " * (len(word) - len(word.rstrip(" ")))
        lines.append(line)
    return lines


def _longest(text: str) -> int:
    return max(map(cells, text.split()), default=0)


def _fill(text: str, width: int) -> str:
    return text + " " * (width - cells(text))


_Widths = list[tuple[int, int]]
"""Columns of a line, by their numbers, and how wide each is."""


def _row(row: Sequence[str], places: Sequence[_Widths], right: Sequence[int]) -> Iterator[str]:
    """The lines of a row."""
    for number, line in enumerate(places):
        columns = [wrap(row[i], width) for i, width in line]
        for texts in zip_longest(*columns, fillvalue=""):
            text = " " * GAP * bool(number)
            for cell, (i, width) in zip(texts, line, strict=True):
                before = " " * (width - cells(cell)) * (i in right)
                text += _fill(before + cell, width + GAP)
            yield text.rstrip(" ")


def _arrange(most: Sequence[int], least: Sequence[int], width: int) -> Iterator[_Widths]:
    """The columns on as few lines as hold them at their least widths, there as wide as they fit."""
    line: list[int] = []
    room = width
    for i in range(len(most)):
        if line and sum(least[j] + GAP for j in line) + least[i] > room:
            yield _narrow(line, most, least, room)
            line, room = [], width - GAP
        line.append(i)
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
