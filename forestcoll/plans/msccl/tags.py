"""From MSCCL XML text to its tags, with a finding for everything that the loaders read otherwise.

`scan` returns the plan's elements as far as they can be read: a linter goes on where a reader
stops. The grammar is that of the hand-written parser (Azure/msccl-executor-nccl c6f6b36,
msccl_parser.cc), which knows less than XML.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from forestcoll.common.input_limits import PLAN_ELEMENTS
from forestcoll.plans.findings import Findings
from forestcoll.plans.msccl.elements import (
    MAX_ATTRIBUTES,
    Elements,
    StopReading,
    read_integer,
)
from forestcoll.plans.msccl.spelling import ENTITY, TOKEN

MAX_NAME = 254  # bytes of a tag's or an attribute's name, and of the first word of a comment
MAX_VALUE = 255  # and of a value
_NAME = r"[A-Za-z_][\w.:-]*"
_STRICT = re.compile(rf'<{_NAME}(?: {_NAME}="[^"&]*")* ?/?>|</{_NAME}>')
_NAMES = re.compile(rf"(?<=</){_NAME}|(?<=<){_NAME}|(?<= ){_NAME}(?==)")
_WORD_END = re.compile(r"[ >/\n\r]")
_NAMED = re.compile(r' name="[^"]*"')  # which the loaders do not look at


@dataclass(slots=True)
class Tag:
    """An element: its attributes as text, its line, and the elements below it."""

    name: str
    line: int
    attributes: dict[str, str]
    children: list[Tag] = field(default_factory=list)


class Numbers:
    """Reads attributes as the loaders do; `get` returns None where there is no number to go by."""

    def __init__(self, out: Findings) -> None:
        self.out = out
        self._known: dict[str, int] = {}
        self._octal: set[str] = set()

    def get(self, tag: Tag, key: str, rank: int = -1, block: int = -1) -> int | None:
        """The attribute's value as the loaders read it; a finding where it says otherwise."""
        text = tag.attributes.get(key)
        if text is None:
            self.out.add(
                "XML-MISSING", f"<{tag.name}> has no {key}", rank=rank, block=block, line=tag.line
            )
            return None
        value = self._known.get(text)
        if value is None:
            value, octal = read_integer(text)
            if value is None:
                self.out.add(
                    "XML-NUMBER", f"{key}={text[:40]!r} of <{tag.name}> is no integer",
                    rank=rank, block=block, line=tag.line,
                )  # fmt: skip
                return None
            self._known[text] = value
            if octal and text.strip("+-0"):
                self._octal.add(text)
        if text in self._octal:
            self.out.add(
                "XML-OCTAL", f"{key}={text!r} of <{tag.name}> is {value} to the loaders",
                rank=rank, block=block, line=tag.line,
            )  # fmt: skip
        return value


def scan(text: str, out: Findings) -> Tag | None:
    """The <algo> element, or None where the file ends before it does."""
    _check_grammar(text, out)
    elements = _Elements(out)
    elements.read(text)
    # half a plan lacks whatever comes later
    return None if out.has("XML-SYNTAX") else elements.algo


