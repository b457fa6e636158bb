"""How onesided work is spread over thread blocks: every way is right, and the links are busy."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, Literal

import pytest
from graphs import machine, named

from forestcoll import solver
from forestcoll.common.errors import PlanError
from forestcoll.compile.choose import ENOUGH, round_forest
from forestcoll.compile.problem import Problem
from forestcoll.compile.search import (
    GAIN,
    LOADED,
    LONG,
    LOWERINGS,
    MORE,
    SHORT,
    SLICES,
    SPREADING,
    Candidate,
    Judge,
    add_blocks,
    fastest,
    finish,
    search,
    slice_pipelines,
)
from forestcoll.graph.kernel import _kernel
from forestcoll.lower import fifo, lower, usage
from forestcoll.lower.fifo import Port, match_ports
from forestcoll.lower.layout import Layout, RankTree, layout
from forestcoll.lower.limits import Limits, hardest
from forestcoll.lower.onesided import Spread, blocks_of, forks
from forestcoll.lower.schedule import (
    Transfer,
    channels_of,
    early_copies,
    links_of,
    read,
    schedule,
    transfers_of,
)
from forestcoll.plans import mscclpp
from forestcoll.program import BY_TREES, Collective, Instruction, Op, Pipeline, Program
from forestcoll.program.targets import MSCCLPP, RCCL, Target, sms_of
from forestcoll.schedule.forest import Forest
from forestcoll.schedule.latency import Latencies
from forestcoll.topology import catalog
from forestcoll.verify import link_loads, simulate, verify


@cache
def solved(
    name: str, collective: Collective, trees: int | Literal["auto"] = "auto", **settings: int
) -> Forest:
    """The forest of a machine; of a rooted collective, the first rank's."""
    root = 0 if collective.has_root else None
    return solver.solve(named(name, **settings), collective, root, trees)


def shares(
    program: Program, forest: Forest, *sizes: int, links: Latencies | None = None
) -> list[float]:
    """Of the forest's algbw, what the plan reaches at these sizes by the worse rule of links."""
    bands = (simulate.band(program, forest, size, links=links) for size in sizes)
    return [band.share(forest.plain_algbw) for band in bands]


