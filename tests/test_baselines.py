"""Rings and trees: right as any forest, and as fast as theory says."""

from __future__ import annotations

from fractions import Fraction

import pytest

import forestcoll
from forestcoll import baselines
from forestcoll.errors import UnsupportedError
from forestcoll.forest import Forest, check
from forestcoll.graph import CapacityGraph
from forestcoll.lower import lower
from forestcoll.program import Collective
from forestcoll.targets import MSCCLPP
from forestcoll.verify import link_loads, verify

ALL = (baselines.ring, baselines.rings, baselines.double_tree, baselines.tree)
MACHINES = (
    ("dgx-a100", {"boxes": "2"}),
    ("dgx1-v100", {}),
    ("mi250", {}),
    ("ring", {"gpus": "5"}),
    ("torus-2d", {}),
)


def graph(name: str, given: dict[str, str]) -> CapacityGraph:
    return CapacityGraph.from_topology(forestcoll.load_topology(name, given))


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine[0])
def test_baselines_are_right_and_no_better_than_the_optimum(machine, make) -> None:  # type: ignore[no-untyped-def]
    on = graph(*machine)
    if make is baselines.double_tree and machine[0] != "dgx-a100":
        with pytest.raises(UnsupportedError, match="have no path over links and switches alone"):
            make(on)
        return
    forest: Forest = make(on)
    topology = forestcoll.load_topology(*machine)
    assert 0 < check(forest) <= forestcoll.optimum(topology, "allreduce").algbw
    program = lower(forest, MSCCLPP)
    assert verify(program).ranks == forest.n
    link_loads(program, forest)


def test_one_ring_is_as_slow_as_its_slowest_link() -> None:
    """2 (N - 1) / N of the data over every link of the ring."""
    forest = baselines.ring(graph("dgx-a100", {"boxes": "2"}))
    assert forest.algbw == Fraction(25 * 16, 30)
    assert forest.height == 15


def test_several_rings_use_every_way_out_of_a_box() -> None:
    forest = baselines.rings(graph("dgx-a100", {"boxes": "2"}))
    assert forest.algbw == Fraction(8 * 25 * 16, 30)
    links = zip(forest.graph.tail, forest.graph.head, forest.loads(), strict=True)
    names = forest.graph.names
    out = {load for tail, head, load in links if names[head] == "fabric" and "gpu" in names[tail]}
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
    given = {"boxes": boxes, "gpus": gpus, "rails": rails, "oversubscription": 2}
    topology = forestcoll.load_topology("rail", given)
    on = CapacityGraph.from_topology(topology)
    best = forestcoll.optimum(topology, "allreduce").algbw
    n = boxes * gpus
    lone, all_ = baselines.ring(on), baselines.rings(on)
    assert lone.algbw == Fraction(50 * n, 2 * (n - 1))  # a NIC is busy all the time
    assert all_.algbw == gpus * lone.algbw  # and so are all of them
    assert (best / lone.algbw, best / all_.algbw) == (one, several)
    spine = on.names.index("spine")
    assert not any(spine in path for tree in all_.trees for path in tree.edges)
    for forest in (lone, all_):
        check(forest)


def test_every_ring_enters_a_box_by_another_nic() -> None:
    on = graph("rail", {"boxes": "3", "oversubscription": "2"})
    forest = baselines.rings(on)
    entered = set()
    for tree in forest.trees:
        for path in tree.edges if tree.phase == "broadcast" else ():
            if len({on.box(node) for node in path if on.gpu[node]}) == 2:
                entered.add((on.names[path[0]], on.names[path[-1]]))
    assert len(entered) == 3 * 8  # each GPU of each box, once
    assert all(a.rpartition("/")[2] == b.rpartition("/")[2] for a, b in entered)


def test_rings_of_two_boxes_of_two_gpus_and_of_odd_ones() -> None:
    """Three boxes of two GPUs have no third rail: rings go in rank order, and are right."""
    for given in ({"boxes": "3", "gpus": "2"}, {"boxes": "2", "gpus": "2"}, {"gpus": "1"}):
        forest = baselines.rings(graph("rail", given))
        assert check(forest) == forest.algbw


@pytest.mark.parametrize("make", [baselines.ring, baselines.rings])
@pytest.mark.parametrize("collective", [Collective.ALLGATHER, Collective.REDUCE_SCATTER])
def test_rings_of_half_an_allreduce(make, collective: Collective) -> None:  # type: ignore[no-untyped-def]
    """Two DGX A100: 8 NICs of 25 GB/s move 15/16 of the data; the optimum is 346.67 GB/s."""
    on = graph("dgx-a100", {"boxes": "2"})
    forest = make(on, collective=collective)
    nics = 1 if make is baselines.ring else 8
    assert check(forest) == Fraction(nics * 25 * 16, 15)
    assert round(float(baselines.rings(on, collective=collective).algbw), 2) == 213.33
    program = lower(forest, MSCCLPP)
    assert verify(program).ranks == 16
    link_loads(program, forest)


def test_no_rings_for_broadcast() -> None:
    with pytest.raises(
        UnsupportedError, match="rings are for allgather, reduce-scatter, allreduce"
    ):
        baselines.ring(graph("ring", {"gpus": "4"}), collective=Collective.BROADCAST)


def test_rings_of_a_mesh_share_its_links() -> None:
    """A ring of links carries one ring each way round."""
    assert baselines.rings(graph("ring", {"gpus": "5"})).algbw == Fraction(2 * 50 * 5, 8)
    one, several = (f(graph("mi250", {})) for f in (baselines.ring, baselines.rings))
    assert several.algbw >= 2 * one.algbw


def test_double_tree_lets_everybody_rest_in_one_tree() -> None:
    """Inside one tree and at the edge of the other: twice the data in and out of every rank."""
    on = graph("dgx2-v100", {})
    forest = baselines.double_tree(on)
    inside = [
        {path[0] for path in tree.edges} for tree in forest.trees if tree.phase == "broadcast"
    ]
    assert len(inside[0] & inside[1]) <= 1
    assert forest.height <= 5
    assert forest.algbw == 75


def test_no_ring() -> None:
    with pytest.raises(UnsupportedError, match="the links make no ring through all ranks"):
        baselines.ring(_chain())


def test_no_tree_of_two_way_links() -> None:
    one_way = CapacityGraph.from_bandwidths(
        names=("a", "b", "c"),
        gpu=(True,) * 3,
        multicast=(False,) * 3,
        aggregation=(False,) * 3,
        ranks=(0, 1, 2),
        bandwidths={(0, 1): Fraction(1), (1, 2): Fraction(1), (2, 0): Fraction(1)},
    )
    with pytest.raises(UnsupportedError, match="make no tree through all ranks"):
        baselines.tree(one_way)


def _chain() -> CapacityGraph:
    ends = ((0, 1), (1, 0), (1, 2), (2, 1))
    return CapacityGraph.from_bandwidths(
        names=("a", "b", "c"),
        gpu=(True,) * 3,
        multicast=(False,) * 3,
        aggregation=(False,) * 3,
        ranks=(0, 1, 2),
        bandwidths={pair: Fraction(1) for pair in ends},
    )
