"""The text of an MSCCL XML file: its elements as a tree, and what the loaders read otherwise.

The runtimes cut the text with a hand-written parser (Azure/msccl-executor-nccl c6f6b36,
msccl_parser.cc:26-75), which knows less than XML, and takes a value to end at the next double
quote, whatever stands before it. Here expat reads it, without document types and entities, bounded
in depth and number; what the loaders would not read that way is noted.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NoReturn
from xml.parsers import expat

from forestcoll.common.errors import did_you_mean
from forestcoll.common.input_limits import BLOCKS, INSTRUCTIONS, PLAN_DEPTH, RANKS, Limit
from forestcoll.plans.findings import LARGE, POSITIVE, Entry, Field, Findings, Shape
from forestcoll.program import BY_XML, Buffer
from forestcoll.verify import _machine

CHILD = {"": "algo", "algo": "gpu", "gpu": "tb", "tb": "step"}
"""What each element holds; the file holds an <algo>."""
STEP_TYPES = (*BY_XML, "nop")
BUFFERS = {buffer.value: buffer for buffer in Buffer}
_INT, _WORD = Field(), Field(str)
_SIZE = Field(int, "XML-SIZE-RANGE", range(2**63), need="add")
_FLAG = Field(int, "XML-FLAG", (0, 1), need="add")
_CHUNKS = Field(int, "XML-CHUNKS-NEGATIVE", range(LARGE))
_BUFFER = Field(str, "XML-BUFFER", BUFFERS)
SHAPES: dict[str, Shape] = {
    "algo": {
        "coll": _WORD, "proto": Field(str, "XML-PROTOCOL", ("Simple", "LL", "LL128")),
        "ngpus": _INT,
        "nchunksperloop": Field(int, "XML-CHUNKS-ZERO", POSITIVE),
        "nchannels": Field(need="add"), "minBytes": _SIZE, "maxBytes": _SIZE,
        "inplace": _FLAG, "outofplace": _FLAG, "root": _INT,
    },
    "gpu": {"id": _INT, "i_chunks": _CHUNKS, "o_chunks": _CHUNKS, "s_chunks": _CHUNKS},
    "tb": {"id": _INT, "recv": _INT, "send": _INT, "chan": _INT},
    "step": {
        "s": _INT, "depid": _INT, "deps": _INT, "type": Field(str, "XML-STEP-TYPE", STEP_TYPES),
        "srcbuf": _BUFFER, "srcoff": _INT, "dstbuf": _BUFFER, "dstoff": _INT,
        "cnt": _INT, "hasdep": Field(int, "XML-FLAG", (0, 1)),
    },
}  # fmt: skip
"""What the loaders read of each element."""
ATTRIBUTES = {"name", "redop", "sums"}.union(*SHAPES.values())
PLAIN = {str(number): number for number in range(-1, 256)}
"""By their texts: numbers that say what they mean."""
MAX_ATTRIBUTES = 16  # a tag's attributes that the runtimes' parsers keep
MAX_NAME = 254  # bytes of a tag's or an attribute's name, and of a comment's first word
MAX_VALUE = 255  # and of a value
_INTEGER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20})\Z", re.ASCII)
_NAME = r"[A-Za-z_][\w.:-]*"
_STRICT = re.compile(rf'<{_NAME}(?: {_NAME}="[^"&]*")* ?/?>|</{_NAME}>')
_NAMES = re.compile(rf"(?<=</){_NAME}|(?<=<){_NAME}|(?<= ){_NAME}(?==)")
_WORD_END = re.compile(r"[ >/\n\r]")
_NAMED = re.compile(r' name="[^"]*"')  # which the loaders do not look at


Row = tuple[int, dict[str, str]] | tuple[int, tuple[str, ...], int, int, int]


class Element(Entry):
    """An element: its attributes, its line, and what is below it.

    `steps`, of a thread block: line and attributes of each; line, words, s, depid and deps where
    nothing is odd (scan.cpp). There are many of them, and all that is kept of each costs time.
    """

    __slots__ = ("children", "line", "name", "steps")
    missing = "XML-MISSING"

    def __init__(self, name: str, line: int, attributes: dict[str, str], out: Findings) -> None:
        super().__init__(attributes, "", {"line": line}, out, SHAPES[name])
        self.name, self.line = name, line
        self.children: list[Element] = []
        self.steps: list[Row] = []

    def lack(self, key: str) -> str:
        """Words for an attribute that is missing, with that which may have been meant for it."""
        hint = did_you_mean(key, [name for name in self.values if name not in ATTRIBUTES])
        return f"<{self.name}> has no {key}{hint}"

    def value(self, key: str, field: Field) -> Any:
        """An attribute as the loaders read it; a finding where it says otherwise."""
        text: str = self.values[key]
        if text in PLAIN:
            return PLAIN[text]
        number, octal = read_integer(text)
        if number is None:
            why = ": the loaders read it as octal" if octal else ""
            words = f"{key}={text[:40]!r} of <{self.name}> is no integer{why}"
            self.refuse("XML-NUMBER", words)
        elif octal and text.strip("+-0"):
            words = f"{key}={text[:40]!r} of <{self.name}> is {number} to the loaders"
            self.add("XML-OCTAL", words)
        return number


class _Stop(Exception):
    """Ends the reading from inside expat's callbacks; its text says why."""