def slice_of(program: Program) -> int:
    """What pipelines move at a time on average, to a multiple of 16; all take as many rounds."""
    blocks = [block for rank in program.ranks for block in rank.thread_blocks]
    own = [s for block in blocks for s in block.steps if isinstance(s, Pipeline)]
    rounds = [pipeline.chunks / pipeline.unit_bytes for pipeline in own]
    assert max(rounds) <= 1.001 * min(rounds)
    return -(sum(p.unit_bytes for p in own) // -len(own) // 16) * 16


links_alone = pytest.mark.usefixtures("links_alone")
SPREADS = [Spread(grain, children) for grain, children in product((0, 1, 2), (False, True))]
SPREADS.append(Spread(3, units=8))


@pytest.mark.parametrize("collective", list(BY_TREES))
@pytest.mark.parametrize("name", ["dgx1-v100", "ring", "star"])
def test_blocks_for_children_are_only_tried_where_there_are_any(
    name: str, collective: Collective
) -> None:
    """The same plan would be lowered and played twice."""
    forest = solved(name, collective)
    for grain, instances in product((0, 1), (1, 2)):
        apart, alike = (
            lower(forest, MSCCLPP, instances=instances, spread=Spread(grain, children))
            for children in (True, False)
        )
        assert (apart != alike) == forks(forest, layout(forest).trees)


def test_trees_are_cut_near_the_grain() -> None:
    forest = solved("mi250", Collective.ALLGATHER)
    whole = layout(forest)
    assert {t.count for t in whole.trees} == {1, 2}
    cut = layout(forest, grain=1)
    assert {t.count for t in cut.trees} == {1}
    assert cut.chunks == whole.chunks
    assert sorted(t.first for t in cut.trees) == list(range(cut.chunks))


def test_ranks_behind_a_switch_begin_with_different_peers() -> None:
    forest = solved("dgx-a100", Collective.ALLGATHER)
    program = lower(forest, MSCCLPP)
    first = set()
    for rank in program.ranks:
        body = next(s for s in rank.thread_blocks[0].steps if isinstance(s, Pipeline)).body
        put = next(i for i in body if i.op is Op.PUT)
        first.add(put.dst[0].rank)
    assert first == set(range(8))


@pytest.mark.parametrize(
    ("name", "collective", "percent"),
    [
        ("dgx-a100", Collective.ALLGATHER, 98),
        ("dgx1-v100", Collective.ALLGATHER, 98),
        ("dgx1-v100", Collective.REDUCE_SCATTER, 97),
        ("mi300x", Collective.ALLGATHER, 98),
        ("mi300x", Collective.BROADCAST, 98),
        ("mi250", Collective.ALLREDUCE, 97),
    ],
)
def test_the_links_are_busy(name: str, collective: Collective, percent: int) -> None:
    """Before, the first four reached 25, 39, 83 and 14 % of the forest's algbw, MI250 91 %."""
    topology, forest = catalog.load(name), solved(name, collective)
    program, _ = search(forest, MSCCLPP, lower(forest, MSCCLPP), SPREADING)
    for rule in ("fair", "fifo"):
        found = simulate.run(program, topology, 10**9, rule=rule)  # type: ignore[arg-type]
        assert 100 * found.algbw >= percent * float(forest.plain_algbw), rule


@pytest.mark.parametrize(
    ("name", "percent", "slice_bytes"),
    [
        ("dgx-a100", 85, 2**17),
        pytest.param("rail", 80, 2**17, marks=pytest.mark.slow),
    ],
)
def test_short_slices_keep_the_links_busy_in_a_short_call(
    name: str, percent: int, slice_bytes: int, request: pytest.FixtureRequest
) -> None:
    """All thread blocks' first slices are half of a short call; each slice takes a signal."""
    settings = {"boxes": 2} if name == "rail" else {}
    forest = solved(name, Collective.REDUCE_SCATTER, **settings)
    target, links = MSCCLPP.on(sms_of(name)), catalog.load(name, settings).latencies()
    first = lower(forest, target)
    program, _ = search(forest, target, first, links=links)
    assert slice_of(program) == slice_bytes
    assert 100 * shares(program, forest, SHORT, links=links)[0] >= percent
    whole = slice_pipelines(program, 2**20)
    assert mscclpp.largest_size(program) == mscclpp.largest_size(whole)  # rounds end no earlier
    verify(program)
    link_loads(program, forest)
    request.getfixturevalue("links_alone")
    assert slice_of(search(forest, target, first)[0]) == min(SLICES)


def test_slices_of_different_lengths_let_thread_blocks_wait_in_turn() -> None:
    """Of even slices all blocks of a fair link wait for their answers together: 76 and 90 %."""
    forest, links = solved("torus-2d", Collective.REDUCE), catalog.load("torus-2d").latencies()
    judge = Judge(forest, MSCCLPP, lower(forest, MSCCLPP), links)
    even = fastest(judge)
    last = finish(judge, even)
    programs = [judge.program_of(one) for one in (even, last)]
    before, after = (shares(p, forest, SHORT, LONG, links=links) for p in programs)
    assert max(before) < 0.91
    assert after[0] > 0.87
    assert after[1] > 0.95
    assert judge.blocks(last) == judge.blocks(even)
    units = {s.unit_bytes for r in programs[1].ranks for b in r.thread_blocks for s in b.steps
             if isinstance(s, Pipeline)}  # fmt: skip
    assert 1.2 < max(units) / min(units) < 1.4
    verify(programs[1])
    assert finish(judge, last) == last


def test_short_chunks_go_two_by_two_where_that_makes_no_call_slower() -> None:
    """Weights in 1,024ths: while both messages of a connection are under way, it sends nothing."""
    start = solved("mi300x", Collective.BROADCAST)
    forest = round_forest(start, ENOUGH * start.algbw, [RCCL])
    assert forest is not None
    assert layout(forest).chunks == 1024
    judge = Judge(forest, RCCL, lower(forest, RCCL), catalog.load("mi300x").latencies())
    single = fastest(judge)
    last = finish(judge, single)
    assert (single.least, last.least) == (1, 2)
    assert judge.time(last, SHORT) < 0.81 * judge.time(single, SHORT)
    assert judge.time(last, LONG) < 1.008 * judge.time(single, LONG)
    assert judge.blocks(last) < judge.blocks(single)
    verify(judge.program_of(last))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "collective", "instances", "percent"),
    [
        ("rail", {"boxes": 4}, Collective.REDUCE_SCATTER, 4, 96),
        ("fat-tree", {"leaves": 4}, Collective.ALLGATHER, 4, 84),
    ],
)
def test_chunks_are_halved_where_the_finest_are_too_fine(
    name: str, settings: dict[str, int], collective: Collective, instances: int, percent: int
) -> None:
    """With an order that came after them, and beside what was there first: 93 and 79 % before."""
    forest = solved(name, collective, 1, **settings)
    links = catalog.load(name, settings).latencies()
    judge = Judge(forest, RCCL, lower(forest, RCCL), links)
    last = finish(judge, fastest(judge))
    assert last.instances == instances
    program = judge.program_of(last)
    assert 100 * shares(program, forest, LONG, links=links)[0] > percent
    verify(program)


