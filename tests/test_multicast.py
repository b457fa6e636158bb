"""Switches that copy and add in the fabric: what trees through them reach, and the proof."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest
from graphs import able, build, dgx_a100
from random_graphs import random_graph

from forestcoll import solver
from forestcoll.common.errors import InfeasibleError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import BY_TREES, Collective
from forestcoll.schedule import certificate
from forestcoll.schedule.forest import Tree
from forestcoll.solver import multicast
from forestcoll.topology import catalog

ALL = tuple(BY_TREES)


def h100(boxes: int) -> CapacityGraph:
    return CapacityGraph.from_topology(catalog.load("dgx-h100", {"boxes": str(boxes)}))


def same(algbw: int | str) -> tuple[Fraction, Fraction]:
    """What `certificate.check` gives of an optimal forest."""
    return Fraction(algbw), Fraction(algbw)


def start(collective: Collective) -> int | None:
    return 0 if collective.has_root else None


@pytest.mark.parametrize(("boxes", "algbw"), [(1, "450"), (2, "400"), (4, "800/3")])
def test_allreduce_of_h100_boxes_is_proven(boxes: int, algbw: str) -> None:
    """Without the fabric: 1800/7, 800/3 and 8000/31."""
    graph = h100(boxes)
    forest = multicast.forest(graph, Collective.ALLREDUCE)
    assert forest is not None
    assert certificate.check(forest) == same(algbw)
    assert forest.height <= 2
    plain = solver.optimum(graph, Collective.ALLREDUCE)
    best = multicast.better(graph, Collective.ALLREDUCE, None, plain)
    assert best is not None
    assert best.algbw == best.bound.algbw == Fraction(algbw) > plain.algbw
    assert best.note == ""


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE])
def test_one_tree_serves_a_box(collective: Collective) -> None:
    forest = multicast.forest(h100(1), collective, 3)
    assert forest is not None
    assert certificate.check(forest) == same(450)
    assert [len(forest.trees), forest.height] == [1, 1]
    assert max(map(len, forest.trees[0].edges)) == 3  # through the switch, once


@pytest.mark.parametrize("collective", ALL)
@pytest.mark.parametrize("boxes", [1, 2])
def test_every_collective_reaches_its_bound(collective: Collective, boxes: int) -> None:
    forest = multicast.forest(h100(boxes), collective, start(collective), name="h100")
    assert forest is not None
    algbw, bound = certificate.check(forest)
    assert algbw == bound


@pytest.mark.parametrize("collective", ALL)
def test_switches_that_cannot_are_left_to_the_plain_trees(collective: Collective) -> None:
    graph = dgx_a100(2)
    assert not multicast.usable(graph, collective)
    assert multicast.forest(graph, collective, start(collective)) is None
    plain = solver.optimum(graph, collective, start(collective))
    assert multicast.better(graph, collective, start(collective), plain) is None


def test_a_starved_switch_serves_all_by_copying() -> None:
    """One link in and three out: without copies the root's data passes three times."""
    links = [("a", "w", 6), *((("w"), v, 6) for v in "bcd"), *((v, "a", 1) for v in "bcd")]
    plain = build(links, both=False, switches="w")
    assert solver.optimum(plain, Collective.BROADCAST, 0).algbw == 2
    copying = able(plain, "w")
    forest = multicast.forest(copying, Collective.BROADCAST, 0)
    assert forest is not None
    assert certificate.check(forest) == same(6)
    reverse = multicast.forest(copying.reverse(), Collective.REDUCE, 0)
    assert reverse is not None
    assert certificate.check(reverse) == same(6)


def test_a_switch_that_copies_need_not_add() -> None:
    graph = able(build([(v, "w", 9) for v in "abcd"], switches="w"), "w", adds=False)
    assert multicast.usable(graph, Collective.BROADCAST)
    assert not multicast.usable(graph, Collective.REDUCE)
    assert multicast.forest(graph, Collective.REDUCE, 0) is None
    forest = multicast.forest(graph, Collective.ALLREDUCE)
    assert forest is not None
    algbw, bound = certificate.check(forest)
    assert bound is not None
    assert solver.optimum(graph, Collective.ALLREDUCE).algbw <= algbw <= bound


def test_chains_of_switches_copy_once_each() -> None:
    links = [("a", "v", 8), ("b", "v", 8), ("v", "w", 8), ("c", "w", 8), ("d", "w", 8)]
    graph = able(build(links, switches="vw"), "[vw]")
    forest = multicast.forest(graph, Collective.BROADCAST, 0)
    assert forest is not None
    assert certificate.check(forest) == same(8)
    assert len(forest.trees) == 1
    assert forest.height == 1


def test_a_plain_switch_before_one_that_copies() -> None:
    """Files count the link into the plain switch once a path: there the plain trees are better."""
    links = [
        ("a", "p", 6),
        ("p", "w", 6),
        *(("w", v, 6) for v in "bcd"),
        *((v, "a", 1) for v in "bcd"),
    ]
    graph = able(build(links, both=False, switches="pw"), "w")
    assert multicast.forest(graph, Collective.BROADCAST, 0) is None


def test_a_switch_out_of_reach_is_no_hindrance() -> None:
    links = [("a", "b", 3), ("b", "a", 3), ("w", "a", 5), ("w", "b", 5)]
    graph = able(build(links, both=False, switches="w"), "w")
    assert multicast.forest(graph, Collective.BROADCAST, 0) is None
    apart = able(build([("a", "b", 3), ("w", "a", 5)], both=False, switches="w"), "w")
    with pytest.raises(InfeasibleError):
        multicast.forest(apart, Collective.ALLGATHER)


def test_large_fabrics_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multicast, "RANKS", 7)
    assert multicast.forest(h100(1), Collective.BROADCAST, 0) is None


@pytest.mark.parametrize("block", range(5))
def test_random_switches_that_copy_and_add(block: int) -> None:
    made = 0
    for seed in range(40 * block, 40 * block + 40):
        rng = random.Random(seed)
        graph = random_graph(seed)
        if graph.n > 10:
            continue
        gpus = set(graph.ranks)
        flags = [
            tuple(not graph.gpu[v] and v not in gpus and rng.random() < 0.6 for v in range(graph.n))
            for _ in range(2)
        ]
        graph = replace(graph, multicast=flags[0], aggregation=flags[1])
        collective = ALL[seed % 5]
        forest = multicast.forest(graph, collective, start(collective))
        if forest is None:
            continue
        algbw, bound = certificate.check(forest)  # also: never above the bound
        plain = solver.optimum(graph, collective, start(collective))
        assert bound == min(plain.bound.algbw, bound or 0)
        best = multicast.better(graph, collective, start(collective), plain)
        assert (best is not None) == (algbw > plain.algbw)
        made += 1
    assert made > 3


def test_contraction_joins_paths_and_drops_what_is_not_used() -> None:
    graph = build([(v, "w", 1) for v in "abc"] + [("c", "x", 1)], switches="wx")
    a, w, b, c, x = (graph.names.index(name) for name in "awbcx")
    tree = Tree(a, "broadcast", 2, ((a, w), (w, b), (w, c), (c, x)))
    assert multicast.contract([tree, tree], graph) == [
        Tree(a, "broadcast", 4, ((a, w, b), (a, w, c)))
    ]
