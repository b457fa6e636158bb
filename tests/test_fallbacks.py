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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
from graphs import able, build, dgx_a100, mi250, named, perturbed, ring, shuffled, star
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
from forestcoll.schedule.forest import Forest
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
from forestcoll.topology import catalog

optimum = import_module("forestcoll.solver.optimum")  # the package has a function of that name
ALLGATHER, ALLREDUCE = Collective.ALLGATHER, Collective.ALLREDUCE


class Spy:
    """Calls of one function of a module, with what came of each: a value or the error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> None:
        self.calls: list[tuple[tuple[Any, ...], Any]] = []
        work = getattr(module, name)

        def watched(*given: Any, **named: Any) -> Any:
            try:
                came = work(*given, **named)
            except Exception as error:
                self.calls.append((given, error))
                raise
            self.calls.append((given, came))
            return came

        monkeypatch.setattr(module, name, watched)

    def forget(self) -> None:
        self.calls.clear()

    @property
    def results(self) -> list[Any]:
        return [came for _, came in self.calls]

    @property
    def refused(self) -> int:
        """How often the answer was None."""
        return sum(came is None for came in self.results)

    @property
    def given(self) -> int:
        """How often there was an answer."""
        return sum(came is not None and not isinstance(came, Exception) for came in self.results)


@pytest.fixture(autouse=True)
def no_memory() -> Iterator[None]:
    """Answers of other tests are forgotten before, those under changed limits after."""
    caches = (
        allreduce.plan,
        allreduce.fix_joint,
        automorphisms.find_symmetries,
        components.find_structures,
        task.analyse,
    )
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


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


def problems(count: int = 1500, *wanted: str) -> Iterator[Problem]:
    """Random ones of one phase that can be solved, with all that is `wanted`."""
    for seed in range(count):
        problem = random_problem(seed)
        if problem.collective is ALLREDUCE or not problem.has >= set(wanted):
            continue
        if "able" not in problem.has and feasible(problem):
            yield problem


def first(
    problems: Iterable[Problem], taken: Callable[[], bool], spies: Sequence[Spy], most: int = 400
) -> tuple[Problem, Forest]:
    """The first problem on whose way `taken` holds, and its forest, proven optimal."""
    for problem, _ in zip(problems, range(most), strict=False):
        for spy in spies:
            spy.forget()
        forest = solver.solve(problem.graph, problem.collective, problem.root)
        if taken():
            return problem, optimal(problem.graph, problem.collective, problem.root, forest)
    raise AssertionError("no problem of them all took this way")


class Packers:
    """What packing one graph asked of the kernel."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pack = Spy(monkeypatch, _kernel, "pack")
        self.boxed = Spy(monkeypatch, _kernel, "pack_nested")
        self.ways = Spy(monkeypatch, _kernel, "remove_relays")
        self.all = (self.pack, self.boxed, self.ways)

    def forget(self) -> None:
        for spy in self.all:
            spy.forget()

    @property
    def layered(self) -> list[bool]:
        """Of each attempt in layers, whether it did."""
        return [came is not None for given, came in self.pack.calls if not given[3]]

    @property
    def exact(self) -> int:
        """Forests packed by the exact rule."""
        return sum(given[3] for given, _ in self.pack.calls)


@pytest.fixture
def packers(monkeypatch: pytest.MonkeyPatch) -> Packers:
    return Packers(monkeypatch)


# ------------------------------------------------------------------------------------ packing


def test_layers_do_and_nothing_else_is_tried(packers: Packers) -> None:
    forest = optimal(dgx_a100(4))
    assert (packers.layered, packers.exact, packers.boxed.calls) == ([True], 0, [])
    assert forest.height == 2


def test_layers_fail_then_boxes_and_the_exact_rule_both(packers: Packers) -> None:
    """Small: both are tried and the lower trees are taken."""
    forest = solver.solve(mi250(2), ALLGATHER, trees=1)
    assert packers.layered == [False]
    assert packers.boxed.given == 1
    assert packers.exact == 1
    heights = [packers.boxed.results[0][0]]
    heights += [came[0] for given, came in packers.pack.calls if given[3]]
    assert forest.height <= min(heights)
    assert recount(forest) == certificate.check(forest)[0] == 320


