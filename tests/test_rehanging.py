"""Low forests on irregular switch fabrics: valid, at the optimum, and as low as they must be."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from command_line import Run, fine
from graphs import able, build, dgx_a100, machine, named
from irregular_fabrics import families, small
from random_graphs import CHECKER, needs_stranger, stranger, validate

from forestcoll import solver
from forestcoll.compile.choose import NEARLY
from forestcoll.compile.synthesize import synthesize
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.kernel import _kernel
from forestcoll.program import Collective
from forestcoll.schedule import certificate
from forestcoll.schedule.forest import Tree
from forestcoll.solver import multicast
from forestcoll.solver.front import Front
from forestcoll.solver.shallow import rehanging
from forestcoll.solver.shallow.boxes import find_boxes
from forestcoll.solver.shallow.height import forest_bound, least_height
from forestcoll.solver.shallow.inside import Interior
from forestcoll.solver.shallow.rehanging import Wanted, pack_irregular, suits
from forestcoll.solver.solve import SLACK
from forestcoll.solver.task import Task, analyse
from forestcoll.topology import Topology, catalog, dumps_topology
from forestcoll.topology.edit import Scale, edit
from forestcoll.ui.report import words

SWITCHED = [name for name in families().FAMILIES if name not in ("torus", "nvl72", "tight-clos")]


def room(graph: CapacityGraph, k: int = 0) -> tuple[Task, list[int], list[int]]:
    """The allgather's task, what its optimum may load each link with, and trees from each rank."""
    task = analyse(graph, None)
    k = k or task.trees_per_root
    u = task.roots * k * graph.unit / task.algbw
    return task, [int(c * u) for c in graph.capacity], task.supply(k)


def packed(graph: CapacityGraph, k: int = 0) -> tuple[Sequence[Tree], int]:
    """Trees at the optimum, and their height as the validator counts it."""
    task, capacity, supply = room(graph, k)
    trees = pack_irregular(Wanted.of(task, max(supply), task.algbw))
    assert trees is not None
    return trees, validate(graph, capacity, supply, trees)


