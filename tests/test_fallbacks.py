"""Every way out that the solver has when its first way fails, taken for certain, by name.

A spy counts what a function was asked and what it said, and lets it do its work: nothing that the
solver finds is made up here. Thresholds that only large machines reach are lowered, and where only
bad luck leads to a way out (a wrong proposal of the floating-point solver), the bad luck is made.
Each time the forest that comes out is counted anew and reaches its bound. The ways out inside the
kernel are in `test_fallbacks_kernel`.

Graphs are looked for rather than fixed where that can be: `first` takes the first of many on which
the way was taken, so that a better solver, which takes it less often, does not break the test.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from importlib import import_module
from itertools import islice, product
from typing import Any

import pytest
from graphs import able, build, dgx_a100, machine, mi250, named, perturbed, ring, shuffled, star
from random_graphs import judge as recount
from random_graphs import random_graph, starved_graph
from random_problems import Problem, feasible, proven, random_problem

from forestcoll import solver
from forestcoll.common.clock import Clock
from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.compile import together
from forestcoll.compile.problem import Problem as Asked
from forestcoll.compile.request import Request
from forestcoll.compile.synthesize import make, synthesize
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.kernel import _kernel
from forestcoll.graph.symmetry import automorphisms, components
from forestcoll.program import Collective
from forestcoll.schedule import certificate
from forestcoll.schedule.forest import Forest, scan
from forestcoll.schedule.group import Together
from forestcoll.solver import (
    allreduce,
    fixed_trees,
    front,
    multicast,
    packing,
    phase_packing,
    task,
)
from forestcoll.solver.compact import forests, rotation
from forestcoll.solver.flows import exact_lp, joint, model
from forestcoll.solver.groups import split

optimum = import_module("forestcoll.solver.optimum")  # the package has a function of that name
ALLGATHER, ALLREDUCE = Collective.ALLGATHER, Collective.ALLREDUCE


class Spy:
    """Calls of one function of a module, with what came of each: a value or the error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any], Any]] = []
        work = getattr(owner, name)

        def watched(*given: Any, **named: Any) -> Any:
            try:
                came = work(*given, **named)
            except Exception as error:
                self.calls.append((given, named, error))
                raise
            self.calls.append((given, named, came))
            return came

        monkeypatch.setattr(owner, name, watched)

    @property
    def results(self) -> list[Any]:
        return [came for *_, came in self.calls]

    @property
    def refused(self) -> int:
        """How often the answer was None."""
        return sum(came is None for came in self.results)

    @property
    def given(self) -> int:
        """How often there was an answer."""
        return sum(came is not None and not isinstance(came, Exception) for came in self.results)

    def told(self, name: str) -> list[Any]:
        """The argument of that name, of every call."""
        return [named.get(name) for _, named, _ in self.calls]


Watch = Callable[[Any, str], Spy]
Lie = Callable[[int], list[int]]


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return partial(Spy, monkeypatch)


@pytest.fixture(autouse=True)
def no_memory() -> Iterator[None]:
    """Answers of other tests are forgotten before, those under changed limits after."""

    def forget() -> None:
        for cache in (allreduce.plan, allreduce.fix_joint, automorphisms.find_symmetries,
                      components.find_structures, task.analyse):  # fmt: skip
            cache.cache_clear()

    forget()
    yield
    forget()


def optimal(
    graph: CapacityGraph,
    collective: Collective = ALLGATHER,
    root: int | None = None,
    forest: Forest | None = None,
) -> Forest:
    """The forest, counted anew and proven optimal by a bound that is counted anew as well."""
    made = forest or solver.solve(graph, collective, root)
    reached = recount(made if made.group is None else made.expand())
    assert made.bound is not None
    assert reached == made.bound.algbw
    assert certificate.check(made) == (reached, reached)
    if collective is not ALLREDUCE:
        assert proven(graph, made.bound, collective, root) == reached
    return made


def first(cases: Iterable[Any], way: Callable[[Any], Any], *spies: Spy) -> Any:
    """What `way` returns of the first case that takes it; spies count each case by itself."""
    for case in cases:
        for each in spies:
            each.calls.clear()
        answer = way(case)
        if answer is not None:
            return answer
    raise AssertionError("no case of them all took this way")


