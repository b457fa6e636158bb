"""Baselines: right as any forest, and as fast as theory says."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from fractions import Fraction

import pytest
from command_line import finished
from graphs import build, machine, named

import forestcoll
from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import lower
from forestcoll.program import Collective
from forestcoll.program.targets import MSCCLPP, RCCL, Target
from forestcoll.schedule.forest import check
from forestcoll.solver import baselines
from forestcoll.topology.edit import Scale, edit
from forestcoll.verify import link_loads, verify

MACHINES = ("dgx-a100 boxes=2", "dgx1-v100", "mi250", "dgx-h100", "ring gpus=5", "torus-2d")
BOXES = "dgx-a100 boxes=2"


REFUSED = {
    "a single box": "the ranks are in one box: there is nothing to do between boxes",
    "a mesh": "have no path over links and switches alone: this baseline needs one",
    "odd": "5 ranks are no power of two, which halving and doubling needs",
    "no switch": "no switch between all GPUs copies and adds what it takes",
    "no such": "is for (allreduce|allgather)",
}
COLLECTIVES = (Collective.ALLREDUCE, Collective.ALLGATHER, Collective.REDUCE, Collective.BROADCAST)


@pytest.mark.parametrize("name", baselines.BASELINES)
@pytest.mark.parametrize("text", MACHINES)
def test_baselines_are_right_and_no_better_than_the_optimum(text: str, name: str) -> None:
    on, topology = named(text), machine(text)
    refusals: list[str] = []
    for collective in COLLECTIVES:
        best = forestcoll.optimum(topology, collective, fabric=False).algbw
        try:
            found = baselines.forests(name, on, collective)
        except UnsupportedError as error:
            refusals.append(str(error))
            continue
        for forest in found:
            check(forest)
            assert 0 < forest.plain_algbw <= best
            assert forest.collective is collective
    assert all(any(re.search(why, text) for why in REFUSED.values()) for text in refusals), refusals


@pytest.mark.parametrize("name", baselines.BASELINES)
@pytest.mark.parametrize("target", [MSCCLPP, RCCL], ids=lambda target: target.name)
def test_baselines_are_programs_that_the_verifier_passes(name: str, target: Target) -> None:
    on = named("dgx-h100" if baselines.by_name(name).in_switch else "rail gpus=4")
    for collective in (Collective.ALLREDUCE, Collective.ALLGATHER):
        if collective not in baselines.by_name(name).serves:
            continue
        forest = baselines.forests(name, on, collective)[0]
        program = lower(forest, target)
        assert verify(program).ranks == forest.n
        link_loads(program, forest)


@pytest.mark.parametrize(
    ("name", "text", "algbw"),
    [
        ("rings", BOXES, "640/3"),  # 8 NICs, 15/16 of the data
        ("rings", "mi250", "320"),  # 6 links into a package, 15/16 of the data
        ("rings", "mi250 boxes=2", "8192/31"),  # 16 NICs, 31/32 of the data
        ("rings", "dgx1-v100", "1200/7"),  # NCCL's six rings
        ("rings", "torus-3d", "6400/63"),  # the only one found, and the other way round
        ("rings", "mi300x", "512"),  # 7 links a GPU, 7/8 of the data
        ("rings", "mi300x -box0/gpu0-box0/gpu1", "3072/7"),  # 6
        ("rings", "mi300x boxes=2", "1280/3"),  # 8 NICs, 15/16 of the data
        ("rings", "mi300x boxes=2 link=48 -box0/gpu0-fabric", "1792/5"),  # 7, as wide as a link
        ("ring", "mi300x", "512/7"),
        ("ring", BOXES, "80/3"),
        ("direct", BOXES, "50"),  # half of it by each NIC
        ("hierarchical", BOXES, "2400/7"),
        ("halving-doubling", BOXES, "2400/7"),
        ("bruck", "dgx-a100", "2400/7"),
        ("multitree", "hypercube", "400/3"),
        ("blink", "hypercube", "1200/11"),
    ],
)
def test_known_allgathers(name: str, text: str, algbw: str) -> None:
    (forest, *_) = baselines.forests(name, named(text), Collective.ALLGATHER)
    assert forest.plain_algbw == Fraction(algbw)


def test_rings_of_two_meshes_enter_each_box_by_every_nic() -> None:
    """Two MI250 boxes of 16 dies: the optimum is 354.13 GB/s, one ring 16.5."""
    on = named("mi250 boxes=2")
    forest = baselines.forests("rings", on, Collective.ALLGATHER)[0]
    ends = [
        (path[0], path[-1])
        for tree in forest.trees
        for path in tree.edges
        if on.box(path[0]) != on.box(path[-1])
    ]
    assert {a for a, _ in ends} == {b for _, b in ends} == set(on.ranks)
    assert forest.trees_per_root == 16


def test_the_search_for_rings_leaves_ctrl_c_as_it_is() -> None:
    """The solver's own handler would leave none behind, and kill the process without a word."""
    code = """
import signal
import forestcoll
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.solver import baselines
signal.signal(signal.SIGINT, lambda *_: print("heard"))
graph = CapacityGraph.from_topology(forestcoll.load_topology("mi300x"))
assert baselines.forests("rings", graph, Collective.ALLGATHER)
signal.raise_signal(signal.SIGINT)
"""
    done = finished(sys.executable, "-c", code)
    assert (done.stdout, done.returncode) == ("heard\n", 0), done.stderr


