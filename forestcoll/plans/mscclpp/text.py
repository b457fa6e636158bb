"""Strict JSON: `parse` returns the outermost object, whose readers check types, ranges and keys.

Refused: duplicate keys, NaN and infinities, deep nesting, and texts with so many values that they
would not fit in memory. Unknown keys are left alone. Errors are PlanErrors that say where.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from forestcoll.errors import PlanError, did_you_mean
from forestcoll.input_limits import PLAN_DIGITS, PLAN_VALUES


def parse(text: str, source: str) -> Object:
    """The outermost object of a JSON text; `source` names it in errors."""
    if text.count(",") + text.count("{") + text.count("[") > PLAN_VALUES:
        raise PlanError(f"{source}: more than {PLAN_VALUES} values {PLAN_VALUES.note}")

    def constant(word: str) -> NoReturn:
        raise PlanError(f"{source}: {word} is no JSON")

    def integer(digits: str) -> int:
        if len(digits) > PLAN_DIGITS:
            raise PlanError(
                f"{source}: the number {digits[:20]}... has {len(digits)} digits {PLAN_DIGITS.note}"
            )
        return int(digits)

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) < len(items):
            seen: set[str] = set()
            twice = next(k for k, _ in items if k in seen or seen.add(k))  # type: ignore[func-returns-value]
            raise PlanError(f"{source}: the key {twice[:40]!r} stands twice in one object")
        return found

    try:
        value = json.loads(
            text.removeprefix("\ufeff"),
            parse_constant=constant,
            parse_int=integer,
            object_pairs_hook=pairs,
        )
    except json.JSONDecodeError as error:
        raise PlanError(f"{source}:{error.lineno}: not well-formed JSON: {error.msg}") from None
    except RecursionError:
        raise PlanError(f"{source}: nested too deep to be a plan") from None
    if not isinstance(value, dict):
        raise PlanError(f"{source}: holds {_kind(value)}; a plan is an object")
    return Object(source, "", value)


class Object:
    """A JSON object, its source, and where in it we are (in words, for errors)."""

    __slots__ = ("_value", "source", "where")

    def __init__(self, source: str, where: str, value: dict[str, Any]) -> None:
        self.source, self.where, self._value = source, where, value

    def fail(self, text: str) -> PlanError:
        """The error that says where it is."""
        return PlanError(f"{self.source}: {self.where}: {text}" if self.where
                         else f"{self.source}: {text}")  # fmt: skip

    def __len__(self) -> int:
        return len(self._value)

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        return key in self._value

    def _get(self, key: str) -> Any:
        try:
            return self._value[key]
        except KeyError:
            hint = did_you_mean(key, self._value) if len(self._value) < 100 else ""
            raise self.fail(f"no {key!r}{hint}") from None

    def integer(self, key: str, low: int, high: int) -> int:
        """A required integer from low to high."""
        value = self._get(key)
        if type(value) is not int:
            raise self.fail(f"{key} is {_kind(value)}; it must be an integer")
        if not low <= value <= high:
            raise self.fail(f"{key} {value} is out of range; it must lie between {low} and {high}")
        return value

    def index(self, key: str, size: int) -> int:
        """A required index into a list of `size` entries."""
        value = self.integer(key, 0, 2**31 - 1)
        if value >= size:
            raise self.fail(f"{key} {value}, but the list that it points into has {size} entries")
        return value

    def text(self, key: str) -> str:
        """A required string."""
        value = self._get(key)
        if not isinstance(value, str):
            raise self.fail(f"{key} is {_kind(value)}; it must be a string")
        return value

    def flag(self, key: str) -> bool:
        """A required true or false."""
        value = self._get(key)
        if not isinstance(value, bool):
            raise self.fail(f"{key} is {_kind(value)}; it must be true or false")
        return value

    def object(self, key: str) -> Object:
        """A required object."""
        value = self._get(key)
        if not isinstance(value, dict):
            raise self.fail(f"{key} is {_kind(value)}; it must be an object")
        return Object(self.source, f"{self.where}, {key}" if self.where else key, value)

    def list(self, key: str) -> List:
        """A required list."""
        value = self._get(key)
        if not isinstance(value, list):
            raise self.fail(f"{key} is {_kind(value)}; it must be a list")
        return List(self.source, f"{self.where}, {key}" if self.where else key, value)


class List:
    """A JSON list with readers for its entries."""

    __slots__ = ("_value", "source", "where")

    def __init__(self, source: str, where: str, value: list[Any]) -> None:
        self.source, self.where, self._value = source, where, value

    def __len__(self) -> int:
        return len(self._value)

    def fail(self, text: str) -> PlanError:
        """The error that says where it is."""
        return PlanError(f"{self.source}: {self.where}: {text}")

    def integer(self, k: int, low: int, high: int) -> int:
        """The k-th entry, an integer from low to high."""
        value = self._value[k]
        if type(value) is not int:
            raise self.fail(f"entry {k} is {_kind(value)}; it must be an integer")
        if not low <= value <= high:
            raise self.fail(f"entry {k} is {value}; it must lie between {low} and {high}")
        return value

    def index(self, k: int, size: int, what: str) -> int:
        """The k-th entry, an index into a list of `size` things called `what`."""
        value = self.integer(k, 0, 2**31 - 1)
        if value >= size:
            raise self.fail(f"{what} {value} does not exist; there are {size}")
        return value

    def text(self, k: int) -> str:
        """The k-th entry, a string."""
        value = self._value[k]
        if not isinstance(value, str):
            raise self.fail(f"entry {k} is {_kind(value)}; it must be a string")
        return value

    def object(self, k: int, where: str | None = None) -> Object:
        """The k-th entry, an object; `where` names it in errors instead of list and number."""
        value = self._value[k]
        if not isinstance(value, dict):
            raise self.fail(f"entry {k} is {_kind(value)}; it must be an object")
        return Object(self.source, where or f"{self.where}[{k}]", value)


def _kind(value: Any) -> str:
    """A JSON value's type, in words."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    names = {int: "an integer", float: "a number with a point", str: "a string", list: "a list"}
    return names.get(type(value), "an object")
