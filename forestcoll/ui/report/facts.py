"""A result as facts: each told once, in words for people and as a value for machines.

A command's result is a list of facts, or several parts: such lists, and `Rows` of them. `as_table`
draws what has words, `as_json` gives what has a key; all commands tell their results so.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from forestcoll.ui.report import table as tables
from forestcoll.ui.report import words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forestcoll.verify.simulate import Band

ENOUGH = 0.005
"""Seconds below which a stage's time is not worth a word."""

OTHERS = range(1, 1000)
"""The columns of a table but the first."""

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Fact:
    """`value` under `key` for machines, `text` beside `label` for people.

    Without a key it is for people alone, with text None for machines alone. `label`: None: the key.
    Several texts stand below each other; an empty one is no line.
    """

    key: str
    value: Any = None
    text: str | Sequence[str] | None = None
    label: str | None = None

    @property
    def head(self) -> str:
        """What stands beside the text, or above it."""
        return self.key if self.label is None else self.label


@dataclass(frozen=True, slots=True)
class Rows:
    """Facts of several things of a kind: a row each, with a head line; for machines under `key`.

    `right`: the numbers of the columns that are right-aligned. Columns that are empty are left out.
    """

    key: str
    rows: Sequence[Sequence[Fact]]
    right: Container[int] = OTHERS


Part = Sequence[Fact] | Rows
Result = Sequence[Fact] | Sequence[Part]


def as_table(result: Result) -> RenderableType:
    """What people see: the parts below each other, each as its own table."""
    from rich.console import Group

    tables_ = [table for part in _parts(result) if (table := _table(part)) is not None]
    return Group(*[each for table in tables_ for each in ("", table)][1:])


def as_json(result: Result) -> dict[str, Any]:
    """What machines read: fractions as strings, whatever has a summary as that."""
    values: dict[str, Any] = {}
    for part in _parts(result):
        if isinstance(part, Rows):
            values |= {part.key: [as_json(row) for row in part.rows]} if part.key else {}
        else:
            values |= {fact.key: plain(fact.value) for fact in part if fact.key}
    return values


def views(
    facts: Callable[P, Result],
) -> tuple[Callable[P, RenderableType], Callable[P, dict[str, Any]]]:
    """Two ways to tell the result that `facts` gives: as a table, and as JSON."""

    def table(*args: P.args, **options: P.kwargs) -> RenderableType:
        return as_table(facts(*args, **options))

    def summary(*args: P.args, **options: P.kwargs) -> dict[str, Any]:
        return as_json(facts(*args, **options))

    return table, summary


def plain(value: Any) -> Any:
    """The value as JSON has it."""
    if isinstance(value, Fraction | Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [plain(inner) for inner in value]
    return value.summary() if hasattr(value, "summary") else value


def _parts(result: Result) -> Sequence[Part]:
    flat = result and isinstance(result[0], Fact)
    return [result] if flat else result  # type: ignore[list-item, return-value]


def _table(part: Part) -> RenderableType | None:
    if not isinstance(part, Rows):
        lines = [line for fact in part for line in _lines(fact)]
        return tables.facts(lines) if lines else None
    cells = [[fact for fact in row if fact.text is not None] for row in part.rows]
    columns = list(enumerate(zip(*cells, strict=True)))
    shown = [(k, column) for k, column in columns if any(fact.text for fact in column)]
    right = [i for i, (k, _) in enumerate(shown) if k in part.right]
    rows = zip(*([str(fact.text) for fact in column] for _, column in shown), strict=True)
    heads = [column[0].head for _, column in shown]
    return tables.columns(heads, list(rows), right) if part.rows else None


def _lines(fact: Fact) -> list[tuple[str, str]]:
    lines = [fact.text] if isinstance(fact.text, str) else fact.text or ()
    return [("" if k else fact.head, line) for k, line in enumerate(lines) if line]


# --- facts of many results ------------------------------------------------------------------------


def machine(**values: object) -> list[Fact]:
    """Facts for machines alone."""
    return [Fact(key, value) for key, value in values.items()]


def grid(
    heads: Sequence[str], rows: Iterable[Sequence[object]], right: Container[int] = OTHERS
) -> Rows:
    """Rows for people alone."""
    pairs = (zip(heads, row, strict=True) for row in rows)
    return Rows(
        "", [[Fact("", None, str(text), head) for head, text in row] for row in pairs], right
    )


def texts(label: str, lines: Iterable[str]) -> list[Fact]:
    """Lines for people alone, each with the label."""
    return [Fact("", None, line, label) for line in lines]


def notes(lines: Sequence[str]) -> list[Fact]:
    """What a user should know."""
    return [Fact("notes", lines), *texts("note", lines)]


def seconds(timings: Mapping[str, float] | float, whole: bool = False) -> Fact:
    """The wall time, `"0.42 s: solve 0.31 s, verify 0.09 s"`, without stages of few ms.

    `whole`: in words without the stages.
    """
    stages = timings if isinstance(timings, Mapping) else {"": timings}
    total = words.seconds(sum(stages.values()))
    slow = [f"{stage} {words.seconds(t)}" for stage, t in stages.items() if stage and t >= ENOUGH]
    text = total if whole or not slow else f"{total}: {', '.join(slow)}"
    return Fact("seconds", timings, text, "wall time")


def model(bands: Iterable[Band]) -> Fact:
    """What all was simulated with; where protocols differ, what a hop takes of each."""
    parts = (part for band in bands for part in band.model.split(", "))
    text = ", ".join(dict.fromkeys(parts))
    return Fact("model", text or None, text)


def describe_file(path: Path) -> str:
    """A file and how large it is."""
    return f"{path} ({words.size(path.stat().st_size)})"


def files(paths: Mapping[Any, Path]) -> list[Fact]:
    """What was written, by format."""
    return [Fact("files", paths), *texts("written", map(describe_file, paths.values()))]
