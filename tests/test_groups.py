"""Several groups at once on shared links: the common optimum, its proof, and trees that fit."""

from __future__ import annotations

import random
import warnings
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import pytest
from graphs import build, dgx_a100, mi250, ring, torus
from random_graphs import random_graph

from forestcoll import solver
from forestcoll.common.errors import InfeasibleError
from forestcoll.graph.capacity_graph import CapacityGraph, Relays
from forestcoll.program import BY_TREES, Collective
from forestcoll.schedule import certificate
from forestcoll.schedule.dual import check_groups_bound
from forestcoll.schedule.forest import Symmetry
from forestcoll.schedule.group import GroupsBound, Together, fits, view_groups
from forestcoll.solver.groups import split as shared
from forestcoll.solver.groups.forests import pack_forests
from forestcoll.solver.groups.split import split
from forestcoll.solver.walks import by_box

ALL = tuple(BY_TREES)
Groups = list[list[int]]
EVEN_AND_ODD: Groups = [list(range(start, 16, 2)) for start in (0, 1)]


def nodes(graph: CapacityGraph, *names: str) -> list[int]:
    return [graph.names.index(name) for name in names]


def boxes(graph: CapacityGraph) -> Groups:
    return list(by_box(graph, graph.ranks).values())


def solve_together(
    machine: CapacityGraph,
    groups: Groups,
    collective: Collective,
    roots: list[int] | None = None,
    relays: Relays = "none",
    trees: int | Literal["auto"] = "auto",
    name: str = "",
) -> Together:
    views = view_groups(machine, groups, roots or [0] * len(groups), relays)
    shares = split(machine, views, collective)
    return pack_forests(machine, views, shares, collective, relays, trees, name)


def prove(done: Together, exact: bool = True) -> None:
    """Everything that the result claims, recomputed."""
    fits(done.machine, done.forests, done.algbw)
    bound = check_groups_bound(done.machine, done.groups, done.collective, done.bound)
    assert bound == done.bound.algbw >= done.algbw
    assert not exact or bound == done.algbw
    for forest in done.forests:
        algbw, alone = certificate.check(forest)
        assert algbw == done.algbw
        assert alone is not None
        assert alone == algbw or done.collective is Collective.ALLREDUCE


