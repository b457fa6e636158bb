"""Every lowering on every machine, by one validator: structure, both proofs, lint, and traffic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise, product

import pytest
from hand_forests import chain, forests, of_shape, star
from hypothesis import given, settings
from hypothesis import strategies as st
from interleaving import run

from forestcoll import plans, solver
from forestcoll.common.errors import PlanError
from forestcoll.compile.problem import capacity_graph
from forestcoll.compile.search import SPREADING, search
from forestcoll.execute import cpu
from forestcoll.lower import lower, serve, usage
from forestcoll.lower.alltoall import lowering
from forestcoll.lower.nvls import lower_nvls
from forestcoll.lower.onesided import Spread
from forestcoll.lower.rounds import lower_rounds, rounds_of
from forestcoll.plans.lint import lint
from forestcoll.plans.rules import group_fault
from forestcoll.program import BY_TREES, FABRIC, Buffer, Collective, Op, Program
from forestcoll.program.check import check as check_structure
from forestcoll.program.targets import MSCCL, MSCCLPP, RCCL, TARGETS, Target
from forestcoll.schedule.forest import Forest, Tree, check
from forestcoll.solver import multicast
from forestcoll.solver.alltoall.demand import uniform
from forestcoll.solver.alltoall.flows import solve as solve_flows
from forestcoll.solver.alltoall.rounding import route
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.topology import Topology, catalog
from forestcoll.verify import verify
from forestcoll.verify.dataflow import dataflow

Traffic = Mapping[tuple[int, int], Fraction]
"""(rank, rank) -> share of all data that the one hands straight to the other."""

SMS = 132
EVERY_PARSER = (Op.SEND, Op.RECV, Op.COPY, Op.REDUCE)
"""What every parser of MSCCL XML runs."""


def validate(program: Program, target: Target, traffic: Traffic | None) -> None:
    """Right in itself, by both proofs, as the runtime reads it, and with the traffic asked for.

    `traffic`: None where switches copy and add, so that ranks hand each other other shares.
    """
    check_structure(replace(program))  # a copy, whose structure nobody vouches for
    assert program.style == target.style
    assert not program.double_scratch or len({r.scratch_chunks for r in program.ranks}) == 1
    assert program.in_place or program.out_of_place
    used = usage(program)
    assert used.thread_blocks <= target.thread_blocks
    assert used.steps <= target.steps
    assert used.channels <= target.channels
    for i in (i for *_, i in program.instructions()):
        assert i.op in EVERY_PARSER or target.style == "onesided"
        assert all(ref.buffer is not Buffer.INPUT for ref in i.dst) or i.op in FABRIC
        assert all(ref.count <= target.count for ref in (*i.src, *i.dst))
        if target.style == "onesided":
            assert len(i.channels) <= target.peers
            assert max(len(i.src), len(i.dst)) <= target.peers + 2
    proven = verify(program, target=target)
    assert proven.modes == tuple(
        mode
        for mode, does in (("out-of-place", program.out_of_place), ("in-place", program.in_place))
        if does
    )
    if traffic is not None:
        assert {pair: load for pair, load in proven.loads.items() if load} == traffic
    if target.style == "fifo":
        verify(program, queue=1)
    if program.n <= 8:
        assert cpu.run(program, 4096, iterations=3).wrong == 0
    if target not in TARGETS.values():
        return  # formats have the limits of runtimes
    seated = group_fault(target, program.names, (), "") is None
    text = plans.dumps(program, target.format, target if seated else None)
    assert plans.loads(text, "plan") == program
    if seated:  # else only the program is right
        report = lint(text, "plan", target.name, sms=SMS)
        assert [f for f in report.findings if f.severity == "error"] == []
        assert report.ok
        assert report.verified is not None  # its own run, launch after launch


def traffic_of_trees(forest: Forest) -> Traffic:
    """What the edges of all trees carry, straight from their paths."""
    rank = {node: number for number, node in enumerate(forest.graph.ranks)}
    found: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    for tree in forest.expand().trees:
        for path in tree.edges:
            found[rank[path[0]], rank[path[-1]]] += Fraction(tree.weight, forest.total)
    return dict(found)


def traffic_of_routes(routes: Routes) -> Traffic:
    """What all paths carry from rank to rank, moved by every symmetry."""
    graph, group = routes.graph, routes.group
    rank = {node: number for number, node in enumerate(graph.ranks)}
    found: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    one = Fraction(1, len(rank) * routes.units)
    images = [tuple(range(graph.n))] if group is None else list(group.elements())
    for image, listed in product(images, routes.routes):
        stops = [rank[image[v]] for v in listed.path if v in rank]
        for hop in pairwise(stops):
            found[hop] += listed.units * one
    return dict(found)


# --- what is lowered


MACHINES: dict[str, tuple[str, dict[str, str]]] = {
    "switch": ("star", {"gpus": "4"}),
    "cube mesh": ("dgx1-v100", {}),
    "four hosts": ("fat-tree", {"leaves": "2", "hosts": "2", "gpus": "2"}),
    "torus": ("torus-2d", {"x": "3", "y": "3"}),
}


@cache
def machine(name: str) -> Topology:
    entry, settings = MACHINES[name]
    return catalog.load(entry, settings)


SHAPES: dict[str, tuple[int, Callable[..., Tree], int]] = {
    "pair": (2, chain, 1),
    "chain of boxes": (5, chain, 5),
    "two boxes": (6, chain, 2),
    "wide star": (11, star, 1),  # more peers than an operation or a thread block has
    "stars of boxes": (9, star, 3),
}
"""By hand: ranks, the tree of each root, boxes."""


@cache
def forest(name: str, collective: Collective) -> Forest:
    if name in SHAPES:
        n, shape, boxes = SHAPES[name]
        return of_shape(collective, n, shape, boxes)
    root = 1 if collective.has_root else None
    found = solver.solve(capacity_graph(machine(name)), collective, root, name=name)
    check(found)
    return found


@cache
def routes(name: str) -> Routes:
    return route(solve_flows(uniform(machine(name))))


Lowering = Callable[[Forest, Target], Program]


def spread(*settings: int) -> Lowering:
    """Cut to a grain, with children's pipelines apart or not, of so many units a chunk."""
    grain, children, units = settings
    return lambda f, t: lower(f, t, spread=Spread(grain, bool(children), units))


