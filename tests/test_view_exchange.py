"""Flows, routes and plans of all-to-alls in the page, in drawings and in the formats of others."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from graphs import dgx_a100, mi250, torus

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.solver.alltoall import file
from forestcoll.solver.alltoall.demand import Demand
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.link_loads import link_loads
from forestcoll.solver.alltoall.rounding import route
from forestcoll.ui.cli import main


@pytest.mark.parametrize(
    "graph", [dgx_a100(2), mi250(1), torus(3, 3)], ids=["a100", "mi250", "3x3"]
)
def test_loads_of_routes(graph: CapacityGraph) -> None:
    """All paths written out, hop by hop; the fullest link is always busy."""
    found = route(solve(Demand(graph)), 2)
    crossed: dict[tuple[str, str], int] = defaultdict(int)
    for path in found.expand():
        for u, v in pairwise(path.path):
            crossed[graph.names[u], graph.names[v]] += path.units
    rows = link_loads(found)
    n = len(graph.ranks)
    for row in rows:
        assert row.load == Fraction(crossed[row.src, row.dst], 2 * n)
        assert row.percent == 100 * row.load * found.algbw / row.bandwidth
    assert max(row.percent for row in rows) == 100


@pytest.mark.parametrize(
    "graph", [dgx_a100(2), mi250(2), torus(3, 3)], ids=["a100", "mi250", "3x3"]
)
def test_loads_of_flows(graph: CapacityGraph) -> None:
    """Links with a length are full, none is over; what a rank takes in is all but its own block."""
    best = solve(Demand(graph))
    rows = link_loads(best)
    assert max(row.percent for row in rows) == 100
    for row, length in zip(rows, best.lengths, strict=True):
        assert row.percent == 100 or not length
    n = len(graph.ranks)
    for v in graph.ranks:
        name = graph.names[v]
        taken = sum(row.load for row in rows if row.dst == name)
        sent = sum(row.load for row in rows if row.src == name)
        assert taken >= Fraction(n - 1, n)
        assert taken == sent


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Routes, plans and flows of two A100 boxes."""
    monkeypatch.chdir(tmp_path)
    machine = ["-t", "dgx-a100", "--set", "boxes=2", "-c", "alltoall"]
    assert main(["synthesize", *machine, "-o", "out/"]) == 0
    assert main(["optimum", *machine, "-o", "out/"]) == 0
    return tmp_path / "out" / "dgx-a100-2.alltoall"


def test_everything_is_shown(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for suffix in ("flows.json", "routes.json", "msccl.xml", "mscclpp.json"):
        capsys.readouterr()
        assert main(["view", f"{written}.{suffix}", "-o", "page.html", "--force"]) == 0
        assert main(["export", f"{written}.{suffix}", "--to", "svg", "-o", "x.svg", "--force"]) == 0
        assert main(["export", f"{written}.{suffix}", "--to", "dot", "-o", "x.dot", "--force"]) == 0
        drawn = Path("x.svg").read_text(encoding="utf-8")
        assert ("of the time busy" in drawn) == suffix.endswith(("flows.json", "routes.json"))
        busy = "25 GB/s\\n100 %" in Path("x.dot").read_text(encoding="utf-8")
        assert busy == suffix.endswith(("flows.json", "routes.json"))
        assert capsys.readouterr().err.count("error") == 0


def test_plans_go_to_other_tools(written: Path) -> None:
    """The links are those of the routes beside them."""
    for suffix in ("msccl.xml", "mscclpp.json"):
        for form, target in (("chakra", "traces/"), ("goal", "x.goal"), ("perfetto", "x.trace")):
            plan = f"{written}.{suffix}"
            assert main(["export", plan, "--to", form, "-o", target, "--force"]) == 0
        assert main(["time", f"{written}.{suffix}"]) == 0
    assert len(list(Path("traces").iterdir())) >= 16


@pytest.mark.parametrize("form", ["chakra", "goal", "perfetto"])
def test_no_messages_in_routes(
    written: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for suffix in ("flows.json", "routes.json"):
        assert main(["export", f"{written}.{suffix}", "--to", form, "-o", "x/"]) == 1
        error = capsys.readouterr().err
        assert "flows and routes say no order of messages; the plans of the routes do" in error
    assert not Path("x").exists()


def test_what_is_refused(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    routes = f"{written}.routes.json"
    assert main(["time", routes]) == 1
    assert "'forestcoll time' takes those" in capsys.readouterr().err
    assert main(["view", routes, "-t", "dgx-a100", "-o", "x.html"]) == 2
    assert "flows and routes have their links: leave --topology away" in capsys.readouterr().err
    assert main(["export", routes, "--to", "svg", "--tree", "0", "-o", "x.svg"]) == 1
    assert "no forest is known, so no tree can be drawn" in capsys.readouterr().err
    text = Path(routes).read_text(encoding="utf-8")
    Path("bad.routes.json").write_text(text.replace('"units": 1', '"units": 2', 1))
    assert main(["view", "bad.routes.json", "-o", "x.html"]) == 1
    assert "bad.routes.json: " in capsys.readouterr().err
    assert not Path("x.html").exists()


def test_a_matrix_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    matrix = tuple(tuple(int(i != j) * (1 + i) for j in range(16)) for i in range(16))
    best = solve(Demand(mi250(1), matrix))
    Path("v.flows.json").write_text(file.dumps(best, "mi250-1"), encoding="utf-8")
    assert main(["view", "v.flows.json", "-o", "v.html"]) == 0
    assert Path("v.html").stat().st_size > 10_000