def oracle(
    machine: CapacityGraph, groups: Groups, collective: Collective, relays: str = "none"
) -> float:
    """The common rate by one flow per group, phase and rank, written out whole, in GB/s."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ortools.linear_solver import pywraplp
    lp = pywraplp.Solver.CreateSolver("GLOP")
    inf = lp.infinity()
    rate = lp.NumVar(0, inf, "rate")
    taken: dict[tuple[int, int], list[Any]] = {}
    for group in view_groups(machine, groups, [0] * len(groups), relays):  # type: ignore[arg-type]
        ranks = group.graph.ranks
        start = {v: lp.NumVar(0, inf, "") for v in ranks}
        lp.Add(sum(start.values()) == rate)
        for v in ranks:
            if collective.has_root:
                lp.Add(start[v] == (rate if v == ranks[0] else 0))
            elif collective is not Collective.ALLREDUCE:
                lp.Add(len(ranks) * start[v] == rate)
        for phase in collective.phases:
            arcs = list(group.graph.ends)
            load = [lp.NumVar(0, inf, "") for _ in arcs]
            for e, pair in enumerate(arcs):
                taken.setdefault(pair, []).append(load[e])
            for w in set(range(machine.n)) - set(ranks):
                into = sum(x for x, (_, v) in zip(load, arcs, strict=True) if v == w)
                lp.Add(into == sum(x for x, (u, _) in zip(load, arcs, strict=True) if u == w))
            turned = arcs if phase == "broadcast" else [(v, u) for u, v in arcs]
            for sink in ranks:
                flow = [lp.NumVar(0, inf, "") for _ in arcs]
                for x, most in zip(flow, load, strict=True):
                    lp.Add(x <= most)
                for w in set(range(machine.n)) - {sink}:
                    into = sum(x for x, (_, v) in zip(flow, turned, strict=True) if v == w)
                    out = sum(x for x, (u, _) in zip(flow, turned, strict=True) if u == w)
                    lp.Add(out - into == start.get(w, 0))
    capacity = dict(zip(machine.ends, machine.capacity, strict=True))
    for pair, loads in taken.items():
        lp.Add(sum(loads) <= capacity[pair])
    lp.Maximize(rate)
    assert lp.Solve() == pywraplp.Solver.OPTIMAL
    return float(rate.solution_value() * machine.unit)


def cut_up(graph: CapacityGraph, rng: random.Random) -> Groups:
    """Two or three groups of the ranks, in random order, now and then with a rank in two groups."""
    ranks = rng.sample(graph.ranks, len(graph.ranks))
    at = rng.randint(2, len(ranks) - 2)
    groups = [ranks[:at], ranks[at:]]
    if len(groups[1]) >= 4:
        groups[1:] = [groups[1][:2], groups[1][2:]]
    if rng.random() < 0.3:
        groups[0] = [*groups[0], groups[1][0]]
    return [list(group) for group in groups]


@pytest.mark.parametrize("block", range(6))
def test_random_graphs_agree_with_flows_written_out(block: int) -> None:
    tried = 0
    for seed in range(20 * block, 20 * block + 20):
        rng = random.Random(seed)
        machine = random_graph(seed)
        if not 4 <= len(machine.ranks) <= 6:
            continue
        groups, collective = cut_up(machine, rng), ALL[seed % 5]
        relays = rng.choice(("all", "idle", "all", "none"))
        try:
            done = solve_together(machine, groups, collective, relays=relays)  # type: ignore[arg-type]
        except InfeasibleError:
            assert relays != "all"
            continue
        prove(done)
        assert float(done.algbw) == pytest.approx(
            oracle(machine, groups, collective, relays), rel=1e-6
        )
        tried += 1
    assert tried >= 3


@pytest.mark.parametrize("collective", ALL)
def test_one_group_of_all_is_the_optimum(collective: Collective) -> None:
    for machine in (dgx_a100(2), mi250(1), ring(5, both=False)):
        done = solve_together(machine, [list(machine.ranks)], collective)
        prove(done)
        root = 0 if collective.has_root else None
        assert done.algbw == solver.optimum(machine, collective, root).algbw


@pytest.mark.parametrize("collective", ALL)
def test_boxes_do_not_hinder_each_other(collective: Collective) -> None:
    """The fabric helps: each GPU sends 300 over NVLink and 25 over the network at once."""
    done = solve_together(dgx_a100(2), boxes(dgx_a100(2)), collective)
    prove(done)
    alone = build(
        [(f"gpu{i}", "nvswitch", 300) for i in range(8)]
        + [(f"gpu{i}", "fabric", 25) for i in range(8)]
    )
    root = 0 if collective.has_root else None
    assert done.algbw == solver.optimum(alone, collective, root).algbw


def test_groups_across_share_the_network() -> None:
    """A group of six and one of ten: each is to move the same data through its own adapters."""
    machine = dgx_a100(2)
    three = [f"box{b}/gpu{i}" for b in (0, 1) for i in range(3)]
    five = [f"box{b}/gpu{i}" for b in (0, 1) for i in range(3, 8)]
    done = solve_together(
        machine, [nodes(machine, *three), nodes(machine, *five)], Collective.ALLGATHER
    )
    prove(done)
    assert done.algbw == 150  # half of the data of six GPUs enters a box through three adapters


def test_relays_all_use_the_others_links() -> None:
    machine = mi250(1)
    done = solve_together(machine, EVEN_AND_ODD, Collective.ALLGATHER, relays="all")
    prove(done)
    assert done.algbw == Fraction(1200, 7)


def test_idle_gpus_relay() -> None:
    machine = build([("a", "x", 4), ("x", "b", 4), ("b", "y", 4), ("y", "a", 4), ("c", "d", 1)])
    pairs = [nodes(machine, "a", "b"), nodes(machine, "c", "d")]
    done = solve_together(machine, pairs, Collective.BROADCAST, relays="idle")
    prove(done)
    assert done.algbw == 1
    used = set(done.forests[0].graph.names)
    assert {"a", "b"} < used <= {"a", "b", "x", "y"}


def test_roots_of_the_groups() -> None:
    machine = build([("a", "b", 9), ("d", "e", 5)])
    groups = [nodes(machine, "a", "b"), nodes(machine, "d", "e")]
    done = solve_together(machine, groups, Collective.BROADCAST, roots=[1, 0])
    assert [f.graph.names[f.trees[0].root] for f in done.forests] == ["b", "d"]
    assert done.algbw == 5


def test_a_number_of_trees() -> None:
    machine = dgx_a100(2)
    done = solve_together(machine, boxes(machine), Collective.ALLGATHER, trees=1)
    assert [forest.trees_per_root for forest in done.forests] == [1, 1]
    fits(done.machine, done.forests, done.algbw)
    best = solve_together(machine, boxes(machine), Collective.ALLGATHER)
    assert done.algbw <= best.algbw == done.bound.algbw


def test_names_and_ranks_of_the_forests() -> None:
    machine = dgx_a100(1)
    groups = [nodes(machine, "box0/gpu3", "box0/gpu1"), nodes(machine, "box0/gpu0", "box0/gpu7")]
    done = solve_together(machine, groups, Collective.ALLREDUCE, name="dgx")
    prove(done)
    assert [forest.name for forest in done.forests] == ["dgx-group0", "dgx-group1"]
    first = done.forests[0].graph
    assert [first.names[v] for v in first.ranks] == ["box0/gpu3", "box0/gpu1"]


@pytest.mark.parametrize("collective", ALL)
def test_many_gpus_share_equally(collective: Collective, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit each group gets an equal part; the report says so, the bound still holds."""
    monkeypatch.setattr(shared, "LINKS", 15)
    machine = dgx_a100(2)
    rails = [nodes(machine, f"box0/gpu{i}", f"box1/gpu{i}") for i in range(8)]
    done = solve_together(machine, rails, collective)
    prove(done, exact=False)
    # nothing is shared: the equal parts are whole links
    monkeypatch.setattr(shared, "LINKS", 40_000)
    assert done.algbw == solve_together(machine, rails, collective).algbw
    monkeypatch.setattr(shared, "LINKS", 15)
    less = solve_together(mi250(1), EVEN_AND_ODD, collective, relays="all")
    prove(less, exact=False)
    assert less.algbw == less.bound.algbw or "links in all, the limit is 15" in less.note


