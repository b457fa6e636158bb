"""Reads in the event model: a request on its way, then an answer; and puts that name no channel."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from command_line import Run, fine
from notation import parse
from programs import begin, end, lines

from forestcoll import plans
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Program
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


def only(n: int, where: int, block: str) -> Program:
    """A program of one chunk that nobody verifies: one rank alone does something."""
    ranks = [f"rank 1 1 1\n{block if r == where else ''}" for r in range(n)]
    return parse(lines("allreduce onesided name=hand", ranks))


GET = only(2, 0, "block channels=memory:1:0\nget i0@1 -> o0 over=0")
BOTH = "block channels=memory:1:0,memory:2:0\n"


def time_of(program: Program, topology: Topology, rule: Rule, **more: Any) -> float:
    return simulate.run(program, topology, SIZE, rule=rule, options=Options(**more)).time


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("signal", [0.0, 5.0])
def test_a_read_is_a_request_and_an_answer(rule: Rule, signal: float) -> None:
    """No signal tells of the end of either."""
    time = time_of(GET, chained(2), rule, signal=signal)
    assert time == pytest.approx(2 * LATENCY + WIRE, rel=EXACT)


@pytest.mark.parametrize("rule", RULES)
def test_one_read_comes_after_the_other(rule: Rule) -> None:
    program = only(3, 0, BOTH + "get i0@1 i0@2 -> o0 s0 over=0,1")
    times = [2 * LATENCY + WIRE, 4 * LATENCY + WIRE]  # the second comes from a link further
    assert time_of(program, chained(3), rule) == pytest.approx(sum(times), rel=EXACT)


@pytest.mark.parametrize("rule", RULES)
def test_what_is_added_up_is_asked_for_at_once(rule: Rule) -> None:
    program = only(3, 0, BOTH + "read_reduce i0 i0@1 i0@2 -> o0 over=0,1")
    # two links there, two links back; both answers share the link from the switch
    time = time_of(program, switched(3), rule)
    assert time == pytest.approx(4 * LATENCY + 2 * WIRE, rel=EXACT)


@pytest.mark.parametrize("rule", RULES)
def test_a_sum_is_sent_on_when_what_it_adds_is_there(rule: Rule) -> None:
    ends = "block channels=memory:0:0,memory:2:0\n"
    program = only(3, 1, ends + "read_reduce_put i0 i0@0 -> o0 s0@2 over=0,1")
    assert time_of(program, chained(3), rule) == pytest.approx(3 * LATENCY + WIRE, rel=EXACT)


@pytest.mark.parametrize("rule", RULES)
def test_a_read_that_is_slower_than_the_links_keeps_its_round_trip(rule: Rule) -> None:
    time = time_of(GET, chained(2), rule, block_rate=10.0)
    assert time == pytest.approx(2 * LATENCY + SIZE / 10_000, rel=EXACT)


def test_the_request_takes_the_other_direction_of_the_links() -> None:
    graph = CapacityGraph.from_topology(chained(2))
    known = {("gpu0", "gpu1"): Fraction(5), ("gpu1", "gpu0"): Fraction(1, 2)}
    found = simulate.run(GET, graph, SIZE, rule="fair", links=known)
    assert found.time == pytest.approx(5.5 + WIRE, rel=EXACT)


@pytest.mark.parametrize("rule", RULES)
def test_a_switch_that_adds_reads_and_then_stores(rule: Rule) -> None:
    ready = "rank 1 1 1\nblock switches=i:0/1/2,o:0/1/2"  # all of a group set their switch up
    add = "fabric_reduce_store i0 -> o0 via=0,1"
    program = parse(lines("allreduce onesided", ready, add, ready, ready))
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
    text = ["allgather onesided name=bare places=out"]
    for r in range(3):
        p, q = (r + 1) % 3, (r + 2) % 3
        text += ["rank 1 3", f"block channels=memory:{p}:0,memory:{q}:0", f"copy i0 -> o{r}", "nop"]
        text += [begin(0, 1), f"put i0 -> o{r}@{p} o{r}@{q}", end(0, 1)]
    return parse(lines(text))


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
