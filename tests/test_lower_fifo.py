"""Lowering to MSCCL XML's programs: fused and not, on the right channels, within the limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pytest
from hand_forests import chain, forest, forests, instructions, of_shape, proven, star, tree
from hypothesis import given, settings
from hypothesis import strategies as st

from forestcoll.common.errors import PlanError
from forestcoll.compile.budget import Budget, Costs
from forestcoll.compile.synthesize import synthesize
from forestcoll.execute import cpu
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import lower, twosided_fused, usage
from forestcoll.lower.network_planes import parity_of, planes_of
from forestcoll.plans import msccl
from forestcoll.plans.lint import lint
from forestcoll.program import (
    BY_TREES,
    Collective,
    Instruction,
    Op,
    Program,
    RankProgram,
    ThreadBlock,
)
from forestcoll.program.targets import DEFAULT_SMS, MSCCL, MSCCLPP, RCCL, SMS, Target, sms_of
from forestcoll.schedule.forest import Forest
from forestcoll.solver import solve
from forestcoll.topology import catalog
from forestcoll.verify import verify

FUSED = (Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND)
ALL = pytest.mark.parametrize("collective", list(BY_TREES), ids=str)


def counted(program: Program) -> Counter[Op]:
    return Counter(i.op for i in instructions(program))


def solved(name: str, collective: Collective, trees: Any = "auto", **settings: str) -> Forest:
    topology = catalog.load(name, settings)
    graph = CapacityGraph.from_topology(topology)
    return solve(graph, collective, 0 if collective.rooted else None, trees, name=topology.name)


# -- without fused steps -------------------------------------------------------------------------


def test_fifo_uses_what_every_parser_runs() -> None:
    allowed = {Op.SEND, Op.RECV, Op.COPY, Op.REDUCE}
    for collective in BY_TREES:
        program = lower(of_shape(collective, 4, star), RCCL)
        assert {i.op for i in instructions(program)} <= allowed


def test_a_heavy_tree_is_sent_in_several_messages() -> None:
    trees = [star(3, 0, "broadcast", 150), chain(3, 0, "broadcast", 7)]
    program = proven(forest(Collective.BROADCAST, 3, trees), RCCL)
    counts = [i.src[0].count for i in instructions(program) if i.op is Op.SEND]
    assert max(counts) <= 71
    assert sum(counts) == 2 * 157


def test_neighbouring_messages_become_one() -> None:
    # to rank 1 both trees go alike, and their chunks are neighbours
    trees = [tree("broadcast", 1, [-1, 0, 0]), tree("broadcast", 1, [-1, 0, 1])]
    program = proven(forest(Collective.BROADCAST, 3, trees), RCCL, protocol="LL")
    to_1 = [b for b in program.ranks[0].thread_blocks if b.send == 1]
    (send,) = (s for b in to_1 for s in b.steps)
    assert isinstance(send, Instruction)
    assert send.src[0].count == 2


def test_a_full_thread_block_spills_to_further_channels() -> None:
    made = forest(Collective.REDUCE, 3, [star(3, 0, "reduce", 71 * 18), chain(3, 0, "reduce", 1)])
    assert usage(lower(made, RCCL, protocol="LL")).channels == 1
    program = lower(made, replace(RCCL, steps=20), protocol="LL")
    verify(program)
    assert usage(program).channels == 3
    assert usage(program).steps <= 20
    peers = [b.recv for b in program.ranks[0].thread_blocks]
    assert max(peers.count(1), peers.count(2)) == 3


def test_short_thread_blocks_are_joined_where_there_are_too_few() -> None:
    made = of_shape(Collective.ALLREDUCE, 6, star)
    assert usage(lower(made, RCCL, protocol="LL")).thread_blocks == 11
    few = replace(RCCL, thread_blocks=7)
    program = lower(made, few, protocol="LL")
    verify(program)
    verify(program, queue=1)
    assert usage(program).thread_blocks == 7


def test_many_peers_use_further_channels() -> None:
    made = of_shape(Collective.ALLGATHER, 6, star)
    program = lower(made, replace(RCCL, channel_blocks=2))
    verify(program)
    for rank in program.ranks:
        for direction in ("send", "recv"):
            used = [b.channel for b in rank.thread_blocks if getattr(b, direction) >= 0]
            assert max(map(used.count, used)) == 2


def test_a_wide_root_copies_before_it_sends() -> None:
    made = forest(Collective.BROADCAST, 20, [star(20, 3, "broadcast")])
    program = proven(made, RCCL)
    (copy,) = (i for i in instructions(program) if i.op is Op.COPY)
    assert copy.after == ()
    few = forest(Collective.BROADCAST, 4, [star(4, 3, "broadcast")])
    (copy,) = (i for i in instructions(lower(few, RCCL)) if i.op is Op.COPY)
    assert len(copy.after) == 3


def test_rooted_fifo_plans_between_boxes_use_ll128() -> None:
    for collective in BY_TREES:
        inside = lower(of_shape(collective, 4, chain), RCCL)
        between = lower(of_shape(collective, 4, chain, boxes=2), RCCL)
        assert inside.protocol == "Simple"
        assert between.protocol == ("LL128" if collective.rooted else "Simple")


# -- fused steps ---------------------------------------------------------------------------------


@ALL
@pytest.mark.parametrize("n", [3, 5])
def test_chains_are_handed_on_without_a_stop(collective: Collective, n: int) -> None:
    program = proven(of_shape(collective, n, chain), MSCCL, protocol="LL")
    found = counted(program)
    roots = 1 if collective.rooted else n
    middle = roots * (n - 2)
    assert found[Op.REDUCE] == 0
    match collective:
        case Collective.ALLGATHER | Collective.BROADCAST:
            assert (found[Op.RECV_COPY_SEND], found[Op.RECV]) == (middle, roots)
        case Collective.REDUCE_SCATTER | Collective.REDUCE:
            assert (found[Op.RECV_REDUCE_SEND], found[Op.RECV_REDUCE_COPY]) == (middle, roots)
            assert found[Op.COPY] == 0  # sums begin with the own data
        case Collective.ALLREDUCE:
            # up and down one ring of 2 n (n - 1) hops: what turns round at a rank and what
            # passes through it share its two thread blocks, so some is sent anew
            assert found[Op.SEND] <= 0.7 * 2 * n * (n - 1)
    assert all(rank.scratch_chunks <= n for rank in program.ranks)


def test_a_sum_goes_on_from_the_root_in_the_step_that_completes_it() -> None:
    trees = [chain(4, 0, "reduce"), chain(4, 0, "broadcast")]
    program = proven(forest(Collective.ALLREDUCE, 4, trees), MSCCL, protocol="LL")
    (step,) = (i for i in instructions(program) if i.op is Op.RECV_REDUCE_COPY_SEND)
    (where,) = {r for r, _, _, i in program.instructions() if i is step}
    assert where == 0
    assert step.dst[0].buffer.value == "o"
    assert all(rank.scratch_chunks == 0 for rank in program.ranks)


def test_what_a_rank_adds_up_lies_in_scratch_until_its_last_part_comes() -> None:
    # 1 has the children 2, 3 and 4: two parts are added and kept, the last is handed on
    program = proven(
        forest(Collective.REDUCE, 5, [tree("reduce", 1, [-1, 0, 1, 1, 1])]), MSCCL, protocol="LL"
    )
    steps = [i for r, _, _, i in program.instructions() if r == 1]
    assert [i.op for i in steps].count(Op.RECV_REDUCE_COPY) == 2
    (last,) = (i for i in steps if i.op is Op.RECV_REDUCE_SEND)
    assert last.src[0].buffer.value == "s"
    assert last.after  # it waits for the others
    assert not last.dst
    assert program.ranks[1].scratch_chunks == 1


@st.composite
def tight(draw: st.DrawFn) -> Target:
    """A target with few steps, blocks, chunks a step and channels."""
    return replace(
        MSCCL,
        steps=draw(st.integers(6, 64)),
        count=draw(st.integers(1, 71)),
        thread_blocks=draw(st.integers(4, 108)),
        channel_blocks=draw(st.integers(1, 31)),
    )


@settings(max_examples=60, deadline=None)
@given(forests(), tight(), st.integers(1, 3), st.sampled_from(["LL", None]))
def test_any_forest_fits_or_is_refused(
    made: Forest, target: Target, instances: int, protocol: Any
) -> None:
    try:
        program = proven(made, target, instances=instances, protocol=protocol)
    except PlanError as error:
        assert "msccl holds" in str(error)  # noqa: PT017
        return
    used = usage(program)
    assert used.steps <= target.steps
    assert used.thread_blocks <= target.thread_blocks


@settings(max_examples=20, deadline=None)
@given(forests(), st.sampled_from([MSCCL, RCCL]))
def test_each_connection_has_one_owner_at_each_end(made: Forest, target: Target) -> None:
    """(peer, channel, direction) is one thread block's, and both ends are on one channel."""
    program = lower(made, target, instances=2)
    ends = []
    for r, rank in enumerate(program.ranks):
        own = [(True, b.send, b.channel) for b in rank.thread_blocks if b.send >= 0]
        own += [(False, b.recv, b.channel) for b in rank.thread_blocks if b.recv >= 0]
        assert len(own) == len(set(own))
        ends += [(r, p, c) if out else (p, r, c) for out, p, c in own]
    assert set(Counter(ends).values()) == {2}


