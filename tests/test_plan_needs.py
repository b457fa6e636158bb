"""What plans take of a runtime: no more thread blocks or channels than plain ones, or for speed."""

from __future__ import annotations

import pytest
from stored_schedules import SCHEDULES

import forestcoll.lower
from forestcoll import plans
from forestcoll.compile.search import add_blocks, search
from forestcoll.lower import lower, usage
from forestcoll.program import Program
from forestcoll.program.targets import MSCCLPP, RCCL, sms_of
from forestcoll.schedule import forest_file
from forestcoll.schedule.forest import Forest
from forestcoll.verify import simulate

pytestmark = pytest.mark.usefixtures("links_alone")

SIZES = (10**9, 64 * 10**6)
PLANS = [
    (machine, f"{collective}.{suffix}")
    for suffix in ("msccl.xml", "mscclpp.json")
    for machine in ("dgx-a100-2", "dgx-h100-1", "dgx1-v100-1", "mi250-1")
    for collective in ("allgather", "allreduce", "reduce")
]
"""Boxes, a switch, two meshes; the other collectives are mirrors of those taken."""


def plain(forest: Forest, style: str, machine: str, patch: pytest.MonkeyPatch) -> Program:
    """The forest's plan level by level, or of whole trees, with as many instances as rates ask."""
    patch.setattr(forestcoll.lower, "bulk_protocol", lambda *_: None)
    target = (RCCL if style == "fifo" else MSCCLPP).on(sms_of(machine))
    return search(forest, target, lower(forest, target), (add_blocks,))[0]


def times(program: Program, forest: Forest) -> list[float]:
    bands = [simulate.band(program, forest, size) for size in SIZES]
    return [time for band in bands for time in (band.fifo, band.fair)]


@pytest.mark.parametrize(("machine", "file"), PLANS)
def test_more_thread_blocks_or_channels_are_taken_only_for_speed(
    machine: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SCHEDULES / machine
    forest = forest_file.load(folder / f"{file.split('.')[0]}.forest.json")
    program = plans.read_plan(folder / file)
    before = plain(forest, program.style, machine.rpartition("-")[0], monkeypatch)
    old, new = usage(before), usage(program)
    if new.thread_blocks > old.thread_blocks or new.channels > old.channels:
        pairs = zip(times(program, forest), times(before, forest), strict=True)
        assert min(a / b for a, b in pairs) < 0.95, (old, new)
    assert new.steps <= 64
