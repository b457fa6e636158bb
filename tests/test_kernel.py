"""The C++ kernel alone: flows, cuts, splitting and packing of bare arrays of integers."""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections import defaultdict
from collections.abc import Sequence
from types import FrameType

import networkx as nx
import pytest
from graphs import dgx_a100, mi250, torus
from random_graphs import random_graph

from forestcoll.graph.capacity_graph import CapacityGraph, is_balanced
from forestcoll.graph.kernel import _kernel
from forestcoll.graph.symmetry.automorphisms import find_free_group
from forestcoll.solver.task import Task, analyse

Packed = tuple[int, list[tuple[int, int, list[int]]]]
Flat = tuple[int, tuple[int, ...], tuple[int, ...], list[int]]
BALANCED = [seed for seed in range(70) if is_balanced(random_graph(seed))]


def flat(graph: CapacityGraph) -> Flat:
    return graph.n, graph.tail, graph.head, list(graph.capacity)


def scaled(graph: CapacityGraph, root: int | None = None) -> tuple[Flat, list[int], Task]:
    """The graph with whole trees a link at its optimum, the supply, and the task."""
    task = analyse(graph, root)
    links = (graph.n, graph.tail, graph.head, task.capacities())
    return links, task.supply(task.trees_per_root), task


def without_relays(
    graph: CapacityGraph,
    root: int | None = None,
    group: Sequence[int] | None = None,
    detours: bool = True,
) -> tuple[_kernel.Logical, list[int]]:
    """Links between ranks alone, and the supply."""
    links, supply, _ = scaled(graph, root)
    group = [-1] * graph.n if group is None else group
    return _kernel.remove_relays(*links, supply, graph.ranks, group, detours), supply


def boxes(graph: CapacityGraph) -> list[int]:
    return [int(name[3]) if name.startswith("box") else -1 for name in graph.names]


@pytest.mark.parametrize("seed", range(20))
def test_violated_finds_a_cut_exactly_above_the_optimum(seed: int) -> None:
    graph = random_graph(seed)
    leaving, inside, _ = _kernel.best_ratio(*flat(graph), graph.ranks, graph.parts, graph.ranks)
    n, tail, head, capacity = flat(graph)
    links = (n, tail, head, [c * inside for c in capacity])
    supply = [leaving if v in graph.ranks else 0 for v in range(n)]
    assert _kernel.violated(*links, supply, graph.ranks) is None

    found = _kernel.violated(*links, [s + (s > 0) for s in supply], graph.ranks)
    assert found is not None
    sink, nodes = found
    assert sink not in nodes
    carried = sum(c * inside for u, v, c in graph.arcs if u in nodes and v not in nodes)
    assert carried < sum(supply[v] + 1 for v in graph.ranks if v in nodes)


@pytest.mark.parametrize("detours", [True, False])
@pytest.mark.parametrize("seed", BALANCED[::2])
def test_removed_relays_leave_real_paths_and_the_demand(seed: int, detours: bool) -> None:
    """Also where the boxes are nonsense: a bad proposal must be repaired, not believed."""
    graph = random_graph(seed)
    rng = random.Random(seed)
    group = [rng.randint(-1, 2) for _ in range(graph.n)]
    for root in (None, seed % len(graph.ranks)):
        links = scaled(graph, root)[0]
        logical, supply = without_relays(graph, root, group, detours)
        load: dict[tuple[int, int], int] = defaultdict(int)
        capacity = []
        for tail, head, units in zip(logical.tail, logical.head, logical.units, strict=True):
            assert {tail, head} <= set(graph.ranks)
            capacity.append(sum(count for _, count in units))
            for number, count in units:
                path = logical.paths[number]
                assert (path[0], path[-1]) == (tail, head)
                assert len(set(path)) == len(path)
                assert not set(path[1:-1]) & set(graph.ranks)
                for hop in itertools.pairwise(path):
                    load[hop] += count
        room = {(u, v): c for u, v, c in zip(*links[1:], strict=True)}
        assert all(units <= room[hop] for hop, units in load.items())
        reduced = (graph.n, logical.tail, logical.head, capacity)
        assert _kernel.violated(*reduced, supply, graph.ranks) is None


def check_packed(
    logical: _kernel.Logical, supply: list[int], ranks: tuple[int, ...], packed: Packed
) -> None:
    """The trees span, are as many and as high as they should be, and fit on their links."""
    height, trees = packed
    used: dict[int, int] = defaultdict(int)
    rooted: dict[int, int] = defaultdict(int)
    highest = 0
    for root, weight, paths in trees:
        depth = {root: 0}
        for number in paths:
            path = logical.paths[number]
            assert path[0] in depth
            assert path[-1] not in depth
            depth[path[-1]] = depth[path[0]] + 1
            used[number] += weight
        assert set(depth) == set(ranks)
        assert weight > 0
        rooted[root] += weight
        highest = max(highest, *depth.values())
    assert rooted == {v: s for v, s in enumerate(supply) if s}
    assert highest == height
    count: dict[int, int] = defaultdict(int)
    for units in logical.units:
        for number, amount in units:
            count[number] += amount
    assert all(weight <= count[number] for number, weight in used.items())


@pytest.mark.parametrize("seed", BALANCED[1::3])
def test_trees_searched_for_are_lower_span_and_fit(seed: int) -> None:
    graph = random_graph(seed)
    logical, supply = without_relays(graph)
    least = distance(logical, graph.ranks)
    alone = [range(graph.n)]
    assert _kernel.pack_lowest(logical, supply, graph.ranks, alone, least) is None
    packed = _kernel.pack_lowest(logical, supply, graph.ranks, alone, least + 2)
    if packed is not None:
        assert least <= packed[0] <= least + 1
        check_packed(logical, supply, graph.ranks, packed)


