"""Why an all-to-all is no faster: every figure again by the solver, and in words."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from fractions import Fraction

import pytest
from command_line import Run, fine
from exchanges import random_demand
from graphs import dgx_a100, machine, mi250, named, ring, torus

from forestcoll.solver.alltoall.demand import Demand, alltoallv
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.fold import bound, orbits
from forestcoll.solver.alltoall.spread import spread, waits
from forestcoll.study.explain.exchange import Exchange, Static, explain_exchange
from forestcoll.study.explain.trees import NEAR, widen


def skewed(count: int, hot: int) -> tuple[tuple[int, ...], ...]:
    dice = random.Random(hot)
    return tuple(
        tuple(0 if i == j else dice.randint(1, 9) * (60 if j == hot else 10) for j in range(count))
        for i in range(count)
    )


DEMANDS = [
    Demand(dgx_a100(2)),
    Demand(mi250(2)),
    Demand(ring(5)),
    Demand(torus(3, 2)),
    Demand(dgx_a100(2), skewed(16, 3)),
    Demand(mi250(1), skewed(16, 5)),
]
NAMES = ["a100", "mi250", "ring", "torus", "a100-v", "mi250-v"]


@pytest.mark.parametrize("demand", DEMANDS, ids=NAMES)
def test_every_figure_is_the_solvers(demand: Demand) -> None:
    """Shares add up to one; cuts are bounds within 5 %; wider links give what is said of them."""
    best = solve(demand)
    why = explain_exchange(best)
    check_shares(why)
    for cut in why.near:
        assert best.algbw <= cut.algbw <= NEAR * best.algbw
        lengths = [
            int((u in cut.nodes) == cut.leaves and (v in cut.nodes) != cut.leaves)
            for u, v in demand.graph.ends
        ]
        rate = bound(demand, orbits(demand, []), lengths)
        assert rate * demand.graph.unit * demand.scale <= cut.algbw
    assert why.raised
    for raised in why.raised:

        def at(factor: Fraction, links: tuple[int, ...] = raised.links) -> Fraction:
            return solve(replace(demand, graph=widen(demand.graph, links, factor))).algbw

        if raised.until is None:
            assert at(Fraction(2)) > best.algbw
            continue
        assert at(raised.until) == raised.algbw
        if raised.until > 1:
            assert raised.algbw > best.algbw
            middle = (raised.algbw + best.algbw) / 2
            assert at((1 + raised.until) / 2) == middle  # a straight line until then


def check_shares(why: Exchange) -> None:
    """Each rank is in one group of senders and one of receivers; the largest come first."""
    for shares in (why.senders, why.receivers):
        numbers = sorted(number for share in shares for number in share.ranks)
        assert numbers == list(range(len(why.best.demand.graph.ranks)))
        assert sum(share.of_all * len(share.ranks) for share in shares) == 1
        assert list(shares) == sorted(shares, key=lambda share: -share.of_all)


@pytest.mark.parametrize("seed", range(12))
def test_shares_on_random_graphs(seed: int) -> None:
    best = solve(random_demand(seed))
    why = explain_exchange(best)
    check_shares(why)
    assert all(best.algbw <= cut.algbw for cut in why.near)


def test_a_rank_that_sends_nothing_lowers_the_time_by_its_share() -> None:
    """One hot sender: without it, the same lengths prove so much less."""
    matrix = skewed(16, 2)
    best = solve(Demand(dgx_a100(2), matrix))
    found = explain_exchange(best)
    for share in found.senders:
        less = [list(row) for row in matrix]
        for number in share.ranks:
            less[number] = [0] * 16
        without = Demand(best.demand.graph, tuple(map(tuple, less)))
        there = bound(without, orbits(without, []), best.lengths)
        assert best.rate / there == 1 - share.of_all * len(share.ranks)


# --- the static plan ------------------------------------------------------------------------------


def test_waits_by_hand() -> None:
    """Rank 0 of box 0 sends rank 0 of box 1 eight blocks: one over each NIC; nobody else waits."""
    graph = named("dgx-h100 boxes=2")
    routes = spread(solve(Demand(graph)))
    matrix = [[0] * 16 for _ in range(16)]
    matrix[0][8] = 8_000_000
    slowest, each = waits(routes, matrix)
    assert slowest == waits(routes, matrix)[0] == 20_000
    out = graph.names.index("box0/gpu0"), graph.names.index("fabric")
    links = list(graph.ends)
    assert [wait[0] for wait in each] == [20_000 if rank in (0, 8) else 0 for rank in range(16)]
    assert links[each[0][1]] == out
    assert each[1] == (0, -1)


def test_the_last_waits_for_the_slowest_link() -> None:
    graph = named("dgx-h100 boxes=2")
    for hot in range(4):
        demand = Demand(graph, skewed(16, hot))
        found = explain_exchange(solve(demand)).static
        assert isinstance(found, Static)
        assert max(time for time, _ in found.waits) == found.nanoseconds
        assert demand.matrix is not None
        assert found.nanoseconds == waits(spread(solve(Demand(graph))), demand.matrix)[0]


def test_no_static_plan() -> None:
    topology = machine("mi250 boxes=2")
    found = explain_exchange(solve(alltoallv(topology, skewed(32, 1))))
    assert isinstance(found.static, str)
    assert "spread routes are for GPUs on switches" in found.static


def test_large_and_irregular_fabrics_are_not_raised(
    call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forestcoll.study.explain.exchange.MOST_VARIABLES", 1)
    text = fine(call("optimum", "-t", "ring", "--set", "gpus=4", "-c", "alltoall", "--explain"))
    assert re.search(r"raise +not looked at: little is alike here", text)
