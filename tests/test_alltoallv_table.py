"""The table of blocks of any size: what it counts, and that it would say what is too slow."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from forestcoll.solver.alltoall.demand import uniform
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.routes import Route, Routes, check
from forestcoll.solver.alltoall.spread import boxes_of, spread, waits
from forestcoll.topology import catalog

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts" / "benchmarks"))
table: Any = pytest.importorskip("alltoallv")


@pytest.fixture(scope="module")
def static() -> Routes:
    return spread(solve(uniform(catalog.load("dgx-h100", {"boxes": 2}))))


def straight(found: Routes) -> Routes:
    """All blocks over the switch of the box, or the network's."""
    graph = found.graph
    number = {name: v for v, name in enumerate(graph.names)}
    paths = []
    for s in graph.ranks:
        for t in graph.ranks:
            if s != t:
                same = graph.box(s) == graph.box(t)
                switch = number[f"{graph.box(s)}/nvswitch" if same else "fabric"]
                paths.append(Route((s, switch, t), 1))
    made = replace(found, units=1, routes=tuple(paths))
    check(made)
    return made


@pytest.mark.parametrize("kind", table.KINDS)
def test_direct_sending_is_counted_as_its_routes_say(static: Routes, kind: str) -> None:
    direct, dice = straight(static), random.Random(3)
    for _ in range(3):
        matrix = table.KINDS[kind](16, dice)
        for i, row in enumerate(matrix):
            row[i] = 0
        assert table.direct_time(boxes_of(static.graph), matrix) == waits(direct, matrix)[0]


def test_two_levels_take_one_after_the_other(static: Routes) -> None:
    """One block from GPU 1 to GPU 8 + 2: over NVLink to GPU 2, then over its NIC."""
    boxes = boxes_of(static.graph)
    matrix = [[0] * 16 for _ in range(16)]
    matrix[1][10] = 900
    assert table.two_level_time(boxes, matrix) == Fraction(900, 450) + Fraction(900, 50)
    matrix[1][10], matrix[1][9] = 0, 900  # the same place: no first hop
    assert table.two_level_time(boxes, matrix) == Fraction(900, 50)


def test_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["alltoallv.py", "--count", "14"])
    assert table.main() == 0
    out = capsys.readouterr().out
    assert [line.split(" | ")[0].strip("| ") for line in out.splitlines()[2:]] == [
        *table.KINDS,
        "all 14",
    ]
    monkeypatch.setattr(table, "MEAN", Fraction(1, 2))
    assert table.main() == 1
    assert "on the average, more than 1/2" in capsys.readouterr().err
