"""Reads in the event model: a request on its way, then an answer; and puts that name no channel."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from command_line import Run, fine
from programs import do, inp, otb, out, rank, scr, with_block, with_rank

from forestcoll import plans
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Buffer, Collective, Instruction, Op, Program, Switch, ThreadBlock
from forestcoll.schedule import forest_file
from forestcoll.topology import Link, Node, Topology
from forestcoll.verify import simulate
from forestcoll.verify.simulate import Options, Rule

pytestmark = pytest.mark.usefixtures("links_alone")
EXACT = 1e-9
SIZE = 2_000_000
BANDWIDTH, LATENCY = 100, 3
WIRE = SIZE / (BANDWIDTH * 1000)
"""Microseconds of the size on a link."""
SCHEDULES = Path(__file__).parents[1] / "schedules"
RULES: tuple[Rule, ...] = ("fair", "fifo")


def chained(n: int) -> Topology:
    nodes = {f"gpu{i}": Node("gpu") for i in range(n)}
    links = (Link(f"gpu{i}", f"gpu{i + 1}", BANDWIDTH, LATENCY) for i in range(n - 1))
    return Topology("chained", nodes, tuple(links))


def switched(n: int) -> Topology:
    nodes = {f"gpu{i}": Node("gpu") for i in range(n)} | {"switch": Node("switch")}
    links = tuple(Link(f"gpu{i}", "switch", BANDWIDTH, LATENCY) for i in range(n))
    return Topology("switched", nodes, links)


def only(n: int, where: int, *blocks: ThreadBlock) -> Program:
    """A program of one chunk that nobody verifies: one rank alone does something."""
    ranks = tuple(rank(*(blocks if r == where else ()), i=1, o=1, s=1) for r in range(n))
    return Program(
        "hand", Collective.ALLREDUCE, "onesided", ranks, in_place=True, out_of_place=True
    )


def time_of(program: Program, topology: Topology, rule: Rule, **more: Any) -> float:
    return simulate.run(program, topology, SIZE, rule=rule, options=Options(**more)).time


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("signal", [0.0, 5.0])
def test_a_read_is_a_request_and_an_answer(rule: Rule, signal: float) -> None:
    """No signal tells of the end of either."""
    get = do(Op.GET, inp(0, rank=1), out(0), channels=[0])
    program = only(2, 0, otb([(1, "memory", 0)], get))
    time = time_of(program, chained(2), rule, signal=signal)
    assert time == pytest.approx(2 * LATENCY + WIRE, rel=EXACT)


@pytest.mark.parametrize("rule", RULES)
def test_one_read_comes_after_the_other(rule: Rule) -> None:
    get = do(Op.GET, [inp(0, rank=1), inp(0, rank=2)], [out(0), scr(0)], channels=[0, 1])
    program = only(3, 0, otb([(1, "memory", 0), (2, "memory", 0)], get))
    times = [2 * LATENCY + WIRE, 4 * LATENCY + WIRE]  # the second comes from a link further
    assert time_of(program, chained(3), rule) == pytest.approx(sum(times), rel=EXACT)


@pytest.mark.parametrize("rule", RULES)
def test_what_is_added_up_is_asked_for_at_once(rule: Rule) -> None:
    add = do(Op.READ_REDUCE, [inp(0), inp(0, rank=1), inp(0, rank=2)], out(0), channels=[0, 1])
    program = only(3, 0, otb([(1, "memory", 0), (2, "memory", 0)], add))
    # two links there, two links back; both answers share the link from the switch
    time = time_of(program, switched(3), rule)
    assert time == pytest.approx(4 * LATENCY + 2 * WIRE, rel=EXACT)


@pytest.mark.parametrize("rule", RULES)
def test_a_sum_is_sent_on_when_what_it_adds_is_there(rule: Rule) -> None:
    add = do(
        Op.READ_REDUCE_PUT,
        [inp(0), inp(0, rank=0)],
        [out(0), scr(0, rank=2)],
        channels=[0, 1],
    )
    program = only(3, 1, otb([(0, "memory", 0), (2, "memory", 0)], add))
    assert time_of(program, chained(3), rule) == pytest.approx(3 * LATENCY + WIRE, rel=EXACT)


@pytest.mark.parametrize("rule", RULES)
def test_a_read_that_is_slower_than_the_links_keeps_its_round_trip(rule: Rule) -> None:
    get = do(Op.GET, inp(0, rank=1), out(0), channels=[0])
    program = only(2, 0, otb([(1, "memory", 0)], get))
    time = time_of(program, chained(2), rule, block_rate=10.0)
    assert time == pytest.approx(2 * LATENCY + SIZE / 10_000, rel=EXACT)


def test_the_request_takes_the_other_direction_of_the_links() -> None:
    get = do(Op.GET, inp(0, rank=1), out(0), channels=[0])
    program = only(2, 0, otb([(1, "memory", 0)], get))
    graph = CapacityGraph.from_topology(chained(2))
    known = {("gpu0", "gpu1"): Fraction(5), ("gpu1", "gpu0"): Fraction(1, 2)}
    found = simulate.run(program, graph, SIZE, rule="fair", links=known)
    assert found.time == pytest.approx(5.5 + WIRE, rel=EXACT)


@pytest.mark.parametrize("rule", RULES)
def test_a_switch_that_adds_reads_and_then_stores(rule: Rule) -> None:
    through = (Switch((0, 1, 2), Buffer.INPUT), Switch((0, 1, 2), Buffer.OUTPUT))
    add = Instruction(Op.FABRIC_REDUCE_STORE, (inp(0),), (out(0),), switches=(0, 1))
    program = only(3, 0, ThreadBlock((add,), switches=through))
    for peer in (1, 2):  # all of a group set their switch up
        idle = with_block(program, 0, 0, ThreadBlock((), switches=through)).ranks[0]
        program = with_rank(program, peer, idle)
    size = 300_000  # has left before the first sum is back
    found = simulate.run(program, switched(3), size, rule=rule)
    wire = size / (BANDWIDTH * 1000)
    assert found.time == pytest.approx(6 * LATENCY + wire, rel=EXACT)


# --- puts that name no channel --------------------------------------------------------------------


def unnamed(path: Path) -> dict[str, Any]:
    """A plan as MSCCL++'s language writes it: puts over memory name no channel."""
    plan: dict[str, Any] = json.loads(path.read_text())
    found = 0
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            for op in block["ops"]:
                for one in (op, *op.get("ops", ())):
                    if one["name"] == "put" and one["channel_type"] == "memory":
                        del one["channel_ids"]
                        found += 1
    assert found
    return plan


