"""Expressions of the compact form: exact arithmetic over parameters and indices, nothing else.

The language is Python's (+ - * / // % ** ( ), one comparison, and, or, not) of numbers and names.
"/" is exact (25 / 2 is 25/2), "//" rounds down. Truth is 1 and 0. Every result is bounded by
`numbers.LARGEST`, text and nesting by `input_limits`, so that no input can make it run away.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from forestcoll.common.errors import TopologyError, did_you_mean
from forestcoll.common.input_limits import DIGITS, EXPRESSION_DEPTH, EXPRESSION_LENGTH, RANGE_VALUES
from forestcoll.topology.numbers import DECIMAL, exact, is_small

Number = int | Fraction
Names = Mapping[str, Number]
Run = Callable[[Names], Number]

_TOKEN = re.compile(rf"\s*(?:({DECIMAL.pattern})|([A-Za-z_]\w*)|(\*\*|//|==|!=|<=|>=|[-+*/%()<>]))")
POWER_STEPS = 64


class Expression(NamedTuple):
    """`text` ready to be computed; `names` are the parameters and indices that it uses.

    `cost`: steps that one computation takes, for `input_limits.EXPRESSION_STEPS`.
    """

    text: str
    run: Run
    names: frozenset[str]
    cost: int = 1

    def value(self, names: Names) -> Number:
        """The exact value. Raises `TopologyError` for an unknown name or division by zero."""
        return self.run(names)

    def integer(self, names: Names) -> int:
        """The value where only a whole number makes sense."""
        value = self.run(names)
        if isinstance(value, int):
            return value
        raise TopologyError(f"'{self.text}' is {value}; a whole number is needed here")


class Range(NamedTuple):
    """`first..last`, both included; one less than `first` as `last` is the empty range."""

    first: Expression
    last: Expression

    @property
    def cost(self) -> int:
        """Steps that finding the ends takes."""
        return self.first.cost + self.last.cost

    def values(self, names: Names) -> range:
        """The whole numbers of the range."""
        first, last = self.first.integer(names), self.last.integer(names)
        if last < first - 1:
            text = f"{self.first.text}..{self.last.text}"
            raise TopologyError(f"'{text}' runs backwards: {first} to {last}")
        return range(first, last + 1)


class Template(NamedTuple):
    """Text with `{expression}` and `{first..last}` in it, such as "box{b}/gpu{0..7}"."""

    text: str
    parts: tuple[str | Expression | Range, ...]

    @property
    def cost(self) -> int:
        """Steps that computing what stands in braces takes."""
        return sum(part.cost for part in self.parts if not isinstance(part, str))

    def expand(self, names: Names) -> Iterator[str]:
        """Every text that it stands for: one, or one per value of its ranges, in order."""
        if len(self.parts) == 1 and isinstance(self.parts[0], str):
            yield self.parts[0]
            return
        choices: list[str | range] = []
        for part in self.parts:
            if isinstance(part, Range):
                choices.append(part.values(names))
            else:
                choices.append(part if isinstance(part, str) else str(part.integer(names)))
        spans = [i for i, choice in enumerate(choices) if isinstance(choice, range)]
        # product() holds every value of a range at once; the caller counts, so go stepwise.
        if len(spans) < 2:
            at = spans[0] if spans else 0
            before, after = "".join(choices[:at]), "".join(choices[at + 1 :])  # type: ignore[arg-type]
            for value in choices[at] if spans else choices[:1]:
                yield f"{before}{value}{after}"
            return
        for span in (choice for choice in choices if isinstance(choice, range)):
            count = span.stop - span.start  # len() takes no number of more than 64 bits
            if count > RANGE_VALUES:
                raise TopologyError(
                    f"'{self.text}' counts over {count:,} values {RANGE_VALUES.note}"
                )
        for values in product(*([c] if isinstance(c, str) else c for c in choices)):
            yield "".join(map(str, values))


@lru_cache(maxsize=4096)
def compile_expression(text: str) -> Expression:
    """`text` as an expression. Raises `TopologyError` where it is none."""
    _check_length(text)
    parser = _Parser(text)
    run = parser.parse(0)
    parser.end()
    cost = len(parser.tokens) + POWER_STEPS * parser.tokens.count("**")
    # fractions take some five times as long as whole numbers
    fractions = "/" in parser.tokens or "." in text
    return Expression(text.strip(), run, frozenset(parser.names), cost * (5 if fractions else 1))


def _check_length(text: str) -> None:
    if len(text) > EXPRESSION_LENGTH:
        raise TopologyError(
            f"'{text[:40]}...' is longer than {EXPRESSION_LENGTH} characters "
            f"{EXPRESSION_LENGTH.note}"
        )


@lru_cache(maxsize=4096)
def compile_range(text: str) -> Range:
    """`first..last`, or one number, as a range."""
    ends = text.split("..")
    if len(ends) == 1:
        only = compile_expression(text)
        return Range(only, only)
    if len(ends) != 2:
        raise TopologyError(f"'{text[:40]}' is not a range; write it as 0..7")
    return Range(compile_expression(ends[0]), compile_expression(ends[1]))


def compile_template(text: str) -> Template:
    """`text` with its braces understood. Raises `TopologyError` where they do not match."""
    if "{" not in text and "}" not in text:
        return Template(text, (text,))
    return _compile_braces(text)


@lru_cache(maxsize=4096)
def _compile_braces(text: str) -> Template:
    _check_length(text)
    parts: list[str | Expression | Range] = []
    at = 0
    for match in re.finditer(r"\{([^{}]*)\}", text):
        if match.start() > at:
            parts.append(text[at : match.start()])
        inner = match[1]
        parts.append(compile_range(inner) if ".." in inner else compile_expression(inner))
        at = match.end()
    if at < len(text):
        parts.append(text[at:])
    if any(isinstance(part, str) and ("{" in part or "}" in part) for part in parts):
        raise TopologyError(f"'{text}': braces do not match; write {{i}} or {{0..7}}")
    return Template(text, tuple(parts))


class _Parser:
    """Operators by how closely they bind; `parse` returns what computes its part."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: set[str] = set()
        self.depth = 0
        self.tokens: list[str] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise self.senseless(text[at:].strip()[0])
            self.tokens.append(match[0].strip())
            at = match.end()
        self.rest = iter([*self.tokens, ""])
        self.next = next(self.rest)

    def wrong(self, why: str) -> TopologyError:
        return TopologyError(f"'{self.text.strip()}' is not a number or expression: {why}")

    def senseless(self, token: str) -> TopologyError:
        return self.wrong(f"'{token}' makes no sense here")

    def take(self) -> str:
        token, self.next = self.next, next(self.rest, "")
        return token

    def end(self) -> None:
        if self.next:
            raise self.senseless(self.next)

    def parse(self, least: int) -> Run:
        """Returns what computes an operand, and what follows and binds closer than `least`."""
        most = _BINDING["**"]
        token = self.take()
        if token == "(":
            run = self.parse_inside(0)
            if self.take() != ")":
                raise self.wrong("a ')' is missing")
        elif token == "-":
            run = self.join("*", lambda names: -1, self.parse_inside(_MINUS))
        elif token == "not" and least <= _NOT:
            run = self.join("==", lambda names: 0, self.parse_inside(_NOT))
            most = _NOT
        else:
            run = self.parse_atom(token)
        while least < _BINDING.get(self.next, 0) <= most:
            sign = self.take()
            most = _BINDING[sign]
            right = self.parse_inside(_MINUS) if sign == "**" else self.parse(most)
            if most == _COMPARISON:
                most = _NOT  # no second one behind it
            run = self.join(sign, run, right)
        return run

    def parse_inside(self, least: int) -> Run:
        """Does the same one level of nesting deeper."""
        self.depth += 1
        if self.depth > EXPRESSION_DEPTH:
            raise self.wrong(f"nested more than {EXPRESSION_DEPTH} deep {EXPRESSION_DEPTH.note}")
        run = self.parse(least)
        self.depth -= 1
        return run

    def parse_atom(self, token: str) -> Run:
        if not token:
            raise self.wrong("it ends too early" if self.tokens else "it is empty")
        if DECIMAL.fullmatch(token):
            number = _plain(exact(token))
            return lambda names: number
        if token in ("and", "or", "not") or not (token[0].isalpha() or token[0] == "_"):
            raise self.senseless(token)
        self.names.add(token)
        return lambda names: _look_up(token, names)

    def join(self, sign: str, left: Run, right: Run) -> Run:
        if sign == "or":
            return lambda names: int(bool(left(names) or right(names)))
        if sign == "and":
            return lambda names: int(bool(left(names) and right(names)))
        compute, divides = _COMPUTE[sign], sign in ("/", "//", "%")

        def run(names: Names) -> Number:
            one, two = left(names), right(names)
            if divides and two == 0:
                raise TopologyError(f"{one} {sign} 0: division by zero")
            result = _plain(compute(one, two))
            if not is_small(result):
                raise self.wrong(f"the result has more than {DIGITS} digits {DIGITS.note}")
            return result

        return run


def _plain(value: Number) -> Number:
    return value.numerator if value.denominator == 1 else value


def _look_up(name: str, names: Names) -> Number:
    try:
        return names[name]
    except KeyError:
        raise TopologyError(
            f"'{name}' is neither a number nor a parameter or index{did_you_mean(name, names)}"
        ) from None


def _power(left: Number, right: Number) -> Number:
    if not isinstance(right, int) or not 0 <= right <= POWER_STEPS:
        raise TopologyError(f"'**' takes a whole number from 0 to {POWER_STEPS}, not {right}")
    result: Number = 1
    for _ in range(right):
        result = result * left
        if not is_small(result):
            break
    return result


_COMPUTE: dict[str, Callable[[Number, Number], Number]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda one, two: Fraction(one) / two,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": _power,
}
_NOT, _COMPARISON, _MINUS = 3, 4, 7
_BINDING = {
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), _COMPARISON),
    **dict.fromkeys(("+", "-"), 5),
    **dict.fromkeys(("*", "/", "//", "%"), 6),
    "or": 1,
    "and": 2,
    "**": 8,
}
"""How closely an operator binds; `not` and a minus before its operand have places between."""
