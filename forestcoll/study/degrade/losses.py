"""What each single failure costs: with the forest in use, and with the best new one.

The figure of the forest in use is exact: algbw is 1 / max over links of (share / bandwidth), and a
failure changes the bandwidth of a few links. A forest stops where a link that it uses is gone. The
figure of a new forest is the optimum of what is left, solved once for each class of failures, but
where the forest in use is the optimum and loses nothing. Both are what links allow. Trees
also have hops, starts and ends; how much that costs is simulated for the failures that a report
shows, as far as forests alone are simulated at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from forestcoll import solver
from forestcoll.common.clock import Clock
from forestcoll.common.errors import ForestCollError, ForestError, InfeasibleError, UnsupportedError
from forestcoll.common.input_limits import PLAN_BYTES
from forestcoll.common.text_file import check_seal, digest, read_text, seal
from forestcoll.compile.problem import Problem
from forestcoll.program import Collective
from forestcoll.study.degrade.failures import (
    KINDS,
    Arc,
    Failure,
    Kind,
    classes,
    list_failures,
)
from forestcoll.topology import dumps_topology
from forestcoll.verify import simulate

if TYPE_CHECKING:
    from forestcoll.common.clock import Progress
    from forestcoll.graph.capacity_graph import CapacityGraph, Relays
    from forestcoll.schedule.forest import Forest
    from forestcoll.solver import Optimum
    from forestcoll.topology import Topology
    from forestcoll.verify.simulate import Band


class Workload(NamedTuple):
    """A collective on a topology, whole or with something gone; `root` and `ranks` by id."""

    topology: Topology
    collective: Collective
    root: str | None = None
    ranks: tuple[str, ...] | None = None
    relays: Relays = "none"

    def problem(self) -> Problem:
        """What is solved. GPUs copy and add, as in most plans: switches only pass on."""
        problem = Problem.of(self.topology, self.collective, self.root, self.ranks, self.relays)
        return problem.plain

    def facts(self) -> list[str]:
        """Texts that say all that the answer follows from."""
        topology, root = dumps_topology(self.topology), str(self.root)
        return [topology, self.collective.value, root, str(self.ranks), self.relays]

    def after(self, failure: Failure) -> Workload:
        """The same collective on what is left; a GPU that is gone is no rank any more.

        Raises UnsupportedError where the root is gone, or all ranks but one.
        """
        gone = failure.node
        if gone is not None and gone == self.root:
            raise UnsupportedError(f"the root {gone} is gone")
        topology, ranks = failure.apply(self.topology), self.ranks
        if ranks is not None:
            ranks = tuple(rank for rank in ranks if rank != gone)
        if len(topology.gpus if ranks is None else ranks) < 2:
            raise UnsupportedError("one rank is left")
        return self._replace(topology=topology, ranks=ranks)


class Loss(NamedTuple):
    """What is left after a failure, in GB/s of algbw.

    `old`: of the forest in use, None where it stops. `new`: of the best forest, None where there is
    none, and `reason` says why. `member_of`: number of the failure that was solved for the class.
    `note`: why a new forest may reach more than `new`, if it may.
    """

    failure: Failure
    old: Fraction | None
    new: Fraction | None
    member_of: int
    reason: str = ""
    note: str = ""


class Report(NamedTuple):
    """All single failures of a workload. `before`: algbw in GB/s of the forest while all works."""

    workload: Workload
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
    workload: Workload,
    kinds: Iterable[Kind] = KINDS,
    forest: Forest | None = None,
    progress: Progress | None = None,
    solved: MutableMapping[str, New] | None = None,
) -> Report:
    """What every single failure of these kinds costs.

    `forest`: the one in use; None: the one that `synthesize --format forest` makes where no switch
    copies. `progress` is told the stage and the part of the work done. `solved`: by a failure's
    options what is known already; what is solved is added. Raises what the solver raises on the
    whole fabric, and ForestError where `forest` is of another problem.
    """
    clock = Clock(progress)
    with clock.stage("optimum"):
        problem = workload.problem()
        graph, root = problem.graph, problem.root
        if root is not None:
            workload = workload._replace(root=graph.names[graph.ranks[root]])
        # by id: globs do not say which GPU is gone
        workload = workload._replace(ranks=workload.ranks and graph.rank_names)
        best = problem.optimum()
    with clock.stage("forest"):
        if forest is None:
            forest = best_forest(problem, best)
        else:
            _check_same(forest, graph, workload)
    with clock.stage("symmetry"):
        touched = set(graph.names)
        failures = [
            failure
            for failure in list_failures(workload.topology, kinds)
            if failure.node in touched or any({*arc} <= touched for arc, _ in failure.left)
        ]
        members = classes(graph, failures, root)
    with clock.stage("failures"):
        old = _of_forest(forest, failures)
        least: dict[int, Fraction] = {}  # by class, of what the forest in use leaves, the most
        for rate, member in zip(old, members, strict=True):
            least[member] = max(rate or Fraction(0), least.get(member, Fraction(0)))
        optima: dict[int, New] = {}  # by class
        solved = {} if solved is None else solved
        for done, (member, kept) in enumerate(sorted(least.items())):
            clock.report("failures", done / len(least))
            optima[member] = New(kept)
            if kept < best.algbw:  # else nothing to solve: no fabric gets faster by a failure
                options = failures[member].options
                if options not in solved:
                    solved[options] = _solve(workload, failures[member])
                new = solved[options]
                algbw = None if new.algbw is None else max(kept, new.algbw)
                optima[member] = new._replace(algbw=algbw)
        losses = tuple(
            Loss(failure, before, optima[member].algbw, member, *optima[member][1:])
            for failure, before, member in zip(failures, old, members, strict=True)
        )
    before = forest.plain_algbw
    optimum = max(best.algbw, before)  # of many ranks the latter may be nearer to the bound
    return Report(workload, forest, before, optimum, losses, len(optima), clock.seconds)


def best_forest(problem: Problem, best: Optimum) -> Forest:
    """The forest that `synthesize` makes where no plan is asked for; compact for many ranks."""
    from forestcoll.compile.choose import Chooser
    from forestcoll.compile.request import Request

    request = Request(compact=len(problem.graph.ranks) > solver.COMPACT_FROM)
    return Chooser(problem, {}, request, best, Clock()).choose().forest


def _check_same(forest: Forest, graph: CapacityGraph, workload: Workload) -> None:
    """The forest is one of this workload, or ForestError that says what differs."""

    def ids(g: CapacityGraph) -> list[str]:
        return list(g.rank_names)

    def links(g: CapacityGraph) -> dict[tuple[str, str], Fraction]:
        ends = enumerate(g.ends)
        return {(g.names[u], g.names[v]): g.bandwidth(e) for e, (u, v) in ends}

    what = ""
    if forest.collective is not workload.collective:
        what = f"is of {forest.collective}, not of {workload.collective}"
    elif ids(forest.graph) != ids(graph):
        what = "has other ranks than the topology"
    elif links(forest.graph) != links(graph):
        what = "is of a topology with other links"
    elif workload.root is not None and ids(graph)[forest.root] != workload.root:
        what = f"has the root {ids(graph)[forest.root]}, not {workload.root}"
    if what:
        raise ForestError(f"the forest in use {what}; give the one that was made for this problem")


def _of_forest(forest: Forest, failures: Sequence[Failure]) -> list[Fraction | None]:
    """The forest's algbw after each failure, None where a link that it uses is gone."""
    plain = replace(forest, graph=forest.graph.plain)
    graph, names = plain.graph, plain.graph.names
    loads = {
        (names[u], names[v]): Fraction(load, plain.total)
        for u, v, load in graph.along(plain.loads())
        if load
    }
    whole, ranks = plain.algbw, {names[v] for v in graph.ranks}
    algbws: list[Fraction | None] = []
    for failure in failures:
        rates = [left / loads[arc] for arc, left in failure.left if arc in loads]
        lost = failure.node in ranks
        least = min(rates, default=whole)
        algbws.append(None if lost or not least else min(whole, least))
    return algbws


