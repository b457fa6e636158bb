"""Forests made by hand and by chance, over GPUs each linked to each, and programs made of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

from graphs import build
from hypothesis import strategies as st

from forestcoll import plans
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import lower, serve
from forestcoll.plans.rules import group_fault
from forestcoll.program import BY_TREES, Collective, Instruction, Program
from forestcoll.program.targets import Target
from forestcoll.schedule.forest import Forest, Phase, Tree, check
from forestcoll.verify import link_loads, verify

ONE_PHASE: dict[Collective, Phase] = {
    Collective.ALLGATHER: "broadcast",
    Collective.BROADCAST: "broadcast",
    Collective.REDUCE_SCATTER: "reduce",
    Collective.REDUCE: "reduce",
}


def mesh(n: int, boxes: int = 1) -> CapacityGraph:
    """n GPUs, in so many boxes, each linked to each."""
    names = [f"box{v * boxes // n}/gpu{v}" for v in range(n)]
    pairs = list(permutations(names, 2))
    return build([(u, v, 1) for u, v in pairs], both=False)


def tree(phase: Phase, weight: int, parents: list[int]) -> Tree:
    """A tree from each rank's parent, -1 at the root."""
    edges: list[tuple[int, int]] = []
    reached = [parents.index(-1)]
    for u in reached:
        children = [v for v, p in enumerate(parents) if p == u]
        reached += children
        edges += [(u, v) for v in children]
    if phase == "reduce":
        edges = [(v, u) for u, v in reversed(edges)]
    return Tree(reached[0], phase, weight, tuple(edges))


def chain(n: int, root: int, phase: Phase, weight: int = 1, step: int = 1) -> Tree:
    """root, root + step, root + 2 step ...; step and n have no common factor."""
    parents = [-1] * n
    for hop in range(1, n):
        parents[(root + hop * step) % n] = (root + (hop - 1) * step) % n
    return tree(phase, weight, parents)


def star(n: int, root: int, phase: Phase, weight: int = 1) -> Tree:
    return tree(phase, weight, [-1 if v == root else root for v in range(n)])


def forest(collective: Collective, n: int, trees: list[Tree], boxes: int = 1) -> Forest:
    """A forest that passes its own check."""
    total = sum(t.weight for t in trees)
    if collective is Collective.ALLREDUCE:
        total //= 2
    root = trees[0].root if collective.has_root else -1
    made = Forest("hand-made", mesh(n, boxes), collective, total, tuple(trees), root=root)
    check(made)
    return made


def of_shape(collective: Collective, n: int, shape: Any, boxes: int = 1) -> Forest:
    """One tree of that shape a root (and phase)."""
    roots = [n - 1] if collective.has_root else list(range(n))
    phases: list[Phase] = (
        ["reduce", "broadcast"] if collective is Collective.ALLREDUCE else [ONE_PHASE[collective]]
    )
    return forest(collective, n, [shape(n, r, p) for p in phases for r in roots], boxes)


def proven(made: Forest, target: Target, **options: Any) -> Program:
    """The program, once it is right in place and out of place and reads back from its plan."""
    program = lower(made, target, **options)
    assert program.out_of_place
    ports = (
        made.collective is Collective.ALLGATHER
        and len({made.graph.box(v) for v in made.graph.ranks}) > 1
    )
    if target.style == "onesided" and ports:  # which read the input where it begins
        assert not program.in_place
        verify(serve(program, in_place=True))
    else:
        assert program.in_place
    verify(program)
    if target.style == "fifo":
        verify(program, queue=1)
    link_loads(program, made)
    seated = group_fault(target, program.names, (), "") is None  # else only the file is right
    text = plans.dumps(program, target.format, target if seated else None)
    assert plans.loads(text, source="text", format=target.format) == program
    return program


def instructions(program: Program) -> Iterator[Instruction]:
    return (i for _, _, _, i in program.instructions())


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    """Any trees, weights and cuts; for allreduce the two phases of a root are cut apart."""
    collective = draw(st.sampled_from(list(BY_TREES)))
    n = draw(st.integers(2, 6))

    def some(root: int, phase: Phase, weight: int) -> Iterator[Tree]:
        while weight:
            part = draw(st.integers(1, weight))
            weight -= part
            order = [root, *draw(st.permutations([v for v in range(n) if v != root]))]
            parents = [-1] * n
            for place in range(1, n):
                parents[order[place]] = order[draw(st.integers(0, place - 1))]
            yield tree(phase, part, parents)

    trees: list[Tree] = []
    k = draw(st.integers(1, 4))
    if collective is Collective.ALLREDUCE:
        for root in range(n):
            share = k if root == 0 else draw(st.integers(0, 4))
            trees += some(root, "reduce", share)
            trees += some(root, "broadcast", share)
    else:
        roots = [draw(st.integers(0, n - 1))] if collective.has_root else list(range(n))
        for root in roots:
            trees += some(root, ONE_PHASE[collective], k)
    return forest(collective, n, trees, draw(st.integers(1, 2)))