def scan(text: str, out: Findings) -> Element | None:
    """The <algo> element with all below it, or None where the text is no plan's."""
    plain = _machine.scan_xml(text, int(RANKS), int(BLOCKS), int(INSTRUCTIONS))
    if plain is not None:
        return _tree(out, "algo", *plain)
    algo = _Scanner(out).read(text)
    _check_grammar(text, out)
    return algo


def _tree(
    out: Findings, name: str, line: int, attributes: dict[str, str], below: list[Any]
) -> Element:
    """The element of what was read of a plain file."""
    element = Element(name, line, attributes, out)
    if name == "tb":
        element.steps = below
    else:
        element.children = [_tree(out, CHILD[name], *child) for child in below]
    return element


class _Scanner:
    """Builds the tree of the elements that the loaders look at."""

    def __init__(self, out: Findings) -> None:
        self.out = out
        self.open: list[Element] = []
        self.skipped = 0  # open elements inside one that no loader looks at
        self.in_step = False
        self.count = 0  # of thread blocks and steps
        self.algo: Element | None = None
        self.parser = expat.ParserCreate()

    def read(self, text: str) -> Element | None:
        parser = self.parser
        parser.buffer_text = True
        parser.StartElementHandler = self.start
        parser.EndElementHandler = self.end
        parser.StartDoctypeDeclHandler = self.doctype
        try:
            parser.Parse(as_xml(text), True)
            return self.algo
        except expat.ExpatError as error:
            wrong, line = f"not well-formed XML: {expat.ErrorString(error.code)}", error.lineno
        except UnicodeEncodeError:
            wrong, line = "it holds characters outside Unicode", -1
        except _Stop as stop:
            wrong, line = str(stop), parser.CurrentLineNumber
        self.out.refuse("XML-SYNTAX", wrong, line=line)
        return None  # half a plan lacks whatever comes later

    def start(self, name: str, attributes: dict[str, str]) -> None:
        above = self.open[-1] if self.open else None
        if self.in_step or self.skipped or CHILD.get(above.name if above else "") != name:
            self.pass_over(name, "step" if self.in_step else above.name if above else "")
            return
        line = self.parser.CurrentLineNumber
        if above is None:
            self.algo = element = Element(name, line, attributes, self.out)
            self.open.append(element)
        elif name == "step":
            above.steps.append((line, attributes))
            self.in_step = True
            self.count += 1
        else:
            self.nest(above, Element(name, line, attributes, self.out))
        if self.count > INSTRUCTIONS:
            self.stop("tbs and steps", INSTRUCTIONS)
        if len(attributes) > MAX_ATTRIBUTES:
            dropped = ", ".join(list(attributes)[MAX_ATTRIBUTES:][:8])
            self.out.add("XML-ATTRIBUTES", f"<{name}> has {len(attributes)} attributes; the "
                         f"loaders never see {dropped}", line=line)  # fmt: skip
        self.measure(name, line, attributes)

    def nest(self, above: Element, element: Element) -> None:
        """A gpu or a thread block begins."""
        above.children.append(element)
        self.open.append(element)
        if element.name == "tb":
            self.count += 1
            if len(above.children) > BLOCKS:
                self.stop("thread blocks in one gpu", BLOCKS)
        elif len(above.children) > RANKS:
            self.stop("gpus", RANKS)

    def stop(self, what: str, most: Limit) -> NoReturn:
        raise _Stop(f"more than {most} {what} {most.note}")

    def measure(self, name: str, line: int, attributes: dict[str, str]) -> None:
        """Whether the runtimes' buffers hold the values."""
        for key, value in attributes.items():
            if len(value) > MAX_VALUE // 4 and len(value.encode(errors="replace")) > MAX_VALUE:
                self.out.add("XML-VALUE-LENGTH", f"{key[:40]} of <{name}> has {len(value)} "
                             f"characters", line=line)  # fmt: skip

    def pass_over(self, name: str, above: str) -> None:
        """An element that the loaders do not look at, nor at what is in it."""
        if len(self.open) + self.in_step + self.skipped >= PLAN_DEPTH:
            raise _Stop(f"elements are nested more than {PLAN_DEPTH} deep {PLAN_DEPTH.note}")
        line = self.parser.CurrentLineNumber
        self.skipped += 1
        if self.skipped > 1:
            return
        if above:
            words = f"<{name[:40]}> in <{above}> is ignored"
            self.out.add("XML-ELEMENT", words, line=line)
            return
        hint = "; that is a topology" if name in ("system", "graphs") else ""
        words = f"the outermost element is <{name[:40]}>{hint}"
        self.out.refuse("XML-ROOT-ELEMENT", words, line=line)

    def end(self, name: str) -> None:
        if self.skipped:
            self.skipped -= 1
        elif self.in_step:
            self.in_step = False
        else:
            self.open.pop()

    def doctype(self, *what: object) -> None:
        words = "a document type"
        self.out.refuse("XML-PROLOG", words, line=self.parser.CurrentLineNumber)
        raise _Stop("a document type is no part of a plan")  # nor are its entities


