"""Rivals: other starts of the search than the forest that links and limits speak for.

The optimum of the links may be the wrong forest for plans: dozens of unequal trees per root become
thread blocks that wait for each other, and of two optima from one root the one of fewer trees is a
chain of many hops. So other forests are starts too: the baselines, and where plans stay far behind
the optimum other numbers of trees per root. What no plan of a start is faster than is quickly told:
its bytes over the links, and its hops; that drops most. The others are lowered once as they are,
and those whose plain plans are fastest are searched first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Final

from forestcoll.common.errors import ForestError, UnsupportedError
from forestcoll.compile.problem import Problem, Start
from forestcoll.compile.search import (
    GAIN,
    LONG,
    LONGER,
    OPERATIONS,
    RISE,
    TREES,
    Bound,
    Candidate,
    Judge,
    bound_of,
    fastest,
    finish,
    gain_for,
)
from forestcoll.schedule.forest import check
from forestcoll.solver.allreduce import fix_same, plan
from forestcoll.solver.solve import solve

if TYPE_CHECKING:
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.program import Collective, Program
    from forestcoll.program.targets import PlanFormat, Target
    from forestcoll.schedule.forest import Forest, Path
    from forestcoll.schedule.latency import Latencies
    from forestcoll.solver import Optimum
    from forestcoll.solver.baselines import Baseline
    from forestcoll.solver.front import Front, Point
    from forestcoll.verify.simulate import Band


FORESTS: Final = 3
"""Forests of a baseline that take part: so many of the fastest, and the lowest."""


@dataclass(frozen=True)
class Judged:
    """The plans of a start that a search came to, and notes where they lack thread blocks.

    `best`: GB/s of the optimum.
    """

    plans: Mapping[PlanFormat, tuple[Judge, Candidate]]
    notes: list[str]
    best: Fraction

    @cached_property
    def programs(self) -> dict[PlanFormat, Program]:
        """Those that are written."""
        return {form: judge.program_of(one) for form, (judge, one) in self.plans.items()}

    @cached_property
    def share(self) -> float:
        """What they reach of the optimum, on an average of formats and calls."""
        return self._average(Judge.time)

    def most_share(self, bound: Bound) -> float:
        """What plans that links bound so reach of it at most."""
        return self._average(lambda judge, _, size: judge.least(bound, size))

    def _average(self, time: Callable[[Judge, Candidate, int], float]) -> float:
        """Bytes over microseconds at the optimum, over `time`: of formats and calls alike."""
        times = [
            [1000 * time(judge, one, size) * float(self.best) / size for size in self.sizes]
            for judge, one in self.plans.values()
        ]
        return 1 / fmean(map(geometric_mean, times))

    @property
    def slowest(self) -> float:
        """What the slowest call reaches of the optimum."""
        return min(map(self.algbw, self.sizes)) / float(self.best)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of the calls that are played."""
        return min(judge.sizes for judge, _ in self.plans.values())

    def is_faster(self, other: Judged) -> bool:
        """Whether it is, by as much as its thread blocks ask for, and no call much slower."""
        gains = [self.algbw(size) / other.algbw(size) for size in self.sizes]
        if any(most * gain < 1 for gain, most in zip(gains[::-1], LONGER[::-1], strict=False)):
            return False
        gain = min(self.share / other.share, geometric_mean(gains))  # of all plans, of the slowest
        return gain >= gain_for(self.blocks / other.blocks)

    def may_beat(self, other: Judged) -> bool:
        """Whether a search may make these plain plans faster: of connections that have thread
        blocks enough by RISE."""
        bounded = all(judge.fifo and judge.load(one) == 1 for judge, one in self.plans.values())
        least = other.share * gain_for(self.blocks / other.blocks)
        return not bounded or RISE * self.share >= least

    @property
    def blocks(self) -> int:
        """Thread blocks of the rank that has most, of the plan that takes most."""
        return max(judge.blocks(one) for judge, one in self.plans.values())

    @property
    def bands(self) -> dict[PlanFormat, Band]:
        """Those of a report, as far as the search has played them."""
        played = ((form, judge.bands.get((one, LONG))) for form, (judge, one) in self.plans.items())
        return {form: band for form, band in played if band is not None}

    def algbw(self, size: int) -> float:
        """GB/s of the slowest plan."""
        return min(size / judge.time(one, size) / 1000 for judge, one in self.plans.values())


def judge(
    forest: Forest,
    programs: Mapping[PlanFormat, Program],
    targets: Mapping[PlanFormat, Target],
    best: Fraction,
    links: Latencies | None,
) -> Judged:
    """These programs as they are."""
    judges = {form: Judge(forest, targets[form], p, links) for form, p in programs.items()}
    return Judged({form: (one, one.start) for form, one in judges.items()}, [], best)


def improve(judged: Judged) -> Judged:
    """The fastest programs that these lead to."""
    plans = {form: (one, fastest(one)) for form, (one, _) in judged.plans.items()}
    notes = [one.note(taken) for one, taken in plans.values()]
    return Judged(plans, [note for note in notes if note], judged.best)


