"""The event model of time: closed forms, link rules, runtimes' slots and messages, errors."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest
from command_line import Run, fine
from edits import places_of, rows_of
from graphs import machine, named
from notation import parse
from programs import lines
from stored_schedules import SCHEDULES, forest_and_plans

from forestcoll import plans
from forestcoll.common.errors import ForestCollError
from forestcoll.compile.synthesize import synthesize
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import lower
from forestcoll.lower.nvls import lower_nvls, most_algbw
from forestcoll.program import BY_TREES, Collective, Program
from forestcoll.program.targets import MSCCL, MSCCLPP, RCCL
from forestcoll.schedule import forest_file
from forestcoll.schedule.forest import Forest, Tree
from forestcoll.schedule.routes import Pair, routes
from forestcoll.solver import baselines
from forestcoll.topology import Link, Node, Topology, dumps_topology, loads_topology
from forestcoll.verify import simulate
from forestcoll.verify.simulate import Options

pytestmark = pytest.mark.usefixtures("links_alone")

EXACT = 1e-9
"""Relative: what doubles leave of a closed form."""
SIZE = 64_000_000
QUICK = Options(parts=1)


def fabric(links: str, latency: int = 0, **more: Any) -> Topology:
    """`gpu0-switch:25,gpu1-switch`: links with their GB/s, 100 where nothing is said."""
    made = []
    for word in links.split(","):
        ends, _, rate = word.partition(":")
        made.append(Link(*ends.split("-"), int(rate or 100), latency, **more))  # type: ignore[arg-type]
    names = sorted({name for link in made for name in (link.src, link.dst)})
    nodes = {name: Node("gpu" if name.startswith("gpu") else "switch") for name in names}
    return Topology("hand", nodes, tuple(made))


def forest_of(topology: Topology, collective: Collective, trees: list[Tree], total: int) -> Forest:
    graph = CapacityGraph.from_topology(topology)
    root = 0 if collective.has_root else -1
    return Forest(topology.name, graph, collective, total, tuple(trees), root=root)


def star(n: int, **more: Any) -> Topology:
    """`n` GPUs on one switch."""
    return fabric(",".join(f"gpu{r}-switch" for r in range(n)), **more)


def exchange(chunks: int, *ranks: str) -> Program:
    """An allreduce that nobody verifies: only the messages of the ranks' blocks count here."""
    head = f"rank {chunks} {chunks} {2 * chunks}"
    return parse(lines("allreduce fifo name=hand", *(f"{head}\n{rank}" for rank in ranks)))


# --- closed forms ---------------------------------------------------------------------------------


def test_closed_forms() -> None:
    """Rows of rows/times.txt: under every rule of links what follows by hand."""
    for row in rows_of("times.txt"):
        given = dict(option.split("=") for option in row.options)
        latency, size = int(given.pop("latency", 0)), int(given.pop("size", 1_000_000))
        switching, parts = given.pop("switching", "cut-through"), int(given.pop("parts", 1))
        rates = {name: float(value) for name, value in given.items()}
        options = Options(parts=parts, switching=switching, **rates)  # type: ignore[arg-type]
        program, topology = parse(lines(row.edits)), fabric(row.base, latency)
        names = {"S": size, "W": size / 100_000, "L": latency}
        for rule in simulate.RULES:
            found = simulate.run(program, topology, size, rule=rule, options=options, timeline=True)
            figures = {
                "time": found.time,
                "transfers": found.transfers,
                "ends": sorted(span.end for span in found.timeline),
                "starts": sorted(span.start for span in found.timeline if span.rank == 1),
            }
            for what, expected in (line.split(" = ") for line in row.said):
                *only, figure = what.split()
                if not only or only == [rule]:
                    assert figures[figure] == pytest.approx(eval(expected, names), rel=EXACT), (
                        row.name
                    )


