"""Plan text: a program written as a plan file, read back, compared, verified."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forestcoll.common.errors import PlanError

if TYPE_CHECKING:
    from forestcoll.compile.clock import Clock
    from forestcoll.compile.formats import Place
    from forestcoll.program import Program
    from forestcoll.program.targets import PlanFormat, Target
    from forestcoll.schedule.forest import Forest


def serve_place(program: Program, place: Place | None) -> Program:
    """The program for calls of that kind; PlanError where there is none. MSCCL's serve both."""
    from forestcoll.lower import serve

    if place is None or program.style == "fifo":
        return program
    return serve(program, in_place=place == "in-place")


def write_plan(
    program: Program,
    form: PlanFormat,
    target: Target,
    forest: Forest,
    clock: Clock,
    place: Place | None = None,
) -> str:
    """The plan's text, after it was read back, compared and verified."""
    from forestcoll import plans
    from forestcoll.verify import link_loads, verify

    with clock.stage("write"):
        in_place = None if place is None else place == "in-place"
        text = plans.dumps(program, form, target, in_place=in_place)
    with clock.stage("verify"):
        back = plans.loads(text, source=f"<{form}>", format=form)
        if back != program:
            raise PlanError(f"the {form} plan does not read back as it was written (a defect)")
        verify(back)
        link_loads(back, forest)
    return text
