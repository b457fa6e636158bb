"""Random graphs: the solver must agree with every oracle there is, exactly.

600 problems of up to 24 nodes (`random_problems`) with trees and bounds recounted, all cuts of the
smaller ones, the plain twin, linear programs and flows written out for a part, `verify` for all,
the stranger's checker for a sample.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import networkx as nx
import pytest
import reference
from graphs import build
from random_graphs import KINDS, judge, needs_stranger, stranger
from random_problems import (
    NODES,
    Problem,
    feasible,
    least_cut,
    optimum_written_out,
    proven,
    random_problem,
)

from forestcoll.common.errors import InfeasibleError
from forestcoll.compile.verdict import verify_text
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule import forest_file
from forestcoll.schedule.forest import Forest
from forestcoll.solver import Optimum, multicast, optimum, solve
from forestcoll.solver.task import analyse

PROBLEMS = 600
CHUNK = 100
ALL_CUTS = 13
"""Nodes up to which every cut is looked at, and which the plain twin is asked about."""
WRITTEN_OUT = 14
"""Nodes up to which the optimum of a part of the problems is a linear program, too."""


def feeds_everybody(graph: CapacityGraph, rate: Fraction, root: int | None) -> bool:
    """Whether networkx finds room for `rate` (GB/s a root) from all roots to every rank."""
    scale = (rate / graph.unit).denominator
    units = int(rate / graph.unit * scale)
    network = nx.DiGraph()
    for u, v, capacity in graph.arcs:
        network.add_edge(u, v, capacity=capacity * scale)
    roots = graph.ranks if root is None else (graph.ranks[root],)
    for r in roots:
        network.add_edge("source", r, capacity=units)
    need = units * len(roots)
    return all(nx.maximum_flow_value(network, "source", v) == need for v in graph.ranks)


def solved(problem: Problem) -> tuple[Optimum, Forest]:
    """Optimum and forest, proven from both sides: the trees and the bound are counted anew."""
    graph, collective, root = problem.graph, problem.collective, problem.root
    best = optimum(graph, collective, root)
    forest = solve(graph, collective, root)
    reached = judge(forest)
    if collective is not Collective.ALLREDUCE:
        assert proven(graph, best.bound, collective, root) == best.bound.algbw
    if "able" in problem.has:  # trees that copy on GPUs; a link into a switch that copies may gain
        assert best.algbw <= reached <= best.bound.algbw
    else:
        assert best.algbw == reached == best.bound.algbw
    figures = verify_text(forest_file.dumps(forest), "random").figures
    assert figures["algbw"] == str(reached)
    assert figures["bound"] == str(best.bound.algbw)
    return best, forest


def agrees_with_all_cuts(problem: Problem, best: Optimum) -> None:
    """The bound is the least cut; below it only where a switch cannot send what it receives."""
    least = least_cut(problem.graph, problem.collective, problem.root)
    if best.bound.method == "cut":
        assert best.bound.algbw == least
    else:
        assert "unbalanced" in problem.has
        assert best.algbw < least >= best.bound.algbw


def agrees_with_program(problem: Problem, best: Optimum) -> None:
    """The linear program with a flow for every rank gives the same number, as far as floats go."""
    found = optimum_written_out(problem.graph, problem.collective, problem.root)
    assert found == pytest.approx(float(best.algbw), rel=1e-6)


def agrees_with_flows(problem: Problem, best: Optimum) -> None:
    """networkx finds room for the optimum and none for a thousandth more, and so does the twin."""
    graph = problem.graph.reverse() if problem.collective.reduces else problem.graph
    if "unbalanced" in problem.has:
        graph = analyse(graph, problem.root).graph
    else:
        assert not feeds_everybody(graph, best.rate * Fraction(1001, 1000), problem.root)
    assert feeds_everybody(graph, best.rate, problem.root)
    twin = reference.forest(graph, problem.root)
    assert twin.bound is not None
    assert judge(twin) == twin.bound.algbw == best.algbw


def uses_the_fabric(problem: Problem, best: Optimum) -> None:
    """Trees that copy and add in the switches: recounted, and never above the bound."""
    graph, collective, root = problem.graph, problem.collective, problem.root
    forest = multicast.forest(graph, collective, root)
    if forest is None:
        return
    assert judge(forest) == forest.algbw <= best.bound.algbw
    assert verify_text(forest_file.dumps(forest), "random").kind == "forest"


@pytest.mark.parametrize("chunk", range(PROBLEMS // CHUNK))
def test_600_problems_of_up_to_24_nodes(chunk: int) -> None:
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        problem = random_problem(seed)
        if not feasible(problem):
            with pytest.raises(InfeasibleError, match="cannot reach"):
                solve(problem.graph, problem.collective, problem.root)
            continue
        try:
            best, _ = solved(problem)
            small = problem.graph.n
            if problem.collective is not Collective.ALLREDUCE:
                if small <= ALL_CUTS:
                    agrees_with_all_cuts(problem, best)
                if small <= WRITTEN_OUT and (seed % 16 == 0 or best.bound.method != "cut"):
                    agrees_with_program(problem, best)
                if small <= ALL_CUTS and not problem.has & {"parts", "able"}:
                    agrees_with_flows(problem, best)
            if "able" in problem.has and small <= WRITTEN_OUT:
                uses_the_fabric(problem, best)
        except Exception as error:
            error.add_note(f"problem {seed}: {problem.collective}, {sorted(problem.has)}")
            raise


def test_the_problems_have_what_fabrics_have() -> None:
    has: Counter[str] = Counter()
    for seed in range(PROBLEMS):
        problem = random_problem(seed)
        has.update(problem.has)
        has[problem.collective.value] += 1
        has["unreachable"] += not feasible(problem)
        has["over 16 nodes"] += problem.graph.n > 16
        assert problem.graph.n <= NODES
    wanted = {
        **dict.fromkeys(KINDS, 75),
        **dict.fromkeys(("boxes", "able", "parts", "zero parts", "starved"), 60),
        **dict.fromkeys(("relays idle", "relays none", "over 16 nodes"), 30),
        **dict.fromkeys(("broadcast", "reduce", "reduce-scatter", "allreduce"), 30),
        **dict.fromkeys(("one-way", "unbalanced", "allgather"), 150),
        "24 nodes": 6,
        "unreachable": 3,
    }
    assert {what: has[what] for what, least in wanted.items() if has[what] < least} == {}


def test_a_copying_switch_out_of_reach_of_allreduce() -> None:
    """It is no hindrance: the ranks use what is left."""
    graph = build([("a", "b", 1), ("b", "c", 1), ("c", "a", 1), ("w", "a", 1)], both=False,
                  switches="w")  # fmt: skip
    graph = replace(graph, multicast=tuple(name == "w" for name in graph.names))
    assert multicast.forest(graph, Collective.ALLREDUCE) is None


@needs_stranger
def test_a_sample_passes_the_independent_checker(tmp_path: Path) -> None:
    for seed in range(0, PROBLEMS, 12):
        problem = random_problem(seed)
        if "parts" in problem.has or not feasible(problem):  # it knows equal parts only
            continue
        forest = solve(problem.graph, problem.collective, problem.root, name="random")
        known = ("--collective", problem.collective, "--ranks", forest.n, "--algbw", judge(forest))
        stranger(forest, tmp_path, *known)
