"""What others reach with an all-to-all: never more than the optimum, and their plans compared.

Known shares of the optimum: rows/alltoall.txt, which test_alltoall.py reads.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from graphs import dgx_a100, machine, ring, torus

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower.alltoall.lowering import lower_flows
from forestcoll.program.targets import MSCCLPP, RCCL, Target
from forestcoll.solver.alltoall.demand import Demand
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.baselines.alltoall import EXCHANGES, bruck
from forestcoll.study.comparison.play import compare
from forestcoll.ui.cli.compare import BASELINES
from forestcoll.ui.cli.compare import EXCHANGES as OFFERED
from forestcoll.verify import verify


@pytest.mark.parametrize("name", EXCHANGES)
@pytest.mark.parametrize("graph", [dgx_a100(2), torus(3, 3), ring(5)], ids=["a100", "3x3", "ring"])
def test_nothing_beats_the_optimum(name: str, graph: CapacityGraph) -> None:
    if graph.box(graph.ranks[0]) or not name.startswith("two-level"):  # which are for boxes
        assert EXCHANGES[name].rate(graph) <= solve(Demand(graph)).algbw


@pytest.mark.parametrize("name", [e.name for e in EXCHANGES.values() if e.lowered])
@pytest.mark.parametrize("target", [RCCL, MSCCLPP], ids=["xml", "json"])
def test_plans_deliver(name: str, target: Target) -> None:
    graph = dgx_a100(2)
    flows = EXCHANGES[name].flows(graph)
    carried = verify(lower_flows(graph, flows, 1, target, name)).loads
    assert sum(carried.values()) == Fraction(sum(len(flow.ranks) - 1 for flow in flows), 16)


def test_bruck_takes_powers_of_two() -> None:
    flows = bruck(ring(6))
    for flow in flows:
        steps = [(b - a) % 6 for a, b in pairwise(flow.ranks)]
        assert steps == sorted(set(steps))
        assert all(step & (step - 1) == 0 for step in steps)
    assert len(flows) == 30


def test_compare_a_nic_out() -> None:
    """Ours, the sound machine's plan and everybody else on the broken one."""
    broken = machine("dgx-a100 boxes=2 -box0/gpu0-fabric")
    sound = machine("dgx-a100 boxes=2")
    found = compare(sound, "alltoall", sizes="64M", broken=broken, rules=("fair",))
    assert found.bound == Fraction(175, 4)
    assert [entrant.name for entrant in found.present] == ["forestcoll", "old plan", *EXCHANGES]
    speed = found.speedup(2**26, "fair")
    assert speed is not None
    assert speed > 1.6
    assert all(cell.percent <= 100.01 for cell in found.cells)
    assert any("what has no plan is counted" in note for note in found.notes)


def test_compare_without_plans() -> None:
    """More ranks than plans are made for: loads of links alone."""
    found = compare(machine("dgx-a100 boxes=17"), "alltoall", sizes="1G", rules=("fair",))
    assert {cell.plan for cell in found.cells} == {"links alone"}
    ours, ecmp = (found.cell(name, 2**30, "fair") for name in ("forestcoll", "direct-ecmp"))
    assert ours is not None
    assert ecmp is not None
    assert ours.algbw > ecmp.algbw
    assert "more than 128 ranks: loads of links are compared, without plans" in found.notes


def test_names() -> None:
    assert set(EXCHANGES) == {"direct", "bruck", *OFFERED}
    assert not set(OFFERED) & set(BASELINES)
