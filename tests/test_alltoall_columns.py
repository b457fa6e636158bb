"""Flows and lengths near each other, beside the exact optimum."""

from __future__ import annotations

import json
import random
from fractions import Fraction

import networkx as nx
import pytest
from graphs import build, dgx_a100, torus
from random_graphs import random_graph
from stranger_alltoall import judge

from forestcoll.compile.verdict import bound_line, verify_text
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.solver.alltoall import columns, file, flows
from forestcoll.solver.alltoall.demand import Demand


def both(monkeypatch: pytest.MonkeyPatch, demand: Demand) -> tuple[flows.Optimum, flows.Optimum]:
    """The exact optimum, and what is mixed where programs are taken for large ones."""
    exact = flows.solve(demand)
    with monkeypatch.context() as patch:
        patch.setattr(flows, "MIXED", 0)
        patch.setattr(flows, "sparse_cut", lambda *_: None)
        patch.setattr(flows, "_uniform_lengths", lambda *_: None)
        return exact, flows.solve(demand)


def agree(exact: flows.Optimum, mixed: flows.Optimum) -> None:
    assert exact.proven is None
    assert mixed.proven is not None
    assert mixed.rate <= exact.rate <= mixed.proven
    assert mixed.proven - mixed.rate <= Fraction(1, 10**5) * exact.rate


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Direct and switched, one-way links, ranks and other GPUs."""
    agree(*both(monkeypatch, Demand(random_graph(seed))))


@pytest.mark.parametrize("graph", [dgx_a100(2), torus(3, 3)], ids=["boxes", "torus"])
def test_folded(monkeypatch: pytest.MonkeyPatch, graph: CapacityGraph) -> None:
    """One source stands for its images, and links that are alike share a row."""
    agree(*both(monkeypatch, Demand(graph)))


def test_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    table = tuple(tuple(rng.randrange(10**6) * (i != j) for j in range(9)) for i in range(9))
    agree(*both(monkeypatch, Demand(torus(3, 3), table)))


def test_the_file_holds_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads it finds the rate reached and the bound proven, a stranger too."""
    _, mixed = both(monkeypatch, Demand(regular(12, 3)))
    text = file.dumps(mixed, "regular")
    found, name, proven = file.loads(text)
    assert (name, found.algbw, proven) == ("regular", mixed.algbw, mixed.bound)
    assert judge(json.loads(text)) == (mixed.algbw, mixed.bound)
    last = verify_text(text, "regular").lines[2]
    assert last.startswith(f"bound {mixed.bound} = ")
    assert "holds: at least 99.9999" in last


@pytest.mark.parametrize(
    ("algbw", "share"),
    [
        ("99379/1000", "99.37"),
        ("99.999", "99.999"),
        ("99.99999996", "99.99999996"),
        ("1", "1"),
        ("99.996", "99.996"),
        ("200/3", "66.66"),
    ],
)
def test_no_share_is_rounded_up(algbw: str, share: str) -> None:
    """What is said to be there at least is there, and 100 % is said of the optimum alone."""
    line = bound_line(Fraction(algbw), Fraction(100))
    assert line == f"bound 100 = 100.000 GB/s holds: at least {share} %"


def test_rounded_shares_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coarse rounding costs rate, never a byte."""
    monkeypatch.setattr(columns, "PARTS", 64)
    exact, mixed = both(monkeypatch, Demand(regular(10, 3)))
    assert mixed.proven is not None
    assert mixed.rate <= exact.rate <= mixed.proven
    assert mixed.rate >= Fraction(4, 5) * exact.rate


def test_a_random_fabric_of_64_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing alike, no sparse cut; `scripts/benchmarks/alltoall.py` has 128 GPUs."""
    monkeypatch.setattr(flows, "MIXED", 20_000)
    best = flows.solve(Demand(regular(64, 6)))
    assert best.proven is not None
    assert best.proven - best.rate < Fraction(1, 10**6) * best.rate


def test_few_links_per_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices of the small program are far off at first here: eight mixtures left 8 %."""
    monkeypatch.setattr(flows, "MIXED", 0)
    best = flows.solve(Demand(regular(48, 4)))
    assert best.proven is not None
    assert best.proven - best.rate < Fraction(1, 10**6) * best.rate


def regular(n: int, degree: int) -> CapacityGraph:
    cables = nx.random_regular_graph(degree, n, seed=1).edges
    return build([(f"gpu{a}", f"gpu{b}", 1) for u, v in cables for a, b in ((u, v), (v, u))])