def packets(forest: Forest, target: Target) -> Program:
    """For few bytes."""
    return lower(forest, target, protocol="LL")


def as_synthesized(forest: Forest, target: Target) -> Program:
    """With as many thread blocks as keep the links busy."""
    return search(forest, target, lower(forest, target), SPREADING)[0]


FEW = replace(MSCCLPP, thread_blocks=1, steps=2000, channels=64, remote_buffers=128)
NARROW = replace(MSCCLPP, channels=3, peers=2, semaphores=1, thread_blocks=1000, steps=100)
LOWERINGS: dict[str, tuple[Target, Lowering]] = {
    "plain steps": (RCCL, lower),
    "plain steps for msccl": (MSCCL, lower),
    "queues in LL": (RCCL, lambda f, t: lower(f, t, protocol="LL")),
    "queues, two instances": (MSCCL, lambda f, t: lower(f, t, instances=2)),
    "pipelines": (MSCCLPP, lower),
    "pipelines, two instances": (MSCCLPP, lambda f, t: lower(f, t, instances=2)),
    "pipelines, cut": (MSCCLPP, spread(1, 0, 1)),
    "pipelines, children apart": (MSCCLPP, spread(0, 1, 1)),
    "pipelines, cut and apart": (MSCCLPP, spread(1, 1, 1)),
    "pipelines, cut in units": (MSCCLPP, spread(3, 0, 8)),
    "pipelines in one thread block": (FEW, lower),
    "pipelines in narrow thread blocks": (NARROW, lower),
    "pipelines in place": (MSCCLPP, lambda f, t: serve(lower(f, t), in_place=True)),
    "packets": (MSCCLPP, lambda f, t: lower(f, t, protocol="LL")),
    "packets in narrow thread blocks": (
        replace(NARROW, channels=4),
        lambda f, t: lower(f, t, protocol="LL"),
    ),
    "filled queues": (RCCL, as_synthesized),
    "filled pipelines": (MSCCLPP, as_synthesized),
}


