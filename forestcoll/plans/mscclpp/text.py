"""The text of an MSCCL++ plan: strict JSON, and its fields read by type.

Refused: keys that stand twice in one object, NaN and infinities, deep nesting, texts with so many
values that they would not fit in memory. Unknown keys are left alone.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, TypeVar

from forestcoll.common.input_limits import PLAN_DIGITS, PLAN_VALUES
from forestcoll.plans.findings import At, Findings

T = TypeVar("T")
TYPES: Final[dict[type, str]] = {
    int: "an integer", str: "a string", bool: "true or false", list: "a list", dict: "an object",
}  # fmt: skip
_LONG = re.compile(rf"[0-9]{{{PLAN_DIGITS + 1}}}")


def parse(text: str, out: Findings) -> dict[str, Any] | None:
    """The outermost object of a JSON text, or None; what cannot be read in it is None."""
    if len(text) > PLAN_VALUES and sum(map(text.count, ",{[")) > PLAN_VALUES:
        out.refuse("MPP-SYNTAX", f"more than {PLAN_VALUES} values {PLAN_VALUES.note}")
        return None

    def constant(word: str) -> None:
        out.refuse("MPP-SYNTAX", f"{word} is no JSON")

    def integer(digits: str) -> int | None:
        if len(digits) <= PLAN_DIGITS:
            return int(digits)
        long = f"the number {digits[:20]}... has {len(digits)} digits {PLAN_DIGITS.note}"
        out.refuse("MPP-TYPE", long)
        return None

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(items)
        if len(fields) < len(items):
            seen: set[str] = set()
            for key, _ in items:
                if key in seen:
                    words = f"the key {key[:40]!r} stands twice in one object"
                    out.refuse("MPP-DUPLICATE-KEY", words)
                seen.add(key)
        return fields

    wrong, line = "", -1
    try:
        value = json.loads(
            text.removeprefix("\ufeff"),
            parse_constant=constant,
            parse_int=integer if _LONG.search(text) else None,
            object_pairs_hook=pairs,
        )
        if not isinstance(value, dict):
            wrong = f"the file holds {kind(value)}; a plan is an object"
    except json.JSONDecodeError as error:
        wrong, line = f"not well-formed JSON: {error.msg}", error.lineno
    except RecursionError:
        wrong = "nested too deep to be a plan"
    if wrong:
        out.refuse("MPP-SYNTAX", wrong, line=line)
        return None
    return value  # type: ignore[no-any-return]


def kind(value: object) -> str:
    """A JSON value's type, in words."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return "a number with a point" if isinstance(value, float) else TYPES[type(value)]


class Entry:
    """An object of the file; what is missing (`MPP-MISSING`) or of another type is refused.

    `where` names it in messages, `at` is the rank, thread block and step that it belongs to.
    """

    __slots__ = ("at", "out", "values", "where")

    def __init__(self, values: dict[str, Any], where: str, at: At, out: Findings) -> None:
        self.values, self.where, self.at, self.out = values, where, at, out

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def integer(self, key: str) -> int | None:
        """An integer that the loader asks for."""
        return self._get(key, int)

    def optional(self, key: str, usual: int) -> int:
        """An integer that may be left out."""
        number = self.integer(key) if key in self.values else usual
        return usual if number is None else number

    def text(self, key: str) -> str | None:
        """A string that the loader asks for."""
        return self._get(key, str)

    def flag(self, key: str) -> bool | None:
        """true or false that the loader asks for."""
        return self._get(key, bool)

    def entries(self, key: str) -> list[Entry]:
        """The objects of a list, each named by its place in it."""
        items = enumerate(self.objects(key))
        return [Entry(item, f"{key}[{k}]", self.at, self.out) for k, item in items]

    def objects(self, key: str) -> list[dict[str, Any]]:
        """A list of objects that the loader asks for; others in it are noted and left out."""
        return self._items(key, dict)

    def integers(self, key: str) -> list[int]:
        """A list of integers that the loader asks for; others in it are noted and left out."""
        return self._items(key, int)

    def _items(self, key: str, wanted: type[T]) -> list[T]:
        values: list[Any] = self._get(key, list) or []
        items = [item for item in values if type(item) is wanted]
        if len(items) < len(values):
            other = kind(next(item for item in values if type(item) is not wanted))
            words = f"{key} of {self.where} holds {other}, not {TYPES[wanted]}"
            self.out.refuse("MPP-TYPE", words, **self.at)
        return items

    def _get(self, key: str, wanted: type[T]) -> T | None:
        value = self.values.get(key)
        if type(value) is wanted:
            return value
        if key not in self.values:
            self.out.refuse("MPP-MISSING", f"{self.where} has no {key!r}", **self.at)
        else:
            words = f"{key} of {self.where} is {kind(value)}, not {TYPES[wanted]}"
            self.out.refuse("MPP-TYPE", words, **self.at)
        return None
