"""Several groups at once on shared links: the common optimum, its proof, and trees that fit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import pytest
from graphs import build, dgx_a100, mi250, named, ring, torus
from random_graphs import random_graph
from random_problems import written_out

from forestcoll import solver
from forestcoll.common.errors import InfeasibleError
from forestcoll.graph.capacity_graph import CapacityGraph, Relays
from forestcoll.program import BY_TREES, Collective
from forestcoll.schedule import certificate
from forestcoll.schedule.dual import check_groups_bound
from forestcoll.schedule.forest import Symmetry
from forestcoll.schedule.group import GroupsBound, Together, fits, view_groups
from forestcoll.solver.groups import forests
from forestcoll.solver.groups import split as shared
from forestcoll.solver.groups.forests import pack_forests
from forestcoll.solver.groups.split import split, split_equally
from forestcoll.solver.walks import by_box
from forestcoll.topology import catalog

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
    collective: Collective | list[Collective],
    roots: list[int] | None = None,
    relays: Relays = "none",
    trees: int | Literal["auto"] = "auto",
    name: str = "",
    weights: Sequence[Fraction] = (),
) -> Together:
    starts = roots or [0] * len(groups)
    views = view_groups(machine, groups, starts, relays, collective, weights)
    shares = split(machine, views)
    return pack_forests(machine, views, shares, relays, trees, name)


def prove(done: Together, exact: bool = True) -> None:
    """Everything that the result claims, recomputed."""
    rates = [done.algbw * group.weight for group in done.groups]
    fits(done.machine, done.forests, rates)
    bound = check_groups_bound(done.machine, done.groups, done.bound)
    assert bound == done.bound.algbw >= done.algbw
    assert not exact or bound == done.algbw
    for forest, group, rate in zip(done.forests, done.groups, rates, strict=True):
        algbw, alone = certificate.check(forest)
        assert algbw == rate
        assert alone is not None
        assert alone == algbw or group.collective is Collective.ALLREDUCE


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


def test_alike_groups_are_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of one GPU of each box: the first's trees are all others', renamed, and proven."""
    calls, once = [], forests.pack_flow

    def count(*args: Any) -> Any:
        calls.append(args)
        return once(*args)

    monkeypatch.setattr(forests, "pack_flow", count)
    machine = named("dgx-a100 boxes=3").plain
    groups = [nodes(machine, *(f"box{b}/gpu{g}" for b in range(3))) for g in range(8)]
    prove(solve_together(machine, groups, Collective.ALLREDUCE))
    assert len(calls) == 1  # links are alike both ways: reductions and broadcasts


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
        assert float(done.algbw) == pytest.approx(written_out(machine, done.groups), rel=1e-6)
        tried += 1
    assert tried >= 3


@pytest.mark.parametrize("block", range(3))
def test_rates_and_collectives_of_their_own_agree_with_flows_written_out(block: int) -> None:
    tried = 0
    for seed in range(12 * block, 12 * block + 12):
        rng = random.Random(seed)
        machine = random_graph(seed)
        if not 4 <= len(machine.ranks) <= 6:
            continue
        groups = cut_up(machine, rng)
        kinds = [rng.choice(ALL) for _ in groups]
        weights = [Fraction(rng.randint(1, 5), rng.randint(1, 5)) for _ in groups]
        done = solve_together(machine, groups, kinds, relays="all", weights=weights)
        prove(done)
        judge = written_out(machine, done.groups)
        assert float(done.algbw) == pytest.approx(judge, rel=1e-6)
        equal = split_equally(machine, done.groups)
        assert equal[0] <= done.algbw <= equal[2].algbw
        tried += 1
    assert tried >= 3


def graph_of(name: str, **settings: str) -> CapacityGraph:
    return CapacityGraph.from_topology(catalog.load(name, settings), relays="all").plain


TABLE = {  # MI250, one box: allreduce of all groups at once
    "0-3 4-7 8-11 12-15": (None, 100),
    "0,4,8,12 1,5,9,13 2,6,10,14 3,7,11,15": (50, Fraction(200, 3)),
    "0,1,8,9 4-7 2,3,10,11 12-15": (100, None),
    "0,1,4,5 2,3,6,7 8,9,12,13 10,11,14,15": (150, None),
    "0,2,4,6,8,10,12,14 1,3,5,7,9,11,13,15": (60, None),
    "0,1,4,5,8,9,12,13 2,3,6,7,10,11,14,15": (100, None),
    "0-7 8-15": (150, None),
    "0,4 1,5 2,6 3,7 8,12 9,13 10,14 11,15": (50, None),
    "0,1 2,3 4,5 6,7 8,9 10,11 12,13 14,15": (200, None),
}


@pytest.mark.parametrize("placement", TABLE)
def test_what_placements_reach_on_an_mi250(placement: str) -> None:
    machine = graph_of("mi250")
    groups: Groups = []
    for text in placement.split():
        ends = [list(map(int, part.split("-"))) for part in text.split(",")]
        groups.append([machine.ranks[r] for e in ends for r in range(e[0], e[-1] + 1)])
    for relays, algbw in zip(("none", "all"), TABLE[placement], strict=True):
        if algbw is not None:
            done = solve_together(machine, groups, Collective.ALLREDUCE, relays=relays)  # type: ignore[arg-type]
            prove(done)
            assert done.algbw == algbw
    if TABLE[placement][0] is None:
        with pytest.raises(InfeasibleError, match="group 0: ranks"):
            solve_together(machine, groups, Collective.ALLREDUCE)


def test_what_groups_reach_across_a_fat_tree() -> None:
    """64 GPUs on 8 leaves of 8, 2:1: pairs and fours on one leaf, two leaves, four."""
    machine = graph_of("fat-tree", leaves="8", hosts="8", gpus="1", oversubscription="2")
    leaf = [list(machine.ranks[8 * i : 8 * i + 8]) for i in range(8)]
    pairs = [(leaf[i], leaf[i + 1]) for i in range(0, 8, 2)]
    across = [[a[j], b[j]] for a, b in pairs for j in range(8)]
    within = [own[j : j + 2] for own in leaf for j in range(0, 8, 2)]
    two = [[a[j], a[j + 1], b[j], b[j + 1]] for a, b in pairs for j in range(0, 8, 2)]
    four = [[own[j] for own in leaf[i : i + 4]] for i in (0, 4) for j in range(8)]
    reached = [
        solve_together(machine, g, Collective.ALLREDUCE) for g in (across, within, four, two)
    ]
    assert [done.algbw for done in reached] == [25, 50, Fraction(50, 3), Fraction(100, 3)]
    for done in reached:
        prove(done)


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
    fits(done.machine, done.forests, [done.algbw] * len(done.forests))
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
    return check_groups_bound(done.machine, done.groups, bound)


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
    found = split(machine, view_groups(machine, halves, [0, 0], "all", Collective.ALLREDUCE))
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
