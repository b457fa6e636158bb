"""The forest whose plans are fastest in simulated time, where the first choice's are slow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pytest
from graphs import machine, named

from forestcoll import solver
from forestcoll.common.clock import Clock
from forestcoll.compile import rivals
from forestcoll.compile.choose import Chooser, round_forest
from forestcoll.compile.problem import Problem, Start
from forestcoll.compile.request import Request
from forestcoll.compile.rivals import Judged
from forestcoll.compile.search import FAR, GAIN, STARTS, search
from forestcoll.compile.synthesize import synthesize
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import lower, usage
from forestcoll.program import Collective
from forestcoll.program.targets import RCCL, TARGETS
from forestcoll.schedule.forest import Forest
from forestcoll.solver.baselines import by_name
from forestcoll.solver.front import Front
from forestcoll.topology import Link, Node, Topology, catalog
from forestcoll.topology.edit import edit
from forestcoll.verify import simulate, verify

MB64 = 64 * 10**6


def least(made: Any, topology: Topology, size: int) -> float:
    """GB/s of the slower plan under the worse rule, as reports have it."""
    return min(
        simulate.band(program, made.forest, size, links=topology.latencies()).least
        for program in made.programs.values()
    )


def told(made: Any) -> tuple[str, ...]:
    """The parts of the note that speaks of speed: names, GB/s at both sizes, and the option."""
    (note,) = [note for note in made.notes if "for speed" in note]
    match = re.fullmatch(
        r"(.+) for speed: simulated at 64 MB and 1000 MB, plans of them reach ([\d.]+) and "
        r"([\d.]+) GB/s, of (.+ per root) ([\d.]+) and ([\d.]+) \((.+)\)",
        note,
    )
    assert match is not None
    return match.groups()


def test_a_broadcast_behind_a_switch_is_no_chain() -> None:
    """Trees of three hops are as good a forest as a chain of seven, and fill sooner."""
    topology = machine("dgx-h100")
    made = synthesize(topology, "broadcast", target="mscclpp")
    chain = synthesize(topology, "broadcast", target="mscclpp", trees=1)
    assert made.forest.plain_algbw == chain.forest.plain_algbw == 450
    assert (made.forest.height, chain.forest.height) == (3, 7)
    assert least(made, topology, MB64) > 1.05 * least(chain, topology, MB64)
    ours, short, long, theirs, *slower, option = told(made)
    assert (ours, theirs, option) == ("16 trees per root", "1 tree per root", "--trees 1")
    assert float(short) == pytest.approx(least(made, topology, MB64), rel=0.001)
    assert float(long) == pytest.approx(made.bands["mscclpp-json"].least, rel=0.01)
    assert float(slower[0]) < FAR * 450


@pytest.mark.parametrize("wish", [{"exact": True}, {"trees": 1}, {"min_percent": 100}])
def test_wishes_mean_what_they_say(wish: Mapping[str, Any]) -> None:
    made = synthesize(machine("dgx-a100"), "broadcast", target="mscclpp", **wish)
    assert made.forest.height == 7
    assert not any("for speed" in note for note in made.notes)


def allreduce_over_a_mesh(**wish: Any) -> Any:
    return synthesize(
        machine("torus-2d"), "allreduce", target="rccl", formats=("msccl-xml",), **wish
    )


@pytest.mark.usefixtures("links_alone")
def test_an_allreduce_over_a_mesh_takes_rings_where_hops_cost_little() -> None:
    """Trees of four hops fill and drain; four rings reach the optimum, and never wait."""
    topology = machine("torus-2d")
    made, exact = allreduce_over_a_mesh(), allreduce_over_a_mesh(exact=True)
    assert (made.forest.height, exact.forest.height) == (15, 4)
    assert made.forest.bound == exact.forest.bound
    assert least(made, topology, MB64) > 1.01 * least(exact, topology, MB64)
    assert told(made)[0] == "4-rings"
    assert not any("rings" in note for note in exact.notes)


def test_rings_of_many_hops_are_no_start() -> None:
    """Their signals alone take longer than trees lose: no other start may be faster."""
    made = allreduce_over_a_mesh()
    assert made.forest.height == 4
    assert not any("for speed" in note for note in made.notes)


def test_rings_behind_a_switch_have_but_one_peer_to_sum() -> None:
    """Direct trees add up eleven parts with a limit on the peers of an operation: 84 %."""
    topology = machine("star gpus=12")
    made = synthesize(topology, "allreduce", target="mscclpp", formats=("mscclpp-json",))
    assert made.optimum.algbw == Fraction(300, 11)
    assert least(made, topology, 10**9) > 0.99 * 300 / 11
    assert least(made, topology, MB64) > 0.98 * 300 / 11
    assert made.needs["mscclpp-json"].thread_blocks < 24
    ours, short, _, theirs, slower, _, option = told(made)
    assert (ours, theirs, option) == ("ring", "1 tree per root", "--exact")
    assert float(slower) < FAR * 300 / 11 < float(short)


def test_phases_take_turns_around_a_broken_adapter() -> None:
    """The joint optimum is 195 unequal trees; 44 that a plan keeps busy reach more."""
    topology = edit(machine("mi300x boxes=2"), without=["box0/gpu0<->fabric"])
    made = synthesize(topology, "allreduce", target="rccl")
    turns = solver.solve(made.forest.graph, Collective.ALLREDUCE, trees=4, apart=True)
    assert made.optimum.algbw > made.forest.plain_algbw >= 0.99 * turns.plain_algbw
    assert len(made.forest.trees) < 100
    ours, short, long, _, *slower, _ = told(made)
    assert ours == "phases in turn over 4 trees per root"
    assert float(short) > max(175, 1.08 * float(slower[0]))
    assert float(long) > 1.05 * float(slower[1])
    assert float(long) == pytest.approx(least(made, topology, 10**9), rel=0.001)


def test_phases_take_turns_only_where_a_joint_optimum_is_more() -> None:
    sound = machine("dgx-a100 boxes=2")
    broken = edit(sound, without=["box0/gpu0<->fabric"])
    problems = [Problem.of(t, "allreduce", None, None, "none", None).plain for t in (sound, broken)]
    (whole, best), (problem, less) = [(p, p.optimum()) for p in problems]
    assert [*rivals.take_turns(whole, best, 0.1)] == []
    starts = [*rivals.take_turns(problem, less, 0.9)]
    assert {float(s.forest.plain_algbw / less.algbw) for s in starts} == {160 / 171.875}
    assert [*rivals.take_turns(problem, less, 0.94)] == []


def judged_first(topology: Topology, collective: str) -> tuple[Problem, Judged]:
    """The first choice's plan for RCCL, as it is."""
    problem = Problem.of(topology, collective, None, None, "none", None).plain
    forest = solver.solve(problem.graph, problem.collective, problem.root, name=problem.name)
    programs: Any = {"msccl-xml": lower(forest, RCCL)}
    targets: Any = {"msccl-xml": RCCL}
    best = problem.optimum().algbw
    return problem, rivals.judge(forest, programs, targets, best, problem.links)


