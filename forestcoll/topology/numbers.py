"""Exact numbers: text, integers, decimals and fractions in, `Fraction` out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction

from forestcoll.common.errors import TopologyError
from forestcoll.common.input_limits import COMMON_DIGITS, DIGITS

LARGEST: int = 10**DIGITS
"""Numerators and denominators beyond this are refused before any arithmetic is done with them."""

FASTEST_PORT = 100
"""GB/s; what a network port states beyond this is doubted: 800 Gb/s is the fastest that is sold."""

_DECIMAL = r"(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,2})?"
DECIMAL = re.compile(_DECIMAL)
_NUMBER = re.compile(rf"\s*([+-]?{_DECIMAL})\s*(?:/\s*({_DECIMAL})\s*)?")
_TOO_LONG = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")
_WITH_UNIT = re.compile(
    r"([-+0-9./eE\s]*[0-9.])\s*([MGT])(?:(b|B)(?:its?|ytes?)?(?:/s|ps)?)?\s*", re.IGNORECASE
)
_NOT_FINITE = re.compile(r"[+-]?\.?(?:inf|infinity|nan)", re.IGNORECASE)


def is_small(value: int | Fraction) -> bool:
    """Whether `value` can be computed with: numerator and denominator under `LARGEST`."""
    if type(value) is int:
        return -LARGEST <= value <= LARGEST
    return abs(value.numerator) <= LARGEST and value.denominator <= LARGEST


def has_digits(value: int | Fraction, most: int) -> bool:
    """Whether numerator and denominator have about `most` digits or fewer; costs no division."""
    bits = most * 3322 // 1000 + 1
    return value.numerator.bit_length() <= bits and value.denominator.bit_length() <= bits


def common_denominator(values: Iterable[Fraction]) -> int:
    """The least common denominator; TopologyError where it has more than `COMMON_DIGITS` digits."""
    common = 1
    for denominator in {value.denominator for value in values}:
        common = math.lcm(common, denominator)
        if not has_digits(common, COMMON_DIGITS):
            raise TopologyError(
                f"the common denominator of these numbers has more than {COMMON_DIGITS} digits "
                f"{COMMON_DIGITS.note}"
            )
    return common


def add(a: Fraction, b: Fraction, where: str) -> Fraction:
    """a + b; TopologyError where it has more than `COMMON_DIGITS` digits."""
    total = a + b
    if not has_digits(total, COMMON_DIGITS):
        raise TopologyError(
            f"{where}: parallel links add up to a number of more than {COMMON_DIGITS} digits "
            f"{COMMON_DIGITS.note}"
        )
    return total


def decimal(value: int | Fraction, places: int = 3) -> str:
    """`value` as a decimal of so many places; with an exponent where that is too long to read."""
    if -(10**15) < value < 10**15:
        return f"{float(value):.{places}f}"
    return f"{Decimal(value.numerator) / Decimal(value.denominator):.6e}"


def percent(share: Fraction) -> str:
    """`"92.30 %"`, `"80 %"` exactly: a share below the whole is rounded down: it is that at least.

    "100 %" is said of the whole alone: there are as many digits as show what is missing, 9 at most.
    """
    digits = 2
    while digits < 9 and 0 < abs(1 - share) < Fraction(1, 10 ** (digits + 2)):
        digits += 1
    scaled = share * 10 ** (digits + 2)
    rounded = math.floor(scaled) if share < 1 else round(scaled)
    whole, rest = divmod(rounded, 10**digits)
    text = f"{whole}.{rest:0{digits}d}"
    return (text.rstrip("0").rstrip(".") if rounded == scaled else text) + " %"


def exact(value: object) -> Fraction:
    """The number that `value` states, exactly.

    Takes integers, fractions, decimals, and text such as "25", "37.5", "1e3" or "325/15". A float
    is read as its shortest decimal (37.3 is 373/10), which is what a person meant by it.

    Raises `TopologyError` when it is no number, not finite, or has more than `DIGITS` digits.
    """
    if type(value) is Fraction and is_small(value):
        return value
    if isinstance(value, bool) or not isinstance(value, int | Fraction | Decimal | float | str):
        raise TopologyError(f"{value!r} is not a number")
    if isinstance(value, int | Fraction):
        number = Fraction(value)
        if not is_small(number):
            raise TopologyError(
                f"a number of more than {DIGITS} digits is out of range {DIGITS.note}"
            )
        return number
    if isinstance(value, float) and not math.isfinite(value):
        raise TopologyError(f"{value} is not finite")
    text = str(value)
    if _NOT_FINITE.fullmatch(text.strip()):
        raise TopologyError(f"{text.strip()} is not finite")
    match = _NUMBER.fullmatch(text)
    if match is None:
        shown = text if len(text) <= 40 else text[:40] + "..."
        if _TOO_LONG.fullmatch(text.strip()):
            raise TopologyError(f"{shown} is out of range: more than {DIGITS} digits {DIGITS.note}")
        raise TopologyError(f"'{shown}' is not a number (such as 25, 37.5 or \"325/15\")")
    over = Fraction(match[2]) if match[2] else Fraction(1)
    if over == 0:
        raise TopologyError(f"'{text}' divides by zero")
    number = Fraction(match[1]) / over
    if not is_small(number):
        raise TopologyError(f"'{text}' is out of range: more than {DIGITS} digits {DIGITS.note}")
    return number


def has_unit(text: str) -> bool:
    """Whether `text` ends like a bandwidth with its unit: "200Gb/s", "25 GB/s"."""
    return _WITH_UNIT.fullmatch(text) is not None


def bandwidth(value: object, plain: Fraction = Fraction(1), label: bool = False) -> Fraction:
    """GB/s that `value` states: "25", "25GB/s" and "200Gb/s" are the same; M and T as well as G.

    b is bits and B bytes. `plain`: GB/s of a number without a unit; `label`: "400G" is bits too, as
    on ports. Raises `TopologyError` as `exact`, and for "400G" elsewhere.
    """
    unit = _WITH_UNIT.fullmatch(value) if isinstance(value, str) else None
    if unit is None:
        return exact(value) * plain
    number, prefix, kind = unit.groups()
    if kind is None and not label:
        text = f"{number}{prefix.upper()}"
        raise TopologyError(f"'{text[:40]}' may be bits or bytes: write {text[:40]}b/s or "
                            f"{text[:40]}B/s")  # fmt: skip
    scale = {"M": Fraction(1, 1000), "G": Fraction(1), "T": Fraction(1000)}[prefix.upper()]
    return exact(number) * scale / (1 if kind == "B" else 8)


def doubt_port(what: str, rate: int | Fraction) -> list[str]:
    """A note where `rate`, GB/s, is more than a network port carries; `what` says whose it is."""
    if rate <= FASTEST_PORT:
        return []
    return [
        f"{what} is {float(rate):g} GB/s, {float(8 * rate):,.10g} Gb/s, and no network port "
        f"carries so much: did you mean {float(rate):g}Gb/s = {float(rate / 8):g} GB/s?"
    ]


def show(value: int | Fraction) -> str:
    """`value` as people write it and `exact` reads it: "25", "373/10"."""
    return str(Fraction(value))