def finish_plans(judged: Judged) -> Judged:
    """The same after what is tried with the fastest plans alone."""
    plans = {form: (one, finish(one, taken)) for form, (one, taken) in judged.plans.items()}
    return replace(judged, plans=plans)


def speed_note(ours: str, taken: Judged, theirs: str, first: Judged, option: str) -> str:
    """Why `ours` were taken in place of `theirs`, the first choice; `option` asks for those."""

    def speeds(side: Judged) -> str:
        return " and ".join(f"{side.algbw(size):.1f}" for size in taken.sizes)

    calls = (f"{s >> 10} KiB" if s % 10**6 else f"{s // 10**6} MB" for s in taken.sizes)
    return (
        f"{ours} for speed: simulated at {' and '.join(calls)}, plans of them reach "
        f"{speeds(taken)} GB/s, of {theirs} {speeds(first)} ({option})"
    )


def points(front: Front, exact: Point, problem: Problem, share: float) -> list[Point]:
    """Numbers of trees per root whose links allow more than `share` of the optimum.

    Few first: thread blocks wait for each other, and few trees have few. With a root the optimum in
    more trees is among them: in as many as there are other ranks each can be a star behind a
    switch.
    """
    whole = (2, 4, 8, len(problem.graph.ranks) - 1) if problem.collective.has_root else ()
    more = (exact.trees * times for times in whole)
    by_trees = {k: front.point(k) for k in (*TREES, *more) if k != exact.trees}
    return [point for point in by_trees.values() if float(point.share) > share]


def shares(forest: Forest) -> dict[tuple[int, tuple[Path, ...]], Fraction]:
    """Of each tree its part of all the data: twice as many trees may be each tree twice."""
    total = sum(tree.weight for tree in forest.trees)
    parts: dict[tuple[int, tuple[Path, ...]], Fraction] = defaultdict(Fraction)
    for tree in forest.trees:
        parts[tree.root, tree.edges] += Fraction(tree.weight, total)
    return parts


def promising(
    starts: Iterable[Start], judged: Judged, links: Latencies
) -> list[tuple[float, Start]]:
    """Those that may be faster, each with the share that it may reach: most first.

    Of no more transfers than OPERATIONS, a send and a receive each.
    """
    reached = [
        (judged.most_share(bound_of(start.forest, links)), start)
        for start in starts
        if 2 * sum(len(tree.edges) for tree in start.forest.trees) <= OPERATIONS
    ]
    fast = [entry for entry in reached if entry[0] > GAIN * judged.share]
    return sorted(fast, key=lambda entry: -entry[0])  # stable: few trees first


def take_turns(problem: Problem, best: Optimum, share: float) -> Iterator[Start]:
    """Reduce-scatter, then allgather over all links, where the optimum has both at the same time.

    The joint optimum of a fabric with a broken link is hundreds of unequal trees, which fill every
    link; these are some dozens. Those whose links allow more than `share` of it.
    """
    graph = problem.graph
    if not problem.collective.two_phases or plan(graph).joint is None:
        return
    for trees in TREES[1:-1]:
        if float(fix_same(graph, trees) / best.algbw) > share:
            forest = solve(graph, problem.collective, None, trees, problem.name, apart=True)
            yield Start(forest, f"phases in turn over {trees} trees per root")


def forests_of(
    baseline: Baseline, graph: CapacityGraph, collective: Collective, root: int | None
) -> list[Forest]:
    """The forests of a baseline that take part, the fastest first; errors as `forests`."""
    forests = list(drop_equals(baseline.forests(graph, collective, root)))
    lowest = min(forests, key=lambda forest: forest.height)
    return [f for k, f in enumerate(forests) if k < FORESTS or f is lowest]


def drop_equals(forests: Iterable[Forest]) -> Iterator[Forest]:
    """Those whose trees, in whatever order, none before has: their plans are the same."""
    seen: set[object] = set()
    for forest in forests:
        trees = trees_of(forest)
        if trees not in seen:
            seen.add(trees)
            yield forest


def trees_of(forest: Forest) -> frozenset[object]:
    """What its plans follow from: its trees, in whatever order."""
    return frozenset((t.root, t.phase, t.weight, frozenset(t.edges)) for t in forest.trees)


def others(problem: Problem, best: Optimum, packed: bool = True) -> Iterator[Start]:
    """The forests of all baselines whose GPUs copy and add, with the bound of the optimum.

    In those by a rule ranks have few to send to and to receive from, so plans have thread blocks
    enough, and no two of a rank wait for one adapter. `packed`: those without one too, which take
    as long to pack as ours. Where shares of roots are given, those that have them.
    """
    from forestcoll.solver.baselines import BASELINES

    for baseline in BASELINES.values():
        with suppress(UnsupportedError, ForestError):
            if not baseline.in_switch and (packed or not baseline.packed):
                own = forests_of(baseline, problem.graph, problem.collective, problem.root)
                for forest in own:
                    if problem.graph.shares:
                        check(forest)
                    bounded = replace(forest, name=problem.name, bound=best.bound)
                    yield Start(bounded, forest.name)
