"""Routes spread over all NICs, and two phases over even ones, against blocks of any sizes."""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from command_line import script
from exchanges import Matrix, random_matrix, solved
from graphs import dgx_a100, machine, mi250, ring, torus

from forestcoll.compile.alltoall_plans import make
from forestcoll.execute import cpu
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program.targets import MSCCLPP, RCCL, Target
from forestcoll.solver.alltoall.demand import Demand, alltoallv
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.rounding import route
from forestcoll.solver.alltoall.routes import Route, Routes, check
from forestcoll.solver.alltoall.spread import boxes_of, least_time, spread, twice_uniform, waits

table = script("alltoallv")


def h100(boxes: int) -> Routes:
    return spread(solved(f"dgx-h100 boxes={boxes}"))


@pytest.mark.parametrize(("boxes", "count"), [(2, 100), (4, 40)])
def test_hundreds_of_matrices(boxes: int, count: int) -> None:
    """Never above the factor of the bound; on the average next to it."""
    found = h100(boxes)
    graph = found.graph
    known = boxes_of(graph)
    assert known.factor == Fraction(11, 9)
    dice = random.Random(boxes)
    ratios = []
    for _ in range(count):
        matrix = random_matrix(len(graph.ranks), dice)
        ratios.append(waits(found, matrix)[0] / least_time(found.demand, known, matrix))
    assert max(ratios) <= known.factor
    assert sum(ratios) / len(ratios) <= Fraction(102, 100)


def test_the_bound_is_one() -> None:
    """The program over the matrix itself is never faster than the cuts say."""
    found, dice = h100(2), random.Random(7)
    known = boxes_of(found.graph)
    for _ in range(5):
        matrix = random_matrix(16, dice)
        best = 1 / solve(alltoallv(machine("dgx-h100 boxes=2"), matrix)).theta
        assert least_time(found.demand, known, matrix) <= best <= waits(found, matrix)[0]
        assert waits(found, matrix)[0] <= known.factor * best


def test_even_blocks_are_at_the_network_bound() -> None:
    """GPU j's NIC leads to GPU j of every other box; the spine is never used."""
    rails = spread(solved("rail boxes=4 oversubscription=4"))
    spine = rails.graph.names.index("spine")
    assert not any(spine in route.path for route in rails.routes)
    for found in (h100(4), rails):
        assert found.units == 8
        assert check(found) == found.optimum.algbw


@pytest.mark.parametrize("limits", [RCCL, MSCCLPP], ids=lambda limits: limits.name)
def test_plans_run(limits: Target) -> None:
    plan = make(spread(solve(Demand(dgx_a100(2)))), limits.format, limits, "boxes")
    assert [row.wrong for row in cpu.run(plan.program, 50_000).rows] == [0]


# --- the table of the page ------------------------------------------------------------------------


def straight(found: Routes) -> Routes:
    """All blocks over the switch of the box, or the network's."""
    graph = found.graph
    number = {name: v for v, name in enumerate(graph.names)}

    def switch(s: int, t: int) -> int:
        same = graph.box(s) == graph.box(t)
        return number[f"{graph.box(s)}/nvswitch" if same else "fabric"]

    pairs = [(s, t) for s in graph.ranks for t in graph.ranks if s != t]
    paths = tuple(Route((s, switch(s, t), t), 1) for s, t in pairs)
    made = replace(found, units=1, routes=paths)
    check(made)
    return made


@pytest.mark.parametrize("kind", table.KINDS)
def test_direct_sending_is_counted_as_its_routes_say(kind: str) -> None:
    direct, dice = straight(h100(2)), random.Random(3)
    for _ in range(3):
        matrix = table.KINDS[kind](16, dice)
        for i, row in enumerate(matrix):
            row[i] = 0
        assert table.direct_time(boxes_of(direct.graph), matrix) == waits(direct, matrix)[0]


def test_two_levels_take_one_after_the_other() -> None:
    """One block from GPU 1 to GPU 8 + 2: over NVLink to GPU 2, then over its NIC."""
    boxes = boxes_of(h100(2).graph)
    matrix = [[0] * 16 for _ in range(16)]
    matrix[1][10] = 900
    assert table.two_level_time(boxes, matrix) == Fraction(900, 450) + Fraction(900, 50)
    matrix[1][10], matrix[1][9] = 0, 900  # the same place: no first hop
    assert table.two_level_time(boxes, matrix) == Fraction(900, 50)


def test_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["alltoallv.py", "--count", "14"])
    assert table.main() == 0
    rows = [line.split(" | ")[0] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row.strip("| ") for row in rows] == [*table.KINDS, "all 14"]
    monkeypatch.setattr(table, "MEAN", Fraction(1, 2))
    assert table.main() == 1
    assert "on the average, more than 1/2" in capsys.readouterr().err


# --- two phases -----------------------------------------------------------------------------------


def carried(found: Routes, matrix: Matrix) -> Fraction:
    """Nanoseconds of both phases by link loads: shares of the rows out, then of the columns in."""
    graph, n = found.graph, len(found.graph.ranks)
    rank = {v: i for i, v in enumerate(graph.ranks)}
    phases = [(0, [*map(sum, matrix)]), (-1, [*map(sum, zip(*matrix, strict=True))])]
    total = Fraction(0)
    for end, sizes in phases:
        load: dict[int, Fraction] = defaultdict(Fraction)
        for path in found.expand():
            share = Fraction(path.units, found.units * n) * sizes[rank[path.path[end]]]
            for hop in pairwise(path.path):
                load[graph.numbers[hop]] += share
        total += max(units / graph.bandwidth(e) for e, units in load.items())
    return total


@pytest.mark.parametrize(
    "graph", [dgx_a100(2), mi250(1), torus(3, 3), ring(5)], ids=["a100", "mi250", "3x3", "ring"]
)
def test_never_above_the_promise(graph: CapacityGraph) -> None:
    best = solve(Demand(graph))
    found = route(best, min_share=Fraction(1))
    dice = random.Random(3)
    for _ in range(8):
        matrix = random_matrix(len(graph.ranks), dice)
        least = 1 / solve(Demand(graph, tuple(map(tuple, matrix)))).theta
        assert least <= carried(found, matrix) <= twice_uniform(best, matrix).nanoseconds


def test_even_blocks_take_twice_the_optimum() -> None:
    """What stays is left out."""
    best = solve(Demand(mi250(1)))
    even = [[1000 * (i != j) for j in range(16)] for i in range(16)]
    promised = twice_uniform(best, even)
    assert promised.spreading == promised.delivering
    assert promised.nanoseconds == 2 * promised.shares[0] / best.theta
    assert promised.shares == (Fraction(15000, 16),) * 2
    circle = [[9 if i == j else 1 for j in range(4)] for i in range(4)]
    assert twice_uniform(solve(Demand(ring(4))), circle).shares == (Fraction(3, 4),) * 2
