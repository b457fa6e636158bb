"""Equal units of an all-to-all on paths: written once for all images under a group.

Every pair has its units, no rate beats the bound, and files say the same to us and to a stranger.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from exchanges import proven, routes, solved, turn
from graphs import build, dgx_a100, ring, shuffled, torus
from random_graphs import random_graph
from stranger_alltoall import judge

from forestcoll.common.errors import ForestError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry import group as symmetry_groups
from forestcoll.graph.symmetry.group import (
    AbelianGroup,
    SymmetryGroup,
    abelian_group,
    commuting_group,
)
from forestcoll.lower.alltoall.lowering import write_out
from forestcoll.solver.alltoall import file, rounding
from forestcoll.solver.alltoall.demand import Demand
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.fold import fold
from forestcoll.solver.alltoall.rounding import (
    Commodity,
    Load,
    Repair,
    free_group,
    partial_group,
    restrict,
    route,
)
from forestcoll.solver.alltoall.routes import Route, Routes, _Orders, check, even_out, loads

TORUS = "torus-3d x=3 y=3 z=3"


def complete(found: Routes) -> Fraction:
    """GB/s, once it is proven that every pair has each of its units once."""
    units: dict[tuple[int, int], list[int]] = defaultdict(list)
    for flow in write_out(found):
        units[flow.ranks[0], flow.ranks[-1]] += range(flow.first, flow.first + flow.count)
    ranks = len(found.graph.ranks)
    assert len(units) == ranks * (ranks - 1)
    assert all(sorted(numbers) == list(range(found.units)) for numbers in units.values())
    return proven(found)


@pytest.mark.parametrize(
    ("name", "units"),
    [
        *(("mi250 boxes=2", 1), ("mi250 boxes=8", 1), ("dgx1-v100", 3), ("mi250", 3)),
        *(("dgx-a100 boxes=2", 1), ("dgx-a100 boxes=8", 1), ("dgx-a100 boxes=128", 1)),
        *((TORUS, 1), ("torus-3d", 1), ("torus-3d x=8 y=8 z=8", 1)),
        ("dragonfly groups=9 routers=4 gpus=2", 1),
    ],
)
def test_the_optimum_in_few_units(name: str, units: int) -> None:
    found = route(solved(name), units)
    assert check(found) == found.optimum.algbw
    if len(found.graph.ranks) <= 128:
        assert complete(found) == found.algbw


def test_fewest_units_that_reach_a_share() -> None:
    """Where a NIC is out the group has one element: every path is listed."""
    best = solved("dgx-a100 boxes=2 -box0/gpu0-fabric")
    shares = [route(best, k).algbw / best.algbw for k in (1, 2, 4)]
    assert all(100 * share >= least for share, least in zip(shares, (91, 96, 98), strict=True))
    chosen = route(best)
    assert proven(chosen) >= Fraction(99, 100) * best.algbw
    assert chosen.images == 1
    assert routes("dgx-a100 boxes=4 -box0/gpu0-fabric").images == 1
    few = (route(solved("mi250"), min_share=Fraction(share, 100)).units for share in (90, 100))
    assert [*few] == [1, 3]


def test_random_graphs() -> None:
    """One-way links, switches, mixed."""
    for seed in range(40):
        best = solve(Demand(random_graph(seed)))
        found = route(best, 2)
        assert check(found) == proven(found) <= best.algbw


# --- groups that leave nodes in their places ------------------------------------------------------


def compact(text: str, units: int) -> Routes:
    """The routes as they are made where listing every path is out of reach."""
    best = solved(text)
    group = partial_group(best.demand.graph, best.folding)
    assert group is not None
    net = rounding._Net(best, group)
    found = net.round(net.solve(), units)
    check(found)
    return found


@pytest.mark.parametrize(
    ("name", "units", "size"),
    [
        ("dgx-a100 boxes=4 -box0/gpu0-fabric", 7, 24),
        ("dgx-a100 boxes=6 -box0/gpu0-fabric -box1/gpu0-fabric", 4, 64),
        ("dgx-a100 boxes=4 -box2/gpu3-box2/nvswitch", 1, 24),
        ("mi250 boxes=4 -box0/gpu0-fabric", 2, 6),
    ],
)
def test_a_broken_machine_has_a_group_yet(name: str, units: int, size: int) -> None:
    found = compact(name, units)
    assert found.images == size
    assert len(found.routes) < found.total
    complete(found)


def test_a_nic_out_of_1024_gpus() -> None:
    """Seven units, one for each NIC that is left, are the optimum; about a path a pair."""
    best = solved("dgx-a100 boxes=128 -box0/gpu0-fabric")
    found = rounding.route(best)
    assert found.algbw == best.algbw == Fraction(2800, 127)
    assert (found.units, found.images) == (7, 1016)
    assert len(found.routes) < 1200
    text = file.dumps(found, "x")
    assert len(text) < 600_000
    read, _, bound = file.loads(text)
    assert read.algbw == bound == best.algbw


@pytest.mark.slow
def test_three_nics_out_of_384_gpus() -> None:
    gone = " ".join(f"-box{b}/gpu0-fabric" for b in range(3))
    best = solved(f"dgx-a100 boxes=48 {gone}")
    found = rounding.route(best)
    assert found.algbw >= Fraction(99, 100) * best.algbw
    assert (found.images, len(found.routes) < 1500) == (1080, True)
    assert file.loads(file.dumps(found, "x"))[0].algbw == found.algbw


def hub(leaves: int) -> CapacityGraph:
    return build([("hub", f"leaf{i}", 1) for i in range(leaves)])


def test_images_of_paths_and_pairs() -> None:
    graph = hub(5)
    center, a, b, c, d, e = (graph.names.index(n) for n in ("hub", *(f"leaf{i}" for i in range(5))))
    group = abelian_group(
        graph, [turn(graph, "leaf0", "leaf1", "leaf2"), turn(graph, "leaf3", "leaf4")]
    )
    assert group.size == 6
    assert [group.images_of(nodes) for nodes in ([center], [a], [d], [a, center, d])] == [
        1,
        3,
        2,
        6,
    ]
    ways = [(a, center, b), (b, center, c), (c, center, a)]
    assert sorted(group.images(ways[0])) == sorted(ways)
    assert group.least_images(a)[d] == group.least_images(a)[e] == min(d, e)
    assert group.least_images(center)[c] == min(a, b, c)
    assert sorted(group.nodes_in_place((d,))) == sorted((center, d, e))
    assert set(group.elements()) == {tuple(row) for row in group.table.tolist()}


def test_groups_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = symmetry_groups.GROUP_STEPS.__class__(8, "GROUP_STEPS")
    monkeypatch.setattr(symmetry_groups, "GROUP_STEPS", limit)
    with pytest.raises(ForestError, match=r"over 1 elements on 5 nodes \(input limit GROUP_STEPS"):
        abelian_group(hub(4), [turn(hub(4), "leaf0", "leaf1")])


def test_groups_that_move_every_rank_stay_what_they_are() -> None:
    around = tuple((v + 1) % 4 for v in range(4))
    assert isinstance(commuting_group(ring(4), [around]), SymmetryGroup)
    assert isinstance(commuting_group(hub(3), [turn(hub(3), "leaf0", "leaf1")]), AbelianGroup)


def test_the_part_without_the_others() -> None:
    graph = dgx_a100(3)
    ranks = [v for v in graph.ranks if graph.box(v) != "box1"]
    kept, part = restrict(graph, ranks)
    assert len(part.ranks) == 16
    assert all(graph.box(v) != "box1" for v in kept)
    assert [graph.names[v] for v in kept] == list(part.names)
    assert partial_group(ring(4), fold(Demand(ring(4)))) is not None


def test_images_of_one_pair_are_counted() -> None:
    """A pair that stays in place, over a rank that moves: each image is one more path of it."""
    graph = build([(u, v, 1) for u in ("a", "b") for v in ("y", "z")])
    ways = {"ayb": 1, "bya": 1, "ay": 2, "ya": 2, "by": 2, "yb": 2, "yaz": 1, "ybz": 1}
    paths = tuple(Route(tuple(map(graph.names.index, way)), k) for way, k in ways.items())
    found = Routes(solve(Demand(graph)), abelian_group(graph, [turn(graph, "y", "z")]), 2, paths)
    assert check(found) == found.algbw == proven(found) == found.optimum.algbw
    twice = replace(found, routes=(replace(paths[0], units=2), *paths[1:]))
    with pytest.raises(ForestError, match="routes: 4 units from a to b, not 2"):
        check(twice)
    with pytest.raises(AssertionError):
        judge(json.loads(file.dumps(twice, "x")))


@pytest.mark.parametrize(
    ("graph", "size"),
    [
        *((dgx_a100(2), 16), (dgx_a100(8), 64), (torus(3, 3, 3), 27), (torus(4, 4, 4), 64)),
        *((ring(5), 5), (build([("a", "b", 1), ("b", "c", 2)]), 1)),
    ],
)
def test_free_groups_whatever_the_order(graph: CapacityGraph, size: int) -> None:
    for given in (graph, shuffled(graph, 1)):
        group = free_group(Demand(given))
        assert (1 if group is None else group.size) == size


def test_a_group_keeps_what_is_sent() -> None:
    table = tuple(tuple((i != j) * (1 + (i == 0)) for j in range(4)) for i in range(4))
    assert free_group(Demand(ring(4), table)) is None


# --- repair, and the order of hops ----------------------------------------------------------------


def test_repair_empties_the_fullest_link() -> None:
    """Two ways from a to b, all units on one."""
    graph = build([(end, way, 1) for end in "ab" for way in ("left", "right")])
    a, b, left = (graph.names.index(name) for name in ("a", "b", "left"))

    def orbits(path: tuple[int, ...]) -> list[int]:
        return [graph.numbers[pair] for pair in pairwise(path)]

    paths = {(a, left, b): 4}
    load = Load([1.0] * len(graph.tail), 2)
    for e in orbits((a, left, b)):
        load.count[e] = 4
    commodity = Commodity(a, (b,), frozenset(range(graph.n)), 1)
    Repair(graph, range(len(graph.tail)), orbits, {(a, b): commodity}, paths, load).run()
    assert sorted(paths.values()) == [2, 2]
    assert load.worst() == 1


def time_by_hops(found: Routes) -> int:
    """The fullest links of all hops, added up: blocks' time."""
    hops: dict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
    for one in found.expand():
        for hop, link in enumerate(pairwise(one.path)):
            hops[hop][link] += one.units
    return sum(max(carried.values()) for carried in hops.values())