def test_too_many_links_share_equally(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "VARIABLES", 10)
    done = solve_together(mi250(1), EVEN_AND_ODD, Collective.ALLREDUCE, relays="all")
    prove(done, exact=False)
    assert done.algbw < done.bound.algbw
    assert "the limit is 10" in done.note


@pytest.mark.parametrize(
    ("count", "collective", "algbw"),
    [(8, Collective.ALLGATHER, "200/7"), (16, Collective.ALLREDUCE, "40/3")],
)
def test_rails_of_many_boxes(count: int, collective: Collective, algbw: str) -> None:
    machine = dgx_a100(count)
    rails = [nodes(machine, *(f"box{b}/gpu{i}" for b in range(count))) for i in range(8)]
    done = solve_together(machine, rails, collective)
    prove(done)
    assert done.algbw == Fraction(algbw)


def test_switches_that_copy_keep_the_bound_honest() -> None:
    """Two groups behind a switch that copies: trees do not use it here, the bound allows it."""
    links = [("a", "w", 1), ("w", "b", 9), ("w", "c", 9), ("b", "w", 9), ("c", "w", 9)]
    machine = build([*links, ("w", "a", 9), ("d", "w", 9), ("w", "d", 9)], both=False, switches="w")
    copying = replace(machine, multicast=tuple(name == "w" for name in machine.names))
    groups = [nodes(machine, "a", "b", "c")]
    for graph in (machine, copying):
        done = solve_together(graph, groups, Collective.BROADCAST)
        prove(done, exact=False)


# ------------------------------------------------------------------------------- certificates


def solved() -> Together:
    machine = dgx_a100(2)
    return solve_together(machine, boxes(machine), Collective.ALLGATHER)


def judged(done: Together, bound: GroupsBound) -> Fraction:
    return check_groups_bound(done.machine, done.groups, done.collective, bound)


def test_cuts_that_prove_less() -> None:
    """What proves nothing: refusals/proofs.txt."""
    done = solved()
    alone = replace(done.bound.cuts[0], group=0, side=frozenset(done.groups[0].graph.ranks[:3]))
    assert judged(done, GroupsBound(done.algbw, (alone,))) >= done.algbw
    for number in range(len(done.bound.cuts)):
        cuts = list(done.bound.cuts)
        cuts[number] = replace(cuts[number], weight=cuts[number].weight * 3)
        assert judged(done, replace(done.bound, cuts=tuple(cuts))) >= done.algbw


def test_splits_leave_nothing_out() -> None:
    machine = mi250(1)
    halves = [list(range(8)), list(range(8, 16))]
    found = split(machine, view_groups(machine, halves, [0, 0], "all"), Collective.ALLREDUCE)
    assert {(flow.group, flow.phase) for flow in found.flows} == {
        (g, phase) for g in (0, 1) for phase in ("broadcast", "reduce")
    }
    used: dict[tuple[int, int], Fraction] = {}
    for flow in found.flows:
        graph = flow.graph if flow.phase == "broadcast" else flow.graph.reverse()
        for u, v, c in graph.arcs:
            used[u, v] = used.get((u, v), Fraction(0)) + c * graph.unit
        assert sum(flow.supply) * flow.graph.unit == found.algbw
    for u, v, c in machine.arcs:
        assert used.get((u, v), Fraction(0)) <= c * machine.unit


# -------------------------------------------------------------------------------- symmetries


def test_symmetries_make_large_problems_small() -> None:
    """64 GPUs with all links for every group; some 1,900 links are a few that differ."""
    machine = torus(4, 4, 4)
    planes = [[v for v in machine.ranks if machine.names[v].startswith(f"{i}.")] for i in range(4)]
    done = solve_together(machine, planes, Collective.ALLREDUCE, relays="all")
    prove(done)
    assert done.algbw == Fraction(320, 3)
    assert done.bound.symmetries
    assert not done.note


def test_bounds_hold_without_symmetries_only_where_they_are_whole() -> None:
    done = solved()
    assert done.bound.symmetries
    assert judged(done, replace(done.bound, symmetries=())) >= done.bound.algbw


def test_two_gpus_of_a_box_may_trade_places() -> None:
    """What may not: refusals/proofs.txt."""
    done = solved()
    image = list(range(done.machine.n + len(done.groups)))
    u, v = nodes(done.machine, "box0/gpu0", "box0/gpu1")
    image[u], image[v] = v, u
    assert judged(done, replace(done.bound, symmetries=(Symmetry(tuple(image)),))) > 0
