"""Formats: what can be asked for, whose limits each keeps, and a program written as a plan file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from forestcoll import plans
from forestcoll.common import arguments
from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.program import Protocol
from forestcoll.program.targets import (
    DEFAULT_SMS,
    NARROWEST,
    PlanFormat,
    Target,
    TargetName,
    runtimes,
)

if TYPE_CHECKING:
    from forestcoll.common.clock import Clock
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.program import Program
    from forestcoll.schedule.forest import Forest
    from forestcoll.solver.alltoall.routes import Routes
    from forestcoll.verify import Verified


Format = Literal["forest"] | PlanFormat
Place = Literal["in-place", "out-of-place"]

PROTOCOLS: tuple[Protocol, ...] = ("Simple", "LL", "LL128")
PLACES: tuple[Place, ...] = ("in-place", "out-of-place")
TARGET_NAMES: tuple[TargetName, ...] = get_args(TargetName)

FORMATS: dict[Format, str] = {
    "forest": ".forest.json",
    **{name: form.suffix for name, form in plans.FORMATS.items()},
}
"""Suffix of the file of each format."""


def formats_of(formats: Any, target: TargetName, first: str = "forest") -> tuple[Any, ...]:
    """The formats that are asked for, or forest (routes: `first`) and what the target reads."""
    read = runtimes(target)
    forms = (first, *plans.FORMATS)
    if formats is None:
        return tuple(form for form in forms if form == first or form in read)
    asked = arguments.words("format", formats, forms)
    for form in asked:
        if form != first and form not in read:
            raise UnsupportedError(f"target {target} reads {', '.join(read)}, not {form}")
    return asked


def targets_of(
    formats: Iterable[Format], target: TargetName, sms: int = DEFAULT_SMS
) -> dict[PlanFormat, Target]:
    """The target whose limits each plan format has to keep, on a GPU with `sms` multiprocessors."""
    runtime_targets = NARROWEST | runtimes(target)
    return {form: runtime_targets[form].on(sms) for form in formats if form in runtime_targets}


def seat(
    targets: Mapping[PlanFormat, Target], graph: CapacityGraph, name: str, any_target: bool
) -> tuple[dict[PlanFormat, Target], list[str]]:
    """The targets whose runtimes take the ranks as boxes hold them, and why others are left out.

    PlanError where a runtime that was asked for, or every one, does not.
    """
    if not any(target.nics for target in targets.values()):
        return dict(targets), []
    from forestcoll.plans.rules import check_group

    names = [graph.names[node] for node in graph.ranks]
    number = graph.rank_of
    links = graph.ends
    between = [ends for ends in links if graph.box(ends[0]) != graph.box(ends[1])]
    far = {number[node] for ends in between for node in ends if node in number}
    left: dict[PlanFormat, Target] = {}
    notes = []
    for form, target in targets.items():
        try:
            check_group(target, names, far, name)
            left[form] = target
        except PlanError as error:
            if not any_target or len(targets) == 1:
                raise
            notes.append(f"no {plans.FORMATS[form].title}: {error}")
    return left, notes


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
    made_from: Forest | Routes | None,
    clock: Clock,
    place: Place | None = None,
) -> str:
    """The plan's text, after it was read back, compared and verified."""
    from forestcoll import plans
    from forestcoll.lower.limits import ALONE
    from forestcoll.schedule.forest import Forest
    from forestcoll.verify import link_loads, verify

    with clock.stage("write"):
        in_place = None if place is None else place == "in-place"
        text = plans.dumps(program, form, target, in_place=in_place)
    with clock.stage("verify"):
        try:
            back = plans.loads(text, source=f"<{form}>", format=form)
        except PlanError as error:
            raise PlanError(f"the {form} plan cannot be read back: {error}; {ALONE}") from None
        if back != program:
            raise PlanError(f"the {form} plan does not read back as it was written (a defect)")
        verified = verify(back)
        if isinstance(made_from, Forest):
            link_loads(back, made_from)
        elif made_from is not None:
            check_routes(made_from, verified)
    return text


def check_routes(routes: Routes, verified: Verified) -> None:
    """PlanError unless a proven program moves the routes' shares between ranks, no more."""
    from forestcoll.lower.alltoall.filling import shares_of

    shares = shares_of(routes)
    carried = {pair: load for pair, load in verified.loads.items() if load}
    if carried != shares:
        pair = next(p for p in sorted(shares | carried) if shares.get(p) != carried.get(p))
        raise PlanError(
            f"the plan moves {carried.get(pair, 0)} of the data from rank {pair[0]} to rank "
            f"{pair[1]}, the routes {shares.get(pair, 0)}"
        )
