"""Lowering: every program is right by the symbolic check, and keeps its target's limits."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction

import pytest
from graphs import build, named
from hand_forests import (
    of_shape,
    star,
)

from forestcoll.lower import hopeless, lower, usage
from forestcoll.program import BY_TREES, Collective
from forestcoll.program.targets import MSCCL, MSCCLPP, RCCL, TARGETS, Target
from forestcoll.schedule.forest import Forest, Tree, check
from forestcoll.solver import solve
from forestcoll.topology import catalog
from forestcoll.verify import link_loads, verify

BOTH = pytest.mark.parametrize("target", [RCCL, MSCCLPP], ids=lambda t: t.name)

# -- right for every collective, shape and style ------------------------------------------------


def test_the_same_forest_gives_the_same_program() -> None:
    made = of_shape(Collective.ALLREDUCE, 5, star)
    for target in TARGETS.values():
        assert lower(made, target) == lower(made, target)


# -- chunks ------------------------------------------------------------------------------------


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
    (name, boxes, collective)
    for turn, name in enumerate(catalog.names())
    for boxes in (0, 2, 4)
    if not boxes or ("boxes" in parameters(name) and name != "gb200-nvl72")
    if boxes < 4 or name in FOUR
    for collective in {Collective.ALLREDUCE: 0, BY_TREES[(turn + boxes) % len(BY_TREES)]: 0}
]
"""With an allreduce and, by turns, another collective."""


@pytest.mark.parametrize(("name", "boxes", "collective"), MACHINES)
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