@pytest.mark.parametrize("collective", [Collective.BROADCAST])
def test_finer_chunks_take_no_more_thread_blocks(collective: Collective) -> None:
    """A broadcast in six more is 4 % faster at 64 MB, and 6 % slower at 1 GB."""
    forest = solved("dgx2-v100", collective)
    plain = lower(forest, RCCL)
    first, _ = search(forest, RCCL, plain, (add_blocks,))
    program, _ = search(forest, RCCL, plain)
    before, after = usage(first), usage(program)
    assert after.thread_blocks == before.thread_blocks
    assert after.instances > before.instances
    chunks = max(program.ranks[0].input_chunks, program.ranks[0].output_chunks)
    assert chunks <= 64 * 10**6 // 62_500
    times = [simulate.run(p, forest, 64 * 10**6, rule="fifo").time for p in (first, program)]
    assert times[1] < 0.95 * times[0]
    verify(program)


@links_alone
@pytest.mark.slow
def test_chunks_are_cut_finer_for_long_calls() -> None:
    """A call of 64 MB is as fast with chunks twice as long, where one of 1 GB reaches 86 %."""
    forest = solved("fat-tree", Collective.ALLGATHER, 1)
    coarse = lower(forest, RCCL, instances=8)
    program, _ = search(forest, RCCL, coarse)
    short, long = shares(coarse, forest, SHORT, LONG)
    assert long < 0.9 < short
    assert shares(program, forest, LONG)[0] > long + 0.03


@links_alone
@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE])
def test_messages_of_flags_are_cut_finer_where_no_others_may_leave_a_box(
    collective: Collective,
) -> None:
    """Of 576,000 bytes each 85 and 87 % of the links: a hop is over before the next one begins."""
    forest = solved("dgx-a100", collective, boxes=2)
    first = lower(forest, RCCL)
    assert first.protocol == "LL128"
    program, _ = search(forest, RCCL, first)
    assert shares(first, forest, SHORT)[0] < 0.88
    assert shares(program, forest, SHORT)[0] > 0.9
    verify(program)
    few = lower(forest, RCCL, protocol="LL")
    assert search(forest, RCCL, few) == (few, "")


