"""MSCCL++ JSON as the loader reads it, and typed access to it that notes what is not there.

Values are those of Python's json; `None` stands for what cannot be read, whatever the reason.
"""

from __future__ import annotations

import json
from typing import Any

from forestcoll.input_limits import PLAN_VALUES
from forestcoll.plans.findings import At, Findings


def parse(text: str, out: Findings) -> dict[str, Any] | None:
    """The outermost object, or None; findings for syntax, keys that stand twice, and NaN."""
    if text.count(",") + text.count("{") + text.count("[") > PLAN_VALUES:
        out.add("MPP-SYNTAX", f"more than {PLAN_VALUES} values {PLAN_VALUES.note}")
        return None

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) < len(items):
            seen: set[str] = set()
            for key, _ in items:
                if key in seen:
                    out.add("MPP-DUPLICATE-KEY", f"{key[:40]!r} stands twice in one object")
                seen.add(key)
        return found

    def constant(word: str) -> None:
        out.add("MPP-SYNTAX", f"{word} is no JSON")

    def integer(digits: str) -> int | None:
        if len(digits) <= 25:
            return int(digits)
        out.add("MPP-TYPE", f"the number {digits[:20]}... has {len(digits)} digits")
        return None

    try:
        value = json.loads(
            text.removeprefix("\ufeff"),
            object_pairs_hook=pairs, parse_constant=constant, parse_int=integer,
        )  # fmt: skip
    except json.JSONDecodeError as error:
        out.add("MPP-SYNTAX", f"not well-formed JSON: {error.msg}", line=error.lineno)
        return None
    except RecursionError:
        out.add("MPP-SYNTAX", "nested too deep to be a plan")
        return None
    if not isinstance(value, dict):
        out.add("MPP-SYNTAX", f"the file holds {kind(value)}; a plan is an object")
        return None
    return value


def kind(value: object) -> str:
    """A JSON value's type, in words."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    names = {int: "an integer", float: "a number with a point", str: "a string", list: "a list"}
    return names.get(type(value), "an object")


class Access:
    """Reads fields of objects, noting what is missing (`MPP-MISSING`) or of another type."""

    def __init__(self, out: Findings) -> None:
        self.out = out

    def integer(self, entry: dict[str, Any], key: str, where: str, at: At) -> int | None:
        """An integer that the loader asks for."""
        value = entry.get(key)
        if type(value) is int:
            return value
        self._complain(entry, key, where, "an integer", at)
        return None

    def optional(self, entry: dict[str, Any], key: str, usual: int, where: str, at: At) -> int:
        """An integer that may be left out."""
        if key not in entry:
            return usual
        found = self.integer(entry, key, where, at)
        return usual if found is None else found

    def text(self, entry: dict[str, Any], key: str, where: str, at: At) -> str | None:
        """A string that the loader asks for."""
        value = entry.get(key)
        if isinstance(value, str):
            return value
        self._complain(entry, key, where, "a string", at)
        return None

    def flag(self, entry: dict[str, Any], key: str, where: str, at: At) -> bool | None:
        """true or false that the loader asks for."""
        value = entry.get(key)
        if isinstance(value, bool):
            return value
        self._complain(entry, key, where, "true or false", at)
        return None

    def objects(self, entry: dict[str, Any], key: str, where: str, at: At) -> list[dict[str, Any]]:
        """A list of objects that the loader asks for; others in it are noted and left out."""
        value = entry.get(key)
        if not isinstance(value, list):
            self._complain(entry, key, where, "a list", at)
            return []
        found = [item for item in value if isinstance(item, dict)]
        if len(found) < len(value):
            other = next(item for item in value if not isinstance(item, dict))
            self.out.add("MPP-TYPE", f"{key} of {where} holds {kind(other)}, not an object", **at)
        return found

    def integers(self, entry: dict[str, Any], key: str, where: str, at: At) -> list[int]:
        """A list of integers that the loader asks for; others in it are noted and left out."""
        value = entry.get(key)
        if not isinstance(value, list):
            self._complain(entry, key, where, "a list", at)
            return []
        found = [item for item in value if type(item) is int]
        if len(found) < len(value):
            other = next(item for item in value if type(item) is not int)
            self.out.add("MPP-TYPE", f"{key} of {where} holds {kind(other)}, not an integer", **at)
        return found

    def _complain(self, entry: dict[str, Any], key: str, where: str, wanted: str, at: At) -> None:
        if key not in entry:
            self.out.add("MPP-MISSING", f"{where} has no {key!r}", **at)
        else:
            found = kind(entry[key])
            self.out.add("MPP-TYPE", f"{key} of {where} is {found}, not {wanted}", **at)
