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

from forestcoll import load_topology, plans, synthesize
from forestcoll.common.errors import PlanError
from forestcoll.execute.deploy import deploy
from forestcoll.plans.lint import lint
from forestcoll.plans.rules import group_fault
from forestcoll.program import Program
from forestcoll.program.rank_placement import places
from forestcoll.program.targets import MSCCLPP

WAY_OUT = "another runtime: --target msccl or rccl, whose plans deploy --runtime torch runs too"
INTERLEAVED = ["box0/gpu0", "box1/gpu0", "box0/gpu1", "box1/gpu1"]


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
    path.write_text(plans.dumps(rack, "mscclpp-json"))
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
        path.write_text(made.texts[form])
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


def test_what_of_a_group_is_at_fault() -> None:
    """Ninth ranks without ports to others are taken; a node of each size is named."""
    names = boxes(9, 9)
    assert group_fault(MSCCLPP, names, {0, 7, 9}, "nines") is None
    fault = group_fault(MSCCLPP, names, {0, 17}, "nines")
    assert fault is not None
    assert fault[2] == 17
    fault = group_fault(MSCCLPP, [*boxes(2, 2), "c/gpu0", "d/gpu0"], (), "some")
    assert fault == ("MPP-NODES", "nodes hold different numbers of ranks: a 2, c 1", -1)


def test_hosts_of_a_rack_count_and_not_the_rack() -> None:
    """GB200 NVL72: one NVLink domain, of hosts with four GPUs and their NICs."""
    rack = replace(chain(*boxes(9, 9)), name="gb200-nvl72-2.broadcast")
    found = lint(plans.dumps(rack, "mscclpp-json", MSCCLPP), "plan")
    assert found.ok
    assert "ports of 2 ranks a node" in str([f for f in found.findings if f.rule == "MPP-HCA"])


def test_deploy_refuses_it_and_torch_runs_it(tmp_path: Path) -> None:
    path = tmp_path / "uneven.mscclpp.json"
    path.write_text(plans.dumps(chain(*boxes(2, 1)), "mscclpp-json"))
    with pytest.raises(PlanError, match="MPP-NODES"):
        deploy([path], "mscclpp")
    assert deploy([path], "torch").plans