@pytest.mark.parametrize("plan", ["dgx1-v100-1/allgather", "dgx-a100-2/broadcast"])
def test_puts_over_memory_need_no_channel(plan: str, tmp_path: Path) -> None:
    """Their destinations say over which links they go: as if the channels were named."""
    path, copy = SCHEDULES / f"{plan}.mscclpp.json", tmp_path / "plan.mscclpp.json"
    copy.write_text(json.dumps(unnamed(path)))
    forest = forest_file.load(SCHEDULES / f"{plan}.forest.json")
    for rule in RULES:
        named, bare = (
            simulate.run(plans.read_plan(p), forest, SIZE, rule=rule, timeline=True)
            for p in (path, copy)
        )
        assert bare == named
        assert all(span.peer >= 0 for span in bare.timeline if span.links)


def exchanges() -> Program:
    """An allgather of three ranks whose puts go to both others, as the language fuses them."""
    ranks = []
    for r in range(3):
        peers = [(r + 1) % 3, (r + 2) % 3]
        block = otb(
            [(p, "memory", 0) for p in peers],
            do(Op.COPY, inp(0), out(r)),
            do(Op.NOP),
            do(Op.RELAXED_SIGNAL, channels=[0, 1]),
            do(Op.RELAXED_WAIT, channels=[0, 1]),
            do(Op.NOP),
            do(Op.PUT, inp(0), [out(r, rank=p) for p in peers]),
            do(Op.NOP),
            do(Op.SIGNAL, channels=[0, 1]),
            do(Op.WAIT, channels=[0, 1]),
        )
        ranks.append(rank(block, i=1, o=3))
    return Program(
        "bare", Collective.ALLGATHER, "onesided", tuple(ranks), in_place=False, out_of_place=True
    )


@pytest.mark.parametrize("rule", RULES)
def test_a_put_without_channels_to_several(rule: Rule) -> None:
    """One after the other, of a third of the size each, between signals over two links."""
    time = time_of(exchanges(), switched(3), rule)
    assert time == pytest.approx(2 * WIRE / 3 + 4 * LATENCY, rel=EXACT)


@pytest.mark.parametrize(
    "command",
    [
        ("time", "bare.mscclpp.json", "-t", "star", "--set", "gpus=3", "--size", "1M"),
        ("verify", "bare.mscclpp.json", "-t", "star", "--set", "gpus=3"),
        ("compare", "-t", "star", "--set", "gpus=3", "-c", "allgather", "--sizes", "1M",
         "--with", "bare.mscclpp.json"),
    ],
    ids=lambda command: command[0],
)  # fmt: skip
def test_commands_time_plans_without_channels(
    command: tuple[str, ...], call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bare.mscclpp.json").write_text(plans.dumps(exchanges(), "mscclpp-json"))
    said = {"time": "of algbw", "verify": "  simulated ", "compare": "bare"}
    assert said[command[0]] in fine(call(*command))
