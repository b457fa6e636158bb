"""Lowering: every program is right by the symbolic check, and keeps its target's limits."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction

import pytest
from graphs import build, named
from hand_forests import (
    chain,
    forest,
    instructions,
    of_shape,
    proven,
    star,
    tree,
)

from forestcoll.lower import hopeless, lower, usage
from forestcoll.program import BY_TREES, Collective, Op, Pipeline, Program
from forestcoll.program.targets import MSCCL, MSCCLPP, RCCL, TARGETS, Target
from forestcoll.schedule.forest import Forest, Tree, check
from forestcoll.solver import solve
from forestcoll.topology import catalog
from forestcoll.verify import link_loads, verify

BOTH = pytest.mark.parametrize("target", [RCCL, MSCCLPP], ids=lambda t: t.name)
ALL = pytest.mark.parametrize("collective", list(BY_TREES), ids=str)

# -- right for every collective, shape and style ------------------------------------------------


def test_the_same_forest_gives_the_same_program() -> None:
    made = of_shape(Collective.ALLREDUCE, 5, star)
    for target in TARGETS.values():
        assert lower(made, target) == lower(made, target)


# -- chunks ------------------------------------------------------------------------------------


@BOTH
def test_weights_share_no_factor_in_chunks(target: Target) -> None:
    made = forest(
        Collective.ALLGATHER,
        2,
        [chain(2, r, "broadcast", 6) for r in range(2)],
    )
    program = proven(made, target)
    assert {(r.input_chunks, r.output_chunks) for r in program.ranks} == {(1, 2)}


@BOTH
def test_buffers_have_the_sizes_of_the_collective(target: Target) -> None:
    sizes = {}
    for collective in BY_TREES:
        program = lower(of_shape(collective, 3, chain), target)
        ((inputs, outputs),) = {(r.input_chunks, r.output_chunks) for r in program.ranks}
        sizes[collective.value] = f"{inputs} {outputs}"
    assert sizes == {
        "allgather": "1 3",
        "reduce-scatter": "3 1",
        "allreduce": "3 3",
        "broadcast": "1 1",
        "reduce": "1 1",
    }


@BOTH
def test_roots_of_an_allreduce_may_own_different_parts(target: Target) -> None:
    trees = [chain(3, 0, "reduce", 5), star(3, 0, "broadcast", 5)]
    trees += [star(3, 2, "reduce", 2), chain(3, 2, "broadcast", 1), star(3, 2, "broadcast", 1)]
    program = proven(forest(Collective.ALLREDUCE, 3, trees), target)
    assert program.ranks[0].input_chunks == 7


def test_instances_cut_every_tree() -> None:
    made = of_shape(Collective.ALLGATHER, 3, star)
    once, thrice = lower(made, MSCCLPP), proven(made, MSCCLPP, instances=3)
    assert usage(once).thread_blocks == 1  # a leaf needs none of its own
    assert usage(thrice).thread_blocks == 3
    assert thrice.ranks[0].output_chunks == 3 * once.ranks[0].output_chunks


@BOTH
def test_trees_that_differ_in_switches_only_are_one(target: Target) -> None:
    graph = build([(gpu, switch, 1) for switch in "xy" for gpu in "ab"], switches="xy")
    a, x, b, y = map(graph.names.index, "axby")
    trees = [Tree(u, "broadcast", 1, ((u, w, v),)) for u, v in ((a, b), (b, a)) for w in (x, y)]
    made = Forest("two-ways", graph, Collective.ALLGATHER, 4, tuple(trees))
    check(made)
    assert lower(made, target).ranks[0].output_chunks == 2


# -- onesided style ----------------------------------------------------------------------------


def test_channels_are_memory_in_a_box_and_port_between() -> None:
    program = lower(of_shape(Collective.ALLGATHER, 4, star, boxes=2), MSCCLPP)
    for number, rank in enumerate(program.ranks):
        for block in rank.thread_blocks:
            for channel in block.channels:
                near = number // 2 == channel.peer // 2
                assert channel.kind == ("memory" if near else "port")


def ops(program: Program, rank: int) -> list[list[Op]]:
    """Per thread block of a rank what it does, pipelines flattened."""
    blocks = program.ranks[rank].thread_blocks
    return [
        [i.op for s in b.steps for i in (s.body if isinstance(s, Pipeline) else (s,))]
        for b in blocks
    ]


SHAKES = [Op.RELAXED_SIGNAL, Op.RELAXED_WAIT, Op.NOP]
SAID = [Op.NOP, Op.SIGNAL, Op.WAIT]


@pytest.mark.parametrize(
    ("collective", "body"),
    [
        (Collective.ALLGATHER, [Op.PUT, Op.COPY]),
        (Collective.REDUCE_SCATTER, [Op.READ_REDUCE]),
        (Collective.ALLREDUCE, [Op.READ_REDUCE_PUT]),
    ],
)
def test_stars_in_a_box_are_one_thread_block(collective: Collective, body: list[Op]) -> None:
    """Every rank reads all contributions or writes its own to all; leaves do nothing."""
    program = proven(of_shape(collective, 8, star), MSCCLPP)
    for rank in range(8):
        assert ops(program, rank) == [[*SHAKES, *body, *SAID]]
    assert usage(program).scratch == 0


def test_an_allreduce_shakes_hands_only_where_data_does_not_tell() -> None:
    program = proven(of_shape(Collective.ALLREDUCE, 4, chain, boxes=4), MSCCLPP)
    relaxed = {Op.RELAXED_SIGNAL, Op.RELAXED_WAIT}
    assert not relaxed & {i.op for i in instructions(program)}
    # what leaves a box by a port is reused when its receiver says that it has all
    last = [b[-3:] for r in range(4) for b in ops(program, r) if Op.PUT_SIGNAL in b]
    assert SAID in last
    inside = proven(of_shape(Collective.ALLREDUCE, 4, chain), MSCCLPP)
    assert relaxed & {i.op for i in instructions(inside)}  # the leaf's input is read


def test_halves_of_an_allreduce_overlap() -> None:
    """Trees of a root that carry the same: the root adds up and hands down in one pipeline."""
    program = proven(of_shape(Collective.ALLREDUCE, 6, chain), MSCCLPP)
    assert "slice by slice" in program.extra["halves"]
    for rank in range(6):
        fused = [b for b in ops(program, rank) if Op.READ_REDUCE_PUT in b]
        assert fused
        for block in fused:
            assert Op.ACQUIRE not in block
        # sums and what is handed further are in different thread blocks
        assert not any(Op.READ_REDUCE in b and Op.PUT in b for b in ops(program, rank))


def test_a_wide_root_hands_over_by_semaphores_inside_the_pipelines() -> None:
    program = proven(of_shape(Collective.ALLREDUCE, 16, star), MSCCLPP)
    assert Op.READ_REDUCE_PUT not in {i.op for i in instructions(program)}
    for rank in program.ranks:
        steps = [s for b in rank.thread_blocks for s in b.steps]
        bodies = [[i.op for i in s.body] for s in steps if isinstance(s, Pipeline)]
        assert [Op.READ_REDUCE, Op.NOP, Op.READ_REDUCE, Op.NOP, Op.RELEASE] in bodies
        assert [Op.ACQUIRE, Op.NOP, Op.PUT, Op.PUT] in bodies


def test_few_thread_blocks_sum_first_and_broadcast_then() -> None:
    made = of_shape(Collective.ALLREDUCE, 6, chain)
    program = lower(made, replace(MSCCLPP, thread_blocks=1, steps=200))
    verify(program, launches=3)
    link_loads(program, made)
    assert usage(program).thread_blocks == 1
    assert "too few thread blocks" in program.extra["halves"]
    assert "halves" not in lower(of_shape(Collective.REDUCE, 6, chain), MSCCLPP).extra


def test_sums_of_other_boxes_need_scratch_and_those_of_the_own_do_not() -> None:
    # 2 boxes of 4: root 0, in the other box 4 adds up for it
    parents = [-1, 0, 0, 0, 0, 4, 4, 4]
    made = forest(Collective.REDUCE, 8, [tree("reduce", 1, parents)], boxes=2)
    program = proven(made, MSCCLPP)
    assert [r.scratch_chunks for r in program.ranks] == [1, 0, 0, 0, 1, 0, 0, 0]
    assert usage(program).scratch == 1
    both = [tree("reduce", 1, parents), tree("broadcast", 1, parents)]
    program = proven(forest(Collective.ALLREDUCE, 8, both, boxes=2), MSCCLPP)
    # the sum of the other box is made in its output
    assert [r.scratch_chunks for r in program.ranks] == [1, 0, 0, 0, 0, 0, 0, 0]


def test_pipelines_take_the_callers_slice() -> None:
    program = lower(of_shape(Collective.REDUCE, 3, chain), MSCCLPP, unit_bytes=4096)
    steps = [s for r in program.ranks for b in r.thread_blocks for s in b.steps]
    assert {s.unit_bytes for s in steps if isinstance(s, Pipeline)} == {4096}


def test_classes_grow_where_few_thread_blocks_are_too_small() -> None:
    trees = [chain(3, 0, "broadcast", 1, step) for step in (1, 2)]
    trees += [star(3, 0, "broadcast", 2), chain(3, 0, "broadcast", 3)]
    made = forest(Collective.BROADCAST, 3, trees)
    tight = replace(MSCCLPP, steps=20)
    program = lower(made, tight)
    verify(program)
    assert usage(program).steps <= 20


@ALL
def test_a_wide_tree_is_cut_into_groups(collective: Collective) -> None:
    program = proven(of_shape(collective, 20, star), MSCCLPP)
    # a root that sends its input has nothing to wait for
    assert any(rank.semaphores for rank in program.ranks) == collective.reduces
    assert usage(program).channels <= 16


def test_inner_ranks_may_be_wide_as_well() -> None:
    # 0 -> 1 -> all others, and back
    parents = [-1, 0] + [1] * 18
    trees = [tree("reduce", 2, parents), tree("broadcast", 2, parents)]
    program = proven(forest(Collective.ALLREDUCE, 20, trees), MSCCLPP)
    assert len(program.ranks[1].semaphores) == 4  # 18 children, 8 a group, in either phase


def test_broadcasts_wait_for_sums_in_other_thread_blocks() -> None:
    # 10 neighbours in each phase, and not the same: more than one thread block's channels
    up = tree("reduce", 2, [-1] + [0] * 10 + [10] * 10)
    down = [tree("broadcast", 1, [-1] + [10] * 9 + [20] + [20] * 9 + [0])]
    down += [tree("broadcast", 1, [-1] + [19] * 10 + [0] * 10)]
    program = proven(forest(Collective.ALLREDUCE, 21, [up, *down]), MSCCLPP)
    assert program.ranks[0].semaphores == (0, 0)
    assert all(rank.semaphores == () for rank in program.ranks[1:])


def test_hopeless_counts() -> None:
    assert hopeless(RCCL, Collective.ALLREDUCE, 16, 13) is None
    assert "64000 chunks in a buffer, rccl holds 32767" in str(
        hopeless(RCCL, Collective.ALLGATHER, 64, 1000)
    )
    small = replace(RCCL, thread_blocks=2, steps=3)
    assert "7 steps at a rank, rccl holds 6" in str(
        hopeless(small, Collective.BROADCAST, 2, 71 * 7)
    )
    assert hopeless(MSCCLPP, Collective.ALLGATHER, 64, 1000) is None


# -- machines of the catalogue -----------------------------------------------------------------


def parameters(name: str) -> set[str]:
    return {p.name for p in catalog.heading(name).parameters}


FOUR = {"dgx-a100", "dgx1-v100"}  # four of the others are as two, or as these
MACHINES = [
    pytest.param(name, boxes, id=f"{name}-{boxes}")
    for name in catalog.names()
    for boxes in (0, 2, 4)
    if not boxes or ("boxes" in parameters(name) and name != "gb200-nvl72")
    if boxes < 4 or name in FOUR
]


@ALL
@pytest.mark.parametrize(("name", "boxes"), MACHINES)
def test_every_machine_fits_and_loads_its_links_as_the_forest(
    name: str, boxes: int, collective: Collective
) -> None:
    """The exact optimum, no link more loaded than its trees say, to the fraction."""
    graph = named(name, **({"boxes": boxes} if boxes else {}))
    made = solve(graph, collective, 0 if collective.has_root else None)
    program = lower(made, MSCCLPP)
    pairs = link_loads(program, made)
    assert sum(pairs.values()) == Fraction(
        sum(t.weight * len(t.edges) for t in made.expand().trees), made.total
    )
    used = usage(program)
    assert used.thread_blocks <= MSCCLPP.thread_blocks
    assert used.steps <= MSCCLPP.steps
    assert used.scratch <= 1
    if made.n <= 32 and collective is Collective.ALLREDUCE:
        start = time.process_time()
        verify(program)
        assert time.process_time() - start < 5


@pytest.mark.parametrize("target", [MSCCL, RCCL, MSCCLPP], ids=lambda t: t.name)
def test_sixty_four_ranks_are_lowered_in_seconds(target: Target) -> None:
    made = solve(named("torus-3d", x=4, y=4, z=4), Collective.ALLREDUCE)
    start = time.process_time()
    program = lower(made, target)
    assert time.process_time() - start < 5
    assert program.n == 64
    if target is RCCL:
        verify(program)
