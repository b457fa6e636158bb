"""Groups of symmetries, compact forests, and the schemes that find them."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from damages import damage, rows
from graphs import build, clos, dgx_a100, machine, named, ring, shuffled
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import stranger

from forestcoll import solver
from forestcoll.common.errors import ForestError, UnsupportedError
from forestcoll.compile.synthesize import synthesize
from forestcoll.compile.verdict import verify_text
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.kernel import _kernel
from forestcoll.graph.symmetry.components import (
    digit_rotations,
    find_components,
    find_inner_symmetries,
    find_structures,
    find_translations,
)
from forestcoll.graph.symmetry.group import Rotation, rotation_group, symmetry_group
from forestcoll.lower import lower
from forestcoll.program import Collective
from forestcoll.program.targets import MSCCL
from forestcoll.schedule import certificate, forest_file
from forestcoll.schedule.forest import Forest, Tree, check
from forestcoll.solver import COMPACT_FROM, solve, solve_compact
from forestcoll.solver.compact import forests
from forestcoll.solver.compact import rotation as equal_parts
from forestcoll.solver.compact.forests import pack_compact
from forestcoll.solver.compact.rotation import pack_parts
from forestcoll.solver.compact.stars import pack_stars
from forestcoll.solver.compact.units import choose_units, use_of
from forestcoll.solver.routes.edges import edges_of_forest
from forestcoll.study.degrade.failures import classes, list_failures


def compact(
    graph: CapacityGraph, collective: Collective = Collective.ALLGATHER, **more: Any
) -> Forest:
    """The compact forest, which must be there."""
    forest = solve_compact(graph, collective, **more)
    assert forest is not None
    assert forest.group is not None
    return forest


# ------------------------------------------------------------------------------ groups


def moved(graph: CapacityGraph, to: Callable[[str, int], tuple[str, int]]) -> tuple[int, ...]:
    """Of a `dgx_a100` the node that (prefix, number of the first digit) of each goes to."""
    number = {name: v for v, name in enumerate(graph.names)}

    def image(name: str) -> str:
        for prefix in ("box", "gpu"):
            found = re.search(rf"{prefix}(\d+)", name)
            if found:
                kind, digit = to(prefix, int(found[1]))
                name = name.replace(found[0], f"{kind}{digit}")
        return name

    return tuple(number[image(name)] for name in graph.names)


def rotation(graph: CapacityGraph, boxes: int) -> tuple[int, ...]:
    """Box b to box b + 1."""
    return moved(graph, lambda kind, k: (kind, (k + 1) % boxes if kind == "box" else k))


def turn(graph: CapacityGraph, step: int, sign: int = 1) -> tuple[int, ...]:
    """GPU i to GPU i + step (or step - i) in every box."""
    return moved(graph, lambda kind, k: (kind, (sign * k + step) % 8 if kind == "gpu" else k))


def brute_orbits(count: int, maps: list[list[int]]) -> list[int]:
    """The least member of each one's orbit, by walking."""
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(count))
    for image in maps:
        graph.add_edges_from(enumerate(image))
    least = [0] * count
    for orbit in nx.connected_components(graph):
        for v in orbit:
            least[v] = min(orbit)
    return least


@pytest.mark.parametrize(
    ("steps", "orders"),
    [((1,), (8,)), ((2, 1), (4, 2)), ((4, 2, 1), (2, 2, 2)), ((3,), (8,)), ((2, 6), (4, 1))],
)
def test_orders_and_orbits_of_a_group(steps: tuple[int, ...], orders: tuple[int, ...]) -> None:
    graph = dgx_a100(3)
    maps = [rotation(graph, 3), *(turn(graph, step) for step in steps)]
    group = symmetry_group(graph, maps)
    assert group.orders == (3, *orders)
    elements = list(group.elements())
    assert elements[0] == tuple(range(graph.n))
    assert len(set(elements)) == len(elements) == group.size
    number = graph.numbers
    link_maps = [[number[m[u], m[v]] for u, v in number] for m in maps]
    assert list(group.node) == brute_orbits(graph.n, [list(m) for m in maps])
    assert list(group.link) == brute_orbits(len(number), link_maps)
    for element in elements:
        assert all((element[u], element[v]) in number for u, v in number)


