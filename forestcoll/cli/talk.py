"""What commands say, and where: results on standard output, talk on standard error."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import RenderableType


def complain(message: str, code: int, kind: str = "error: ") -> int:
    """Say what is wrong; returns `code`, the exit code."""
    click.echo(f"forestcoll: {kind}{message}", err=True)
    return code


def note(text: str) -> None:
    """Say what the user should know although nothing is wrong."""
    click.echo(f"forestcoll: note: {text}", err=True)


def print_json(value: object) -> None:
    """A result for machines."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def draw(table: RenderableType, err: bool = False) -> None:
    """A result for people; `err` where standard output holds a file."""
    from forestcoll.report import table as tables

    tables.write(table, sys.stderr if err else sys.stdout)
