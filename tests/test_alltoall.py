"""The optimal all-to-all: flows and lengths of links that prove each other.

Whatever way finds them: a program of all sources, of one for those alike, held at a sparse cut, or
mixed of columns where programs are large, which leaves a little between rate and bound.
"""

from __future__ import annotations

import json
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from command_line import script
from exchanges import proven, random_demand, solved
from graphs import build, changed, dgx_a100, machine, mi250, perturbed, ring, torus
from random_graphs import random_graph

from forestcoll.compile.verdict import bound_line, verify_text
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.solver.alltoall import columns, file, flows
from forestcoll.solver.alltoall import fold as folds
from forestcoll.solver.alltoall.columns import sparse_cut
from forestcoll.solver.alltoall.demand import Demand, alltoallv, in_groups, parse, uniform
from forestcoll.solver.alltoall.flows import Optimum, solve
from forestcoll.solver.alltoall.fold import bound, fold, orbits, quotient
from forestcoll.solver.alltoall.reference_routes import reference_algbw
from forestcoll.solver.baselines.alltoall import EXCHANGES
from forestcoll.solver.flows import exact_lp

QUICK = 128
"""Ranks of the fabrics of the script's table that are solved here; the script does the others."""
CASES = [case for case in script("alltoall").CASES if case.ranks <= QUICK and not case.long]
ROWS = (Path(__file__).parent / "rows" / "alltoall.txt").read_text().splitlines()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_known_fabrics(case: Any) -> None:
    assert proven(solve(uniform(case.topology()))) == Fraction(case.algbw)


@pytest.mark.parametrize("row", ROWS[1:])
def test_other_ways_reach_so_much_of_it(row: str) -> None:
    text, _, told = row.partition(": ")
    best = solved(text)
    for word in told.split(", "):
        way, percent = word.split()
        graph, folding = best.demand.graph, best.folding
        rate = (
            EXCHANGES[way].rate(graph) if "-" in way else reference_algbw(best.demand, folding, way)
        )
        assert percent == ("-" if rate is None else f"{float(100 * rate / best.algbw):.1f}"), way


# --- every way to find it ---------------------------------------------------------------------


def test_random_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are folded, some cuts are the optimum, or the comparison would say nothing."""
    folded = met = 0
    for seed in range(20):
        asked = random_demand(seed)
        folding = fold(asked)
        rate = proven(solve(asked))
        cut = sparse_cut(asked, folding)
        with monkeypatch.context() as patch:
            patch.setattr(flows, "LARGE", 0)  # programs of any size look for a cut first
            assert proven(solve(asked)) == rate
        per_rank = solve(asked).rate
        assert cut is None or cut[0] >= per_rank
        met += cut is not None and cut[0] == per_rank
        folded += len(folding.sources) < len(asked.graph.ranks)
    assert folded >= 3
    assert met >= 5


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_40_random_graphs() -> None:
    for seed in range(20, 60):
        proven(solve(random_demand(seed)))


def test_reference_routes_of_random_graphs() -> None:
    """Folding changes nothing, and nothing beats the optimum."""
    for seed in range(20):
        asked = Demand(random_graph(seed))
        best = solve(asked).algbw
        for way in ("direct", "shortest"):
            rate = reference_algbw(asked, fold(asked), way)
            assert rate == reference_algbw(asked, orbits(asked, []), way)
            assert rate is None or rate <= best


def mixed(monkeypatch: pytest.MonkeyPatch, asked: Demand) -> Optimum:
    """What is mixed where programs are taken for large ones."""
    with monkeypatch.context() as patch:
        patch.setattr(flows, "MIXED", 0)
        patch.setattr(flows, "sparse_cut", lambda *_: None)
        patch.setattr(flows, "_uniform_lengths", lambda *_: None)
        found = flows.solve(asked)
    assert found.proven is not None
    return found


def regular(n: int, degree: int) -> Demand:
    cables = nx.random_regular_graph(degree, n, seed=1).edges
    return Demand(build([(f"gpu{u}", f"gpu{v}", 1) for u, v in cables]))


def sized(n: int) -> tuple[tuple[int, ...], ...]:
    """A matrix of any sizes."""
    dice = random.Random(7)
    return tuple(tuple(dice.randrange(10**6) * (i != j) for j in range(n)) for i in range(n))


MIXTURES = [Demand(random_graph(seed)) for seed in range(12)]
MIXTURES += [Demand(dgx_a100(2)), Demand(torus(3, 3)), Demand(torus(3, 3), sized(9))]


@pytest.mark.parametrize("asked", MIXTURES, ids=range(len(MIXTURES)))
def test_mixtures_are_next_to_the_optimum(asked: Demand, monkeypatch: pytest.MonkeyPatch) -> None:
    exact, found = flows.solve(asked), mixed(monkeypatch, asked)
    assert exact.proven is None
    assert found.rate <= exact.rate <= found.proven
    assert found.proven - found.rate <= Fraction(1, 10**5) * exact.rate


@pytest.mark.parametrize(("n", "degree", "large"), [(64, 6, 20_000), (48, 4, 0)])
def test_mixtures_of_irregular_fabrics(
    n: int, degree: int, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing alike, no sparse cut. With few links a GPU prices are far off at first."""
    monkeypatch.setattr(flows, "MIXED", large)
    best = flows.solve(regular(n, degree))
    assert best.proven is not None
    assert best.proven - best.rate < Fraction(1, 10**6) * best.rate


