"""From MSCCL XML text to its elements: `scan` returns the algo, its gpus, their tbs, their steps.

A hardened reading: expat without document types and entities, bounds on depth and number of
elements, every number checked where it stands. Errors are PlanErrors that name source and line.
Meaning is not looked at here; read.py does that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple
from xml.parsers import expat

from forestcoll.errors import PlanError, UnsupportedError, did_you_mean
from forestcoll.input_limits import BLOCKS, INSTRUCTIONS, PLAN_DEPTH, RANKS
from forestcoll.plans.msccl.spelling import as_xml
from forestcoll.plans.rules import Notes
from forestcoll.program import BY_XML, Buffer

STEP_TYPES = frozenset((*BY_XML, "nop"))
MAX_ATTRIBUTES = 16  # a tag's attributes that the runtimes' parsers keep
MAX_VALUE = 255  # and the bytes of a value
_CHILD = {"algo": "gpu", "gpu": "tb", "tb": "step"}
_BUFFERS = {buffer.value: buffer for buffer in Buffer}
_INT = re.compile(r"\s*[+-]?(?:0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20})\Z")
# What the hand-written parsers read: see 1.1 of their grammar in docs/plans.md.
_STRICT = re.compile(
    r'[ \n\r]+|<!--.*?-->|</?[A-Za-z_][\w.:-]*(?: [A-Za-z_][\w.:-]*="[^"]*")*(?: ?/)?>', re.DOTALL
)


class Step(NamedTuple):
    """One <step>, as it stands in the file."""

    line: int
    s: int
    type: str
    srcbuf: Buffer
    srcoff: int
    dstbuf: Buffer
    dstoff: int
    cnt: int
    depid: int
    deps: int
    hasdep: bool


@dataclass(slots=True)
class Tag:
    """An element's attributes and line, with readers for them that raise PlanError."""

    source: str
    name: str
    line: int
    attributes: dict[str, str]
    notes: Notes

    def fail(self, text: str) -> PlanError:
        """The error that says where it is."""
        return PlanError(f"{self.source}:{self.line}: {text}")

    def text(self, key: str) -> str:
        """A required attribute's text."""
        try:
            return self.attributes[key]
        except KeyError:
            hint = did_you_mean(key, self.attributes)
            raise self.fail(f"<{self.name}> has no attribute {key!r}{hint}") from None

    def number(self, key: str, low: int, high: int) -> int:
        """A required integer, as the runtimes read it (0x and a leading 0 count), within bounds."""
        text = self.text(key)
        if not _INT.match(text):
            shown = text if len(text) <= 40 else text[:40] + "..."
            raise self.fail(f"{key}={shown!r} is not an integer")
        digits = text.strip().lstrip("+-")
        if len(digits) > 1 and digits[0] == "0" and digits[1] not in "xX":
            if not set(digits) <= set("01234567"):
                raise self.fail(f"{key}={text!r} starts with 0, so the runtimes read it as octal")
            value = int(digits, 8)
            if value > 7:
                self.notes.add(
                    f"line {self.line}: {key}={text!r} is octal for runtimes: {value}", key
                )
        else:
            value = int(digits, 0)
        value = -value if "-" in text else value
        if not low <= value <= high:
            raise self.fail(f"{key}={value} is out of range; it must lie between {low} and {high}")
        return value

    def buffer(self, key: str) -> Buffer:
        """A required buffer letter."""
        text = self.text(key)
        if text not in _BUFFERS:
            raise self.fail(f"{key}={text!r} is no buffer; buffers are 'i', 'o' and 's'")
        return _BUFFERS[text]


@dataclass(slots=True)
class Block:
    """One <tb> with its steps in document order."""

    tag: Tag
    steps: list[Step] = field(default_factory=list)


@dataclass(slots=True)
class Gpu:
    """One <gpu> with its thread blocks in document order."""

    tag: Tag
    blocks: list[Block] = field(default_factory=list)


@dataclass(slots=True)
class Algo:
    """The <algo> with its gpus in document order."""

    tag: Tag
    gpus: list[Gpu] = field(default_factory=list)


def scan(text: str, source: str, notes: Notes) -> Algo:
    """The elements of a plan. What the current parsers would not read is remarked in `notes`."""
    algo = _Scanner(source, notes).run(text)
    _remark_grammar(text, notes)
    return algo


