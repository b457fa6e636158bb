"""Types of the values of options: what is taken, what an error says, what a shell offers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from forestcoll.common.arguments import Auto
from forestcoll.common.errors import ForestCollError, did_you_mean
from forestcoll.compile.budget import WORDS, Budget
from forestcoll.program import REDUCTIONS
from forestcoll.program.sizes import parse_size

if TYPE_CHECKING:
    from forestcoll.topology import Topology

    ParamType = click.ParamType[Any]
    _Choice = click.Choice[Any]
else:
    ParamType = click.ParamType  # generic in the newest click only
    _Choice = click.Choice

NOTHING: Mapping[str, str] = MappingProxyType({})
MOST_RANKS = 1_000
"""Ids of GPUs that are offered to a shell."""

Context = click.Context | None
Parameter = click.Parameter | None
Offer = Callable[[click.Context, str], Iterable[str]]


class TextType(ParamType):
    """What a function makes of the text, which raises ValueError with what is wrong.

    `offer`: the words that a shell completes it to; `files`: or files, by the shell's own way.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[str], Any] = str,
        offer: Offer = lambda _, incomplete: (),
        files: bool = False,
    ) -> None:
        self.name, self.read, self.offer, self.files = name, read, offer, files

    def convert(self, value: Any, param: Parameter, ctx: Context) -> Any:
        """The value, or a usage error."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except ValueError as error:
            return self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """What may follow; files come first: bash forgets what came before them."""
        files = [CompletionItem(incomplete, type="file")] if self.files else []
        words = (word for word in self.offer(ctx, incomplete) if word.startswith(incomplete))
        return [*files, *map(CompletionItem, words)]


class WordType(_Choice):
    """One of a few words; an error names the nearest, whatever its case and underscores.

    `ways`: words that people ask for in vain, and what to do instead. `also`: words that are taken
    for others, and not offered.
    """

    def __init__(
        self,
        choices: Sequence[str],
        ways: Mapping[str, str] = NOTHING,
        also: Mapping[str, str] = NOTHING,
    ) -> None:
        super().__init__(choices)
        self.ways, self.also = ways, also

    def convert(self, value: Any, param: Parameter, ctx: Context) -> Any:
        """The word, or a usage error."""
        if value in self.also or value in self.choices:
            return self.also.get(value, value)
        words = [str(choice) for choice in self.choices]
        listed = ", ".join(f"'{word}'" for word in words)
        hint = self.ways.get(str(value).lower()) or did_you_mean(str(value), words)
        return self.fail(f"'{value}' is not one of {listed}{hint}", param, ctx)


class OperatorType(WordType):
    """A reduction, or "LIBRARY:SYMBOL"."""

    def convert(self, value: Any, param: Parameter, ctx: Context) -> Any:
        """The word, or a usage error."""
        return value if ":" in value else super().convert(value, param, ctx)


class FiniteRange(click.FloatRange):
    """A number from `min` to `max`; "nan", which lies outside of every range, is none."""

    def convert(self, value: Any, param: Parameter, ctx: Context) -> float:
        """The number, or a usage error."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number {self._describe_range()}", param, ctx)
        return number


def parse_gpus(text: str) -> list[int]:
    """Returns numbers of GPUs: "0,1,3"."""
    if not re.fullmatch(r"\s*-?\d+\s*(,\s*-?\d+\s*)*", text):
        raise ValueError(f"'{text}' is no list of GPU numbers such as 0,1")
    numbers = [int(word) for word in text.split(",")]
    if min(numbers) < 0:
        raise ValueError(f"'{text}': GPUs are numbered from 0")
    return numbers


def parse_sizes(text: str) -> tuple[int, int]:
    """Returns the ends of `1K:8G`, each as `parse_size` reads it."""
    low, colon, high = text.partition(":")
    if not colon:
        raise ValueError(f"'{text}' is no range of sizes; write LOW:HIGH, such as 1K:8G")
    sizes = parse_size(low), parse_size(high)
    if sizes[0] > sizes[1]:
        raise ValueError(f"'{text}' begins above its end")
    return sizes


def auto_type(kind: Auto) -> TextType:
    """`auto`, or a whole number from 1."""

    def read(text: str) -> int | str:
        if text == "auto":
            return text
        if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= kind.most:
            raise ValueError(f"'{text}' is neither 'auto' nor a number from 1 to {kind.most:,}")
        return int(text)

    return TextType("K|auto", read)


