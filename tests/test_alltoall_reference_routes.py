"""What direct sending and shortest ways reach, beside the optimum."""

from __future__ import annotations

from fractions import Fraction

import pytest
from graphs import build, dgx_a100, ring
from random_graphs import random_graph

from forestcoll.solver.alltoall.demand import Demand, uniform
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.fold import fold, orbits
from forestcoll.solver.alltoall.reference_routes import reference_algbw
from forestcoll.topology import catalog
from forestcoll.topology.edit import edit


@pytest.mark.parametrize(
    ("name", "settings", "without", "direct", "shortest"),
    [
        ("dgx1-v100", {}, "", None, "72.7"),
        ("mi250", {}, "", None, "69.6"),
        ("mi250", {"boxes": 2}, "", "57.1", "65.0"),
        ("mi250", {"boxes": 8}, "", "90.3", "92.9"),
        ("dgx-a100", {"boxes": 2}, "", "93.7", "93.7"),
        ("dgx-a100", {"boxes": 8}, "", "99.0", "99.0"),
        ("dgx-a100", {"boxes": 2}, "box0/gpu0-fabric", None, "95.2"),
        ("rail", {"boxes": 16, "oversubscription": 2}, "", "57.1", "100.0"),
        ("rail", {"boxes": 16, "spine": 0}, "", None, "100.0"),
        ("torus-3d", {"x": 3, "y": 3, "z": 3}, "gpu0-gpu1", None, "88.0"),
        ("dragonfly", {"groups": 9, "routers": 4, "gpus": 2}, "", "75.5", "75.5"),
    ],
)
def test_known_fabrics(
    name: str,
    settings: dict[str, object],
    without: str,
    direct: str | None,
    shortest: str,
) -> None:
    topology = catalog.load(name, settings)
    demand = uniform(edit(topology, (without,), []) if without else topology)
    best = solve(demand)
    found = [reference_algbw(demand, best.folding, way) for way in ("direct", "shortest")]
    told = [None if f is None else f"{float(100 * f / best.algbw):.1f}" for f in found]
    assert told == [direct, shortest]


def test_one_box_by_hand() -> None:
    """300 GB/s for seven blocks of eight."""
    demand = Demand(dgx_a100(1))
    assert reference_algbw(demand, fold(demand), "direct") == Fraction(8 * 300, 7)


def test_ways_in_proportion_to_bandwidth() -> None:
    """From a to b two thirds go left, one third right: all links are full at once."""
    links = [("a", "wide-switch", 2), ("wide-switch", "b", 2)]
    graph = build([*links, ("a", "thin-switch", 1), ("thin-switch", "b", 1)])
    demand = Demand(graph)
    assert reference_algbw(demand, fold(demand), "direct") == 2 * 3


def test_a_ring_needs_relays() -> None:
    demand = Demand(ring(6))
    assert reference_algbw(demand, fold(demand), "direct") is None
    assert reference_algbw(demand, fold(demand), "shortest") == solve(demand).algbw


def test_folding_changes_nothing_and_nothing_beats_the_optimum() -> None:
    for seed in range(60):
        demand = Demand(random_graph(seed))
        best = solve(demand).algbw
        for way in ("direct", "shortest"):
            found = reference_algbw(demand, fold(demand), way)
            assert found == reference_algbw(demand, orbits(demand, []), way)
            assert found is None or found <= best
