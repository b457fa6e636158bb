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


def test_routes_that_are_wrong_are_refused(call: Run) -> None:
    routes = "out/dgx-a100-2.alltoall.routes.json"
    machine = ("-t", "dgx-a100", "--set", "boxes=2", "-c", "alltoall")
    assert call("synthesize", *machine, "-o", "out/")[0] == 0
    text = Path(routes).read_text()
    Path("bad.routes.json").write_text(text.replace('"units": 1', '"units": 2', 1))
    code, _, error = call("view", "bad.routes.json", "-o", "x.html")
    assert (code, Path("x.html").exists()) == (1, False)
    assert "bad.routes.json: " in error


def test_a_matrix_is_shown(call: Run) -> None:
    matrix = tuple(tuple(int(i != j) * (1 + i) for j in range(16)) for i in range(16))
    best = solve(Demand(mi250(1), matrix))
    Path("v.flows.json").write_text(file.dumps(best, "mi250-1"))
    assert call("view", "v.flows.json", "-o", "v.html")[0] == 0
    assert Path("v.html").stat().st_size > 10_000
