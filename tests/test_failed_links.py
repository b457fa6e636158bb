"""Large fabrics with a few links down or slowed: still box by box, still exact, still low."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from graphs import dgx_a100, named

from forestcoll import solver
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.kernel import _kernel
from forestcoll.program import Collective
from forestcoll.schedule import certificate
from forestcoll.schedule.forest import Forest
from forestcoll.solver import packing
from forestcoll.solver.task import analyse


def optimal(graph: CapacityGraph) -> Forest:
    """The allgather's forest, proven to be as fast as can be."""
    forest = solver.solve(graph, Collective.ALLGATHER)
    best = solver.optimum(graph, Collective.ALLGATHER)
    assert certificate.check(forest) == (best.algbw, best.bound.algbw)
    return forest


def logical(graph: CapacityGraph) -> _kernel.Logical:
    task = analyse(graph, None)
    supply = task.supply(task.trees_per_root)
    group = packing._boxes(task.graph)
    links = (graph.n, task.graph.tail, task.graph.head, task.capacities())
    return _kernel.remove_relays(*links, supply, graph.ranks, group, True)


def between(graph: CapacityGraph, found: _kernel.Logical) -> Counter[tuple[str, str]]:
    """Units from each box to each other one."""
    units: Counter[tuple[str, str]] = Counter()
    for u, v, kinds in zip(found.tail, found.head, found.units, strict=True):
        a, b = (graph.names[w].split("/")[0] for w in (u, v))
        if a != b:
            units[a, b] += sum(count for _, count in kinds)
    return units


@pytest.fixture
def no_exact_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact packing of the whole graph takes minutes on large fabrics: it must not be needed."""
    pack = _kernel.pack

    def layers_only(
        found: _kernel.Logical, supply: Sequence[int], sinks: Sequence[int], exact: bool
    ) -> tuple[int, list[tuple[int, int, list[int]]]] | None:
        assert not exact, "the trees were packed one by one"
        return pack(found, supply, sinks, exact)

    monkeypatch.setattr(_kernel, "pack", layers_only)


def test_boxes_reach_each_other_equally_well() -> None:
    """Sixteen boxes, three links down, one slowed: what a box has left goes to all others alike."""
    graph = named(
        "dgx-a100 boxes=16 -box4/gpu1-fabric -box8/gpu1-fabric -box15/gpu7-fabric "
        "-box15/gpu6-fabric=1/2"
    )
    task = analyse(graph, None)
    units = between(graph, logical(graph))
    need = 8 * task.trees_per_root
    assert min(units.values()) >= need
    assert {units["box15", f"box{b}"] for b in range(15)} == {need}  # not one to spare
    whole = [f"box{b}" for b in range(16) if b not in (4, 8, 15)]
    among = [units[a, b] for a in whole for b in whole if a != b]
    assert max(among) - min(among) <= 1


def test_a_node_cut_off_from_its_box_is_a_box_of_its_own() -> None:
    graph = named("dgx-a100 boxes=2 -box0/gpu3-box0/nvswitch -box1/nvswitch->box1/gpu5")
    group = dict(zip(graph.names, packing._boxes(graph), strict=True))
    inside = [*(f"gpu{i}" for i in range(8)), "nvswitch"]
    boxes = [[f"box{b}/{name}" for name in inside] for b in (0, 1)]
    alone = ("box0/gpu3", "box1/gpu5")
    assert len({group[name] for name in [*alone, "box0/gpu0", "box1/gpu0"]}) == 4
    for box in boxes:
        assert len({group[name] for name in box if name not in alone}) == 1
    assert group["fabric"] == -1


@pytest.mark.usefixtures("no_exact_packing")
@pytest.mark.parametrize("ways", ["both", "one"])
@pytest.mark.parametrize(("name", "seed"), [("dgx-a100", 0), ("dgx-a100", 1), ("dgx-h100", 2)])
def test_twelve_boxes_with_failed_links(name: str, ways: str, seed: int) -> None:
    rng = random.Random(seed)
    links = set()
    for _ in range(3):
        box, gpu = rng.randrange(12), rng.randrange(8)
        ends = [f"box{box}/gpu{gpu}", rng.choice([f"box{box}/nvswitch", "fabric"])]
        rng.shuffle(ends)
        links.add(f"{ends[0]}->{ends[1]}" if ways == "one" else f"{ends[0]}<->{ends[1]}")
    slow = f"box{rng.randrange(12)}/gpu{rng.randrange(8)}->fabric=1/2"
    words = " -".join([f"{name} boxes=12", *sorted(links), slow])
    assert optimal(named(words)).height <= 7


@pytest.mark.usefixtures("no_exact_packing")
def test_a_box_that_sends_less_than_all_need_goes_over_others() -> None:
    """Boxes 0 and 1 can each send out less than their own parts times eight."""
    links = [f"box{b}/gpu{i}->fabric" for b in (0, 1) for i in range(7)]
    graph = named(" -".join(["dgx-a100 boxes=9", *links]))
    over = 0
    for tree in optimal(graph).trees:
        box = graph.names[tree.root].split("/")[0]
        ends = [[graph.names[v].split("/")[0] for v in (path[0], path[-1])] for path in tree.edges]
        over += sum(box != a != b for a, b in ends)
    assert over > 0


def test_the_same_bytes_twice() -> None:
    graph = dgx_a100(6)
    graph = replace(graph, capacity=(graph.capacity[0] - 1, *graph.capacity[1:]))
    first, second = (solver.solve(graph, Collective.ALLGATHER) for _ in range(2))
    assert first == second


@pytest.mark.slow
@pytest.mark.usefixtures("no_exact_packing")
def test_a_thousand_gpus_with_failed_links() -> None:
    graph = named(
        "dgx-a100 boxes=128 -box3/gpu1-fabric -box17/gpu5-fabric -box99/gpu0-fabric "
        "-box40/gpu2-fabric=1/2"
    )
    forest = optimal(graph)
    assert (forest.algbw, forest.height <= 4) == (Fraction(22400, 127), True)
