"""What is promised of forests and their plans in simulated time."""

from __future__ import annotations

import random
import time
from fractions import Fraction
from typing import Any

import pytest
from graphs import machine, named
from stored_schedules import stored

from forestcoll.compile.search import SPREADING, search
from forestcoll.compile.synthesize import synthesize
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import lower
from forestcoll.program import Collective, Program
from forestcoll.program.targets import RCCL, Target
from forestcoll.schedule.forest import Forest, Tree
from forestcoll.solver import baselines
from forestcoll.topology import catalog
from forestcoll.verify import simulate
from forestcoll.verify.simulate import Options
from forestcoll.verify.simulate.trees import _gate, straight_links

RULES: tuple[simulate.Rule, ...] = ("fair", "fifo")


def test_a_cube_mesh_gathers_few_and_many_bytes_as_fast_as_a_search_finds() -> None:
    """SCCL's search (Cai et al., PPoPP 2021) takes longer for 1.48 and 7.5 us."""
    before = time.process_time()
    forest = synthesize(machine("dgx1-v100"), "allgather", formats="forest").forest
    hop = Options(latency=0.7)
    for rule in RULES:
        few = simulate.run_forest(forest, 10_000, rule=rule, options=hop)
        many = simulate.run_forest(forest, 1_000_000, rule=rule, options=hop)
        assert few.time <= 1.47
        assert many.time <= 6.93
        # the bytes that come to a rank over its links, and a hop of the last: nothing is faster
        assert many.time == pytest.approx(1_000_000 / float(forest.algbw) / 1000 + 0.7)
    assert time.process_time() - before < 2


def test_a_torus_keeps_its_links_busy_with_64_pieces() -> None:
    topology = machine("torus-3d x=3 y=3 z=3")
    forest = synthesize(topology, "allgather", formats="forest").forest
    assert forest.algbw == Fraction(4050, 13)
    for rule in RULES:
        assert simulate.run_forest(forest, 10**9, rule=rule, pieces=64).algbw >= 306


def test_a_rank_sends_all_trees_at_once_where_that_is_faster() -> None:
    """One tree a root of 16 dies: what comes first keeps what is handed on waiting, in order."""
    forest = synthesize(machine("mi250"), "allgather", trees=1, formats="forest").forest
    fair, fifo = (simulate.run_forest(forest, 10**9, rule=rule).algbw for rule in RULES)
    assert fair > 1.1 * fifo
    links = {(forest.graph.tail[e], forest.graph.head[e]) for e in range(len(forest.graph.tail))}
    assert straight_links(forest) <= links
    assert not straight_links(synthesize(machine("mi250"), "reduce", formats="forest").forest)
    switched = synthesize(machine("star"), "allgather", formats="forest").forest
    assert not straight_links(switched)


@pytest.mark.parametrize("seed", range(20))
def test_a_piece_of_a_broadcast_waits_for_the_pieces_of_sums_that_lie_in_it(seed: int) -> None:
    """The pieces of the sum are laid beside those of the broadcast, one by one."""
    draw = random.Random(seed)
    pieces = draw.choice([1, 3, 64])
    own, other = ((a, a + draw.randrange(1, 9)) for a in (draw.randrange(9), draw.randrange(9)))
    wanted = []
    for p in range(pieces):
        low, high = (own[0] + Fraction((own[1] - own[0]) * k, pieces) for k in (p, p + 1))
        begins = [other[0] + Fraction((other[1] - other[0]) * k, pieces) for k in range(pieces)]
        inside = low < other[1] and other[0] < high
        wanted.append(sum(begin < high for begin in begins) if inside else 0)
    assert _gate(own, other, pieces) == ([] if own == other else wanted)
    assert _gate(own, own, pieces) == []  # which stands for 1, 2, 3, ...


def test_pieces_come_to_a_link_in_order_as_their_rank_has_them() -> None:
    """A rank's own pieces are there before what it relays, whatever tree they are of."""
    graph = named("ring gpus=3 bandwidth=100")
    a, b, c = graph.ranks
    trees = (
        Tree(a, "broadcast", 1, ((a, b), (b, c))),
        Tree(b, "broadcast", 1, ((b, c), (b, a))),
        Tree(c, "broadcast", 1, ((c, a), (c, b))),
    )
    forest = Forest("ring", graph, Collective.ALLGATHER, 3, trees)
    found = simulate.run_forest(forest, 3 * 64 * 10**6, rule="fifo", timeline=True)
    over = [span for span in found.timeline if (span.rank, span.peer) == (1, 2)]
    order = [span.step for span in sorted(over, key=lambda span: span.start)]
    assert order == [1] * 64 + [0] * 64
    rate = float(graph.bandwidth(0)) * 1000
    assert found.time == pytest.approx(2 * 64 * 10**6 / rate)


def simulated(program: Program, forest: Forest) -> float:
    """GB/s at 1 GB under the worse rule."""
    return min(simulate.run(program, forest, 10**9, rule=rule).algbw for rule in RULES)


def ringed(graph: CapacityGraph, target: Target) -> float:
    """The same of a ring as every collective library makes."""
    forest = baselines.BASELINES["rings"].forests(graph, Collective.ALLREDUCE)[0]
    program, _ = search(forest, target, lower(forest, target), SPREADING)
    return simulated(program, forest)


@pytest.mark.parametrize(
    ("name", "settings", "share"),
    [
        # rings of a mesh reach all of the optimum; shares in powers of two cost up to 0.5 % of it
        ("dgx1-v100", {}, 0.97),
        ("torus-2d", {}, 0.985),
        pytest.param("mi250", {}, 0.97, marks=pytest.mark.slow),
        pytest.param("dgx-a100", {"boxes": "2"}, 1.6, marks=pytest.mark.slow),
        pytest.param("dgx-h100", {"boxes": "2"}, 1.2, marks=pytest.mark.slow),
    ],
)
def test_an_allreduce_is_as_fast_as_rings(
    name: str, settings: dict[str, Any], share: float
) -> None:
    """And where links are not all alike, so many times as fast."""
    known = stored(name, settings, Collective.ALLREDUCE)
    if known is None:
        made = synthesize(catalog.load(name, settings), "allreduce", target="rccl")
        known = made.forest, {**made.programs}
    forest, programs = known
    assert simulated(programs["msccl-xml"], forest) >= share * ringed(forest.graph, RCCL)