class _Elements(Elements):
    """Builds the tags; a finding for what the loaders pass over."""

    def __init__(self, out: Findings) -> None:
        super().__init__()
        self.out = out
        self.algo: Tag | None = None
        self.tags: list[Tag] = []  # the open ones
        self.count = 0

    def broken(self, text: str, line: int) -> None:
        self.out.add("XML-SYNTAX", text, line=line)

    def doctype(self) -> None:
        self.out.add("XML-PROLOG", "a document type", line=self.line)
        raise StopReading("a document type is no part of a plan")  # nor are its entities

    def passed_over(self, name: str, above: str) -> None:
        if above:
            self.out.add("XML-ELEMENT", f"<{name[:40]}> in <{above}> is ignored", line=self.line)
        else:
            words = f"the outermost element is <{name[:40]}>"
            self.out.add("XML-ROOT-ELEMENT", words, line=self.line)

    def element(self, name: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if self.count > PLAN_ELEMENTS:
            raise StopReading(f"more than {PLAN_ELEMENTS} elements {PLAN_ELEMENTS.note}")
        tag = Tag(name, self.line, attributes)
        del self.tags[len(self.open) - 1 :]
        if self.tags:
            self.tags[-1].children.append(tag)
        else:
            self.algo = tag
        self.tags.append(tag)
        if len(attributes) > MAX_ATTRIBUTES:
            dropped = ", ".join(list(attributes)[MAX_ATTRIBUTES:][:8])
            self.out.add("XML-ATTRIBUTES", f"<{name}> has {len(attributes)} attributes; the "
                         f"loaders never see {dropped}", line=tag.line)  # fmt: skip
        for key, value in attributes.items():
            if len(value) > MAX_VALUE // 4 and len(value.encode(errors="replace")) > MAX_VALUE:
                self.out.add("XML-VALUE-LENGTH", f"{key[:40]} of <{name}> has {len(value)} "
                             f"characters", line=tag.line)  # fmt: skip


def _check_grammar(text: str, out: Findings) -> None:
    """A finding for each token that the hand-written parser does not read as XML does."""
    line = 1
    seen_tag = False
    for match in TOKEN.finditer(text):
        token = match[0]
        if token[0] != "<":
            if token.strip(" \n\r"):
                _check_between(token, line, seen_tag, out)
        elif token == "<" or (token.startswith("<!--") and not token.endswith("-->")):
            return  # the file ends in a tag
        elif token.startswith("<!--"):
            word = _WORD_END.split(token, 1)[0]
            if "=" in word or len(word) > MAX_NAME:
                out.add("XML-COMMENT", f"{token[:40]!r} ends the reading", line=line)
        else:
            seen_tag = True
            if len(token) > MAX_NAME:
                _check_names(token, line, out)
            if not _STRICT.fullmatch(token):
                _check_tag(token, line, out)
        line += token.count("\n")


def _check_names(token: str, line: int, out: Findings) -> None:
    for name in _NAMES.findall(token):
        if len(name.encode(errors="replace")) > MAX_NAME:
            out.add("XML-VALUE-LENGTH", f"the name {name[:40]!r}... has {len(name)} characters",
                    line=line)  # fmt: skip


def _check_between(token: str, line: int, seen_tag: bool, out: Findings) -> None:
    rest = token.strip(" \n\r")
    line += token.find(rest[:1]) >= 0 and token[: token.find(rest[:1])].count("\n")
    if rest.isspace():
        out.add("XML-WHITESPACE", f"{rest[0]!r} between tags", line=line)
    elif rest.startswith("\ufeff") and not seen_tag:
        out.add("XML-TEXT", "a byte order mark before the first tag", line=line)
    else:
        out.add("XML-TEXT", f"{rest[:40]!r} between tags", line=line)


def _check_tag(token: str, line: int, out: Findings) -> None:
    if token.startswith(("<?", "<!")):
        out.add("XML-PROLOG", f"{token[:40]!r}", line=line)
        return
    outside = re.sub(r'"[^"]*"', '""', token)  # values hold anything but double quotes
    if "\n" in outside or "\r" in outside:
        out.add("XML-TAG", f"{token.split()[0][:40]} goes over several lines", line=line)
    elif "\t" in outside:
        out.add("XML-TAG", f"a tab in {token.split()[0][:40]} ...", line=line)
    elif "'" in outside:
        out.add("XML-TAG", f"single quotes in {token.split()[0][:40]} ...", line=line)
    elif re.search(r"\s=|=\s", outside):
        out.add("XML-TAG", f"a space next to '=' in {token.split()[0][:40]} ...", line=line)
    elif ENTITY.search(_NAMED.sub("", token)):
        out.add("XML-TAG", f"an entity (&...;) in {token.split()[0][:40]} ...", line=line)
    elif "  " in outside:
        out.add("XML-SPACES", f"two spaces in {token.split()[0][:40]} ...", line=line)
    elif token.endswith(">") and not _STRICT.fullmatch(token.replace("&", "")):
        # what is cut off is XML-SYNTAX
        out.add("XML-TAG", f"{token[:40]!r} is no tag to the loaders", line=line)