def problems(*wanted: str) -> Iterator[Problem]:
    """Random ones of one phase that can be solved, with all that is `wanted`."""
    for problem in map(random_problem, range(1500)):
        if problem.collective is ALLREDUCE or not problem.has >= set(wanted):
            continue
        if "able" not in problem.has and feasible(problem):
            yield problem


def starved() -> Iterator[Problem]:
    for seed in range(300):
        yield Problem(seed, starved_graph(seed), ALLGATHER, None, frozenset({"starved"}))


def solved(cases: Iterable[Problem], taken: Callable[[], bool], *spies: Spy) -> Forest:
    """The forest of the first problem on whose way `taken` holds, proven optimal."""

    def way(problem: Problem) -> Forest | None:
        asked = (problem.graph, problem.collective, problem.root)
        forest = solver.solve(*asked)
        return optimal(*asked, forest) if taken() else None

    forest: Forest = first(islice(cases, 400), way, *spies)
    return forest


def without(graph: CapacityGraph, node: int) -> CapacityGraph:
    """`graph` with one cable of `node` gone, both directions."""
    ends = [set(pair) for pair in graph.ends]
    gone = ends[graph.tail.index(node)]
    return graph.keep([e for e, pair in enumerate(ends) if pair != gone])


# ------------------------------------------------------------------------------ simple ways


def fat_tree(leaves: int) -> CapacityGraph:
    return named("fat-tree", leaves=leaves, hosts=2, gpus=4)


WAYS: dict[str, tuple[CapacityGraph, Collective, dict[Any, int], dict[Any, tuple[int, int]]]] = {
    "orbits do, and large fabrics are packed no other way": (
        fat_tree(4), ALLGATHER, {(phase_packing, "BOTH_WAYS"): 8},
        {(phase_packing, "pack_compact"): (1, 0), (phase_packing, "pack"): (0, 0)},
    ),
    "orbits do, and small fabrics are packed both ways": (
        fat_tree(2), ALLGATHER, {},
        {(phase_packing, "pack_compact"): (1, 0), (phase_packing, "pack"): (1, 0)},
    ),
    "orbits are refused, then the general way": (
        without(fat_tree(2), 0), ALLGATHER, {},
        {(phase_packing, "pack_compact"): (0, 1), (phase_packing, "pack"): (1, 0)},
    ),
    "the same trees reach the bound, and no program is solved": (
        dgx_a100(2), ALLREDUCE, {}, {(allreduce, "joint"): (0, 0)},
    ),
    "the same trees do not, then the joint program": (
        mi250(1, dies=8), ALLREDUCE, {}, {(allreduce, "joint"): (1, 0)},
    ),
}  # fmt: skip
"""Graph, collective, changed limits, and of functions whether they answer, and refuse."""


@pytest.mark.parametrize("way", WAYS)
def test_ways(way: str, monkeypatch: pytest.MonkeyPatch, spy: Watch) -> None:
    graph, collective, limits, counts = WAYS[way]
    for (module, name), value in limits.items():
        monkeypatch.setattr(module, name, value)
    spies = {asked: spy(*asked) for asked in counts}
    best = solver.optimum(graph, collective).algbw
    assert optimal(graph, collective).algbw == best
    assert {
        asked: (bool(each.given), bool(each.refused)) for asked, each in spies.items()
    } == counts


def test_large_fabrics_have_the_same_trees_and_say_so(
    monkeypatch: pytest.MonkeyPatch, spy: Watch
) -> None:
    monkeypatch.setattr(allreduce, "COMPACT_FROM", 7)
    joint, boxed = spy(allreduce, "joint"), spy(allreduce, "joint_of_boxes")
    best = solver.optimum(mi250(1, dies=8), ALLREDUCE)
    assert (best.algbw, best.bound.algbw, joint.calls, boxed.calls) == (100, 150, [], [])
    assert "not looked for beyond 7 ranks that are not alike" in best.note


# ------------------------------------------------------------------------------------ packing


