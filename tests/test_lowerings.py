"""Every lowering on every machine, by one validator: structure, both proofs, lint, and traffic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from itertools import pairwise, product

import pytest

from forestcoll import plans, solver
from forestcoll.compile.problem import capacity_graph
from forestcoll.lower import fill, lower, serve
from forestcoll.lower.alltoall import lowering
from forestcoll.lower.nvls import lower_nvls
from forestcoll.lower.onesided import Spread
from forestcoll.plans.lint import lint
from forestcoll.program import BY_TREES, Collective, Program
from forestcoll.program.check import check as check_structure
from forestcoll.program.targets import MSCCL, MSCCLPP, RCCL, Target
from forestcoll.schedule.forest import Forest, check
from forestcoll.solver import multicast
from forestcoll.solver.alltoall.demand import uniform
from forestcoll.solver.alltoall.flows import solve as solve_flows
from forestcoll.solver.alltoall.rounding import route
from forestcoll.solver.alltoall.routes import Routes
from forestcoll.topology import Topology, catalog
from forestcoll.verify import verify

Traffic = Mapping[tuple[int, int], Fraction]
"""(rank, rank) -> share of all data that the one hands straight to the other."""

SMS = 132


def validate(program: Program, target: Target, traffic: Traffic | None) -> None:
    """Right in itself, by both proofs, as the runtime reads it, and with the traffic asked for.

    `traffic`: None where switches copy and add, so that ranks hand each other other shares.
    """
    check_structure(program)
    assert program.style == target.style
    assert program.in_place or program.out_of_place
    proven = verify(program, target=target)
    assert proven.modes == tuple(
        mode
        for mode, does in (("out-of-place", program.out_of_place), ("in-place", program.in_place))
        if does
    )
    if traffic is not None:
        assert {pair: load for pair, load in proven.loads.items() if load} == traffic
    text = plans.dumps(program, target.format, target)
    assert plans.loads(text, "plan") == program
    report = lint(text, "plan", target.name, sms=SMS)
    assert [f for f in report.findings if f.severity == "error"] == []
    assert report.ok
    assert report.verified is not None  # its own run, message by message and launch after launch


def traffic_of_trees(forest: Forest) -> Traffic:
    """What the edges of all trees carry, straight from their paths."""
    rank = {node: number for number, node in enumerate(forest.graph.ranks)}
    found: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    for tree in forest.expanded().trees:
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


@cache
def forest(name: str, collective: Collective) -> Forest:
    root = 1 if collective.rooted else None
    found = solver.solve(capacity_graph(machine(name)), collective, root, name=name)
    check(found)
    return found


@cache
def routes(name: str) -> Routes:
    return route(solve_flows(uniform(machine(name))))


Lowering = Callable[[Forest, Target], Program]


def spread(forest: Forest, target: Target) -> Program:
    """Cut finer, with children's pipelines apart."""
    return lower(forest, target, spread=Spread(1, True))


def as_synthesized(forest: Forest, target: Target) -> Program:
    """With as many thread blocks as keep the links busy."""
    return fill(forest, target, lower(forest, target))[0]


LOWERINGS: dict[str, tuple[Target, Lowering]] = {
    "plain steps": (RCCL, lower),
    "plain steps for msccl": (MSCCL, lower),
    "queues in LL": (RCCL, lambda f, t: lower(f, t, protocol="LL")),
    "queues, two instances": (MSCCL, lambda f, t: lower(f, t, instances=2)),
    "pipelines": (MSCCLPP, lower),
    "pipelines, two instances": (MSCCLPP, lambda f, t: lower(f, t, instances=2)),
    "pipelines, spread": (MSCCLPP, spread),
    "pipelines in place": (MSCCLPP, lambda f, t: serve(lower(f, t), in_place=True)),
    "packets": (MSCCLPP, lambda f, t: lower(f, t, protocol="LL")),
    "filled queues": (RCCL, as_synthesized),
    "filled pipelines": (MSCCLPP, as_synthesized),
}


@pytest.mark.parametrize("collective", list(BY_TREES), ids=str)
@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_trees_become_programs_that_are_right(
    lowering: str, name: str, collective: Collective
) -> None:
    target, make = LOWERINGS[lowering]
    trees = forest(name, collective)
    validate(make(trees, target), target, traffic_of_trees(trees))


@pytest.mark.parametrize("target", [RCCL, MSCCL, MSCCLPP], ids=lambda t: t.name)
@pytest.mark.parametrize("name", MACHINES)
def test_routes_become_programs_that_are_right(name: str, target: Target) -> None:
    found = routes(name)
    validate(lowering.lower(found, target, name), target, traffic_of_routes(found))


SWITCHED = (Collective.ALLREDUCE, Collective.ALLGATHER, Collective.BROADCAST)


@pytest.mark.parametrize("collective", SWITCHED, ids=str)
@pytest.mark.parametrize("in_place", [True, False])
def test_switches_are_told_what_to_copy_and_add(collective: Collective, in_place: bool) -> None:
    graph = capacity_graph(catalog.load("dgx-h100", {"boxes": "1"}))
    trees = multicast.forest(graph, collective, 0 if collective.rooted else None, "dgx-h100")
    assert trees is not None
    validate(lower_nvls(trees, MSCCLPP, in_place=in_place), MSCCLPP, None)
