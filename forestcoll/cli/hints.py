"""What a command line that is not understood probably meant, and the examples of `--help`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import click

from forestcoll.errors import ForestCollError


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
    from forestcoll import catalog

    try:
        return {p.name for name in catalog.names() for p in catalog.heading(name).parameters}
    except ForestCollError:
        return set()


def examples(*lines: str) -> str:
    """The end of a command's help: lines as they are to be typed."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" if line else "\n\b" for line in lines)