class Packers:
    """What packing one graph asked of the kernel."""

    def __init__(self, spy: Watch) -> None:
        names = ("pack", "pack_nested", "remove_relays")
        self.pack, self.boxed, self.ways = self.all = [spy(_kernel, name) for name in names]

    @property
    def counts(self) -> tuple[list[bool], int, int]:
        """Of each attempt in layers, whether it did; forests by the exact rule, and of boxes."""
        layered = [came is not None for given, _, came in self.pack.calls if not given[3]]
        return layered, len(self.pack.calls) - len(layered), self.boxed.given


@pytest.fixture
def packers(spy: Watch) -> Packers:
    return Packers(spy)


@pytest.mark.parametrize(
    ("graph", "counts"),
    [
        pytest.param(dgx_a100(4), ([True], 0, 0), id="layers do"),
        pytest.param(mi250(1), ([False], 1, 0), id="one mesh without boxes: then the exact rule"),
    ],
)
def test_layers(packers: Packers, graph: CapacityGraph, counts: Any) -> None:
    optimal(graph)
    assert packers.counts == counts
    assert counts[1] or not packers.boxed.calls


def test_layers_fail_then_boxes_and_the_exact_rule_both(packers: Packers) -> None:
    """Small: both are tried and the lower trees are taken."""
    forest = solver.solve(mi250(2), ALLGATHER, trees=1)
    assert packers.counts == ([False], 1, 1)
    heights = [packers.boxed.results[0][0]]
    heights += [came[0] for given, _, came in packers.pack.calls if given[3]]
    assert forest.height <= min(heights)
    assert recount(forest) == certificate.check(forest)[0] == 320