class New(NamedTuple):
    """The best new forest's `algbw`, None where there is none; see `Loss`."""

    algbw: Fraction | None
    reason: str = ""
    note: str = ""


def _solve(workload: Workload, failure: Failure) -> New:
    try:
        problem = workload.after(failure).problem()
        new = solver.optimum(problem.graph, problem.collective, problem.root, patient=False)
    except (InfeasibleError, UnsupportedError) as error:
        return New(None, str(error))
    return New(new.algbw, note=new.note)


# --- the hardest of a kind, without a forest

LOOKED: Final = 96
"""Ranks of all classes of failures of a kind that `find_hardest` solves: those that leave least."""


class Hardest(NamedTuple):
    """The failure of a kind after which the optimum is least, of `looked` classes `of` so many.

    `algbw`: GB/s of that; None: there is no schedule, `reason` says why.
    """

    failure: Failure
    algbw: Fraction | None
    reason: str
    looked: int
    of: int


def find_hardest(
    workload: Workload, kinds: Sequence[Kind], progress: Progress | None = None
) -> Iterator[Hardest]:
    """The hardest single failure of each kind; none of a kind that the topology does not have."""
    problem, room = workload.problem(), _room(workload.topology.rates())
    listed = list_failures(workload.topology, kinds)
    for done, kind in enumerate(kinds):
        if progress is not None:
            progress(f"failures of {kind}", done / len(kinds))
        failures = [failure for failure in listed if failure.kind == kind]
        members = sorted(set(classes(problem.graph, failures, problem.root)))
        if not members:
            continue
        looked = sorted(members, key=lambda i: min(room(failures[i]), default=0))
        looked = looked[: max(1, LOOKED // len(problem.graph.ranks))]
        optima = {i: _solve(workload, failures[i]) for i in looked}
        hardest = min(looked, key=lambda i: (optima[i].algbw or 0, i))
        new = optima[hardest]
        yield Hardest(failures[hardest], new.algbw, new.reason, len(looked), len(members))


def _room(rates: Mapping[Arc, Fraction]) -> Callable[[Failure], Iterator[Fraction]]:
    """What a failure leaves of the bandwidth of each node that it touches, in its shares."""
    whole: dict[str, Fraction] = {}
    for (src, _), rate in rates.items():
        whole[src] = whole.get(src, Fraction(0)) + rate

    def shares(failure: Failure) -> Iterator[Fraction]:
        lost: dict[str, Fraction] = {}
        for (src, dst), rate in failure.left:
            lost[src] = lost.get(src, Fraction(0)) + rates[src, dst] - rate
        yield from (1 - share / whole[node] for node, share in lost.items() if node != failure.node)

    return shares


# --- the worst of them in simulated time ----------------------------------------------------------


class Worst(NamedTuple):
    """A loss and how many failures lose just the same, with what trees reach in simulated time.

    `old`, `new`: of the forest in use and of a new one; None where there is none, or it is not
    simulated.
    """

    loss: Loss
    alike: int
    old: Band | None = None
    new: Band | None = None


def play_whole(report: Report) -> Band | None:
    """What the forest in use reaches while all works; None where that is not simulated."""
    problem = report.workload.problem()
    return simulate.band_of_trees(_move(report.forest, problem.graph), problem.links)


def play_worst(report: Report, count: int, progress: Progress | None = None) -> list[Worst]:
    """The `count` worst failures, simulated."""
    worst = []
    for done, (loss, alike) in enumerate(report.worst(count)):
        if progress is not None:
            progress("simulate", done / count)
        worst.append(_play(report, loss, alike))
    return worst


def _play(report: Report, loss: Loss, alike: int) -> Worst:
    if report.forest.n > simulate.RANKS or loss.new is None:
        return Worst(loss, alike)
    problem = report.workload.after(loss.failure).problem()
    old, names, there = None, report.forest.graph.names, problem.graph.node_of
    used = {v for tree in report.forest.trees for path in tree.edges for v in path}
    if loss.old is not None and all(names[v] in there for v in used):  # else nodes came apart
        old = simulate.band_of_trees(_move(report.forest, problem.graph), problem.links)
    if loss.old == loss.new:
        return Worst(loss, alike, old, old)
    try:
        forest = best_forest(problem, problem.optimum())
    except ForestCollError:  # an optimum without trees that are found
        return Worst(loss, alike, old)
    return Worst(loss, alike, old, simulate.band_of_trees(forest, problem.links))


def _move(forest: Forest, graph: CapacityGraph) -> Forest:
    """The same trees on a graph that has all of their nodes and links, by their names."""
    number = graph.node_of
    at = [number.get(name, -1) for name in forest.graph.names]
    trees = tuple(
        replace(
            tree,
            root=at[tree.root],
            edges=tuple(tuple(at[v] for v in path) for path in tree.edges),
        )
        for tree in forest.trees
    )
    return replace(forest, graph=graph, trees=trees, bound=None)


# --- what is solved, in a file --------------------------------------------------------------------


FORMAT: Final = "forestcoll.losses/1"


class Journal(dict[str, New]):
    """Options of a failure -> what the best new forest leaves after it; each new one is a line.

    Raises ForestCollError where the file is of another problem, no such file, or cannot be written.
    A last line that was cut off goes.
    """

    def __init__(self, path: Path, workload: Workload) -> None:
        self._path = path
        self._head = {"format": FORMAT, "problem": digest("\n".join(workload.facts()))[:16]}
        self._append("")
        text = read_text(path, PLAN_BYTES, ForestCollError)
        for line in text.splitlines(keepends=True):
            if text != line and not line.endswith("\n"):
                os.truncate(path, len(text.encode()) - len(line.encode()))
                break
            record = _parse(line, path, FORMAT)
            if record["problem"] != self._head["problem"]:
                raise ForestCollError(f"{path}: was made for another problem; name another file")
            algbw, reason, note = record["solved"]
            new = New(None if algbw is None else Fraction(algbw), reason, note)
            super().__setitem__(record["failure"], new)

    def __setitem__(self, options: str, new: New) -> None:
        super().__setitem__(options, new)
        solved = [new.algbw and str(new.algbw), new.reason, new.note]
        self._append(json.dumps(seal({**self._head, "failure": options, "solved": solved})) + "\n")

    def _append(self, text: str) -> None:
        try:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(text)
        except OSError as error:
            why = error.strerror or error
            raise ForestCollError(f"{self._path}: cannot be written: {why}") from None


def read_sealed(path: Path, form: str) -> dict[str, Any]:
    """The record in a file; ForestCollError where it is none, or not as it was written."""
    return _parse(read_text(path, PLAN_BYTES, ForestCollError), path, form)


def _parse(text: str, path: Path, form: str) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(text)
        if record["format"] != form:
            raise ForestCollError(f"{path}: is not of format {form}")
        check_seal(record, path, ForestCollError)
    except (ValueError, TypeError, KeyError, RecursionError) as error:  # not JSON, no object
        what = form.partition("/")[0].rpartition(".")[2]
        raise ForestCollError(f"{path}: is no record of a {what} ({error})") from None
    return record