@pytest.mark.parametrize(
    ("lowering", "name", "collective"),
    [
        (lowering, name, collective)
        for i, lowering in enumerate(LOWERINGS)
        for j, name in enumerate([*MACHINES, *SHAPES])
        for k, collective in enumerate(BY_TREES)
        if (i + j + k) % 3 == 0
    ],
)
def test_trees_become_programs_that_are_right(
    lowering: str, name: str, collective: Collective
) -> None:
    """Each lowering on each machine, each with each collective: a third of all that three make."""
    target, make = LOWERINGS[lowering]
    if name in SHAPES and make is as_synthesized:
        return  # full meshes by hand have no bandwidth that a plan could reach
    trees = forest(name, collective)
    program = make(trees, target)
    graph = trees.graph
    assert (program.collective, program.root) == (collective, trees.root)
    assert program.names == tuple(graph.names[node] for node in graph.ranks)
    validate(program, target, traffic_of_trees(trees))


@settings(max_examples=30, deadline=None)
@given(forests(), st.sampled_from([row for row in LOWERINGS if "filled" not in row]))
def test_any_trees_become_programs_that_are_right(made: Forest, lowering: str) -> None:
    target, make = LOWERINGS[lowering]
    validate(make(made, target), target, traffic_of_trees(made))


@pytest.mark.parametrize("target", [RCCL, MSCCL, MSCCLPP], ids=lambda t: t.name)
@pytest.mark.parametrize("name", MACHINES)
def test_routes_become_programs_that_are_right(name: str, target: Target) -> None:
    found = routes(name)
    validate(lowering.lower(found, target, name), target, traffic_of_routes(found))


Sum = int | frozenset["Sum"]
"""A rank's data, or what two sums are added up to, whichever comes first."""


@pytest.mark.parametrize(
    ("name", "target"),
    [
        (name, target)
        for i, name in enumerate([*MACHINES, "wide star", "stars of boxes"])
        for j, target in enumerate([RCCL, replace(MSCCLPP, peers=2), MSCCL, MSCCLPP])
        if (i + j) % 2 == 0
    ],
)
def test_rounds_become_programs_that_are_right(name: str, target: Target) -> None:
    """Whose ranks all end with the same bits: they add up the same sums."""
    if name in MACHINES:
        graph = capacity_graph(machine(name))
    else:
        graph = forest(name, Collective.ALLREDUCE).graph
    several = list(rounds_of(name, graph))
    assert several
    for number, rounds in enumerate(several):
        program = lower_rounds(rounds, target)
        validate(program, target, dict.fromkeys(rounds.pairs, Fraction(1)))
        assert program.in_place
        assert program.out_of_place
        if name in ("switch", "torus"):  # more take long
            run(program, seed=number)
        for dtype, op in (("float16", "max"), ("bfloat16", "sum"), ("int32", "sum")):
            result = cpu.run(program, 4000 + 2 * number, dtype=dtype, op=op, iterations=3)
            assert result.wrong == 0
        flow = dataflow(program)
        sums: list[Sum] = []
        for value in flow.values:
            parts = [sums[k] for k in value.made_from]
            sums.append(frozenset(parts) if len(parts) > 1 else (parts or [value.rank])[0])
        assert len({sums[k] for output in flow.outputs for k in output}) == 1


def test_rounds_have_their_limits() -> None:
    rounds = next(rounds_of("star", capacity_graph(catalog.load("star", {"gpus": "20"}))))
    with pytest.raises(PlanError, match=r"rank 0 \(gpu0\) needs 42 thread blocks, rccl holds 8; "):
        lower_rounds(rounds, RCCL.on(8))


def test_rounds_go_over_no_gpu() -> None:
    """A cube mesh's ranks reach three others and one of the other four; a ring's two reach two."""
    assert [r.sizes for r in rounds_of("", capacity_graph(machine("cube mesh")))] == [
        (4, 2),
        (2, 2, 2),
    ]
    assert not list(rounds_of("", capacity_graph(catalog.load("ring", {"gpus": "6"}))))


SWITCHED = (Collective.ALLREDUCE, Collective.ALLGATHER, Collective.BROADCAST)


@pytest.mark.parametrize("collective", SWITCHED, ids=str)
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("name", ["dgx-h100", "dgx-b200"])
def test_switches_are_told_what_to_copy_and_add(
    collective: Collective, in_place: bool, name: str
) -> None:
    graph = capacity_graph(catalog.load(name, {"boxes": "1"}))
    trees = multicast.forest(graph, collective, 0 if collective.has_root else None, name)
    assert trees is not None
    validate(lower_nvls(trees, MSCCLPP, in_place=in_place), MSCCLPP, None)