def test_files_of_mixtures_hold_rate_and_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    found = mixed(monkeypatch, regular(12, 3))
    assert proven(found) < found.bound
    last = verify_text(file.dumps(found, "regular"), "regular").lines[2]
    assert last.startswith(f"bound {found.bound} = ")
    assert "holds: at least 99.9999" in last


@pytest.mark.parametrize(
    ("algbw", "share"),
    [
        *(("99379/1000", "99.37"), ("200/3", "66.66"), ("99.99999996", "99.99999996")),
        *((exact, exact) for exact in ("99.999", "1", "99.996")),
    ],
)
def test_no_share_is_rounded_up(algbw: str, share: str) -> None:
    """What is said to be there at least is there, and 100 % is said of the optimum alone."""
    line = bound_line(Fraction(algbw), Fraction(100))
    assert line == f"bound 100 = 100.000 GB/s holds: at least {share} %"


def test_rounded_shares_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coarse rounding costs rate, never a byte."""
    monkeypatch.setattr(columns, "PARTS", 64)
    asked = regular(10, 3)
    exact, found = flows.solve(asked), mixed(monkeypatch, asked)
    assert found.rate <= exact.rate <= found.proven
    assert found.rate >= Fraction(4, 5) * exact.rate


@pytest.mark.parametrize(
    ("graph", "seed"),
    [(torus(5, 4), 0), (torus(6, 3), 1), (dgx_a100(3), 2), (mi250(2), 0)],
    ids=["5x4", "6x3", "a100", "mi250"],
)
def test_cuts_of_uneven_cables(graph: CapacityGraph, seed: int) -> None:
    """Slabs of a torus and boxes are found without any symmetry."""
    asked = Demand(perturbed(graph, seed))
    folding = fold(asked)
    assert len(folding.sources) == len(graph.ranks)
    cut = sparse_cut(asked, folding)
    assert cut is not None
    assert cut[0] == solve(asked).rate


def test_the_program_is_held_at_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """One program, which needs no dual of its own: the cut proves it.

    A bound that is too high does no harm: the program goes on below it.
    """
    asked = Demand(perturbed(torus(6, 4), 1))
    rate = solve(asked).rate
    monkeypatch.setattr(flows, "LARGE", 0)
    with monkeypatch.context() as patch:
        patch.setattr(exact_lp, "solve", None)
        patch.setattr(exact_lp, "prove", None)
        best = solve(asked)
    assert set(best.lengths) == {0, 1}
    assert best.rate == rate
    cut = sparse_cut(asked, fold(asked))
    assert cut is not None
    monkeypatch.setattr(flows, "sparse_cut", lambda *_: (cut[0] * Fraction(3, 2), cut[1]))
    assert solve(asked).rate == rate


def test_a_cut_that_symmetries_move() -> None:
    """Its lengths are averaged over its images; the optimum is the same."""
    asked = Demand(dgx_a100(3))
    folded = fold(asked)
    assert len(folded.sources) == 1
    (first, one), (second, all_) = (
        sparse_cut(asked, folding) or (0, ()) for folding in (orbits(asked, []), folded)
    )
    assert first == second == solve(asked).rate
    assert sum(all_) == 3 * sum(one)


# --- folding --------------------------------------------------------------------------------------


def test_no_symmetry_gives_the_same_optimum() -> None:
    """A program with every source and a row for every link: what folding leaves is enough."""
    asked = Demand(mi250(1))
    folding = orbits(asked, [])
    assert len(folding.sources) == 16
    assert bound(asked, folding, solve(asked).lengths) == solve(asked).rate


def test_an_idle_gpu_is_no_switch() -> None:
    """The two look alike to whoever only asks for ranks; a file says which is which."""
    links = [("a", "b", 1), ("a", "idle", 2), ("b", "idle", 2), ("a", "switch", 2)]
    graph = build([*links, ("b", "switch", 2)], ranks=["a", "b"])
    assert proven(solve(Demand(graph))) == 10


def test_colours_see_alike_links_alike() -> None:
    """From GPU 0 of two boxes: itself, its box mates, the other box, three switches."""
    asked = Demand(dgx_a100(2))
    view = quotient(asked, fold(asked), asked.graph.ranks[0])
    assert len(set(view.colour.tolist())) == 6
    names = asked.graph.names
    alike = [names[v] for v in np.flatnonzero(view.colour == view.colour[names.index("box0/gpu5")])]
    assert alike == [f"box0/gpu{i}" for i in range(1, 8)]


def test_a_matrix_breaks_symmetry() -> None:
    graph = ring(4)
    even = tuple(tuple(7 * (i != j) for j in range(4)) for i in range(4))
    assert len(fold(Demand(graph)).sources) == len(fold(Demand(graph, even)).sources) == 1
    assert len(fold(Demand(graph, (*even[:3], (9, 1, 1, 0)))).sources) > 1


def test_irregular_cables() -> None:
    """Every cable up to a tenth slower or faster: the worst box says how much."""
    graph = perturbed(dgx_a100(4), 3)
    boxes = [{v for v in range(graph.n) if graph.names[v].startswith(f"box{b}/")} for b in range(4)]
    ways = (sum(graph.bandwidth(e) for e, (u, v) in enumerate(graph.ends) if u in box and v not in
            box) for box in boxes)  # fmt: skip
    assert solve(Demand(graph)).algbw == min(ways) * 32 / (8 * 24)


# --- problems by hand -----------------------------------------------------------------------------


def test_one_way_ring() -> None:
    """Every byte goes round: sum of distances 1 + 2 + 3, four ranks, one link out of each."""
    assert solve(Demand(ring(4, 6, both=False))).algbw == 4


def test_direct_ways_by_hand() -> None:
    """300 GB/s for seven blocks of eight; links in proportion to bandwidth; a ring has none."""
    box, circle = Demand(dgx_a100(1)), Demand(ring(6))
    assert reference_algbw(box, fold(box), "direct") == Fraction(8 * 300, 7)
    ways = Demand(build([(end, f"{way}-switch", width) for end in "ab" for way, width in
                         (("wide", 2), ("thin", 1))]))  # fmt: skip
    assert reference_algbw(ways, fold(ways), "direct") == 2 * 3
    assert reference_algbw(circle, fold(circle), "direct") is None
    assert reference_algbw(circle, fold(circle), "shortest") == solve(circle).algbw


def test_groups() -> None:
    """With relays all around; two halves of each box have half of the NIC's traffic each."""
    corners = uniform(machine("torus-2d x=2 y=2"), ["gpu0", "gpu3"], "all")
    assert solve(corners).algbw == 200
    topology = machine("dgx-a100 boxes=2")
    apart = solve(in_groups(topology, [["box0/*"], ["box1/*"]]))
    assert apart.algbw == Fraction(8 * 325, 7)  # the NICs carry some of it to the own box
    assert proven(solve(in_groups(topology, [["box*/gpu[0-3]"], ["box*/gpu[4-7]"]]))) == 50
    uneven = solve(in_groups(topology, [["box0/*"], ["box1/gpu[0-1]"]]))
    assert uneven.algbw == Fraction(8 * 325, 7)
    assert uneven.demand.scale == 8