@pytest.fixture
def only_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The general packers are not asked."""

    def refuse(*args: object) -> None:
        raise AssertionError("packed by the general packers")

    monkeypatch.setattr("forestcoll.solver.phase_packing.pack", refuse)
    monkeypatch.setattr("forestcoll.solver.multicast.pack", refuse)


@pytest.mark.parametrize("family", SWITCHED)
def test_every_family_reaches_the_optimum_low(family: str) -> None:
    graph = small(family, seed=1)
    k = Front(graph, Collective.ALLGATHER).exact.trees
    _, capacity, supply = room(graph, k)
    least = least_height(graph, capacity, supply)
    assert least <= packed(graph, k)[1] <= families().FAMILIES[family].height


def part_of(family: str) -> CapacityGraph:
    """A process group on a part of the fabric."""
    made = families()
    topology = made.make(family, 1, *made.FAMILIES[family].small)
    return CapacityGraph.from_topology(topology, ranks=["su*-box[0-4]/*"])


def unequal(graph: CapacityGraph) -> CapacityGraph:
    """Some ranks with more data, one with none."""
    return replace(graph, shares=tuple(int(i != 3) + (i % 5 == 0) for i in range(len(graph.ranks))))


@pytest.mark.usefixtures("only_boxes")
@pytest.mark.parametrize(
    ("make", "height"),
    [
        (lambda: small("rails"), 2),
        (lambda: small("dead-rails"), 3),
        (lambda: small("one-socket"), 3),
        (lambda: part_of("rails"), 2),
        (lambda: unequal(small("rails")), 3),
        (lambda: small("two-sockets"), 3),
    ],
    ids=["rails", "dead rails", "one socket", "part", "unequal parts", "two sockets"],
)
@pytest.mark.parametrize("name", ["allgather", "reduce-scatter", "allreduce"])
def test_solve_takes_them_and_proves_them(
    make: Callable[[], CapacityGraph], height: int, name: str
) -> None:
    graph, collective = make(), Collective(name)
    if collective is Collective.ALLREDUCE and (graph.shares or height > 2):
        graph, height = small("one-socket", seed=1), 3
    forest = solver.solve(graph, collective)
    assert certificate.check(forest)[0] == solver.optimum(graph, collective).algbw
    assert forest.height <= height
    if collective is not Collective.ALLREDUCE and not graph.shares:
        assert (forest_bound(forest) or 0) <= forest.height


def test_the_same_call_gives_the_same_trees() -> None:
    assert packed(small("three-tiers")) == packed(small("three-tiers"))


def test_links_in_one_direction_only() -> None:
    """Faults in one direction: a GPU that cannot send, another that cannot receive, by its NIC."""
    graph = dgx_a100(10)
    gone = {("box0/gpu0", "fabric0"), ("fabric0", "box3/gpu5")}
    names = graph.names
    kept = [e for e, (u, v) in enumerate(graph.ends) if (names[u], names[v]) not in gone]
    assert packed(graph.keep(kept))[1] == 3


def test_other_solvers_keep_what_is_theirs() -> None:
    """One root, 64 ranks, no switches: nothing for this one."""
    tasks = [analyse(g, None) for g in (dgx_a100(8), small("torus"))]
    tasks.append(analyse(small("rails"), 0))
    assert not any(suits(task.given, task.root) for task in tasks)


@pytest.mark.usefixtures("only_boxes")
@pytest.mark.parametrize("collective", [Collective.ALLGATHER, Collective.REDUCE_SCATTER])
def test_nvswitches_that_copy_keep_nobody_from_low_trees(collective: Collective) -> None:
    """As fast and low as trees can be, whatever the switches do: no other trees are sought."""
    graph = able(small("rails"), "*/nvswitch")
    assert any(graph.multicast)
    forest = solver.solve(graph, collective)
    assert certificate.check(forest)[0] == forest.plain_algbw
    assert forest.plain_algbw == solver.optimum(small("rails"), collective).algbw
    assert forest.height == forest_bound(forest) == 2
    assert not multicast.may_beat(forest)
    assert multicast.may_beat(replace(forest, bound=None))


def test_regular_fabrics_keep_their_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr("forestcoll.solver.phase_packing.pack_irregular", refuse)
    monkeypatch.setattr("forestcoll.solver.phase_packing.BOTH_WAYS", 64)
    for graph in (dgx_a100(9), named("fat-tree leaves=4 hosts=4 spines=4 oversubscription=2")):
        assert solver.solve(graph, Collective.ALLGATHER).height <= 3


def test_too_many_edges_are_left_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehanging, "MOST_EDGES", 10)
    task = analyse(small("rails"), None)
    assert pack_irregular(Wanted.of(task, task.trees_per_root, task.algbw)) is None


def test_what_does_not_fit_is_not_claimed() -> None:
    """One unit less on a link that the optimum needs, and there are no trees."""
    graph = small("rails")
    task, capacity, supply = room(graph)
    assert pack_irregular(Wanted(graph, capacity, supply), 0) is not None
    cut = task.bound.parts[0]
    crossing = [e for e, (t, h) in enumerate(graph.ends) if t in cut and h not in cut]
    capacity[crossing[0]] -= 1
    assert pack_irregular(Wanted(graph, capacity, supply), 0) is None


# ------------------------------------------------------------------------------ boxes


def one_each(graph: CapacityGraph) -> list[int]:
    return [int(v in graph.ranks) for v in range(graph.n)]


def boxes_of(graph: CapacityGraph) -> Any:
    return find_boxes(graph, graph.capacity, tuple(one_each(graph)))


def test_boxes_are_found_by_name_and_by_their_links() -> None:
    graph = build(
        [
            *((f"a/gpu{i}", "a/nvswitch", 100) for i in range(3)),
            *((f"a/gpu{i}", "a/pcie-switch", 10) for i in range(3)),
            *(("a/pcie-switch", "fabric", 10), ("b/gpu0", "b/gpu1", 100), ("b/gpu1", "fabric", 10)),
            *((f"c/gpu{i}", "fabric", 10) for i in range(2)),
        ],
    )
    boxes = boxes_of(graph)
    names = [" ".join(sorted(graph.names[v] for v in members)) for members in boxes.members]
    assert names == ["a/gpu0 a/gpu1 a/gpu2", "b/gpu0 b/gpu1", "c/gpu0", "c/gpu1"]
    at = dict(zip(graph.names, boxes.box, strict=True))
    assert (at["a/pcie-switch"], at["fabric"]) == (0, -1)
    inner = {ends for ends, box in zip(graph.ends, boxes.inner, strict=True) if box >= 0}
    number = graph.names.index
    assert {(number("a/gpu0"), number("a/nvswitch")), (number("b/gpu0"), number("b/gpu1"))} <= inner
    assert (number("a/gpu0"), number("a/pcie-switch")) not in inner
    assert boxes.count == 4 < len(graph.ranks)


def test_a_box_with_tight_links_or_a_fault_in_one_direction_is_taken_apart() -> None:
    tight = [(f"{b}/gpu{i}", end, 3) for b in "ab" for i in range(4) for end in (f"{b}/nvs", "fab")]
    assert boxes_of(build(tight, switches=["a/nvs", "b/nvs", "fab"])).count == 8
    links = [(f"a/gpu{i}", "a/nvswitch", 100) for i in range(3)]
    out = [(f"a/gpu{i}", "fabric", 9) for i in (0, 2)]
    back = [(v, u, c) for u, v, c in links[:2] + out]
    assert boxes_of(build(links + out + back, both=False)).count == 3


def server(name: str, between: int, nvswitch: int = 0) -> list[tuple[str, str, int]]:
    """Two sockets with two GPUs and an adapter each."""
    sockets = (f"{name}/pcie0-switch", f"{name}/pcie1-switch")
    return [
        *((f"{name}/gpu{i}", sockets[i // 2], 16) for i in range(4)),
        *((f"{name}/gpu{i}", f"{name}/nvswitch", nvswitch) for i in range(4) if nvswitch),
        (*sockets, between),
        *((socket, "fabric", 8) for socket in sockets),
    ]


@pytest.mark.parametrize(
    ("between", "nvswitch", "parts", "sizes"),
    [(16, 0, 3, [4, 4, 4]), (1, 0, 6, [2] * 6), (16, 90, 0, [4, 4, 4])],
    ids=["whole", "by sockets", "an NVSwitch"],
)
def test_boxes_that_hang_together_by_switches_that_lead_out(
    between: int, nvswitch: int, parts: int, sizes: list[int]
) -> None:
    """What their trees take and what may enter is within the links, whatever passes besides."""
    graph = build([link for name in "abc" for link in server(name, between, nvswitch)])
    supply = one_each(graph)
    boxes = find_boxes(graph, graph.capacity, tuple(supply))
    assert ([len(held) for held in boxes.members], len(boxes.gated)) == (sizes, parts)
    for number, gated in boxes.gated.items():
        members = boxes.members[number]
        assert sum(gated.entries.values()) == sum(supply) - len(members)
        taken: Counter[tuple[int, int]] = Counter()
        for rank, some in gated.spreads.items():
            assert sum(spread.weight for spread in some) == gated.entries[rank] + 1
            for spread in some:
                assert set(spread.depth) == set(members)
                assert spread.height <= gated.hops
                for path in spread.paths:
                    taken.update(dict.fromkeys(pairwise(path), spread.weight))
        assert taken == gated.loads
        assert all(units <= graph.links[ends] for ends, units in taken.items())


@pytest.mark.parametrize("seed", range(2, 6))
def test_servers_of_two_sockets_are_exact_and_low(seed: int) -> None:
    graph = small("two-sockets", seed)
    k = Front(graph, Collective.ALLGATHER).exact.trees
    assert packed(graph, k)[1] <= 4


def interior(links: Sequence[tuple[str, str, int]]) -> tuple[CapacityGraph, Interior]:
    graph = build(links)
    ends = graph.ends
    return graph, Interior(graph, graph.ranks, dict(zip(ends, graph.capacity, strict=True)))


@pytest.mark.parametrize(
    ("links", "height"),
    [
        ([(f"gpu{i}", "switch", 9) for i in range(4)], 1),
        ([(f"gpu{i}", f"{s}-switch", 4 + s) for i in range(4) for s in (0, 1)], 1),
        ([(f"gpu{i}", f"gpu{j}", 3) for i in range(4) for j in range(i)], 1),
        ([(f"gpu{i}", f"gpu{(i + 1) % 4}", 5) for i in range(4)], 3),
    ],
    ids=["switch", "two-switches", "mesh", "ring"],
)
def test_boxes_spread_what_enters(links: Sequence[tuple[str, str, int]], height: int) -> None:
    graph, box = interior(links)
    starts = dict(zip(graph.ranks, (3, 3, 1, 2), strict=True))
    spreads = box.spread(starts)
    assert spreads is not None
    loads: Counter[tuple[int, int]] = Counter()
    for rank, some in spreads.items():
        assert sum(s.weight for s in some) == starts[rank]
        assert [s.height for s in some] == sorted(s.height for s in some)
        for spread in some:
            reached = {rank}
            for path in spread.paths:
                assert path[0] in reached
                assert path[-1] not in reached
                reached.add(path[-1])
                loads.update(dict.fromkeys(pairwise(path), spread.weight))
            assert reached == set(graph.ranks)
            assert spread.height <= height
    limits = graph.links
    assert all(load <= limits[ends] for ends, load in loads.items())


def test_a_box_says_when_its_links_do_not_hold_it() -> None:
    graph, box = interior([(f"gpu{i}", "switch", 2) for i in range(3)])
    assert box.spread(dict(zip(graph.ranks, (2, 1, 1), strict=True))) is None


# ------------------------------------------------------------------------- lower bounds


def boxes_of_four(count: int, out: Sequence[int]) -> list[tuple[str, str, int]]:
    links = [(f"box{b}/gpu{i}", f"box{b}/nvswitch", 99) for b in range(count) for i in range(4)]
    return links + [
        (f"box{b}/gpu{i}", "fabric", c) for b in range(count) for i, c in enumerate(out) if c
    ]


def under_leaves(up: int) -> list[tuple[str, str, int]]:
    """Two boxes a leaf: 8 trees from there to 6 boxes elsewhere are 48 direct sends."""
    links = [
        (u, f"leaf-{int(u[3]) // 2}-switch" if v == "fabric" else v, c)
        for u, v, c in boxes_of_four(8, (7, 7, 7, 7))
    ]
    return links + [(f"leaf-{i}-switch", "spine-switch", up) for i in range(4)]


@pytest.mark.parametrize(
    ("links", "height"),
    [
        ([(f"gpu{i}", f"gpu{i + 1}", 99) for i in range(5)], 5),
        ([(f"gpu{i}", "switch", 99) for i in range(5)], 1),
        ([(f"gpu{i}", "switch", 3) for i in range(5)], 2),
        # Five boxes of 4: 16 trees come from outside, and each rank sends 4 of its own.
        (boxes_of_four(5, (4, 4, 4, 4)), 2),
        (boxes_of_four(5, (6, 6, 4, 0)), 3),  # a rank without a link of its own
        (boxes_of_four(5, (5, 5, 3, 3)), 3),  # ranks whose links are too narrow
        (boxes_of_four(5, (20, 20, 20, 3)), 2),  # room to do without
        (under_leaves(48), 2),
        (under_leaves(47), 3),
    ],
)
def test_heights_are_bounded_by_hops_and_by_direct_sends(
    links: list[tuple[str, str, int]], height: int
) -> None:
    graph = build(links)
    assert least_height(graph, graph.capacity, one_each(graph)) == height


@pytest.mark.parametrize(("out", "height"), [((4, 4, 4, 4), 2), ((5, 5, 3, 3), 3)])
def test_copies_inside_boxes_leave_what_joins_boxes_as_it_is(
    out: Sequence[int], height: int
) -> None:
    """Copies elsewhere share sends between boxes: then only hops count."""
    graph = build(boxes_of_four(5, out))
    supply = one_each(graph)
    for pattern, expected in (("*/nvswitch", height), ("*", 1)):
        copying = able(graph, pattern)
        assert any(copying.multicast)
        assert least_height(copying, graph.capacity, supply, copying=True) == expected


ASKED: dict[str, Any] = {
    "nodes": 3, "tail": [0, 2], "head": [2, 1], "capacity": [1, 1], "box": [0, 1, -1],
    "spread": [0, 0], "ranks": [0, 1], "entries": [-1] * 3, "units": [(0, 1)], "height": 1,
    "grow": False, "moves": 9, "seed": 0, "twin": [],
}  # fmt: skip
"""Two ranks and a switch, and a tree from one of them."""


def test_kernel_refuses_what_makes_no_sense() -> None:
    overload, _, paths, trees = _kernel.rehang(*ASKED.values())
    assert (overload, paths, trees) == (0, [(0, 2, 1)], [[1, 0]])
    for wrong in (
        {"box": [0, 1]},
        {"box": [-1, 1, -1]},
        {"spread": [0]},
        {"spread": [0, -1]},
        {"entries": [-1]},
        {"units": [(2, 1)]},
        {"units": [(3, 1)]},
        {"units": [(0, 0)]},
        {"head": [1, 1]},
        {"ranks": []},
    ):
        with pytest.raises(ValueError, match=r"box|entr|root|rank|nodes"):
            _kernel.rehang(*(ASKED | wrong).values())
    assert _kernel.rehang(*(ASKED | {"tail": [1, 2], "head": [2, 0]}).values())[0] == -1


@pytest.mark.parametrize(("room", "overload"), [(3, 0), (2, 2), (1, 4)])
def test_equal_trees_that_hang_as_one_take_as_many_times_what_one_takes(
    room: int, overload: int
) -> None:
    """Three trees over two arcs."""
    asked = ASKED | {"capacity": [room] * 2, "units": [(0, 3)]}
    assert _kernel.rehang(*asked.values())[0] == overload


@pytest.mark.parametrize(
    ("family", "height", "most"),
    [("fat-tree", 3, 3 * 96), ("dragonfly", 2, 3 * 192), ("two-sockets", 3, 9 * 96 - 1)],
)
def test_many_trees_of_a_root_are_hung_as_few(family: str, height: int, most: int) -> None:
    """As low as one by one; boxes that spread them differently split them again."""
    trees, lowest = packed(small(family), 9)
    assert lowest == height
    assert len(trees) <= most


def test_the_bound_of_a_forest_is_that_of_its_collective() -> None:
    graph = small("one-socket")
    for collective in (Collective.ALLGATHER, Collective.REDUCE_SCATTER):
        assert forest_bound(solver.solve(graph, collective)) == 3
    for collective in (Collective.BROADCAST, Collective.REDUCE, Collective.ALLREDUCE):
        forest = solver.solve(graph, collective, 5 if collective.has_root else None)
        least = forest_bound(forest)
        assert least is not None
        assert 2 <= least <= forest.height


def test_sends_that_share_links_in_switches_bound_nothing() -> None:
    """The NVSwitch copies: a star loads the root's link once, and height 1 is possible."""
    graph = named("dgx-h100")
    forest = multicast.forest(graph, Collective.ALLGATHER, None, "")
    assert forest is not None
    assert forest_bound(forest) == forest.height == 1


