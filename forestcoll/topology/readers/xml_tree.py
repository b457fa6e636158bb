"""XML text to a small tree that knows its lines: no entities, no document types, bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from forestcoll.common.errors import TopologyError
from forestcoll.common.input_limits import DUMP_BYTES, DUMP_DEPTH, DUMP_ELEMENTS


@dataclass(slots=True, eq=False)
class Element:
    """An element; `error` puts file and line in front."""

    tag: str
    attributes: dict[str, str]
    line: int
    source: str
    parent: Element | None = None
    children: list[Element] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)  # of the text directly inside

    def error(self, message: str) -> TopologyError:
        """The error to raise about this element."""
        return TopologyError(f"{self.source}:{self.line}: {message}")

    def named(self, tag: str) -> Iterator[Element]:
        """Children of that tag."""
        return (child for child in self.children if child.tag == tag)

    def walk(self) -> Iterator[Element]:
        """This element and all below, in the order of the file."""
        stack = [self]
        while stack:
            element = stack.pop()
            yield element
            stack.extend(reversed(element.children))

    @property
    def content(self) -> str:
        """The text directly inside."""
        return "".join(self.pieces)

    def text(self, key: str) -> str:
        """An attribute that has to be there."""
        if key not in self.attributes:
            raise self.error(f"<{self.tag}> lacks the attribute '{key}'")
        return self.attributes[key].strip()

    def integer(self, key: str, default: int | None = None) -> int:
        """An attribute that is a whole number; `default` where it is missing or empty."""
        if default is not None and not self.attributes.get(key, "").strip():
            return default
        text = self.text(key)
        if re.fullmatch(r"-?[0-9]{1,15}", text) is None:
            raise self.error(f'<{self.tag}> {key}="{text[:40]}" is not a whole number')
        return int(text)


def parse(text: str, source: str, doctype: str = "") -> Element:
    """The root element of `text`; `doctype` may be declared, without anything inside.

    Raises `TopologyError` with the line when it is not such XML.
    """
    if len(text) > DUMP_BYTES:
        raise TopologyError(f"{source}: larger than {DUMP_BYTES // 2**20} MiB {DUMP_BYTES.note}")
    builder = _Builder(source, doctype)
    try:
        builder.parser.Parse(text.encode("utf-8"), True)
    except expat.ExpatError as error:
        raise TopologyError(
            f"{source}:{error.lineno}: not XML: {expat.ErrorString(error.code)}"
        ) from None
    except UnicodeError:
        raise TopologyError(f"{source}: not XML: not text in UTF-8") from None
    if builder.root is None:
        raise TopologyError(f"{source}: not XML: no element")
    return builder.root


class _Builder:
    def __init__(self, source: str, allowed: str) -> None:
        self.source = source
        self.allowed = allowed
        self.root: Element | None = None
        self.open: list[Element] = []
        self.count = 0
        self.parser = expat.ParserCreate("utf-8")
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.text
        self.parser.StartDoctypeDeclHandler = self.doctype

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        line = self.parser.CurrentLineNumber
        parent = self.open[-1] if self.open else None
        element = Element(tag, attributes, line, self.source, parent)
        self.count += 1
        if self.count > DUMP_ELEMENTS:
            raise element.error(f"more than {DUMP_ELEMENTS:,} elements {DUMP_ELEMENTS.note}")
        if len(self.open) >= DUMP_DEPTH:
            raise element.error(f"nested more than {DUMP_DEPTH} deep {DUMP_DEPTH.note}")
        if parent is None:
            self.root = element
        else:
            parent.children.append(element)
        self.open.append(element)

    def end(self, tag: str) -> None:
        self.open.pop()

    def text(self, data: str) -> None:
        if self.open and data.strip():
            self.open[-1].pieces.append(data)

    def doctype(self, name: str, system: str | None, public: str | None, inside: int) -> None:
        if name == self.allowed and not inside:
            return
        line = self.parser.CurrentLineNumber
        raise TopologyError(
            f"{self.source}:{line}: a document type ('{name[:40]}') is not allowed: it can "
            "declare entities, which no such file needs; take it out"
        )
