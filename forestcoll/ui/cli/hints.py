"""What a command line that is not understood probably meant, and the examples of `--help`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence

import click

from forestcoll.common.errors import ForestCollError

WIDTH = 80
"""Columns of help at most."""


def of_usage(error: click.UsageError, words: Sequence[str]) -> str:
    """`"; did you mean '--set boxes=2'?"` for a parameter of topologies given as an option."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return ""
    if not any(param.name == "pairs" for param in error.ctx.command.params):
        return ""
    name = error.option_name.lstrip("-")
    known = _parameters()
    if name not in known:
        near = [] if error.possibilities else difflib.get_close_matches(name, known, 1, 0.7)
        if not near:
            return ""
        name = near[0]
    return f"; did you mean '--set {name}={_value(error.option_name, words)}'?"


def message(error: click.UsageError) -> str:
    """What click says; or which option names the format here, where another one does elsewhere."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        options = {opt for param in error.ctx.command.params for opt in param.opts}
        for asked, other in (("--format", "--to"), ("--to", "--format")):
            if error.option_name == asked and other in options:
                return f"No such option '{asked}'; did you mean '{other}'?"
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
    typed = ("\n".join(_continued(line)) if line else "\n\b" for line in lines)
    return "\b\nExamples:\n" + "\n".join(typed)


def _continued(line: str) -> Iterator[str]:
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
        super().write_dl([(_wrapped(term), text) for term, text in rows], col_max, col_spacing)


def _wrapped(term: str) -> str:
    lines = [""]
    for word in re.split(r"(?<=\|)", term):
        if len(lines[-1]) + len(word) > WIDTH - 8:
            lines.append("      ")
        lines[-1] += word
    return "\n".join(lines)


class HelpContext(click.Context):
    """A command's context: its help is at most WIDTH columns wide."""

    formatter_class = _Formatter
