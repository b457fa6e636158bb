"""Arguments of public functions, and the options that the command line and Python share.

Each function gives the value in the type that is stated, or raises ArgumentError: what was given,
what is wanted. Values that leave no doubt are taken: numpy's integers, one word for a list of one.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from operator import index
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from forestcoll.common.errors import ArgumentError, did_you_mean

Word = TypeVar("Word", bound=str)


class Auto(NamedTuple):
    """A kind of option: "auto", or a whole number from 1 to `most`."""

    most: int


class Option(NamedTuple):
    """One option, stated once for the command line, Python's arguments and the pages.

    `kind`: a range of whole numbers, the words it may be, bool for a flag, `Auto`, or what only the
    command line knows (a type of values or its name). `names`: "--x -y"; by default the Python name
    with hyphens, and "" for what has its place instead of a name. `many`: given more than once;
    a function makes one value of all. `check`: of a kind that Python does not know. `ways`: words
    that people ask for in vain, and what to do instead; `old`: names that this option had, or has
    elsewhere. `takers`: the commands that have it.
    """

    kind: Any
    help: str | None = None
    default: Any = None
    metavar: str | None = None
    names: str | None = None
    many: Callable[[str, Any], Any] | None = None
    required: bool = False
    check: Callable[[str, Any], Any] | None = None
    ways: Mapping[str, str] | None = None
    old: tuple[str, ...] = ()
    takers: str = ""

    def take(self, name: str, value: Any) -> Any:
        """Returns what Python gave as `name` in the type that is stated; ArgumentError."""
        kind = self.kind
        if self.check is not None:
            return self.check(name, value)
        if value is None and self.default is None:
            return None
        if kind is bool:
            return truth(name, value)
        if isinstance(kind, Auto):
            return whole_or(name, value, "auto", kind.most)
        if isinstance(kind, range):
            return whole(name, value, kind.start, kind.stop - 1)
        return word(name, value, kind) if isinstance(kind, tuple) else value


class Conflict(NamedTuple):
    """A refusal: of options where all of the conditions `all_of` hold, and one of `any_of` if any.

    A condition is a name (it is given), `!name` (it is not), `name=x,y` or `name!=x,y`; a command
    without such an option has no such conflict. The text may hold {values} of options, and {option}
    for the one of `any_of` that is given. `only`: the commands that it is for, where not for all.
    """

    all_of: str
    any_of: str
    text: str
    only: str = ""


def refusal(
    conflicts: Iterable[Conflict],
    asked: Mapping[str, Any],
    options: Mapping[str, Option],
    command: str = "",
) -> str | None:
    """Returns what the first conflict says of the values `asked` for; None: there is none."""

    def holds(condition: str) -> bool:
        name, differs, value = re.fullmatch(r"!?(\w+)(!?)=?(.*)", condition).groups()  # type: ignore[union-attr]
        if name not in asked:
            return False
        given = asked[name]
        if not value:
            default = options[name].default if name in options else None
            empty = given is None or given is False or given == ()
            return (empty or given == default) == condition.startswith("!")
        several = given if isinstance(given, tuple) else (given,)
        return any(str(one) in value.split(",") for one in several) != bool(differs)

    for conflict in conflicts:
        if conflict.only and command not in conflict.only.split():
            continue
        given = [one for one in conflict.any_of.split() if holds(one)]
        if all(map(holds, conflict.all_of.split())) and (given or not conflict.any_of):
            option = option_name(given[0]) if given else ""
            return conflict.text.format(**asked, option=option)
    return None


def option_name(name: str) -> str:
    """The option of the command line that has this name in Python: `--min-percent`."""
    return f"--{name.replace('_', '-')}"


def in_python(text: str) -> str:
    """A text about options for callers from Python: `min_percent`, not `--min-percent`."""
    return re.sub(r"--([a-z-]+)", lambda match: match[1].replace("-", "_"), text)


def whole(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """`value` as an int from `least` to `most`; a bool, a float and a text are none."""
    number: int | None = None
    if not isinstance(value, bool):
        try:
            number = index(value)  # type: ignore[arg-type]
        except TypeError:
            number = None
    if number is None:
        raise ArgumentError(f"{name} must be a whole number, not {quote(value)}")
    if number < least or (most is not None and number > most):
        high = "" if most is None else f" and at most {most}"
        raise ArgumentError(f"{name} must be at least {least}{high}, not {number}")
    return number


def whole_or_none(name: str, value: object, least: int = 1, most: int | None = None) -> int | None:
    """The same, or None."""
    return None if value is None else whole(name, value, least, most)


def whole_or(name: str, value: object, other: str, most: int | None = None) -> Any:
    """The same, or that one word."""
    if isinstance(value, str) and value == other:
        return other
    return whole(f"{name} (or '{other}')", value, 1, most)


def positive(name: str, value: object) -> float:
    """`value` as a finite float above 0."""
    if isinstance(value, bool | str | bytes):
        raise ArgumentError(f"{name} must be a number, not {quote(value)}")
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"{name} must be a number, not {quote(value)}") from None
    if not 0 < number < math.inf:
        raise ArgumentError(f"{name} must be above 0 and finite, not {number}")
    return number


def percent(name: str, value: object) -> Fraction:
    """`value` as an exact percentage over 0, up to 100: 99, 99.9, "99.9", Fraction(999, 10)."""
    try:
        exact: Fraction = Fraction(str(value) if isinstance(value, float | str) else value)  # type: ignore[call-overload]
    except (TypeError, ValueError, ZeroDivisionError):
        raise ArgumentError(f"{name} must be a percentage, not {quote(value)}") from None
    if isinstance(value, bool) or not 0 < exact <= 100:
        raise ArgumentError(f"{name} is {value}: must be over 0 and at most 100")
    return exact


def truth(name: str, value: object) -> bool:
    """True or False; nothing that merely counts as one."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{name} must be True or False, not {quote(value)}")
    return value


