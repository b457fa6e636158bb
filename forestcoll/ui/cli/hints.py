"""Help: what a line that is not understood probably meant, examples, what shells complete.

eval "$(_FORESTCOLL_COMPLETE=bash_source forestcoll)"       bash (4.4 or newer)
eval "$(_FORESTCOLL_COMPLETE=zsh_source forestcoll)"        zsh
_FORESTCOLL_COMPLETE=fish_source forestcoll | source        fish
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import click

from forestcoll.common.arguments import Option
from forestcoll.common.errors import ForestCollError

WIDTH = 80
"""Columns of help at most."""
VARIABLE = "_FORESTCOLL_COMPLETE"
"""In the environment: what a shell asks (`bash_source`: its script; `bash_complete`: the words)."""
SHELLS = ("bash", "zsh", "fish")


def answer(cli: click.Group) -> int | None:
    """The exit code of having answered a shell; None where no shell asks."""
    asked = os.environ.get(VARIABLE)
    if not asked:
        return None
    shell, _, what = asked.partition("_")
    if shell not in SHELLS or what not in ("source", "complete"):
        raise click.ClickException(
            f"{VARIABLE}={asked}: is none of {', '.join(f'{s}_source' for s in SHELLS)}"
        )
    from click.shell_completion import shell_complete

    return shell_complete(cli, {}, "forestcoll", VARIABLE, asked)


def of_usage(error: click.UsageError, words: Sequence[str]) -> str:
    """`"; did you mean '--set boxes=2'?"` for a parameter of topologies given as an option."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return ""
    if not any(param.name == "settings" for param in error.ctx.command.params):
        return ""
    name = error.option_name.lstrip("-")
    parameters = _parameters()
    if name not in parameters:
        near = [] if error.possibilities else difflib.get_close_matches(name, parameters, 1, 0.7)
        if not near:
            return ""
        name = near[0]
    return f"; did you mean '--set {name}={_value(error.option_name, words)}'?"


def message(error: click.UsageError) -> str:
    """What click says; or which option is meant by a name that it had, or has elsewhere."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        options: Mapping[str, Option] = getattr(error.ctx.command, "options", {})
        for param in error.ctx.command.params:
            if param.name in options and error.option_name in options[param.name].old:
                return f"No such option '{error.option_name}'; did you mean '{param.opts[0]}'?"
    return error.format_message()


def _value(option: str, words: Sequence[str]) -> str:
    """What stands behind the option, after "=" or as the next word."""
    for k, word in enumerate(words):
        head, equals, tail = word.partition("=")
        if head == option:
            value = tail if equals else " ".join(words[k + 1 : k + 2])
            return value if value and not value.startswith("-") else "N"
    return "N"


def _parameters() -> set[str]:
    """The names of all parameters in the catalogue."""
    from forestcoll.topology import catalog

    try:
        return {p.name for name in catalog.names() for p in catalog.heading(name).parameters}
    except ForestCollError:
        return set()


def examples(*lines: str) -> str:
    """The end of a command's help: lines as they are to be typed, long ones continued by "\\"."""
    typed = ("\n".join(_continue(line)) if line else "\n\b" for line in lines)
    return "\b\nExamples:\n" + "\n".join(typed)


def _continue(line: str) -> Iterator[str]:
    text = " "
    for word in re.split(r" (?=-)", line):
        if len(text) + len(word) > WIDTH - 6:
            yield f"{text} \\"
            text = "     "
        text += f" {word}"
    yield text


class _Formatter(click.HelpFormatter):
    """Help whose lists of words are wrapped as well."""

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """The rows, with their terms wrapped behind "|"."""
        super().write_dl([(_wrap(term), text) for term, text in rows], col_max, col_spacing)


def _wrap(term: str) -> str:
    lines = [""]
    for word in re.split(r"(?<=\|)", term):
        if len(lines[-1]) + len(word) > WIDTH - 8:
            lines.append("      ")
        lines[-1] += word
    return "\n".join(lines)


class HelpContext(click.Context):
    """A command's context: its help is at most WIDTH columns wide."""

    formatter_class = _Formatter
