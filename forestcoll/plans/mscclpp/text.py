"""The text of an MSCCL++ plan: strict JSON, its fields read by type.

One parser for readers and linters: what is wrong goes to a sink, which raises (`raises`) or notes.
`Object` and `List` raise PlanErrors that say where, and check ranges too; `Access` notes what is
missing or of another type, and gives None there. Refused: keys that stand twice in one object, NaN
and infinities, deep nesting, texts with so many values that they would not fit in memory. Unknown
keys are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from forestcoll.common.errors import PlanError, did_you_mean
from forestcoll.common.input_limits import PLAN_DIGITS, PLAN_VALUES

if TYPE_CHECKING:
    from forestcoll.plans.findings import At, Findings

T = TypeVar("T")
Sink = Callable[[str, str, int], None]
"""Takes a rule of the catalogue, what is wrong, and the line, or -1."""
TYPES: Final[dict[type, str]] = {
    int: "an integer", str: "a string", bool: "true or false", list: "a list", dict: "an object",
}  # fmt: skip


def raises(source: str) -> Sink:
    """The sink of a reader: PlanError at the first thing that is wrong."""

    def fail(rule: str, text: str, line: int) -> NoReturn:
        raise PlanError(f"{source}:{line}: {text}" if line >= 0 else f"{source}: {text}")

    return fail


def parse(text: str, sink: Sink) -> dict[str, Any] | None:
    """The outermost object of a JSON text, or None; what cannot be read in it is None."""
    if text.count(",") + text.count("{") + text.count("[") > PLAN_VALUES:
        sink("MPP-SYNTAX", f"more than {PLAN_VALUES} values {PLAN_VALUES.note}", -1)
        return None

    def constant(word: str) -> None:
        sink("MPP-SYNTAX", f"{word} is no JSON", -1)

    def integer(digits: str) -> int | None:
        if len(digits) <= PLAN_DIGITS:
            return int(digits)
        long = f"the number {digits[:20]}... has {len(digits)} digits {PLAN_DIGITS.note}"
        sink("MPP-TYPE", long, -1)
        return None

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) < len(items):
            seen: set[str] = set()
            for key, _ in items:
                if key in seen:
                    sink(
                        "MPP-DUPLICATE-KEY", f"the key {key[:40]!r} stands twice in one object", -1
                    )
                seen.add(key)
        return found

    wrong, line = "", -1
    try:
        value = json.loads(
            text.removeprefix("\ufeff"),
            parse_constant=constant,
            parse_int=integer,
            object_pairs_hook=pairs,
        )
        if not isinstance(value, dict):
            wrong = f"the file holds {kind(value)}; a plan is an object"
    except json.JSONDecodeError as error:
        wrong, line = f"not well-formed JSON: {error.msg}", error.lineno
    except RecursionError:
        wrong = "nested too deep to be a plan"
    if wrong:
        sink("MPP-SYNTAX", wrong, line)
        return None
    return value  # type: ignore[no-any-return]


def kind(value: object) -> str:
    """A JSON value's type, in words."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return "a number with a point" if isinstance(value, float) else TYPES[type(value)]


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

    def _get(self, key: str, wanted: type[T]) -> T:
        try:
            value = self._value[key]
        except KeyError:
            hint = did_you_mean(key, self._value) if len(self._value) < 100 else ""
            raise self.fail(f"no {key!r}{hint}") from None
        if type(value) is not wanted:
            raise self.fail(f"{key} is {kind(value)}; it must be {TYPES[wanted]}")
        return value

    def integer(self, key: str, low: int, high: int) -> int:
        """A required integer from low to high."""
        value = self._get(key, int)
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
        return self._get(key, str)

    def flag(self, key: str) -> bool:
        """A required true or false."""
        return self._get(key, bool)

    def object(self, key: str) -> Object:
        """A required object."""
        value = self._get(key, dict)
        return Object(self.source, f"{self.where}, {key}" if self.where else key, value)

    def list(self, key: str) -> List:
        """A required list."""
        value = self._get(key, list)
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

    def _get(self, k: int, wanted: type[T]) -> T:
        value = self._value[k]
        if type(value) is not wanted:
            raise self.fail(f"entry {k} is {kind(value)}; it must be {TYPES[wanted]}")
        return value

    def integer(self, k: int, low: int, high: int) -> int:
        """The k-th entry, an integer from low to high."""
        value = self._get(k, int)
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
        return self._get(k, str)

    def object(self, k: int, where: str | None = None) -> Object:
        """The k-th entry, an object; `where` names it in errors instead of list and number."""
        value = self._get(k, dict)
        return Object(self.source, where or f"{self.where}[{k}]", value)


class Access:
    """Reads fields of objects, noting what is missing (`MPP-MISSING`) or of another type."""

    def __init__(self, out: Findings) -> None:
        self.out = out

    def integer(self, entry: dict[str, Any], key: str, where: str, at: At) -> int | None:
        """An integer that the loader asks for."""
        return self._get(entry, key, int, where, at)

    def optional(self, entry: dict[str, Any], key: str, usual: int, where: str, at: At) -> int:
        """An integer that may be left out."""
        found = self.integer(entry, key, where, at) if key in entry else usual
        return usual if found is None else found

    def text(self, entry: dict[str, Any], key: str, where: str, at: At) -> str | None:
        """A string that the loader asks for."""
        return self._get(entry, key, str, where, at)

    def flag(self, entry: dict[str, Any], key: str, where: str, at: At) -> bool | None:
        """true or false that the loader asks for."""
        return self._get(entry, key, bool, where, at)

    def objects(self, entry: dict[str, Any], key: str, where: str, at: At) -> list[dict[str, Any]]:
        """A list of objects that the loader asks for; others in it are noted and left out."""
        return self._items(entry, key, dict, where, at)

    def integers(self, entry: dict[str, Any], key: str, where: str, at: At) -> list[int]:
        """A list of integers that the loader asks for; others in it are noted and left out."""
        return self._items(entry, key, int, where, at)

    def _items(
        self, entry: dict[str, Any], key: str, wanted: type[T], where: str, at: At
    ) -> list[T]:
        values: list[Any] = self._get(entry, key, list, where, at) or []
        found = [item for item in values if type(item) is wanted]
        if len(found) < len(values):
            other = kind(next(item for item in values if type(item) is not wanted))
            words = f"{key} of {where} holds {other}, not {TYPES[wanted]}"
            self.out.add("MPP-TYPE", words, **at)
        return found

    def _get(
        self, entry: dict[str, Any], key: str, wanted: type[T], where: str, at: At
    ) -> T | None:
        value = entry.get(key)
        if type(value) is wanted:
            return value
        if key not in entry:
            self.out.add("MPP-MISSING", f"{where} has no {key!r}", **at)
        else:
            words = f"{key} of {where} is {kind(value)}, not {TYPES[wanted]}"
            self.out.add("MPP-TYPE", words, **at)
        return None
