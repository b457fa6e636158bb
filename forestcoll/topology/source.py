"""Text that others wrote, as small trees that know their lines, within bounds: YAML and XML.

Built from the parsers' events: scalars stay text (37.3 never becomes a float), every value knows
its line, nothing recurses, and what YAML or XML could expand (anchors, aliases, tags, entities) is
refused as it appears, before it can cost anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

import yaml

from forestcoll.common.errors import TopologyError, did_you_mean
from forestcoll.common.input_limits import (
    DUMP_BYTES,
    DUMP_DEPTH,
    DUMP_ELEMENTS,
    TOPOLOGY_BYTES,
    YAML_DEPTH,
    YAML_VALUES,
    Limit,
)


@dataclass(slots=True)
class Place:
    """A line of a file, or the file itself as line 0; makes every error say so."""

    source: str
    line: int

    def error(self, message: str) -> TopologyError:
        """Returns the error to raise, with file and line in front."""
        where = f"{self.source}:{self.line}" if self.line else self.source
        return TopologyError(f"{where}: {message}")


class located:  # used like a function; a class because it is entered for every link
    """Puts the place, and `what` if any, in front of a `TopologyError` that knows neither."""

    __slots__ = ("place", "what")

    def __init__(self, place: Place, what: str = "") -> None:
        self.place = place
        self.what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if isinstance(error, TopologyError) and not str(error).startswith(f"{self.place.source}:"):
            raise self.place.error(f"{self.what}: {error}" if self.what else str(error)) from None


def check_size(text: str, most: Limit, source: str) -> None:
    """Raises `TopologyError` where `text` is longer than the limit."""
    if len(text) > most:
        raise TopologyError(f"{source}: larger than {most // 2**20} MiB {most.note}")


# --- YAML -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Value(Place):
    """A value of YAML: a text, a list or a mapping. `what` names it in errors."""

    def as_table(self, what: str) -> Table:
        """Returns itself if it is a mapping."""
        if not isinstance(self, Table):
            raise self.error(f"{what} must be a mapping (a: b), not {_shape(self)}")
        return self

    def as_list(self, what: str) -> list[Value]:
        """Returns its entries if it is a list."""
        if not isinstance(self, Items):
            raise self.error(f"{what} must be a list, not {_shape(self)}")
        return self.items

    def as_text(self, what: str) -> Text:
        """Returns itself if it is a scalar with something in it."""
        if not isinstance(self, Text):
            raise self.error(f"{what} must be a single value, not {_shape(self)}")
        if not self.text.strip():
            raise self.error(f"{what} is empty")
        return self


@dataclass(slots=True)
class Text(Value):
    """A scalar, as written."""

    text: str


@dataclass(slots=True)
class Items(Value):
    """A list."""

    items: list[Value] = field(default_factory=list)


@dataclass(slots=True)
class Table(Value):
    """A mapping; `lines` has the line of each key."""

    items: dict[str, Value] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)

    def key(self, name: str) -> Place:
        """Returns where that key stands."""
        return Place(self.source, self.lines[name])

    def text(self, name: str, what: str) -> Text | None:
        """Returns the scalar of that key, of the table `what`; None where it has no such key."""
        value = self.items.get(name)
        return None if value is None else value.as_text(f"{what}: {name}" if what else name)

    def check_keys(self, what: str, keys: Iterable[str], needed: Iterable[str] = ()) -> None:
        """Raises `TopologyError` for a key that is not known, and where a needed one is missing."""
        allowed = list(keys)
        for name in self.lines:
            if name not in allowed:
                hint = did_you_mean(name, allowed) or f"; known are {', '.join(allowed)}"
                raise self.key(name).error(f"{what}: unknown key '{name[:60]}'{hint}")
        for name in needed:
            if name not in self.items:
                raise self.error(f"{what}: '{name}' is missing")


def _shape(value: Value) -> str:
    """Returns what `value` is, in words."""
    if isinstance(value, Text):
        return f"'{value.text[:40]}'" if value.text.strip() else "nothing"
    return "a list" if isinstance(value, Items) else "a mapping"


def parse_yaml(text: str, source: str, kind: str = "topology") -> Table:
    """Returns the mapping that the YAML document `text` holds, a file of that kind.

    Raises `TopologyError` for what is not YAML, not one mapping, repeats a key, uses anchors,
    aliases or tags, or goes beyond `input_limits`.
    """
    check_size(text, TOPOLOGY_BYTES, source)
    builder = _YamlBuilder(source)
    try:
        # The C parser is some ten times faster; both give the same events.
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            builder.take(event)
    except yaml.MarkedYAMLError as problem:
        line = problem.problem_mark.line + 1 if problem.problem_mark else 1
        raise Place(source, line).error(f"not YAML: {problem.problem or problem.context}") from None
    except (yaml.YAMLError, UnicodeError) as problem:
        raise TopologyError(f"{source}: not YAML: {' '.join(str(problem).split())[:200]}") from None
    if builder.root is None:
        raise TopologyError(f"{source}: empty; a {kind} file starts with 'format: ...'")
    return builder.root.as_table(f"a {kind} file")


class _YamlBuilder:
    """Puts events together, with a stack of its own."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.root: Value | None = None
        self.stack: list[Items | Table] = []
        self.keys: list[Text | None] = []  # per open mapping: the key that waits for its value
        self.values = 0

    def take(self, event: yaml.Event) -> None:
        line = event.start_mark.line + 1 if event.start_mark else 1
        place = Place(self.source, line)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise place.error("anchors and aliases (& and *) are not allowed: write the value out")
        tag = getattr(event, "tag", None)
        if tag is not None and tag != "!":
            raise place.error(f"tags ({tag[:60]}) are not allowed")
        if isinstance(event, yaml.ScalarEvent):
            self.add(Text(self.source, line, event.value))
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            mapping = isinstance(event, yaml.MappingStartEvent)
            value = Table(self.source, line) if mapping else Items(self.source, line)
            self.add(value)
            self.stack.append(value)
            self.keys.append(None)
            if len(self.stack) > YAML_DEPTH:
                raise value.error(f"nested more than {YAML_DEPTH} deep {YAML_DEPTH.note}")
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self.stack.pop()
            self.keys.pop()
        elif isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
            raise place.error("a second document: a file holds one")

    def add(self, value: Value) -> None:
        self.values += 1
        if self.values > YAML_VALUES:
            raise value.error(f"more than {YAML_VALUES:,} values {YAML_VALUES.note}")
        if not self.stack:
            self.root = value
            return
        top, key = self.stack[-1], self.keys[-1]
        if isinstance(top, Items):
            top.items.append(value)
        elif key is None:
            if not isinstance(value, Text):
                raise value.error(f"a key must be plain text, not {_shape(value)}")
            if value.text in top.items:
                before = top.lines[value.text]
                raise value.error(f"'{value.text[:60]}' is given twice; first in line {before}")
            self.keys[-1] = value
        else:
            top.items[key.text] = value
            top.lines[key.text] = key.line
            self.keys[-1] = None


