"""Switches that copy and add: lowering to them, and what the pipeline says of them.

What is said of wrong ones: rows/, by test_spoilt.py and test_execute_cpu.py; refusals/lower.txt.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
from command_line import draw
from graphs import able, machine, named
from graphs import star as star_graph
from hand_forests import instructions
from test_lowerings import validate

from forestcoll.compile.in_switches import nvls_algbw
from forestcoll.compile.optimum import optimum
from forestcoll.compile.problem import Problem
from forestcoll.compile.synthesize import synthesize
from forestcoll.execute import cpu
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import lower
from forestcoll.lower.nvls import lower_nvls, most_algbw
from forestcoll.program import FABRIC, Buffer, Collective, Op, Ref, Switch
from forestcoll.program.targets import MSCCLPP
from forestcoll.schedule import forest_file
from forestcoll.schedule.forest import Forest
from forestcoll.solver import multicast
from forestcoll.study import predict
from forestcoll.topology import catalog
from forestcoll.ui.report import synthesis
from forestcoll.verify import link_loads

ALLREDUCE = Collective.ALLREDUCE
DONE = (ALLREDUCE, Collective.ALLGATHER, Collective.BROADCAST)


@cache
def forest(collective: Collective, graph: CapacityGraph | None = None) -> Forest:
    """Trees through the switch, of a DGX H100 unless another graph is given."""
    root = 0 if collective.has_root else None
    trees = multicast.forest(graph or named("dgx-h100"), collective, root, "dgx-h100-1")
    assert trees is not None
    return trees


# --- lowering


def test_each_rank_does_its_share_in_slices() -> None:
    program = lower_nvls(forest(ALLREDUCE), MSCCLPP)
    steps = [(r, i) for r, *_, i in program.instructions() if i.op in FABRIC]
    assert [(r, i.part) for r, i in steps] == [(r, (k, 8)) for r in range(8) for k in range(8)]
    assert {(r, i.op, i.src, i.dst, i.switches) for r, i in steps} == {
        (r, Op.FABRIC_REDUCE_STORE, (own,), (own,), (0, 0))
        for r in range(8)
        for own in [Ref(Buffer.INPUT, r, 1)]
    }


@pytest.mark.parametrize(
    ("name", "blocks"), [("dgx-h100", 8), ("dgx-b200", 16), ("gb200-nvl72", 8)]
)
def test_faster_links_have_more_thread_blocks(name: str, blocks: int) -> None:
    """As many as MSCCL++'s own kernel takes, but at 72 GPUs, whose channels take five anyway."""
    trees = forest(ALLREDUCE, named(name))
    program = lower_nvls(trees, MSCCLPP)
    assert {len(rank.thread_blocks) for rank in program.ranks} == {blocks}
    parts = {i.part for i in instructions(program) if i.op in FABRIC}
    assert parts == {(k, blocks) for k in range(blocks)}
    assert {len(r.thread_blocks) for r in lower_nvls(trees, MSCCLPP, blocks=12).ranks} == {12}
    few = lower_nvls(trees, replace(MSCCLPP, thread_blocks=6))
    assert {len(rank.thread_blocks) for rank in few.ranks} == {6}


def test_out_of_place_two_buffers_are_bound() -> None:
    everyone = tuple(range(8))
    program = lower_nvls(forest(ALLREDUCE), MSCCLPP, in_place=False)
    assert {block.switches for rank in program.ranks for block in rank.thread_blocks} == {
        (Switch(everyone, Buffer.INPUT), Switch(everyone, Buffer.OUTPUT))
    }


@pytest.mark.parametrize("collective", DONE)
def test_groups_wider_than_a_thread_block_meet_at_barriers(collective: Collective) -> None:
    trees = forest(collective, able(star_graph(*[100] * 20)))
    program = lower_nvls(trees, MSCCLPP)
    validate(program, MSCCLPP, None)
    link_loads(program, trees)
    assert Op.BARRIER in {i.op for i in instructions(program)}
    assert cpu.run(program, 40_000, iterations=3).wrong == 0


def test_what_the_switch_can_give_is_less_than_the_trees_say() -> None:
    assert forest(ALLREDUCE).algbw == 450
    assert [most_algbw(forest(collective)) for collective in DONE] == [400, 450, 450]


# --- the pipeline


def test_the_pipeline_makes_plans_for_the_switch() -> None:
    inside, outside = (
        synthesize(
            "dgx-h100",
            "allreduce",
            nvls=place,
            target="mscclpp",
            formats=("forest", "mscclpp-json"),
        )
        for place in ("in-place", "out-of-place")
    )
    assert inside.forest.algbw == 450
    assert inside.programs["mscclpp-json"].in_place
    assert any("sm_90" in note and "400.0 GB/s at most" in note for note in inside.notes)
    assert not any("copy and add on the" in note for note in inside.notes)
    assert outside.programs["mscclpp-json"].out_of_place


def test_plans_without_the_switch_are_not_promised_its_speed() -> None:
    """450 GB/s is what the switch makes of an allreduce; GPUs take in 14/8 of the data for it."""
    made = synthesize("dgx-h100", "allreduce", formats=("forest", "mscclpp-json"))
    plain = Fraction(1800, 7)
    assert (made.forest.algbw, made.optimum.bound.algbw, made.in_switches) == (plain, plain, 450)
    assert not any("copy and add" in note for note in made.notes)
    text = draw(synthesis.schedule(made, {}, {}))
    for name in ("algbw", "bound"):
        assert re.search(rf"{name} +1800/7 \(257\.143\) GB/s *\n", text)
    assert "450 GB/s where they copy and add (NVLS, SHARP); here the GPUs do" in text
    assert "all 8 GPUs together: 3600 GB/s in, for 14 times the data" in text
    alone = synthesize("dgx-h100", "allreduce", formats=("forest",))
    assert any("but those of --nvls" in note for note in alone.notes)


@pytest.mark.parametrize(("boxes", "plain", "switches"), [(1, "1800/7", 450), (2, "800/3", 400)])
def test_the_optimum_leads_with_what_plans_reach(boxes: int, plain: str, switches: int) -> None:
    topology = catalog.load("dgx-h100", {"boxes": boxes})
    best = optimum(topology, "allreduce")
    assert best.algbw == best.bound.algbw == Fraction(plain)
    assert best.in_switches is not None
    assert best.in_switches.algbw == switches
    assert optimum(topology, "allreduce", fabric=False).in_switches is None


def test_no_faster_in_the_switch() -> None:
    broadcast = optimum("dgx-h100", "broadcast")
    assert (broadcast.algbw, broadcast.in_switches) == (450, None)
    assert nvls_algbw(Problem.of(machine("dgx-h100"), Collective.REDUCE, 0)) is None


def test_predictions_know_who_copies_and_adds(tmp_path: Path) -> None:
    path = tmp_path / "x.forest.json"
    path.write_text(forest_file.dumps(forest(ALLREDUCE)))
    plain = Fraction(1800, 7)
    for make, algbw, best in ((lower, plain, plain), (lower_nvls, 400, 450)):
        program = make(forest(ALLREDUCE), MSCCLPP)
        assert predict.by_forest(program, path).algbw == algbw
        assert predict.by_topology(program, machine("dgx-h100")).algbw == best
