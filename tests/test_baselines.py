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