@lru_cache(maxsize=4096)
def read_integer(text: str) -> tuple[int | None, bool]:
    """(value, whether it is written as octal), as the loaders read an attribute; None: no integer.

    They take `strtol` with base 0 (msccl_parser.h:82-88): white space may stand in front, 0x and a
    leading 0 count; decimal digits after a leading 0 may be none of octal.
    """
    match = _INTEGER.match(text)
    if match is None:
        return None, False
    sign, digits = match.groups()
    octal = len(digits) > 1 and digits[0] == "0" and digits[1] not in "xX"
    if octal and not set(digits) <= set("01234567"):
        return None, True
    value = int(digits, 8 if octal else 0)
    return (-value if sign == "-" else value), octal


# --- how the runtimes' own parser cuts a text -----------------------------------------------------

TOKEN = re.compile(
    r'<!--(?:.*?-->|.*)|<(?:[^<>"]|"[^"]*")*+>|<[^<>]*>|[^<]+|<', re.DOTALL
)  # linear: nothing is looked for twice to the end of the text
"""A comment, a tag, or what stands between; a lone "<" begins a tag that does not end."""
ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#x[0-9a-fA-F]{1,6});")
_VALUE = re.compile(r'"[^"]*"')
_CONTROL = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_ODD = re.compile(rf'="[^"<]*<|&|{_CONTROL.pattern}')
_PART = re.compile(rf"{ENTITY.pattern}|[&<]|{_CONTROL.pattern}")


def as_xml(text: str) -> str:
    """`text` with its values spelled as XML wants; line by line the same, as far as it can be.

    Entities that XML has stay: names are written with them. Control characters, which XML cannot
    hold at all, become U+FFFD.
    """
    if not _ODD.search(text):
        return text
    return TOKEN.sub(lambda token: _respell(token[0]), text)


def _respell(token: str) -> str:
    if not token.startswith("<") or token.startswith(("<!", "<?")):
        return token
    return _VALUE.sub(lambda value: _PART.sub(_spell, value[0]), token)


def _spell(part: re.Match[str]) -> str:
    word = part[0]
    if word == "<":
        return "&lt;"
    if word.startswith("&"):
        return word if ENTITY.fullmatch(word) and _is_character(word) else "&amp;" + word[1:]
    return "\ufffd"


def _is_character(entity: str) -> bool:
    """Whether XML has the character that a numeric entity names; true of the others."""
    if entity[1] != "#":
        return True
    number = int(entity[3:-1], 16) if entity[2] == "x" else int(entity[2:-1])
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        return False
    return number in (9, 10, 13) or (number >= 32 and number not in (0xFFFE, 0xFFFF))


def _check_grammar(text: str, out: Findings) -> None:
    """A finding for each token that the hand-written parser does not read as XML does."""
    line = 1
    seen_tag = False
    for match in TOKEN.finditer(text):
        token = match[0]
        if token[0] != "<":
            rest = token.strip(" \n\r")
            at = line + token[: token.find(rest[:1])].count("\n")
            if rest.isspace():
                out.add("XML-WHITESPACE", f"{rest[0]!r} between tags", line=at)
            elif rest.startswith("\ufeff") and not seen_tag:
                out.add("XML-TEXT", "a byte order mark before the first tag", line=at)
            elif rest:
                out.refuse("XML-TEXT", f"{rest[:40]!r} between tags", line=at)
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


def _check_tag(token: str, line: int, out: Findings) -> None:
    if token.startswith(("<?", "<!")):
        note = out.add if token[1] == "?" else out.refuse
        note("XML-PROLOG", f"{token[:40]!r}", line=line)
        return
    outside = re.sub(r'"[^"]*"', '""', token)  # values hold anything but double quotes
    for broken, rule, words in (
        ("\n" in outside or "\r" in outside, "XML-TAG", "{} goes over several lines"),
        ("\t" in outside, "XML-TAG", "a tab in {} ..."),
        ("'" in outside, "XML-TAG", "single quotes in {} ..."),
        (re.search(r"\s=|=\s", outside), "XML-TAG", "a space next to '=' in {} ..."),
        (ENTITY.search(_NAMED.sub("", token)), "XML-TAG", "an entity (&...;) in {} ..."),
        ("  " in outside, "XML-SPACES", "two spaces in {} ..."),
    ):
        if broken:
            out.add(rule, words.format(token.split()[0][:40]), line=line)
            return
    if token.endswith(">") and not _STRICT.fullmatch(token.replace("&", "")):
        # what is cut off is XML-SYNTAX
        out.add("XML-TAG", f"{token[:40]!r} is no tag to the loaders", line=line)
