"""Alike ranks of broken fabrics: one flow of a quotient says what one for each rank does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from graphs import build, changed, clos, machine, named, planes, shuffled

from forestcoll import solver
from forestcoll.common.errors import ForestError
from forestcoll.graph.capacity_graph import CapacityGraph, is_balanced
from forestcoll.graph.kernel import _kernel
from forestcoll.graph.symmetry import quotient
from forestcoll.graph.symmetry.group import Image, link_images
from forestcoll.graph.symmetry.quotient import alike_ranks, find_rotations, fold
from forestcoll.program import Collective
from forestcoll.schedule.dual import check_dual
from forestcoll.schedule.group import scale
from forestcoll.solver import task
from forestcoll.solver.flows import joint
from forestcoll.solver.flows.folded import Folded

ALLGATHER = Collective.ALLGATHER
MACHINES = """
dgx-a100 boxes=5
dgx-h100 boxes=3
mi250 boxes=3
dgx1-v100 boxes=3
fat-tree leaves=3 hosts=4 gpus=2
fat-tree leaves=4 hosts=2 gpus=2 oversubscription=2
rail boxes=6 rails=4
rail boxes=5 spine=0
star gpus=9
torus-2d x=4 y=4
dragonfly groups=5 routers=4 gpus=2
gb200-nvl72 boxes=2
"""


def spoil(graph: CapacityGraph, dice: random.Random) -> CapacityGraph:
    """Up to four failures: links that are gone or slow, one way or both; now and then shares.

    Or a group of ranks, for whom the other GPUs relay.
    """
    units, number = list(graph.capacity), graph.numbers
    for _ in range(dice.randint(0, 4)):
        e, factor = dice.randrange(len(units)), dice.choice((0, 0, Fraction(1, 2), Fraction(1, 3)))
        back = number.get((graph.head[e], graph.tail[e]), e)
        for link in {e, back} if dice.random() < 0.6 else {e}:
            units[link] = int(units[link] * factor)
    graph = graph.keep([e for e, c in enumerate(units) if c], units)
    if dice.random() < 0.2:
        group = sorted(dice.sample(graph.ranks, len(graph.ranks) * 3 // 4))
        graph = replace(graph, ranks=tuple(group))
    if dice.random() < 0.2:
        graph = replace(graph, shares=tuple(dice.choice((1, 1, 1, 2, 3)) for _ in graph.ranks))
    return shuffled(graph, dice.randrange(99)) if dice.random() < 0.3 else graph


@pytest.mark.parametrize("words", MACHINES.strip().splitlines())
def test_one_flow_of_the_quotient_says_what_a_flow_for_each_rank_does(words: str) -> None:
    whole, alike = named(words), 0
    for seed in range(48):
        dice = random.Random(f"{words} {seed}")
        graph = spoil(whole, dice)
        links = (graph.n, graph.tail, graph.head, graph.capacity)
        for image in find_rotations(graph):
            link_images(graph, np.asarray(image), "a rotation")
        sinks = alike_ranks(graph)
        alike += len(sinks) < len(graph.ranks)
        leaving, held, nodes = fold(graph, sinks).least_cut()
        out, inside, _ = _kernel.best_ratio(*links, graph.ranks, graph.parts, graph.ranks)
        assert Fraction(leaving, held) == Fraction(out, inside), seed
        assert graph.leaving(frozenset(nodes)) == leaving * graph.unit
        assert graph.parts_in(frozenset(nodes)) == held
        root = dice.choice(graph.ranks)
        leaving, _, nodes = fold(graph, alike_ranks(graph, root)).least_cut(root)
        assert leaving == _kernel.least_flow(*links, root, graph.ranks)[0], seed
        assert graph.leaving(frozenset(nodes)) == leaving * graph.unit
        assert root in nodes
    assert alike > 3


def test_colours_alone_take_two_rings_of_three_for_one_of_six() -> None:
    """Only a map can say that ranks of one colour are alike: here they are not."""

    def links() -> Iterator[tuple[str, str, int]]:
        for box in range(401):
            for ring in [(0, 1, 2, 3, 4, 5)] if box else [(0, 1, 2), (3, 4, 5)]:
                for i, j in zip(ring, (*ring[1:], ring[0]), strict=True):
                    yield f"box{box}/gpu{i}", f"box{box}/gpu{j}", 4
            for i in range(6):
                yield f"box{box}/gpu{i}", "fabric", 1

    graph = build(links())
    colours = _kernel.refine_colours(
        graph.n, graph.tail, graph.head, graph.capacity, list(map(int, graph.gpu))
    )
    assert len({colours[v] for v in graph.ranks}) == 1
    one = graph.names.index("box1/gpu0")
    assert fold(graph, [one]).least_cut()[:2] == (6, 2400)  # what one rank a colour would say
    assert fold(graph, alike_ranks(graph)).least_cut()[:2] == (3, 2403)


def test_cells_that_are_not_even_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = named("dgx-a100 boxes=3")
    monkeypatch.setattr(quotient._kernel, "refine_colours", lambda *_: [*map(int, graph.gpu)])
    with pytest.raises(ForestError, match="whose links differ"):
        fold(graph, [])
    with pytest.raises(ForestError, match="of different kinds"):
        fold(graph, [graph.ranks[0]])


def test_maps_that_tear_links_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever colours say, a map counts only once every link is where it should be."""
    slow = named("dgx-a100 boxes=4").capacity
    graph = replace(named("dgx-a100 boxes=4"), capacity=(slow[0] - 1, *slow[1:]))
    right = {image[graph.ranks[0]] for image in find_rotations(graph)}
    find_rotations.cache_clear()
    monkeypatch.setattr(quotient._kernel, "refine_colours", lambda *given: [*map(int, graph.gpu)])
    guessed: tuple[Image, ...] = find_rotations(graph)
    find_rotations.cache_clear()
    for image in guessed:
        link_images(graph, np.asarray(image), "a rotation")
    assert right == {graph.ranks[0]}
    assert all(image[graph.ranks[0]] == graph.ranks[0] for image in guessed)


