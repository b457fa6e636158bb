"""Groups of symmetries, compact forests, and the schemes that find them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from forestcoll import solver
from forestcoll.common.errors import ForestError, UnsupportedError
from forestcoll.compile.synthesize import synthesize
from forestcoll.compile.verdict import verify_text
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.kernel import _kernel
from forestcoll.graph.symmetry.components import (
    alike_ranks,
    digit_rotations,
    find_components,
    find_inner_symmetries,
    find_structures,
    find_translations,
)
from forestcoll.graph.symmetry.group import symmetry_group
from forestcoll.lower import lower
from forestcoll.program import Collective
from forestcoll.program.targets import MSCCL
from forestcoll.schedule import certificate, forest_file
from forestcoll.schedule.forest import Forest, Tree, check
from forestcoll.solver import COMPACT_FROM, solve, solve_compact
from forestcoll.solver.compact.forests import pack_compact
from forestcoll.solver.compact.rotation import choose_units, pack_parts, use_of
from forestcoll.topology import catalog
from forestcoll.ui.cli import cli
from tests.graphs import build, dgx_a100, named, shuffled

CHECKER = Path(__file__).parents[2] / "shared" / "tools" / "check_forest.py"


def independent(forest: Forest, file: Path) -> None:
    """The forest contract's own checker agrees, where it is at hand."""
    if not CHECKER.exists():
        return
    file.write_text(forest_file.dumps(forest), encoding="utf-8")
    command = [sys.executable, str(CHECKER), str(file), "--algbw", str(forest.algbw)]
    if forest.collective is not Collective.ALLREDUCE:
        command.append("--optimal")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert f"trees={len(forest.trees) * forest.images} " in done.stdout
    assert f"height={forest.height}\n" in done.stdout


# ------------------------------------------------------------------------------ groups


def rotation(graph: CapacityGraph, boxes: int) -> tuple[int, ...]:
    """Box b to box b + 1 of a `dgx_a100`."""
    number = {name: v for v, name in enumerate(graph.names)}

    def to(name: str) -> str:
        if not name.startswith("box"):
            return name
        box, rest = name[3:].split("/")
        return f"box{(int(box) + 1) % boxes}/{rest}"

    return tuple(number[to(name)] for name in graph.names)


def turn(graph: CapacityGraph, step: int) -> tuple[int, ...]:
    """GPU i to GPU i + step in every box of a `dgx_a100`."""
    number = {name: v for v, name in enumerate(graph.names)}

    def to(name: str) -> str:
        head, gpu, digit = name.rpartition("gpu")
        return f"{head}gpu{(int(digit) + step) % 8}" if gpu else name

    return tuple(number[to(name)] for name in graph.names)


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
    whole, gpus = rotation(graph, 3), turn(graph, 1)
    mirror = tuple(
        number[f"{n[:-1]}{-int(n[-1]) % 8}"] if "gpu" in n else number[n] for n in graph.names
    )
    one_box = tuple(gpus[v] if graph.names[v].startswith("box0") else v for v in range(graph.n))
    swapped = list(range(graph.n))
    swapped[number["box0/gpu0"]], swapped[number["fabric0"]] = (
        number["fabric0"],
        number["box0/gpu0"],
    )
    moved = list(range(graph.n))
    moved[number["box0/gpu0"]], moved[number["box1/gpu0"]] = (
        number["box1/gpu0"],
        number["box0/gpu0"],
    )
    for maps, reason in (
        ([(0,) * graph.n], "generator 0 is no permutation of the nodes"),
        ([whole[:-1]], "generator 0 is no permutation"),
        ([whole, tuple(swapped)], "generator 1 maps .* which is of another kind"),
        ([tuple(moved)], r"generator 0 maps the link .* another bandwidth or is no link"),
        ([gpus, mirror], "generators 0 and 1 do not commute"),
        ([one_box], "the group has 8 elements, but box1/gpu0 only 1 images"),
        ([mirror], "moves some nodes but not box0/gpu0"),
    ):
        with pytest.raises(ForestError, match=reason):
            symmetry_group(graph, maps)


def test_a_slower_link_is_no_image() -> None:
    graph = dgx_a100(3)
    slow = replace(graph, capacity=(graph.capacity[0] - 1, *graph.capacity[1:]))
    with pytest.raises(ForestError, match="another bandwidth"):
        symmetry_group(slow, [rotation(slow, 3)])


# ------------------------------------------------------------------------------ kernel