def test_reports_state_the_bound_beside_the_height(call: Run) -> None:
    made = families()
    topology = made.make("one-socket", 1, *made.FAMILIES["one-socket"].small)
    Path("fabric.yaml").write_text(dumps_topology(topology))
    asked = ("synthesize", "-t", "fabric.yaml", "-c", "allgather", "--format", "forest", "-o", "x/")
    assert "3 hops (the least at this rate), " in fine(call(*asked))
    found = json.loads(fine(call(*asked, "--force", "--json")))
    assert (found["height"], found["height_bound"]) == (3, 3)
    points = json.loads(fine(call("front", *asked[1:5], "--json")))["points"]
    assert [(p["height"], p["height_bound"]) for p in points] == [(3, 3)]


def test_heights_above_the_bound_say_so() -> None:
    forest = solver.solve(small("one-socket"), Collective.ALLGATHER)
    told = words.height(forest, Fraction(5), 2)
    assert told == "3 hops (at least 2 at this rate), 5 us over the links"
    assert words.height(forest, Fraction(5)) == "3 hops, 5 us over the links"


def test_racks_with_tight_switches_are_grown() -> None:
    """NVL72 in small: what enters a rack is too much for stars alone."""
    graph = small("nvl72")
    task = analyse(graph, None)
    found = Front(graph, Collective.ALLGATHER).fewest(Fraction(99, 100))
    wanted = Wanted.of(task, found.trees, found.algbw)
    boxes = find_boxes(graph, tuple(wanted.capacity), tuple(wanted.supply))
    assert boxes.apart
    trees = pack_irregular(wanted)
    assert trees is not None
    assert validate(graph, wanted.capacity, wanted.supply, trees) <= 3


