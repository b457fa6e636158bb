"""Numbers that options take: finite ones, and percentages."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import click

from forestcoll.cli.completion import ParamType


class FiniteRange(click.FloatRange):
    """A number from `min` to `max`; "nan", which lies outside of every range, is none."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number, or a usage error."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number {self._describe_range()}", param, ctx)
        return number


class PercentType(ParamType):
    """A percentage as an exact number: `99`, `99.9`."""

    name = "percent"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Fraction:
        if isinstance(value, Fraction):
            return value
        match = re.fullmatch(r"\s*(\d{1,3}(?:\.\d{1,9})?)\s*(%?)\s*", value)
        if match is None or not 0 < Fraction(match[1]) <= 100:
            self.fail(f"'{value}' is not a percentage over 0 and up to 100, such as 99 or 99.9")
        number = Fraction(match[1])
        if number < 1 and not match[2]:
            share = f"{float(100 * number):g}"
            self.fail(
                f"'{value}' is {value.strip()} percent, not {share}: write {share}, or "
                f"{value.strip()}% if you mean so little"
            )
        return number
