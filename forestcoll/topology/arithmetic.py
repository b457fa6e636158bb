"""Expressions of the compact form: exact arithmetic over parameters and indices, nothing else.

    value   := or;  or := and ("or" and)*;  and := not ("and" not)*;  not := "not" not | comparison
    comparison := sum (("==" | "!=" | "<" | "<=" | ">" | ">=") sum)?
    sum     := product (("+" | "-") product)*;  product := unary (("*" | "//" | "/" | "%") unary)*
    unary   := "-" unary | power;  power := atom ("**" unary)?;  atom := number | name | "(" or ")"

"/" is exact (25 / 2 is 25/2), "//" rounds down. Truth is 1 and 0. Every result is bounded by
`numbers.LARGEST`, text and nesting by `input_limits`, so that no input can make it run away.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product

from forestcoll.common.errors import TopologyError, did_you_mean
from forestcoll.common.input_limits import DIGITS, EXPRESSION_DEPTH, EXPRESSION_LENGTH, RANGE_VALUES
from forestcoll.topology.numbers import DECIMAL, exact, is_small

Number = int | Fraction
Names = Mapping[str, Number]
Run = Callable[[Names], Number]

_TOKEN = re.compile(rf"\s*(?:({DECIMAL.pattern})|([A-Za-z_]\w*)|(\*\*|//|==|!=|<=|>=|[-+*/%()<>]))")
_COMPARE: dict[str, Callable[[Number, Number], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


POWER_STEPS = 64


@dataclass(frozen=True, slots=True)
class Expression:
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


@dataclass(frozen=True, slots=True)
class Range:
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


@dataclass(frozen=True, slots=True)
class Template:
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
        plain = [part for part in self.parts if not isinstance(part, Range)]
        if len(plain) == len(self.parts):
            yield "".join([p if isinstance(p, str) else str(p.integer(names)) for p in plain])
            return
        choices: list[list[str] | range] = []
        for part in self.parts:
            if isinstance(part, str):
                choices.append([part])
            elif isinstance(part, Expression):
                choices.append([str(part.integer(names))])
            else:
                choices.append(part.values(names))
        # product() holds every value of a range at once; the caller counts, so go stepwise.
        if sum(isinstance(c, range) for c in choices) == 1:
            k = next(i for i, c in enumerate(choices) if isinstance(c, range))
            before = "".join(str(c[0]) for c in choices[:k])
            after = "".join(str(c[0]) for c in choices[k + 1 :])
            for value in choices[k]:
                yield f"{before}{value}{after}"
            return
        for c in choices:
            if len(c) > RANGE_VALUES:
                raise TopologyError(
                    f"'{self.text}' counts over {len(c):,} values {RANGE_VALUES.note}"
                )
        for values in product(*choices):
            yield "".join(map(str, values))


@lru_cache(maxsize=4096)
def compile_expression(text: str) -> Expression:
    """`text` as an expression. Raises `TopologyError` where it is none."""
    if len(text) > EXPRESSION_LENGTH:
        raise TopologyError(
            f"'{text[:40]}...' is longer than {EXPRESSION_LENGTH} characters "
            f"{EXPRESSION_LENGTH.note}"
        )
    parser = _Parser(text)
    run = parser.disjunction()
    parser.end()
    powers = parser.tokens.count("**")
    cost = len(parser.tokens) + POWER_STEPS * powers
    # fractions take some five times as long as whole numbers
    fractions = "/" in parser.tokens or "." in text
    return Expression(text.strip(), run, frozenset(parser.names), cost * (5 if fractions else 1))


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
    if len(text) > EXPRESSION_LENGTH:
        raise TopologyError(
            f"'{text[:40]}...' is longer than {EXPRESSION_LENGTH} characters "
            f"{EXPRESSION_LENGTH.note}"
        )
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
    """Recursive descent, one method a level; every method returns what computes its part."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: set[str] = set()
        self.depth = 0
        self.tokens: list[str] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise self.wrong(f"'{text[at:].strip()[0]}' makes no sense here")
            self.tokens.append(match[0].strip())
            at = match.end()
        self.at = 0

    def wrong(self, why: str) -> TopologyError:
        return TopologyError(f"'{self.text.strip()}' is not a number or expression: {why}")

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *wanted: str) -> str:
        token = self.peek()
        if token and token in wanted:
            self.at += 1
            return token
        return ""

    def end(self) -> None:
        if self.peek():
            raise self.wrong(f"'{self.peek()}' makes no sense here")

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > EXPRESSION_DEPTH:
            raise self.wrong(f"nested more than {EXPRESSION_DEPTH} deep {EXPRESSION_DEPTH.note}")

    def disjunction(self) -> Run:
        run = self.conjunction()
        while self.take("or"):
            run = _either(run, self.conjunction())
        return run

    def conjunction(self) -> Run:
        run = self.negation()
        while self.take("and"):
            run = _both(run, self.negation())
        return run

    def negation(self) -> Run:
        if not self.take("not"):
            return self.comparison()
        self.deeper()
        run = self.negation()
        self.depth -= 1
        return lambda names: int(not run(names))

    def comparison(self) -> Run:
        left = self.sum()
        sign = self.take(*_COMPARE)
        if not sign:
            return left
        right, compare = self.sum(), _COMPARE[sign]
        return lambda names: int(compare(left(names), right(names)))

    def sum(self) -> Run:
        run = self.product()
        while sign := self.take("+", "-"):
            run = self.binary(sign, run, self.product())
        return run

    def product(self) -> Run:
        run = self.unary()
        while sign := self.take("*", "//", "/", "%"):
            run = self.binary(sign, run, self.unary())
        return run

    def unary(self) -> Run:
        if not self.take("-"):
            return self.power()
        self.deeper()
        run = self.unary()
        self.depth -= 1
        return lambda names: -run(names)

    def power(self) -> Run:
        base = self.atom()
        if not self.take("**"):
            return base
        self.deeper()
        exponent = self.unary()
        self.depth -= 1
        return self.binary("**", base, exponent)

    def atom(self) -> Run:
        if self.take("("):
            self.deeper()
            run = self.disjunction()
            self.depth -= 1
            if not self.take(")"):
                raise self.wrong("a ')' is missing")
            return run
        token = self.peek()
        if not token:
            raise self.wrong("it ends too early" if self.tokens else "it is empty")
        self.at += 1
        if DECIMAL.fullmatch(token):
            number = _plain(exact(token))
            return lambda names: number
        if token in ("and", "or", "not") or not (token[0].isalpha() or token[0] == "_"):
            raise self.wrong(f"'{token}' makes no sense here")
        self.names.add(token)
        return lambda names: _look_up(token, names)

    def binary(self, sign: str, left: Run, right: Run) -> Run:
        compute = _ARITHMETIC[sign]

        def run(names: Names) -> Number:
            result = compute(left(names), right(names))
            if not is_small(result):
                raise self.wrong(f"the result has more than {DIGITS} digits {DIGITS.note}")
            return result

        return run


