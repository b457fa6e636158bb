"""Which node holds a rank: what deployments say of it, and which groups MSCCL++ takes.

MSCCL++'s Executor throws for every group whose nodes (NVLink domains, or hosts) hold different
numbers of ranks, or ranks that are not numbered node by node, and looks for the NICs of a node's
ninth and later ranks behind its table (microsoft/mscclpp 1f5f065d, bootstrap.cc:459-487,
executor.cc:102, 223, 292, 334).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import programs
import pytest
from click.testing import CliRunner

from forestcoll import compare, load_topology, plans, synthesize
from forestcoll.common.errors import PlanError
from forestcoll.compile import plan_set, together
from forestcoll.compile.front import front
from forestcoll.execute.deploy import deploy
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.plans.lint import lint
from forestcoll.plans.rules import group_fault
from forestcoll.program import Program
from forestcoll.program.rank_placement import places
from forestcoll.program.targets import MSCCLPP
from forestcoll.solver.baselines import alltoall
from forestcoll.study.comparison import exchange
from forestcoll.ui.cli import cli

TWO_ONE = """
format: forestcoll.topology/1
name: two-one
nodes: {a/gpu0: {kind: gpu}, a/gpu1: {kind: gpu}, b/gpu0: {kind: gpu}, fabric: {kind: switch}}
links:
  - {src: a/gpu0, dst: a/gpu1, bandwidth: 100}
  - {src: a/gpu0, dst: fabric, bandwidth: 25}
  - {src: a/gpu1, dst: fabric, bandwidth: 25}
  - {src: b/gpu0, dst: fabric, bandwidth: 50}