def test_layers_fail_then_boxes_alone_where_ranks_are_many(
    packers: Packers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forestcoll.solver.phase_packing.suits", lambda graph, root: False)
    graph = mi250(6)
    assert len(graph.ranks) > packing.EXACT_TOO
    optimal(graph)
    assert packers.layered == [False]
    assert packers.boxed.given == 1
    assert packers.exact == 0


def test_layers_and_boxes_fail_then_the_exact_rule(packers: Packers) -> None:
    _, forest = first(
        problems(1500, "boxes"),
        lambda: True not in packers.layered and packers.boxed.refused > 0 and packers.exact > 0,
        packers.all,
    )
    assert forest.height >= 1


def test_one_mesh_without_boxes_goes_from_layers_to_the_exact_rule(packers: Packers) -> None:
    optimal(mi250(1))
    assert packers.layered == [False]
    assert packers.boxed.given == 0
    assert packers.exact == 1


def test_links_between_switches_lead_astray_and_the_way_without_them_does(
    packers: Packers,
) -> None:
    first(problems(1500, "switched"), lambda: packers.layered == [False, True], packers.all)
    assert [given[7] for given, _ in packers.ways.calls] == [True, False]


# ----------------------------------------------------------------- symmetry, compact forests


def test_orbits_do_and_large_fabrics_are_packed_no_other_way(
    monkeypatch: pytest.MonkeyPatch, packers: Packers
) -> None:
    monkeypatch.setattr(phase_packing, "BOTH_WAYS", 8)
    regular = Spy(monkeypatch, phase_packing, "pack_compact")
    general = Spy(monkeypatch, phase_packing, "pack")
    optimal(named("fat-tree", leaves=4, hosts=2, gpus=4))
    assert (regular.given, general.given) == (1, 0)


def test_orbits_do_and_small_fabrics_are_packed_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    regular = Spy(monkeypatch, phase_packing, "pack_compact")
    general = Spy(monkeypatch, phase_packing, "pack")
    optimal(named("fat-tree", leaves=2, hosts=2, gpus=4))
    assert (regular.given, general.given) == (1, 1)


def test_orbits_are_refused_then_the_general_way(monkeypatch: pytest.MonkeyPatch) -> None:
    regular = Spy(monkeypatch, phase_packing, "pack_compact")
    general = Spy(monkeypatch, phase_packing, "pack")
    whole = named("fat-tree", leaves=2, hosts=2, gpus=4)
    optimal(without(whole, 0))
    assert (regular.refused, general.given) == (1, 1)


def without(graph: CapacityGraph, node: int) -> CapacityGraph:
    """`graph` with one cable of `node` gone, both directions."""
    e = graph.tail.index(node)
    gone = {(graph.tail[e], graph.head[e]), (graph.head[e], graph.tail[e])}
    ends = graph.ends
    kept = [e for e, pair in enumerate(ends) if pair not in gone]
    return graph.keep(kept)


def test_no_symmetry_then_no_compact_forest_but_a_whole_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = without(dgx_a100(4), 0)
    tried = Spy(monkeypatch, forests, "pack_compact")
    assert components.find_structures(graph) == ()
    assert solver.solve_compact(graph, ALLGATHER) is None
    assert tried.calls == []
    assert optimal(graph).group is None


def test_compact_is_asked_for_and_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """One MI250 box has a mirror, but no levels: the pipeline writes all trees and says so."""
    levels = Spy(monkeypatch, forests, "pack_by_hops")
    compact = Spy(monkeypatch, forests, "pack_compact")
    topology = catalog.load("mi250")
    result = synthesize(topology, "allgather", compact=True, formats=("forest",))
    assert compact.refused >= 1
    assert levels.refused >= 1
    assert "no compact forest was found here: all trees are written" in result.notes
    optimal(result.forest.graph, forest=result.forest)


MACHINES: list[tuple[str, dict[str, int]]] = [
    ("fat-tree", {"leaves": 4, "hosts": 2, "oversubscription": 2}),
    ("fat-tree", {"leaves": 4, "hosts": 4}),
    ("fat-tree", {"leaves": 2, "hosts": 2, "gpus": 4, "oversubscription": 3}),
    ("rail", {"boxes": 4, "rails": 4, "oversubscription": 2}),
    ("rail", {"boxes": 3, "rails": 2}),
    ("dgx1-v100", {"boxes": 4}),
    ("dgx1-v100", {"boxes": 2}),
    ("mi300x", {"boxes": 8}),
    ("mi250", {"boxes": 2}),
    ("mi250", {"boxes": 8}),
    ("dragonfly", {}),
]


def test_parts_are_not_folded_then_every_rank_of_a_part_stands_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No trees of one representative fill the links evenly: all ranks of a part are taken."""
    folded = Spy(monkeypatch, rotation, "choose_units")
    for name, settings in MACHINES:
        folded.forget()
        graph = named(name, **settings)
        forest = solver.solve_compact(graph, ALLGATHER)
        if forest is not None and folded.refused and not folded.given:
            roots = {tree.root for tree in forest.trees}
            assert len(roots) * forest.images == len(graph.ranks)
            assert len(roots) > 1
            optimal(graph, forest=forest)
            return
    raise AssertionError("no machine took this way")


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


def test_ranks_cannot_send_alike_then_as_their_links_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first division between parts fails, a looser one does."""
    attempts: list[tuple[int, int]] = []
    routes = rotation._Scheme.routes

    def watched(scheme: rotation._Scheme, most_out: int, most_in: int) -> Any:
        attempts.append((most_out, most_in))
        return routes(scheme, most_out, most_in)

    monkeypatch.setattr(rotation._Scheme, "routes", watched)
    for seed in range(60):
        attempts.clear()
        graph = uneven_boxes(seed)
        forest = solver.solve_compact(graph, ALLGATHER)
        if forest is not None and len(set(attempts)) > 1:
            optimal(graph, forest=forest)
            return
    raise AssertionError("no graph took this way")


def rings(boxes: int) -> CapacityGraph:
    """Boxes of four GPUs in a ring: nothing tells which GPU of one is which of another."""
    links = [
        (f"box{b}/gpu{i}", f"box{b}/gpu{(i + 1) % 4}", 3) for b in range(boxes) for i in range(4)
    ]
    return build(links + [(f"box{b}/gpu{i}", "fabric", 1) for b in range(boxes) for i in range(4)])


def test_parts_do_not_match_in_order_then_by_search(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Spy(monkeypatch, components, "_match_by_search")
    for seed in range(20):
        search.forget()
        graph = shuffled(rings(3), seed)
        found = list(components.find_components(graph))
        if search.given and found:
            assert len(found[0].members) == 3
            optimal(graph)
            return
    raise AssertionError("no order of the nodes took this way")


def test_the_search_for_matching_parts_ends_and_the_general_way_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(components, "ALIGNMENTS", 0)
    search = Spy(monkeypatch, components, "_match_by_search")
    for seed in range(20):
        search.forget()
        graph = shuffled(rings(3), seed)
        if not list(components.find_components(graph)):
            assert search.refused
            optimal(graph)
            return
    raise AssertionError("no order of the nodes took this way")


def test_many_ranks_are_alike_and_one_flow_does_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "ALIKE_FROM", 8)
    cuts = Spy(monkeypatch, _kernel, "best_ratio")
    assert optimal(dgx_a100(4)).algbw == Fraction(800, 3)
    assert [len(call[0][6]) for call in cuts.calls] == [1] * len(cuts.calls)


def test_many_ranks_and_none_alike_then_a_flow_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "ALIKE_FROM", 8)
    cuts = Spy(monkeypatch, _kernel, "best_ratio")
    graph = without(dgx_a100(4), 0)
    optimal(graph)
    assert list(cuts.calls[0][0][6]) == list(graph.ranks)