def test_rings_do_without_a_nic_that_failed() -> None:
    for name, wide in (("dgx-a100", 25), ("mi250", 16)):
        on = named(f"{name} boxes=2 -box0/gpu3-fabric")
        n = len(on.ranks)
        nics = n // 2 - 1
        forest = baselines.forests("rings", on, Collective.ALLGATHER)[0]
        assert check(forest) == Fraction(nics * wide * n, n - 1)


@pytest.mark.parametrize(
    ("text", "width", "boxes"),
    [
        ("dgx-a100 boxes=2 -box*/gpu[0-4]<->fabric -box*/gpu[67]<->fabric", 25, 2),
        ("dgx-a100 boxes=3 -box1/gpu[0-4]<->fabric -box1/gpu[67]<->fabric", 25, 3),
        ("mi250 boxes=2 -box*/gpu[1-9]<->fabric -box*/gpu1[0-5]<->fabric", 16, 2),
    ],
    ids=["one NIC each", "one box with one NIC", "meshes with one NIC each"],
)
def test_rings_of_boxes_with_one_nic(text: str, width: int, boxes: int) -> None:
    """Each NIC sends what its box and those before it have: all but the next box's part."""
    on = named(text)
    for name in ("ring", "rings"):
        for collective in (Collective.ALLGATHER, Collective.REDUCE_SCATTER):
            (forest,) = baselines.forests(name, on, collective)
            assert check(forest) == Fraction(width * boxes, boxes - 1)
        (both,) = baselines.forests(name, on, Collective.ALLREDUCE)
        assert check(both) == Fraction(width * boxes, boxes - 1) / 2
        (rooted,) = baselines.forests(name, on, Collective.BROADCAST, 5)
        assert check(rooted) == width
        for target in (RCCL, MSCCLPP) if boxes == 2 and name == "ring" else ():
            verify(lower(both, target))


def test_the_way_through_one_nic_takes_the_widest() -> None:
    """Of two slow ports and a fast one in each box the fast ones, which only switches join."""
    slow = machine(f"{BOXES} -box0/gpu[1-7]<->fabric")
    slow = edit(slow, scale=[Scale("box1/gpu[0-6]<->fabric", Fraction(1, 5))])
    on = CapacityGraph.from_topology(slow)
    (forest,) = baselines.forests("rings", on, Collective.ALLGATHER)
    ends = [(on.names[p[0]], on.names[p[-1]]) for t in forest.trees for p in t.edges]
    used = {end for pair in ends for end in pair if pair[0][:4] != pair[1][:4]}
    assert used == {"box0/gpu0", "box1/gpu7"}
    assert forest.algbw == 50


def test_halving_and_doubling_of_odd_ranks_fold_the_rest() -> None:
    on = named("dgx-a100")
    on = replace(on, ranks=on.ranks[:6])
    forest = baselines.forests("halving-doubling", on)[0]
    assert check(forest) > 0
    assert {tree.root for tree in forest.trees} == {on.ranks[k] for k in (0, 2, 4, 5)}


def test_rings_are_as_slow_as_their_slowest_link() -> None:
    """2 (N - 1) / N of the data over every link of a ring; several use every way out of a box."""
    (one, *_), (several, *_) = (baselines.forests(name, named(BOXES)) for name in ("ring", "rings"))
    assert (one.algbw, one.height) == (Fraction(25 * 16, 30), 15)
    assert several.algbw == 8 * one.algbw
    names = several.graph.names
    links = zip(several.graph.ends, several.loads(), strict=True)
    out = {load for (u, v), load in links if names[v] == "fabric" and "gpu" in names[u]}
    assert len(out) == 1
    assert 0 not in out


RAILS = [
    # boxes, GPUs, rails, and how much faster than one ring and than several the optimum is
    (4, 8, 8, 10, Fraction(5, 4)),
    (4, 8, 4, 10, Fraction(5, 4)),
    (3, 8, 8, 10, Fraction(5, 4)),  # an odd number of boxes takes a third rail
    (2, 8, 8, 10, Fraction(5, 4)),
]