def test_matrices() -> None:
    """Scaled, it is the all-to-all; all to one GPU: its ingress, 300 GB/s, says how long."""
    best = solve(alltoallv(machine("mi250"), [[1000] * 16] * 16))
    assert best.algbw == 75
    assert best.theta == solved("mi250").theta / 1000
    hot = solve(alltoallv(machine("dgx-a100"), [[0] * 8, *[[10, *[0] * 7]] * 7]))
    assert 1 / hot.theta == Fraction(70, 300)
    some = alltoallv(machine("dgx-a100 boxes=2"), [[i + j for i in range(16)] for j in range(16)])
    text = file.dumps(solve(some), "x")
    assert file.loads(text)[0].demand == some
    way = build([("a", "b", 1), ("b", "c", 1)], both=False)
    assert solve(Demand(way, ((0, 1, 1), (0, 0, 1), (0, 0, 0)))).rate == Fraction(1, 2)


@pytest.mark.parametrize(
    "text", ["0,1\n2,0", "0 1 # first\n\n2 0\n", "[[0, 1], [2, 0]]", "0;1;\n2;0;\n", " 0\t1\n 2\t0"]
)
def test_matrix_files(text: str) -> None:
    assert parse(text, "m") == ((0, 1), (2, 0))


def test_a_weaker_bound_is_still_one() -> None:
    """Whoever finds no optimum may state what was found, as long as both sides hold."""
    best = solve(Demand(torus(3, 3)))
    data = json.loads(file.dumps(best, "torus"))
    for key in ("algbw", "theta"):
        data[key] = str(Fraction(data[key]) / 2)
    for flow in data["flows"]:
        flow["amounts"] = [str(Fraction(amount) / 2) for amount in flow["amounts"]]
    read, _, bound = file.loads(json.dumps(data))
    assert (read.algbw, bound) == (best.algbw / 2, best.algbw)
    assert best.algbw == best.theta * len(best.demand.graph.ranks)


