"""Lowering to MSCCL XML's programs: on the right channels, within the limits."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from graphs import build, machine, named
from hand_forests import forests, instructions, of_shape, proven, star
from hypothesis import given, settings
from hypothesis import strategies as st

from forestcoll.common.errors import PlanError
from forestcoll.compile.budget import Budget, Costs
from forestcoll.compile.synthesize import synthesize
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import lower, usage
from forestcoll.lower.layout import parity_of, planes_of
from forestcoll.program import (
    BY_TREES,
    Collective,
    Op,
    Program,
    RankProgram,
    ThreadBlock,
)
from forestcoll.program.targets import (
    DEFAULT_SMS,
    MSCCL,
    MSCCLPP,
    RCCL,
    SMS,
    Target,
    library_on,
    sms_of,
)
from forestcoll.schedule.forest import Forest
from forestcoll.solver import solve
from forestcoll.solver.baselines import by_name
from forestcoll.topology import catalog
from forestcoll.ui.cli.types import parse_budget
from forestcoll.verify import simulate
from forestcoll.verify.columns import columns_of, read_ranks, rows_of

ALL = pytest.mark.parametrize("collective", list(BY_TREES), ids=str)


# -- steps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [10, 64])
def test_columns_are_those_of_the_steps_which_are_made_when_asked_for(blocks: int) -> None:
    """Also where ten of a rank's 29 thread blocks may be waited for, which stand in front then."""
    forest = synthesize(machine("star"), "allreduce", formats=("forest",)).forest
    target = replace(RCCL, dependency_blocks=blocks)
    program, twin, copy = (lower(forest, target) for _ in range(3))
    written = columns_of(program)
    assert pickle.loads(pickle.dumps(twin)) == program
    assert copy.edit(lambda _, instruction: instruction) == twin
    assert list(map(hash, program.ranks)) == list(map(hash, twin.ranks))
    assert all(type(block.steps) is tuple for *_, block in program.blocks())
    read = read_ranks(program.style, program.ranks)
    assert [*map(list, rows_of(written))] == [*map(list, rows_of(read))]


# -- limits --------------------------------------------------------------------------------------


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


# -- channels ------------------------------------------------------------------------------------


def planes(near: str = "both") -> CapacityGraph:
    """Two boxes of two GPUs and a switch; two fabrics.

    `near` "both": every GPU has a link to both fabrics; "own": GPU i has one to fabric i.
    """
    boxes = [(f"{box}/gpu{gpu}", f"{box}/nvswitch", 300) for box in "ab" for gpu in (0, 1)]
    fabrics = [
        (f"{box}/gpu{gpu}", f"fabric{plane}", 25)
        for box in "ab"
        for gpu in (0, 1)
        for plane in (0, 1)
        if near == "both" or plane == gpu
    ]
    return build(boxes + fabrics)


def test_planes_are_found_where_there_are_two() -> None:
    graph = planes()
    found = {graph.names[node]: plane for node, plane in planes_of(graph).items()}
    assert found == {"fabric0": 0, "fabric1": 1}
    for graph in (named("dgx-a100", boxes=2), named("rail"), named("torus-2d")):
        assert planes_of(graph) == {}
        assert parity_of(graph)((graph.ranks[0], graph.ranks[1])) == -1


def test_the_adapter_follows_from_gpu_and_channel() -> None:
    """Of a GPU's own two adapters, the one at place device + channel modulo 2."""

    def parity(near: str, *path: str) -> int:
        graph = planes(near)
        return parity_of(graph)(tuple(map(graph.names.index, path)))

    for gpu in (0, 1):
        for plane in (0, 1):
            way = (f"a/gpu{gpu}", f"fabric{plane}", f"b/gpu{gpu}")
            assert parity("both", *way) == (gpu + plane) % 2
        assert parity("own", f"a/gpu{gpu}", f"fabric{gpu}", f"b/gpu{gpu}") == gpu
    assert parity("both", "a/gpu0", "a/nvswitch", "a/gpu1") == -1


@ALL
@pytest.mark.parametrize("target", [MSCCL, RCCL], ids=lambda t: t.name)
@pytest.mark.parametrize("near", ["both", "own"])
def test_messages_take_the_channels_of_their_plane(
    collective: Collective, target: Target, near: str
) -> None:
    graph = planes(near)
    made = solve(graph, collective, 0 if collective.has_root else None, "auto", name="planes")
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
        if i.op is Op.SEND and graph.box(graph.ranks[r]) != graph.box(graph.ranks[block.send]):
            sent[r, block.send, block.channel % 2] += (i.src or i.dst)[0].count
    chunks = max(program.ranks[0].input_chunks, program.ranks[0].output_chunks)
    assert {k: Fraction(v, made.total) for k, v in wanted.items()} == {
        k: Fraction(v, chunks) for k, v in sent.items()
    }
    assert {c for *_, c in sent} == {0, 1} or collective.has_root


# -- protocols and multiprocessors ---------------------------------------------------------------

AMD_OR_NOT = ["mi250-2-without-1-a1", "gfx950-node", "fabric-amd-node", "camd-1", "dgx-h100"]


