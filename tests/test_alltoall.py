"""All-to-all: the optimum on known fabrics, by a stranger's checker everywhere; its files."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from damages import damage, rows
from graphs import build, dgx_a100, mi250, ring, torus
from random_graphs import random_graph
from stranger_alltoall import judge

from forestcoll.common.errors import ForestError, InfeasibleError, TopologyError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.solver.alltoall import file
from forestcoll.solver.alltoall.demand import Demand, alltoallv, in_groups, parse, uniform
from forestcoll.solver.alltoall.flows import Optimum, check, solve
from forestcoll.solver.alltoall.fold import bound, fold, orbits, quotient
from forestcoll.topology import catalog

SCRIPT = Path(__file__).parents[1] / "scripts" / "benchmarks" / "alltoall.py"
QUICK = 128
"""Ranks of the fabrics of the script's table that are solved here; the script does the others."""


def table() -> ModuleType:
    """The script of the table."""
    spec = importlib.util.spec_from_file_location("alltoall_table", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


CASES = [case for case in table().CASES if case.ranks <= QUICK and not case.long]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_known_fabrics(case: Any) -> None:
    topology = case.topology()
    best = solve(uniform(topology))
    assert best.algbw == Fraction(case.algbw)
    text = file.dumps(best, topology.name)
    algbw, proven = judge(json.loads(text))
    assert algbw == proven == best.algbw
    read, name, again = file.loads(text)
    assert (read.algbw, name, again) == (best.algbw, topology.name, best.algbw)
    assert file.dumps(read, name) == text


# --- random graphs --------------------------------------------------------------------------------


def doubled(graph: CapacityGraph, rng: random.Random) -> CapacityGraph:
    """Two copies, joined node by node or over a switch: a graph with a symmetry."""
    n = graph.n
    links = list(graph.arcs)
    both = links + [(u + n, v + n, c) for u, v, c in links]
    names = [*graph.names, *(f"{name}'" for name in graph.names)]
    gpu = graph.gpu * 2
    width = rng.randint(1, 9)
    if rng.random() < 0.5:
        chosen = rng.sample(graph.ranks, rng.randint(1, len(graph.ranks)))
        both += [pair for v in chosen for pair in ((v, v + n, width), (v + n, v, width))]
    else:
        names.append("middle")
        gpu += (False,)
        for v in graph.ranks:
            for u in (v, v + n):
                both += [(u, 2 * n, width), (2 * n, u, width)]
    none = (False,) * len(names)
    return replace(
        graph,
        names=tuple(names),
        gpu=gpu,
        multicast=none,
        aggregation=none,
        ranks=(*graph.ranks, *(v + n for v in graph.ranks)),
        tail=tuple(u for u, _, _ in both),
        head=tuple(v for _, v, _ in both),
        capacity=tuple(c for _, _, c in both),
    )


def random_demand(seed: int) -> Demand:
    """An all-to-all, groups or a matrix on a random graph of up to 12 ranks."""
    rng = random.Random(seed)
    graph = random_graph(seed)
    if len(graph.ranks) <= 6 and rng.random() < 0.6:
        graph = doubled(graph, rng)
    count = len(graph.ranks)
    what = rng.random()
    if what < 0.6:
        return Demand(graph)
    if what < 0.8 and count >= 4:
        cut = rng.randint(2, count - 2)
        groups = tuple(range(cut)), tuple(range(cut, count))
        demand = Demand(graph, None, groups, closed=rng.random() < 0.5)
        try:
            demand.check_reachable()
        except InfeasibleError:
            return replace(demand, closed=False)
        return demand
    table = [[rng.choice((0, 0, 1, 5, 1000)) for _ in range(count)] for _ in range(count)]
    table[0][1] += 1
    return Demand(graph, tuple(map(tuple, table)))


def agree(seed: int) -> None:
    """Flows and lengths give one rate, by the stranger's checker: there is no better."""
    demand = random_demand(seed)
    best = solve(demand)
    algbw, proven = judge(json.loads(file.dumps(best, "random")))
    assert algbw == proven == best.algbw


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_random_graphs(start: int) -> None:
    for seed in range(start, start + 20):
        agree(seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_150_random_graphs() -> None:
    for seed in range(60, 210):
        agree(seed)


def test_random_graphs_are_folded() -> None:
    """Some of them have symmetries, or the comparison would say nothing about folding."""
    folded = 0
    for seed in range(60):
        demand = random_demand(seed)
        folded += len(fold(demand).sources) < len(demand.graph.ranks)
    assert folded >= 10


# --- folding --------------------------------------------------------------------------------------


def test_no_symmetry_gives_the_same_optimum() -> None:
    """A program with every source and a row for every link: what folding leaves is enough."""
    demand = Demand(mi250(1))
    folding = orbits(demand, [])
    assert len(folding.sources) == 16
    assert bound(demand, folding, solve(demand).lengths) == solve(demand).rate


def test_an_idle_gpu_is_no_switch() -> None:
    """The two look alike to whoever only asks for ranks; a file says which is which."""
    links = [("a", "b", 1), ("a", "idle", 2), ("b", "idle", 2), ("a", "switch", 2)]
    graph = build([*links, ("b", "switch", 2)], ranks=["a", "b"])
    best = solve(Demand(graph))
    assert best.rate == 5
    assert file.loads(file.dumps(best, "x"))[0].rate == 5


def test_colours_see_alike_links_alike() -> None:
    """From GPU 0 of two boxes: itself, its box mates, the other box, three switches."""
    demand = Demand(dgx_a100(2))
    view = quotient(demand, fold(demand), demand.graph.ranks[0])
    assert len(set(view.colour.tolist())) == 6
    names = demand.graph.names
    alike = [names[v] for v in np.flatnonzero(view.colour == view.colour[names.index("box0/gpu5")])]
    assert alike == [f"box0/gpu{i}" for i in range(1, 8)]


def test_a_matrix_breaks_symmetry() -> None:
    graph = ring(4)
    table = [[0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1], [9, 1, 1, 0]]
    assert len(fold(Demand(graph)).sources) == 1
    assert len(fold(Demand(graph, tuple(map(tuple, table)))).sources) > 1
    even = tuple(tuple(0 if i == j else 7 for j in range(4)) for i in range(4))
    assert len(fold(Demand(graph, even)).sources) == 1


def test_irregular_cables() -> None:
    """Every cable up to a tenth slower: nothing is alike; the worst box says how much."""
    graph = dgx_a100(4)
    dice = random.Random(3)
    cable = {frozenset(pair): dice.randrange(900, 1001) for pair in graph.ends}
    capacity = tuple(c * cable[frozenset((u, v))] for u, v, c in graph.arcs)
    graph = replace(graph, capacity=capacity, unit=graph.unit / 1000)
    best = solve(Demand(graph))
    cuts = []
    for box in range(4):
        inside = frozenset(v for v in range(graph.n) if graph.names[v].startswith(f"box{box}/"))
        cuts.append(graph.leaving(inside) * 32 / (8 * 24))
    assert best.algbw == min(cuts)


# --- problems of other kinds ----------------------------------------------------------------------


def test_one_way_ring() -> None:
    """Every byte goes round: sum of distances 1 + 2 + 3, four ranks, one link out of each."""
    graph = build([(f"gpu{i}", f"gpu{(i + 1) % 4}", 6) for i in range(4)], both=False)
    assert solve(Demand(graph)).algbw == 4


def test_process_group_with_and_without_relays() -> None:
    topology = catalog.load("torus-2d", {"x": 2, "y": 2})
    corner = ["gpu0", "gpu3"]
    with pytest.raises(InfeasibleError):
        uniform(topology, corner)
    assert solve(uniform(topology, corner, "all")).algbw == 200


def test_groups_share_links() -> None:
    """Two halves of each box: half of the NIC's traffic each, at one algbw."""
    topology = catalog.load("dgx-a100", {"boxes": 2})
    apart = solve(in_groups(topology, [["box0/*"], ["box1/*"]]))
    assert apart.algbw == Fraction(8 * 325, 7)  # the NICs carry some of it to the own box
    across = solve(in_groups(topology, [["box*/gpu[0-3]"], ["box*/gpu[4-7]"]]))
    assert across.algbw == 50
    uneven = solve(in_groups(topology, [["box0/*"], ["box1/gpu[0-1]"]]))
    assert uneven.algbw == Fraction(8 * 325, 7)
    assert uneven.demand.scale == 8


def test_groups_that_are_refused() -> None:
    topology = catalog.load("dgx-a100")
    with pytest.raises(TopologyError, match="box0/gpu1 is in two groups"):
        in_groups(topology, [["box0/gpu0", "box0/gpu1"], ["box0/gpu1", "box0/gpu2"]])
    with pytest.raises(TopologyError, match="group 1 has 1 GPU"):
        in_groups(topology, [["box0/gpu0", "box0/gpu1"], ["box0/gpu2"]])


def test_ragged_is_scaled_alltoall() -> None:
    topology = catalog.load("mi250")
    even = alltoallv(topology, [[1000] * 16 for _ in range(16)])
    best = solve(even)
    assert best.algbw == 75
    assert best.theta == solve(uniform(topology)).theta / 1000


def test_hot_receiver() -> None:
    """All send to one GPU: its ingress, 300 GB/s, says how long it takes."""
    topology = catalog.load("dgx-a100")
    table = [[0] * 8 for _ in range(8)]
    for row in table[1:]:
        row[0] = 10
    best = solve(alltoallv(topology, table))
    assert 1 / best.theta == Fraction(70, 300)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([[0, 1]], "1 rows; there are 8 ranks"),
        ([[0] * 8] * 7 + [[1]], "row 7 of the matrix has 1 entries, not 8"),
        ([[0] * 7 + [-1]] * 8, "row 0, column 7 of the matrix: -1 is no byte count"),
        ([[0] * 8] * 8, "sends nothing"),
        ([[2**47] * 8] * 8, "2\\^50 bytes or more"),
    ],
)
def test_matrices_that_are_refused(table: list[list[int]], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        alltoallv(catalog.load("dgx-a100"), table)


def test_something_cannot_arrive() -> None:
    graph = build([("a", "b", 1), ("b", "c", 1)], both=False)
    table = ((0, 1, 1), (0, 0, 1), (0, 0, 0))
    assert solve(Demand(graph, table)).rate == Fraction(1, 2)
    with pytest.raises(InfeasibleError, match="nothing leads from b to a"):
        Demand(graph, ((0, 1, 1), (1, 0, 1), (0, 0, 0))).check_reachable()


@pytest.mark.parametrize(
    "text", ["0,1\n2,0", "0 1 # first\n\n2 0\n", "[[0, 1], [2, 0]]", "0;1;\n2;0;\n", " 0\t1\n 2\t0"]
)
def test_matrix_files(text: str) -> None:
    assert parse(text, "m") == ((0, 1), (2, 0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "m: no numbers"),
        ("0 x", "line 1, entry 2: 'x' is no whole number"),
        ("0 1\n0 -1", "line 2, entry 2: '-1' is no whole number"),
        ("[[0, 1.5]]", "row 0, column 1"),
        ("[[0, true]]", "row 0, column 1"),
        ("[0]", "row 0 is no list"),
        ("[[0]", "line 1: not JSON"),
        ("9" * 50, "no whole number"),
        ("[[" + "9" * 5000 + "]]", "input limit DIGITS"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_matrix_files_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse(text, "m")


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good() -> dict[str, Any]:
    """The file of two DGX A100 boxes."""
    found: dict[str, Any] = json.loads(file.dumps(solve(Demand(dgx_a100(2))), "boxes"))
    return found


@pytest.mark.parametrize(("change", "message"), rows("alltoall"))
def test_files_that_claim_what_is_not_so(good: dict[str, Any], change: str, message: str) -> None:
    with pytest.raises(ForestError, match=f"x.json: .*{message}"):
        file.loads(json.dumps(damage(good, change)), "x.json")


def test_a_group_must_keep_the_matrix() -> None:
    """A rotation keeps the ring, but not what is sent on it."""
    table = ((0, 5, 1), (1, 0, 1), (1, 1, 0))
    data = json.loads(file.dumps(solve(Demand(ring(3), table)), "ring"))
    names = [node["id"] for node in data["topology"]["nodes"]]
    turned = dict(zip(names, [*names[1:], names[0]], strict=True))
    data["symmetry"] = {"generators": [turned]}
    with pytest.raises(ForestError, match=r"generators\[0\] does not keep what is sent"):
        file.loads(json.dumps(data))


def test_a_weaker_bound_is_still_one() -> None:
    """Whoever finds no optimum may state what was found, as long as both sides hold."""
    best = solve(Demand(torus(3, 3)))
    graph = best.demand.graph
    data = json.loads(file.dumps(best, "torus"))
    for key in ("algbw", "theta"):
        data[key] = str(Fraction(data[key]) / 2)
    for flow in data["flows"]:
        flow["amounts"] = [str(Fraction(amount) / 2) for amount in flow["amounts"]]
    read, _, proven = file.loads(json.dumps(data))
    assert read.algbw == best.algbw / 2
    assert proven == best.algbw == best.theta * len(graph.ranks)


def test_a_wrong_optimum_is_not_let_through() -> None:
    best = solve(Demand(ring(4)))
    slow: Optimum = replace(best, rate=best.rate / 2)
    with pytest.raises(ForestError):
        check(slow)


def test_groups_and_matrices_in_files() -> None:
    topology = catalog.load("dgx-a100", {"boxes": 2})
    shared = solve(in_groups(topology, [["box*/gpu[0-3]"], ["box*/gpu[4-7]"]]))
    some = solve(alltoallv(topology, [[i + j for i in range(16)] for j in range(16)]))
    for best in (shared, some):
        text = file.dumps(best, topology.name)
        assert judge(json.loads(text)) == (best.algbw, best.algbw)
        assert file.loads(text)[0].demand == best.demand


def test_schema_file_is_the_model() -> None:
    stored = json.loads(file.SCHEMA_PATH.read_text(encoding="utf-8"))
    assert stored == file.schema()
