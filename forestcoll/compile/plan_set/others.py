"""Plans of anybody's that take part in a plan set: read, proven, and as fast as links let them be.

Such a plan is a candidate as it is, with the sizes that its file states and for the calls that the
set is for. Where it is fastest the set has its text, or the same plan with the sizes of its range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from forestcoll import plans
from forestcoll.common.errors import PlanError
from forestcoll.common.input_limits import PLAN_BYTES
from forestcoll.common.text_file import read_text
from forestcoll.compile.budget import Budget
from forestcoll.compile.formats import Place, serve_place
from forestcoll.lower.limits import Limits, check_ranks
from forestcoll.plans import FORMATS
from forestcoll.plans.lint import Told, lint
from forestcoll.program import Collective, Program
from forestcoll.program.targets import PlanFormat, Target

if TYPE_CHECKING:
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.verify import Verified


@dataclass(frozen=True, slots=True)
class Other:
    """A plan of anybody's: its file, and the program with the set's ranks, for the set's calls.

    `text`: of the file, or empty where that is for other calls.
    """

    file: Path
    text: str
    program: Program
    verified: Verified
    graph: CapacityGraph


def read_other(
    file: Path,
    graph: CapacityGraph,
    told: tuple[Collective, int | None],
    targets: Mapping[PlanFormat, Target],
    budget: Budget,
    calls: Callable[[Program], Place | None],
) -> Other:
    """The plan in a file, proven for the ranks of `graph`, within its target and the budget.

    `told`: collective and root of the set. Raises PlanError with the file where it is no plan, is
    for something else, or is wrong.
    """
    collective, root = told
    text = read_text(file, PLAN_BYTES, PlanError)
    form = plans.detect(text, str(file))
    if form not in targets:
        has = " and ".join(FORMATS[own].title for own in targets)
        raise PlanError(f"{file}: is {FORMATS[form].title}; the set has plans in {has} alone")
    target = targets[form]
    program = plans.loads(text, str(file), form)
    own, wanted = (program.collective, program.n), (collective, len(graph.ranks))
    if own != wanted:
        raise PlanError(
            f"{file}: is for {own[0]} on {own[1]} ranks; the set is for {wanted[0]} on {wanted[1]}"
        )
    report = lint(text, str(file), target.name, told=Told(root=root), sms=target.thread_blocks)
    if not report.ok or report.verified is None:
        raise PlanError(f"{file}: not right for {target.name}: {report.findings[0]}")
    names = graph.rank_names
    own_places, both = (program.in_place, program.out_of_place), (bool(collective.phases), True)
    try:
        if program.in_switches:
            raise PlanError("switches copy or add; in a set's plans they do not")
        if FORMATS[form].both_places and own_places != both:
            raise PlanError("does not serve calls in place and out of place as the set's plans do")
        served = replace(serve_place(program, calls(program)), names=names)
        limits = Limits(budget.limit_target(target), "--with", names, 1, "it is as it is")
        check_ranks(served.ranks, limits)
        written = plans.dumps(served, form, target, in_place=calls(program) == "in-place")
    except PlanError as error:
        raise PlanError(f"{file}: {error}") from None
    offer = plans.home_of(form).offer
    same = (served.ranks, offer(written, served)[1:]) == (program.ranks, offer(text, program)[1:])
    return Other(file, text * same, served, report.verified, graph)
