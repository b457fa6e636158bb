"""Plans of a forest: programs for the targets, spread over thread blocks, judged, refined."""

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

    def fill(self, forest: Forest, programs: Programs) -> tuple[Programs, list[str]]:
        """The programs with as many instances as keep the links busy, and where they do not."""
        if self.wishes.instances != "auto" or not programs:
            return programs, []
        from forestcoll.lower import fill

        found: Programs = {}
        notes = []
        with self.stage("lower"):
            for form, program in programs.items():
                found[form], note = fill(forest, self.targets[form], program)
                notes += [note] if note else []
        return found, notes

    def refine(self, forest: Forest, programs: Programs, orders: bool = True) -> Programs:
        """The filled programs in smaller pieces, where short calls are faster for it.

        `orders`: also in the best order of equal messages.
        """
        if self.wishes.instances != "auto" or not programs:
            return programs
        from forestcoll.lower import refine

        with self.stage("lower"):
            return {f: refine(forest, self.targets[f], p, orders) for f, p in programs.items()}

    def judge(self, forest: Forest, programs: Programs) -> Judged:
        """The programs filled, and with a root refined, with what they reach."""
        programs, short = self.fill(forest, programs)
        if self.problem.collective.rooted:
            programs = self.refine(forest, programs)
        return self._played(forest, programs, short)

    def finish(self, forest: Forest, judged: Judged) -> Judged:
        """The judged programs refined, where that was not needed to judge them."""
        if self.problem.collective.rooted:
            return judged
        return self._again(forest, judged, self.refine(forest, judged.programs, orders=False))

    def order(self, forest: Forest, judged: Judged) -> Judged:
        """The finished programs of the forest that is taken, equal messages in the best order."""
        if self.wishes.instances != "auto":
            return judged
        from forestcoll.lower import reorder

        with self.stage("lower"):
            programs = {f: reorder(forest, self.targets[f], p) for f, p in judged.programs.items()}
        return self._again(forest, judged, programs)

    def _again(self, forest: Forest, judged: Judged, programs: Programs) -> Judged:
        """The same with these programs, played where they are others."""
        if all(program is judged.programs[form] for form, program in programs.items()):
            return judged
        return self._played(forest, programs, judged.notes)

    def _played(self, forest: Forest, programs: Programs, notes: list[str]) -> Judged:
        from forestcoll.compile.rivals import judge

        with self.stage("simulate"):
            return judge(forest, programs, notes, self.best.algbw, self.problem.links)
