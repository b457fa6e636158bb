"""Notes: what a user should know of a schedule besides its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from forestcoll.topology.numbers import percent

if TYPE_CHECKING:
    from forestcoll.program import Program
    from forestcoll.program.targets import PlanFormat
    from forestcoll.schedule.forest import Forest
    from forestcoll.solver import Optimum


def forest_notes(forest: Forest, best: Optimum, *, plain: bool = True) -> list[str]:
    """`plain`: the figures are not those of plans."""
    notes = []
    if plain and forest.graph.copies:
        notes.append(
            "algbw counts copies and sums in the switches (NVLS) once; plans copy and add on the "
            "GPUs, but those of --nvls"
        )
    if best.bound.algbw > forest.algbw and forest.trees_per_root == best.trees_per_root:
        share = percent(forest.algbw / best.bound.algbw)
        notes.append(f"proven within {share} of any schedule")
    if best.note:
        notes.append(best.note)
    return notes


def plan_notes(programs: Mapping[PlanFormat, Program]) -> list[str]:
    """What to know of plans of packets, and of those that ports allow for one kind of calls."""
    program = programs.get("mscclpp-json")
    if program is None:
        return []
    if program.double_scratch:
        return _packet_notes(program)
    if program.in_place and program.out_of_place:
        return []
    if program.in_place:
        return ["the MSCCL++ plan serves calls in place only (--place out-of-place: the others)"]
    return [
        "the MSCCL++ plan serves calls out of place only: its ports read the input from where its "
        "allocation begins (--place in-place: the others)"
    ]


def _packet_notes(program: Program) -> list[str]:
    notes = [
        f"the MSCCL++ plan is of packets (LL), for up to {program.max_bytes >> 10} KiB; all "
        "ranks must launch all their plans in one order"
    ]
    if not program.in_place:
        notes.append("it serves out-of-place calls only: sums on their way lie in the output")
    return notes
