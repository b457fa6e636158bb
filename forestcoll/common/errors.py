"""Every error that this package raises on purpose.

    ForestCollError       catches them all; the command line turns it into exit 1
      TopologyError       a topology (file, dump, parameter) is wrong
      InfeasibleError     the collective cannot be done on this topology; the message names the cut
      ForestError         a forest file is malformed or its claims do not hold
      PlanError           a plan or program is malformed, wrong, or does not fit its target
      UnsupportedError    well-formed input that asks for something this version cannot do
        ArgumentError     an argument of a public function is none of what it takes
      ExecutionError      a plan got stuck or computed wrong data while it ran
      OutputError         a result cannot be written where it was asked for

Messages are for people: what, where, what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice

LONGEST_WORD = 100  # characters
WORK = 4_000_000  # comparing two words takes some 0.1 us times the square of their length


class ForestCollError(Exception):
    """Base of every deliberate error of this package.

    `rule` is the short name of the rule that is broken, where it has one
    (docs/reference/rules.md), and `at` the place in a plan: rank, thread block, step, as far as
    they are known; `other` that of whom it collides with.
    """

    def __init__(
        self,
        *args: object,
        rule: str = "",
        at: tuple[int, ...] = (),
        other: tuple[int, ...] = (),
    ) -> None:
        super().__init__(*args)
        self.rule = rule
        self.at = at
        self.other = other


class TopologyError(ForestCollError):
    """A topology description is wrong."""


class InfeasibleError(ForestCollError):
    """The collective cannot be done at all; the message names the cut that proves it."""


class ForestError(ForestCollError):
    """A forest file is malformed, or what it claims does not hold."""


class PlanError(ForestCollError):
    """A program or plan file is malformed, wrong, or beyond a limit of its target."""


class UnsupportedError(ForestCollError):
    """Well-formed input that asks for something this version cannot do."""


class ArgumentError(UnsupportedError):
    """An argument of a public function is none of what the function takes."""


class ExecutionError(ForestCollError):
    """A plan got stuck, or produced wrong data, while it was running."""


class OutputError(ForestCollError):
    """A result cannot be written where it was asked for."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`"; did you mean 'gpu7'?"` for the nearest known word, or the empty string.

    Case, hyphens and underscores make no difference: 'All_Reduce' means 'allreduce'. Of very many
    known words, or long ones, the first alone are looked at: a hint is worth half a second.
    """
    if len(word) > LONGEST_WORD:
        return ""
    compared = min(5000, WORK // (len(word) + 1) ** 2)
    plain = {_plain(name): name for name in reversed(list(islice(choices, compared)))}
    near = difflib.get_close_matches(_plain(word), list(plain), n=1, cutoff=0.6)
    return f"; did you mean '{plain[near[0]]}'?" if near else ""


def _plain(word: str) -> str:
    return word.casefold().replace("_", "").replace("-", "")