def test_baselines_are_starts_where_they_may_be_faster() -> None:
    """Through two boxes: the adapters of a box are used once, and a ring has 15 hops."""
    problem, judged = judged_first(machine("dgx-a100 boxes=2"), "allgather")
    problem, best = replace(problem, name="name"), problem.optimum()
    starts = {start.name: start for start in rivals.others(problem, best, packed=False)}
    assert "multitree" not in starts
    assert "multitree" in {start.name for start in rivals.others(problem, best)}
    rings = starts["8-rings"]
    assert (rings.forest.plain_algbw, rings.forest.name) == (Fraction(640, 3), "name")
    assert (rings.forest.bound, rings.point) == (best.bound, None)
    most = judged.most_share(rivals.bound_of(rings.forest, problem.links))
    assert 0.5 < most < 0.6
    for factor in (0.999, 1.001):
        slow = replace(judged)
        slow.__dict__["share"] = most / GAIN * factor
        names = [start.name for _, start in rivals.promising([rings], slow, problem.links)]
        assert names == (["8-rings"] if factor < 1 else [])
    unequal = replace(problem, graph=replace(problem.graph, shares=(2, *[1] * 15)))
    assert [*rivals.others(unequal, best)] == []


def test_sums_in_given_shares_take_baselines_that_have_them() -> None:
    """Evenly over all ranks: rings have that, and trees from few roots do not."""
    problem = Problem.of(machine("dgx-a100"), "allreduce", None, None, "none", {"*": 1}).plain
    names = {start.name for start in rivals.others(problem, problem.optimum())}
    assert "ring" in names
    assert not names & {"tree", "double-tree", "blink"}


@pytest.mark.parametrize(
    ("name", "above"), [("fat-tree leaves=3", 1.2), ("dgx-a100 boxes=9", 1.08)]
)
def test_an_allgather_of_many_boxes_goes_round_their_rails(name: str, above: float) -> None:
    """A rank has one to send to in another box, so none of its connections waits for the adapter
    that another has: of the lowest optimum every rank has as many as there are boxes."""
    topology = machine(name)
    made = synthesize(topology, "allgather", target="rccl")
    lowest = synthesize(topology, "allgather", target="rccl", exact=True)
    assert told(made)[0] == "hierarchical, direct inside, ring between"
    assert made.forest.plain_algbw == lowest.forest.plain_algbw == made.optimum.algbw
    assert made.forest.height > lowest.forest.height
    assert least(made, topology, 10**9) > 0.95 * made.optimum.algbw
    assert least(made, topology, MB64) > above * least(lowest, topology, MB64)