# -------------------------------------------------------------------------- unbalanced switches


def test_too_much_is_trimmed_and_no_program_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    trim = Spy(monkeypatch, _kernel, "trim")
    program = Spy(monkeypatch, task, "_balance")
    first(
        problems(1500, "unbalanced"),
        lambda: trim.given > 0 and not program.calls,
        (trim, program),
    )


def starved(count: int = 300) -> Iterator[Problem]:
    for seed in range(count):
        graph = starved_graph(seed)
        yield Problem(seed, graph, ALLGATHER, None, frozenset({"starved"}))


def test_trimming_fails_then_the_program_that_balances(monkeypatch: pytest.MonkeyPatch) -> None:
    trim = Spy(monkeypatch, _kernel, "trim")
    program = Spy(monkeypatch, task, "Model")
    first(starved(), lambda: trim.refused > 0 and program.given > 0, (trim, program))


def test_a_copying_switch_is_left_out_of_the_dual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its potential would forbid copies: the program is solved again for a bound that has none."""
    program = Spy(monkeypatch, task.Model, "bound")  # type: ignore[arg-type]
    for seed in range(200):
        graph = starved_graph(seed)
        program.forget()
        graph = able(graph, adds=False)
        best = solver.optimum(graph, ALLGATHER)
        if len(program.calls) == 2:
            assert proven(graph, best.bound, ALLGATHER, None) == best.bound.algbw > best.algbw
            plain = solver.solve(replace(graph, multicast=(False,) * graph.n), ALLGATHER)
            assert recount(plain) == best.algbw
            return
    raise AssertionError("no graph took this way")


# ---------------------------------------------------------------------------- linear programs


class Liar:
    """Wrong proposals of the floating-point solver, as many as are asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lies: int) -> None:
        self.told = 0
        honest = exact_lp.propose

        def propose(program: exact_lp.Program, scale: float, options: str) -> exact_lp.Basis:
            if self.told < lies:
                self.told += 1
                return [], [], []
            return honest(program, scale, options)

        monkeypatch.setattr(exact_lp, "propose", propose)