@ALL
@pytest.mark.parametrize("name", ["dgx1-v100", "mi250", "torus-2d"])
def test_fused_programs_are_smaller(name: str, collective: Collective) -> None:
    made = solved(name, collective)
    joined, plain = (
        usage(lower(made, MSCCL, protocol="LL")),
        usage(lower(made, RCCL, protocol="LL")),
    )
    # one more where plain steps have more of them in the longest thread block than fused ones
    assert joined.thread_blocks <= plain.thread_blocks + (joined.steps < plain.steps)
    assert joined.operations <= 1.1 * plain.operations
    if collective.reduces:
        assert joined.operations <= 0.9 * plain.operations


def test_a_chain_that_comes_back_to_a_thread_block_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 -> 2 -> 0 -> 1 -> 2: rank 1's thread block would have to send and to take at once."""
    up, down = tree("reduce", 71, [-1, 2, 0]), tree("broadcast", 71, [-1, 0, 1])
    # and something else, so that the shares have no common divisor
    more = tree("reduce", 1, [-1, 0, 0]), tree("broadcast", 1, [-1, 0, 0])
    made = forest(Collective.ALLREDUCE, 3, [up, more[0], down, more[1]])
    proven(made, MSCCL, protocol="LL")
    monkeypatch.setattr(twosided_fused, "without_repeats", lambda wiring: wiring)
    with pytest.raises(PlanError, match=r"deadlock"):
        verify(lower(made, MSCCL, protocol="LL"))


