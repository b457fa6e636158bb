"""Switches that copy and add: lowering to them, wrong uses, plans that carry and run them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import programs as pg
import pytest
from click.testing import CliRunner
from command_line import draw
from programs import inp, out

from forestcoll import plans
from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.compile.in_switches import nvls_algbw
from forestcoll.compile.optimum import optimum
from forestcoll.compile.problem import Problem, capacity_graph, parse_root
from forestcoll.compile.synthesize import synthesize
from forestcoll.execute import cpu
from forestcoll.lower import lower
from forestcoll.lower.nvls import lower_nvls, most_algbw
from forestcoll.plans.lint import lint
from forestcoll.program import (
    FABRIC,
    Buffer,
    Collective,
    Instruction,
    Op,
    Pipeline,
    Program,
    Switch,
    ThreadBlock,
)
from forestcoll.program.targets import MSCCL, MSCCLPP
from forestcoll.schedule import forest_file
from forestcoll.schedule.forest import Forest
from forestcoll.solver import multicast
from forestcoll.study import predict
from forestcoll.topology import Topology, catalog, loads_topology
from forestcoll.ui import cli
from forestcoll.ui.report import synthesis
from forestcoll.verify import link_loads, verify

DONE = (Collective.ALLREDUCE, Collective.ALLGATHER, Collective.BROADCAST)


@cache
def machine(name: str = "dgx-h100", boxes: int = 1) -> Topology:
    return catalog.load(name, {"boxes": str(boxes)})


@cache
def forest(collective: Collective, name: str = "dgx-h100", boxes: int = 1) -> Forest:
    topology = machine(name, boxes)
    graph = capacity_graph(topology)
    root = parse_root(graph, collective, None)
    found = multicast.forest(graph, collective, root, topology.name)
    assert found is not None
    return found


def star(n: int, collective: Collective) -> Forest:
    """n GPUs around one switch that copies and adds."""
    text = f"""
format: forestcoll.topology/1
name: star
nodes:
  gpu{{0..{n - 1}}}: {{kind: gpu}}
  switch: {{kind: switch, multicast: true, aggregation: true}}
links:
  - {{src: "gpu{{0..{n - 1}}}", dst: switch, bandwidth: 100}}
"""
    graph = capacity_graph(loads_topology(text))
    root = parse_root(graph, collective, None)
    found = multicast.forest(graph, collective, root, "star")
    assert found is not None
    return found


# --- lowering


def test_each_rank_does_its_share_in_slices() -> None:
    program = lower_nvls(forest(Collective.ALLREDUCE), MSCCLPP)
    for r, rank in enumerate(program.ranks):
        found = [
            i
            for block in rank.thread_blocks
            for i in block.steps
            if isinstance(i, Instruction) and i.op in FABRIC
        ]
        assert [i.part for i in found] == [(k, 8) for k in range(8)]
        assert {(i.op, i.src, i.dst, i.switches) for i in found} == {
            (Op.FABRIC_REDUCE_STORE, (inp(r),), (inp(r),), (0, 0))
        }


@pytest.mark.parametrize(
    ("name", "settings", "blocks"),
    [("dgx-h100", {}, 8), ("dgx-b200", {}, 16), ("gb200-nvl72", {}, 8)],
)
def test_faster_links_have_more_thread_blocks(
    name: str, settings: dict[str, str], blocks: int
) -> None:
    """As many as MSCCL++'s own kernel takes, but at 72 GPUs, whose channels take five anyway."""
    topology = catalog.load(name, settings)
    graph = capacity_graph(topology)
    trees = multicast.forest(graph, Collective.ALLREDUCE, None, topology.name)
    assert trees is not None
    program = lower_nvls(trees, MSCCLPP)
    assert {len(rank.thread_blocks) for rank in program.ranks} == {blocks}
    parts = {i.part for *_, i in program.instructions() if i.op in FABRIC}
    assert parts == {(k, blocks) for k in range(blocks)}
    assert {len(r.thread_blocks) for r in lower_nvls(trees, MSCCLPP, blocks=12).ranks} == {12}
    few = lower_nvls(trees, replace(MSCCLPP, thread_blocks=6))
    assert {len(rank.thread_blocks) for rank in few.ranks} == {6}