def needs_a_program() -> tuple[CapacityGraph, Fraction]:
    """A starved graph whose optimum takes a linear program."""
    for seed in range(300):
        graph = starved_graph(seed)
        best = solver.optimum(graph, ALLGATHER)
        if best.bound.method == "linear-program":
            task.analyse.cache_clear()  # it is to be found again
            return graph, best.algbw
    raise AssertionError("no graph needs a program")


def test_a_proposal_cannot_be_proven_then_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, algbw = needs_a_program()
    Unsure(monkeypatch)
    liar = Liar(monkeypatch, 1)
    proofs = Spy(monkeypatch, exact_lp, "prove")
    slow = Spy(monkeypatch, exact_lp, "simplex")
    assert optimal(graph).algbw == algbw
    assert liar.told == 1
    assert (proofs.refused >= 2, len(slow.calls)) == (
        True,
        0,
    )  # the lazy rounds' basis, and the lie
    assert proofs.given >= 1


def test_no_proposal_can_be_proven_then_the_exact_simplex(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, algbw = needs_a_program()
    Unsure(monkeypatch)
    Liar(monkeypatch, 10**6)
    proofs = Spy(monkeypatch, exact_lp, "prove")
    slow = Spy(monkeypatch, exact_lp, "simplex")
    assert optimal(graph).algbw == algbw
    assert proofs.given == 0
    assert slow.given >= 1


class Unsure:
    """Makes `cutting` end with a basis that proves nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lazy: set[int] = set()
        solve, basis = exact_lp.Loose.solve, exact_lp.Loose.basis

        def noted(loose: exact_lp.Loose) -> exact_lp.Values:
            lazy.add(id(loose))
            return solve(loose)

        def unsure(loose: exact_lp.Loose) -> exact_lp.Basis:
            return ([], [], []) if id(loose) in lazy else basis(loose)

        monkeypatch.setattr(exact_lp.Loose, "solve", noted)
        monkeypatch.setattr(exact_lp.Loose, "basis", unsure)


def test_lazy_cuts_end_unproven_then_proposals_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    Unsure(monkeypatch)
    afresh = Spy(monkeypatch, exact_lp, "solve")
    assert optimal(star(80, *[10] * 8), ALLREDUCE).algbw == 10
    assert afresh.given >= 1


def test_lazy_cuts_cannot_be_proven_then_the_exact_simplex(monkeypatch: pytest.MonkeyPatch) -> None:
    Unsure(monkeypatch)
    Liar(monkeypatch, 10**6)
    slow = Spy(monkeypatch, exact_lp, "simplex")
    assert optimal(star(80, *[10] * 8), ALLREDUCE).algbw == 10
    assert slow.given >= 1


def test_no_joint_optimum_can_be_proven_then_the_same_trees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Proven by its own bound, and the note says what is missing."""
    Unsure(monkeypatch)
    Liar(monkeypatch, 10**6)
    monkeypatch.setattr(exact_lp, "SIMPLEX_ROWS", 0)
    failed = Spy(monkeypatch, allreduce, "joint")
    graph = star(80, *[10] * 8)
    best = solver.optimum(graph, ALLREDUCE)
    assert isinstance(failed.results[0], UnsupportedError)
    assert "no joint optimum: no optimum of the linear program can be proven" in best.note
    forest = solver.solve(graph, ALLREDUCE)
    assert best.algbw == Fraction(45, 8) < best.bound.algbw
    assert best.algbw <= recount(forest) <= best.bound.algbw  # its trees may happen to be better
    assert certificate.check(forest) == (recount(forest), best.bound.algbw)


# ---------------------------------------------------------------------------------- allreduce


def test_the_same_trees_reach_the_bound_and_no_program_is_solved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Spy(monkeypatch, allreduce, "joint")
    optimal(dgx_a100(2), ALLREDUCE)
    assert program.calls == []


def test_the_same_trees_do_not_then_the_joint_program(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Spy(monkeypatch, allreduce, "joint")
    assert optimal(mi250(1, dies=8), ALLREDUCE).algbw == 150
    assert program.given >= 1


def test_the_joint_program_wins_nothing_then_the_same_trees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bound of cuts and partitions was too high: the program proves that there is no more."""
    program = Spy(monkeypatch, allreduce, "joint")
    for seed in (258, 360, *range(400)):
        graph = random_graph(seed)
        program.forget()
        plan = allreduce.plan(graph)
        if program.given and plan.joint is None:
            assert plan.same_algbw == plan.bound.algbw
            optimal(graph, ALLREDUCE)
            return
    raise AssertionError("no graph took this way")


def test_orbits_of_the_joint_program_are_not_found_then_the_whole_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(automorphisms, "WORK", 0)
    graph = mi250(2, dies=8)
    assert [s for s in automorphisms.find_symmetries(graph) if not s.turned] == []
    whole = joint.joint_model(graph, automorphisms.find_symmetries(graph), equal=False).size
    assert optimal(graph, ALLREDUCE).algbw == 128
    monkeypatch.undo()
    automorphisms.find_symmetries.cache_clear()
    assert (
        whole > 2 * joint.joint_model(graph, automorphisms.find_symmetries(graph), equal=False).size
    )


def test_the_joint_program_is_too_large_then_the_same_trees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joint, "VARIABLES", 5)
    failed = Spy(monkeypatch, allreduce, "joint")
    graph = mi250(1, dies=8)
    forest = solver.solve(graph, ALLREDUCE)
    assert isinstance(failed.results[0], UnsupportedError)
    assert recount(forest) == certificate.check(forest)[0] == 100


def test_the_dual_forbids_copies_then_one_that_allows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bool] = []
    kind = model.Model

    class Watched(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *given: Any, **named: Any) -> None:
            made.append(bool(named.get("able", False)))
            super().__init__(*given, **named)

    monkeypatch.setattr(model, "Model", Watched)
    for seed in range(200):
        graph = random_graph(seed)
        graph = able(graph)
        made.clear()
        plan = allreduce.plan(graph)
        if any(made):
            forest = solver.solve(graph, ALLREDUCE)
            algbw, bound = certificate.check(forest)
            assert bound == plan.bound.algbw >= algbw >= plan.algbw
            assert recount(forest) == algbw
            return
    raise AssertionError("no graph took this way")


def test_many_joint_trees_then_fewer_that_do(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = Spy(monkeypatch, allreduce, "fixed_joint")
    for seed in range(300):
        graph = random_graph(seed)
        fewer.forget()
        plan = allreduce.plan(graph)
        if plan.joint is not None and fewer.given:
            assert max(plan.joint.supply) < max(joint.joint(graph).supply)
            optimal(graph, ALLREDUCE)
            return
    raise AssertionError("no graph took this way")


def test_few_joint_trees_are_not_whole_at_first_then_another_vertex_or_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = Spy(monkeypatch, joint, "_solve_whole")
    for seed in range(300):
        graph = random_graph(seed)
        plan = allreduce.plan(graph)
        if plan.joint is None:
            continue
        whole.forget()
        found = allreduce.fix_joint(graph, 2)
        if found is not None and whole.refused and whole.given:
            forest = solver.solve(graph, ALLREDUCE, trees=2)
            assert recount(forest) >= found.algbw
            assert certificate.check(forest)[0] <= plan.bound.algbw
            return
    raise AssertionError("no graph took this way")


def test_regular_fabrics_skip_the_joint_program_where_they_are_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optimum, "ALIKE_FROM", 8)
    program = Spy(monkeypatch, allreduce, "joint")
    best = solver.optimum(dgx_a100(4), ALLREDUCE)
    assert best.algbw == best.bound.algbw == Fraction(400, 3)
    assert program.calls == []
    optimal(dgx_a100(4), ALLREDUCE)


def test_a_large_fabric_that_is_not_regular_takes_the_general_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optimum, "ALIKE_FROM", 8)
    regular = Spy(monkeypatch, optimum, "regular_allreduce")
    graph = without(dgx_a100(2), 0)
    best = solver.optimum(graph, ALLREDUCE)
    assert regular.refused == 1
    assert optimal(graph, ALLREDUCE).algbw == best.algbw


# --------------------------------------------------------------------- fixed trees, the front


def test_trimming_fails_at_the_least_time_then_a_little_more_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trimmed = Spy(monkeypatch, fixed_trees, "_trim")
    for seed in range(600):
        graph = random_graph(seed, "asymmetric")
        for trees in (1, 2):
            trimmed.forget()
            forest = solver.solve(graph, ALLGATHER, trees=trees)
            if trimmed.refused and trimmed.given:
                assert forest.trees_per_root == trees
                assert recount(forest) == certificate.check(forest)[0]
                return
    raise AssertionError("no graph took this way")


def test_the_optimum_has_too_many_trees_then_the_fewest_at_99_percent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topology = catalog.load("dgx-a100", {"boxes": "2"})
    graph = perturbed(CapacityGraph.from_topology(topology), 1)
    search = Spy(monkeypatch, front.Front, "reaching")  # type: ignore[arg-type]
    request = Request(target="rccl", formats=("forest", "msccl-xml"), min_percent=99)
    problem = replace(Asked.of(topology, "allgather"), graph=graph)
    result = make(problem, request, Clock())
    assert len(search.calls) >= 1
    best = solver.optimum(graph, ALLGATHER)
    assert best.trees_per_root > 1000
    share = recount(result.forest) / best.algbw
    assert Fraction(99, 100) <= share < 1
    assert any("of the optimum, which takes" in note for note in result.notes)
    fewest = front.Front(graph, ALLGATHER).fewest(Fraction(99, 100)).trees
    assert result.forest.trees_per_root == 1 << (fewest - 1).bit_length()  # rounded to 2^m parts


def test_rounded_links_reach_the_optimum_with_fewer_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = mi250(4)
    assert solver.optimum(graph, ALLGATHER).trees_per_root == 8
    point = front.Front(graph, ALLGATHER).exact
    assert (point.trees, point.share, point.exact) == (3, 1, False)
    forest = solver.solve(graph, ALLGATHER, trees=3)
    assert recount(forest) == point.algbw == solver.optimum(graph, ALLGATHER).algbw


def test_a_plan_does_not_fit_the_narrowest_runtime_then_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """65 thread blocks of one rank: one more than RCCL holds."""
    from forestcoll.compile import choose

    tried = Spy(monkeypatch, choose.Chooser, "choose")  # type: ignore[arg-type]
    topology = catalog.load("star", {"gpus": "65"})
    result = synthesize(topology, "allgather", formats=("forest", "msccl-xml"))
    assert [isinstance(came, PlanError) for came in tried.results] == [True, False]
    (note,) = [note for note in result.notes if "the MSCCL XML is for msccl only" in note]
    assert "rccl holds 64" in note
    assert result.forest.algbw == result.optimum.algbw
    optimal(result.forest.graph, forest=result.forest)


# ------------------------------------------------------------------ copies, groups, large numbers


def test_a_copying_switch_is_out_of_reach_then_plain_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = build([("a", "b", 1), ("b", "c", 1), ("c", "a", 1), ("w", "a", 1)], both=False,
                  switches="w")  # fmt: skip
    graph = replace(graph, multicast=tuple(name == "w" for name in graph.names))
    task = Spy(monkeypatch, multicast, "_task")
    assert multicast.forest(graph, ALLGATHER) is None
    assert task.refused == 1
    forest = solver.solve(graph, ALLGATHER)
    assert recount(forest) == certificate.check(forest)[0] == Fraction(3, 2)


def test_equal_parts_are_slower_in_the_fabric_then_parts_that_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags: list[bool] = []
    kind = multicast.Model

    class Watched(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *given: Any, **named: Any) -> None:
            flags.append(named["equal"])
            super().__init__(*given, **named)

    monkeypatch.setattr(multicast, "Model", Watched)
    for seed in range(200):
        graph = random_graph(seed)
        if graph.n > 9 or all(graph.gpu):
            continue
        flags.clear()
        forest = multicast.forest(able(graph), ALLREDUCE)
        if forest is not None and flags == [True, False]:
            assert recount(forest) == forest.algbw
            assert certificate.check(forest)[0] <= certificate.check(forest)[1]  # type: ignore[operator]
            return
    raise AssertionError("no graph took this way")


def halves() -> Together:
    """Both halves of two boxes at once."""
    topology = catalog.load("dgx-a100", {"boxes": "2"})
    members = (("box*/gpu[0-3]",), ("box*/gpu[4-7]",))
    asked = together.problem(topology, "allgather", members)
    return together.synthesize(asked, formats=("forest",)).done


@pytest.mark.parametrize("limit", ["LINKS", "VARIABLES"])
def test_groups_are_too_large_then_links_in_equal_parts(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = halves()
    monkeypatch.setattr(split, limit, 1)
    equal = Spy(monkeypatch, split, "split_equally")
    coarse = halves()
    assert equal.given == 1
    assert coarse.algbw <= exact.algbw == exact.bound.algbw
    for forest in coarse.forests:
        assert recount(forest) == coarse.algbw


def test_loads_beyond_64_bits_are_counted_in_python() -> None:
    forest = solver.solve(ring(3), ALLGATHER)
    heavy = replace(
        forest,
        trees=tuple(replace(tree, weight=tree.weight << 63) for tree in forest.trees),
        total=forest.total << 63,
    )
    from forestcoll.schedule.forest import scan

    assert scan(heavy.graph, heavy.trees)[2] is None
    assert heavy.loads() == [load << 63 for load in forest.loads()]
    assert recount(heavy) == heavy.algbw == forest.algbw == certificate.check(heavy)[0]


def test_torus_levels_do_where_symmetry_moves_ranks_freely(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = Spy(monkeypatch, forests, "pack_by_hops")
    graph = named("torus-3d", x=4, y=4, z=4)
    forest = solver.solve_compact(graph, ALLGATHER)
    assert levels.given == 1
    assert forest is not None
    optimal(graph, forest=forest)