# --- XML ------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Element(Place):
    """An element of XML."""

    tag: str
    attributes: dict[str, str]
    parent: Element | None = None
    children: list[Element] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)  # of the text directly inside

    def children_of(self, tag: str) -> Iterator[Element]:
        """Yields the children of that tag."""
        return (child for child in self.children if child.tag == tag)

    def walk(self) -> Iterator[Element]:
        """Yields this element and all below, in the order of the file."""
        stack = [self]
        while stack:
            element = stack.pop()
            yield element
            stack.extend(reversed(element.children))

    @property
    def content(self) -> str:
        """Returns the text directly inside."""
        return "".join(self.pieces)

    def get(self, key: str) -> str:
        """Returns an attribute, "" where it is missing."""
        return self.attributes.get(key, "")

    def text(self, key: str) -> str:
        """Returns an attribute that has to be there."""
        if key not in self.attributes:
            raise self.error(f"<{self.tag}> lacks the attribute '{key}'")
        return self.attributes[key].strip()

    def integer(self, key: str, default: int | None = None) -> int:
        """Returns an attribute that is a whole number; `default` where it is missing or empty."""
        if default is not None and not self.get(key).strip():
            return default
        text = self.text(key)
        if re.fullmatch(r"-?[0-9]{1,15}", text) is None:
            raise self.error(f'<{self.tag}> {key}="{text[:40]}" is not a whole number')
        return int(text)


def parse_xml(text: str, source: str, doctype: str = "") -> Element:
    """Returns the root element of `text`; `doctype` may be declared, without anything inside.

    Raises `TopologyError` with the line when it is not such XML.
    """
    check_size(text, DUMP_BYTES, source)
    builder = _XmlBuilder(source, doctype)
    try:
        builder.parser.Parse(text.encode("utf-8"), True)
    except expat.ExpatError as error:
        why = expat.ErrorString(error.code)
        raise Place(source, error.lineno).error(f"not XML: {why}") from None
    except UnicodeError:
        raise TopologyError(f"{source}: not XML: not text in UTF-8") from None
    if builder.root is None:
        raise TopologyError(f"{source}: not XML: no element")
    return builder.root


class _XmlBuilder:
    def __init__(self, source: str, allowed: str) -> None:
        self.source = source
        self.allowed = allowed
        self.root: Element | None = None
        self.stack: list[Element] = []
        self.count = 0
        self.parser = expat.ParserCreate("utf-8")
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = lambda tag: self.stack.pop()
        self.parser.CharacterDataHandler = self.text
        self.parser.StartDoctypeDeclHandler = self.doctype

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        parent = self.stack[-1] if self.stack else None
        element = Element(self.source, self.parser.CurrentLineNumber, tag, attributes, parent)
        self.count += 1
        if self.count > DUMP_ELEMENTS:
            raise element.error(f"more than {DUMP_ELEMENTS:,} elements {DUMP_ELEMENTS.note}")
        if len(self.stack) >= DUMP_DEPTH:
            raise element.error(f"nested more than {DUMP_DEPTH} deep {DUMP_DEPTH.note}")
        if parent is None:
            self.root = element
        else:
            parent.children.append(element)
        self.stack.append(element)

    def text(self, data: str) -> None:
        if self.stack and data.strip():
            self.stack[-1].pieces.append(data)

    def doctype(self, name: str, system: str | None, public: str | None, inside: int) -> None:
        if name == self.allowed and not inside:
            return
        raise Place(self.source, self.parser.CurrentLineNumber).error(
            f"a document type ('{name[:40]}') is not allowed: it can declare entities, which no "
            "such file needs; take it out"
        )