def test_rounded_shares_go_in_few_transfers() -> None:
    """24 ranks and powers of two: 43 chunks a tree fill the lists of twice as many thread blocks,
    three at a time; eleven at a time a call of 64 MB takes half as long."""
    topology = machine("mi300x boxes=3")
    graph, links = CapacityGraph.from_topology(topology), topology.latencies()
    every = {f.name: f for f in by_name("hierarchical").forests(graph, Collective.ALLREDUCE)}
    hierarchy = every["hierarchical, direct inside, ring between"]
    least = Fraction(99, 100) * hierarchy.plain_algbw
    forest = round_forest(replace(hierarchy, name=topology.name), least, [TARGETS["msccl"]])
    assert forest is not None
    assert {tree.weight for tree in forest.trees} == {42, 43}
    first = lower(forest, TARGETS["msccl"])
    longer, _ = search(forest, TARGETS["msccl"], first, links=links)
    assert usage(first).thread_blocks > 2 * usage(longer).thread_blocks
    verify(longer)
    before, after = (
        [
            simulate.band(p, forest, size, links=links).share(forest.plain_algbw)
            for p in (first, longer)
        ]
        for size in (MB64, 10**9)
    )
    assert before[0] < 0.55
    assert before[1] > 0.9
    assert after[1] > after[0] > 0.95


@pytest.mark.parametrize("name", ["ring", "dgx1-v100", "torus-2d", "mi250", "joined"])
def test_no_ring_is_missed_for_narrow_links(name: str) -> None:
    """Rings that may be faster at their own rate are starts."""
    topology = joined_triangles() if name == "joined" else catalog.load(name)
    problem, judged = judged_first(topology, "allreduce")
    rings = by_name("rings").forests(problem.graph, problem.collective)
    bound = rivals.bound_of(rings[0], problem.links)
    slow = replace(judged)
    slow.__dict__["share"] = judged.most_share(bound) / GAIN * 0.999
    every = rivals.others(problem, problem.optimum(), packed=False)
    asked = [start.forest.trees for _, start in rivals.promising(every, slow, problem.links)]
    faster = [
        start.forest.trees
        for _, start in rivals.promising(
            [Start(forest, "rings") for forest in rivals.drop_equals(rings)], slow, problem.links
        )
    ]
    assert faster
    assert all(trees in asked for trees in faster)


def joined_triangles() -> Topology:
    """Two boxes whose rings are joined by a narrow cable: two rings, and what goes between."""
    ranks = [f"box{b}/gpu{k}" for b in range(2) for k in range(3)]
    pairs = [(a, z) for a in ranks for z in ranks if a != z and a[:4] == z[:4]]
    cable = [(ranks[0], ranks[3]), (ranks[3], ranks[0])]
    links = [Link(a, z, Fraction(50)) for a, z in pairs] + [
        Link(a, z, Fraction(1)) for a, z in cable
    ]
    return Topology("joined", {rank: Node("gpu") for rank in ranks}, tuple(links))


def test_starts_are_in_the_order_of_what_links_and_hops_allow() -> None:
    """A start that may be no faster is no start; of equals the one of fewer trees comes first."""
    topology = machine("dgx-a100")
    problem, judged = judged_first(topology, "broadcast")
    best, links = problem.optimum(), problem.links
    front = Front(problem.graph, problem.collective, problem.root, best)
    starts = [
        Start(solver.solve(problem.graph, problem.collective, problem.root, k), str(k), point)
        for k in (1, 2, 4, 8, 7)
        for point in (front.point(k),)
    ]
    fast = rivals.promising(starts, judged, links)
    assert [start.name for _, start in fast] == ["7", "4", "8", "2", "1"]
    for share, start in fast:
        rivals_bound = rivals.bound_of(start.forest, links)
        assert rivals_bound.hops == start.forest.height
        assert share == judged.most_share(rivals_bound) < 1
    nearly = replace(judged)
    nearly.__dict__["share"] = fast[1][0] / GAIN
    assert [start.name for _, start in rivals.promising(starts, nearly, links)] == ["7"]