def word(name: str, value: object, choices: Iterable[Word]) -> Word:
    """That of the known words which `value` is."""
    listed = list(choices)
    for one in listed:
        if isinstance(value, str) and value == one:
            return one
    hint = did_you_mean(value, listed) if isinstance(value, str) else ""
    raise ArgumentError(
        f"unknown {name} {quote(value)}{hint} (known: {', '.join(map(str, listed))})"
    )


def words(name: str, value: object, choices: Iterable[Word]) -> tuple[Word, ...]:
    """Several of the known words, each once; one alone is a list of one."""
    listed = list(choices)
    given = [value] if isinstance(value, str) else _several(name, value)
    return tuple(dict.fromkeys(word(name, one, listed) for one in given))


def ids(name: str, value: object) -> list[str] | None:
    """Ids or globs; one text is split at commas, None stays None."""
    if value is None:
        return None
    if isinstance(value, str):
        return [entry.strip() for entry in value.split(",")]
    given = _several(name, value)
    for one in given:
        if not isinstance(one, str):
            raise ArgumentError(
                f"{name} are ids or globs, such as 'box0/gpu{one if isinstance(one, int) else 0}' "
                f"or 'box0/*', not {quote(one)}"
            )
    return [str(one) for one in given]


def amounts(name: str, value: object) -> list[int | str] | None:
    """Numbers or texts (`id=amount`), as they are; a mapping gives `id=amount`; None stays None."""
    if value is None:
        return None
    if isinstance(value, str):
        return [entry.strip() for entry in value.split(",")]
    if isinstance(value, Mapping):
        return [f"{key}={amount}" for key, amount in value.items()]
    return [one if isinstance(one, str) else whole(name, one, 0) for one in _several(name, value)]


def settings(name: str, value: object) -> dict[str, str]:
    """Parameters of a topology by name, as texts."""
    if not isinstance(value, Mapping):
        raise ArgumentError(f"{name} must be a mapping, such as {{'boxes': 2}}, not {quote(value)}")
    return {str(key): str(one) for key, one in value.items()}


def path(name: str, value: object) -> Path:
    """The path of a file."""
    if not isinstance(value, str | os.PathLike):
        raise ArgumentError(f"{name} must be the path of a file, not {quote(value)}")
    return Path(os.fsdecode(value))


def paths(name: str, value: object) -> tuple[Path, ...]:
    """`value` as Paths; ArgumentError where it is no list of them."""
    return tuple(path(name, one) for one in _several(name, value))


def text(name: str, value: object) -> str:
    """A text; not the path of a file that holds one, nor bytes."""
    if not isinstance(value, str):
        hint = f"; read the file: {name}=Path(...).read_text()" * isinstance(value, os.PathLike)
        raise ArgumentError(f"{name} must be a text, not {quote(value)}{hint}")
    return value


def instance(name: str, value: object, kind: type, hint: str = "") -> None:
    """Nothing where `value` is of that type."""
    if not isinstance(value, kind):
        raise ArgumentError(f"{name} must be a {kind.__name__}, not {quote(value)}{hint}")


def _several(name: str, value: object) -> Sequence[object]:
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise ArgumentError(f"{name} must be a list, not {quote(value)}")
    return list(value)


def quote(value: object) -> str:
    """The value in an error: short; of what is no text or number the type."""
    if value is None or isinstance(value, bool | int | float | str):
        words = repr(value)
        return words if len(words) <= 80 else f"{words[:80]}..."
    return f"a {type(value).__name__}"
