"""What others reach with an all-to-all: known shares of the optimum, and their plans compared."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from graphs import dgx_a100, ring, torus

from forestcoll.common.errors import UnsupportedError
from forestcoll.compile import alltoall_plans as plans
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower.alltoall.lowering import lower_flows
from forestcoll.program.targets import MSCCLPP, RCCL
from forestcoll.solver.alltoall.demand import Demand, uniform
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.rounding import route
from forestcoll.solver.baselines.alltoall import EXCHANGES, bruck, by_name
from forestcoll.study.comparison import compare
from forestcoll.topology import Topology, catalog
from forestcoll.topology.edit import edit
from forestcoll.ui.cli import main
from forestcoll.ui.cli.compare import BASELINES
from forestcoll.ui.cli.compare import EXCHANGES as OFFERED
from forestcoll.verify import verify


def machine(name: str, settings: dict[str, object], *out: str) -> Topology:
    topology = catalog.load(name, settings)
    return edit(topology, out, []) if out else topology


RAIL = {"boxes": 16, "oversubscription": 2}


@pytest.mark.parametrize(
    ("name", "settings", "out", "baseline", "percent"),
    [
        ("dgx-a100", {"boxes": 2}, (), "direct-ecmp", 94),
        ("dgx-a100", {"boxes": 2}, (), "two-level", 100),
        ("dgx-a100", {"boxes": 2}, (), "two-level-sequence", 87),
        ("dgx-a100", {"boxes": 8}, (), "direct-ecmp", 99),
        ("dgx-a100", {"boxes": 8}, (), "two-level", 100),
        ("dgx-a100", {"boxes": 8}, (), "two-level-sequence", 92),
        ("dgx-a100", {"boxes": 2}, ("box0/gpu0-fabric",), "two-level", 57),
        ("dgx-a100", {"boxes": 2}, ("box0/gpu0-fabric",), "two-level-sequence", 53),
        ("mi250", {"boxes": 2}, (), "direct-ecmp", 57),
        ("rail", RAIL, (), "direct-ecmp", 57),
        ("rail", RAIL, (), "two-level", 100),
        ("rail", RAIL, (), "two-level-sequence", 91),
    ],
)
def test_shares_of_the_optimum(
    name: str, settings: dict[str, object], out: tuple[str, ...], baseline: str, percent: int
) -> None:
    """Percent of the optimum by the loads of links alone, rounded."""
    topology = machine(name, settings, *out)
    rate = EXCHANGES[baseline].rate(CapacityGraph.from_topology(topology))
    assert round(100 * rate / solve(uniform(topology)).algbw) == percent


@pytest.mark.parametrize("name", EXCHANGES)
@pytest.mark.parametrize("graph", [dgx_a100(2), torus(3, 3), ring(5)], ids=["a100", "3x3", "ring"])
def test_nothing_beats_the_optimum(name: str, graph: CapacityGraph) -> None:
    if name.startswith("two-level") and graph.box(graph.ranks[0]) == "":
        with pytest.raises(UnsupportedError, match="two or more boxes of as many GPUs"):
            EXCHANGES[name].rate(graph)
    else:
        assert EXCHANGES[name].rate(graph) <= solve(Demand(graph)).algbw


@pytest.mark.parametrize("name", [e.name for e in EXCHANGES.values() if e.lowered])
@pytest.mark.parametrize("target", [RCCL, MSCCLPP], ids=["xml", "json"])
def test_plans_deliver(name: str, target: object) -> None:
    graph = dgx_a100(2)
    flows = EXCHANGES[name].flows(graph)
    program = lower_flows(graph, flows, 1, target, name)  # type: ignore[arg-type]
    carried = verify(program).loads
    hops = sum(len(flow.ranks) - 1 for flow in flows)
    assert sum(carried.values()) == Fraction(hops, 16)


def test_bruck_takes_powers_of_two() -> None:
    flows = bruck(ring(6))
    for flow in flows:
        steps = [(b - a) % 6 for a, b in zip(flow.ranks, flow.ranks[1:], strict=False)]
        assert steps == sorted(set(steps))
        assert all(step & (step - 1) == 0 for step in steps)
    assert len(flows) == 30


def test_compare_a_nic_out() -> None:
    """Ours, the sound machine's plan and everybody else on the broken one."""
    sound = machine("dgx-a100", {"boxes": 2})
    broken = machine("dgx-a100", {"boxes": 2}, "box0/gpu0-fabric")
    found = compare(sound, "alltoall", sizes="64M", broken=broken, rules=("fair",))
    assert found.bound == Fraction(175, 4)
    assert [entrant.name for entrant in found.present] == ["forestcoll", "old plan", *EXCHANGES]
    speed = found.speedup(2**26, "fair")
    assert speed is not None
    assert speed > 1.6
    for cell in found.cells:
        assert cell.percent <= 100.01
    assert any("what has no plan is counted" in note for note in found.notes)


def test_compare_without_plans() -> None:
    """More ranks than plans are made for: loads of links alone."""
    found = compare(machine("dgx-a100", {"boxes": 16}), "alltoall", sizes="1G", rules=("fair",))
    assert {cell.plan for cell in found.cells} == {"links alone"}
    ours, ecmp = (found.cell(name, 2**30, "fair") for name in ("forestcoll", "direct-ecmp"))
    assert ours is not None
    assert ecmp is not None
    assert ours.algbw > ecmp.algbw
    assert "more than 64 ranks: loads of links are compared, without plans" in found.notes


def test_compare_from_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    topology = machine("dgx-a100", {})
    found = route(solve(uniform(topology)))
    plan = plans.make(found, "msccl-xml", RCCL, topology.name)
    path = tmp_path / "mine.xml"
    path.write_text(plan.text)
    ask = ["compare", "-t", "dgx-a100", "-c", "alltoall", "--sizes", "1M", "--rule", "fair"]
    assert main([*ask, "--against", "direct", "--with", str(path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [s["schedule"] for s in data["schedules"]] == ["forestcoll", "direct", "mine.xml"]
    assert data["bound"] == "2400/7"
    assert main([*ask, "--against", "ring"]) == 1
    assert "no baseline of an all-to-all is called 'ring', but direct" in capsys.readouterr().err
    assert main([*ask, "--root", "0"]) == 1
    assert "alltoall has no root" in capsys.readouterr().err


def test_names() -> None:
    assert set(EXCHANGES) == {"direct", "bruck", *OFFERED}
    assert not set(OFFERED) & set(BASELINES)
    with pytest.raises(UnsupportedError, match="no baseline of an all-to-all is called 'tree'"):
        by_name("tree")