@links_alone
def test_sums_leave_the_lists_of_those_that_receive_where_these_are_full() -> None:
    """With a list for each part 83 % at 64 MB; finer ones of that kind lose 6 points at 1 GB."""
    forest = solved("dgx-a100", Collective.REDUCE, boxes=4)
    program, _ = search(forest, RCCL, lower(forest, RCCL))
    short, long = shares(program, forest, SHORT, LONG)
    assert short > 0.85
    assert long > 0.9
    adders = [
        [step.op for step in block.steps if isinstance(step, Instruction)]
        for rank in program.ranks
        for block in rank.thread_blocks
        if (block.send, block.recv) == (-1, -1) and block.steps[0].op is Op.REDUCE
    ]
    assert adders
    assert all(set(ops) == {Op.REDUCE} for ops in adders)
    assert usage(program).channels == 2
    assert usage(program).thread_blocks <= RCCL.thread_blocks
    verify(program)


def test_adders_share_the_sums_of_one_tree() -> None:
    forest = solved("dgx-a100", Collective.REDUCE, boxes=2)
    chunks = layout(forest, 8)
    links, early = links_of(forest), early_copies(chunks)
    transfers = transfers_of(chunks, 1, early, "phases")
    schedule(transfers, links, channels_of(chunks, transfers, links, None))
    blocks = _kernel.FifoBlocks(transfers, chunks.inputs, chunks.output_chunks, False, fifo._OPS)
    counts, adders = blocks.add_apart(20)
    parts: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
    adder_of = {}
    for message, adder in zip(read(transfers), adders, strict=True):
        parts[message.dst, adder].append(message)
        assert adder_of.setdefault((message.dst, message.total), adder) == adder
    assert len(parts) == sum(counts)
    assert max(map(len, parts.values())) <= 20
    assert all(len({m.group for m in own}) == 1 for own in parts.values())  # of one tree


def test_sums_have_no_thread_blocks_of_their_own_where_there_are_too_few() -> None:
    """And nothing else is tried in their place: without them those of plain lists are there."""
    forest = solved("dgx-a100", Collective.REDUCE, boxes=2)
    few = replace(RCCL, thread_blocks=24)
    assert usage(lower(forest, few, instances=8)).thread_blocks <= 24
    with pytest.raises(PlanError, match=r"needs \d+ thread blocks, rccl holds 24"):
        lower(forest, few, instances=32, adders=True)


def test_fewer_parts_of_a_tree_are_faster_in_a_short_call() -> None:
    """Eight instances have 64 thread blocks: a short call is over before all have begun."""
    forest, target = solved("dgx-a100", Collective.REDUCE, boxes=2), MSCCLPP.on(sms_of("dgx-a100"))
    first, links = lower(forest, target), machine("dgx-a100 boxes=2").latencies()
    filled_up, _ = search(forest, target, first, SPREADING, links)
    program, _ = search(forest, target, first, links=links)
    verify(program)
    assert usage(program).thread_blocks <= 48 < usage(filled_up).thread_blocks
    assert hardest(forest, program).ratio <= 1
    slower = shares(filled_up, forest, SHORT, links=links)[0]
    short, long = shares(program, forest, SHORT, LONG, links=links)
    assert short >= 0.88 > 0.7 > slower
    assert long >= 0.98


def test_parts_do_not_wait_for_each_other_in_a_thread_block() -> None:
    """Eight parts of each of 31 trees share the root's thread blocks, four have one each."""
    names = machine("gb200-nvl72").gpus[:32]
    problem = Problem.of(machine("gb200-nvl72"), Collective.REDUCE, 0, names)
    forest = solver.solve(problem.graph, Collective.REDUCE, 0, 31)
    target = MSCCLPP.on(148)
    program, note = search(forest, target, lower(forest, target))
    assert usage(program).thread_blocks == 124
    assert shares(program, forest, LONG)[0] > 0.9
    assert hardest(forest, program).ratio <= 2
    assert "16 of the 27 thread blocks" in note
    assert "wait for each other" in note
    verify(program)


