"""The event model of time: closed forms, link rules, runtimes' slots and messages, errors."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from notation import parse
from programs import lines
from stored_schedules import forest_and_plans

from forestcoll.common.errors import ArgumentError, PlanError, TopologyError, UnsupportedError
from forestcoll.compile.synthesize import synthesize
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import lower
from forestcoll.lower.nvls import lower_nvls, most_algbw
from forestcoll.program import BY_TREES, Collective, Program
from forestcoll.program.targets import MSCCL, MSCCLPP, RCCL
from forestcoll.schedule.forest import Forest, Tree
from forestcoll.solver import baselines
from forestcoll.topology import Link, Node, Topology, catalog, dumps_topology, loads_topology
from forestcoll.verify import simulate
from forestcoll.verify.simulate import Options

pytestmark = pytest.mark.usefixtures("links_alone")

EXACT = 1e-9
"""Relative: what doubles leave of a closed form."""
SIZE = 64_000_000
QUICK = Options(parts=1)


def switched(n: int, bandwidth: int = 100, **more: object) -> Topology:
    """`n` GPUs on one switch."""
    nodes = {f"gpu{i}": Node("gpu") for i in range(n)} | {"switch": Node("switch")}
    links = tuple(Link(f"gpu{i}", "switch", bandwidth, 0, **more) for i in range(n))  # type: ignore[arg-type]
    return Topology("switched", nodes, links)


def chained(n: int, bandwidth: int = 100, latency: int = 0) -> Topology:
    nodes = {f"gpu{i}": Node("gpu") for i in range(n)}
    links = (Link(f"gpu{i}", f"gpu{i + 1}", bandwidth, latency) for i in range(n - 1))
    return Topology("chained", nodes, tuple(links))


def forest_of(topology: Topology, collective: Collective, trees: list[Tree], total: int) -> Forest:
    graph = CapacityGraph.from_topology(topology)
    root = 0 if collective.has_root else -1
    return Forest(topology.name, graph, collective, total, tuple(trees), root=root)


def exchange(chunks: int, *ranks: str) -> Program:
    """An allreduce that nobody verifies: only the messages of the ranks' blocks count here."""
    head = f"rank {chunks} {chunks} {2 * chunks}"
    return parse(lines("allreduce fifo name=hand", *(f"{head}\n{rank}" for rank in ranks)))


ONE = exchange(1, "block send=1\nsend i0", "block recv=0\nrecv -> s0")
"""Rank 0 sends to rank 1."""


# --- closed forms ---------------------------------------------------------------------------------


@pytest.mark.parametrize("flows", [1, 2, 5])
def test_flows_on_a_shared_link(flows: int) -> None:
    """All to rank 0: its link is shared, or serves one after the other; either way it is full."""
    take = lines(f"block recv={i + 1}\nrecv -> s0" for i in range(flows))
    program = exchange(1, take, *["block send=0\nsend i0"] * flows)
    each = 1_000_000 / 100_000  # us at 100 GB/s
    for rule in simulate.RULES:
        found = simulate.run(
            program, switched(flows + 1), 1_000_000, rule=rule, options=QUICK, timeline=True
        )
        assert found.time == pytest.approx(flows * each, rel=EXACT)
        ends = sorted(span.end for span in found.timeline)
        alone = [flows * each] * flows if rule != "fifo" else [each * (i + 1) for i in range(flows)]
        assert ends == pytest.approx(alone, rel=EXACT)


def test_weights_are_bytes() -> None:
    """Two transfers of one and three chunks: they end together, or the short one first."""
    take = "block recv=1\nrecv -> s0\nblock recv=2\nrecv -> s0:3"
    program = exchange(4, take, "block send=0\nsend i0", "block send=0\nsend i0:3")
    ends = {}
    for rule in simulate.RULES:
        found = simulate.run(program, switched(3), 400_000, rule=rule, options=QUICK, timeline=True)
        ends[rule] = sorted(span.end for span in found.timeline)
    assert ends["fair"] == pytest.approx([2.0, 4.0], rel=EXACT)
    assert ends["weighted"] == pytest.approx([4.0, 4.0], rel=EXACT)
    assert ends["fifo"] == pytest.approx([1.0, 4.0], rel=EXACT)


@pytest.mark.parametrize("pieces", [1, 7, 64])
@pytest.mark.parametrize("latency", [0, 3])
def test_chain_pipeline(pieces: int, latency: int) -> None:
    """n - 1 hops, p pieces: (n - 2 + p) pieces one after the other, and n - 1 latencies."""
    n = 5
    edges = tuple((i, i + 1) for i in range(n - 1))
    topology = chained(n, latency=latency)
    forest = forest_of(topology, Collective.BROADCAST, [Tree(0, "broadcast", 1, edges)], 1)
    for rule in ("fair", "fifo"):
        found = simulate.run_forest(forest, SIZE, topology=topology, rule=rule, pieces=pieces)
        piece = SIZE / pieces / 100_000
        assert found.time == pytest.approx((n - 2 + pieces) * piece + (n - 1) * latency, rel=EXACT)


