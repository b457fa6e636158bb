"""Globs over ids: "*", "?", "[ab]" as in a shell, and "[8-15]" for the numbers from 8 to 15.

In a shell "[8-15]" is the characters from 8 down to 1, which are none, and 5: nobody means that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from functools import lru_cache

_NUMBERS = re.compile(r"\[([0-9]{1,6})-([0-9]{1,6})\]")
MOST_NUMBERS = 10_000
"""Numbers that a range may hold; a longer one is read as in a shell."""


@lru_cache(maxsize=256)
def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether an id matches `pattern`, whole and by case."""
    parts: list[str] = []
    end = 0
    for match in _NUMBERS.finditer(pattern):
        first, last = int(match[1]), int(match[2])
        several = len(match[1]) > 1 or len(match[2]) > 1
        if several and first <= last < first + MOST_NUMBERS:
            numbers = "|".join(map(str, range(first, last + 1)))
            parts += [_translate(pattern[end : match.start()]), f"(?:{numbers})"]
            end = match.end()
    parts.append(_translate(pattern[end:]))
    compiled = re.compile("".join(parts), re.DOTALL)
    return lambda text: compiled.fullmatch(text) is not None


def is_glob(pattern: str) -> bool:
    """Whether `pattern` has any letter that stands for others."""
    return any(letter in pattern for letter in "*?[")


def _translate(pattern: str) -> str:
    """The regular expression of a shell's glob, without what anchors it at the end."""
    return translate(pattern).removesuffix(r"\Z").removesuffix(r"\z")