def test_wide_sums_begin_at_other_ranks_at_every_rank() -> None:
    """Of 31 children an operation takes eight: no link is in more first operations than others."""
    begun: Counter[int] = Counter()
    for root in range(32):
        parent = tuple(-1 if rank == root else root for rank in range(32))
        order = (root, *(rank for rank in range(32) if rank != root))
        tree = RankTree(root, "reduce", 0, 1, parent, order)
        chunks = Layout(Collective.REDUCE, 32, 1, (0,) * 32, (tree,))
        split = blocks_of(chunks, Limits(MSCCLPP, "", ("box/",) * 32, 1))
        groups = split.groups(0, root)[::-1]  # the main one last
        assert sorted(c for group in groups for c in group) == sorted({*range(32)} - {root})
        after = [c for c in groups[-1] if c > root]  # the next ranks first, then round
        assert groups[-1] == sorted(after) + sorted({*groups[-1]} - {*after})
        assert max(map(len, groups)) <= MSCCLPP.peers
        begun.update(groups[0])
    assert len(set(begun.values())) == 1


@pytest.mark.slow
def test_no_link_waits_for_wide_sums() -> None:
    """31 peers behind a switch, sums of four operations: 64 MB are 48 % where all begin alike."""
    topology = machine("gb200-nvl72")
    problem = Problem.of(topology, Collective.ALLREDUCE, ranks=topology.gpus[:32])
    forest = solver.solve(problem.graph, Collective.ALLREDUCE)
    target = MSCCLPP.on(sms_of("gb200-nvl72"))
    program, _ = search(forest, target, lower(forest, target))
    assert shares(program, forest, SHORT)[0] >= 0.92


def test_a_thread_block_for_two_connections_takes_the_longest_that_fits() -> None:
    """Of one peer and in turn, where all are as long: or links idle (test_lower_scheduled)."""
    steps = {(False, 1): 2, (False, 2): 5, (True, 1): 1, (True, 2): 6}
    ports = {Port(0, sends, peer, 0): length for (sends, peer), length in steps.items()}
    assert [(a.peer, b.peer) for a, b in match_ports(ports, most=8)] == [(2, 1), (1, 2)]


@pytest.mark.parametrize(
    ("name", "collective", "target"),
    [
        ("dgx1-v100", Collective.ALLGATHER, MSCCLPP),
        ("dgx1-v100", Collective.BROADCAST, MSCCLPP),
        ("torus-2d", Collective.REDUCE, MSCCLPP),
        ("dgx-a100", Collective.ALLGATHER, RCCL),
        ("torus-2d", Collective.BROADCAST, RCCL),
    ],
    ids=str,
)
def test_what_is_taken_is_no_slower_than_what_was_tried(
    name: str, collective: Collective, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or by as much as fewer thread blocks may cost, or those that suffice for the work."""
    judges: list[Judge] = []

    class Witness(Judge):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            judges.append(self)
            self.seen: list[Candidate] = [self.start]

        def better(self, one: Candidate, best: Candidate) -> bool:
            if self.program(one) is not None:
                self.seen.append(one)
            return super().better(one, best)

    monkeypatch.setattr("forestcoll.compile.search.Judge", Witness)
    forest = solved(name, collective)
    program, _ = search(forest, target, lower(forest, target))
    (judge,) = judges
    assert isinstance(judge, Witness)
    (taken,) = {one for one in judge.seen if judge.program(one) is program}
    assert len(judge.seen) > 1
    assert judge.lowered <= LOWERINGS
    for one in judge.seen:
        if judge.load(one) >= judge.load(taken):
            blocks = max(1.0, judge.blocks(one) / judge.blocks(taken))
            slack = LOADED if judge.load(one) > judge.load(taken) else GAIN * blocks**MORE
            assert judge.cost(taken) <= slack * judge.cost(one), one