@pytest.mark.parametrize("phase", ["broadcast", "reduce"])
def test_binary_tree_pipeline(phase: str) -> None:
    """Seven ranks on links of their own: two levels of links, p pieces."""
    edges = [(0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (2, 6)]
    nodes = {f"gpu{i}": Node("gpu") for i in range(7)}
    links = tuple(Link(f"gpu{u}", f"gpu{v}", 100, 0) for u, v in edges)
    tree = Tree(0, "broadcast", 1, tuple(edges))
    if phase == "reduce":
        tree = tree.reverse()
    collective = Collective.BROADCAST if phase == "broadcast" else Collective.REDUCE
    forest = forest_of(Topology("tree", nodes, links), collective, [tree], 1)
    found = simulate.run_forest(forest, SIZE, pieces=16)
    assert found.time == pytest.approx((1 + 16) * SIZE / 16 / 100_000, rel=EXACT)


@pytest.mark.parametrize("rule", ["fair", "fifo"])
@pytest.mark.parametrize("latency", [0.0, 2.0])
def test_ring_allreduce_in_one_slice(rule: simulate.Rule, latency: float) -> None:
    """2 (n - 1) steps of S / n, each with the latency of the link."""
    n, size = 4, 4_000_000
    links = tuple(Link(f"gpu{i}", f"gpu{(i + 1) % n}", 100, 0) for i in range(n))
    topology = Topology("ring", {f"gpu{i}": Node("gpu") for i in range(n)}, links)
    forest = baselines.forests("ring", CapacityGraph.from_topology(topology))[0]
    program = lower(forest, RCCL)
    options = Options(parts=1, latency=latency)
    found = simulate.run(program, topology, size, rule=rule, options=options)
    # two ranks' chunks go round at once where both directions are used; here each goes one way
    steps = 2 * (n - 1)
    assert found.time == pytest.approx(steps * (size / n / 100_000 + latency), rel=EXACT)
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
    found = simulate.run(program, switched(n), size // 4, rule=rule, options=QUICK)
    expected = 2 * (n - 1) / n * (size // 4) / 100_000
    assert found.time == pytest.approx(expected, rel=EXACT)
    late = simulate.run(
        program, switched(n), size // 4, rule=rule, options=replace(QUICK, latency=1.0)
    )
    assert late.time == pytest.approx(expected + 2 * 3 * 2, rel=EXACT)  # two links a message


@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter", "allreduce"])
def test_direct_behind_a_switch(collective: str) -> None:
    """Trees of one hop behind an NVSwitch: every GPU's link is full from begin to end."""
    forest, _ = forest_and_plans("dgx-a100", collective)
    for size in (SIZE, 8 * SIZE):
        found = simulate.run_forest(forest, size, rule="fair")
        phases = 2 if collective == "allreduce" else 1
        slack = 1 + (phases - 1) / simulate.PIECES
        assert found.time <= phases * 7 / 8 * size / 300_000 * slack * (1 + EXACT)
        assert found.time >= phases * 7 / 8 * size / 300_000 * (1 - EXACT)


def test_every_link_carries_what_the_forest_says() -> None:
    forest, programs = forest_and_plans("dgx-a100", "allreduce", {"boxes": "2"})
    size = 416 * 10_000
    timing = simulate.run(programs["msccl-xml"], forest, size)
    loads = [load * size / forest.total for load in forest.loads()]
    assert [use.bytes for use in timing.links] == pytest.approx(loads, rel=1e-9)
    assert all(0 <= use.utilisation <= 1 + 1e-9 for use in timing.links)


# --- rules of links and switches ------------------------------------------------------------------


def test_store_and_forward_takes_a_transfer_twice() -> None:
    for rule in simulate.RULES:
        for switching, hops in (("cut-through", 1), ("store", 2)):
            options = replace(QUICK, switching=switching)
            found = simulate.run(ONE, switched(2), 1_000_000, rule=rule, options=options)
            assert found.time == pytest.approx(hops * 10.0, rel=EXACT)


def test_narrow_links_interleave_on_a_wide_one() -> None:
    """Eight adapters of 25 into an uplink of 200 GB/s: all at once, under every rule."""
    nodes = {f"a{i}": Node("gpu") for i in range(8)} | {f"b{i}": Node("gpu") for i in range(8)}
    nodes |= {"leaf0": Node("switch"), "leaf1": Node("switch")}
    links = [Link(f"{x}{i}", f"leaf{k}", 25, 0) for k, x in enumerate("ab") for i in range(8)]
    topology = Topology("leaves", nodes, (*links, Link("leaf0", "leaf1", 200, 0)))
    sends = [f"block send={8 + i}\nsend i0" for i in range(8)]
    program = exchange(1, *sends, *(f"block recv={i}\nrecv -> s0" for i in range(8)))
    for rule in simulate.RULES:
        found = simulate.run(program, topology, 1_000_000, rule=rule, options=QUICK)
        assert found.time == pytest.approx(40.0, rel=EXACT)


def test_the_rule_of_a_link_stands_in_the_file() -> None:
    topology = switched(3, rule="fifo")
    assert loads_topology(dumps_topology(topology)) == topology
    assert "rule: fifo" in dumps_topology(topology)
    take = "block recv=1\nrecv -> s0\nblock recv=2\nrecv -> s1"
    program = exchange(1, take, *["block send=0\nsend i0"] * 2)

    def ends(topology: Topology, rule: simulate.Rule | None = None) -> list[float]:
        found = simulate.run(program, topology, 1_000_000, rule=rule, options=QUICK, timeline=True)
        return sorted(span.end for span in found.timeline)

    assert ends(topology) == pytest.approx([10.0, 20.0])
    assert ends(switched(3)) == pytest.approx([20.0, 20.0])  # no box: fair
    assert ends(topology, "fair") == pytest.approx([20.0, 20.0])


def test_messages_queue_at_what_leaves_a_box() -> None:
    from forestcoll.verify.simulate.fabric import rule_of

    graph = CapacityGraph.from_topology(catalog.load("dgx-a100", {"boxes": "2"}))
    rules = {}
    for tail, head in zip(graph.tail, graph.head, strict=True):
        rules[graph.names[tail], graph.names[head]] = rule_of(graph, tail, head)
    assert rules["box0/gpu0", "box0/nvswitch"] == "fair"
    assert rules["box0/gpu0", "fabric"] == rules["fabric", "box1/gpu3"] == "fifo"


def test_unknown_rules_are_refused() -> None:
    text = dumps_topology(switched(2, rule="fifo")).replace("rule: fifo", "rule: fito")
    with pytest.raises(TopologyError, match=r"links\[0\]: unknown rule 'fito'; did you mean"):
        loads_topology(text)
    with pytest.raises(TopologyError, match="Link: rule"):
        switched(2, rule="first")
    with pytest.raises(TopologyError, match="rule is fair, fifo or weighted, not 'x'"):
        simulate.run(exchange(1, "", ""), switched(2), 1, rule="x")  # type: ignore[arg-type]


# --- runtimes -------------------------------------------------------------------------------------


def test_slots_hold_up_a_sender() -> None:
    """The receiver waits for another's message first: of three messages, two are under way."""
    first = "block recv=2\nrecv -> s0\nblock recv=1\nrecv -> s1 after=0.0\nrecv -> s1\nrecv -> s1"
    late = exchange(1, first, "block send=0\nsend i0\nsend i0\nsend i0", "block send=0\nsend i0")
    nodes = {f"gpu{i}": Node("gpu") for i in range(3)}
    links = (Link("gpu1", "gpu0", 100, 0), Link("gpu2", "gpu0", 10, 0))
    topology = Topology("late", nodes, links)
    found = simulate.run(late, topology, 1_000_000, options=QUICK, timeline=True)
    starts = sorted(span.start for span in found.timeline if span.rank == 1)
    assert starts == pytest.approx([0.0, 10.0, 100.0])
    assert found.time == pytest.approx(110.0)


def test_a_chunk_is_sent_slice_after_slice() -> None:
    """5 MiB in messages of 2: three rounds, two parts each; and small chunks share a message."""
    program = exchange(3, "block send=1\nsend i0:3", "block recv=0\nrecv -> s0:3")
    assert simulate.run(program, switched(2), 3 * 5 << 20).transfers == 3 * 3 * 2
    assert simulate.run(program, switched(2), 3 << 20).transfers == 2 * 2
    assert simulate.run(program, switched(2), 6 << 20).transfers == 3 * 2


def test_rates_of_a_thread_block() -> None:
    """A block of 20 GB/s sends at 20 over links of 100, under every rule, and copies at 20."""
    for rule in simulate.RULES:
        options = replace(QUICK, block_rate=20.0)
        found = simulate.run(ONE, switched(2), 1_000_000, rule=rule, options=options)
        assert found.time == pytest.approx(50.0 + 50.0, rel=EXACT)  # and the receiver copies it
    local = exchange(1, *["block\nreduce s0 -> o0"] * 2)
    options = replace(QUICK, reduce_rate=10.0)
    assert simulate.run(local, switched(2), 1_000_000, options=options).time == pytest.approx(100.0)


def test_between_boxes_a_proxy_sends() -> None:
    topology = catalog.load("dgx-a100", {"boxes": "2"})
    _, programs = forest_and_plans("dgx-a100", "allgather", {"boxes": "2"})
    for program in programs.values():
        timing = simulate.run(program, topology, SIZE, timeline=True)
        proxied = {(s.peer >= 0 and s.rank // 8 != s.peer // 8, s.proxy) for s in timing.timeline}
        assert proxied == {(True, True), (False, False)}


def test_more_flags_take_longer() -> None:
    """LL carries as many flags as data; LL128 a sixteenth, and an eighth on AMD's GPUs."""
    forest, _ = forest_and_plans("mi300x", "allgather")
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
    topology = catalog.load("dgx-a100")
    forest, _ = forest_and_plans("dgx-a100", "allreduce")
    program = lower(forest, MSCCLPP, protocol="LL")
    size = 1 << 20
    found = simulate.run(program, topology, size, options=Options(latency=0.0))
    # each GPU sends seven eighths of the data twice, in packets of twice the bytes
    assert found.time >= 2 * 2 * 7 / 8 * size / 300_000 * (1 - EXACT)
    slow = simulate.run(program, topology, size, options=Options(latency=10.0))
    assert slow.time >= 40.0  # two hops of two links, one after the other


def test_nvls_reaches_what_the_switch_can_give() -> None:
    topology = catalog.load("dgx-h100")
    forest = synthesize(topology, "allreduce", formats=["forest"]).forest
    program = lower_nvls(forest, MSCCLPP)
    found = simulate.run(program, topology, 1 << 30, rule="fair", options=Options(latency=0.0))
    assert found.algbw == pytest.approx(float(most_algbw(forest)), rel=1e-6)


@pytest.mark.parametrize("target", [MSCCL, RCCL, MSCCLPP], ids=lambda t: t.name)
def test_deterministic_and_no_faster_than_the_links(target: object) -> None:
    topology = catalog.load("torus-2d", {"x": "3", "y": "3"})
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
    topology = catalog.load("dgx-a100", {"boxes": "2"})
    forest = synthesize(topology, "allreduce", formats=["forest"]).forest
    times = [
        simulate.run_forest(forest, SIZE, rule="fair", pieces=pieces).time
        for pieces in (1, 4, 16, 64, 256)
    ]
    best = SIZE / float(forest.algbw) / 1000
    assert all(later <= earlier for earlier, later in pairwise(times))
    assert best * (1 - 1e-9) <= times[-1] <= 1.02 * best


# --- errors ---------------------------------------------------------------------------------------


def test_a_plan_that_gets_stuck_is_an_error() -> None:
    program = exchange(1, "block recv=1\nrecv -> s0", "")
    with pytest.raises(PlanError, match=r"rank 0, thread block 0, step 0 \(recv\) waits for ever"):
        simulate.run(program, switched(2), 1000)


def test_ranks_must_be_there() -> None:
    program = exchange(1, "", "", "")
    with pytest.raises(PlanError, match="for 3 ranks; switched has 2 GPUs"):
        simulate.run(program, switched(2), 1000)
    forest = synthesize(switched(2), "allgather", formats=["forest"]).forest
    with pytest.raises(PlanError, match="for 3 ranks, the forest of switched for 2"):
        simulate.run(program, forest, 1000)


def test_ranks_are_found_by_name() -> None:
    program = replace(ONE, names=("gpu3", "gpu1"))
    found = simulate.run(program, switched(4), 1_000_000)
    assert {(u.src, u.dst) for u in found.links if u.bytes} == {
        ("gpu3", "switch"),
        ("switch", "gpu1"),
    }


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"latency": -1.0}, "latency -1.0: microseconds"),
        ({"signal": float("nan")}, "signal nan: microseconds"),
        ({"block_rate": 0.0}, "block_rate 0.0: GB/s, more than 0"),
        ({"reduce_rate": -2.0}, "reduce_rate -2.0: GB/s"),
        ({"switching": "wormhole"}, "switching is 'cut-through' or 'store', not 'wormhole'"),
        ({"parts": 0}, "parts 0"),
        ({"seed": -1}, "seed -1"),
    ],
)
def test_options_are_checked(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        Options(**wrong)  # type: ignore[arg-type]


def test_sizes_and_pieces_are_checked() -> None:
    program = exchange(1, "", "")
    with pytest.raises(ArgumentError, match="size must be at least 1 and at most"):
        simulate.run(program, switched(2), 0)
    forest = synthesize(switched(2), "allgather", formats=["forest"]).forest
    with pytest.raises(ArgumentError, match="pieces must be at least 1"):
        simulate.run_forest(forest, 1000, pieces=0)
