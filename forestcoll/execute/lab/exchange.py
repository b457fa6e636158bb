"""All-to-all in the lab: a plan beside direct sending, two-level exchange, and gloo's own.

direct     every block straight to its rank, by the engine that also runs the plan
two-level  first to the GPU of the own box that has the target's place, then to the target's box
gloo       torch.distributed's all_to_all_single, which sends straight too

Straight means by the shortest way of the fabric, where a mesh's GPUs pass packets on.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.execute.lab.measurement import (
    DIRECT,
    EXCHANGES,
    GLOO,
    PLAN,
    Entry,
    Matrix,
    Report,
    Wishes,
    check_against,
    check_paths,
    check_plan,
    entry_of,
    measure_all,
    note_split,
)
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower.alltoall.lowering import edges_of, lower, lower_flows
from forestcoll.program import Program
from forestcoll.program.targets import MSCCLPP
from forestcoll.schedule.routes import Loads, routes
from forestcoll.solver.alltoall.demand import uniform
from forestcoll.solver.alltoall.flows import solve
from forestcoll.solver.alltoall.rounding import route
from forestcoll.solver.alltoall.routes import Routes as Paths
from forestcoll.solver.alltoall.spread import spread
from forestcoll.solver.baselines.alltoall import direct, two_level
from forestcoll.topology import Topology


def compare(
    graph: CapacityGraph,
    program: Program,
    paths: Paths | None,
    *,
    name: str = "",
    against: Sequence[str] = EXCHANGES,
    wishes: Wishes | None = None,
    matrix: Matrix | None = None,
) -> Report:
    """Measure an all-to-all plan, and what it is measured against, on the fabric of `graph`.

    `paths`: the plan's, which are taken; None: shortest ways. `matrix`: bytes from rank to rank.
    Raises PlanError (the plan is for other ranks or another collective), UnsupportedError (this
    machine cannot), ExecutionError (a run failed).
    """
    entries, notes = make_entries(graph, program, paths, against, matrix)
    wishes = wishes or Wishes()
    return measure_all(graph, program.collective, entries, notes, name, wishes, matrix)


def make_plan(topology: Topology, *, ragged: bool = False) -> tuple[Program, Paths]:
    """A plan for all GPUs with its routes; `ragged`: of static routes for any sizes, if boxes are.

    Raises UnsupportedError and PlanError where there is none.
    """
    best = solve(uniform(topology))
    try:
        if not ragged:
            raise UnsupportedError("for even blocks the optimum's routes are better")
        ways = spread(best)
    except UnsupportedError:
        ways = route(best)
    return lower(ways, MSCCLPP, topology.name), ways


def make_entries(
    graph: CapacityGraph,
    program: Program,
    paths: Paths | None,
    against: Sequence[str],
    matrix: Matrix | None,
) -> tuple[list[Entry], list[str]]:
    """The plan and what it is measured against, each with its ways and loads; and notes."""
    if not program.collective.transposes:
        raise PlanError(f"a plan for {program.collective}, not for an all-to-all")
    check_plan(graph, program)
    if paths is None:
        ways, notes = routes(graph), ["no routes beside the plan: ranks take the shortest way"]
    else:
        steps = (step for route in paths.expand() for step in pairwise(route.path))
        check_paths(graph, paths.graph, steps, "routes")
        ways = routes(graph, edges=edges_of(paths))
        notes = note_split(ways, "routes")
    names = check_against(against, EXCHANGES, "what trees carry", program.collective, notes)
    straight = routes(graph)
    entries = [entry_of(PLAN, program, ways, matrix)]
    for other in names:
        if other == GLOO:
            entries.append(Entry(GLOO, None, straight, _direct_loads(graph, matrix), 1))
            continue
        try:
            flows = direct(graph) if other == DIRECT else two_level(graph)
            theirs = lower_flows(graph, flows, 1, MSCCLPP, other)
        except (PlanError, UnsupportedError) as error:
            notes.append(f"no {other}: {error}")
            continue
        entries.append(entry_of(other, theirs, straight, matrix))
    return entries, notes


def _direct_loads(graph: CapacityGraph, matrix: Matrix | None) -> Loads:
    n = len(graph.ranks)
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    if matrix is None:
        return dict.fromkeys(pairs, Fraction(1, n))
    most = max(map(sum, matrix))
    return {(i, j): Fraction(matrix[i][j], most) for i, j in pairs if matrix[i][j]}