@pytest.mark.parametrize("seed", range(20))
def test_components_and_flows_agree_with_networkx(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randint(2, 12)
    arcs = {
        (u, v): rng.randint(1, 9)
        for u, v in product(range(n), repeat=2)
        if u != v and rng.random() < 0.3
    }
    tail, head = [u for u, _ in arcs], [v for _, v in arcs]
    capacity = list(arcs.values())
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from((u, v, {"capacity": c}) for (u, v), c in arcs.items())
    flow = _kernel.maximum_flow(n, tail, head, capacity, 0, n - 1)
    assert all(0 <= f <= c for f, c in zip(flow, capacity, strict=True))
    surplus = Counter[int]()
    for u, v, f in zip(tail, head, flow, strict=True):
        surplus[u] -= f
        surplus[v] += f
    assert all(surplus[v] == 0 for v in range(1, n - 1))
    assert surplus[n - 1] == nx.maximum_flow_value(graph, 0, n - 1)
    outside = rng.sample(range(n), rng.randint(0, n - 1))
    labels = _kernel.components(n, tail, head, outside)
    rest = graph.to_undirected().subgraph(set(range(n)) - set(outside))
    parts = {frozenset(v for v in range(n) if labels[v] == i) for i in set(labels) - {-1}}
    assert parts == {frozenset(c) for c in nx.connected_components(rest)}
    assert {v for v in range(n) if labels[v] == -1} == set(outside)


@pytest.mark.parametrize("seed", range(20))
def test_colours_are_stable_and_the_same_for_images(seed: int) -> None:
    graph = shuffled(named("dgx1-v100", boxes=3), seed)
    start = [graph.gpu[v] for v in range(graph.n)]
    colours = _kernel.refine_colours(
        graph.n, graph.tail, graph.head, graph.capacity, [int(g) for g in start]
    )
    looks: dict[int, set[tuple[object, ...]]] = {}
    for v in range(graph.n):
        around = Counter(
            (out, c, colours[t if out else s])
            for s, t, c in graph.arcs
            for out, end in ((True, s), (False, t))
            if end == v
        )
        looks.setdefault(colours[v], set()).add((start[v], frozenset(around.items())))
    assert all(len(look) == 1 for look in looks.values())
    plain = named("dgx1-v100", boxes=3)
    other = _kernel.refine_colours(
        plain.n, plain.tail, plain.head, plain.capacity, [int(g) for g in plain.gpu]
    )
    assert sorted(Counter(colours).values()) == sorted(Counter(other).values())


@pytest.mark.parametrize("graph", [dgx_a100(4), named("torus-3d", x=3, y=4, z=2), named("mi250")])
def test_the_optimum_of_alike_ranks(graph: CapacityGraph) -> None:
    links = (graph.n, graph.tail, graph.head, graph.capacity, graph.ranks)
    leaving, inside, _ = _kernel.best_ratio(*links)
    sinks = alike_ranks(graph)
    assert len(sinks) < len(graph.ranks)
    found, held, nodes = _kernel.best_ratio(*links, (), sinks)
    assert Fraction(found, held) == Fraction(leaving, inside)
    assert graph.leaving(frozenset(nodes)) == found * graph.unit
    assert sum(v in set(nodes) for v in graph.ranks) == held


# ------------------------------------------------------------------------------ structure


def test_digits_turn_without_carry() -> None:
    maps = list(digit_rotations(6))
    assert maps[0] == (1, 2, 3, 4, 5, 0)
    assert (1, 0, 3, 2, 5, 4) in maps  # the last digit of size 2
    assert (1, 2, 0, 4, 5, 3) in maps
    assert all(sorted(image) == list(range(6)) for image in maps)


FABRICS: list[tuple[str, dict[str, int], int, tuple[int, ...]]] = [
    ("dgx-a100", {"boxes": 5}, 5, (5, 8)),
    ("dgx-h100", {"boxes": 3}, 3, (3, 8)),
    ("mi250", {"boxes": 4}, 4, (4, 2)),
    ("mi300x", {"boxes": 3}, 3, (3, 8)),
    ("dgx1-v100", {"boxes": 3}, 3, (3, 2, 2)),
    ("fat-tree", {"leaves": 3, "hosts": 4, "gpus": 2}, 3, (3, 4, 2)),
    ("rail", {"boxes": 6}, 6, (6, 8)),
    ("rail", {"boxes": 6, "rails": 4}, 6, (6, 8)),
    ("star", {"gpus": 7}, 7, (7,)),
    ("gb200-nvl72", {"boxes": 2}, 2, (2, 72)),
]


@pytest.mark.parametrize(("name", "settings_", "parts", "orders"), FABRICS)
def test_parts_are_found_whatever_the_names_and_the_order(
    name: str, settings_: dict[str, int], parts: int, orders: tuple[int, ...]
) -> None:
    plain = named(name, **settings_)
    graph = shuffled(plain, 7)
    first, other = (next(find_components(g)) for g in (plain, graph))
    assert len(first.members) == len(other.members) == parts
    assert find_inner_symmetries(plain, first).orders == orders
    forest = solve_compact(graph, Collective.ALLGATHER)
    assert forest is not None
    assert forest.algbw == solver.optimum(graph, Collective.ALLGATHER).algbw


def test_a_failed_link_leaves_no_group() -> None:
    graph = dgx_a100(4)
    assert find_structures(graph)
    bad = replace(graph, **{f: getattr(graph, f)[2:] for f in ("tail", "head", "capacity")})
    assert find_structures(bad) == ()
    assert solve_compact(bad, Collective.ALLGATHER) is None
    assert alike_ranks(bad) == list(bad.ranks)


def test_one_way_rings_and_lone_graphs() -> None:
    ring = build([(f"gpu{i}", f"gpu{(i + 1) % 5}", 3) for i in range(5)], both=False)
    group = find_translations(ring)
    assert group is not None
    assert group.orders == (5,)
    forest = solve_compact(ring, Collective.ALLGATHER)
    assert forest is not None
    assert (forest.algbw, forest.height) == (Fraction(15, 4), 4)
    assert solve_compact(ring, Collective.ALLREDUCE) is None  # its directions differ
    path = build([("gpu0", "gpu1", 3), ("gpu1", "gpu2", 5)])
    assert find_translations(path) is None
    assert find_structures(path) == ()


# ------------------------------------------------------------------------------ forests

COMPACT: list[tuple[str, dict[str, int], str, int, int]] = [  # algbw, height, representatives
    ("dgx-a100", {"boxes": 1}, "2400/7", 1, 1),
    ("dgx-a100", {"boxes": 2}, "1040/3", 2, 13 * 8),
    ("dgx-a100", {"boxes": 4}, "800/3", 2, 1),
    ("dgx-a100", {"boxes": 8}, "1600/7", 2, 1),
    ("dgx-h100", {"boxes": 8, "nvls": 0}, "3200/7", 2, 1),
    ("mi250", {"boxes": 2}, "5312/15", 9, 83 * 16),
    ("mi250", {"boxes": 8}, "2048/7", 8, 8 * 16),
    ("mi300x", {"boxes": 8}, "3200/7", 2, 25),
    ("dgx1-v100", {"boxes": 4}, "200/3", 4, 2),
    ("fat-tree", {"leaves": 4, "hosts": 4}, "1280/3", 3, 4),
    ("fat-tree", {"leaves": 4, "hosts": 2, "oversubscription": 2}, "3200/7", 3, 16),
    ("rail", {"boxes": 4, "rails": 4, "oversubscription": 2}, "16000/31", 2, 8),
    ("star", {"gpus": 9}, "225/4", 1, 1),
    ("torus-3d", {"x": 4, "y": 4, "z": 4}, "6400/21", 6, 2),
    ("torus-3d", {"x": 8, "y": 8, "z": 16}, "102400/341", 16, 2),
    ("torus-2d", {"x": 6, "y": 4}, "4800/23", 5, 4),
    ("hypercube", {"dimension": 6}, "6400/21", 6, 2),
    ("ring", {"gpus": 9}, "225/2", 4, 1),
]


@pytest.mark.parametrize(("name", "settings_", "algbw", "height", "most"), COMPACT)
def test_compact_forests_reach_the_optimum(
    name: str, settings_: dict[str, int], algbw: str, height: int, most: int, tmp_path: Path
) -> None:
    graph = named(name, **settings_)
    forest = solve_compact(graph, Collective.ALLGATHER, name=name)
    assert forest is not None
    assert forest.group is not None
    assert forest.images > 1
    assert certificate.check(forest) == (Fraction(algbw), Fraction(algbw))
    assert forest.height <= height
    assert len(forest.trees) <= most
    if forest.n > 200:
        return
    whole = forest.expand()
    assert whole.group is None
    assert len(whole.trees) == len(forest.trees) * forest.images
    assert check(whole) == forest.algbw
    assert whole.loads() == forest.loads()
    assert whole.height == forest.height
    assert whole.trees_per_root == forest.trees_per_root
    independent(forest, tmp_path / "forest.json")


@pytest.mark.parametrize("collective", [Collective.REDUCE_SCATTER, Collective.ALLREDUCE])
@pytest.mark.parametrize(
    ("name", "settings_"),
    [
        ("dgx-a100", {"boxes": 2}),
        ("dgx-a100", {"boxes": 4}),
        ("torus-2d", {"x": 4, "y": 3}),
        ("fat-tree", {"leaves": 3, "hosts": 2, "gpus": 2}),
    ],
)
def test_other_collectives(
    name: str, settings_: dict[str, int], collective: Collective, tmp_path: Path
) -> None:
    graph = named(name, **settings_)
    forest = solve_compact(graph, collective, name=name)
    assert forest is not None
    algbw, bound = certificate.check(forest)
    gather = solver.optimum(graph, Collective.ALLGATHER).algbw
    assert algbw == (gather if collective is Collective.REDUCE_SCATTER else gather / 2)
    assert bound is not None
    assert algbw <= bound
    assert check(forest.expand()) == algbw
    independent(forest, tmp_path / "forest.json")


def test_rooted_collectives_and_parts_are_not_compact() -> None:
    graph = dgx_a100(3)
    assert solve_compact(graph, Collective.BROADCAST) is None
    unequal = replace(graph, shares=(2, *[1] * 23))
    assert solve_compact(unequal, Collective.ALLGATHER) is None


def test_fixed_trees_are_compact_too() -> None:
    graph = named("mi250", boxes=2)
    forest = solve_compact(graph, Collective.ALLGATHER, trees=1)
    assert forest is not None
    assert forest.algbw == 320
    assert forest.trees_per_root == 1


def test_solving_twice_gives_the_same_bytes() -> None:
    graph = named("mi250", boxes=4)
    first, second = (solve_compact(graph, Collective.ALLGATHER, name="x") for _ in range(2))
    find_structures.cache_clear()
    third = solve_compact(shuffled(graph, 3), Collective.ALLGATHER, name="x")
    assert first is not None
    assert second is not None
    assert third is not None
    assert forest_file.dumps(first) == forest_file.dumps(second)
    assert third.algbw == first.algbw


def test_thousands_of_gpus(tmp_path: Path) -> None:
    graph = named("dgx-a100", boxes=2048)
    forest = solve_compact(graph, Collective.ALLGATHER, name="dgx-a100-2048")
    assert forest is not None
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
@settings(max_examples=150, deadline=None)
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
@settings(max_examples=100, deadline=None)
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
    topology = catalog.load("mi250")
    result = synthesize(topology, "allgather", compact=True, formats=("forest",))
    assert result.forest.group is None
    assert result.forest.algbw == Fraction(2400, 7)
    assert "no compact forest was found here: all trees are written" in result.notes


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
    forest = solve_compact(dgx_a100(boxes), Collective.ALLGATHER, name="a")
    assert forest is not None
    data: dict[str, Any] = json.loads(forest_file.dumps(forest))
    return data


def test_files_stay_compact(tmp_path: Path) -> None:
    graph = named("dgx-a100", boxes=3)  # in the unit that a file comes back in
    for collective in (Collective.ALLGATHER, Collective.REDUCE_SCATTER, Collective.ALLREDUCE):
        forest = solve_compact(graph, collective, name="a")
        assert forest is not None
        text = forest_file.dumps(forest)
        back = forest_file.loads(text)
        assert back == forest
        assert forest_file.dumps(back) == text
    assert set(compact_data()["symmetry"]) == {"generators"}


def slow(data: dict[str, Any]) -> None:
    """A link that the trees fill: every box takes in 8 * 25 GB/s of what it lacks."""
    links = data["topology"]["links"]
    link = next(e for e in links if (e["src"], e["dst"]) == ("box0/gpu0", "fabric0"))
    link["bandwidth"] = "24"
    data["bound"] = None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("f['trees'][0]['edges'].pop()", "does not reach"),
        ("f['trees'][0].update(share='1/12')", "add up to 1/12, not 1/24"),
        ("f['trees'].append(f['trees'][0])", "add up to 1/12, not 1/24"),
        ("f['symmetry']['generators'].pop()", "add up to 0, not 1/24"),
        (
            "del f['symmetry']['generators'][0]['box0/gpu0']",
            r"generators\[0\] is no permutation of node ids",
        ),
        ("slow(f)", "states algbw 300, its trees give 288"),
        ("f.update(algbw='301')", "states algbw 301, its trees give 300"),
    ],
)
def test_wrong_compact_files_are_refused(change: str, reason: str) -> None:
    data = compact_data()
    exec(change, {"f": data, "slow": slow})
    with pytest.raises(ForestError, match=reason):
        verify_text(json.dumps(data), "x")