def distance(logical: _kernel.Logical, ranks: tuple[int, ...]) -> int:
    """The most hops between two ranks: no tree that spans them is lower from there."""
    links = nx.DiGraph(list(zip(logical.tail, logical.head, strict=True)))
    hops = dict(nx.all_pairs_shortest_path_length(links))
    return max(hops[u][v] for u in ranks for v in ranks)


def test_trees_of_an_mi250_box_are_as_low_as_can_be() -> None:
    """Three trees per root at the optimum, none higher than the dies are apart."""
    graph = mi250(1)
    logical, supply = without_relays(graph)
    group = find_free_group(graph)
    assert group is not None
    assert group.size == 4
    elements = list(group.elements())
    packed = _kernel.pack_lowest(logical, supply, graph.ranks, elements, 7)
    assert packed is not None
    check_packed(logical, supply, graph.ranks, packed)
    assert packed[0] == distance(logical, graph.ranks) == 5
    again = _kernel.pack_lowest(logical, supply, graph.ranks, elements, 7)
    assert again == packed
    trees = {
        (root, frozenset(tuple(logical.paths[p]) for p in paths)): weight
        for root, weight, paths in packed[1]
    }
    for image in elements:
        assert trees == {
            (image[root], frozenset((image[u], image[v]) for u, v in edges)): weight
            for (root, edges), weight in trees.items()
        }


def test_maps_that_do_not_keep_the_graph_count_for_nothing() -> None:
    graph = mi250(1)
    logical, supply = without_relays(graph)
    alone = list(range(16))
    wanted = _kernel.pack_lowest(logical, supply, graph.ranks, [alone], 8)
    assert wanted is not None
    check_packed(logical, supply, graph.ranks, wanted)
    turned = [*range(1, 16), 0]  # no symmetry at all
    lopsided = [3, 2, 1, 0, *range(4, 16)]  # most dies stay where they are
    for other in (turned, lopsided):
        assert wanted == _kernel.pack_lowest(logical, supply, graph.ranks, [alone, other], 8)
    group = find_free_group(graph)
    assert group is not None
    uneven = [units + (v == 0) for v, units in enumerate(supply)]  # one tree more of die 0
    found = _kernel.pack_lowest(logical, uneven, graph.ranks, list(group.elements()), 8)
    assert found is None  # more than every die can take in


def test_trim_balances_and_keeps_the_demand() -> None:
    # 0, 1, 2 -> switch 3 -> 0, 1, 2: it takes in 4 + 2 + 2 and could send out 3 + 3 + 5.
    links = (4, (0, 1, 2, 3, 3, 3), (3, 3, 3, 0, 1, 2), [4, 2, 2, 3, 3, 5])
    supply, sinks = [1, 1, 1, 0], [0, 1, 2]
    trimmed = _kernel.trim(*links, supply, sinks)
    assert trimmed is not None
    assert sum(trimmed[:3]) == sum(trimmed[3:]) <= 8
    assert all(0 <= t <= c for t, c in zip(trimmed, links[3], strict=True))
    assert _kernel.violated(*links[:3], trimmed, supply, sinks) is None


def test_trim_says_when_it_cannot() -> None:
    # The switch copies in the plain cut's eyes: 1 unit in, 2 out, and both sinks need theirs.
    links = (3, (0, 2, 2, 0, 1), (2, 0, 1, 1, 0), [1, 1, 1, 1, 1])
    assert _kernel.trim(*links, [1, 1, 0], [0, 1]) is not None
    starved = (4, (0, 3, 3, 1, 2), (3, 1, 2, 0, 0), [1, 1, 1, 1, 1])
    assert _kernel.violated(*starved, [1, 0, 0, 0], [0, 1, 2]) is None
    assert _kernel.trim(*starved, [1, 0, 0, 0], [0, 1, 2]) is None


def test_one_box_of_nvswitch_is_spread_evenly() -> None:
    graph = dgx_a100(1)
    logical, _ = without_relays(graph, group=[0] * graph.n)
    assert len(logical.tail) == 8 * 7
    assert {sum(c for _, c in units) for units in logical.units} == {1}


def test_two_boxes_split_evenly_and_along_the_rails() -> None:
    """180 units to 7 box mates: 26 or 25 each; all 15 fabric units to the same GPU next door."""
    graph = dgx_a100(2)
    group = boxes(graph)
    logical, _ = without_relays(graph, group=group)
    for u, v, units in zip(logical.tail, logical.head, logical.units, strict=True):
        total = sum(count for _, count in units)
        if group[u] == group[v]:
            assert total in (25, 26)
        else:
            assert total == 15
            assert graph.names[u][4:] == graph.names[v][4:]


def test_ctrl_c_gets_through() -> None:
    """A signal handler's exception ends a long loop in C++ soon."""
    graph = torus(8, 8, 8)
    logical, supply = without_relays(graph)

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            _kernel.pack(logical, supply, graph.ranks, True)
        assert time.monotonic() - start < 5
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_exact_packing_alone_packs_the_machines() -> None:
    """What layers solve elsewhere: the general path must hold its own."""
    for graph, most in ((dgx_a100(2), 3), (mi250(1), 8), (torus(3, 4), 6)):
        logical, supply = without_relays(graph, group=boxes(graph))
        packed = _kernel.pack(logical, supply, graph.ranks, True)
        assert packed is not None
        assert packed[0] <= most
