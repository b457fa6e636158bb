"""Types of the values of options: sizes, numbers of trees and instances, budgets, percentages."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import click

from forestcoll.compile.budget import Budget
from forestcoll.ui.cli.completion import ParamType

SIZE_LIMIT = 2**50
MOST_INSTANCES = 1024


class GpusType(ParamType):
    """Numbers of GPUs: "0,1,3"."""

    name = "gpus"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        """The list, or a usage error."""
        try:
            found = [int(word) for word in str(value).split(",")]
        except ValueError:
            self.fail(f"'{value}' is no list of GPU numbers such as 0,1", param, ctx)
        if min(found) < 0:
            self.fail(f"'{value}': GPUs are numbered from 0", param, ctx)
        return found


class SizeType(ParamType):
    """Bytes: `64M`, `1.5G`, `4KiB`, `832`. K, M, G, T are powers of 1024, as in nccl-tests."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([KMGT]?)(?:i?B)?\s*", value, re.I)
        if match is None:
            self.fail(f"'{value}' is not a size; write bytes, or a number with K, M, G, T: 64M")
        number = Fraction(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ")
        if number.denominator != 1:
            self.fail(f"'{value}' is {float(number)} bytes: not a whole number")
        if not 1 <= number <= SIZE_LIMIT:
            self.fail(f"'{value}' is out of range; from 1 byte to 1024T")
        return int(number)


class SizesType(ParamType):
    """`1K:8G`: from the first to the last, both as `SizeType` reads them."""

    name = "LOW:HIGH"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        low, colon, high = value.partition(":")
        if not colon:
            self.fail(f"'{value}' is no range of sizes; write LOW:HIGH, such as 1K:8G")
        sizes = SizeType().convert(low, param, ctx), SizeType().convert(high, param, ctx)
        if sizes[0] > sizes[1]:
            self.fail(f"'{value}' begins above its end")
        return sizes


class TreesType(ParamType):
    """`auto` or a number of trees per root."""

    name = "K|auto"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        if value == "auto" or isinstance(value, int):
            return value if isinstance(value, int) else "auto"
        if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < 1:
            self.fail(f"'{value}' is neither 'auto' nor a number of trees (1, 2, 3, ...)")
        return int(value)


class InstancesType(ParamType):
    """`auto` or a number of equal parts of every tree."""

    name = "N|auto"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        if value == "auto" or isinstance(value, int):
            return value if isinstance(value, int) else "auto"
        if not re.fullmatch(r"[0-9]{1,4}", value) or not 1 <= int(value) <= MOST_INSTANCES:
            self.fail(f"'{value}' is neither 'auto' nor a number from 1 to {MOST_INSTANCES}")
        return int(value)


class BudgetType(ParamType):
    """`trees=8,channels=16,blocks=32,operations=48`: any of the four."""

    name = "budget"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Budget:
        if isinstance(value, Budget):
            return value
        found: dict[str, int] = {}
        for entry in value.split(","):
            match = re.fullmatch(r"\s*(trees|channels|blocks|operations)\s*=\s*(\d{1,9})\s*", entry)
            if match is None or int(match[2]) < 1:
                self.fail(
                    f"'{entry.strip()}' is none of trees=N, channels=N, blocks=N, operations=N, "
                    "N from 1"
                )
            if match[1] in found:
                self.fail(f"{match[1]} is given twice")
            found[match[1]] = int(match[2])
        return Budget(**found)


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