def test_a_slow_link_makes_a_file_whole_again() -> None:
    """The generators are no symmetries any more; every image is judged by itself."""
    data = compact_data()
    slow(data)
    data["algbw"] = "288"
    forest = forest_file.loads(json.dumps(data))
    assert forest.group is None
    assert check(forest) == 288
    assert len(forest.trees) == 24


def test_generators_that_do_not_commute_are_expanded() -> None:
    """A mirror that keeps all trees adds none; where it makes more, their shares are too many."""
    data = compact_data()
    mirror = {f"box{b}/gpu{i}": f"box{b}/gpu{-i % 8}" for b in range(3) for i in range(8)}
    data["symmetry"]["generators"].append(mirror)
    forest = forest_file.loads(json.dumps(data))
    assert forest.group is None
    assert len(forest.trees) == 24
    assert certificate.check(forest) == (300, 300)
    data = compact_data(2)
    swap = {"box0/gpu0": "box0/gpu1", "box0/gpu1": "box0/gpu0"}
    data["symmetry"]["generators"].append(swap)
    with pytest.raises(ForestError, match="not 1/16"):
        verify_text(json.dumps(data), "x")


def test_a_group_that_is_not_its_generators_is_refused() -> None:
    forest = solve_compact(dgx_a100(3), Collective.ALLGATHER)
    assert forest is not None
    assert forest.group is not None
    lying = replace(forest, group=replace(forest.group, orders=(3, 4)))
    with pytest.raises(ForestError, match="orders and orbits are not those of its generators"):
        check(lying)
    rooted = replace(forest, collective=Collective.BROADCAST, root=0)
    with pytest.raises(ForestError, match="has one root, so its trees have no images"):
        check(rooted)