@pytest.mark.parametrize(("name", "most"), [("torus-3d", 35), ("hypercube dimension=4", 10)])
def test_hops_are_even(name: str, most: int) -> None:
    """Without another order 63 and 16.

    No order can have less than each hop's blocks dealt out to all links: 35 and 9.
    """
    found = routes(name, 1)
    assert found.algbw == found.optimum.algbw
    assert time_by_hops(found) <= most


@pytest.mark.parametrize("name", [TORUS, "mi250", f"{TORUS} -gpu0-gpu1"])
def test_another_order_changes_no_load(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(rounding, "even_out", lambda found: found)
    found = route(solved(name), 2)
    ordered = even_out(found)
    assert check(ordered) == found.algbw
    one, other = (loads(found.graph, found.group, way.routes) for way in (found, ordered))
    assert one == other
    assert time_by_hops(ordered) <= time_by_hops(found)
    assert (time_by_hops(ordered) < time_by_hops(found)) == (name == TORUS)


@pytest.mark.parametrize("units", [3, 8])
def test_a_link_full_in_one_hop_does_not_count_for_others(
    monkeypatch: pytest.MonkeyPatch, units: int
) -> None:
    """Links of a DGX-1 that only direct blocks use are full in the first hop, whatever the order.

    The second hop takes an eighth of the time beside it: with any order it was five sixteenths.
    """
    monkeypatch.setattr(rounding, "even_out", lambda found: found)
    found = route(solved("dgx1-v100"), units)
    before, after = (
        _Orders(one).time() * float(found.optimum.rate) / units for one in (found, even_out(found))
    )
    assert before > 1.3
    assert after < 1.13


def test_too_many_sources_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "MOST_VARIABLES", 1000)
    with pytest.raises(
        rounding.UnsupportedError, match=r"27 sources .* 4,320 variables, over 1,000"
    ):
        route(solved(f"{TORUS} -gpu0-gpu1"))
