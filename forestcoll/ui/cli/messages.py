"""What commands say, and where: results on standard output, talk on standard error.

All that is said goes through here, escaped: it may hold names that stand in somebody's file.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from forestcoll.common.escape import escape

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forestcoll.ui.report.progress import StageProgress

_QUIET = "forestcoll.quiet"


def quiet() -> bool:
    """Whether `--quiet` holds: errors and results alone are to be said."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_QUIET))


def be_quiet(context: click.Context) -> None:
    """Let `--quiet` hold for the command under way."""
    context.meta[_QUIET] = True


def show_progress(start: str = "starting") -> StageProgress:
    """A progress line on a terminal, for work that takes longer than a second."""
    from forestcoll.ui.report.progress import StageProgress

    return StageProgress(start, shown=not quiet())


def complain(message: str, code: int, kind: str = "error: ", notes: Sequence[str] = ()) -> int:
    """Say what is wrong, with `notes` in lines below; returns `code`, the exit code."""
    with contextlib.suppress(OSError):  # nobody reads it: the exit code still tells
        say(f"forestcoll: {kind}{message}", err=True)
        for text in notes:
            for line in text.splitlines():
                say(f"  {line}", err=True)
    return code


def note(text: str) -> None:
    """Say what the user should know although nothing is wrong."""
    if not quiet():
        say(f"forestcoll: note: {text}", err=True)


def say(line: str, err: bool = False) -> None:
    """One line, whatever stands in it; on a terminal as many as its width takes."""
    from forestcoll.ui.report.table import width_of, wrapped

    text = escape(line)
    width = width_of(sys.stderr if err else sys.stdout)
    indent = len(text) - len(text.lstrip(" ")) + 2
    for part in [text] if width is None else wrapped(text, width, indent):
        click.echo(part, err=err)


def put(text: str | bytes) -> None:
    """The content of a file that is wanted on standard output, as it is: UTF-8 in any locale."""
    click.echo(text.encode() if isinstance(text, str) else text, nl=False)


def print_json(value: object) -> None:
    """A result for machines: JSON of ASCII characters alone, which any terminal can show."""
    click.echo(json.dumps(value, indent=2))


def draw(table: RenderableType, err: bool = False) -> None:
    """A result for people; `err` where standard output holds a file."""
    from forestcoll.ui.report import table as tables

    tables.write(table, sys.stderr if err else sys.stdout)


def report(*found: RenderableType, err: bool = False) -> None:
    """What a command has done, for people: not its result, so nothing under `--quiet`."""
    if not quiet():
        for table in found:
            draw(table, err)


def answer(
    as_json: bool,
    summary: Callable[..., Any],
    table: Callable[..., RenderableType],
    *made: Any,
    say: Callable[[RenderableType], None] = draw,
    **parts: tuple[Callable[..., Any], Callable[..., RenderableType], Any],
) -> None:
    """A command's result, for machines or for people, to whom `say` tells it.

    `parts`: what belongs to it where it was asked for: key -> (summary, table, what it is or None).
    """
    known = {key: part for key, part in parts.items() if part[2] is not None}
    if as_json:
        more = {key: summarize(what) for key, (summarize, _, what) in known.items()}
        print_json({**summary(*made), **more} if more else summary(*made))
        return
    say(table(*made))
    for _, tabulate, what in known.values():
        say(tabulate(what))