class _Scanner:
    """Builds the elements while expat reports tags."""

    def __init__(self, source: str, notes: Notes) -> None:
        self.source, self.notes = source, notes
        self.algo: Algo | None = None
        self.open: list[str] = []
        self.skipped = 0  # open elements inside one that no parser looks at
        self.elements = 0  # steps and thread blocks so far
        self.parser = expat.ParserCreate()

    def run(self, text: str) -> Algo:
        parser = self.parser
        parser.buffer_text = True
        parser.StartElementHandler = self.start
        parser.EndElementHandler = self.end
        parser.CharacterDataHandler = self.data
        parser.StartDoctypeDeclHandler = self.doctype
        try:
            parser.Parse(as_xml(text), True)
        except expat.ExpatError as error:
            what = expat.ErrorString(error.code)
            raise PlanError(f"{self.source}:{error.lineno}: not well-formed XML: {what}") from None
        except UnicodeEncodeError:
            raise PlanError(f"{self.source}: it holds characters outside Unicode") from None
        assert self.algo is not None  # expat refuses a document without an element
        return self.algo

    def fail(self, text: str) -> PlanError:
        return PlanError(f"{self.source}:{self.parser.CurrentLineNumber}: {text}")

    def doctype(self, *_: object) -> None:
        raise self.fail("a document type is not allowed in a plan; remove <!DOCTYPE ...>")

    def data(self, text: str) -> None:
        if text.strip():
            raise self.fail(f"text {text.strip()[:40]!r} between the tags; a plan has only tags")

    def end(self, name: str) -> None:
        if self.skipped:
            self.skipped -= 1
        else:
            self.open.pop()

    def start(self, name: str, attributes: dict[str, str]) -> None:
        line = self.parser.CurrentLineNumber
        if len(self.open) + self.skipped >= PLAN_DEPTH:
            raise self.fail(f"elements are nested more than {PLAN_DEPTH} deep {PLAN_DEPTH.note}")
        if self.skipped or (self.open and name != _CHILD.get(self.open[-1])):
            if not self.skipped:
                self.notes.add(
                    f"line {line}: <{name[:40]}> in <{self.open[-1]}> is ignored", "element"
                )
            self.skipped += 1
            return
        tag = Tag(self.source, name, line, attributes, self.notes)
        if len(attributes) > MAX_ATTRIBUTES:
            self.notes.add(f"line {line}: more than {MAX_ATTRIBUTES} attributes; current runtimes "
                           f"ignore the rest", "attributes")  # fmt: skip
        self.open.append(name)
        if len(self.open) == 1:
            self.root(tag)
        elif name == "step":
            self.step(tag)
        elif name == "tb":
            self.block(tag)
        else:
            self.gpu(tag)

    def root(self, tag: Tag) -> None:
        if tag.name != "algo":
            hint = "; that is a topology" if tag.name in ("system", "graphs") else ""
            raise tag.fail(f"the outermost element is <{tag.name[:40]}>, a plan's is <algo>{hint}")
        self.algo = Algo(tag)

    def gpu(self, tag: Tag) -> None:
        assert self.algo is not None
        if len(self.algo.gpus) >= RANKS:
            raise tag.fail(f"more than {RANKS} gpus {RANKS.note}")
        self.algo.gpus.append(Gpu(tag))

    def block(self, tag: Tag) -> None:
        assert self.algo is not None
        blocks = self.algo.gpus[-1].blocks
        if len(blocks) >= BLOCKS:
            raise tag.fail(f"more than {BLOCKS} thread blocks in one gpu {BLOCKS.note}")
        self.count(tag)
        blocks.append(Block(tag))

    def count(self, tag: Tag) -> None:
        self.elements += 1
        if self.elements > INSTRUCTIONS:
            raise tag.fail(f"more than {INSTRUCTIONS} tbs and steps {INSTRUCTIONS.note}")

    def step(self, tag: Tag) -> None:
        assert self.algo is not None
        self.count(tag)
        self.algo.gpus[-1].blocks[-1].steps.append(read_step(tag))


def read_step(tag: Tag) -> Step:
    """One <step>, its numbers within what a 32-bit reader holds."""
    top = 2**31 - 1
    kind = tag.text("type")
    if kind == "ra":
        raise UnsupportedError(
            f"{tag.source}:{tag.line}: type 'ra' is an operation of the first MSCCL only; "
            f"no current runtime has it, and neither has this version"
        )
    if kind not in STEP_TYPES:
        hint = did_you_mean(kind[:40], STEP_TYPES)
        raise tag.fail(f"type={kind[:40]!r} is no step type{hint}")
    return Step(
        tag.line,
        tag.number("s", 0, top),
        kind,
        tag.buffer("srcbuf"),
        tag.number("srcoff", -1, top),
        tag.buffer("dstbuf"),
        tag.number("dstoff", -1, top),
        tag.number("cnt", 0, top),
        tag.number("depid", -1, top),
        tag.number("deps", -1, top),
        bool(tag.number("hasdep", 0, 1)),
    )


def _remark_grammar(text: str, notes: Notes) -> None:
    """Note the first place that the runtimes' own parsers would not read, though XML allows it."""
    at, end = 0, len(text)
    while at < end:
        match = _STRICT.match(text, at)
        if match is None:
            line = text.count("\n", 0, at) + 1
            piece = text[at : at + 30].split("\n")[0]
            notes.add(
                f"line {line}: current runtimes cannot read {piece!r}: they take no prolog, "
                f"no tab, and each tag on one line with single spaces and double quotes"
            )
            return
        at = match.end()