def test_out_of_place_two_buffers_are_bound() -> None:
    everyone = tuple(range(8))
    program = lower_nvls(forest(Collective.ALLREDUCE), MSCCLPP, in_place=False)
    assert {block.switches for rank in program.ranks for block in rank.thread_blocks} == {
        (Switch(everyone, Buffer.INPUT), Switch(everyone, Buffer.OUTPUT))
    }


@pytest.mark.parametrize("collective", DONE)
def test_groups_wider_than_a_thread_block_meet_at_barriers(collective: Collective) -> None:
    trees = star(20, collective)
    program = lower_nvls(trees, MSCCLPP)
    verify(program)
    link_loads(program, trees)
    assert {i.op for *_, i in program.instructions()} >= {Op.BARRIER}
    assert max(len(b.channels) for r in program.ranks for b in r.thread_blocks) <= 16
    assert plans.loads(plans.dumps(program, "mscclpp-json", MSCCLPP), "t") == program
    assert cpu.run(program, 40_000, iterations=3).wrong == 0


def test_what_the_switch_can_give_is_less_than_the_trees_say() -> None:
    assert forest(Collective.ALLREDUCE).algbw == 450
    assert most_algbw(forest(Collective.ALLREDUCE)) == 400
    assert most_algbw(forest(Collective.ALLGATHER)) == 450
    assert most_algbw(forest(Collective.BROADCAST)) == 450


def test_what_no_switch_does_is_said() -> None:
    with pytest.raises(PlanError, match=r"every tree to be one hop through it, all GPUs in one NV"):
        lower_nvls(forest(Collective.ALLREDUCE, boxes=2), MSCCLPP)
    for collective in (Collective.REDUCE_SCATTER, Collective.REDUCE):
        with pytest.raises(PlanError, match=r"only where it stores the sum at all ranks"):
            lower_nvls(forest(collective), MSCCLPP)
    with pytest.raises(PlanError, match=r"msccl has no operations that copy and add in switches"):
        lower_nvls(forest(Collective.ALLREDUCE), MSCCL)
    made = forest(Collective.ALLREDUCE)
    for field, word, phase in (
        ("aggregation", "aggregation", "reduce"),
        ("multicast", "multicast", "broadcast"),
    ):
        graph = replace(made.graph, **{field: (False,) * len(made.graph.names)})
        text = rf"box0/nvswitch has no {word}, which the {phase} tree of box0/gpu0 needs"
        with pytest.raises(PlanError, match=text):
            lower_nvls(replace(made, graph=graph), MSCCLPP)


# --- what the check finds


def without(program: Program, ops: set[Op], where: slice = slice(None)) -> Program:
    """The program with nops for these operations, in some of each thread block's steps."""
    for r, b, s, i in list(program.instructions()):
        steps = range(len(program.ranks[r].thread_blocks[b].steps))
        if i.op in ops and s in steps[where]:
            program = pg.edit(program, r, b, s, op=Op.NOP, channels=())
    return program


def test_inputs_must_be_there_and_outputs_free() -> None:
    spoilt = without(pg.fabric_allreduce(), {Op.RELAXED_SIGNAL, Op.RELAXED_WAIT})
    with pytest.raises(
        PlanError, match=r"race: .* \(fabric_reduce_store\) uses .* still belong to"
    ):
        verify(spoilt)


def test_a_rank_must_not_end_before_the_others_have_stored() -> None:
    spoilt = without(pg.fabric_allgather(), {Op.SIGNAL, Op.WAIT})
    with pytest.raises(
        PlanError, match=r"race: .* \(fabric_store\) may still use .* launch is over"
    ):
        verify(spoilt)


def test_shares_must_not_overlap() -> None:
    spoilt = pg.edit(pg.fabric_allreduce(), 0, 0, 3, src=(inp(1, 2),), dst=(inp(1, 2),))
    with pytest.raises(PlanError, match=r"race: .*fabric_reduce_store.*both use"):
        verify(spoilt)


