"""From MSCCL XML text to its elements: `scan` returns the algo, its gpus, their tbs, their steps.

A hardened reading: expat without document types and entities, bounds on depth and number of
elements, every number checked where it stands. Errors are PlanErrors that name source and line.
Meaning is not looked at here; read.py does that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from forestcoll.common.errors import PlanError, UnsupportedError, did_you_mean
from forestcoll.common.input_limits import BLOCKS, INSTRUCTIONS, RANKS
from forestcoll.plans.msccl.elements import (
    MAX_ATTRIBUTES,
    Elements,
    StopReading,
    read_integer,
)
from forestcoll.plans.rules import Notes
from forestcoll.program import BY_XML, Buffer

STEP_TYPES = frozenset((*BY_XML, "nop"))
_BUFFERS = {buffer.value: buffer for buffer in Buffer}
_NUMBERS = {str(number): number for number in range(-1, 2**12)}
"""Small numbers as nearly all stand in plans: reading them takes most of the time of reading."""
_STEP_NUMBERS = ("s", "srcoff", "dstoff", "cnt", "depid", "deps", "hasdep")
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
        known = _NUMBERS.get(text)
        value, octal = (known, False) if known is not None else read_integer(text.lstrip())
        if value is None and octal:
            raise self.fail(f"{key}={text!r} starts with 0, so the runtimes read it as octal")
        if value is None:
            shown = text if len(text) <= 40 else text[:40] + "..."
            raise self.fail(f"{key}={shown!r} is not an integer")
        if octal and abs(value) > 7:
            self.notes.add(
                f"line {self.line}: {key}={text!r} is octal for runtimes: {abs(value)}", key
            )
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
    scanner = _Scanner(source, notes)
    scanner.read(text)
    assert scanner.algo is not None  # expat refuses a document without an element
    _remark_grammar(text, notes)
    return scanner.algo


class _Scanner(Elements):
    """Builds the elements; PlanError where the text is no plan's."""

    def __init__(self, source: str, notes: Notes) -> None:
        super().__init__()
        self.source, self.notes = source, notes
        self.algo: Algo | None = None
        self.elements = 0  # steps and thread blocks so far
        self.parser.CharacterDataHandler = self.data

    def broken(self, text: str, line: int) -> None:
        where = self.source if line < 0 else f"{self.source}:{line}"
        raise PlanError(f"{where}: {text}")

    def doctype(self) -> None:
        raise StopReading("a document type is not allowed in a plan; remove <!DOCTYPE ...>")

    def data(self, text: str) -> None:
        if text.strip():
            raise StopReading(f"text {text.strip()[:40]!r} between the tags; a plan has only tags")

    def passed_over(self, name: str, above: str) -> None:
        if not above:
            hint = "; that is a topology" if name in ("system", "graphs") else ""
            raise StopReading(f"the outermost element is <{name[:40]}>, a plan's is <algo>{hint}")
        self.notes.add(f"line {self.line}: <{name[:40]}> in <{above}> is ignored", "element")

    def element(self, name: str, attributes: dict[str, str]) -> None:
        tag = Tag(self.source, name, self.line, attributes, self.notes)
        if len(attributes) > MAX_ATTRIBUTES:
            self.notes.add(f"line {tag.line}: more than {MAX_ATTRIBUTES} attributes; current "
                           f"runtimes ignore the rest", "attributes")  # fmt: skip
        if name == "step":
            self.step(tag)
        elif name == "tb":
            self.block(tag)
        elif name == "gpu":
            self.gpu(tag)
        else:
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
        self.algo.gpus[-1].blocks[-1].steps.append(_plain_step(tag) or read_step(tag))


def _plain_step(tag: Tag) -> Step | None:
    """The same as `read_step` where all is right and its numbers are small; else None."""
    attributes = tag.attributes
    try:
        s, srcoff, dstoff, cnt, depid, deps, hasdep = [
            _NUMBERS[attributes[key]] for key in _STEP_NUMBERS
        ]
        kind = attributes["type"]
        srcbuf, dstbuf = _BUFFERS[attributes["srcbuf"]], _BUFFERS[attributes["dstbuf"]]
    except KeyError:
        return None
    if s < 0 or cnt < 0 or not 0 <= hasdep <= 1 or kind not in STEP_TYPES:
        return None
    return Step(tag.line, s, kind, srcbuf, srcoff, dstbuf, dstoff, cnt, depid, deps, hasdep == 1)


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
