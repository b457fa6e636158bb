"""Paths dealt out over parallel switches: as fast on the links, and faster in plans."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from graphs import build, named

from forestcoll import solver
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import lower
from forestcoll.program import Collective
from forestcoll.program.targets import RCCL
from forestcoll.schedule.forest import Tree
from forestcoll.solver import phase_packing
from forestcoll.solver.packing import spread_evenly
from forestcoll.verify import simulate

pytestmark = pytest.mark.usefixtures("links_alone")

GPUS, LEAVES, SPINES = ("a", "b", "c", "d"), ("l", "m"), ("s", "t")


def tiers(second: int, first: int = 2) -> CapacityGraph:
    """Two leaves of two ranks; links to the spines are `first` and `second` wide."""
    links = [(gpu, LEAVES[i // 2], 1) for i, gpu in enumerate(GPUS)]
    links += [
        (leaf, spine, width)
        for leaf in LEAVES
        for spine, width in zip(SPINES, (first, second), strict=True)
    ]
    return build(links, switches=(*LEAVES, *SPINES))


def across(spines: tuple[str, str], graph: CapacityGraph) -> list[Tree]:
    """A tree from a by c, and one from b by d, each through its spine."""
    node = {name: number for number, name in enumerate(graph.names)}

    def path(*names: str) -> tuple[int, ...]:
        return tuple(node[name] for name in names)

    return [
        Tree(node[src], "broadcast", 1, (path(src, "l", spine, "m", dst),))
        for src, dst, spine in zip("ab", "cd", spines, strict=True)
    ]


def loads(trees: list[Tree]) -> Counter[tuple[int, int]]:
    found = Counter[tuple[int, int]]()
    for tree in trees:
        for path in tree.edges:
            for link in pairwise(path):
                found[link] += tree.weight
    return found


def test_paths_go_over_all_spines() -> None:
    graph = tiers(2)
    trees = spread_evenly(graph, across(("s", "s"), graph))
    assert {graph.names[tree.edges[0][2]] for tree in trees} == set(SPINES)
    assert set(loads(trees).values()) == {1}


def test_wider_spines_carry_more() -> None:
    """Half of it would take the narrow spine longer than all of it takes the wide one."""
    graph = tiers(1, first=3)
    trees = across(("s", "s"), graph)
    assert spread_evenly(graph, trees) is trees


def test_trees_without_a_choice_are_the_same() -> None:
    graph = named("dgx-a100", boxes=2)
    trees = list(solver.solve(graph, Collective.ALLGATHER).trees)
    assert spread_evenly(graph, trees) is trees


def test_spines_carry_alike() -> None:
    """What leaves a leaf goes in equal parts over all spines."""
    graph = named("fat-tree", leaves=3, hosts=2, gpus=2)
    forest = solver.solve(graph, Collective.ALLGATHER)
    names = forest.graph.names
    up = {e: n for e, n in loads(list(forest.trees)).items() if names[e[1]].startswith("spine")}
    assert len(up) == 6
    assert len(set(up.values())) == 1


def test_plans_over_all_spines_are_faster() -> None:
    """Through the first spine alone it is 85 %: half of the ports wait for it."""
    graph = named("fat-tree", leaves=3, hosts=2, gpus=2)
    forest = solver.solve(graph, Collective.REDUCE_SCATTER)
    program = lower(forest, RCCL, instances=16)
    assert simulate.band(program, forest, 10**9).share(forest.plain_algbw) >= 0.95


def test_chains_of_one_root_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reduce over two leaves loses 5 % by other spines."""
    graph = named("fat-tree", hosts=1, gpus=4)
    trees = solver.solve(graph, Collective.REDUCE, 0).trees
    monkeypatch.setattr(phase_packing, "spread_evenly", lambda _, trees: trees[:1])
    assert solver.solve(graph, Collective.REDUCE, 0).trees == trees
