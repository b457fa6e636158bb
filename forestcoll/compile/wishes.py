"""Wishes: what the caller asks of a forest and of the plans that are made from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from forestcoll.common.errors import UnsupportedError
from forestcoll.compile.budget import Budget
from forestcoll.program import Protocol

if TYPE_CHECKING:
    from forestcoll.schedule.forest import Forest


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the caller asks of a forest.

    `trees`: exactly so many per root. `min_percent`: the fewest trees per root that reach so many
    percent of the optimum (over 0 to 100). `exact`: the optimum itself, whatever sizes its plans
    serve. `max_height`: hops; the best algbw that has no more.
    `compact`: forests are compact where one is found (it is never the reason for a choice); None:
    above `solver.COMPACT_FROM` ranks, with no plans.
    `instances`, `protocol`: of the plans, as in `lower`; "auto" takes as many as keep the links
    busy, as far as they fit (it is never the reason for a choice either). LL is for few bytes,
    where every hop counts and bandwidth does not: the lowest trees are taken where nothing else is
    wished.
    """

    trees: int | Literal["auto"] = "auto"
    min_percent: Fraction | None = None
    exact: bool = False
    max_height: int | None = None
    budget: Budget = field(default_factory=Budget)
    compact: bool | None = field(default=False, compare=False)
    instances: int | Literal["auto"] = field(default="auto", compare=False)
    protocol: Protocol | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.min_percent is not None:
            if self.trees != "auto":
                raise UnsupportedError(
                    "trees and min_percent both say how many trees per root: give one of them"
                )
            if not 0 < self.min_percent <= 100:
                raise UnsupportedError(
                    f"min_percent is {self.min_percent}: must be over 0 and at most 100"
                )
        if self.exact and (self.trees != "auto" or self.min_percent is not None):
            raise UnsupportedError("exact asks for the optimum: leave trees and min_percent away")
        limits = (
            ("max_height", self.max_height),
            ("budget: trees", self.budget.trees),
            ("budget: channels", self.budget.channels),
            ("budget: blocks", self.budget.blocks),
            ("budget: operations", self.budget.operations),
            ("instances", self.parts),
        )
        for what, limit in limits:
            if limit is not None and limit < 1:
                raise UnsupportedError(f"{what} is {limit}: must be at least 1")

    @property
    def lowest(self) -> bool:
        """Whether plans are for few bytes: the lowest trees, whatever is faster for many."""
        return self.protocol == "LL" and self.min_percent is None

    @property
    def parts(self) -> int:
        """Instances of the plans that are judged; "auto" adds more to the one that is taken."""
        return 1 if self.instances == "auto" else self.instances

    def refusal(self, forest: Forest) -> str | None:
        """Why the forest is not what is asked for, or None."""
        if self.max_height is not None and forest.height > self.max_height:
            return f"its height is {forest.height} hops, over {self.max_height}"
        most = different_trees(forest)
        if self.budget.trees is not None and most > self.budget.trees:
            return f"a root has {most} different trees, over {self.budget.trees}"
        return None


def different_trees(forest: Forest) -> int:
    """The largest number of different trees that a root has in one phase."""
    counts: dict[tuple[int, str], int] = {}
    for tree in forest.trees:
        key = (forest.orbit(tree.root), tree.phase)
        counts[key] = counts.get(key, 0) + 1
    return max(counts.values(), default=0)