@ALL
def test_fused_plans_run(collective: Collective) -> None:
    program = proven(solved("dgx1-v100", collective), MSCCL, protocol="LL")
    assert any(i.op in FUSED for i in instructions(program))
    for size in (4096, 100_000):
        done = cpu.run(program, size, dtype="int32", op="sum")
        assert done.wrong == 0
        assert {row.mode for row in done.rows} == {"out-of-place", "in-place"}


@pytest.mark.slow
@ALL
@pytest.mark.parametrize(
    ("name", "boxes"),
    [
        ("dgx-a100", 1),
        ("dgx-a100", 2),
        ("dgx2-v100", 1),
        ("dgx-h100", 2),
        ("mi250", 2),
        ("mi300x", 1),
    ],
)
def test_fused_plans_of_the_catalogue(name: str, boxes: int, collective: Collective) -> None:
    """Right at every queue depth, in the linter's eyes, and with real bytes."""
    made = solved(name, collective, 2, boxes=str(boxes))
    target = MSCCL.on(sms_of(name))
    program = proven(made, target, protocol="LL")
    report = lint(msccl.dumps(program, target), "plan", "msccl")
    assert report.ok, report.findings
    assert cpu.run(program, 1 << 16, dtype="int32").wrong == 0


# -- channels ------------------------------------------------------------------------------------