def test_groups_that_cannot_be_relied_on_are_refused() -> None:
    graph = dgx_a100(3)
    number = {name: v for v, name in enumerate(graph.names)}

    def swap(one: str, other: str) -> tuple[int, ...]:
        names = {one: other, other: one}
        return tuple(number[names.get(name, name)] for name in graph.names)

    whole, gpus, mirror = rotation(graph, 3), turn(graph, 1), turn(graph, 0, -1)
    one_box = tuple(gpus[v] if graph.names[v].startswith("box0") else v for v in range(graph.n))
    slow = replace(graph, capacity=(graph.capacity[0] - 1, *graph.capacity[1:]))
    for on, maps, reason in (
        (graph, [(0,) * graph.n], "generator 0 is no permutation of the nodes"),
        (graph, [whole[:-1]], "generator 0 is no permutation"),
        (graph, [whole, swap("box0/gpu0", "fabric0")], "generator 1 maps .* which is of another k"),
        (graph, [swap("box0/gpu0", "box1/gpu0")], "0 maps the link .* another bandwidth or is no"),
        (graph, [gpus, mirror], "generators 0 and 1 do not commute"),
        (graph, [one_box], "the group has 8 elements, but box1/gpu0 only 1 images"),
        (graph, [mirror], "moves some nodes but not box0/gpu0"),
        (slow, [whole], "another bandwidth"),
    ):
        with pytest.raises(ForestError, match=reason):
            symmetry_group(on, maps)


# ------------------------------------------------------------------------------ kernel


