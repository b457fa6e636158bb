"""MSCCL XML as the runtimes' hand-written parsers cut it, and the same text as XML proper.

Those parsers (Azure/msccl-executor-nccl c6f6b36, msccl_parser.cc:26-75) take a value to end at the
next double quote, whatever stands before it: `<`, `>`, a bare `&`, control characters. XML does
not allow these there.
"""

from __future__ import annotations

import re

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
    found = part[0]
    if found == "<":
        return "&lt;"
    if found.startswith("&"):
        return found if ENTITY.fullmatch(found) and _is_character(found) else "&amp;" + found[1:]
    return "\ufffd"


def _is_character(entity: str) -> bool:
    """Whether XML has the character that a numeric entity names; true of the others."""
    if entity[1] != "#":
        return True
    number = int(entity[3:-1], 16) if entity[2] == "x" else int(entity[2:-1])
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        return False
    return number in (9, 10, 13) or (number >= 32 and number not in (0xFFFE, 0xFFFF))