@pytest.mark.parametrize("alike", [True, False])
def test_a_quotient_is_made_where_ranks_are_alike(
    alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "ALIKE_FROM", 8)
    graph = named("dgx-a100 boxes=4")
    if not alike:
        units = [c + e for e, c in enumerate(graph.capacity)]
        graph = replace(graph, capacity=tuple(units))
    folded: list[int] = []
    monkeypatch.setattr(task, "fold", lambda g, sinks: folded.append(len(sinks)) or fold(g, sinks))
    task.least_cut(graph, None)
    assert folded == ([1] if alike else [])


def test_one_variable_for_all_links_that_are_alike_says_what_one_for_each_does() -> None:
    """One-way failures into switches: what these send has to be trimmed, with or without loss."""
    lossy = 0
    for words in MACHINES.strip().splitlines():
        whole = named(words)
        for seed in range(3):
            dice = random.Random(f"{words} {seed}")
            units = [6 * c for c in whole.capacity]
            into = [e for e, v in enumerate(whole.head) if not whole.gpu[v]]
            for e in dice.sample(into, min(len(into), dice.randint(1, 2))):
                units[e] = units[e] * dice.choice((1, 2, 3, 5)) // 6
            graph = whole.keep([e for e, c in enumerate(units) if c], units)
            if seed == 1:
                shares = tuple(dice.choice((1, 1, 2)) for _ in graph.ranks)
                graph = replace(graph, shares=shares)
            root = dice.randrange(len(graph.ranks)) if seed == 2 else None
            collective = ALLGATHER if root is None else Collective.BROADCAST
            if seed == 0 and dice.random() < 0.5:
                graph = graph.reverse()
            exact = task.analyse(graph, root)
            start = task.least_cut(graph, root)[1]
            algbw, bound, carried, common = Folded(graph, root).solve(start)
            assert algbw == exact.algbw, words
            assert bound.algbw == check_dual(graph, bound, collective, root) >= algbw
            assert min(bound.algbw, exact.bound.algbw) == exact.bound.algbw, words
            trimmed = scale(graph, carried, graph.unit / common)
            assert is_balanced(trimmed)
            rate, _ = task.least_cut(trimmed, root)
            assert rate * trimmed.unit * exact.roots == exact.algbw, words
            assert all(c <= common * most for c, most in zip(carried, graph.capacity, strict=True))
            lossy += exact.bound.method == "linear-program"
    assert lossy > 3