"""
UNEVEN = "nodes hold different numbers of ranks: a 2, b 1"
WAY_OUT = "another runtime: --target msccl or rccl, whose plans deploy --runtime torch runs too"
INTERLEAVED = ["box0/gpu0", "box1/gpu0", "box0/gpu1", "box1/gpu1"]


@pytest.fixture
def two_one(tmp_path: Path) -> str:
    path = tmp_path / "two-one.yaml"
    path.write_text(TWO_ONE, encoding="utf-8")
    return str(path)


def chain(*names: str) -> Program:
    """A broadcast along ports, of ranks so called."""
    return replace(programs.pipelined_broadcast(len(names), "port"), names=names)


def boxes(*held: int) -> list[str]:
    return [f"{box}/gpu{k}" for box, ranks in zip("abcd", held, strict=False) for k in range(ranks)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a/gpu0", "a/gpu1", "b/gpu0", "b/gpu1"], (2, True, [0, 1, 0, 1])),
        (["a/gpu0", "b/gpu0", "a/gpu1", "b/gpu1"], (2, False, [0, 0, 1, 1])),
        (["a/gpu4", "a/gpu5", "b/gpu7"], (0, True, [4, 5, 7])),
        (["", "", ""], (3, True, [0, 1, 2])),
        (["x", "y"], (2, True, [0, 1])),
    ],
)
def test_places(names: list[str], expected: tuple[int, bool, list[int]]) -> None:
    found = places(names, len(names))
    assert (found.per_node, found.in_order, [p.gpu for p in found.places]) == expected


def test_a_rack_is_many_nodes_to_launchers(tmp_path: Path) -> None:
    """Eighteen hosts of four GPUs: no host has processes for a rack."""
    found = places(boxes(8, 8), 16, host=4)
    assert found.nodes == ("a/host0", "a/host1", "b/host0", "b/host1")
    assert (found.per_node, found.in_order) == (4, True)
    assert [p.gpu for p in found.places] == [0, 1, 2, 3] * 4
    path = tmp_path / "rack.mscclpp.json"
    rack = replace(chain(*boxes(8)), name="gb200-nvl72-1")
    path.write_text(plans.dumps(rack, "mscclpp-json"), encoding="utf-8")
    made = deploy([path], "mscclpp")
    assert (len(made.places.nodes), made.places.per_node) == (2, 4)
    assert "on every node" in made.start


def test_what_plans_ask_of_machines_is_noted(tmp_path: Path) -> None:
    topology = load_topology("dgx-a100", {"boxes": "2"})
    for target, protocol, words in (
        ("mscclpp", "LL", "packets carry how many plans their process has launched"),
        ("mscclpp", None, "one that GPUs share as often"),
        ("msccl", "LL128", "LL128: for NVLink of V100 to H100"),
    ):
        made = synthesize(topology, "allgather", target=target, protocol=protocol)  # type: ignore[arg-type]
        (form,) = made.programs
        path = tmp_path / f"{target}-{protocol}{plans.FORMATS[form].suffix}"
        path.write_text(made.texts[form], encoding="utf-8")
        notes = deploy([path], target).notes  # type: ignore[arg-type]
        assert any(words in note for note in notes), (target, protocol)


@pytest.mark.parametrize(
    ("names", "rule"),
    [
        (boxes(2, 2), None),
        (boxes(9), None),
        (boxes(8, 8), None),
        (["x", "y", "z"], None),
        (boxes(2, 1), "MPP-NODES"),
        (INTERLEAVED, "MPP-NODES"),
        (boxes(9, 9), "MPP-NICS"),
    ],
    ids=str,
)
def test_what_the_runtime_takes(names: list[str], rule: str | None) -> None:
    """Lint of the file and the writer for the runtime agree; the plan itself is right anywhere."""
    program = chain(*names)
    text = plans.dumps(program, "mscclpp-json")
    report = lint(text, "plan", "mscclpp")
    assert [f.rule for f in report.findings if f.severity == "error"] == [rule] * (rule is not None)
    assert report.verified is not None
    if rule is None:
        plans.dumps(program, "mscclpp-json", MSCCLPP)
        return
    with pytest.raises(PlanError, match=WAY_OUT):
        plans.dumps(program, "mscclpp-json", MSCCLPP)


def test_ninth_ranks_without_ports_to_others_are_taken() -> None:
    names = boxes(9, 9)
    assert group_fault(MSCCLPP, names, {0, 7, 9}, "nines") is None
    fault = group_fault(MSCCLPP, names, {0, 17}, "nines")
    assert fault is not None
    assert fault[2] == 17


def test_a_node_of_each_size_is_named() -> None:
    fault = group_fault(MSCCLPP, [*boxes(2, 2), "c/gpu0", "d/gpu0"], (), "some")
    assert fault == ("MPP-NODES", "nodes hold different numbers of ranks: a 2, c 1", -1)


def test_hosts_of_a_rack_count_and_not_the_rack() -> None:
    """GB200 NVL72: one NVLink domain, of hosts with four GPUs and their NICs."""
    rack = replace(chain(*boxes(9, 9)), name="gb200-nvl72-2.broadcast")
    found = lint(plans.dumps(rack, "mscclpp-json", MSCCLPP), "plan")
    assert found.ok
    assert "ports of 2 ranks a node" in str([f for f in found.findings if f.rule == "MPP-HCA"])


def test_synthesize_refuses_uneven_nodes_with_a_way_out(two_one: str, tmp_path: Path) -> None:
    words = ["synthesize", "-t", two_one, "-c", "allgather", "-o", f"{tmp_path / 'out'}/"]
    refused = CliRunner().invoke(cli, [*words, "--target", "mscclpp"])
    assert isinstance(refused.exception, PlanError)
    assert UNEVEN in str(refused.exception)
    assert WAY_OUT in str(refused.exception)
    assert not (tmp_path / "out").exists()
    with pytest.raises(PlanError, match=UNEVEN):
        synthesize(two_one, "allgather", formats=("forest", "mscclpp-json"))


def test_any_target_leaves_the_plan_out_with_a_note(two_one: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        cli, ["synthesize", "-t", two_one, "-c", "allgather", "-o", f"{tmp_path / 'out'}/"]
    )
    assert done.exit_code == 0
    assert f"no MSCCL++ JSON: two-one: {UNEVEN}" in " ".join(done.output.split())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "two-one.allgather.forest.json",
        "two-one.allgather.msccl.xml",
    ]


def test_ranks_named_box_by_box_are_taken() -> None:
    topology = load_topology("dgx-a100", {"boxes": "2"})
    with pytest.raises(PlanError, match=r"rank 1, box1/gpu0, is among the ranks of box0/gpu0"):
        synthesize(topology, "allgather", ranks=INTERLEAVED, target="mscclpp")
    assert synthesize(topology, "allgather", ranks=sorted(INTERLEAVED), target="mscclpp").texts


def test_sixteen_ranks_a_node_are_refused_and_eight_are_not() -> None:
    topology = load_topology("mi250", {"boxes": "2"})
    with pytest.raises(PlanError, match=r"16 ranks a node, and 16 not among the first 8 of theirs"):
        synthesize(topology, "broadcast", target="mscclpp")
    eight = ["box0/gpu[0-7]", "box1/gpu[0-7]"]
    assert synthesize(topology, "broadcast", ranks=eight, target="mscclpp").texts


def test_sets_groups_and_fronts_leave_it_out_too(two_one: str) -> None:
    topology = load_topology(two_one)
    made = plan_set.make(topology, "allgather", 1 << 20, 1 << 21)
    assert [one.format for one in made.plans] == ["msccl-xml"]
    assert any(UNEVEN in note for note in made.notes)
    exchange = plan_set.make(topology, "alltoall", 1 << 20, 1 << 21)
    assert [one.format for one in exchange.plans] == ["msccl-xml"]
    asked = together.problem(topology, "allgather", [["*"]])
    grouped = together.synthesize(asked)
    assert not any("mscclpp" in file for file in grouped.texts)
    assert any(UNEVEN in note for note in grouped.notes)
    with pytest.raises(PlanError, match=UNEVEN):
        together.synthesize(asked, target="mscclpp")
    needs = front(topology, "allgather", plans=True).rows[0].needs["mscclpp"]
    assert UNEVEN in str(needs)


def test_deploy_refuses_it_and_torch_runs_it(two_one: str, tmp_path: Path) -> None:
    path = tmp_path / "uneven.mscclpp.json"
    path.write_text(plans.dumps(chain(*boxes(2, 1)), "mscclpp-json"), encoding="utf-8")
    with pytest.raises(PlanError, match="MPP-NODES"):
        deploy([path], "mscclpp")
    assert deploy([path], "torch").plans
    xml = synthesize(two_one, "allgather", target="rccl").texts["msccl-xml"]
    (tmp_path / "x.msccl.xml").write_text(xml, encoding="utf-8")
    said = deploy([tmp_path / "x.msccl.xml"], "rccl").notes
    assert any("different numbers of ranks" in note for note in said)
    assert not any("not numbered node by node" in note for note in said)


def test_ranks_out_of_order_are_said(tmp_path: Path) -> None:
    topology = load_topology("dgx-a100", {"boxes": "2"})
    result = synthesize(topology, "allreduce", ranks=INTERLEAVED, formats=("msccl-xml",))
    (tmp_path / "x.msccl.xml").write_text(result.texts["msccl-xml"])
    made = deploy([tmp_path], "msccl")
    assert not made.places.in_order
    assert any("not numbered node by node" in note for note in made.notes)


def test_baselines_have_no_plan_there_either(two_one: str) -> None:
    """Ours are not held against what their runtime refuses."""
    topology = load_topology(two_one)
    graph = CapacityGraph.from_topology(topology)
    played = compare(topology, "allgather", sizes=(1 << 20,), against=["ring"])
    assert {cell.plan.split(",")[0] for cell in played.cells if cell.name == "ring"} == {
        "msccl-xml"
    }
    direct = exchange.theirs(alltoall.by_name("direct"), graph, "two-one", lowered=True)
    assert {plan.label.split(",")[0] for plan in direct} == {"msccl-xml"}