def test_where_less_is_enough_some_room_is_left() -> None:
    """A given number of trees: the best of them, or a little less where that is asked for."""
    graph = small("nvl72")
    best = solver.optimum(graph, Collective.ALLGATHER).algbw
    exact = Front(graph, Collective.ALLGATHER).fewest(Fraction(98, 100))
    for enough in (None, exact.algbw, best / 2):
        forest = solver.solve(graph, Collective.ALLGATHER, trees=exact.trees, enough=enough)
        reached, _ = certificate.check(forest)
        if enough == best / 2:
            assert exact.algbw * SLACK <= reached <= exact.algbw
        else:
            assert reached == exact.algbw
        assert forest.height <= 3


def slower_cable(made: ModuleType) -> Topology:
    """A fabric whose optimum takes hundreds of trees per root: one cable at 97 %."""
    topology = made.make("rails", 1, *made.FAMILIES["rails"].small)
    link = next(link for link in topology.links if "leaf" in link.dst and "leaf" not in link.src)
    return edit(topology, (), (Scale(f"{link.src}<->{link.dst}", Fraction(97, 100)),))


@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter"])
def test_an_optimum_of_too_many_trees_is_not_waited_for(
    collective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(*args: object) -> list[Tree]:
        raise TimeoutError

    topology = slower_cable(families())
    for module in ("shallow.rehanging.MOST_EDGES", "phase_packing.PATIENT"):
        monkeypatch.setattr(f"forestcoll.solver.{module}", 100_000 if "EDGES" in module else 64)
    monkeypatch.setattr("forestcoll.solver.phase_packing.pack", wait)
    made = synthesize(topology, collective, formats="forest")
    best = made.optimum
    assert best.trees_per_root > 100
    assert best.algbw * NEARLY <= made.forest.algbw < best.algbw
    certificate.check(made.forest)
    assert made.forest.height <= 3
    (note,) = [n for n in made.notes if "of the optimum, which takes" in n]
    assert note.endswith("per root (and minutes: --exact)")
    with pytest.raises(TimeoutError):
        synthesize(topology, collective, formats="forest", exact=True)


def test_many_trees_over_links_cut_down_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NIC that only receives: hundreds of trees a root, unless less is enough or all is asked."""
    monkeypatch.setattr(import_module("forestcoll.solver.solve"), "LARGE", 32)
    topology = machine("dgx-a100 boxes=10 -box1/gpu0->fabric")
    made, exact = (
        synthesize(topology, "allgather", formats="forest", exact=exact) for exact in (False, True)
    )
    best = made.optimum
    assert best.trees_per_root > 32 >= made.forest.trees_per_root
    assert best.algbw * NEARLY <= made.forest.algbw < best.algbw == exact.forest.algbw
    assert any(note.endswith("per root (and minutes: --exact)") for note in made.notes)
    for either in (made, exact):
        assert certificate.check(either.forest)[0] == either.forest.algbw


def test_twice_the_trees_are_tried_before_less_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = small("rails")
    task = analyse(graph, None)
    k = task.trees_per_root
    asked: list[int] = []

    def refuse_first(wanted: Wanted, *more: int) -> list[Tree] | None:
        asked.append(max(wanted.supply))
        return pack_irregular(wanted, *more) if len(asked) > 1 else None

    monkeypatch.setattr("forestcoll.solver.phase_packing.pack_irregular", refuse_first)
    forest = solver.solve(graph, Collective.ALLGATHER)
    assert asked == [k, 2 * k]
    assert forest.trees_per_root == 2 * k
    assert certificate.check(forest)[0] == task.algbw


SHARED = CHECKER.parents[1] / "topologies-irregular"
GIVEN = {"mixed-sizes": 3, "rail-dead": 3, "su-rails": 2, "oversub-2to1": 3}
"""Irregular fabrics that are kept outside of the project, and the height that must be met."""


@needs_stranger
@pytest.mark.parametrize(
    "name", [*list(GIVEN)[:2], *(pytest.param(n, marks=pytest.mark.slow) for n in list(GIVEN)[2:])]
)
def test_an_independent_checker_agrees(name: str, tmp_path: Path) -> None:
    source = SHARED / f"{name}.yaml"
    if not source.exists():
        pytest.skip(f"{source.name} is not beside the project")
    found = synthesize(catalog.load(str(source), {}), "allgather", formats=("forest",)).forest
    asked = ("--collective", "allgather", "--optimal", "--max-height", GIVEN[name])
    stranger(found, tmp_path, *asked)
