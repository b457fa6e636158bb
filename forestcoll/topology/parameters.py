"""Parameters of a topology file: what it declares, and the values that `--set` gives them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from forestcoll.common.errors import TopologyError, did_you_mean
from forestcoll.topology.arithmetic import Number
from forestcoll.topology.numbers import bandwidth, doubt_port, has_unit, show
from forestcoll.topology.source import Place, Table, Value, located

PARAMETER_KEYS = ("default", "minimum", "maximum", "type", "description")
_PORT = re.compile(r"\b(network|nic|uplink|port|fabric|leaf|rail)\b")
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
    bandwidth: bool = False  # GB/s: a unit may be written

    def read(self, text: str) -> Number:
        """The number that `text` states, if the parameter may have it."""
        if has_unit(text) and not self.bandwidth:
            raise TopologyError(
                f"{self.name} is no bandwidth (its description would say GB/s); give a number"
            )
        return self.check(bandwidth(text))

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


def read_parameters(value: Value | None) -> tuple[Parameter, ...]:
    """Returns the parameters that the file's `parameters:` declares, in its order."""
    if value is None:
        return ()
    table = value.as_table("parameters")
    return tuple(_parameter(name, entry, table.key(name)) for name, entry in table.items.items())


def _parameter(name: str, entry: Value, place: Place) -> Parameter:
    what = f"parameters: {name[:60]}"
    if not may_name(name):
        raise place.error(
            f"{what}: a parameter is named by a-z, 0-9 and _, and not {', '.join(RESERVED)}"
        )
    bare = Table(place.source, place.line, {"default": entry})
    table = entry if isinstance(entry, Table) else bare
    table.check_keys(what, PARAMETER_KEYS, needed=("default",))
    numbers: dict[str, Number] = {}
    rate = False
    for key in ("default", "minimum", "maximum"):
        text = table.text(key, what)
        if text is not None:
            rate |= has_unit(text.text)
            with located(text, f"{what}: {key}"):
                value = bandwidth(text.text)
            numbers[key] = value.numerator if value.denominator == 1 else value

    def words(key: str) -> str:
        text = table.text(key, what)
        return "" if text is None else text.text

    kind = words("type")
    if kind not in ("", "integer", "number"):
        raise place.error(f"{what}: type is 'integer' or 'number', not '{kind}'")
    rate |= "GB/s" in words("description")
    default = numbers["default"]
    integer = kind == "integer" or (not kind and isinstance(default, int) and not rate)
    minimum = numbers.get("minimum", 1 if integer else None)
    limits = minimum, numbers.get("maximum")
    parameter = Parameter(name, default, *limits, integer, words("description"), rate)
    with located(place, f"{what}: default"):
        parameter.check(Fraction(default))
    return parameter


def may_name(word: str) -> bool:
    """Returns whether `word` may name a parameter or an index."""
    return re.fullmatch(r"[a-z][a-z0-9_]{0,39}", word) is not None and word not in RESERVED


def apply_settings(
    parameters: tuple[Parameter, ...], settings: Mapping[str, str], where: str
) -> dict[str, Number]:
    """The value of every parameter. Raises `TopologyError` for unknown names and wrong values."""
    values: dict[str, Number] = {p.name: p.default for p in parameters}
    by_name = {p.name: p for p in parameters}
    for name, text in settings.items():
        if name not in by_name:
            hint = did_you_mean(name, by_name)
            if not hint:
                listed = ", ".join(map(str, parameters))
                hint = f"; it has {listed}" if listed else "; it has no parameters"
            raise TopologyError(f"{where}: unknown parameter '{str(name)[:60]}'{hint}")
        with located(Place(where, 0), f"{name}={str(text)[:60]}"):
            values[name] = by_name[name].read(str(text))
    return values


def doubt_settings(
    parameters: tuple[Parameter, ...], settings: Mapping[str, str], values: Mapping[str, Number]
) -> list[str]:
    """Notes on bandwidths of network ports, set by the user, that no port carries."""
    return [
        note
        for p in parameters
        if p.name in settings and p.bandwidth and _PORT.search(f"{p.name} {p.description}")
        for note in doubt_port(f"{p.name}={settings[p.name]}", values[p.name])
    ]