def test_sums_in_the_switch_count_everybody_once() -> None:
    twice = pg.insert(pg.fabric_allreduce(), 0, 0, 4, pg.do(Op.NOP))
    step = twice.ranks[0].thread_blocks[0].steps[3]
    twice = pg.insert(twice, 0, 0, 5, step)
    with pytest.raises(PlanError, match=r"rank 0 would count twice"):
        verify(twice)


def edit_block(program: Program, **fields: Any) -> Program:
    block = program.ranks[0].thread_blocks[0]
    return pg.with_block(program, 0, 0, replace(block, **fields))


BAD: list[tuple[Program, str, str]] = [
    (
        edit_block(pg.fabric_allgather(), switches=()),
        r"switch 0; the thread block has 0",
        r"switch 0; the thread block has 0",
    ),
    (
        edit_block(pg.fabric_allgather(), switches=(Switch((1, 2), Buffer.OUTPUT),)),
        r"switch 0 has the group \[1, 2\]; it must be this rank and others",
        r"switch 0 has the group \[1, 2\]",
    ),
    (
        edit_block(pg.fabric_allgather(), switches=(Switch((0, 7), Buffer.OUTPUT),)),
        r"switch 0 has the group \[0, 7\] of 3 ranks",
        r"switch 0 has the group \[0, 7\] of 3 ranks",
    ),
    (
        edit_block(pg.fabric_allgather(), switches=(Switch((0, 1), Buffer.OUTPUT),)),
        r"of ranks 0, 1, but rank 1 has no such switch",
        "a switch to the output of ranks 0, 1, but rank 1 has no such switch",
    ),
    (
        pg.edit(pg.fabric_allgather(), 0, 0, 3, dst=(inp(0, 2),)),
        r"the input through a switch to the output",
        "the input through a switch to the output",
    ),
    (
        pg.edit(pg.fabric_allgather(), 0, 0, 3, switches=()),
        r"0 switches; it takes 1",
        "0 switches; it takes 1",
    ),
    (
        pg.edit(pg.fabric_allgather(), 0, 0, 3, dst=(out(5, 2),)),
        r"2 chunks at offset 5 of rank",
        "2 chunks at offset 5 of rank 0's output, which has 6 chunks",
    ),
]


@pytest.mark.parametrize(("program", "proof", "writer"), BAD)
def test_wrong_switches_are_named(program: Program, proof: str, writer: str) -> None:
    with pytest.raises(PlanError, match=proof):
        verify(program)
    with pytest.raises(PlanError, match=writer):
        plans.dumps(program, "mscclpp-json")


@pytest.mark.parametrize("number", [0, 1, 2, 4, 5, 6])
def test_the_engine_looks_before_it_runs(number: int) -> None:
    with pytest.raises(PlanError):
        cpu.run(BAD[number][0], 4096)


def test_more_ranks_than_the_engine_adds_at_once() -> None:
    program = pg.fabric_allgather(81, 1)
    with pytest.raises(UnsupportedError, match=r"81 sources; this engine adds at most 80"):
        cpu.run(program, 81 * 4)


# --- plans


def test_plans_name_the_switch_once_a_rank() -> None:
    program = lower_nvls(forest(Collective.ALLREDUCE), MSCCLPP)
    plan = json.loads(plans.dumps(program, "mscclpp-json", MSCCLPP))
    assert plan["inplace"] is True
    gpu = plan["gpus"][3]
    assert [c for c in gpu["channels"] if c["channel_type"] == "switch"] == [
        {
            "channel_type": "switch",
            "buffer_type": "i",
            "rank_groups": [{"size": 8, "ranks": list(range(8))}],
        }
    ]
    block = gpu["threadblocks"][2]
    assert block["channels"][-1] == {"channel_type": "switch", "channel_ids": [0]}
    assert [op for op in block["ops"] if op["name"] == "glres"] == [
        {
            "name": "glres",
            "channel_type": "switch",
            "src_buff": [{"switch_channel_id": 0, "index": 3, "size": 1}],
            "dst_buff": [{"switch_channel_id": 0, "index": 3, "size": 1}],
            "tbg_info": {"tb_id": 2, "tbg_size": 8},
        }
    ]


