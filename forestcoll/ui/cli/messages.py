"""What commands say, and where: results on standard output, talk on standard error.

All that is said goes through here, escaped: it may hold names that stand in somebody's file. What
is for people is left out of standard output where `--json` holds: that has the document alone.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from forestcoll.common.escape import escape

if TYPE_CHECKING:
    from forestcoll.ui.report.facts import Result
    from forestcoll.ui.report.progress import StageProgress


def _holds(name: str) -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and f"forestcoll.{name}" in context.meta


def quiet() -> bool:
    """Whether `--quiet` holds: errors and results alone are to be said."""
    return _holds("quiet")


def as_json() -> bool:
    """Whether `--json` holds: results are for machines."""
    return _holds("json")


def let_hold(context: click.Context, option: click.Parameter, asked: bool) -> None:
    """Let `--quiet` or `--json` hold for the command under way, if it is asked for."""
    if asked:
        context.meta[f"forestcoll.{option.name}"] = True


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
    from forestcoll.ui.report.table import width_of, wrap

    if as_json() and not err:
        return
    text = escape(line)
    width = width_of(sys.stderr if err else sys.stdout)
    indent = len(text) - len(text.lstrip(" ")) + 2
    for part in [text] if width is None else wrap(text, width, indent):
        click.echo(part, err=err)


def put(text: str | bytes) -> None:
    """The content of a file that is wanted on standard output, as it is: UTF-8 in any locale."""
    click.echo(text.encode() if isinstance(text, str) else text, nl=False)


def print_json(value: object) -> None:
    """A result for machines: JSON of ASCII characters alone, which any terminal can show."""
    json.dump(value, sys.stdout, indent=2)  # piece by piece: it may be long
    click.echo()


def draw(result: Result, err: bool = False) -> None:
    """A result for people; `err` where standard output holds a file."""
    from forestcoll.ui.report import facts, table

    if not as_json() or err:
        table.write(facts.as_table(result), sys.stderr if err else sys.stdout)


def report(*results: Result, err: bool = False) -> None:
    """What a command has done, for people: not its result, so nothing under `--quiet`."""
    if not quiet():
        for result in results:
            draw(result, err)


def answer(result: Result, say: Callable[[Result], None] = draw, **parts: Result | None) -> None:
    """A command's result, for machines or for people, to whom `say` tells it.

    `parts`: what belongs to it, by the key that it has for machines, where it was asked for.
    """
    from forestcoll.ui.report.facts import as_json as plain

    asked = {key: part for key, part in parts.items() if part is not None}
    if as_json():
        told = {key: plain(part) for key, part in asked.items()}
        print_json({**plain(result), **told} if told else plain(result))
        return
    for part in (result, *asked.values()):
        say(part)