def test_schema_file_is_the_model() -> None:
    assert json.loads(file.SCHEMA_PATH.read_text()) == file.schema()


# The algbw in GB/s of what may enter the box with the failed port: theta 8 (N - 8) of its cut.
BROKEN = """
dgx-a100 boxes=512 -box0/gpu0-fabric=1/2: 12000/511
dgx-a100 boxes=512 -box0/gpu0-fabric: 11200/511
rail boxes=512 -box0/gpu0-rail0=1/2: 24000/511
"""


@pytest.mark.parametrize("row", BROKEN.strip().splitlines())
def test_thousands_of_ranks_with_a_failed_port(row: str) -> None:
    words, algbw = row.split(": ")
    assert solve(uniform(machine(words))).algbw == Fraction(algbw)


@pytest.mark.parametrize("seed", range(12))
def test_rotations_fold_as_exactly_as_all_symmetries(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken machines of up to 40 ranks, as those above ALIKE_FROM are folded and as they are."""
    dice = random.Random(seed)
    words = ("dgx-a100 boxes=4", "fat-tree leaves=3 hosts=2 gpus=4", "rail boxes=5 rails=4")
    topology = machine(words[seed % 3])
    links = [link for link in topology.links if "nvswitch" not in link.dst]
    some = [f"{link.src}-{link.dst}" for link in dice.sample(links, 2)]
    broken = changed(topology, [some[0], f"{some[1]}=1/2"])
    exact = solve(uniform(broken)).algbw
    monkeypatch.setattr(folds, "ALIKE_FROM", 1)
    assert proven(solve(uniform(broken))) == exact
