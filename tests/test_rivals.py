"""The forest whose plans are fastest in simulated time, where the first choice's are slow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from forestcoll import solver
from forestcoll.common.clock import Clock
from forestcoll.compile import rivals
from forestcoll.compile.choose import Chooser
from forestcoll.compile.problem import Problem
from forestcoll.compile.request import Request
from forestcoll.compile.rivals import Judged
from forestcoll.compile.synthesize import synthesize
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective, Program
from forestcoll.program.targets import TARGETS
from forestcoll.schedule.forest import Forest
from forestcoll.solver.front import Front
from forestcoll.topology import Link, Node, Topology, catalog
from forestcoll.verify import simulate
from forestcoll.verify.simulate import Band

pytestmark = pytest.mark.usefixtures("links_alone")

MB64 = 64 * 10**6


def least(made: Any, size: int) -> float:
    """Of the forest's algbw, what the slower plan reaches under the worse rule."""
    return min(
        simulate.run(program, made.forest, size, rule=rule).algbw / float(made.forest.plain_algbw)
        for program in made.programs.values()
        for rule in ("fair", "fifo")
    )


def test_a_broadcast_behind_a_switch_is_no_chain() -> None:
    """Seven trees of two hops are as good a forest as a chain of seven, and fill sooner."""
    topology = catalog.load("dgx-a100")
    made = synthesize(topology, "broadcast", target="mscclpp")
    chain = synthesize(topology, "broadcast", target="mscclpp", trees=1)
    assert made.forest.plain_algbw == chain.forest.plain_algbw == 300
    assert (made.forest.height, chain.forest.height) == (2, 7)
    assert least(made, MB64) > rivals.GAIN * least(chain, MB64)
    (note,) = [note for note in made.notes if "for speed" in note]
    told = re.fullmatch(
        r"7 trees per root for speed: simulated at 64 MB with signals that take no time, "
        r"plans of them reach ([\d.]+) GB/s, "
        r"of 1 tree per root ([\d.]+) \(--trees 1\)",
        note,
    )
    assert told is not None
    ours, theirs = float(told[1]), float(told[2])
    assert theirs < rivals.SURE * 300 < ours
    assert ours > rivals.GAIN * theirs
    assert ours == pytest.approx(300 * least(made, MB64), rel=0.025)  # with the links' latency


@pytest.mark.parametrize("wish", [{"exact": True}, {"trees": 1}, {"min_percent": 100}])
def test_wishes_mean_what_they_say(wish: Mapping[str, Any]) -> None:
    made = synthesize(catalog.load("dgx-a100"), "broadcast", target="mscclpp", **wish)
    assert made.forest.height == 7
    assert not any("for speed" in note for note in made.notes)


def test_an_allreduce_over_a_mesh_is_no_slower_than_rings() -> None:
    """Trees of four hops fill and drain; four rings reach the optimum, and never wait."""
    topology = catalog.load("torus-2d")
    made = synthesize(topology, "allreduce", target="rccl", formats=("msccl-xml",))
    exact = synthesize(topology, "allreduce", target="rccl", formats=("msccl-xml",), exact=True)
    assert (made.forest.height, exact.forest.height) == (15, 4)
    assert made.forest.bound == exact.forest.bound
    assert least(made, MB64) > 0.999 > 0.95 > least(exact, MB64)
    assert any("rings for speed: simulated at 1000 MB" in note for note in made.notes)
    assert not any("rings" in note for note in exact.notes)


def test_rings_behind_a_switch_have_but_one_peer_to_sum() -> None:
    """Direct trees add up eleven parts with a limit on the peers of an operation: 74 %."""
    topology = catalog.load("star", {"gpus": 12})
    made = synthesize(topology, "allreduce", target="mscclpp", formats=("mscclpp-json",))
    assert made.optimum.algbw == Fraction(300, 11)
    assert made.forest.plain_algbw > rivals.SURE * made.optimum.algbw
    assert least(made, 10**9) > 0.99
    assert least(made, MB64) > 0.98
    assert made.needs["mscclpp-json"].thread_blocks < 24
    (note,) = [note for note in made.notes if "for speed" in note]
    told = re.fullmatch(
        r"rings for speed: simulated at 1000 MB with signals that take no time, "
        r"plans of them reach ([\d.]+) GB/s, "
        r"of 1 tree per root ([\d.]+) \(--exact\)",
        note,
    )
    assert told is not None
    assert float(told[2]) < rivals.SURE * 300 / 11 < float(told[1])


def test_rings_that_are_slower_than_asked_for_are_no_rivals() -> None:
    problem = Problem.of(
        catalog.load("dgx-a100", {"boxes": 2}), "allgather", None, None, "none", None
    )
    best = problem.optimum()
    graph, allgather = problem.graph, Collective.ALLGATHER
    share = Fraction(640, 3) / best.algbw  # the adapters of a box are used once
    (slower, *_) = rivals.rings_of(graph, allgather, best, "name", float(share) - 1e-6)
    assert (slower.plain_algbw, slower.name) == (Fraction(640, 3), "name")
    assert slower.bound == best.bound
    assert rivals.rings_of(graph, allgather, best, "name", float(share) + 1e-6) == []
    assert rivals.rings_of(graph, Collective.BROADCAST, best, "name", 0) == []


@pytest.mark.parametrize(
    ("name", "collective"),
    [("dgx-a100", "allreduce"), ("torus-2d", "allgather"), ("mi250", "allreduce")],
)
def test_rings_are_looked_for_where_they_reach_the_optimum_of_a_mesh(
    name: str, collective: str
) -> None:
    graph = CapacityGraph.from_topology(catalog.load(name))
    best = solver.optimum(graph, Collective(collective))
    assert rivals.rings(graph, Collective(collective), best, name) is None