def test_a_switch_plan_of_the_dsl_is_read() -> None:
    """Several switch channels that are alike, one a thread block, as its instances make them."""
    text = plans.dumps(pg.fabric_allreduce(), "mscclpp-json")
    plan = json.loads(text)
    del plan["forestcoll"]
    for gpu in plan["gpus"]:
        gpu["channels"].append(gpu["channels"][-1])
        gpu["threadblocks"][0]["channels"][-1]["channel_ids"] = [1]
        gpu["threadblocks"][0]["ops"][3]["reduce_op"] = "sum"
    back = plans.loads(json.dumps(plan), "t")
    assert back.ranks == pg.fabric_allreduce().ranks
    verify(back)
    assert cpu.run(back, 4096).wrong == 0


def test_ranks_may_list_a_switch_in_any_order() -> None:
    """The runtime sets it up at the lowest rank, wherever that stands."""
    plan = json.loads(plans.dumps(pg.fabric_allreduce(), "mscclpp-json"))
    plan["gpus"][1]["channels"][-1]["rank_groups"][0]["ranks"] = [2, 0, 1]
    text = json.dumps(plan)
    assert plans.loads(text, "t") == pg.fabric_allreduce()
    assert lint(text, "t", "mscclpp").ok
    plan["gpus"][1]["channels"][-1]["rank_groups"][0]["ranks"] = [2, 1, 1]
    with pytest.raises(PlanError, match=r"joins ranks \[2, 1, 1\]"):
        plans.loads(json.dumps(plan), "t")