@pytest.mark.parametrize("seed", range(20))
def test_components_and_flows_agree_with_networkx(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randint(2, 12)
    pairs = [(u, v) for u, v in product(range(n), repeat=2) if u != v and rng.random() < 0.3]
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from((u, v, {"capacity": rng.randint(1, 9)}) for u, v in pairs)
    tail, head = [u for u, _ in pairs], [v for _, v in pairs]
    capacity = [graph[u][v]["capacity"] for u, v in pairs]
    flow = _kernel.maximum_flow(n, tail, head, capacity, 0, n - 1)
    assert all(0 <= f <= c for f, c in zip(flow, capacity, strict=True))
    surplus = Counter[int]()
    for (u, v), f in zip(pairs, flow, strict=True):
        surplus.update({u: -f, v: f})
    assert all(surplus[v] == 0 for v in range(1, n - 1))
    assert surplus[n - 1] == nx.maximum_flow_value(graph, 0, n - 1)
    outside = set(rng.sample(range(n), rng.randint(0, n - 1)))
    labels = _kernel.components(n, tail, head, [*outside])
    rest = graph.to_undirected().subgraph(set(range(n)) - outside)
    parts = {frozenset(v for v in range(n) if labels[v] == i) for i in set(labels) - {-1}}
    assert parts == set(map(frozenset, nx.connected_components(rest)))
    assert {v for v in range(n) if labels[v] == -1} == outside


@pytest.mark.parametrize("seed", range(20))
def test_colours_are_stable_and_the_same_for_images(seed: int) -> None:
    plain = named("dgx1-v100 boxes=3")
    graph = shuffled(plain, seed)
    colours, other = (
        _kernel.refine_colours(g.n, g.tail, g.head, g.capacity, list(map(int, g.gpu)))
        for g in (graph, plain)
    )
    looks: dict[int, set[tuple[object, ...]]] = {}
    for v, gpu in enumerate(graph.gpu):
        around = Counter((True, c, colours[t]) for s, t, c in graph.arcs if s == v)
        around.update((False, c, colours[s]) for s, t, c in graph.arcs if t == v)
        looks.setdefault(colours[v], set()).add((gpu, frozenset(around.items())))
    assert all(len(look) == 1 for look in looks.values())
    assert sorted(Counter(colours).values()) == sorted(Counter(other).values())


# ------------------------------------------------------------------------------ structure


def test_digits_turn_without_carry() -> None:
    maps = list(digit_rotations(6))
    assert maps[0] == (1, 2, 3, 4, 5, 0)
    assert (1, 0, 3, 2, 5, 4) in maps  # the last digit of size 2
    assert (1, 2, 0, 4, 5, 3) in maps
    assert all(sorted(image) == list(range(6)) for image in maps)


FABRICS = """
dgx-a100 boxes=5: 5, (5, 8)
dgx-h100 boxes=3: 3, (3, 8)
mi250 boxes=4: 4, (4, 2)
mi300x boxes=3: 3, (3, 8)
dgx1-v100 boxes=3: 3, (3, 2, 2)
fat-tree leaves=3 hosts=4 gpus=2: 3, (3, 4, 2)
rail boxes=6: 6, (6, 8)
rail boxes=6 rails=4: 6, (6, 8)
star gpus=7: 7, (7,)
gb200-nvl72 boxes=2: 2, (2, 72)
"""
"""How many parts are alike, and the orders of the generators."""


@pytest.mark.parametrize("row", FABRICS.strip().splitlines())
def test_parts_are_found_whatever_the_names_and_the_order(row: str) -> None:
    words, _, expected = row.partition(": ")
    parts, orders = eval(expected)
    plain = named(words)
    graph = shuffled(plain, 7)
    first, other = (next(find_components(g)) for g in (plain, graph))
    assert len(first.members) == len(other.members) == parts
    assert find_inner_symmetries(plain, first).orders == orders
    assert compact(graph).algbw == solver.optimum(graph, Collective.ALLGATHER).algbw


def test_a_failed_link_leaves_no_group_that_moves_all_ranks() -> None:
    graph = dgx_a100(4)
    assert find_structures(graph)
    bad = replace(graph, **{f: getattr(graph, f)[2:] for f in ("tail", "head", "capacity")})
    assert find_structures(bad) == ()
    assert isinstance(compact(bad).group, Rotation)


def test_one_way_rings_and_lone_graphs() -> None:
    one_way = ring(5, 3, both=False)
    group = find_translations(one_way)
    assert group is not None
    assert group.orders == (5,)
    forest = compact(one_way)
    assert (forest.algbw, forest.height) == (Fraction(15, 4), 4)
    assert solve_compact(one_way, Collective.ALLREDUCE) is None  # its directions differ
    path = build([("gpu0", "gpu1", 3), ("gpu1", "gpu2", 5)])
    assert find_translations(path) is None
    assert find_structures(path) == ()


# ------------------------------------------------------------------------------ forests

COMPACT = """
dgx-a100 boxes=1: 2400/7 1 1
dgx-a100 boxes=2: 1040/3 2 104
dgx-a100 boxes=4: 800/3 2 1
dgx-a100 boxes=8: 1600/7 2 1
dgx-h100 boxes=8 nvls=0: 3200/7 2 1
mi250 boxes=2: 5312/15 9 1328
mi250 boxes=8: 2048/7 8 128
mi300x boxes=8: 3200/7 2 25
dgx1-v100 boxes=4: 200/3 4 2
fat-tree leaves=4 hosts=4: 1280/3 3 4
fat-tree leaves=4 hosts=2 oversubscription=2: 3200/7 3 16
rail boxes=4 rails=4 oversubscription=2: 16000/31 2 8
star gpus=9: 225/4 1 1
torus-3d x=4 y=4 z=4: 6400/21 6 2
torus-3d x=8 y=8 z=16: 102400/341 16 2
torus-2d x=6 y=4: 4800/23 5 4
hypercube dimension=6: 6400/21 6 2
ring gpus=9: 225/2 4 1
"""
"""algbw in GB/s, the most hops, the most representatives."""


@pytest.mark.parametrize("row", COMPACT.strip().splitlines())
def test_compact_forests_reach_the_optimum(row: str, tmp_path: Path) -> None:
    words, _, figures = row.partition(": ")
    algbw, height, most = map(Fraction, figures.split())
    forest = compact(named(words), name=words)
    assert forest.images > 1
    assert certificate.check(forest) == (algbw, algbw)
    assert forest.height <= height
    assert len(forest.trees) <= most
    if forest.n <= 200:
        whole = check_written_out(forest, algbw, tmp_path)
        assert whole.group is None
        assert len(whole.trees) == len(forest.trees) * forest.images


def check_written_out(forest: Forest, algbw: str | Fraction, tmp_path: Path) -> Forest:
    """A compact allgather of `algbw` GB/s written out, once that is the same.

    A stranger finds it optimal, and a reduce-scatter reaches as much as the solver says.
    """
    whole, graph = forest.expand(), forest.graph
    assert len({(t.root, frozenset(t.edges)) for t in whole.trees}) == forest.count
    assert len(whole.trees) == forest.count
    assert check(whole) == forest.algbw
    assert whole.loads() == forest.loads()
    assert (whole.height, whole.trees_per_root) == (forest.height, forest.trees_per_root)
    stranger(forest, tmp_path, "--algbw", algbw, "--optimal", "--max-height", forest.height)
    back = compact(graph, Collective.REDUCE_SCATTER)
    assert check(back.expand()) == back.algbw == solver.optimum(graph, back.collective).algbw
    return whole


BROKEN = """
dgx-a100 boxes=5 -box0/gpu0-fabric=1/2: 1875/8 4 30 3
dgx-a100 boxes=16 -box3/gpu0-fabric: 560/3 15 28 3
dgx-a100 boxes=128 -box0/gpu0-fabric=1/3: 70400/381 127 30 3
dgx-h100 boxes=9 nvls=0 -box0/gpu0-fabric: 1575/4 8 28 3
rail boxes=16 -box0/gpu0-rail0=1/2: 400 15 30 3
fat-tree leaves=5 hosts=2 gpus=4 -box0/gpu0-leaf0: 500/3 4 29 6
dgx-a100 boxes=512 -box0/gpu0-fabric=1/2: 96000/511 511 30 3
fat-tree leaves=16 hosts=8 spines=8 -box0/gpu0-leaf0: 44800/127 840 61 3
fat-tree leaves=16 hosts=16 spines=16 -box0/gpu0-leaf0: 17920/51 3600 68 3
multi-plane-clos planes=1 pods=4 leaves=8 hosts=16 spines=8 cores=4 -box0/gpu0-plane0.leaf0: 44800/511 645120 56 3
multi-plane-clos leaves=8 hosts=16 spines=8 -box0/gpu0-plane3.leaf0: 100800/127 1680 91 3
"""  # noqa: E501
"""A failed link: algbw in GB/s, equal parts that go round, representatives, the height.

In the last four: sound leaves, boxes at each, and those beside the broken one, where leaves alone
may go round, too, whose trees are twice as high, and where they may not.
"""


@pytest.mark.parametrize("row", BROKEN.strip().splitlines())
def test_equal_parts_go_round_beside_a_broken_one(row: str, tmp_path: Path) -> None:
    words, figures = row.split(": ")
    algbw, images, trees, height = map(Fraction, figures.split())
    graph = named(words)
    forest = compact(graph, name=words)
    assert isinstance(forest.group, Rotation)
    assert (forest.images, len(forest.trees), forest.height) == (images, trees, height)
    assert certificate.check(forest) == (algbw, algbw)
    assert forest_file.loads(forest_file.dumps(forest)).group == forest.group
    if forest.n > 200:
        return
    check_written_out(forest, algbw, tmp_path)
    assert forest.count < len(forest.trees) * forest.images
    assert solve_compact(graph, Collective.ALLREDUCE) is None  # its joint optimum is within reach


NESTED = """
dgx-a100 boxes=7 -box0/gpu0-fabric -box1/gpu1-fabric: 1225/6 2,5 28 3
fat-tree leaves=3 hosts=3 gpus=4 -box0/gpu0-leaf0: 675/4 2,2,3 26 3
fat-tree leaves=4 hosts=4 gpus=4 -box0/gpu0-leaf0=1/2: 560/3 3,3,4 24 3
TIERS gpus=4 -box0/gpu0-plane0.leaf0: 2025/52 2,2,3,2,3,3 29 3
TIERS gpus=2 -plane0.leaf0-plane0.pod0.spine0: 675/26 2,2,3 18 3
"""
"""Failed links: algbw in GB/s, orders of generators, the most representatives, the height."""
TIERS = "multi-plane-clos planes=1 pods=3 leaves=3 hosts=3"


@pytest.fixture
def nested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several generators, each of which keeps other parts, although one might do."""
    groups = equal_parts._groups
    monkeypatch.setattr(
        equal_parts, "_groups", lambda graph: (g for g in groups(graph) if len(g.generators) > 1)
    )


@pytest.mark.usefixtures("nested")
@pytest.mark.parametrize("row", NESTED.strip().splitlines())
def test_parts_of_several_kinds_go_round_on_their_own(row: str, tmp_path: Path) -> None:
    words, figures = row.replace("TIERS", TIERS).split(": ")
    algbw, orders, most, height = figures.split()
    graph = named(words)
    forest = compact(graph, name=words)
    assert isinstance(forest.group, Rotation)
    assert forest.group.orders == tuple(map(int, orders.split(",")))
    assert certificate.check(forest) == (Fraction(algbw), Fraction(algbw))
    assert len(forest.trees) <= int(most)
    assert forest.height == int(height)
    assert forest_file.loads(forest_file.dumps(forest)).group == forest.group
    whole = check_written_out(forest, algbw, tmp_path)
    few, all_of_them = (edges_of_forest(f) for f in (forest, whole))
    assert (few.nodes == all_of_them.nodes).all()
    assert (few.weight == all_of_them.weight).all()


@pytest.mark.parametrize(
    ("machine", "moves"),
    [("dgx-a100 boxes=7 -box0/gpu0-fabric -box1/gpu1-fabric", True),
     ("dgx-a100 boxes=3 -box0/gpu0-fabric", False)],
)  # fmt: skip
def test_a_group_that_keeps_a_root_keeps_its_trees(machine: str, moves: bool) -> None:
    """Also where one generator moves the root: boxes that go round are entered all alike.

    Else its images are trees of their own: too many in a forest, written out from a file.
    """
    forest = compact(named(machine), name="a")
    names = forest.graph.names
    number, tree = next(
        (i, t)
        for i, t in enumerate(forest.trees)
        if (forest.images_of(t.root) > 1) == moves and forest.images_of(t.root) < forest.images
    )
    box = "box0" if names[tree.root].startswith("box2") else "box2"
    held = [v for v in forest.graph.ranks if names[v].startswith(f"{box}/")]
    entry = next(p[-1] for p in tree.edges if p[-1] in held and p[0] not in held)
    mate = next(v for v in held if v != entry)
    swap = {entry: mate, mate: entry}
    edges = tuple(tuple(swap.get(v, v) for v in path) for path in tree.edges)
    trees = (*forest.trees[:number], replace(tree, edges=edges), *forest.trees[number + 1 :])
    spoilt = replace(forest, trees=trees)
    words = f"tree {number}: the group keeps its root {names[tree.root]}, but moves it"
    with pytest.raises(ForestError, match=words):
        check(spoilt)
    with pytest.raises(ForestError, match=r"the shares of root .* add up to"):
        verify_text(forest_file.dumps(spoilt), "x")


def test_rotations_that_cannot_be_relied_on_are_refused() -> None:
    graph = dgx_a100(5)
    image = list(range(graph.n))
    a, b = (graph.names.index(f"box{box}/gpu0") for box in (0, 1))
    image[a], image[b] = b, a
    with pytest.raises(ForestError, match="which has another bandwidth or is no link"):
        rotation_group(graph, [tuple(image)])
    boxes = rotation(graph, 5)
    with pytest.raises(ForestError, match="box0/gpu0 has 5 images, its generators 25"):
        rotation_group(graph, [boxes, boxes])
    with pytest.raises(ForestError, match="cycles of different lengths, or none"):
        rotation_group(graph, [tuple(range(graph.n))])


@pytest.mark.parametrize(
    "words", ["dgx-a100 boxes=2", "torus-2d x=4 y=3", "fat-tree leaves=3 hosts=2 gpus=2"]
)
def test_an_allreduce_has_the_same_trees_both_ways(words: str, tmp_path: Path) -> None:
    graph = named(words)
    forest = compact(graph, Collective.ALLREDUCE, name=words)
    algbw, bound = certificate.check(forest)
    assert algbw == solver.optimum(graph, Collective.ALLGATHER).algbw / 2
    assert bound is not None
    assert algbw <= bound
    assert check(forest.expand()) == algbw
    stranger(forest, tmp_path, "--algbw", algbw)


def test_rooted_collectives_and_parts_are_not_compact() -> None:
    graph = dgx_a100(3)
    assert solve_compact(graph, Collective.BROADCAST) is None
    unequal = replace(graph, shares=(2, *[1] * 23))
    assert solve_compact(unequal, Collective.ALLGATHER) is None


def test_fixed_trees_are_compact_too() -> None:
    forest = compact(named("mi250 boxes=2"), trees=1)
    assert (forest.algbw, forest.trees_per_root) == (320, 1)


def test_solving_twice_gives_the_same_bytes() -> None:
    graph = named("mi250 boxes=4")
    first, second = (compact(graph, name="x") for _ in range(2))
    find_structures.cache_clear()
    assert forest_file.dumps(first) == forest_file.dumps(second)
    assert compact(shuffled(graph, 3), name="x").algbw == first.algbw


def test_thousands_of_gpus() -> None:
    forest = compact(named("dgx-a100 boxes=2048"), name="dgx-a100-2048")
    assert (forest.n, forest.height, len(forest.trees)) == (16_384, 2, 1)
    text = forest_file.dumps(forest)
    assert len(text) < 10_000_000
    verdict = verify_text(text, "x")
    assert "16384 trees (the images of 1 tree under 16384 symmetries)" in verdict.lines[0]
    assert verdict.figures["optimal"] is True
    assert verdict.figures["algbw"] == "409600/2047"


def test_fabrics_of_several_layers_are_packed_by_orbits() -> None:
    graph = named("fat-tree", leaves=8, hosts=8, gpus=8, oversubscription=2)
    forest = solve(graph, Collective.ALLGATHER)
    assert certificate.check(forest) == (Fraction(25600, 63), Fraction(25600, 63))
    assert (forest.height, len(forest.trees), forest.group) == (3, 512, None)


# ------------------------------------------------------------------------------ never wrong


@st.composite
def boxed(draw: st.DrawFn) -> CapacityGraph:
    """Equal random boxes around one or two fabrics; now and then with a link that differs."""
    gpus, boxes = draw(st.integers(1, 4)), draw(st.integers(2, 5))
    width = st.sampled_from((1, 2, 3, 5, 12))
    inside = {
        (i, j): draw(width)
        for i, j in product(range(gpus), repeat=2)
        if i < j and (j == i + 1 or draw(st.booleans()))
    }
    switch = draw(st.one_of(st.none(), width))
    up = [draw(width) for _ in range(gpus)]
    planes = draw(st.integers(1, 2))
    links = []
    for b in range(boxes):
        links += [(f"box{b}/gpu{i}", f"box{b}/gpu{j}", c) for (i, j), c in inside.items()]
        if switch is not None:
            links += [(f"box{b}/gpu{i}", f"box{b}/switch", switch) for i in range(gpus)]
        links += [(f"box{b}/gpu{i}", f"fabric{i % planes}", c) for i, c in enumerate(up)]
    if draw(st.integers(0, 4)) == 0:
        u, v, c = links[0]
        links[0] = (u, v, c + 1)
    graph = build(links)
    return shuffled(graph, draw(st.integers(0, 99))) if draw(st.booleans()) else graph


@given(boxed())
@settings(max_examples=70, deadline=None)
def test_random_boxes_are_solved_exactly_or_not_at_all(graph: CapacityGraph) -> None:
    forest = solve_compact(graph, Collective.ALLGATHER)
    if forest is None:
        return
    best = solver.optimum(graph, Collective.ALLGATHER)
    assert certificate.check(forest) == (best.algbw, best.bound.algbw)
    whole = forest.expand()
    assert check(whole) == best.algbw
    assert whole.loads() == forest.loads()


@given(st.integers(3, 16), st.sets(st.integers(1, 7), min_size=1, max_size=3), st.data())
@settings(max_examples=50, deadline=None)
def test_random_circulants_are_solved_exactly_or_not_at_all(
    count: int, steps: set[int], data: st.DataObject
) -> None:
    """Rank i is linked to i + step, one way each, for some steps with random capacities."""
    width = {step: data.draw(st.integers(1, 4)) for step in {1, *steps}}
    links = [
        (f"gpu{i}", f"gpu{(i + step) % count}", c)
        for i in range(count)
        for step, c in width.items()
        if step % count
    ]
    graph = build(links, both=False, ranks=[f"gpu{i}" for i in range(count)])
    assert find_translations(graph) is not None
    forest = solve_compact(graph, Collective.ALLGATHER)
    if forest is not None:
        best = solver.optimum(graph, Collective.ALLGATHER).algbw
        assert check(forest) == check(forest.expand()) == best


def test_what_no_scheme_reaches_is_left_to_the_solver() -> None:
    graph = named("mi250")  # one box: levels do not do, though it has a mirror
    assert find_structures(graph)
    assert solve_compact(graph, Collective.ALLGATHER) is None
    topology = machine("mi250")
    result = synthesize(topology, "allgather", compact=True, formats=("forest",))
    assert result.forest.group is None
    assert result.forest.algbw == Fraction(2400, 7)
    assert "no compact forest was found here: all trees are written" in result.notes


def test_all_trees_of_very_many_ranks_are_made_only_where_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("forestcoll.compile.choose.WHOLE", 15)
    topology = machine("mi250")
    with pytest.raises(UnsupportedError, match=r"of these 16 GPUs was found, .* have 240 hops or"):
        synthesize(topology, "allgather", compact=True, formats=("forest",))
    whole = synthesize(topology, "allgather", compact=False, formats=("forest",))
    assert whole.forest.algbw == Fraction(2400, 7)
    rooted = synthesize(topology, "broadcast", compact=True, formats=("forest",))
    assert rooted.forest.group is None


def test_capacities_that_differ_within_an_orbit_are_refused() -> None:
    graph = dgx_a100(2)
    assert pack_compact(graph, 1, [100] * len(graph.tail)) is not None
    assert pack_compact(graph, 1, [99, *[100] * (len(graph.tail) - 1)]) is None


def test_links_that_are_too_thin_are_refused() -> None:
    graph = dgx_a100(3)
    parts = next(find_components(graph))
    group = find_inner_symmetries(graph, parts)
    for up, inside, packed in ((1, 14, False), (2, 21, True)):
        units = [
            up if "fabric" in graph.names[u] + graph.names[v] else inside for u, v in graph.ends
        ]
        assert (pack_parts(graph, parts, group, 1, units) is not None) == packed


def test_units_are_traded_until_links_fill_evenly() -> None:
    light, heavy = use_of([0, 0, 1]), use_of([0, 1, 1])
    assert light == ((0, 2), (1, 1))
    pools = [([("light", light, 5), ("heavy", heavy, 1)], 4)]
    assert choose_units(pools, {0: 6, 1: 6}) == [[("light", 2), ("heavy", 2)]]
    assert choose_units(pools, {0: 8, 1: 4}) == [[("light", 4)]]
    assert choose_units(pools, {0: 6, 1: 5}) is None
    assert choose_units(pools, {1: 9}) is None


# ------------------------------------------------------------------------------ files


def compact_data(boxes: int = 3) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(forest_file.dumps(compact(dgx_a100(boxes), name="a")))
    return data


def test_files_stay_compact() -> None:
    graph = named("dgx-a100 boxes=3")  # in the unit that a file comes back in
    for collective in (Collective.ALLGATHER, Collective.REDUCE_SCATTER, Collective.ALLREDUCE):
        forest = compact(graph, collective, name="a")
        text = forest_file.dumps(forest)
        assert forest_file.loads(text) == forest
        assert forest_file.dumps(forest_file.loads(text)) == text
    assert set(compact_data()["symmetry"]) == {"generators"}


SLOW = """
links = f['topology']['links']
link = next(e for e in links if (e['src'], e['dst']) == ('box0/gpu0', 'fabric0'))
link['bandwidth'] = '24'
f['bound'] = None
"""
"""A link that the trees fill: every box takes in 8 * 25 GB/s of what it lacks."""
MIRROR = """
mirror = {f'box{b}/gpu{i}': f'box{b}/gpu{-i % 8}' for b in range(3) for i in range(8)}
f['symmetry']['generators'].append(mirror)
"""


@pytest.mark.parametrize(("change", "reason"), rows("compact"))
def test_wrong_compact_files_are_refused(change: str, reason: str) -> None:
    data = damage(compact_data(), change, SLOW=SLOW)
    with pytest.raises(ForestError, match=reason):
        verify_text(json.dumps(data), "x")


@pytest.mark.parametrize("change", [f"{SLOW}f['algbw'] = '288'", MIRROR])
def test_what_is_no_group_is_expanded(change: str) -> None:
    """No symmetries any more, or some that do not commute; every image is judged by itself.

    A mirror that keeps all trees adds none; where it makes more, their shares are too many.
    """
    forest = forest_file.loads(json.dumps(damage(compact_data(), change)))
    assert forest.group is None
    assert len(forest.trees) == 24
    assert certificate.check(forest)[0] == (288 if "288" in change else 300)
    swap = (
        "f['symmetry']['generators'].append({'box0/gpu0': 'box0/gpu1', 'box0/gpu1': 'box0/gpu0'})"
    )
    with pytest.raises(ForestError, match="not 1/16"):
        verify_text(json.dumps(damage(compact_data(2), swap)), "x")


def test_a_group_that_is_not_its_generators_is_refused() -> None:
    forest = compact(dgx_a100(3))
    lying = replace(forest, group=replace(forest.group, orders=(3, 4)))  # type: ignore[type-var]
    with pytest.raises(ForestError, match="orders and orbits are not those of its generators"):
        check(lying)
    rooted = replace(forest, collective=Collective.BROADCAST, root=0)
    with pytest.raises(ForestError, match="has one root, so its trees have no images"):
        check(rooted)


def test_expansion_has_a_limit() -> None:
    forest = compact(dgx_a100(3), name="a")
    assert len(forest.expand(24 * 23).trees) == 24
    with pytest.raises(UnsupportedError, match=r"a is compact; .* 552 edges, more than .* 551"):
        forest.expand(551)


def test_plans_are_lowered_from_all_images() -> None:
    graph = dgx_a100(2)
    forest = compact(graph, trees=1, name="a")
    assert lower(forest, MSCCL) == lower(forest.expand(), MSCCL)
    path = Forest("b", graph, Collective.ALLGATHER, 1, (Tree(0, "broadcast", 1, ((0, 1),)),))
    assert path.expand() is path


@pytest.mark.parametrize(("collective", "phases"), [("allgather", 1), ("allreduce", 2)])
def test_large_forests_are_compact_by_default(collective: str, phases: int) -> None:
    topology = machine("dgx-a100 boxes=257")
    assert len(topology.gpus) > COMPACT_FROM
    made = synthesize(topology, collective, formats=("forest",))
    assert made.forest.group is not None
    assert made.forest.algbw == made.optimum.bound.algbw == Fraction(200 * 257, 256) / phases
    assert made.notes == []


def test_parts_too_large_to_be_packed_have_stars_through_boxes() -> None:
    """The farthest boxes come first: links above pods are as full as those below."""
    forest = compact(CapacityGraph.from_topology(clos()))
    assert certificate.check(forest) == (Fraction(819200, 2047),) * 2
    assert (forest.images, len(forest.trees), forest.height) == (16_384, 1, 2)


def test_switches_of_a_tier_are_one_class_of_failures() -> None:
    """Planes and cores are rotated, too, not only what holds ranks."""
    topology = clos(pods=4, leaves=4, spines=4, cores=4)
    failures = list_failures(topology)
    members = classes(CapacityGraph.from_topology(topology), failures)
    names = [failures[member].name for member in dict.fromkeys(members)]
    assert names == [
        *("box0/gpu0-box0/nvswitch", "pod0-leaf0-pod0-spine0", "pod0-spine0-core0-0"),
        *("box0/gpu0's network adapter", "box0/gpu0", "box0/nvswitch"),
        *("pod0-leaf0", "pod0-spine0", "core0-0"),
    ]


def test_stars_written_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(forests, "LARGE", 8)
    forest = compact(
        CapacityGraph.from_topology(clos(pods=2, leaves=2, hosts=4, spines=2, cores=2)),
        name="small",
    )
    whole = forest.expand()
    assert check(whole) == forest.algbw == Fraction(1280, 3)
    stranger(forest, tmp_path, "--optimal", "--max-height", 2)


def test_where_stars_do_not_fit_parts_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = named("fat-tree leaves=2 hosts=2 gpus=4 oversubscription=3")
    before = compact(graph)
    monkeypatch.setattr(forests, "LARGE", 1)
    structure = find_structures(graph)[0]
    assert pack_stars(graph, structure.group, 1, [1] * len(graph.tail)) is None
    assert compact(graph).algbw == before.algbw
