"""YAML text to a small tree that knows its lines, within bounds.

Built from the parser's events rather than from `yaml.load`: scalars stay text (37.3 never becomes a
float), lines are known for every value, nothing recurses, and anchors, aliases, tags and depth are
refused as they appear, before they can cost anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import yaml

from forestcoll.common.errors import TopologyError, did_you_mean
from forestcoll.common.input_limits import TOPOLOGY_BYTES, YAML_DEPTH, YAML_VALUES


@dataclass(slots=True)
class Text:
    """A scalar, as written."""

    text: str
    line: int


@dataclass(slots=True)
class Items:
    """A list."""

    line: int
    items: list[Value] = field(default_factory=list)


@dataclass(slots=True)
class Table:
    """A mapping; `lines` has the line of each key."""

    line: int
    items: dict[str, Value] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)


Value = Text | Items | Table


@dataclass(frozen=True, slots=True)
class Source:
    """Where text comes from; makes every error say so."""

    name: str

    def error(self, line: int, message: str) -> TopologyError:
        """The error to raise, with file and line in front."""
        return TopologyError(f"{self.name}:{line}: {message}")

    def table(self, value: Value, what: str) -> Table:
        """`value` if it is a mapping."""
        if not isinstance(value, Table):
            raise self.error(value.line, f"{what} must be a mapping (a: b), not {kind(value)}")
        return value

    def items(self, value: Value, what: str) -> list[Value]:
        """The entries of `value` if it is a list."""
        if not isinstance(value, Items):
            raise self.error(value.line, f"{what} must be a list, not {kind(value)}")
        return value.items

    def text(self, value: Value, what: str) -> Text:
        """`value` if it is a scalar with something in it."""
        if not isinstance(value, Text):
            raise self.error(value.line, f"{what} must be a single value, not {kind(value)}")
        if not value.text.strip():
            raise self.error(value.line, f"{what} is empty")
        return value

    def keys(
        self, table: Table, what: str, known: Iterable[str], needed: Iterable[str] = ()
    ) -> None:
        """Nothing when all keys are known and the needed ones are there."""
        allowed = list(known)
        for key, line in table.lines.items():
            if key not in allowed:
                hint = did_you_mean(key, allowed) or f"; known are {', '.join(allowed)}"
                raise self.error(line, f"{what}: unknown key '{key[:60]}'{hint}")
        for key in needed:
            if key not in table.items:
                raise self.error(table.line, f"{what}: '{key}' is missing")


class located:  # used like a function; a class because it is entered for every link
    """Puts file, line and `what` in front of an error that knows neither."""

    __slots__ = ("line", "source", "what")

    def __init__(self, source: Source, line: int, what: str) -> None:
        self.source = source
        self.line = line
        self.what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if isinstance(error, TopologyError):
            raise self.source.error(self.line, f"{self.what}: {error}") from None


def kind(value: Value) -> str:
    """What `value` is, in words."""
    if isinstance(value, Text):
        return f"'{value.text[:40]}'" if value.text.strip() else "nothing"
    return "a list" if isinstance(value, Items) else "a mapping"


def parse(text: str, source: Source) -> Table:
    """The mapping that the YAML document `text` holds.

    Raises `TopologyError` for what is not YAML, not one mapping, repeats a key, uses anchors,
    aliases or tags, or goes beyond `input_limits`.
    """
    if len(text) > TOPOLOGY_BYTES:
        raise TopologyError(
            f"{source.name}: larger than {TOPOLOGY_BYTES // 2**20} MiB {TOPOLOGY_BYTES.note}"
        )
    builder = _Builder(source)
    try:
        # The C parser is some ten times faster; both give the same events.
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            builder.take(event)
    except yaml.MarkedYAMLError as problem:
        line = problem.problem_mark.line + 1 if problem.problem_mark else 1
        raise source.error(line, f"not YAML: {problem.problem or problem.context}") from None
    except (yaml.YAMLError, UnicodeError) as problem:
        raise TopologyError(
            f"{source.name}: not YAML: {' '.join(str(problem).split())[:200]}"
        ) from None
    if builder.root is None:
        raise TopologyError(f"{source.name}: empty; a topology file starts with 'format: ...'")
    return source.table(builder.root, "a topology file")


class _Builder:
    """Puts events together, with a stack of its own."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.root: Value | None = None
        self.stack: list[Items | Table] = []
        self.keys: list[Text | None] = []  # per open mapping: the key that waits for its value
        self.values = 0

    def take(self, event: yaml.Event) -> None:
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise self.source.error(
                line, "anchors and aliases (& and *) are not allowed: write the value out"
            )
        if isinstance(event, yaml.ScalarEvent):
            self.tagged(event, line)
            self.add(Text(event.value, line))
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self.tagged(event, line)
            value = Table(line) if isinstance(event, yaml.MappingStartEvent) else Items(line)
            self.add(value)
            self.stack.append(value)
            self.keys.append(None)
            if len(self.stack) > YAML_DEPTH:
                raise self.source.error(
                    line, f"nested more than {YAML_DEPTH} deep {YAML_DEPTH.note}"
                )
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self.stack.pop()
            self.keys.pop()
        elif isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
            raise self.source.error(line, "a second document: a topology file holds one")

    def tagged(self, event: yaml.NodeEvent, line: int) -> None:
        tag = getattr(event, "tag", None)
        if tag is not None and tag != "!":
            raise self.source.error(line, f"tags ({tag[:60]}) are not allowed")

    def add(self, value: Value) -> None:
        self.values += 1
        if self.values > YAML_VALUES:
            raise self.source.error(
                value.line, f"more than {YAML_VALUES:,} values {YAML_VALUES.note}"
            )
        if not self.stack:
            self.root = value
            return
        top, key = self.stack[-1], self.keys[-1]
        if isinstance(top, Items):
            top.items.append(value)
        elif key is None:
            if not isinstance(value, Text):
                raise self.source.error(value.line, f"a key must be plain text, not {kind(value)}")
            if value.text in top.items:
                before = top.lines[value.text]
                raise self.source.error(
                    value.line, f"'{value.text[:60]}' is given twice; first in line {before}"
                )
            self.keys[-1] = value
        else:
            top.items[key.text] = value
            top.lines[key.text] = key.line
            self.keys[-1] = None