def _either(left: Run, right: Run) -> Run:
    return lambda names: int(bool(left(names)) or bool(right(names)))


def _both(left: Run, right: Run) -> Run:
    return lambda names: int(bool(left(names)) and bool(right(names)))


def _plain(value: Number) -> Number:
    return value.numerator if value.denominator == 1 else value


def _look_up(name: str, names: Names) -> Number:
    try:
        return names[name]
    except KeyError:
        raise TopologyError(
            f"'{name}' is neither a number nor a parameter or index{did_you_mean(name, names)}"
        ) from None


def _divide(left: Number, right: Number) -> Number:
    if right == 0:
        raise TopologyError(f"{left} / 0: division by zero")
    return _plain(Fraction(left) / right)


def _floor(left: Number, right: Number) -> Number:
    if right == 0:
        raise TopologyError(f"{left} // 0: division by zero")
    return left // right


def _modulo(left: Number, right: Number) -> Number:
    if right == 0:
        raise TopologyError(f"{left} % 0: division by zero")
    return _plain(left % right)


def _power(left: Number, right: Number) -> Number:
    if not isinstance(right, int) or not 0 <= right <= POWER_STEPS:
        raise TopologyError(f"'**' takes a whole number from 0 to {POWER_STEPS}, not {right}")
    result: Number = 1
    for _ in range(right):
        result = result * left
        if not is_small(result):
            break
    return result


_ARITHMETIC: dict[str, Callable[[Number, Number], Number]] = {
    "+": lambda left, right: _plain(left + right),
    "-": lambda left, right: _plain(left - right),
    "*": lambda left, right: _plain(left * right),
    "/": _divide,
    "//": _floor,
    "%": _modulo,
    "**": _power,
}