def planes(near: str = "both") -> CapacityGraph:
    """Two boxes of two GPUs and a switch; two fabrics.

    `near` "both": every GPU has a link to both fabrics; "own": GPU i has one to fabric i.
    """
    names = ("a/gpu0", "a/gpu1", "a/nv", "b/gpu0", "b/gpu1", "b/nv", "plane0", "plane1")
    links: dict[tuple[int, int], Fraction] = {}
    for base in (0, 3):
        for gpu in (0, 1):
            links[base + gpu, base + 2] = Fraction(300)
            for plane in (0, 1) if near == "both" else (gpu,):
                links[base + gpu, 6 + plane] = Fraction(25)
    both = links | {(b, a): w for (a, b), w in links.items()}
    kinds = tuple("gpu" in name for name in names)
    return CapacityGraph.from_bandwidths(
        names=names,
        gpu=kinds,
        multicast=(False,) * 8,
        aggregation=(False,) * 8,
        ranks=(0, 1, 3, 4),
        bandwidths=both,
        name="planes",
    )


def crossing(program: Program, graph: CapacityGraph) -> Iterator[tuple[int, int, int]]:
    """(sender, receiver, channel) of every message between boxes."""
    for r, b, _, i in program.instructions():
        block = program.ranks[r].thread_blocks[b]
        if i.op in (Op.SEND, *FUSED):
            a, c = (graph.box(graph.ranks[rank]) for rank in (r, block.send))
            if a != c:
                yield r, block.send, block.channel


def test_planes_are_found_where_there_are_two() -> None:
    assert planes_of(planes()) == {6: 0, 7: 1}
    for name, settings_ in (("dgx-a100", {"boxes": "2"}), ("rail", {}), ("torus-2d", {})):
        graph = CapacityGraph.from_topology(catalog.load(name, settings_))
        assert planes_of(graph) == {}
        assert parity_of(graph)((graph.ranks[0], graph.ranks[1])) == -1


def test_the_adapter_follows_from_gpu_and_channel() -> None:
    """Of a GPU's own two adapters, the one at place device + channel modulo 2."""
    both = parity_of(planes())
    assert [both((0, 6 + p, 3)) for p in (0, 1)] == [0, 1]
    assert [both((1, 6 + p, 4)) for p in (0, 1)] == [1, 0]
    assert both((0, 2, 1)) == -1
    own = parity_of(planes("own"))
    assert [own((gpu, 6 + gpu, 3 + gpu)) for gpu in (0, 1)] == [0, 1]


@ALL
@pytest.mark.parametrize("target", [MSCCL, RCCL], ids=lambda t: t.name)
@pytest.mark.parametrize("near", ["both", "own"])
def test_messages_take_the_channels_of_their_plane(
    collective: Collective, target: Target, near: str
) -> None:
    graph = planes(near)
    made = solve(graph, collective, 0 if collective.rooted else None, "auto", name="planes")
    program = proven(made, target)
    parity = parity_of(graph)
    # what the trees send over each plane is what channels of its parity carry
    wanted: Counter[tuple[int, int, int]] = Counter()
    number = {node: rank for rank, node in enumerate(graph.ranks)}
    for one in made.trees:
        for path in one.edges:
            if parity(path) >= 0:
                wanted[number[path[0]], number[path[-1]], parity(path)] += one.weight
    sent: Counter[tuple[int, int, int]] = Counter()
    for r, b, _, i in program.instructions():
        block = program.ranks[r].thread_blocks[b]
        ends = r, block.send, block.channel
        if i.op in (Op.SEND, *FUSED) and ends in set(crossing(program, graph)):
            sent[r, block.send, block.channel % 2] += (i.src or i.dst)[0].count
    chunks = max(program.ranks[0].input_chunks, program.ranks[0].output_chunks)
    assert {k: Fraction(v, made.total) for k, v in wanted.items()} == {
        k: Fraction(v, chunks) for k, v in sent.items()
    }
    assert {c for *_, c in sent} == {0, 1} or collective.rooted


@pytest.mark.parametrize("target", [MSCCL, RCCL], ids=lambda t: t.name)
def test_instances_take_channels_of_their_own(target: Target) -> None:
    made = of_shape(Collective.ALLREDUCE, 4, chain)
    once = lower(made, target, protocol="LL")
    twice = proven(made, target, instances=2, protocol="LL")
    assert usage(twice).channels == 2 * usage(once).channels
    assert usage(twice).steps == usage(once).steps
    local = 1 if target is RCCL else 0
    assert usage(twice).thread_blocks - local == 2 * (usage(once).thread_blocks - local)


