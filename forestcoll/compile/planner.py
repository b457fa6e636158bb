"""Plans of a forest: programs for the targets, the fastest that a search finds, judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from forestcoll.compile.problem import Problem
from forestcoll.compile.request import Request
from forestcoll.program.targets import PlanFormat, Target

if TYPE_CHECKING:
    from forestcoll.compile.rivals import Judged
    from forestcoll.program import Program
    from forestcoll.schedule.forest import Forest
    from forestcoll.solver import Optimum

Programs = dict[PlanFormat, "Program"]


class Planner:
    """Makes the programs of one forest after the other.

    `targets`: per format the target that its program must fit. `stage`: times what is done.
    """

    def __init__(
        self,
        problem: Problem,
        targets: Mapping[PlanFormat, Target],
        wishes: Request,
        best: Optimum,
        stage: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self.problem = problem
        self.targets = targets
        self.wishes = wishes
        self.best = best
        self.stage = stage

    def hopeless(self, trees: int) -> str | None:
        """Why no target can hold so many trees per root, as far as their number tells; or None."""
        if not self.targets:
            return None
        from forestcoll.lower import hopeless

        problem, parts = self.problem, trees * self.wishes.parts
        n = len(problem.graph.ranks)
        reasons = (hopeless(t, problem.collective, n, parts) for t in self.targets.values())
        return next((reason for reason in reasons if reason), None)

    def plan(self, forest: Forest, target: Target) -> Program:
        """The program for one target; PlanError where it cannot hold it."""
        from forestcoll.lower import lower

        wishes = self.wishes
        return lower(forest, target, instances=wishes.parts, protocol=wishes.protocol)

    def lower(self, forest: Forest) -> Programs:
        """Those for all targets; PlanError where one cannot hold it."""
        with self.stage("lower"):
            return {form: self.plan(forest, target) for form, target in self.targets.items()}

    def search(self, forest: Forest, programs: Programs) -> tuple[Programs, list[str]]:
        """The fastest programs that these lead to, and where thread blocks do not suffice."""
        if self.wishes.instances != "auto" or not programs:
            return programs, []
        from forestcoll.compile.search import search

        best, notes = {}, []
        with self.stage("lower"):
            for form, program in programs.items():
                best[form], note = search(forest, self.targets[form], program)
                notes += [note] if note else []
        return best, notes

    def judge(self, forest: Forest, programs: Programs) -> Judged:
        """The fastest programs that these lead to, with what they reach."""
        from forestcoll.compile.rivals import judge

        programs, short = self.search(forest, programs)
        with self.stage("simulate"):
            return judge(forest, programs, short, self.best.algbw, self.problem.links)
