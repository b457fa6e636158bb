"""Flows, routes and plans of all-to-alls in the page, in drawings and in the formats of others."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from command_line import Run
from graphs import dgx_a100, mi250, torus

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.solver.alltoall import file
from forestcoll.solver.alltoall.demand import Demand
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.rounding import route
from forestcoll.solver.alltoall.routes import link_loads


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
def written(call: Run) -> str:
    """Routes, plans and flows of two A100 boxes."""
    machine = ["-t", "dgx-a100", "--set", "boxes=2", "-c", "alltoall"]
    assert call("synthesize", *machine, "-o", "out/")[0] == 0
    assert call("optimum", *machine, "-o", "out/")[0] == 0
    return "out/dgx-a100-2.alltoall"


def test_everything_is_shown(written: str, call: Run) -> None:
    for suffix in ("flows.json", "routes.json", "msccl.xml", "mscclpp.json"):
        path = f"{written}.{suffix}"
        assert call("view", path, "-o", "page.html", "--force")[0] == 0
        for form in ("svg", "dot"):
            assert call("export", path, "--to", form, "-o", f"x.{form}", "--force")[0] == 0
        exchange = suffix in ("flows.json", "routes.json")
        assert ("of the time busy" in Path("x.svg").read_text(encoding="utf-8")) == exchange
        assert ("25 GB/s\\n100 %" in Path("x.dot").read_text(encoding="utf-8")) == exchange


def test_plans_go_to_other_tools_and_routes_do_not(written: str, call: Run) -> None:
    """The links are those of the routes beside the plans."""
    for form, target in (("chakra", "traces/"), ("goal", "x.goal"), ("perfetto", "x.trace")):
        for suffix in ("msccl.xml", "mscclpp.json"):
            plan = f"{written}.{suffix}"
            assert call("export", plan, "--to", form, "-o", target, "--force")[0] == 0
        for suffix in ("flows.json", "routes.json"):
            code, _, error = call("export", f"{written}.{suffix}", "--to", form, "-o", "x/")
            assert code == 1
            assert "flows and routes say no order of messages; the plans of the routes do" in error
    for suffix in ("msccl.xml", "mscclpp.json"):
        assert call("time", f"{written}.{suffix}")[0] == 0
    assert len(list(Path("traces").iterdir())) >= 16
    assert not Path("x").exists()


def test_what_is_refused(written: str, call: Run) -> None:
    routes = f"{written}.routes.json"
    text = Path(routes).read_text(encoding="utf-8")
    Path("bad.routes.json").write_text(text.replace('"units": 1', '"units": 2', 1))
    for words, code, message in (
        (("time", routes), 1, "'forestcoll time' takes those"),
        (
            ("view", routes, "-t", "dgx-a100", "-o", "x.html"),
            2,
            "flows and routes have their links: leave --topology away",
        ),
        (
            ("export", routes, "--to", "svg", "--tree", "0", "-o", "x.svg"),
            1,
            "no forest is known, so no tree can be drawn",
        ),
        (("view", "bad.routes.json", "-o", "x.html"), 1, "bad.routes.json: "),
    ):
        done, _, error = call(*words)
        assert done == code
        assert message in error
    assert not Path("x.html").exists()


def test_a_matrix_is_shown(call: Run) -> None:
    matrix = tuple(tuple(int(i != j) * (1 + i) for j in range(16)) for i in range(16))
    best = solve(Demand(mi250(1), matrix))
    Path("v.flows.json").write_text(file.dumps(best, "mi250-1"), encoding="utf-8")
    assert call("view", "v.flows.json", "-o", "v.html")[0] == 0
    assert Path("v.html").stat().st_size > 10_000
