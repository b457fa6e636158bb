"""The plain twin: its flows against networkx, its numbers against the published ones."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import networkx as nx
import pytest
import reference
from graphs import build, dgx_a100, mi250, ring, torus
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import judge, random_graph

from forestcoll.common.errors import InfeasibleError, UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import BY_TREES, Collective

NODES = 7


def network(links: reference.Links) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(NODES))
    for (u, v), units in links.items():
        graph.add_edge(u, v, capacity=units)
    return graph


some_links = st.dictionaries(
    st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)).filter(lambda p: p[0] != p[1]),
    st.integers(1, 2**50),
    max_size=20,
)


@given(links=some_links, limit=st.integers(0, 2**51))
def test_push_sends_the_maximum_or_the_limit(links: reference.Links, limit: int) -> None:
    expected = nx.maximum_flow_value(network(links), 0, 1)
    residual = reference.residual_of(links, range(NODES))
    assert reference.push(residual, 0, 1, limit) == min(limit, expected)
    for u, v in links:  # what was sent over a link and back adds up to what both can carry
        both = links.get((u, v), 0) + links.get((v, u), 0)
        assert residual[u][v] + residual[v][u] == both
        assert 0 <= residual[u][v] <= both


@given(links=some_links, need=st.integers(1, 2**51))
def test_worst_cut_is_a_minimum_cut_below_the_need(links: reference.Links, need: int) -> None:
    flows = {v: nx.maximum_flow_value(network(links), 0, v) for v in range(1, NODES)}
    worst = reference.worst_cut(reference.residual_of(links, range(NODES)), 0, range(NODES), need)
    if worst is None:
        assert min(flows.values()) >= need
        return
    units, sink, cut = worst
    assert units == flows[sink] < need
    assert 0 in cut
    assert sink not in cut
    assert sum(c for (u, v), c in links.items() if u in cut and v not in cut) == units


@pytest.mark.parametrize(
    ("graph", "algbw", "k"),
    [
        (dgx_a100(1), Fraction(2400, 7), 1),
        (dgx_a100(2), Fraction(1040, 3), 13),
        (dgx_a100(2, planes=2), Fraction(1040, 3), 13),
        (dgx_a100(4), Fraction(800, 3), 1),
        (mi250(1), Fraction(2400, 7), 3),
        (mi250(2, dies=8), Fraction(208), 13),
        (torus(4, 4), Fraction(16 * 200, 15), None),
        (ring(5), Fraction(5, 2), 1),
        (ring(5, both=False), Fraction(5, 4), 1),
        (build([("a", "b", 7)]), Fraction(14), 1),
    ],
    ids=[
        *("a100", "a100x2", "a100x2 planes", "a100x4", "mi250", "mi250 8+8"),
        *("torus", "ring", "one-way ring", "two ranks"),
    ],
)
def test_published_optimum_with_its_trees(
    graph: CapacityGraph, algbw: Fraction, k: int | None
) -> None:
    n = len(graph.ranks)
    rate, cut = reference.optimum(graph)
    assert rate * n == algbw
    assert graph.leaving(cut) / sum(v in cut for v in graph.ranks) == rate
    forest = reference.forest(graph)
    assert judge(forest) == algbw
    assert forest.bound is not None
    assert forest.bound.algbw == algbw
    if k is not None:
        assert forest.total == n * k


@pytest.mark.parametrize(
    ("graph", "algbw"),
    [
        (dgx_a100(8), Fraction(1600, 7)),
        (mi250(2), Fraction(5312, 15)),
        (torus(4, 4, 4), Fraction(64 * 300, 63)),
    ],
    ids=["a100x8", "mi250x2", "torus"],
)
def test_published_optimum_of_larger_machines(graph: CapacityGraph, algbw: Fraction) -> None:
    assert reference.optimum(graph)[0] * len(graph.ranks) == algbw


@pytest.mark.parametrize("seed", range(40))
def test_every_collective_reaches_its_cut(seed: int) -> None:
    graph = random_graph(seed, ("direct", "switched", "mixed", "cycles")[seed % 4])
    root = seed % len(graph.ranks)
    everything = frozenset(range(graph.n))
    for collective in BY_TREES:
        forest = reference.forest(graph, collective, root, "name")
        algbw = judge(forest)
        if collective is Collective.ALLREDUCE:
            out, back = reference.optimum(graph)[0], reference.optimum(graph.reverse())[0]
            together = len(graph.ranks) / (1 / out + 1 / back)
            assert algbw >= together  # both phases at once; links that only one uses may help
            assert forest.bound is None
            continue
        assert forest.bound is not None
        assert algbw == forest.bound.algbw
        (cut,) = forest.bound.parts
        reduces = collective.reduces
        crossing = graph.leaving(everything - cut if reduces else cut)
        inside = sum(v in cut for v in graph.ranks)
        expected = crossing if collective.has_root else crossing * len(graph.ranks) / inside
        assert algbw == expected
        assert not collective.has_root or graph.ranks[root] in cut


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6))
def test_logical_links_feed_every_rank_and_map_back(seed: int) -> None:
    graph = random_graph(seed, ("switched", "mixed", "cycles")[seed % 3])
    rate, _ = reference.plain_cut(graph)
    links = {e: c * rate.denominator for e, c in reference.links_of(graph).items()}
    supply = dict.fromkeys(graph.ranks, rate.numerator)
    ranks = set(graph.ranks)
    switches = [v for v in range(graph.n) if v not in ranks]
    routes = reference.split_switches(links, switches, supply)
    used: dict[tuple[int, int], int] = {}
    flow: nx.DiGraph = nx.DiGraph()
    for (u, v), parts in routes.items():
        assert {u, v} <= ranks
        flow.add_edge(u, v, capacity=sum(units for units, _ in parts))
        for units, path in parts:
            assert (path[0], path[-1]) == (u, v)
            assert len(set(path)) == len(path)
            assert not ranks & set(path[1:-1])
            for pair in pairwise(path):
                used[pair] = used.get(pair, 0) + units
    assert all(units <= links[pair] for pair, units in used.items())
    for r, units in supply.items():
        flow.add_edge("source", r, capacity=units)
    for r in ranks:
        assert nx.maximum_flow_value(flow, "source", r) == sum(supply.values())


def test_idle_gpus_relay_like_switches() -> None:
    graph = build([("a", "relay", 4), ("relay", "b", 4), ("a", "b", 1)], ranks=["a", "b"])
    assert judge(reference.forest(graph)) == 10


def test_paths_run_through_several_switch_layers() -> None:
    links = [(f"g{i}", f"leaf{i // 2}", 6) for i in range(4)]
    links += [
        ("leaf0", "mid0", 12),
        ("leaf1", "mid1", 12),
        ("mid0", "top", 12),
        ("mid1", "top", 12),
    ]
    graph = build(links, switches=["leaf0", "leaf1", "mid0", "mid1", "top"])
    forest = reference.forest(graph)
    assert judge(forest) == 8
    assert max(len(path) for tree in forest.trees for path in tree.edges) == 7


def test_huge_primes_stay_exact() -> None:
    p, q = 2**31 - 1, 1_000_003
    graph = build([("a", "switch", p), ("b", "switch", p), ("c", "switch", p), ("a", "b", q)])
    forest = reference.forest(graph)
    assert judge(forest) == Fraction(3 * p, 2)


def test_shortcut_takes_loops_out() -> None:
    assert reference.shortcut((1, 2, 3, 2, 4)) == (1, 2, 4)
    assert reference.shortcut((1, 2, 3, 4, 3, 2, 5)) == (1, 2, 5)
    assert reference.shortcut((1, 2, 3)) == (1, 2, 3)


def test_broadcast_rate_is_the_least_flow() -> None:
    graph = build([("a", "b", 5), ("a", "c", 1), ("b", "c", 2), ("c", "a", 9)], both=False)
    rate, cut = reference.broadcast_rate(graph, 0)
    assert rate == 3
    assert {graph.names[v] for v in cut} == {"a", "b"}


def test_unreachable_ranks_are_named() -> None:
    graph = build([("a", "b", 1), ("b", "a", 1), ("b", "c", 1)], both=False)
    message = "data of 'c' can never reach 'a', 'b': no link leaves 'c'"
    with pytest.raises(InfeasibleError, match=message):
        reference.optimum(graph)
    with pytest.raises(InfeasibleError, match=message):
        reference.forest(graph, Collective.BROADCAST, root=2)
    assert reference.broadcast_rate(graph, 0)[0] == 1


def test_uneven_switches_are_refused_with_a_way_out() -> None:
    graph = build([("a", "switch", 2), ("switch", "b", 1), ("b", "a", 1)], both=False)
    with pytest.raises(
        UnsupportedError, match=r"'switch' does not receive .*solver\.task\.balance"
    ):
        reference.optimum(graph)
    with pytest.raises(UnsupportedError, match="'switch'"):
        reference.broadcast_rate(graph, 0)
    with pytest.raises(UnsupportedError, match="node 1 does not receive as much as it sends"):
        reference.split_switches(reference.links_of(graph), [1], {0: 1})


def test_impossible_wishes_are_refused() -> None:
    graph = build([("a", "b", 1)])
    with pytest.raises(UnsupportedError, match="at least two ranks"):
        reference.optimum(replace(graph, ranks=(0,)))
    with pytest.raises(UnsupportedError, match="at least two ranks"):
        reference.broadcast_rate(replace(graph, ranks=(0,)), 0)
    with pytest.raises(UnsupportedError, match=r"there is no rank 2; ranks are 0 \.\. 1"):
        reference.broadcast_rate(graph, 2)
    with pytest.raises(UnsupportedError, match="reduce needs a root rank"):
        reference.forest(graph, Collective.REDUCE)
    with pytest.raises(InfeasibleError, match="no way to grow a tree"):
        reference.pack({(0, 1): 1, (1, 0): 1}, (0, 1), {0: 2, 1: 1})