# The algbw of an allgather in GB/s with failures, at sizes that one flow a rank takes hours for.
LARGE = """
dgx-a100 boxes=2048: box0/gpu0-fabric=1/2: 384000/2047
dgx-a100 boxes=2048: box0/gpu0->fabric=1/2: 819175/4094
dgx-a100 boxes=2048: fabric->box0/gpu0=1/2: 384000/2047
fat-tree leaves=128 hosts=16 spines=16: leaf3->spine2: 819200/2047
dgx-a100 boxes=2048: box0/gpu0-fabric: 358400/2047
dgx-a100 boxes=2048: box0/gpu0-fabric box5/gpu3->fabric=1/2 box9/gpu1-fabric=1/3: 358400/2047
fat-tree leaves=128 hosts=16 spines=16: box0/gpu0-leaf0: 716800/2047
fat-tree leaves=128 hosts=16 spines=16: spine3: 819200/2047
rail boxes=2048: box0/gpu0-rail0=1/2: 768000/2047
clos: box0/gpu0-pod0-leaf0: 716800/2047
clos: pod1-spine3: 819200/2047
clos: box0/gpu0-pod0-leaf0 pod1-spine3 core2-3: 716800/2047
planes: plane0-leaf3: 716800/2047
planes: plane0-leaf3->plane0-spine1 plane2-spine0: 819200/2047
"""


@pytest.mark.parametrize("row", LARGE.strip().splitlines())
def test_the_optimum_of_thousands_of_ranks_with_failures(row: str) -> None:
    words, edits, algbw = row.split(": ")
    changes, (name, *settings) = edits.split(), words.split()
    sizes = {key: int(size) for key, size in (setting.split("=") for setting in settings)}
    made = {"clos": clos, "planes": planes}
    topology = changed(made[name](**sizes) if name in made else machine(words), changes)
    graph = CapacityGraph.from_topology(topology)
    assert solver.optimum(graph, ALLGATHER).algbw == Fraction(algbw)


JOINT = """
dgx-a100 boxes=3 -box0/gpu0-fabric=1/2
dgx-a100 boxes=4 -box1/gpu3-fabric=1/3
fat-tree leaves=3 hosts=2 gpus=2 -box0/gpu0-leaf0=1/2
rail boxes=4 rails=4 -box2/gpu1-rail1=1/2
rail boxes=5 rails=2 spine=0 -box0/gpu0-rail0=3/4
"""


@pytest.mark.parametrize("row", JOINT.strip().splitlines())
def test_the_joint_optimum_is_folded_by_rotations(
    row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = named(row).plain
    exact = joint.joint(graph)
    monkeypatch.setattr(joint, "ALIKE_FROM", 1)
    folded = joint.joint(graph)
    assert folded.algbw == exact.algbw
    assert check_dual(graph, folded.bound, Collective.ALLREDUCE) == folded.algbw


def test_the_joint_optimum_of_thousands_of_ranks_with_a_failed_port() -> None:
    """Boxes together bound it: each may take in 200 GB/s but one, for what all have to exchange."""
    graph = named("dgx-a100 boxes=512 -box0/gpu0-fabric=1/2")
    best = solver.optimum(graph, Collective.ALLREDUCE)
    assert best.algbw == best.bound.algbw == Fraction(512 * 200 * 2 - 25, 2 * 2 * 511)
    assert best.note == ""