def parse_budget(text: str) -> Budget:
    """Returns the limits of `trees=8,channels=16,blocks=32,operations=48`: any of the four."""
    limits: dict[str, int] = {}
    for entry in text.split(","):
        match = re.fullmatch(rf"\s*({'|'.join(WORDS)})\s*=\s*(\d{{1,9}})\s*", entry)
        if match is None or int(match[2]) < 1:
            words = ", ".join(f"{name}=N" for name in WORDS)
            raise ValueError(f"'{entry.strip()}' is none of {words}, N from 1")
        if match[1] in limits:
            raise ValueError(f"{match[1]} is given twice")
        limits[match[1]] = int(match[2])
    return Budget(**limits)


def parse_percent(text: str) -> Fraction:
    """Returns a percentage as an exact number: `99`, `99.9`."""
    match = re.fullmatch(r"\s*(\d{1,3}(?:\.\d{1,9})?)\s*(%?)\s*", text)
    if match is None or not 0 < Fraction(match[1]) <= 100:
        raise ValueError(f"'{text}' is not a percentage over 0 and up to 100, such as 99 or 99.9")
    number = Fraction(match[1])
    if number < 1 and not match[2]:
        share, plain = f"{float(100 * number):g}", text.strip()
        raise ValueError(
            f"'{text}' is {plain} percent, not {share}: write {share}, or {plain}% if you mean so "
            "little"
        )
    return number


def parse_setting(text: str) -> tuple[str, str]:
    """Returns (name, value) of `name=value`."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise ValueError(f"'{text}' is not of the form name=value, such as boxes=2")
    return name.strip(), value.strip()


def _name_of(ctx: click.Context) -> str:
    """The topology's name that stands on the line, or the empty string."""
    return str(ctx.params.get("topology") or ctx.params.get("name") or "")


def _topology_of(ctx: click.Context) -> Topology | None:
    """The topology that the line asks for so far, if there is one."""
    from forestcoll.topology import catalog

    pairs = [pair for pair in ctx.params.get("settings") or () if isinstance(pair, tuple)]
    try:
        return catalog.load(_name_of(ctx), dict(pairs))
    except (ForestCollError, OSError):
        return None


def _offer_topologies(_: click.Context, incomplete: str) -> Iterable[str]:
    """The catalogue's names."""
    from forestcoll.topology import catalog

    return catalog.names()


def _offer_ranks(ctx: click.Context, incomplete: str) -> Iterable[str]:
    """Ids of the topology that is named earlier on the line, separated by commas."""
    topology = _topology_of(ctx)
    before, comma, _ = incomplete.rpartition(",")
    given = set(before.split(","))
    gpus = () if topology is None else topology.gpus[:MOST_RANKS]
    return [f"{before}{comma}{g}" for g in gpus if g not in given]


def _offer_settings(ctx: click.Context, incomplete: str) -> Iterable[str]:
    """Parameters of the topology that is named earlier on the line."""
    from forestcoll.topology import catalog

    try:
        return [f"{p.name}={p.default}" for p in catalog.heading(_name_of(ctx)).parameters]
    except ForestCollError:
        return ()


NAMED: dict[str, click.ParamType[Any]] = {
    "file": TextType("file", files=True),
    "topology": TextType("NAME|FILE", offer=_offer_topologies, files=True),
    "ranks": TextType("ID,...", offer=_offer_ranks),
    "setting": TextType("name=value", parse_setting, _offer_settings),
    "size": TextType("size", parse_size),
    "sizes": TextType("LOW:HIGH", parse_sizes),
    "percent": TextType("percent", parse_percent),
    "budget": TextType("budget", parse_budget),
    "gpus": TextType("gpus", parse_gpus),
    "operator": OperatorType(REDUCTIONS),
    "rule": WordType(("fair", "in-order", "weighted"), also={"in-order": "fifo", "fifo": "fifo"}),
}
"""Kinds of options by the name that an `Option` has for them."""


def type_of(kind: Any, ways: Mapping[str, str] | None = None) -> click.ParamType[Any] | None:
    """The type of an option's kind; None: a text."""
    if isinstance(kind, Auto):
        return auto_type(kind)
    if isinstance(kind, range):
        return click.IntRange(kind.start, kind.stop - 1)
    if isinstance(kind, tuple):
        return WordType(kind, ways or NOTHING)
    return NAMED[kind] if isinstance(kind, str) else kind