CHAIN = ((0, 1), (1, 2), (2, 3), (3, 4))
TREE = ((0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (2, 6))


@pytest.mark.parametrize("pieces", [1, 7, 64])
@pytest.mark.parametrize("latency", [0, 3])
@pytest.mark.parametrize(("edges", "levels"), [(CHAIN, 4), (TREE, 2)], ids=["chain", "tree"])
@pytest.mark.parametrize("phase", ["broadcast", "reduce"])
def test_pipelines(
    phase: str, edges: tuple[tuple[int, int], ...], levels: int, pieces: int, latency: int
) -> None:
    """p pieces over so many levels: levels - 1 + p of them one after the other, and latencies."""
    tree = Tree(0, "broadcast", 1, edges)
    topology = fabric(",".join(f"gpu{u}-gpu{v}" for u, v in edges), latency)
    collective = Collective(phase)
    forest = forest_of(topology, collective, [tree if phase == "broadcast" else tree.reverse()], 1)
    for rule in ("fair", "fifo"):
        found = simulate.run_forest(forest, SIZE, topology=topology, rule=rule, pieces=pieces)
        piece = SIZE / pieces / 100_000
        expected = (levels - 1 + pieces) * piece + levels * latency
        assert found.time == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize("rule", ["fair", "fifo"])
@pytest.mark.parametrize("latency", [0.0, 2.0])
def test_ring_allreduce_in_one_slice(rule: simulate.Rule, latency: float) -> None:
    """2 (n - 1) steps of S / n, each with the latency of the link; each chunk goes one way."""
    n, size = 4, 4_000_000
    topology = fabric(",".join(f"gpu{i}-gpu{(i + 1) % n}" for i in range(n)))
    forest = baselines.forests("ring", CapacityGraph.from_topology(topology))[0]
    options = Options(parts=1, latency=latency)
    found = simulate.run(lower(forest, RCCL), topology, size, rule=rule, options=options)
    assert found.time == pytest.approx(2 * (n - 1) * (size / n / 100_000 + latency), rel=EXACT)
    assert found.busbw == pytest.approx(found.algbw * 2 * (n - 1) / n)


@pytest.mark.parametrize("rule", ["fair", "fifo"])
def test_halving_doubling(rule: simulate.Rule) -> None:
    """log2(n) exchanges of S/2, S/4, ... and back: 2 (n-1)/n S/B and 2 log2(n) latencies."""
    n, size = 8, 8_000_000
    ranks = []
    for rank in range(n):
        text, last = [], 0
        for channel, distances in ((0, (4, 2, 1)), (1, (1, 2, 4))):
            for d in distances:
                after = f"after={last - 1}.0" if last else ""
                text += [f"block send={rank ^ d} channel={channel}\nsend i0:{d} {after}"]
                text += [f"block recv={rank ^ d} channel={channel}\nrecv -> s0:{d} {after}"]
                last += 2
        ranks.append(lines(text))
    program = exchange(n, *ranks)
    # messages of up to four chunks are one piece of a slot here
    found = simulate.run(program, star(n), size // 4, rule=rule, options=QUICK)
    expected = 2 * (n - 1) / n * (size // 4) / 100_000
    assert found.time == pytest.approx(expected, rel=EXACT)
    late = simulate.run(program, star(n), size // 4, rule=rule, options=replace(QUICK, latency=1.0))
    assert late.time == pytest.approx(expected + 2 * 3 * 2, rel=EXACT)  # two links a message


@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter", "allreduce"])
def test_direct_behind_a_switch(collective: str) -> None:
    """Trees of one hop behind an NVSwitch: every GPU's link is full from begin to end."""
    forest, _ = forest_and_plans("dgx-a100-1", collective)
    for size in (SIZE, 8 * SIZE):
        found = simulate.run_forest(forest, size, rule="fair")
        phases = 2 if collective == "allreduce" else 1
        slack = 1 + (phases - 1) / simulate.PIECES
        assert found.time <= phases * 7 / 8 * size / 300_000 * slack * (1 + EXACT)
        assert found.time >= phases * 7 / 8 * size / 300_000 * (1 - EXACT)


def test_every_link_carries_what_the_forest_says() -> None:
    forest, programs = forest_and_plans("dgx-a100-2", "allreduce")
    size = 416 * 10_000
    timing = simulate.run(programs["msccl-xml"], forest, size)
    loads = [load * size / forest.total for load in forest.loads()]
    assert [use.bytes for use in timing.links] == pytest.approx(loads, rel=1e-9)
    assert all(0 <= use.utilisation <= 1 + 1e-9 for use in timing.links)


# --- rules of links and switches ------------------------------------------------------------------


def test_the_rule_of_a_link_stands_in_the_file() -> None:
    topology = star(3, rule="fifo")
    assert loads_topology(dumps_topology(topology)) == topology
    assert "rule: fifo" in dumps_topology(topology)
    take = "block recv=1\nrecv -> s0\nblock recv=2\nrecv -> s1"
    program = exchange(1, take, *["block send=0\nsend i0"] * 2)

    def ends(topology: Topology, rule: simulate.Rule | None = None) -> list[float]:
        found = simulate.run(program, topology, 1_000_000, rule=rule, options=QUICK, timeline=True)
        return sorted(span.end for span in found.timeline)

    assert ends(topology) == pytest.approx([10.0, 20.0])
    assert ends(star(3)) == pytest.approx([20.0, 20.0])  # no box: fair
    assert ends(topology, "fair") == pytest.approx([20.0, 20.0])


@pytest.mark.parametrize("rule", ["fair", "weighted"])
@pytest.mark.parametrize("seed", range(12))
def test_rates_are_fair_at_all_times(seed: int, rule: simulate.Rule) -> None:
    """Flows of many sizes over ways of many links, against progressive filling in fractions."""
    draw = random.Random(seed)
    n, switches, cap = 8, 5, draw.choice([None, 20, 45])
    links = [f"gpu{r}-s{draw.randrange(switches)}:{draw.choice([25, 40, 50])}" for r in range(n)]
    links += [f"s{k}-s{draw.randrange(k)}:{draw.choice([25, 60, 100])}" for k in range(1, switches)]
    topology = fabric(",".join(links))
    graph = CapacityGraph.from_topology(topology)
    sent = {pair: draw.randint(1, 9) for pair in permutations(range(n), 2) if draw.random() < 0.5}
    ranks = [
        "\n".join(
            [f"block send={b}\nsend i0:{k}" for (a, b), k in sent.items() if a == r]
            + [f"block recv={a}\nrecv -> s0:{k}" for (a, b), k in sent.items() if b == r]
        )
        for r in range(n)
    ]
    options = Options(parts=1, block_rate=cap)
    size = 900_000
    program = exchange(9, *ranks)
    found = simulate.run(program, topology, size, rule=rule, options=options, timeline=True)
    ends = sorted(span.end for span in found.timeline if span.links)
    ways = routes(graph).ways
    flows = {pair: (tuple(pairwise(ways[pair])), Fraction(k * size, 9)) for pair, k in sent.items()}
    speeds = {ends: 1000 * graph.bandwidth(k) for k, ends in enumerate(graph.ends)}
    assert ends == pytest.approx(fluid_ends(flows, speeds, cap, rule == "weighted"), rel=EXACT)


def fluid_ends(
    flows: dict[Pair, tuple[tuple[Pair, ...], Fraction]],
    speeds: dict[Pair, Fraction],
    cap: int | None,
    weighted: bool,
) -> list[float]:
    """When flows of so many bytes over their links end, ascending: all rise by weight alike, until
    a link of theirs is full or their cap is reached. Speeds in bytes a microsecond."""
    weights = {flow: left if weighted else Fraction(1) for flow, (_, left) in flows.items()}
    left = {flow: most for flow, (_, most) in flows.items()}
    now, ends = Fraction(0), list[float]()
    while left:
        rates, rising = dict.fromkeys(left, Fraction(0)), set(left)
        room = dict(speeds)
        while rising:
            loads = Counter[Pair]()
            for flow in rising:
                for link in flows[flow][0]:
                    loads[link] += weights[flow]  # type: ignore[assignment]
            rise = min(room[link] / load for link, load in loads.items())
            if cap is not None:
                rise = min(rise, *((cap * 1000 - rates[f]) / weights[f] for f in rising))
            for flow in rising:
                rates[flow] += rise * weights[flow]
            for link, load in loads.items():
                room[link] -= rise * load
            rising = {
                flow
                for flow in rising
                if all(room[link] for link in flows[flow][0]) and rates[flow] != (cap or 0) * 1000
            }
        step = min(left[flow] / rates[flow] for flow in left)
        now += step
        left = {flow: some - step * rates[flow] for flow, some in left.items()}
        ends += [float(now)] * sum(not some for some in left.values())
        left = {flow: some for flow, some in left.items() if some}
    return ends


def test_latencies_are_those_of_the_call() -> None:
    """A fabric is kept from play to play, but not what the caller has changed meanwhile."""
    forest = synthesize(machine("ring gpus=4"), "allgather", formats=("forest",)).forest
    program, links = lower(forest, MSCCL), dict.fromkeys(machine("ring gpus=4").latencies(), 1.0)
    before = simulate.run(program, forest, 2**10, links=links).time
    links |= dict.fromkeys(links, 11.0)
    assert simulate.run(program, forest, 2**10, links=links).time >= before + 10


def test_messages_queue_at_what_leaves_a_box() -> None:
    from forestcoll.verify.simulate.fabric import rule_of

    graph = named("dgx-a100 boxes=2")
    rules = {}
    for tail, head in graph.ends:
        rules[graph.names[tail], graph.names[head]] = rule_of(graph, tail, head)
    assert rules["box0/gpu0", "box0/nvswitch"] == "fair"
    assert rules["box0/gpu0", "fabric"] == rules["fabric", "box1/gpu3"] == "fifo"


# --- runtimes -------------------------------------------------------------------------------------


def test_between_boxes_a_proxy_sends() -> None:
    topology = machine("dgx-a100 boxes=2")
    _, programs = forest_and_plans("dgx-a100-2", "allgather")
    for program in programs.values():
        timing = simulate.run(program, topology, SIZE, timeline=True)
        proxied = {(s.peer >= 0 and s.rank // 8 != s.peer // 8, s.proxy) for s in timing.timeline}
        assert proxied == {(True, True), (False, False)}


def test_more_flags_take_longer() -> None:
    """LL carries as many flags as data; LL128 a sixteenth, and an eighth on AMD's GPUs."""
    forest, _ = forest_and_plans("mi300x-1", "allgather")
    at = {}
    for protocol in ("Simple", "LL", "LL128"):
        program = lower(forest, RCCL, protocol=protocol)
        at[protocol] = simulate.run(program, forest, 1 << 30, rule="fair").time
    assert at["LL"] == pytest.approx(2 * at["Simple"], rel=0.01)
    assert at["LL128"] == pytest.approx(8 / 7 * at["Simple"], rel=0.01)
    options = simulate.Options(runtime=MSCCL)
    there = simulate.run(program, forest, 1 << 30, rule="fair", options=options).time
    assert there == pytest.approx(16 / 15 * at["Simple"], rel=0.01)


def test_packets_wait_for_all_that_wrote_them() -> None:
    topology = machine("dgx-a100")
    forest, _ = forest_and_plans("dgx-a100-1", "allreduce")
    program = lower(forest, MSCCLPP, protocol="LL")
    size = 1 << 20
    found = simulate.run(program, topology, size, options=Options(latency=0.0))
    # each GPU sends seven eighths of the data twice, in packets of twice the bytes
    assert found.time >= 2 * 2 * 7 / 8 * size / 300_000 * (1 - EXACT)
    slow = simulate.run(program, topology, size, options=Options(latency=10.0))
    assert slow.time >= 40.0  # two hops of two links, one after the other


def test_nvls_reaches_what_the_switch_can_give() -> None:
    topology = machine("dgx-h100")
    forest = synthesize(topology, "allreduce", formats=["forest"]).forest
    program = lower_nvls(forest, MSCCLPP)
    found = simulate.run(program, topology, 1 << 30, rule="fair", options=Options(latency=0.0))
    assert found.algbw == pytest.approx(float(most_algbw(forest)), rel=1e-6)


@pytest.mark.parametrize("target", [MSCCL, RCCL, MSCCLPP], ids=lambda t: t.name)
def test_deterministic_and_no_faster_than_the_links(target: object) -> None:
    topology = machine("torus-2d x=3 y=3")
    for collective in BY_TREES:
        forest = synthesize(topology, collective, formats=["forest"], trees=1).forest
        program = lower(forest, target)  # type: ignore[arg-type]
        for rule in (None, *simulate.RULES):
            for seed in (0, 1):
                options = Options(seed=seed, latency=0.0)
                one, two = (
                    simulate.run(program, topology, SIZE, rule=rule, options=options)
                    for _ in range(2)
                )
                assert one == two
                assert one.algbw <= float(forest.plain_algbw) * (1 + 1e-9)


def test_more_slices_come_nearer_to_the_links() -> None:
    topology = machine("dgx-a100 boxes=2")
    forest = synthesize(topology, "allreduce", formats=["forest"]).forest
    times = [
        simulate.run_forest(forest, SIZE, rule="fair", pieces=pieces).time
        for pieces in (1, 4, 16, 64, 256)
    ]
    best = SIZE / float(forest.algbw) / 1000
    assert all(later <= earlier for earlier, later in pairwise(times))
    assert best * (1 - 1e-9) <= times[-1] <= 1.02 * best


# --- errors ---------------------------------------------------------------------------------------


def test_ranks_are_found_by_name() -> None:
    one = exchange(1, "block send=1\nsend i0", "block recv=0\nrecv -> s0")
    program = replace(one, names=("gpu3", "gpu1"))
    found = simulate.run(program, star(4), 1_000_000)
    assert {(u.src, u.dst) for u in found.links if u.bytes} == {
        ("gpu3", "switch"),
        ("switch", "gpu1"),
    }


WRONG = r"""
Options(latency=-1.0) -> latency -1.0: microseconds
Options(signal=nan) -> signal nan: microseconds
Options(block_rate=0.0) -> block_rate 0.0: GB/s, more than 0
Options(reduce_rate=-2.0) -> reduce_rate -2.0: GB/s
Options(switching="wormhole") -> switching is 'cut-through' or 'store', not 'wormhole'
Options(parts=0) -> parts 0
Options(seed=-1) -> seed -1
run(exchange(1, "", ""), star(2), 0) -> size must be at least 1 and at most
run(exchange(1, "", ""), star(2), 1, rule="x") -> rule is fair, fifo or weighted, not 'x'
run(exchange(1, "", "", ""), star(2), 1000) -> for 3 ranks; hand has 2 GPUs
run(exchange(1, "", "", ""), pair, 1000) -> for 3 ranks, the forest of hand for 2
run(exchange(1, "block recv=1\nrecv -> s0", ""), star(2), 9) -> step 0 (recv) waits for ever
run_forest(pair, 1000, pieces=0) -> pieces must be at least 1
star(2, rule="first") -> Link: rule
loads_topology(slow.replace("fifo", "fito")) -> links[0]: unknown rule 'fito'; did you mean
"""


def test_what_is_wrong_is_refused() -> None:
    names = {**globals(), **vars(simulate), "nan": float("nan")}
    names["pair"] = synthesize(star(2), "allgather", formats=["forest"]).forest
    names["slow"] = dumps_topology(star(2, rule="fifo"))
    for call, words in (row.rsplit(" -> ", 1) for row in WRONG.strip().splitlines()):
        with pytest.raises(ForestCollError, match=re.escape(words)):
            eval(call, names)


# --- reads, and puts that name no channel ---------------------------------------------------------


def test_the_request_takes_the_other_direction_of_the_links() -> None:
    read = parse(
        "allreduce onesided\nrank 1 1 1\nblock channels=memory:1:0\nget i0@1 -> o0 over=0\n"
        "rank 1 1 1"
    )
    graph = CapacityGraph.from_topology(fabric("gpu0-gpu1"))
    known = {("gpu0", "gpu1"): Fraction(5), ("gpu1", "gpu0"): Fraction(1, 2)}
    found = simulate.run(read, graph, 1_000_000, rule="fair", links=known)
    assert found.time == pytest.approx(5.5 + 10, rel=EXACT)


@pytest.mark.parametrize("plan", ["dgx1-v100-1/allgather", "dgx-a100-2/broadcast"])
def test_puts_over_memory_need_no_channel(plan: str, tmp_path: Path) -> None:
    """As if the channels were named that MSCCL++'s language leaves out."""
    path, copy = SCHEDULES / f"{plan}.mscclpp.json", tmp_path / "plan.mscclpp.json"
    whole, puts = json.loads(path.read_text()), 0
    for holder, key in places_of(whole):
        if key == "name" and holder[key] == "put" and holder["channel_type"] == "memory":
            del holder["channel_ids"]
            puts += 1
    assert puts
    copy.write_text(json.dumps(whole))
    forest = forest_file.load(SCHEDULES / f"{plan}.forest.json")
    for rule in ("fair", "fifo"):
        named, bare = (
            simulate.run(plans.read_plan(p), forest, SIZE, rule=rule, timeline=True)
            for p in (path, copy)
        )
        assert bare == named
        assert all(span.peer >= 0 for span in bare.timeline if span.links)


def test_commands_time_plans_without_channels(call: Run) -> None:
    bare = next(row for row in rows_of("times.txt") if "by puts to both" in row.name)
    Path("bare.mscclpp.json").write_text(plans.dumps(parse(lines(bare.edits)), "mscclpp-json"))
    for line, words in (
        ("time bare.mscclpp.json -t star --set gpus=3 --size 1M", "of algbw"),
        ("verify bare.mscclpp.json -t star --set gpus=3", "  simulated "),
        ("compare -t star --set gpus=3 -c allgather --sizes 1M --with bare.mscclpp.json", "bare"),
    ):
        assert words in fine(call(*line.split()))