def test_too_many_instances_are_refused() -> None:
    with pytest.raises(PlanError, match=r"msccl holds 32"):
        lower(of_shape(Collective.ALLREDUCE, 3, chain), MSCCL, instances=33, protocol="LL")
    with pytest.raises(PlanError, match=r"free channels, rccl holds"):
        lower(of_shape(Collective.ALLREDUCE, 3, chain), RCCL, instances=33, protocol="LL")


# -- protocols and multiprocessors ---------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
@pytest.mark.parametrize("target", [MSCCL, RCCL], ids=lambda t: t.name)
def test_protocols_are_written_as_asked(protocol: Any, target: Target) -> None:
    program = proven(of_shape(Collective.ALLREDUCE, 4, chain), target, protocol=protocol)
    assert f'proto="{protocol}"' in msccl.dumps(program, target)


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE], ids=str)
def test_simple_is_refused_where_the_runtime_would_stop_half_way(collective: Collective) -> None:
    far = of_shape(collective, 4, chain, boxes=2)
    with pytest.raises(PlanError) as caught:
        lower(far, MSCCL, protocol="Simple")
    assert str(caught.value) == (
        f"protocol Simple: a {collective} that leaves a box would stop half-way in msccl, whose "
        "proxies count its steps otherwise; use LL or LL128 (--protocol)"
    )
    assert lower(far, MSCCL, protocol="LL").protocol == "LL"


def test_onesided_programs_have_no_ll128() -> None:
    with pytest.raises(PlanError, match=r"protocol LL128: mscclpp"):
        lower(of_shape(Collective.ALLREDUCE, 4, chain), MSCCLPP, protocol="LL128")


def test_thread_blocks_are_limited_by_the_gpu_and_the_loader() -> None:
    assert (sms_of("dgx-h100-2"), sms_of("dgx1-v100-1-without-1-abc"), sms_of("mine")) == (
        132,
        80,
        DEFAULT_SMS,
    )
    assert sms_of("dgx-h1000") == DEFAULT_SMS
    assert (MSCCL.on(132).thread_blocks, RCCL.on(132).thread_blocks) == (132, 64)
    assert MSCCL.on(4000).thread_blocks == 1024
    for name in SMS:
        assert catalog.load(name, {}).name.startswith(f"{name}-")


def test_a_wider_gpu_holds_more_instances() -> None:
    made = of_shape(Collective.ALLGATHER, 8, star)
    with pytest.raises(PlanError, match=r"thread blocks, msccl holds 80"):
        lower(made, MSCCL.on(80), instances=12, protocol="LL")
    wide = proven(made, MSCCL.on(304), instances=12, protocol="LL")
    assert usage(wide).thread_blocks > 128
    # the runtime can wait for the first 128 only
    assert {b for i in instructions(wide) for b, _ in i.after} <= set(range(128))


# -- budgets -------------------------------------------------------------------------------------


def notes_of(name: str, collective: str, budget: Budget, target: Any = "msccl") -> list[str]:
    form: Any = "mscclpp-json" if target == "mscclpp" else "msccl-xml"
    made = synthesize(
        catalog.load(name, {}), collective, budget=budget, target=target, formats=(form,)
    )
    return [note for note in made.notes if "GB/s:" in note]


@pytest.mark.parametrize(
    ("name", "collective", "budget", "words"),
    [
        (
            "mi250",
            "allreduce",
            Budget(trees=2),
            "160 of 171.429 GB/s: 2 different trees per root; 3 would give 171.429",
        ),
        (
            "mi250",
            "allgather",
            Budget(trees=1),
            "266.667 of 342.857 GB/s: 1 different tree per root; 2 would give 320",
        ),
        ("mi250", "allgather", Budget(channels=32), None),
    ],
)
def test_the_report_says_what_a_budget_costs(
    name: str, collective: str, budget: Budget, words: str | None
) -> None:
    assert notes_of(name, collective, budget) == ([] if words is None else [words])


