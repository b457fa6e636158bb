"""The elements of an MSCCL XML text, one after the other, and the integers in their attributes.

The text layer that reader and linter share: expat without document types and entities, bounded in
depth, over what the runtimes' hand-written parsers take for XML (spelling.py). The reader raises
where something is wrong (text.py), the linter notes it and goes on (tags.py).
"""

from __future__ import annotations

import re
from typing import Final
from xml.parsers import expat

from forestcoll.common.input_limits import PLAN_DEPTH
from forestcoll.plans.msccl.spelling import as_xml

CHILD: Final = {"": "algo", "algo": "gpu", "gpu": "tb", "tb": "step"}
"""What each element holds; the file holds an <algo>."""
MAX_ATTRIBUTES: Final = 16  # a tag's attributes that the runtimes' parsers keep
_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20})\Z")


def read_integer(text: str) -> tuple[int | None, bool]:
    """(value, whether it is written as octal), as the loaders read an attribute; None: no integer.

    0x and a leading 0 count; decimal digits after a leading 0 may be none of octal.
    """
    if not _INTEGER.match(text):
        return None, False
    digits = text.lstrip("+-")
    octal = len(digits) > 1 and digits[0] == "0" and digits[1] not in "xX"
    if octal and not set(digits) <= set("01234567"):
        return None, True
    value = int(digits, 8 if octal else 0)
    return (-value if text[0] == "-" else value), octal


class StopReading(Exception):
    """Raised inside expat's callbacks to end the reading; its text says why."""


class Elements:
    """Tells of the elements that the loaders look at, and of what they pass over."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.skipped = 0  # open elements inside one that no parser looks at
        self.parser = expat.ParserCreate()

    @property
    def line(self) -> int:
        """Where the parser is."""
        return self.parser.CurrentLineNumber

    def read(self, text: str) -> None:
        """All elements of a text."""
        parser = self.parser
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self.end
        parser.StartDoctypeDeclHandler = lambda *_: self.doctype()
        try:
            parser.Parse(as_xml(text), True)
            return
        except expat.ExpatError as error:
            wrong, line = f"not well-formed XML: {expat.ErrorString(error.code)}", error.lineno
        except UnicodeEncodeError:
            wrong, line = "it holds characters outside Unicode", -1
        except StopReading as stop:
            wrong, line = str(stop), self.line
        self.broken(wrong, line)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self.open) + self.skipped >= PLAN_DEPTH:
            raise StopReading(f"elements are nested more than {PLAN_DEPTH} deep {PLAN_DEPTH.note}")
        above = self.open[-1] if self.open else ""
        if self.skipped or CHILD.get(above) != name:
            if not self.skipped:
                self.passed_over(name, above)
            self.skipped += 1
            return
        self.open.append(name)
        self.element(name, attributes)

    def end(self, name: str) -> None:
        """An element ends."""
        if self.skipped:
            self.skipped -= 1
        else:
            self.open.pop()

    def element(self, name: str, attributes: dict[str, str]) -> None:
        """An element of a plan begins; it is the last of `open`."""
        raise NotImplementedError

    def passed_over(self, name: str, above: str) -> None:
        """An element that does not belong in `above` ("": the outermost one)."""
        raise NotImplementedError

    def doctype(self) -> None:
        """A document type."""
        raise NotImplementedError

    def broken(self, text: str, line: int) -> None:
        """The reading has ended; `line` is -1 where there is none to name."""
        raise NotImplementedError