@pytest.mark.parametrize(
    ("name", "collective"), [("torus-2d", "allreduce"), ("dgx-a100", "broadcast")]
)
def test_no_plan_is_faster_than_its_bound(name: str, collective: str) -> None:
    _, judged = judged_first(catalog.load(name), collective)
    ((judge, one),) = judged.plans.values()
    bound = rivals.bound_of(judge.forest, judge.links)
    assert all(judge.time(one, size) >= judge.least(bound, size) for size in judge.sizes)


def test_two_boxes_of_dies_take_fewer_trees_a_root() -> None:
    """13 trees a root reach the optimum of the links; 46 in all, of uneven weights, do better."""
    made = synthesize(
        machine("mi250 boxes=2"),
        "reduce-scatter",
        target="mscclpp",
        ranks=["box*/gpu[0-7]"],
    )
    band = made.bands["mscclpp-json"]
    assert made.optimum.trees_per_root == 13
    assert len(made.forest.trees) == 46
    assert made.needs["mscclpp-json"].thread_blocks < 30
    assert band.least >= 180


@dataclass(frozen=True)
class Played(Judged):
    """Plans that reach a share of the optimum, in so many thread blocks."""

    reached: float = 0.1
    number: int = 4

    share = property(lambda self: self.reached)  # type: ignore[assignment]
    slowest = property(lambda self: self.reached)
    blocks = property(lambda self: self.number)

    def algbw(self, size: int) -> float:
        return self.reached


def chooser(
    shares: Mapping[int, float], monkeypatch: pytest.MonkeyPatch, blocks: Mapping[int, int] = {}
) -> Chooser:
    """One whose forests of so many trees per root have plans that reach these shares."""
    given = rivals.judge

    def judge(forest: Forest, *rest: Any) -> Judged:
        judged, k = given(forest, *rest), forest.trees_per_root
        return Played(judged.plans, [], judged.best, 0.1, blocks.get(k, 4))

    def improve(plain: Played) -> Played:
        (one, _) = next(iter(plain.plans.values()))
        return replace(plain, reached=shares.get(one.forest.trees_per_root, 0.1))

    monkeypatch.setattr(rivals, "judge", judge)
    monkeypatch.setattr(rivals, "improve", improve)
    turns = iter(range(1000))
    monkeypatch.setattr(rivals, "shares", lambda _: next(turns))  # all the same here
    graph = named("ring gpus=5")
    collective = Collective.BROADCAST
    best = solver.optimum(graph, collective, 0)
    targets: Any = {"mscclpp-json": TARGETS["mscclpp"]}
    topology = machine("ring gpus=5")
    problem = Problem(graph, collective, 0, "ring", topology)
    return Chooser(problem, targets, Request(), best, Clock())


@pytest.mark.parametrize(
    ("shares", "taken"),
    [
        ({2: 0.92, 4: 1.0}, {2}),  # the first choice's plans are near the optimum
        ({2: 0.5, 4: 0.6, 8: 0.7}, {4, 8}),
        (dict.fromkeys(range(1, 65), 0.501) | {2: 0.5}, {2}),  # a little faster is not worth more
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
    [([0.3, 0.4, 0.5, 0.6], 4), ([0.3, 0.4, 0.35, 0.39], 4), ([0.3, 0.2, 0.1], 3)],
)
def test_more_are_tried_while_one_of_the_last_two_was_the_fastest_so_far(
    reached: list[float], tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    choosing = chooser({}, monkeypatch)
    seen: list[float] = []

    def improve(played: Judged) -> Judged:
        assert isinstance(played, Played)
        seen.append(reached[len(seen)])
        return replace(played, reached=seen[-1])

    monkeypatch.setattr(rivals, "improve", improve)
    choosing.choose()
    assert seen == reached[:tried]
    after = seen[reached.index(max(reached)) + 1 :]
    assert len(after) == STARTS or len(seen) == 4  # there are no more than three others


@pytest.mark.parametrize(("blocks", "taken"), [({}, 8), ({8: 8}, 4)])
def test_more_thread_blocks_have_to_gain_more(
    blocks: Mapping[int, int], taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight trees a root are 2 % faster than four; twice the thread blocks ask for 4."""
    shares = {2: 0.5, 4: 0.6, 8: 0.612}
    choosing = chooser(shares, monkeypatch, blocks)
    assert choosing.choose().forest.trees_per_root == taken


def test_the_same_trees_twice_are_no_other_start() -> None:
    """On a full mesh each other rank is a child of the root, in one tree or in seven alike."""
    graph = named("mi300x")
    one, *others = (
        rivals.shares(solver.solve(graph, Collective.REDUCE, 0, k)) for k in (7, 14, 28, 1)
    )
    assert [shares == one for shares in others] == [True, True, False]
