"""The text of an MSCCL++ plan: strict JSON, and its fields read by type.

Refused: keys that stand twice in one object, NaN and infinities, deep nesting, texts with so many
values that they would not fit in memory. Unknown keys are left alone.
"""

from __future__ import annotations

import json
import re
from typing import Any

from forestcoll.common.input_limits import PLAN_DIGITS, PLAN_VALUES
from forestcoll.plans.fields import Entry, Field, Shape
from forestcoll.plans.findings import Findings

TYPES: dict[type, str] = {
    int: "an integer", str: "a string", bool: "true or false", list: "a list", dict: "an object",
}  # fmt: skip
_LONG = re.compile(rf"[0-9]{{{PLAN_DIGITS + 1}}}")


def parse(text: str, out: Findings) -> dict[str, Any] | None:
    """The outermost object of a JSON text, or None; what cannot be read in it is None."""
    if len(text) > PLAN_VALUES and sum(map(text.count, ",{[")) > PLAN_VALUES:
        out.refuse("MPP-SYNTAX", f"more than {PLAN_VALUES} values {PLAN_VALUES.note}")
        return None

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
            parse_constant=lambda word: out.refuse("MPP-SYNTAX", f"{word} is no JSON"),
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


class Object(Entry):
    """An object of the file; what is of another type than the loader reads is refused."""

    __slots__ = ()
    missing, mistyped = "MPP-MISSING", "MPP-TYPE"

    def value(self, key: str, field: Field) -> Any:
        """The value, of a list those items that are of the right type."""
        value: Any = self.values[key]
        if type(value) is not field.type:
            self.mistype(f"{key} of {self.where} is", value, field.type)
            return None
        if not isinstance(value, list):
            return value
        wanted = field.of if isinstance(field.of, type) else dict
        items = [item for item in value if type(item) is wanted]
        if len(items) < len(value):
            other = next(item for item in value if type(item) is not wanted)
            self.mistype(f"{key} of {self.where} holds", other, wanted)
        return items

    def mistype(self, words: str, value: object, wanted: type) -> None:
        """Tell of a value of another type."""
        self.refuse(self.mistyped, f"{words} {kind(value)}, not {TYPES[wanted]}")

    def within(self, values: dict[str, Any], where: str, shape: Shape) -> Object:
        """An object in this one, of the same place."""
        return type(self)(values, where, self.at, self.out, shape)

    def child(self, key: str, shape: Shape | None = None) -> Object | None:
        """The object that a field is; None where it is none."""
        values = self.get(key)
        if values is None:
            return None
        return self.within(values, f"{key} of {self.where}", shape or self.shape[key].of)

    def entries(self, key: str, of: str = "") -> list[Object]:
        """The objects of a list, each named by its place in it."""
        make, at, out, shape = type(self), self.at, self.out, self.shape[key].of
        items = enumerate(self.get(key))
        return [make(item, f"{key}[{k}]{of}", at, out, shape) for k, item in items]


class Own(Object):
    """The object that only this package reads: no loader minds what is in it."""

    __slots__ = ()
    missing = mistyped = "RUN-REFUSED"