def test_of_several_limits_each_is_lifted_alone() -> None:
    (note,) = notes_of("mi250", "allgather", Budget(channels=1, operations=12), "rccl")
    assert note == (
        "320 of 342.857 GB/s: 1 channel, 12 operations per thread block; 2 channels would give "
        "342.857; 15 operations per thread block would give 342.857"
    )
    # what it tells is so, and one less would not do
    assert notes_of("mi250", "allgather", Budget(channels=2, operations=12), "rccl") == []
    assert notes_of("mi250", "allgather", Budget(channels=1, operations=15), "rccl") == []
    (less,) = notes_of("mi250", "allgather", Budget(channels=1, operations=13), "rccl")
    assert less.startswith("320 of 342.857 GB/s")


def costs(budget: Budget, need: dict[str, int]) -> Costs:
    """Costs of plans that take so many channels and thread blocks, whatever the forest."""
    block = ThreadBlock((), recv=1, channel=need["channels"] - 1)
    rank = RankProgram((block,) * need["blocks"], 1, 1, 0)
    program = Program("", Collective.ALLREDUCE, "fifo", (rank, rank), True, True)

    def made(_: Forest, target: Target) -> Program:
        if target.channels < need["channels"] or target.thread_blocks < need["blocks"]:
            raise PlanError("too small")
        return program

    return Costs(budget, (replace(MSCCL, channels=128),), made, lambda _: 1)


@pytest.mark.parametrize(
    ("budget", "need", "words"),
    [
        (
            Budget(channels=32),
            {"channels": 64, "blocks": 8},
            "200 of 208 GB/s: 32 channels; 64 would give 204.8",
        ),
        (
            Budget(blocks=4),
            {"channels": 64, "blocks": 8},
            "200 of 208 GB/s: 4 thread blocks; 8 would give 204.8",
        ),
        (
            Budget(channels=32, blocks=4),
            {"channels": 64, "blocks": 8},
            "200 of 208 GB/s: 32 channels, 4 thread blocks; 64 channels and 8 thread blocks would "
            "give 204.8",
        ),
        (
            Budget(channels=32, blocks=1),
            {"channels": 64, "blocks": 1},
            "200 of 208 GB/s: 32 channels, 1 thread block; 64 channels would give 204.8",
        ),
        (Budget(channels=32), {"channels": 129, "blocks": 8}, "200 of 208 GB/s: 32 channels"),
    ],
)
def test_words_of_a_budget(budget: Budget, need: dict[str, int], words: str) -> None:
    @dataclass(frozen=True)
    class Rated:
        plain_algbw: Fraction

    found: Any = [Rated(Fraction(1024, 5)), Rated(Fraction(150))]
    told = costs(budget, need)
    assert told.words(Fraction(200), Fraction(208), found) == words
    assert told.words(Fraction(208), Fraction(208), found) is None
    assert costs(Budget(), need).words(Fraction(200), Fraction(208), found) is None


def test_budgets_narrow_targets() -> None:
    lowered = Budget(channels=4, blocks=200, operations=9).lowered(MSCCL)
    assert (lowered.channels, lowered.thread_blocks, lowered.steps) == (4, 108, 9)
    assert lowered.name == "msccl within the budget"
    assert Budget(blocks=108).lowered(MSCCL) is MSCCL
    assert Budget(trees=1, operations=3).limits == {"trees": 1, "operations": 3}


def test_plans_end_where_the_runtime_counts_no_more_rounds() -> None:
    """65,536 rounds of a message a chunk, in RCCL 16 KiB in LL; nobody asks for 32 GiB."""
    made = of_shape(Collective.ALLREDUCE, 4, star)
    assert lower(made, RCCL, protocol="LL").max_bytes == 4 * 2**30
    assert lower(made, RCCL, protocol="LL", instances=4).max_bytes == 16 * 2**30
    assert lower(made, RCCL, protocol="LL", instances=8).max_bytes == 0
    assert lower(made, RCCL, protocol="LL128").max_bytes == 4 * 50_176 * 65_536
    assert lower(made, RCCL).max_bytes == 0
    assert lower(made, MSCCLPP).max_bytes == 0
