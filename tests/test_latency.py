"""`latency` against ways written out in Python: random graphs, compact forests, by hand."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise

import pytest
from graphs import machine, named
from random_graphs import random_graph

from forestcoll import solver
from forestcoll.compile.synthesize import synthesize
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import BY_TREES, Collective
from forestcoll.schedule.forest import Forest, all_images
from forestcoll.schedule.latency import Latencies, latency
from forestcoll.solver.compact.forests import solve_compact
from forestcoll.verify import simulate


def written_out(forest: Forest, links: Latencies, hop: Fraction) -> Fraction:
    """The same, node by node, and unit by unit of each root's data."""
    names = forest.graph.names
    units: dict[int, dict[str, list[Fraction]]] = defaultdict(lambda: defaultdict(list))
    for tree in forest.trees:
        down = tree.phase == "broadcast"
        time = {tree.root: Fraction(0)}
        for path in tree.edges if down else reversed(tree.edges):
            near, far = (path[0], path[-1]) if down else (path[-1], path[0])
            way = sum((links[names[a], names[b]] for a, b in pairwise(path)), hop)
            time[far] = time[near] + way
        units[tree.root][tree.phase] += [max(time.values())] * tree.weight
    return max(map(sum, (way for own in units.values() for way in zip(*own.values(), strict=True))))


def drawn(graph: CapacityGraph, rng: random.Random) -> dict[tuple[str, str], Fraction]:
    """Microseconds of every link, each direction for itself, zero too."""
    return {
        (graph.names[u], graph.names[v]): Fraction(rng.randrange(0, 40), rng.choice((1, 7, 20)))
        for u, v in graph.ends
    }


def forests(
    collective: Collective, count: int, rng: random.Random
) -> Iterator[tuple[Forest, Latencies]]:
    """Forests of so many random graphs, with the links' latencies."""
    for seed in range(count):
        graph = random_graph(seed)
        yield solver.solve(graph, collective, 0 if collective.has_root else None), drawn(graph, rng)


@pytest.mark.parametrize("collective", list(BY_TREES), ids=str)
def test_random_forests_agree_with_ways_written_out(collective: Collective) -> None:
    rng = random.Random(collective.value)
    for forest, links in forests(collective, 60, rng):
        hop = Fraction(rng.randrange(0, 30), 10)
        assert latency(forest, links, hop) == written_out(forest, links, hop)


@pytest.mark.parametrize("collective", list(BY_TREES), ids=str)
def test_a_byte_takes_as_long_in_the_simulation(collective: Collective) -> None:
    """The trees alone, over links of either rule: reports and simulation know one latency."""
    for forest, links in forests(collective, 20, random.Random(collective.value)):
        for rule in simulate.BOTH:
            byte = simulate.run_forest(forest, 1, links=links, rule=rule, pieces=1)
            assert byte.time == pytest.approx(float(latency(forest, links)), abs=0.05)


def test_hops_alone_are_the_height() -> None:
    graph = named("mi250 boxes=2")
    forest = solver.solve(graph, Collective.ALLGATHER)
    none = dict.fromkeys(drawn(graph, random.Random(0)), Fraction(0))
    assert latency(forest, none, Fraction(1)) == forest.height == 8


def test_a_compact_forest_takes_as_long_as_all_its_trees() -> None:
    """Exactly, where all links of an orbit are alike; else no less."""
    topology = machine("dgx-a100 boxes=4")
    graph = CapacityGraph.from_topology(topology)
    compact = solve_compact(graph, Collective.ALLGATHER)
    assert compact is not None
    assert compact.group is not None
    trees = tuple(all_images(graph, list(compact.trees), compact.group))
    assert len(trees) > len(compact.trees)
    whole = Forest(compact.name, graph, compact.collective, compact.total, trees)
    links = topology.latencies()
    assert latency(compact, links) == latency(whole, links) == Fraction("2.4")
    uneven = drawn(graph, random.Random(3))
    assert latency(compact, uneven) >= latency(whole, uneven)


def test_parallel_links_count_as_the_slowest_of_them() -> None:
    topology = machine("dgx-a100 boxes=2")
    made = synthesize(topology, "allreduce", formats=("forest",))
    assert made.latency == 2 * (2 * Fraction("0.85") + 2 * Fraction("0.35"))
