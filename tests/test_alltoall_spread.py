"""Static routes for blocks of any size, and what they promise."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from graphs import dgx_a100, mi250, torus

from forestcoll.common.errors import UnsupportedError
from forestcoll.compile.alltoall_plans import make
from forestcoll.execute import cpu
from forestcoll.program.targets import MSCCLPP, RCCL, Target
from forestcoll.solver.alltoall.demand import Demand, alltoallv, uniform
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.routes import Routes, check
from forestcoll.solver.alltoall.spread import boxes_of, least_time, spread, waits
from forestcoll.topology import catalog
from forestcoll.topology.edit import edit

Matrix = list[list[int]]


def h100(boxes: int) -> Routes:
    return spread(solve(uniform(catalog.load("dgx-h100", {"boxes": boxes}))))


def random_matrix(n: int, dice: random.Random) -> Matrix:
    """Even, skewed, sparse, a hot receiver, a hot sender, a permutation, or heavy tails."""
    kind = dice.randrange(7)
    weight = [1 / (1 + r) ** dice.choice((0.4, 0.8, 1.2)) for r in range(n)]
    dice.shuffle(weight)
    order = dice.sample(range(n), n)
    hot = dice.randrange(n)
    table = []
    for i in range(n):
        row = []
        for j in range(n):
            even = dice.randint(1, 1000)
            size = {
                0: even,
                1: int(1000 * weight[j] * even),
                2: even if dice.random() < 0.2 else 0,
                3: even * (100 if j == hot else 1),
                4: even * (100 if i == hot else 1),
                5: even * (100 if j == order[i] else 0),
                6: int(even * dice.paretovariate(1.1)),
            }[kind]
            row.append(size if i != j else 0)
        table.append(row)
    table[0][n - 1] += 1
    return table


@pytest.mark.parametrize(("boxes", "count"), [(2, 700), (4, 300)])
def test_a_thousand_matrices(boxes: int, count: int) -> None:
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
    topology = catalog.load("dgx-h100", {"boxes": 2})
    found, dice = h100(2), random.Random(7)
    known = boxes_of(found.graph)
    for _ in range(5):
        matrix = random_matrix(16, dice)
        best = 1 / solve(alltoallv(topology, matrix)).theta
        assert least_time(found.demand, known, matrix) <= best <= waits(found, matrix)[0]
        assert waits(found, matrix)[0] <= known.factor * best


def test_even_blocks_are_at_the_network_bound() -> None:
    found = h100(4)
    assert found.units == 8
    assert check(found) == found.optimum.algbw


@pytest.mark.parametrize("limits", [RCCL, MSCCLPP], ids=lambda limits: limits.name)
def test_plans_run(limits: Target) -> None:
    plan = make(spread(solve(Demand(dgx_a100(2)))), limits.format, limits, "boxes")
    done = cpu.run(plan.program, 50_000)
    assert [row.wrong for row in done.rows] == [0]


@pytest.mark.parametrize(
    ("demand", "message"),
    [
        (Demand(dgx_a100(1)), "two or more boxes"),
        (Demand(torus(3, 3)), "two or more boxes"),
        (Demand(mi250(2)), "not on GPUs"),
    ],
)
def test_what_is_refused(demand: Demand, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        spread(solve(demand))


def test_rails_are_not_crossed() -> None:
    """GPU j's NIC leads to GPU j of every other box; the spine is never used."""
    found = spread(solve(uniform(catalog.load("rail", {"boxes": 4, "oversubscription": 4}))))
    spine = found.graph.names.index("spine")
    assert not any(spine in route.path for route in found.routes)
    assert found.algbw == found.optimum.algbw


def test_switches_above_switches_are_refused() -> None:
    fabric = catalog.load("fat-tree", {"leaves": 2, "hosts": 1, "oversubscription": 2})
    with pytest.raises(UnsupportedError, match=r"one switch between two GPUs; .* it takes 3"):
        spread(solve(uniform(fabric)))


def test_a_nic_out_is_refused() -> None:
    topology = edit(catalog.load("dgx-a100", {"boxes": 2}), ("box0/gpu0-fabric",), [])
    with pytest.raises(UnsupportedError, match="all alike; here some differ"):
        spread(solve(uniform(topology)))
