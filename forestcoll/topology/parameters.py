"""Parameters of a topology file: what it declares, and the values that `--set` gives them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from forestcoll.errors import TopologyError, did_you_mean
from forestcoll.topology.arithmetic import Number
from forestcoll.topology.numbers import exact, show
from forestcoll.topology.source import Source, Table, Value, located

PARAMETER_KEYS = ("default", "minimum", "maximum", "type", "description")
RESERVED = ("and", "or", "not", "true", "false", "box")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number that `--set name=value` may change."""

    name: str
    default: Number
    minimum: Number | None
    maximum: Number | None
    integer: bool
    description: str = ""

    def __str__(self) -> str:
        return f"{self.name}={show(self.default)}"

    def check(self, value: Fraction) -> Number:
        """`value` if the parameter may have it."""
        if self.integer and value.denominator != 1:
            raise TopologyError(f"{self.name} must be a whole number, not {show(value)}")
        wrong = ""
        if self.minimum is not None and value < self.minimum:
            wrong = f"at least {show(self.minimum)}"
        if self.minimum is None and value <= 0:
            wrong = "more than 0"
        if self.maximum is not None and value > self.maximum:
            wrong = f"at most {show(self.maximum)}"
        if wrong:
            raise TopologyError(f"{self.name} must be {wrong}, not {show(value)}")
        return value.numerator if value.denominator == 1 else value


def read_parameters(value: Value | None, source: Source) -> tuple[Parameter, ...]:
    """The parameters that the file's `parameters:` declares, in its order."""
    if value is None:
        return ()
    table = source.table(value, "parameters")
    return tuple(
        _parameter(name, entry, table.lines[name], source) for name, entry in table.items.items()
    )


def _parameter(name: str, entry: Value, line: int, source: Source) -> Parameter:
    what = f"parameters: {name[:60]}"
    if re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name) is None or name in RESERVED:
        raise source.error(
            line, f"{what}: a parameter is named by a-z, 0-9 and _, and not {', '.join(RESERVED)}"
        )
    table = entry if isinstance(entry, Table) else Table(line, {"default": entry})
    source.keys(table, what, PARAMETER_KEYS, needed=("default",))

    def number(key: str) -> Number | None:
        if key not in table.items:
            return None
        text = source.text(table.items[key], f"{what}: {key}")
        with located(source, text.line, f"{what}: {key}"):
            value = exact(text.text)
        return value.numerator if value.denominator == 1 else value

    def words(key: str) -> str:
        return source.text(table.items[key], f"{what}: {key}").text if key in table.items else ""

    default = number("default")
    assert default is not None  # `keys` has seen it
    if words("type") not in ("", "integer", "number"):
        raise source.error(line, f"{what}: type is 'integer' or 'number', not '{words('type')}'")
    integer = words("type") == "integer" or (not words("type") and isinstance(default, int))
    minimum = number("minimum")
    if minimum is None and integer:
        minimum = 1
    parameter = Parameter(name, default, minimum, number("maximum"), integer, words("description"))
    with located(source, line, f"{what}: default"):
        parameter.check(Fraction(default))
    return parameter


def apply_settings(
    parameters: tuple[Parameter, ...], settings: Mapping[str, str], where: str
) -> dict[str, Number]:
    """The value of every parameter. Raises `TopologyError` for unknown names and wrong values."""
    values: dict[str, Number] = {p.name: p.default for p in parameters}
    known = {p.name: p for p in parameters}
    for name, text in settings.items():
        if name not in known:
            hint = did_you_mean(name, known)
            if not hint:
                listed = ", ".join(map(str, parameters))
                hint = f"; it has {listed}" if listed else "; it has no parameters"
            raise TopologyError(f"{where}: unknown parameter '{str(name)[:60]}'{hint}")
        try:
            values[name] = known[name].check(exact(str(text)))
        except TopologyError as error:
            raise TopologyError(f"{where}: {name}={str(text)[:60]}: {error}") from None
    return values