WRONG: list[tuple[Any, str]] = [
    (lambda op: op["src_buff"][0].update(switch_channel_id=1), r"switch_channel_id"),
    (
        lambda op: op["src_buff"][0].pop("switch_channel_id"),
        r"names no buffer; it takes switch_channel",
    ),
    (
        lambda op: op.update(channel_type="memory"),
        r"glres\) works over switch channels, not 'memory'",
    ),
    (lambda op: op["dst_buff"].append(op["dst_buff"][0]), r"2 entries in dst_buff; it takes 1"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_wrong_switch_plans_are_refused(change: Any, message: str) -> None:
    plan = json.loads(plans.dumps(pg.fabric_allreduce(), "mscclpp-json"))
    change(plan["gpus"][0]["threadblocks"][0]["ops"][3])
    with pytest.raises(PlanError, match=message):
        plans.loads(json.dumps(plan), "t")


def test_too_many_switches_are_not_written() -> None:
    program = pg.fabric_allgather()
    ranks = tuple(
        replace(
            rank,
            thread_blocks=tuple(replace(b, switches=b.switches * 17) for b in rank.thread_blocks),
        )
        for rank in program.ranks
    )
    with pytest.raises(PlanError, match="17 switches"):
        plans.dumps(replace(program, ranks=ranks), "mscclpp-json")


def test_switches_work_slice_by_slice_in_pipelines() -> None:
    program = pg.fabric_allreduce()
    for r, rank in enumerate(program.ranks):
        block: ThreadBlock = rank.thread_blocks[0]
        step = block.steps[3]
        assert isinstance(step, Instruction)
        steps = (*block.steps[:3], Pipeline((step,), 2, 64), *block.steps[4:])
        program = pg.with_block(program, r, 0, replace(block, steps=steps))
    verify(program)
    assert plans.loads(plans.dumps(program, "mscclpp-json"), "t") == program
    assert cpu.run(program, 5000).wrong == 0


# --- the pipeline


def test_the_pipeline_makes_plans_for_the_switch() -> None:
    made = synthesize(
        machine(),
        "allreduce",
        nvls="in-place",
        target="mscclpp",
        formats=("forest", "mscclpp-json"),
    )
    assert made.forest.algbw == 450
    assert made.programs["mscclpp-json"].in_place
    assert any("sm_90" in note and "400.0 GB/s at most" in note for note in made.notes)
    assert not any("copy and add on the" in note for note in made.notes)
    out_of_place = synthesize(
        machine(), "allreduce", nvls="out-of-place", target="mscclpp", formats=("mscclpp-json",)
    )
    assert out_of_place.programs["mscclpp-json"].out_of_place


def test_plans_without_the_switch_are_not_promised_its_speed() -> None:
    """450 GB/s is what the switch makes of an allreduce; GPUs take in 14/8 of the data for it."""
    made = synthesize(machine(), "allreduce", formats=("forest", "mscclpp-json"))
    plain = Fraction(1800, 7)
    assert (made.forest.algbw, made.optimum.bound.algbw, made.in_switches) == (plain, plain, 450)
    assert not any("copy and add" in note for note in made.notes)
    text = draw(synthesis.schedule(made, {}, {}))
    assert re.search(r"algbw +1800/7 \(257\.143\) GB/s *\n", text)
    assert re.search(r"bound +1800/7 \(257\.143\) GB/s *\n", text)
    assert "450 GB/s where they copy and add (NVLS, SHARP); here the GPUs do" in text
    assert "all 8 GPUs together: 3600 GB/s in, for 14 times the data" in text
    alone = synthesize(machine(), "allreduce", formats=("forest",))
    assert any("but those of --nvls" in note for note in alone.notes)


def test_the_optimum_leads_with_what_plans_reach() -> None:
    """What switches could do stands behind it, with the plans that have them do it, if any."""
    for boxes, plain, switches, nvls in (
        (1, Fraction(1800, 7), 450, "MSCCL++ plans of --nvls reach 400 GB/s"),
        (
            2,
            Fraction(800, 3),
            400,
            "no plan does so here: --nvls needs all GPUs on one such switch",
        ),
    ):
        topology = machine(boxes=boxes)
        best = optimum(topology, "allreduce")
        assert best.algbw == best.bound.algbw == plain
        assert best.in_switches is not None
        assert best.in_switches.algbw == switches
        assert optimum(topology, "allreduce", fabric=False).in_switches is None
        done = CliRunner().invoke(
            cli.cli, ["optimum", "-t", "dgx-h100", "--set", f"boxes={boxes}", "-c", "allreduce"]
        )
        lines = " ".join(done.output.split())
        assert f"algbw {plain} " in lines
        assert f"switches {switches} GB/s where they copy and add (NVLS, SHARP); {nvls}" in lines
        assert lines.index("algbw") < lines.index("switches")
    broadcast = optimum("dgx-h100", "broadcast")  # no faster in the switch
    assert (broadcast.algbw, broadcast.in_switches) == (450, None)
    assert nvls_algbw(Problem.of(machine(), Collective.REDUCE, 0)) is None


def test_predictions_know_who_copies_and_adds(tmp_path: Path) -> None:
    path = tmp_path / "x.forest.json"
    path.write_text(forest_file.dumps(forest(Collective.ALLREDUCE)), encoding="utf-8")
    for program, algbw, best in (
        (lower(forest(Collective.ALLREDUCE), MSCCLPP), Fraction(1800, 7), Fraction(1800, 7)),
        (lower_nvls(forest(Collective.ALLREDUCE), MSCCLPP), Fraction(400), Fraction(450)),
    ):
        assert predict.by_forest(program, path).algbw == algbw
        assert predict.by_topology(program, machine()).algbw == best


def test_the_pipeline_says_where_there_is_none() -> None:
    with pytest.raises(PlanError, match=r"no switch between all GPUs copies and adds"):
        synthesize(machine("dgx-a100"), "allreduce", nvls="in-place", formats=("mscclpp-json",))
    with pytest.raises(PlanError, match=r"MSCCL XML has no operations that copy and add"):
        synthesize(machine(), "allreduce", nvls="in-place")
    with pytest.raises(UnsupportedError, match=r"nvls goes without other wishes"):
        synthesize(machine(), "allreduce", nvls="in-place", trees=2, formats=("mscclpp-json",))
