"""The balanced optimum against a linear program of flows to every rank, and its certificate."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import reference
from graphs import build, dgx_a100
from random_graphs import judge, starved_graph
from random_problems import optimum_written_out

from forestcoll.graph.capacity_graph import CapacityGraph, is_balanced
from forestcoll.program import Collective
from forestcoll.schedule.dual import check_dual
from forestcoll.schedule.forest import Bound
from forestcoll.solver.task import Task, analyse


def rate(found: Task) -> Fraction:
    """GB/s a root."""
    return found.rate * found.graph.unit


def proven(graph: CapacityGraph, root: int | None = None) -> Task:
    """What `analyse` finds, once all that it promises has been checked."""
    found = analyse(graph, root)
    collective = Collective.ALLGATHER if root is None else Collective.BROADCAST
    algbw = rate(found) * (len(graph.ranks) if root is None else 1)
    assert is_balanced(found.graph)
    assert min(found.graph.capacity) > 0
    wide = dict(zip(graph.ends, range(len(graph.tail)), strict=True))
    for e, pair in enumerate(found.graph.ends):
        assert found.graph.bandwidth(e) <= graph.bandwidth(wide[pair])
    assert found.bound.algbw == algbw
    assert judge(reference.forest(found.graph, root)) >= algbw
    if found.bound.method == "linear-program":
        assert check_dual(graph, found.bound, collective, root) == algbw
    else:
        (cut,) = found.bound.parts
        inside = sum(v in cut for v in graph.ranks) if root is None else 1
        assert graph.leaving(cut) / inside == rate(found)
    return found


@pytest.mark.parametrize("collective", [Collective.ALLGATHER, Collective.BROADCAST])
def test_agrees_with_flows_written_out(collective: Collective) -> None:
    methods = []
    for seed in range(120):
        graph, root = starved_graph(seed), 0 if collective.has_root else None
        found = proven(graph, root)
        wanted = optimum_written_out(graph, collective, root)
        assert float(found.bound.algbw) == pytest.approx(wanted, rel=1e-7), seed
        methods.append(found.bound.method)
    assert methods.count("cut") >= 10  # both ways are trodden
    assert methods.count("linear-program") >= 5


def test_balanced_graphs_come_back_unchanged() -> None:
    graph = dgx_a100(2)
    found = analyse(graph, None)
    assert found.graph is graph
    assert rate(found) * 16 == Fraction(1040, 3) == found.bound.algbw
    assert found.bound.method == "cut"
    assert rate(analyse(graph, 3)) == 200


def one_in_two_out() -> CapacityGraph:
    links = [("a", "switch", 1), ("switch", "b", 1), ("switch", "c", 1)]
    return build([*links, ("b", "a", 9), ("c", "a", 9)], both=False)


def test_one_link_in_cannot_feed_two_ranks_at_full_rate() -> None:
    graph = one_in_two_out()
    assert reference.plain_cut(graph)[0] == Fraction(1, 2)
    assert reference.plain_cut(graph, 0)[0] == 1
    assert rate(proven(graph, root=0)) == Fraction(1, 2)
    found = proven(graph)
    assert rate(found) < Fraction(1, 2)
    assert found.bound.method == "linear-program"


def test_switch_with_wider_links_out_than_in() -> None:
    links = [(f"g{i}", "switch", 10) for i in range(3)]
    graph = build([*links, *((v, u, 20) for u, v, _ in links)], both=False)
    assert reference.plain_cut(graph)[0] == 10
    found = proven(graph)
    assert rate(found) == 5  # 3 x 10 in, and each part must go to two ranks
    assert found.bound.algbw == 15
    assert found.bound.method == "linear-program"
    assert rate(proven(graph.reverse())) == 5


def test_a_spare_one_way_link_changes_nothing() -> None:
    graph = dgx_a100(2)
    nvswitch = graph.names.index("box0/nvswitch")
    links = zip(graph.head, graph.capacity, strict=True)
    wider = tuple(c + 100 if v == nvswitch else c for v, c in links)
    found = proven(replace(graph, capacity=wider))
    assert rate(found) * 16 == Fraction(1040, 3)
    assert found.bound.method == "cut"


def test_idle_gpus_are_balanced_like_switches() -> None:
    links = [("a", "relay", 4), ("relay", "b", 2), ("b", "a", 9)]
    graph = build(links, both=False, ranks=["a", "b"])
    found = proven(graph)
    assert rate(found) == 2
    link = list(found.graph.ends).index((0, 1))
    assert found.graph.bandwidth(link) == 2


def test_dead_ends_are_removed() -> None:
    links = [("a", "b", 3), ("b", "a", 3), ("a", "switch", 5), ("source-switch", "b", 7)]
    found = proven(build(links, both=False))
    assert rate(found) == 3
    assert sorted(found.graph.ends) == [(0, 1), (1, 0)]


def test_a_broken_link_on_a_machine() -> None:
    graph = dgx_a100(2)
    slow = list(graph.capacity)
    slow[0] -= 100
    found = proven(replace(graph, capacity=tuple(slow)))
    assert found.bound.method == "linear-program"
    assert found.bound.algbw == Fraction(1000, 3)


def test_copying_switches_loosen_the_bound_but_not_the_rate() -> None:
    graph = one_in_two_out()
    found = analyse(replace(graph, multicast=tuple(n == "switch" for n in graph.names)), 0)
    assert rate(found) == Fraction(1, 2)
    assert found.bound.algbw == 1


# ------------------------------------------------------------------------- the certificate


def certified() -> tuple[CapacityGraph, Bound]:
    graph = one_in_two_out()
    return graph, analyse(graph, None).bound


def test_certificates_prove_reductions_on_the_reversed_graph() -> None:
    graph, bound = certified()
    assert check_dual(graph.reverse(), bound, Collective.REDUCE_SCATTER) == bound.algbw
    rooted = analyse(graph, 0).bound
    assert check_dual(graph.reverse(), rooted, Collective.REDUCE, 0) == rooted.algbw


def test_the_stated_value_is_not_believed() -> None:
    graph, bound = certified()
    lie = replace(bound, algbw=bound.algbw * 2)
    assert check_dual(graph, lie, Collective.ALLGATHER) == bound.algbw


def test_any_valid_dual_is_a_bound() -> None:
    """Other weights prove less, never more than the optimum."""
    graph, bound = certified()
    everything = frozenset(range(graph.n))
    for v in graph.ranks:
        for weaker in (frozenset([v]), everything - {v}):
            inside = sum(r in weaker for r in graph.ranks)
            other = replace(bound, parts=(weaker,), weights=(Fraction(1, inside),))
            assert check_dual(graph, other, Collective.ALLGATHER) >= bound.algbw
