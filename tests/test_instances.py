"""As many instances as keep a GPU's links busy, no more than fit, and words where that is few."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from graphs import machine, named
from hand_forests import of_shape, proven, star

from forestcoll.compile.budget import Budget
from forestcoll.compile.formats import Format
from forestcoll.compile.search import add_blocks, search
from forestcoll.compile.synthesize import synthesize
from forestcoll.lower import lower, usage
from forestcoll.lower.limits import BLOCK, ENOUGH, LINK, hardest
from forestcoll.program import BY_TREES, Collective, Program
from forestcoll.program.targets import MSCCL, MSCCLPP, RCCL, Target
from forestcoll.schedule.forest import Forest
from forestcoll.solver import solve
from forestcoll.verify import link_loads, verify

ALL = pytest.mark.parametrize("collective", list(BY_TREES), ids=str)


def solved(name: str, collective: Collective, **settings: str) -> Forest:
    return solve(named(name, **settings), collective, 0 if collective.has_root else None)


def with_links(made: Forest, bandwidth: int) -> Forest:
    """The forest on links of that many GB/s."""
    wide = replace(made.graph, capacity=(1,) * len(made.graph.tail), unit=Fraction(bandwidth))
    return replace(made, graph=wide, bound=None)


def filled(forest: Forest, target: Target, program: Program) -> tuple[Program, str]:
    """With thread blocks enough, whatever simulated times are."""
    return search(forest, target, program, (add_blocks,))


def at_work(program: Program, forest: Forest) -> int:
    return hardest(forest, program).blocks


@ALL
@pytest.mark.parametrize("target", [MSCCLPP, MSCCL, RCCL], ids=lambda t: t.name)
def test_an_nvswitch_box_gets_the_fewest_that_keep_it_busy(
    collective: Collective, target: Target
) -> None:
    forest = solved("dgx-h100", collective)
    once = lower(forest, target.on(132))
    more, note = filled(forest, target.on(132), once)
    assert note == ""
    count = usage(more).instances
    assert count in (1, 2, 16)  # trees with 14 or 7 thread blocks per rank, and with one
    assert at_work(more, forest) * BLOCK >= 450 * LINK * ENOUGH
    if count > 1:
        half = lower(forest, target.on(132), instances=count // 2)
        assert at_work(half, forest) * BLOCK < 450 * LINK * ENOUGH
    assert link_loads(more, forest) == link_loads(once, forest)
    verify(more)


def test_nccl_takes_as_many_thread_blocks_on_an_h100() -> None:
    """16 channels for 18 NVLinks of 25 GB/s: what NCCL plans there, and so does the rule."""
    forest = solved("dgx-h100", Collective.ALLREDUCE)
    more, _ = filled(forest, MSCCLPP.on(132), lower(forest, MSCCLPP.on(132)))
    used = usage(more)
    assert (used.thread_blocks, used.busy, used.instances) == (16, 16, 16)


@pytest.mark.parametrize("target", [MSCCLPP, RCCL], ids=lambda t: t.name)
def test_slow_links_need_no_more(target: Target) -> None:
    forest = with_links(of_shape(Collective.ALLGATHER, 4, star), 8)
    once = lower(forest, target)
    more, note = filled(forest, target, once)
    assert (usage(more).thread_blocks, note) == (usage(once).thread_blocks, "")
    assert usage(more).instances == 1


@pytest.mark.parametrize(("bandwidth", "instances"), [(11, 1), (12, 2), (22, 2), (23, 4), (45, 8)])
def test_instances_are_powers_of_two(bandwidth: int, instances: int) -> None:
    """A root writes to three others at once, by one thread block: 33 GB/s are the most for it."""
    forest = with_links(of_shape(Collective.ALLGATHER, 4, star), bandwidth)
    more, note = filled(forest, MSCCLPP, lower(forest, MSCCLPP))
    assert (usage(more).instances, note) == (instances, "")


def test_what_goes_through_ports_is_moved_by_others() -> None:
    apart = with_links(of_shape(Collective.ALLGATHER, 4, star, 4), 400)
    once = lower(apart, MSCCLPP)
    assert hardest(apart, once).rate == 0
    assert filled(apart, MSCCLPP, once) == (once, "")


def test_packets_stay_as_they_are_unless_asked() -> None:
    box = machine("dgx-h100")
    kinds: tuple[Format, ...] = ("msccl-xml", "mscclpp-json")
    made = synthesize(box, "allgather", protocol="LL", formats=kinds)
    assert [used.instances for used in made.needs.values()] == [1, 1]
    asked = synthesize(box, "allgather", protocol="LL", instances=2, formats=kinds)
    assert [used.instances for used in asked.needs.values()] == [2, 2]


def test_fewer_are_taken_where_the_target_holds_no_more() -> None:
    forest = solved("dgx-a100", Collective.BROADCAST)
    narrow = replace(RCCL, channels=4)
    more, note = filled(forest, narrow, lower(forest, narrow))
    assert usage(more).instances == 4
    assert note == (
        "msccl-xml: 4 of the 9 thread blocks that 300 GB/s of a rank take (each moves some 24): "
        "with more, it takes more than the 4 channels of rccl"
    )
    few = replace(RCCL, thread_blocks=14)
    more, note = filled(forest, few, lower(forest, few))
    # 16 instances join their receivers and senders
    assert (usage(more).instances, usage(more).thread_blocks, note) == (16, 14, "")
    few = replace(RCCL, thread_blocks=8)
    more, note = filled(forest, few, lower(forest, few))
    assert usage(more).thread_blocks <= 8
    assert note.startswith("msccl-xml: ")
    assert "of the 9 thread blocks that 300 GB/s of a rank take (each moves some 24): " in note
    small = replace(MSCCLPP, thread_blocks=5)
    more, note = filled(forest, small, lower(forest, small))
    assert (usage(more).instances, usage(more).busy) == (16, 5)  # 8 have 4 at work
    assert note.endswith("(each moves some 24): no more than 5 of them have work at once")


def test_chunks_stay_few_enough_for_common_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forestcoll.lower.limits.most_chunks", lambda n: 8 * n)
    forest = solved("dgx-h100", Collective.ALLREDUCE)
    more, note = filled(forest, MSCCLPP, lower(forest, MSCCLPP))
    assert (usage(more).instances, more.ranks[0].input_chunks) == (8, 64)
    assert note.endswith(": with more, sizes are multiples of more than 64 elements")


def test_chunks_that_divide_no_power_of_two_stay_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forestcoll.lower.limits.RARE", 24)
    forest = solved("star", Collective.ALLREDUCE, gpus="3", bandwidth="450")
    more, note = filled(forest, MSCCLPP, lower(forest, MSCCLPP))
    assert (usage(more).instances, more.ranks[0].input_chunks) == (8, 24)
    assert note.endswith(": with more, sizes are multiples of more than 24 elements")


def test_synthesis_fills_every_plan_within_the_budget() -> None:
    box = machine("dgx-a100")
    made = synthesize(box, "allgather")
    assert {form: used.instances for form, used in made.needs.items()} == {
        "msccl-xml": 2,
        "mscclpp-json": 16,
    }
    assert made.needs["msccl-xml"].thread_blocks <= RCCL.thread_blocks
    assert not any("thread blocks that" in note for note in made.notes)
    tight = synthesize(box, "allgather", budget=Budget(blocks=14))
    assert max(used.thread_blocks for used in tight.needs.values()) <= 14
    assert any("thread blocks that 300 GB/s of a rank take" in note for note in tight.notes)
    fixed = synthesize(box, "allgather", instances=1)
    assert [used.instances for used in fixed.needs.values()] == [1, 1]


@pytest.mark.parametrize("collective", [Collective.ALLGATHER, Collective.REDUCE_SCATTER], ids=str)
def test_more_thread_blocks_than_can_be_waited_for(collective: Collective) -> None:
    """A switch of many GPUs: more peers than MSCCL can wait for, so those waited for come first."""
    forest = solved("star", collective, gpus="20")
    few = replace(MSCCL, dependency_blocks=24)
    program = lower(forest, few)
    assert usage(program).thread_blocks > few.dependency_blocks
    verify(program)


def test_a_rack_of_72_fits() -> None:
    """MSCCL's thread blocks of 71 peers both ways and one to copy; 128 can be waited for."""
    forest = solved("gb200-nvl72", Collective.ALLGATHER)
    assert usage(lower(forest, MSCCL.on(148))).thread_blocks == 143


def test_thread_blocks_are_joined_down_to_the_limit() -> None:
    """Six GPUs each to each: five receive, five send, and one copies."""
    forest = of_shape(Collective.ALLREDUCE, 6, star)
    tight = replace(MSCCL, channel_blocks=3)
    assert usage(proven(forest, tight, protocol="LL")).thread_blocks == 11
    assert usage(proven(forest, replace(tight, thread_blocks=6), protocol="LL")).thread_blocks == 6
