"""Request: what the caller wants made of a problem, every argument checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

from forestcoll.common import arguments
from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.compile.budget import Budget
from forestcoll.compile.formats import (
    PLACES,
    PROTOCOLS,
    TARGET_NAMES,
    Format,
    Place,
    formats_of,
    seat,
    targets_of,
)
from forestcoll.compile.problem import Problem
from forestcoll.compile.wishes import Wishes
from forestcoll.program import Protocol
from forestcoll.program.targets import PlanFormat, Target, TargetName, sms_of


@dataclass(frozen=True, slots=True)
class Request:
    """Files to make, and what the forest and the plans in them should be like.

    `sms`: multiprocessors of a GPU that may run at once; None: those of the catalogue's machine.
    `nvls`: the switches copy and add, for calls of this kind. `place`: the calls that the MSCCL++
    plan is for.
    """

    formats: tuple[Format, ...] = ("forest",)
    wishes: Wishes = field(default_factory=Wishes)
    target: TargetName = "any"
    sms: int | None = None
    nvls: Place | None = None
    place: Place | None = None

    @staticmethod
    def of(
        *,
        trees: int | Literal["auto"] = "auto",
        min_percent: Fraction | int | float | str | None = None,
        exact: bool = False,
        max_height: int | None = None,
        budget: Budget | Mapping[str, int] = Budget(),  # noqa: B008 (frozen)
        compact: bool | None = None,
        instances: int | Literal["auto"] = "auto",
        protocol: Protocol | None = None,
        sms: int | None = None,
        nvls: Place | None = None,
        place: Place | None = None,
        target: TargetName = "any",
        formats: Format | Iterable[Format] | None = None,
    ) -> Request:
        """The request of `synthesize`'s arguments; ArgumentError, UnsupportedError for bad ones."""
        percent = None if min_percent is None else arguments.percent("min_percent", min_percent)
        trees = arguments.whole_or("trees", trees, "auto")
        max_height = arguments.whole_or_none("max_height", max_height)
        instances = arguments.whole_or("instances", instances, "auto")
        budget = Budget.of(budget)
        protocol = None if protocol is None else arguments.word("protocol", protocol, PROTOCOLS)
        sms = arguments.whole_or_none("sms", sms)
        compact = None if compact is None else arguments.truth("compact", compact)
        nvls = None if nvls is None else arguments.word("nvls", nvls, PLACES)
        target = arguments.word("target", target, TARGET_NAMES)
        files = formats_of(formats, target)
        exact = arguments.truth("exact", exact)
        wishes = Wishes(trees, percent, exact, max_height, budget, compact, instances, protocol)
        return Request(files, wishes, target, sms, nvls, place)

    @property
    def forest_alone(self) -> bool:
        """Whether no plan is made of the forest."""
        return self.formats == ("forest",)

    def targets(self, problem: Problem) -> dict[PlanFormat, Target]:
        """The target of each plan format, on the problem's GPUs."""
        return targets_of(self.formats, self.target, self.multiprocessors(problem))

    def seated(self, problem: Problem) -> tuple[Request, list[str]]:
        """The request without plans whose runtimes refuse the ranks, and why; see `seat`."""
        wanted = self.targets(problem)
        left, notes = seat(wanted, problem.graph, problem.name, self.target == "any")
        kept = tuple(form for form in self.formats if form == "forest" or form in left)
        return replace(self, formats=kept), notes

    def multiprocessors(self, problem: Problem) -> int:
        """Of a GPU."""
        return self.sms or sms_of(problem.name)

    def check(self, problem: Problem) -> None:
        """PlanError, UnsupportedError where the request contradicts itself or the problem."""
        plans = [form for form in self.formats if form != "forest"]
        if problem.graph.shares and plans:
            raise PlanError(
                f"{' and '.join(plans)} cannot hold parts of different size: every rank's buffers "
                "are alike there; --format forest writes the schedule"
            )
        if self.wishes.compact and plans:
            raise UnsupportedError("compact is for the forest alone: a plan needs every tree")
        if self.nvls is None:
            return
        if self.place is not None:
            raise UnsupportedError("nvls says the place already: leave place out")
        wishes = self.wishes
        of_plans = wishes.instances not in ("auto", 1) or wishes.protocol is not None
        if wishes != Wishes() or of_plans or wishes.compact:
            raise UnsupportedError("nvls goes without other wishes: the switch leaves no choice")