def test_layers_fail_then_boxes_alone_where_ranks_are_many(
    packers: Packers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forestcoll.solver.phase_packing.suits", lambda graph, root: False)
    graph = mi250(6)
    assert len(graph.ranks) > packing.EXACT_TOO
    optimal(graph)
    assert packers.counts == ([False], 0, 1)


def test_layers_and_boxes_fail_then_the_exact_rule(packers: Packers) -> None:
    def taken() -> bool:
        layered, exact, _ = packers.counts
        return True not in layered and packers.boxed.refused > 0 and exact > 0

    assert solved(problems("boxes"), taken, *packers.all).height >= 1


def test_links_between_switches_lead_astray_and_the_way_without_them_does(
    packers: Packers,
) -> None:
    solved(problems("switched"), lambda: packers.counts[0] == [False, True], *packers.all)
    assert [given[7] for given, *_ in packers.ways.calls] == [True, False]


# ----------------------------------------------------------------- symmetry, compact forests


def test_no_symmetry_then_no_compact_forest_but_a_whole_one(spy: Watch) -> None:
    graph = without(dgx_a100(4), 0)
    graph = replace(graph, capacity=tuple(c + e // 2 for e, c in enumerate(graph.capacity)))
    tried = spy(forests, "pack_around")
    assert components.find_structures(graph) == ()
    assert solver.solve_compact(graph, ALLGATHER) is None
    assert tried.refused == len(tried.calls) == 1
    assert optimal(graph).group is None


def test_compact_is_asked_for_and_cannot_be(spy: Watch) -> None:
    """One MI250 box has a mirror, but no levels: the pipeline writes all trees and says so."""
    levels, compact = spy(forests, "pack_by_hops"), spy(forests, "pack_compact")
    result = synthesize("mi250", "allgather", compact=True, formats=("forest",))
    assert compact.refused >= 1
    assert levels.refused >= 1
    assert "no compact forest was found here: all trees are written" in result.notes
    optimal(result.forest.graph, forest=result.forest)


MACHINES = [
    *("fat-tree leaves=4 hosts=2 oversubscription=2", "fat-tree leaves=4 hosts=4"),
    *("fat-tree leaves=2 hosts=2 gpus=4 oversubscription=3", "rail boxes=3 rails=2"),
    *("rail boxes=4 rails=4 oversubscription=2", "dgx1-v100 boxes=4", "dgx1-v100 boxes=2"),
    *("mi300x boxes=8", "mi250 boxes=2", "mi250 boxes=8", "dragonfly"),
]


def test_parts_are_not_folded_then_every_rank_of_a_part_stands_for_itself(spy: Watch) -> None:
    """No trees of one representative fill the links evenly: all ranks of a part are taken."""
    folded = spy(rotation, "choose_units")

    def way(machine: str) -> Forest | None:
        graph = named(machine)
        forest = solver.solve_compact(graph, ALLGATHER)
        taken = forest is not None and folded.refused and not folded.given
        return optimal(graph, forest=forest) if taken else None

    forest = first(MACHINES, way, folded)
    roots = {tree.root for tree in forest.trees}
    assert len(roots) * forest.images == forest.n
    assert len(roots) > 1


def uneven_boxes(seed: int) -> CapacityGraph:
    """Equal boxes whose GPUs differ: links inside and to the outside at random."""
    rng = random.Random(seed)
    gpus, boxes = rng.randint(2, 4), rng.randint(2, 4)
    inside = [(i, j, rng.choice((1, 2, 3, 5))) for i in range(gpus) for j in range(i)]
    up = [rng.choice((1, 2, 3, 5)) for _ in range(gpus)]
    links = []
    for b in range(boxes):
        links += [(f"box{b}/gpu{i}", f"box{b}/gpu{j}", c) for i, j, c in inside]
        links += [(f"box{b}/gpu{i}", "fabric", c) for i, c in enumerate(up)]
    return build(links)


def test_ranks_cannot_send_alike_then_as_their_links_allow(spy: Watch) -> None:
    """The first division between parts fails, a looser one does."""
    attempts = spy(rotation._Around, "plan")

    def way(graph: CapacityGraph) -> Forest | None:
        forest = solver.solve_compact(graph, ALLGATHER)
        several = len({tries[0] for (*_, tries), *_ in attempts.calls if len(tries) == 1}) > 1
        return optimal(graph, forest=forest) if forest is not None and several else None

    first(map(uneven_boxes, range(60)), way, attempts)


def rings(seed: int) -> CapacityGraph:
    """Three boxes of four GPUs in a ring, shuffled: nothing tells which GPU is which of another."""
    gpus = [(f"box{b}/gpu{i}", f"box{b}/gpu{(i + 1) % 4}") for b in range(3) for i in range(4)]
    return shuffled(build([link for u, v in gpus for link in ((u, v, 3), (u, "fabric", 1))]), seed)


@pytest.mark.parametrize("ends", [False, True])
def test_parts_do_not_match_in_order_then_by_search_if_it_comes_to_an_end(
    ends: bool, monkeypatch: pytest.MonkeyPatch, spy: Watch
) -> None:
    if ends:
        monkeypatch.setattr(components, "ALIGNMENTS", 0)
    search = spy(components, "_match_by_search")

    def way(graph: CapacityGraph) -> list[int] | None:
        parts = [len(each.members) for each in components.find_components(graph)]
        if ends == bool(parts) or not (search.refused if ends else search.given):
            return None
        optimal(graph)
        return parts

    assert first(map(rings, range(20)), way, search)[:1] == ([] if ends else [3])


def test_torus_levels_do_where_symmetry_moves_ranks_freely(spy: Watch) -> None:
    levels = spy(forests, "pack_by_hops")
    graph = named("torus-3d", x=4, y=4, z=4)
    forest = solver.solve_compact(graph, ALLGATHER)
    assert levels.given == 1
    assert forest is not None
    optimal(graph, forest=forest)


# -------------------------------------------------------------------------- unbalanced switches


def test_too_much_is_trimmed_and_no_program_is_needed(spy: Watch) -> None:
    trim, program = spy(_kernel, "trim"), spy(task, "_balance")
    solved(problems("unbalanced"), lambda: trim.given > 0 and not program.calls, trim, program)


def test_trimming_fails_then_the_program_that_balances(spy: Watch) -> None:
    trim, program = spy(_kernel, "trim"), spy(task, "Model")
    solved(starved(), lambda: trim.refused > 0 and program.given > 0, trim, program)


def test_a_copying_switch_is_left_out_of_the_dual(spy: Watch) -> None:
    """Its potential would forbid copies: the program is solved again for a bound that has none."""
    program = spy(task.Model, "bound")

    def way(problem: Problem) -> CapacityGraph | None:
        graph = able(problem.graph, adds=False)
        solver.optimum(graph, ALLGATHER)
        return graph if len(program.calls) == 2 else None

    graph = first(starved(), way, program)
    best = solver.optimum(graph, ALLGATHER)
    assert proven(graph, best.bound, ALLGATHER, None) == best.bound.algbw > best.algbw
    plain = solver.solve(replace(graph, multicast=(False,) * graph.n), ALLGATHER)
    assert recount(plain) == best.algbw


# ---------------------------------------------------------------------------- linear programs


@pytest.fixture
def lie(monkeypatch: pytest.MonkeyPatch) -> Lie:
    """Wrong proposals of the floating-point solver, as many as are asked for, counted."""

    def lies(most: int) -> list[int]:
        honest, told = exact_lp.propose, [0]

        def propose(program: exact_lp.Program, scale: float, options: str) -> exact_lp.Basis:
            told[0] += told[0] <= most
            return ([], [], []) if told[0] <= most else honest(program, scale, options)

        monkeypatch.setattr(exact_lp, "propose", propose)
        return told

    return lies


@pytest.fixture
def unsure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `cutting` end with a basis that proves nothing."""
    lazy: set[int] = set()
    solve, basis = exact_lp.Loose.solve, exact_lp.Loose.basis

    def noted(loose: exact_lp.Loose) -> exact_lp.Values:
        lazy.add(id(loose))
        return solve(loose)

    def empty(loose: exact_lp.Loose) -> exact_lp.Basis:
        return ([], [], []) if id(loose) in lazy else basis(loose)

    monkeypatch.setattr(exact_lp.Loose, "solve", noted)
    monkeypatch.setattr(exact_lp.Loose, "basis", empty)


@pytest.fixture
def needs_a_program() -> CapacityGraph:
    """A starved graph whose optimum takes a linear program, which is to be solved again."""

    def way(problem: Problem) -> CapacityGraph | None:
        best = solver.optimum(problem.graph, ALLGATHER)
        return problem.graph if best.bound.method == "linear-program" else None

    graph: CapacityGraph = first(starved(), way)
    task.analyse.cache_clear()
    return graph


WIDE = star(80, *[10] * 8)


@pytest.mark.usefixtures("unsure")
@pytest.mark.parametrize("lies", [1, 10**6])
def test_a_proposal_cannot_be_proven_then_the_next_or_the_exact_simplex(
    lies: int, needs_a_program: CapacityGraph, lie: Lie, spy: Watch
) -> None:
    told, proofs, slow = lie(lies), spy(exact_lp, "prove"), spy(exact_lp, "simplex")
    optimal(needs_a_program)
    assert told[0] >= 1
    if lies == 1:
        assert proofs.refused >= 2  # the lazy rounds' basis, and the lie
        assert (proofs.given >= 1, slow.calls) == (True, [])
    else:
        assert (proofs.given, slow.given >= 1) == (0, True)


@pytest.mark.usefixtures("unsure")
@pytest.mark.parametrize(("lies", "way"), [(0, "solve"), (10**6, "simplex")])
def test_lazy_cuts_end_unproven_then_proposals_afresh_or_the_exact_simplex(
    lies: int, way: str, lie: Lie, spy: Watch
) -> None:
    lie(lies)
    taken = spy(exact_lp, way)
    assert optimal(WIDE, ALLREDUCE).algbw == 10
    assert taken.given >= 1


@pytest.mark.usefixtures("unsure")
def test_no_joint_optimum_can_be_proven_then_the_same_trees(
    monkeypatch: pytest.MonkeyPatch, lie: Lie, spy: Watch
) -> None:
    """Proven by its own bound, and the note says what is missing."""
    lie(10**6)
    monkeypatch.setattr(exact_lp, "SIMPLEX_ROWS", 0)
    failed = spy(allreduce, "joint")
    best = solver.optimum(WIDE, ALLREDUCE)
    assert isinstance(failed.results[0], UnsupportedError)
    assert "no joint optimum: no optimum of the linear program can be proven" in best.note
    forest = solver.solve(WIDE, ALLREDUCE)
    assert best.algbw == Fraction(45, 8) < best.bound.algbw
    assert best.algbw <= recount(forest) <= best.bound.algbw  # its trees may happen to be better
    assert certificate.check(forest) == (recount(forest), best.bound.algbw)


# ---------------------------------------------------------------------------------- allreduce


def test_the_joint_program_wins_nothing_then_the_same_trees(spy: Watch) -> None:
    """The bound of cuts and partitions was too high: the program proves that there is no more."""
    program = spy(allreduce, "joint")

    def way(seed: int) -> allreduce.Plan | None:
        plan = allreduce.plan(random_graph(seed))
        if not program.given or plan.joint is not None:
            return None
        optimal(random_graph(seed), ALLREDUCE)
        return plan

    plan = first((258, 360, *range(400)), way, program)
    assert plan.same_algbw == plan.bound.algbw


def test_orbits_of_the_joint_program_are_not_found_then_the_whole_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = mi250(2, dies=8)

    def size() -> int:
        automorphisms.find_symmetries.cache_clear()
        return joint.joint_model(graph, automorphisms.find_symmetries(graph), equal=False).size

    folded = size()
    monkeypatch.setattr(automorphisms, "WORK", 0)
    assert size() > 2 * folded
    assert [s for s in automorphisms.find_symmetries(graph) if not s.turned] == []
    assert optimal(graph, ALLREDUCE).algbw == 128


def test_the_joint_program_is_too_large_then_the_same_trees(
    monkeypatch: pytest.MonkeyPatch, spy: Watch
) -> None:
    monkeypatch.setattr(joint, "VARIABLES", 5)
    failed = spy(allreduce, "joint")
    forest = solver.solve(mi250(1, dies=8), ALLREDUCE)
    assert isinstance(failed.results[0], UnsupportedError)
    assert recount(forest) == certificate.check(forest)[0] == 100


def test_the_dual_forbids_copies_then_one_that_allows_them(spy: Watch) -> None:
    models = spy(model, "Model")

    def way(seed: int) -> CapacityGraph | None:
        graph = able(random_graph(seed))
        allreduce.plan(graph)
        return graph if any(models.told("able")) else None

    graph = first(range(200), way, models)
    plan, forest = allreduce.plan(graph), solver.solve(graph, ALLREDUCE)
    algbw, bound = certificate.check(forest)
    assert bound == plan.bound.algbw >= algbw >= plan.algbw
    assert recount(forest) == algbw


def test_many_joint_trees_then_fewer_that_do(spy: Watch) -> None:
    fewer = spy(allreduce, "fit_joint")

    def way(seed: int) -> Forest | None:
        graph = random_graph(seed)
        plan = allreduce.plan(graph)
        if plan.joint is None or not fewer.given:
            return None
        assert max(plan.joint.supply) < max(joint.joint(graph).supply)
        return optimal(graph, ALLREDUCE)

    first(range(300), way, fewer)


def test_few_joint_trees_are_not_whole_at_first_then_another_vertex_or_time(spy: Watch) -> None:
    whole = spy(joint, "_solve_whole")

    def way(seed: int) -> Forest | None:
        graph = random_graph(seed)
        plan = allreduce.plan(graph)
        if plan.joint is None:
            return None
        whole.calls.clear()
        fixed = allreduce.fix_joint(graph, 2)
        if fixed is None or not whole.refused or not whole.given:
            return None
        forest = solver.solve(graph, ALLREDUCE, trees=2)
        assert recount(forest) >= fixed.algbw
        assert certificate.check(forest)[0] <= plan.bound.algbw
        return forest

    first(range(300), way)


# --------------------------------------------------------------------- fixed trees, the front


def test_trimming_fails_at_the_least_time_then_a_little_more_does(spy: Watch) -> None:
    trimmed = spy(fixed_trees, "_trim")

    def way(asked: tuple[int, int]) -> Forest | None:
        forest = solver.solve(random_graph(asked[0], "asymmetric"), ALLGATHER, trees=asked[1])
        assert forest.trees_per_root == asked[1]
        return forest if trimmed.refused and trimmed.given else None

    forest = first(product(range(600), (1, 2)), way, trimmed)
    assert recount(forest) == certificate.check(forest)[0]


def test_the_optimum_has_too_many_trees_then_the_fewest_at_99_percent(spy: Watch) -> None:
    graph = perturbed(named("dgx-a100", boxes=2), 1)
    search = spy(front.Front, "reaching")
    request = Request(target="rccl", formats=("forest", "msccl-xml"), min_percent=99)
    topology = machine("dgx-a100 boxes=2")
    result = make(replace(Asked.of(topology, "allgather"), graph=graph), request, Clock())
    assert len(search.calls) >= 1
    best = solver.optimum(graph, ALLGATHER)
    assert best.trees_per_root > 1000
    assert Fraction(99, 100) <= recount(result.forest) / best.algbw < 1
    assert any("of the optimum, which takes" in note for note in result.notes)
    fewest = front.Front(graph, ALLGATHER).fewest(Fraction(99, 100)).trees
    assert result.forest.trees_per_root == 1 << (fewest - 1).bit_length()  # rounded to 2^m parts


def test_a_plan_does_not_fit_the_narrowest_runtime_then_the_next(spy: Watch) -> None:
    """65 thread blocks of one rank: one more than RCCL holds."""
    from forestcoll.compile import choose

    tried = spy(choose.Chooser, "choose")
    topology = machine("star gpus=65")
    result = synthesize(topology, "allgather", formats=("forest", "msccl-xml"), instances=1)
    assert [isinstance(came, PlanError) for came in tried.results] == [True, False]
    (note,) = [note for note in result.notes if "the MSCCL XML is for msccl only" in note]
    assert "rccl holds 64" in note
    assert result.forest.algbw == result.optimum.algbw
    optimal(result.forest.graph, forest=result.forest)


# ------------------------------------------------------------------ copies, groups, large numbers


def test_a_copying_switch_is_out_of_reach_then_plain_trees(spy: Watch) -> None:
    links = [("a", "b", 1), ("b", "c", 1), ("c", "a", 1), ("w", "a", 1)]
    graph = able(build(links, both=False, switches="w"), adds=False)
    tried = spy(multicast, "_task")
    assert multicast.forest(graph, ALLGATHER) is None
    assert tried.refused == 1
    forest = solver.solve(graph, ALLGATHER)
    assert recount(forest) == certificate.check(forest)[0] == Fraction(3, 2)


def test_equal_parts_are_slower_in_the_fabric_then_parts_that_differ(spy: Watch) -> None:
    models = spy(multicast, "Model")

    def way(seed: int) -> Forest | None:
        graph = random_graph(seed)
        if graph.n > 9 or all(graph.gpu):
            return None
        forest = multicast.forest(able(graph), ALLREDUCE)
        return forest if models.told("equal") == [True, False] else None

    forest = first(range(200), way, models)
    algbw, bound = certificate.check(forest)
    assert recount(forest) == forest.algbw == algbw <= bound


def halves() -> Together:
    """Both halves of two boxes at once."""
    topology = machine("dgx-a100 boxes=2")
    members = (("box*/gpu[0-3]",), ("box*/gpu[4-7]",))
    asked = together.problem(topology, "allgather", members)
    return together.synthesize(asked, formats=("forest",)).done


@pytest.mark.parametrize("limit", ["LINKS", "VARIABLES"])
def test_groups_are_too_large_then_links_in_equal_parts(
    limit: str, monkeypatch: pytest.MonkeyPatch, spy: Watch
) -> None:
    exact = halves()
    monkeypatch.setattr(split, limit, 1)
    equal = spy(split, "split_equally")
    coarse = halves()
    assert equal.given == 1
    assert coarse.algbw <= exact.algbw == exact.bound.algbw
    assert [recount(forest) for forest in coarse.forests] == [coarse.algbw] * 2


def test_loads_beyond_64_bits_are_counted_in_python() -> None:
    forest = solver.solve(ring(3), ALLGATHER)
    trees = tuple(replace(tree, weight=tree.weight << 63) for tree in forest.trees)
    heavy = replace(forest, trees=trees, total=forest.total << 63)
    assert scan(heavy.graph, heavy.trees)[2] is None
    assert heavy.loads() == [load << 63 for load in forest.loads()]
    assert recount(heavy) == heavy.algbw == forest.algbw == certificate.check(heavy)[0]