def test_thread_blocks_are_limited_by_the_gpu_and_the_loader() -> None:
    assert (sms_of("dgx-h100-2"), sms_of("dgx1-v100-1-without-1-abc"), sms_of("mine")) == (
        132,
        80,
        DEFAULT_SMS,
    )
    assert sms_of("dgx-h1000") == DEFAULT_SMS
    assert (sms_of("gfx90a-topo-2"), sms_of("gfx942-mi300x")) == (104, 80)
    assert [library_on(name) is RCCL for name in AMD_OR_NOT] == [True, True, True, False, False]
    assert (MSCCL.on(132).thread_blocks, RCCL.on(132).thread_blocks) == (132, 64)
    assert MSCCL.on(4000).thread_blocks == 1024
    for name in (name for name in SMS if not name.startswith("gfx")):
        assert catalog.load(name, {}).name.startswith(f"{name}-")


def test_a_wider_gpu_holds_more_instances() -> None:
    made = of_shape(Collective.ALLGATHER, 8, star)
    wide = proven(made, MSCCL.on(304), instances=12, protocol="LL")
    assert usage(wide).thread_blocks > 128
    # the runtime can wait for the first 128 only
    assert {b for i in instructions(wide) for b, _ in i.after} <= set(range(128))


# -- budgets -------------------------------------------------------------------------------------


def notes_of(collective: str, budget: Budget, target: Any = "msccl") -> list[str]:
    form: Any = "mscclpp-json" if target == "mscclpp" else "msccl-xml"
    made = synthesize(
        catalog.load("mi250"), collective, budget=budget, target=target, formats=(form,),
        instances=1,
    )  # fmt: skip
    return [note for note in made.notes if "GB/s:" in note]


@pytest.mark.parametrize(
    ("collective", "budget", "words"),
    [
        ("allreduce", "trees=2",
         ["160 of 171.429 GB/s: 2 different trees per root; 3 would give 171.429"]),
        ("allgather", "trees=1",
         ["266.667 of 342.857 GB/s: 1 different tree per root; 2 would give 320"]),
        ("allgather", "channels=32", []),
    ],
)  # fmt: skip
def test_the_report_says_what_a_budget_costs(
    collective: str, budget: str, words: list[str]
) -> None:
    assert notes_of(collective, parse_budget(budget)) == words


def test_of_several_limits_each_is_lifted_alone() -> None:
    (note,) = notes_of("allgather", Budget(channels=1, operations=12), "rccl")
    assert note == (
        "320 of 342.857 GB/s: 1 channel, 12 operations per thread block; 2 channels would give "
        "342.857; 15 operations per thread block would give 342.857"
    )
    # what it tells is so, and one less would not do
    assert notes_of("allgather", Budget(channels=2, operations=12), "rccl") == []
    assert notes_of("allgather", Budget(channels=1, operations=15), "rccl") == []
    (less,) = notes_of("allgather", Budget(channels=1, operations=13), "rccl")
    assert less.startswith("320 of 342.857 GB/s")


def costs(budget: str, channels: int, blocks: int) -> Costs:
    """Costs of plans that take so many channels and thread blocks, whatever the forest."""
    rank = RankProgram((ThreadBlock((), recv=1, channel=channels - 1),) * blocks, 1, 1, 0)
    program = Program("", Collective.ALLREDUCE, "fifo", (rank, rank), True, True)

    def made(_: Forest, target: Target) -> Program:
        if target.channels < channels or target.thread_blocks < blocks:
            raise PlanError("too small")
        return program

    given = parse_budget(budget) if budget else Budget()
    return Costs(given, (replace(MSCCL, channels=128),), made)


@pytest.mark.parametrize(
    ("budget", "need", "words"),
    [
        ("channels=32", (64, 8), "32 channels; 64 would give 204.8"),
        ("blocks=4", (64, 8), "4 thread blocks; 8 would give 204.8"),
        ("channels=32,blocks=4", (64, 8),
         "32 channels, 4 thread blocks; 64 channels and 8 thread blocks would give 204.8"),
        ("channels=32,blocks=1", (64, 1),
         "32 channels, 1 thread block; 64 channels would give 204.8"),
        ("channels=32", (129, 8), "32 channels"),
    ],
)  # fmt: skip
def test_words_of_a_budget(budget: str, need: tuple[int, int], words: str) -> None:
    found: Any = [
        SimpleNamespace(plain_algbw=Fraction(rate), trees=()) for rate in ("1024/5", "150")
    ]
    best = Fraction(208)
    assert costs(budget, *need).words(Fraction(200), best, found) == f"200 of 208 GB/s: {words}"
    assert costs(budget, *need).words(best, best, found) is None
    assert costs("", *need).words(Fraction(200), best, found) is None


def test_budgets_narrow_targets() -> None:
    lowered = Budget(channels=4, blocks=200, operations=9).limit_target(MSCCL)
    assert (lowered.channels, lowered.thread_blocks, lowered.steps) == (4, 108, 9)
    assert lowered.name == "msccl within the budget"
    assert Budget(blocks=108).limit_target(MSCCL) is MSCCL
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


def test_ranks_of_a_box_begin_with_different_ranks_of_the_next() -> None:
    """By distance all 8 of a DGX A100 sent to rank 8 first: 487 us over links in order."""
    topology = machine("dgx-a100 boxes=2")
    (forest,) = by_name("direct").forests(
        CapacityGraph.from_topology(topology), Collective.ALLGATHER
    )
    program = lower(replace(forest, name=topology.name), RCCL, protocol="Simple")
    runs = simulate.run_each(program, forest, 2**24, ("fair", "fifo"), links=topology)
    assert [round(run.time) for run in runs] == [341, 341]
    firsts = {next(b.send for b in rank.thread_blocks if b.send >= 8) for rank in program.ranks[:8]}
    assert firsts == set(range(8, 16))
