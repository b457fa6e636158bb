"""What each single failure costs: with the forest in use, and with the best new one.

The figure of the forest in use is exact: algbw is 1 / max over links of (share / bandwidth), and a
failure changes the bandwidth of a few links. A forest stops where a link that it uses is gone. The
figure of a new forest is the optimum of what is left, solved once for each class of failures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from forestcoll import solver
from forestcoll.compile.problem import capacity_graph, parse_root
from forestcoll.degrade.classes import classes
from forestcoll.degrade.failures import KINDS, Failure, Kind, list_failures
from forestcoll.errors import ForestError, InfeasibleError, UnsupportedError
from forestcoll.program import Collective

if TYPE_CHECKING:
    from forestcoll.compile.clock import Progress
    from forestcoll.forest import Forest
    from forestcoll.graph import CapacityGraph, Relays
    from forestcoll.topology import Topology


@dataclass(frozen=True, slots=True)
class Problem:
    """A collective on a topology; `root` and `ranks` by id, as the command line has them."""

    topology: Topology
    collective: Collective
    root: str | None = None
    ranks: tuple[str, ...] | None = None
    relays: Relays = "none"

    def graph(self) -> CapacityGraph:
        """The graph that is solved."""
        return capacity_graph(self.topology, self.ranks, self.relays)

    def after(self, failure: Failure) -> Problem:
        """The same collective on what is left; a GPU that is gone is no rank any more.

        Raises UnsupportedError where the root is gone.
        """
        gone = failure.node
        if gone is not None and gone == self.root:
            raise UnsupportedError(f"the root {gone} is gone")
        ranks = self.ranks
        if ranks is not None:
            ranks = tuple(rank for rank in ranks if rank != gone)
        return replace(self, topology=failure.applied(self.topology), ranks=ranks)


@dataclass(frozen=True, slots=True)
class Loss:
    """What is left after a failure, in GB/s of algbw.

    `old`: of the forest in use, None where it stops. `new`: of the best forest, None where there is
    none, and `reason` says why. `member_of`: number of the failure that was solved for the class.
    """

    failure: Failure
    old: Fraction | None
    new: Fraction | None
    member_of: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All single failures of a problem. `before`: algbw in GB/s of the forest while all works."""

    problem: Problem
    forest: Forest
    before: Fraction
    optimum: Fraction
    losses: tuple[Loss, ...]
    solved: int  # classes of failures, each solved once
    timings: dict[str, float]  # seconds a stage

    def worst(self, count: int | None = None) -> list[tuple[Loss, int]]:
        """The largest losses first: (a member, how many lose just the same), `count` at most.

        Failures of one class that cost the forest in use as much are one entry. The order: least
        with a new forest, then least with the one in use.
        """
        groups: dict[tuple[int, Fraction | None], list[Loss]] = {}
        for loss in self.losses:
            groups.setdefault((loss.member_of, loss.old), []).append(loss)
        entries = [(g[0], sum(loss.failure.copies for loss in g)) for g in groups.values()]
        entries.sort(key=lambda entry: (entry[0].new or 0, entry[0].old or 0))
        return entries if count is None else entries[:count]