@pytest.mark.parametrize(("boxes", "gpus", "rails", "one", "several"), RAILS)
def test_rings_keep_to_rails(
    boxes: int, gpus: int, rails: int, one: Fraction, several: Fraction
) -> None:
    """Across a spine of half the bandwidth rings in rank order would take twice as long."""
    topology = machine(f"rail boxes={boxes} gpus={gpus} rails={rails} oversubscription=2")
    on = CapacityGraph.from_topology(topology)
    best = forestcoll.optimum(topology, "allreduce").algbw
    n = boxes * gpus
    lone, all_ = baselines.forests("ring", on)[0], baselines.forests("rings", on)[0]
    assert lone.algbw == Fraction(50 * n, 2 * (n - 1))  # a NIC is busy all the time
    assert all_.algbw == gpus * lone.algbw  # and so are all of them
    assert (best / lone.algbw, best / all_.algbw) == (one, several)
    spine = on.names.index("spine")
    assert not any(spine in path for tree in all_.trees for path in tree.edges)
    for forest in (lone, all_):
        check(forest)


def test_every_ring_enters_a_box_by_another_nic() -> None:
    on = named("rail boxes=3 oversubscription=2")
    forest = baselines.forests("rings", on)[0]
    entered = set()
    for tree in forest.trees:
        for path in tree.edges if tree.phase == "broadcast" else ():
            if len({on.box(node) for node in path if on.gpu[node]}) == 2:
                entered.add((on.names[path[0]], on.names[path[-1]]))
    assert len(entered) == 3 * 8  # each GPU of each box, once
    assert all(a.rpartition("/")[2] == b.rpartition("/")[2] for a, b in entered)


def test_rings_of_two_boxes_of_two_gpus_and_of_odd_ones() -> None:
    """Three boxes of two GPUs have no third rail: rings go in rank order, and are right."""
    for text in ("rail boxes=3 gpus=2", "rail boxes=2 gpus=2", "rail gpus=1"):
        forest = baselines.forests("rings", named(text))[0]
        assert check(forest) == forest.algbw


@pytest.mark.parametrize("name", ["ring", "rings"])
@pytest.mark.parametrize("collective", [Collective.ALLGATHER, Collective.REDUCE_SCATTER])
def test_rings_of_half_an_allreduce(name: str, collective: Collective) -> None:
    """Two DGX A100: 8 NICs of 25 GB/s move 15/16 of the data; the optimum is 346.67 GB/s."""
    forest = baselines.forests(name, named(BOXES), collective)[0]
    nics = 1 if name == "ring" else 8
    assert check(forest) == Fraction(nics * 25 * 16, 15)
    program = lower(forest, MSCCLPP)
    assert verify(program).ranks == 16
    link_loads(program, forest)


def test_rings_of_a_broadcast_begin_at_its_root() -> None:
    """Over each NIC an eighth of the data goes once round all."""
    on = named(BOXES)
    forest = baselines.forests("rings", on, Collective.BROADCAST, 3)[0]
    assert check(forest) == 8 * 25
    assert {tree.root for tree in forest.trees} == {on.ranks[3]}


def test_rings_of_a_mesh_share_its_links() -> None:
    """A ring of links carries one ring each way round."""
    assert baselines.forests("rings", named("ring gpus=5"))[0].algbw == Fraction(2 * 50 * 5, 8)
    on = named("mi250")
    one, several = (baselines.forests(name, on)[0] for name in ("ring", "rings"))
    assert several.algbw == 6 * one.algbw


def test_rings_take_links_of_their_own_before_a_shared_switch() -> None:
    """Two meshes of four GPUs under four PCIe switches: no ring keeps to the meshes.

    In rank order every hop of a ring would go over PCIe, and two of them over each switch's link.
    """
    links = [(f"g{i}", f"g{j}", 24) for i in range(8) for j in range(i + 2, 8, 2)]
    links += [(f"g{i}", f"fabric{i // 2}", 12) for i in range(8)]
    links += [(f"fabric{k}", "switch", 12) for k in range(4)]
    best = baselines.forests("rings", build(links))[0].algbw
    less = baselines.forests(
        "rings", build([link for link in links if link[0] != "g0" or link[2] > 12])
    )
    assert best == Fraction(192, 7)
    assert less[0].algbw <= best


def test_double_tree_lets_everybody_rest_in_one_tree() -> None:
    """Inside one tree and at the edge of the other: twice the data in and out of every rank."""
    on = named("dgx2-v100")
    forest = baselines.forests("double-tree", on)[0]
    inside = [
        {path[0] for path in tree.edges} for tree in forest.trees if tree.phase == "broadcast"
    ]
    assert len(inside[0] & inside[1]) <= 1
    assert forest.height <= 5
    assert forest.algbw == 75