def test_expansion_has_a_limit() -> None:
    forest = solve_compact(dgx_a100(3), Collective.ALLGATHER, name="a")
    assert forest is not None
    assert len(forest.expand(24 * 23).trees) == 24
    with pytest.raises(UnsupportedError, match=r"a is compact; .* 552 edges, more than .* 551"):
        forest.expand(551)


def test_plans_are_lowered_from_all_images() -> None:
    graph = dgx_a100(2)
    forest = solve_compact(graph, Collective.ALLGATHER, trees=1, name="a")
    assert forest is not None
    assert lower(forest, MSCCL) == lower(forest.expand(), MSCCL)
    edges = ((0, 1),)
    path = Forest("b", graph, Collective.ALLGATHER, 1, (Tree(0, "broadcast", 1, edges),))
    assert path.expand() is path


# ------------------------------------------------------------------------------ command line


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, list(arguments))
    return result.exit_code, result.output


def test_command_line(tmp_path: Path) -> None:
    problem = ("-t", "dgx-a100", "--set", "boxes=4", "-c", "allgather", "--format", "forest")
    code, output = run("synthesize", *problem, "--compact", "--json", "-o", str(tmp_path))
    assert code == 0, output
    told = json.loads(output)
    assert (told["trees"], told["representatives"], told["height"]) == (32, 1, 2)
    file = told["files"]["forest"]
    assert "symmetry" in json.loads(Path(file).read_text(encoding="utf-8"))
    code, output = run("verify", file)
    assert code == 0, output
    assert "32 trees (the images of 1 tree under 32 symmetries) span, height 2" in output
    code, output = run("synthesize", *problem, "-o", str(tmp_path), "--force")
    assert code == 0, output
    assert "symmetry" not in json.loads(Path(file).read_text(encoding="utf-8"))
    code, output = run("synthesize", *problem, "--compact", "-o", str(tmp_path), "--force")
    assert code == 0, output
    assert "32, 1 per root; 1 written, the others by 32 symmetries" in output


def test_compact_is_for_forests_alone() -> None:
    with pytest.raises(UnsupportedError, match="a plan needs every tree"):
        synthesize(catalog.load("dgx-a100"), "allgather", compact=True)


def test_large_forests_are_compact_by_default() -> None:
    topology = catalog.load("dgx-a100", {"boxes": "257"})
    assert len(topology.gpus) > COMPACT_FROM
    for collective, algbw in (("allgather", "3213/16"), ("allreduce", "3213/32")):
        result = synthesize(topology, collective, formats=("forest",))
        assert result.forest.group is not None
        assert (
            result.forest.algbw
            == result.optimum.bound.algbw
            == Fraction(200 * 257, 256) / (1 if collective == "allgather" else 2)
        ), algbw
        assert result.notes == []