def report_losses(
    problem: Problem,
    kinds: Iterable[Kind] = KINDS,
    forest: Forest | None = None,
    progress: Progress | None = None,
) -> Report:
    """What every single failure of these kinds costs.

    `forest`: the one in use; None: the one that `synthesize --format forest` makes. `progress` is
    told the stage and the part of the work done. Raises what the solver raises on the whole fabric,
    and ForestError where `forest` is of another problem.
    """
    say = progress or (lambda _stage, _part: None)
    timings: dict[str, float] = {}
    began = time.perf_counter()
    graph = _plain(problem.graph())
    root = parse_root(graph, problem.collective, problem.root)
    if root is not None:
        problem = replace(problem, root=graph.names[graph.ranks[root]])
    say("optimum", 0.0)
    best = solver.optimum(graph, problem.collective, root).algbw
    timings["optimum"], began = _lap(began)
    say("forest", 0.0)
    if forest is None:
        forest = solver.solve(graph, problem.collective, root, name=problem.topology.name)
    else:
        _check_same(forest, graph, problem)
    timings["forest"], began = _lap(began)
    touched = set(graph.names)
    failures = [
        failure
        for failure in list_failures(problem.topology, kinds)
        if failure.node in touched or any({*arc} <= touched for arc, _ in failure.left)
    ]
    members = classes(graph, failures, root)
    timings["symmetry"], began = _lap(began)
    old = _of_forest(forest, failures)
    new = _of_optimum(problem, failures, members, lambda part: say("failures", part))
    losses = tuple(
        Loss(failure, before, new[member][0], member, new[member][1])
        for failure, before, member in zip(failures, old, members, strict=True)
    )
    timings["failures"], _ = _lap(began)
    return Report(problem, forest, forest.plain_algbw, best, losses, len(new), timings)


def _lap(began: float) -> tuple[float, float]:
    now = time.perf_counter()
    return now - began, now


def _plain(graph: CapacityGraph) -> CapacityGraph:
    """GPUs copy and add, as plans do: switches only pass on."""
    no = (False,) * graph.n
    return replace(graph, multicast=no, aggregation=no)


def _check_same(forest: Forest, graph: CapacityGraph, problem: Problem) -> None:
    """The forest is one of this problem, or ForestError that says what differs."""

    def ids(g: CapacityGraph) -> list[str]:
        return [g.names[v] for v in g.ranks]

    def links(g: CapacityGraph) -> dict[tuple[str, str], Fraction]:
        ends = enumerate(zip(g.tail, g.head, strict=True))
        return {(g.names[u], g.names[v]): g.bandwidth(e) for e, (u, v) in ends}

    what = ""
    if forest.collective is not problem.collective:
        what = f"is of {forest.collective}, not of {problem.collective}"
    elif ids(forest.graph) != ids(graph):
        what = "has other ranks than the topology"
    elif links(forest.graph) != links(graph):
        what = "is of a topology with other links"
    elif problem.root is not None and ids(graph)[forest.root] != problem.root:
        what = f"has the root {ids(graph)[forest.root]}, not {problem.root}"
    if what:
        raise ForestError(f"the forest in use {what}; give the one that was made for this problem")


def _of_forest(forest: Forest, failures: Sequence[Failure]) -> list[Fraction | None]:
    """The forest's algbw after each failure, None where a link that it uses is gone."""
    plain = replace(forest, graph=_plain(forest.graph))
    graph, names = plain.graph, plain.graph.names
    loads = {
        (names[u], names[v]): Fraction(load, plain.total)
        for u, v, load in zip(graph.tail, graph.head, plain.loads(), strict=True)
        if load
    }
    whole, ranks = plain.algbw, {names[v] for v in graph.ranks}
    found: list[Fraction | None] = []
    for failure in failures:
        rates = [left / loads[arc] for arc, left in failure.left if arc in loads]
        lost = failure.node in ranks
        least = min(rates, default=whole)
        found.append(None if lost or not least else min(whole, least))
    return found


def _of_optimum(
    problem: Problem,
    failures: Sequence[Failure],
    members: Sequence[int],
    say: Callable[[float], None],
) -> dict[int, tuple[Fraction | None, str]]:
    """First failure of each class -> (algbw of the best new forest, why there is none)."""
    found: dict[int, tuple[Fraction | None, str]] = {}
    firsts = sorted(set(members))
    for done, member in enumerate(firsts):
        say(done / len(firsts))
        try:
            after = problem.after(failures[member])
            graph = _plain(after.graph())
            root = parse_root(graph, after.collective, after.root)
            found[member] = solver.optimum(graph, after.collective, root).algbw, ""
        except (InfeasibleError, UnsupportedError) as error:
            found[member] = None, str(error)
    return found