@pytest.mark.parametrize("name", ["ring", "hypercube", "dgx1-v100", "torus-2d", "mi250", "joined"])
def test_no_ring_is_missed_for_narrow_links(name: str) -> None:
    topology = joined_triangles() if name == "joined" else catalog.load(name)
    graph = CapacityGraph.from_topology(topology)
    best = solver.optimum(graph, Collective.ALLREDUCE)
    all_rings = rivals.rings_of(graph, Collective.ALLREDUCE, best, name, 1)
    assert rivals.rings(graph, Collective.ALLREDUCE, best, name) == next(iter(all_rings), None)
    assert bool(all_rings) == (name not in ("hypercube", "mi250"))


def joined_triangles() -> Topology:
    """Two boxes whose rings are joined by a narrow cable: two rings, and what goes between."""
    ranks = [f"box{b}/gpu{k}" for b in range(2) for k in range(3)]
    pairs = [(a, z) for a in ranks for z in ranks if a != z and a[:4] == z[:4]]
    cable = [(ranks[0], ranks[3]), (ranks[3], ranks[0])]
    links = [Link(a, z, Fraction(50)) for a, z in pairs] + [
        Link(a, z, Fraction(1)) for a, z in cable
    ]
    return Topology("joined", {rank: Node("gpu") for rank in ranks}, tuple(links))


def test_two_boxes_of_dies_take_fewer_trees_a_root() -> None:
    """13 trees a root reach the optimum of the links, their plan 147 of its 208 GB/s; 4 do more."""
    made = synthesize(
        catalog.load("mi250", {"boxes": 2}),
        "reduce-scatter",
        target="mscclpp",
        ranks=["box*/gpu[0-7]"],
    )
    band = made.bands["mscclpp-json"]
    assert made.optimum.trees_per_root == 13
    assert made.forest.trees_per_root == 4
    assert band.least >= 180


def chooser(shares: Mapping[int, float], monkeypatch: pytest.MonkeyPatch) -> Chooser:
    """One whose forests of so many trees per root have plans that reach these shares."""

    def judge(
        forest: Forest, programs: dict[Any, Program], notes: list[str], best: Fraction, *_: object
    ) -> Judged:
        share = shares.get(forest.trees_per_root, 0.1)
        time = 1e6 / (share * float(best))
        return Judged(programs, notes, {"mscclpp-json": Band(10**9, time, time, 0.0)}, share)

    monkeypatch.setattr(rivals, "judge", judge)
    monkeypatch.setattr(rivals, "distinct", lambda forests, _: iter(forests))  # all the same here

    graph = CapacityGraph.from_topology(catalog.load("ring", {"gpus": 5}))
    collective = Collective.BROADCAST
    best = solver.optimum(graph, collective, 0)
    targets: Any = {"mscclpp-json": TARGETS["mscclpp"]}
    problem = Problem(graph, collective, 0, "ring")
    return Chooser(problem, targets, Request(), best, Clock())


@pytest.mark.parametrize(
    ("shares", "taken"),
    [
        ({2: 0.9, 4: 1.0}, {2}),  # the first choice's plans are near the optimum
        ({2: 0.5, 4: 0.6, 8: 0.7}, {4, 8}),
        (dict.fromkeys(range(1, 65), 0.51) | {2: 0.5}, {2}),  # a little faster is not worth more
    ],
)
def test_the_fastest_is_taken_where_it_gains(
    shares: Mapping[int, float], taken: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = chooser(shares, monkeypatch).choose()
    assert found.forest.trees_per_root in taken
    if taken != {2}:
        assert found.notes[0].endswith("(--trees 2)")


@pytest.mark.parametrize(
    ("reached", "tried"),
    [([0.3, 0.4, 0.5, 0.6, 0.55], 5), ([0.3, 0.4, 0.35, 0.6], 3), ([0.3, 0.2, 0.4, 0.1, 0.6], 4)],
)
def test_more_are_tried_while_the_last_was_the_fastest_so_far(
    reached: list[float], tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    choosing = chooser({}, monkeypatch)
    given = rivals.judge
    seen: list[float] = []

    def judge(*known: Any) -> Judged:
        seen.append(reached[len(seen)])
        return replace(given(*known), share=seen[-1])

    monkeypatch.setattr(rivals, "judge", judge)
    choosing.choose()
    assert seen == reached[:tried]


@pytest.mark.parametrize(("more", "taken"), [(0, 8), (1, 4)])
def test_more_thread_blocks_have_to_gain_more(
    more: int, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of eight trees a root the second rival; 0.61 is 2 % more than 0.6, and GAIN asks for 3."""
    monkeypatch.setattr(rivals, "promising", lambda forests, *_: iter([*forests][:2]))
    blocks = property(lambda self: 4 + more * (self.share == 0.61))
    monkeypatch.setattr(Judged, "blocks", blocks)
    shares = {2: 0.5, 4: 0.6, 8: 0.61}
    assert chooser(shares, monkeypatch).choose().forest.trees_per_root == taken


def test_the_same_trees_twice_are_no_rival() -> None:
    """On a full mesh each other rank is a child of the root, in one tree or in seven alike."""
    graph = CapacityGraph.from_topology(catalog.load("mi300x"))
    best = solver.optimum(graph, Collective.REDUCE, 0)
    front = Front(graph, Collective.REDUCE, 0, best)
    forests = [
        (front.point(k), solver.solve(graph, Collective.REDUCE, 0, k)) for k in (7, 14, 28, 1)
    ]
    found = rivals.distinct(forests[1:], forests[0][1])
    assert [point.trees for point, _ in found] == [1]
    assert [*rivals.distinct(forests, forests[3][1])] == forests[:1]
