"""A result as facts: each told once, in words for people and as a value for machines.

A command's result is a list of facts, or several parts: such lists, and `Rows` of them. `as_table`
draws what has words, `as_json` gives what has a key; all commands tell their results so.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from forestcoll.study.figures import Limit
from forestcoll.ui.report import table as tables
from forestcoll.ui.report import words

if TYPE_CHECKING:
    from forestcoll.study.figures import Figures
    from forestcoll.verify.simulate import Band

ENOUGH = 0.005
"""Seconds below which a stage's time is not worth a word."""
OTHERS = range(1, 1000)
"""The columns of a table but the first."""


class Fact(NamedTuple):
    """`value` under `key` for machines, `text` beside `label` for people.

    Without a key it is for people alone, with text None for machines alone. `label`: None: the key.
    Several texts stand below each other; an empty one is no line. A function makes the text of the
    value, where there is one.
    """

    key: str
    value: Any = None
    text: str | Sequence[str] | Callable[[Any], str] | None = None
    label: str | None = None

    @property
    def words(self) -> str | Sequence[str]:
        """The text, or the texts."""
        if callable(self.text):
            return "" if self.value is None else self.text(self.value)
        return self.text or ""

    @property
    def head(self) -> str:
        """What stands beside the text, or above it."""
        return self.key if self.label is None else self.label

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Label and text, line by line."""
        texts = [self.words] if isinstance(self.words, str) else self.words
        return [("" if k else self.head, text) for k, text in enumerate(texts) if text]


@dataclass(frozen=True)
class Rows:
    """Facts of several things of a kind: a row each, with a head line; for machines under `key`.

    `right`: the numbers of the columns that are right-aligned. Columns that are empty are left out.
    `wide`: least widths, for rows that follow in a table that is not `headed`.
    """

    key: str
    rows: Sequence[Sequence[Fact]]
    right: Container[int] = OTHERS
    wide: Sequence[int] = ()
    headed: bool = True

    @property
    def cells(self) -> tuple[list[str], list[list[str]], list[int]]:
        """Heads, texts, and which columns are right-aligned."""
        facts = [[fact for fact in row if fact.text is not None] for row in self.rows]
        columns = list(enumerate(zip(*facts, strict=True)))
        shown = [(k, column) for k, column in columns if any(fact.words for fact in column)]
        texts = zip(*([str(fact.words) for fact in column] for _, column in shown), strict=True)
        right = [i for i, (k, _) in enumerate(shown) if k in self.right]
        return [column[0].head for _, column in shown], list(map(list, texts)), right


Part = Sequence[Fact] | Rows
Result = Part | Sequence[Part]


def as_table(result: Result) -> tables.Table:
    """What people see: the parts below each other, each as its own table."""
    parts = []
    for part in _parts(result):
        if isinstance(part, Rows):
            heads, rows, right = part.cells
            if rows:
                parts.append(tables.columns(heads, rows, right, part.wide, part.headed))
        elif lines := [line for fact in part for line in fact.lines]:
            parts.append(tables.facts(lines))
    return tables.stack(parts)


def as_json(result: Result) -> Any:
    """What machines read: fractions as strings, whatever has a summary as that."""
    if isinstance(result, Rows):
        return [as_json(row) for row in result.rows]
    values: dict[str, Any] = {}
    for part in _parts(result):
        if isinstance(part, Rows):
            values |= {part.key: as_json(part)} if part.key else {}
        else:
            values |= {fact.key: plain(fact.value) for fact in part if fact.key}
    return values


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
    single = isinstance(result, Rows) or (result and isinstance(result[0], Fact))
    return [result] if single else result  # type: ignore[list-item, return-value]


# --- facts of many results ------------------------------------------------------------------------


def same(key: str, value: object, label: str | None = None) -> Fact:
    """A value that is its own text; none where there is nothing."""
    return Fact(key, value, str, label)


def line(label: str, text: str | Sequence[str]) -> Fact:
    """What is for people alone."""
    return Fact("", None, text, label)


def texts(label: str, lines: Iterable[str]) -> list[Fact]:
    """Lines for people alone, each with the label."""
    return [line(label, text) for text in lines]


def machine(**values: object) -> list[Fact]:
    """Facts for machines alone."""
    return [Fact(key, value) for key, value in values.items()]


def grid(
    heads: Sequence[str], rows: Iterable[Sequence[object]], right: Container[int] = OTHERS
) -> Rows:
    """Rows for people alone."""
    pairs = (zip(heads, row, strict=True) for row in rows)
    return Rows("", [[line(head, str(text)) for head, text in row] for row in pairs], right)


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
    return Fact("model", ", ".join(dict.fromkeys(parts)) or None, str)


def describe_file(path: Path) -> str:
    """A file and how large it is."""
    return f"{path} ({words.size(path.stat().st_size)})"


def files(paths: Mapping[Any, Path]) -> list[Fact]:
    """What was written, by format."""
    return [Fact("files", paths), *texts("written", map(describe_file, paths.values()))]


# --- what links allow a plan, trees or routes, in the words of all commands -----------------------


def limit(figures: Figures) -> str:
    """What bounds it; "" where that is unknown."""
    if figures.limit is None:
        return ""
    if isinstance(figures.limit, Limit):
        return words.bottleneck(figures.limit.graph, figures.limit.collective, figures.limit.bound)
    return "; ".join(words.limits_of(figures.limit))


def bandwidth_facts(figures: Figures | None, more: str = "", simulated: str = "") -> list[Fact]:
    """algbw, bound, percent, bottleneck, in_switches; no values where nothing is known.

    `more`, `simulated`: words behind the algbw, and behind its share.
    """
    if figures is None:
        keys = "algbw", "bound", "percent", "bottleneck", "in_switches"
        return machine(**dict.fromkeys(keys))
    algbw, bound, why = figures.algbw, figures.bound, limit(figures)
    if figures.best:
        more += ", of the best plan; this one's trees are unknown"
    share, of_optimal = None, ""
    if bound is not None and not figures.best:
        share, of_optimal = float(100 * algbw / bound), words.percent(algbw, bound) + simulated
    return [
        Fact("algbw", algbw, words.rate(algbw) + more),
        Fact("bound", bound, words.rate),
        Fact("percent", share, of_optimal, "of optimal"),
        Fact("bottleneck", why or None, str),
        switches(figures.in_switches),
    ]


def switches(algbw: Fraction | None) -> Fact:
    """What copies and adds on the GPUs could reach in switches; no words where that is unknown."""
    return Fact(
        "in_switches", algbw, lambda a: f"{words.in_switches(a)}; here the GPUs do", "switches"
    )


def rate_words(figures: Figures) -> str:
    """`"1800/7 (257.143) GB/s, 99.64 % of the bound 8000/31 (258.065) GB/s"`."""
    text = words.rate(figures.algbw)
    if figures.bound is None or figures.best:
        return text
    share = words.percent(figures.algbw, figures.bound)
    return f"{text}, {share} of the bound {words.rate(figures.bound)}"
