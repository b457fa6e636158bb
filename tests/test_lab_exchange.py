"""All-to-all in the lab: what theory says of each schedule, and fabrics really built."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from graphs import machine
from test_lab import fabric  # before what asks for PyTorch: it skips without

from forestcoll.compile.alltoall_plans import routes_beside
from forestcoll.execute.lab import measurement
from forestcoll.execute.lab.measurement import EXCHANGES
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.solver.alltoall import file
from forestcoll.solver.alltoall.demand import uniform
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.rounding import route
from forestcoll.solver.alltoall.spread import spread, waits
from forestcoll.topology import Topology, catalog
from forestcoll.ui.cli import main

SMALL = ["-t", "rail", "--set", "boxes=2", "--set", "gpus=2", "--set", "rails=2"]


def boxes(gpus: int = 2) -> Topology:
    return catalog.load("rail", {"boxes": "2", "gpus": str(gpus), "rails": str(gpus)})


def nic_out() -> Topology:
    return machine("dgx-a100 boxes=2 -box0/gpu0-fabric")


def entries(topology: Topology, **given: Any) -> tuple[dict[str, measurement.Entry], list[str]]:
    graph = CapacityGraph.from_topology(topology)
    matrix = given.get("matrix")
    program, paths = measurement.make_plan(topology, ragged=matrix is not None)
    found, notes = measurement.entries_of(
        graph, program, given.get("paths", paths), EXCHANGES, matrix
    )
    return {entry.name: entry for entry in found}, notes


@pytest.mark.parametrize("topology", [machine("mi250"), nic_out()], ids=lambda t: t.name)
def test_the_plan_is_predicted_what_its_routes_reach(topology: Topology) -> None:
    found, notes = entries(topology)
    paths = route(solve(uniform(topology)))
    assert found["plan"].algbw == paths.algbw
    assert not any("several ways" in note for note in notes)
    assert found["plan"].algbw > Fraction(13, 10) * found["direct"].algbw


def test_direct_sending_on_a_nic_that_is_shared() -> None:
    """Two GPUs of a box over one NIC: 2 x 8 of 16 blocks at 25 GB/s; the other two ways alike."""
    found, _ = entries(nic_out())
    assert found["direct"].algbw == found["gloo"].algbw == 25
    assert found["direct"].loads == found["gloo"].loads
    assert found["two-level"].algbw == 25
    assert found["two-level"].rounds == 2


def test_no_two_levels_without_boxes() -> None:
    found, notes = entries(machine("ring gpus=5"))
    assert "two-level" not in found
    assert "no two-level: it is for two or more boxes of as many GPUs" in notes


def test_blocks_of_any_size_are_counted_pair_by_pair() -> None:
    """Against loads counted link by link from the routes, and from the matrix itself."""
    topology, dice = boxes(3), random.Random(3)
    matrix = tuple(tuple(dice.choice((0, dice.randint(1, 99))) for _ in range(6)) for _ in range(6))
    found, _ = entries(topology, matrix=matrix)
    most = max(map(sum, matrix))
    paths = spread(solve(uniform(topology)))
    assert found["plan"].algbw == most / waits(paths, matrix)[0]
    for name in ("direct", "gloo"):
        assert found[name].loads == {
            (i, j): Fraction(matrix[i][j], most)
            for i in range(6)
            for j in range(6)
            if i != j and matrix[i][j]
        }


def test_rings_are_for_what_trees_carry() -> None:
    graph = CapacityGraph.from_topology(boxes())
    program, paths = measurement.make_plan(boxes())
    found, notes = measurement.entries_of(graph, program, paths, ("ring", "direct"), None)
    assert [entry.name for entry in found] == ["plan", "direct"]
    assert notes == ["ring: for what trees carry, not for alltoall"]


def test_routes_beside_a_plan(tmp_path: Path) -> None:
    _, paths = measurement.make_plan(boxes())
    plan = tmp_path / "two.alltoall.mscclpp.json"
    assert routes_beside(plan) is None
    (tmp_path / "two.alltoall.routes.json").write_text(file.dumps(paths, "two"))
    found = routes_beside(plan)
    assert found is not None
    assert found.algbw == paths.algbw
    assert routes_beside(tmp_path / "other.alltoall.msccl.xml") is None


def refused(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    assert main(["lab", *words]) == code
    out, err = capsys.readouterr()
    assert out == ""
    return err.strip().splitlines()[-1]


@fabric
def test_usage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bytes_ = tmp_path / "bytes.txt"
    bytes_.write_text("0 1\n1 0\n")
    assert "-c alltoallv needs --matrix FILE" in refused(capsys, *SMALL, "-c", "alltoallv")
    said = refused(capsys, *SMALL, "-c", "allreduce", "--matrix", str(bytes_))
    assert "--matrix is for -c alltoallv" in said
    said = refused(capsys, *SMALL, "-c", "alltoallv", "--matrix", str(bytes_), code=1)
    assert "the matrix has 2 rows; there are 4 ranks" in said
    plan = tmp_path / "p.json"
    program, _ = measurement.make_plan(boxes())
    from forestcoll import plans
    from forestcoll.program.targets import MSCCLPP

    plan.write_text(plans.dumps(program, MSCCLPP.format, MSCCLPP))
    said = refused(capsys, *SMALL, "--plan", str(plan), "-c", "allreduce")
    assert "the plan is for alltoall, not for -c allreduce" in said


@fabric
@pytest.mark.slow
@pytest.mark.parametrize("ragged", [False, True], ids=["even", "ragged"])
def test_measured_on_a_fabric(
    ragged: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Right data over the right links; a busy machine may be slower than theory says."""
    words = ["-c", "alltoall"]
    if ragged:
        bytes_ = tmp_path / "bytes.txt"
        bytes_.write_text("0 9 900 7\n0 0 800 1\n3 0 0 500\n1 1 1 0\n")
        words = ["-c", "alltoallv", "--matrix", str(bytes_)]
    words += ["--against", "direct", "--against", "gloo", "--rate", "40", "--seconds", "1"]
    assert main(["lab", *SMALL, *words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["schedule"] for row in report["rows"]] == ["plan", "direct", "gloo"]
    assert [row["wrong"] for row in report["rows"]] == [0, 0, 0]
    for row in report["rows"]:
        assert row["of_predicted"] > 0.3, row
        assert row["links"][0] >= 1
    if ragged:
        assert report["rows"][1]["plan_faster_theory"] > 1.5
        assert report["rows"][1]["plan_faster_measured"] > 1
