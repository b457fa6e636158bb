"""Arguments of public functions, checked as the command line checks its own.

Each function gives the value in the type that is stated, or raises ArgumentError: what was given,
what is wanted. Values that leave no doubt are taken: numpy's integers, one word for a list of one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from operator import index
from pathlib import Path
from typing import Any, TypeVar

from forestcoll.common.errors import ArgumentError, did_you_mean

Word = TypeVar("Word", bound=str)


def whole(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """`value` as an int from `least` to `most`; a bool, a float and a text are none."""
    number: int | None = None
    if not isinstance(value, bool):
        try:
            number = index(value)  # type: ignore[arg-type]
        except TypeError:
            number = None
    if number is None:
        raise ArgumentError(f"{name} must be a whole number, not {shown(value)}")
    if number < least or (most is not None and number > most):
        high = "" if most is None else f" and at most {most}"
        raise ArgumentError(f"{name} must be at least {least}{high}, not {number}")
    return number


def whole_or_none(name: str, value: object, least: int = 1, most: int | None = None) -> int | None:
    """The same, or None."""
    return None if value is None else whole(name, value, least, most)


def whole_or(name: str, value: object, other: str) -> Any:
    """The same, or that one word."""
    if value == other:
        return other
    return whole(f"{name} (or '{other}')", value)


def positive(name: str, value: object) -> float:
    """`value` as a finite float above 0."""
    if isinstance(value, bool | str | bytes):
        raise ArgumentError(f"{name} must be a number, not {shown(value)}")
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"{name} must be a number, not {shown(value)}") from None
    if not 0 < number < math.inf:
        raise ArgumentError(f"{name} must be above 0 and finite, not {number}")
    return number


def percent(name: str, value: object) -> Fraction:
    """`value` as an exact percentage over 0, up to 100: 99, 99.9, "99.9", Fraction(999, 10)."""
    try:
        exact: Fraction = Fraction(str(value) if isinstance(value, float | str) else value)  # type: ignore[call-overload]
    except (TypeError, ValueError, ZeroDivisionError):
        raise ArgumentError(f"{name} must be a percentage, not {shown(value)}") from None
    if isinstance(value, bool) or not 0 < exact <= 100:
        raise ArgumentError(f"{name} is {value}: must be over 0 and at most 100")
    return exact


def truth(name: str, value: object) -> bool:
    """True or False; nothing that merely counts as one."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{name} must be True or False, not {shown(value)}")
    return value


def word(name: str, value: object, known: Iterable[Word]) -> Word:
    """That of the known words which `value` is."""
    listed = list(known)
    for one in listed:
        if isinstance(value, str) and value == one:
            return one
    hint = did_you_mean(value, listed) if isinstance(value, str) else ""
    raise ArgumentError(
        f"unknown {name} {shown(value)}{hint} (known: {', '.join(map(str, listed))})"
    )


def words(name: str, value: object, known: Iterable[Word]) -> tuple[Word, ...]:
    """Several of the known words, each once; one alone is a list of one."""
    listed = list(known)
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
                f"or 'box0/*', not {shown(one)}"
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
        raise ArgumentError(f"{name} must be a mapping, such as {{'boxes': 2}}, not {shown(value)}")
    return {str(key): str(one) for key, one in value.items()}


def path(name: str, value: object) -> Path:
    """The path of a file."""
    if not isinstance(value, str | os.PathLike):
        raise ArgumentError(f"{name} must be the path of a file, not {shown(value)}")
    return Path(os.fsdecode(value))


def text(name: str, value: object) -> str:
    """A text; not the path of a file that holds one, nor bytes."""
    if not isinstance(value, str):
        hint = f"; read the file: {name}=Path(...).read_text()" * isinstance(value, os.PathLike)
        raise ArgumentError(f"{name} must be a text, not {shown(value)}{hint}")
    return value


def instance(name: str, value: object, kind: type, hint: str = "") -> None:
    """Nothing where `value` is of that type."""
    if not isinstance(value, kind):
        raise ArgumentError(f"{name} must be a {kind.__name__}, not {shown(value)}{hint}")


def _several(name: str, value: object) -> Sequence[object]:
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise ArgumentError(f"{name} must be a list, not {shown(value)}")
    return list(value)


def shown(value: object) -> str:
    """The value in an error: short; of what is no text or number the type."""
    if value is None or isinstance(value, bool | int | float | str):
        words = repr(value)
        return words if len(words) <= 80 else f"{words[:80]}..."
    return f"a {type(value).__name__}"
