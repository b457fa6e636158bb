"""Rivals: other forests than the one that links and limits speak for, where its plans are slow.

The optimum of the links may be the wrong forest for plans: dozens of unequal trees per root become
thread blocks that wait for each other, and of two optima from one root the one of fewer trees is a
chain of many hops. So plans are simulated, and where they stay far behind the optimum a few other
forests are made too, and plans of the most promising: rings, and other numbers of trees per root.
Where they come near it, a mesh may have rings that reach all of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.kernel import _kernel
from forestcoll.program import Collective
from forestcoll.schedule.forest import Forest, Path
from forestcoll.verify import simulate

if TYPE_CHECKING:
    from forestcoll.graph.capacity_graph import CapacityGraph
    from forestcoll.program import Program
    from forestcoll.program.targets import PlanFormat
    from forestcoll.schedule.latency import Latencies
    from forestcoll.solver import Optimum
    from forestcoll.solver.front import Front, Point
    from forestcoll.verify.simulate import Band

SURE: Final = 0.9
"""Share of the optimum from which on no other forest is looked for."""
GAIN: Final = 1.03
"""How many times as fast another forest's plans have to be: as the first choice's, or as those of
one found since that takes fewer thread blocks."""
TREES: Final = (1, 2, 4, 8, 16)
"""Trees a root of forests that are looked at."""
LOWERED: Final = 2
"""Forests whose plans are made at most, but for those after one that was the fastest so far."""
PIECES: Final = 16
"""Pieces of each tree where forests are compared: few, for what a plan makes of them is rougher."""
RING_GAIN: Final = 1.002
"""How many times as fast plans of rings have to be, in no more thread blocks."""
RING_RANKS: Final = 16
"""Ranks up to which rings are looked for: so many are packed at once (baselines/order.py)."""


def size_of(collective: Collective) -> int:
    """Bytes for which forests are compared, at most: with a root a share is passed on often."""
    return 64 * 10**6 if collective.has_root else simulate.SIZE


@dataclass(frozen=True, slots=True)
class Judged:
    """A forest's plans as they are written, with their bands.

    `share`: what they reach of the optimum under the worse of both rules, on an average of the
    formats' times.
    """

    programs: dict[PlanFormat, Program]
    notes: list[str]
    bands: Mapping[PlanFormat, Band] = field(default_factory=dict)
    share: float = 1.0

    @property
    def size(self) -> int:
        """Bytes of the call that was simulated."""
        return next(iter(self.bands.values())).size

    @property
    def call(self) -> str:
        """`"64 MB"`, `"1024 KiB"`: that size for people."""
        whole = self.size % 10**6 == 0
        return f"{self.size // 10**6} MB" if whole else f"{self.size >> 10} KiB"

    @property
    def blocks(self) -> int:
        """Thread blocks of the rank that has most, of the plan that takes most."""
        ranks = (rank for program in self.programs.values() for rank in program.ranks)
        return max(len(rank.thread_blocks) for rank in ranks)

    @property
    def least(self) -> float:
        """GB/s of the slowest plan."""
        return min(band.least for band in self.bands.values())


def judge(
    forest: Forest,
    programs: dict[PlanFormat, Program],
    notes: list[str],
    best: Fraction,
    links: Latencies | None,
) -> Judged:
    """The plans with what they reach of `best` GB/s. Not simulated beyond `simulate.RANKS`.

    With the links' latencies, which tell chains of many hops from stars; without a root as much as
    without them, as the search that made the plans counts.
    """
    if not programs or forest.n > simulate.RANKS:
        return Judged(programs, notes)
    size = min(simulate.longest(p, size_of(forest.collective)) for p in programs.values())
    bands = {
        form: simulate.band(program, forest, size, links=links, options=simulate.LINKS_ALONE)
        for form, program in programs.items()
    }
    counted = [*bands.values()]
    if not forest.collective.has_root and links is not None:
        counted += [
            simulate.band(program, forest, size, options=simulate.LINKS_ALONE)
            for program in programs.values()
        ]
    times = [1 / band.share(best) for band in counted]
    return Judged(programs, notes, bands, len(times) / sum(times))


def speed_note(ours: str, taken: Judged, theirs: str, first: Judged, option: str) -> str:
    """Why `ours` were taken in place of `theirs`, the first choice; `option` asks for those."""
    return (
        f"{ours} for speed: simulated at {taken.call} with signals that take no time, plans of "
        f"them reach {taken.least:.1f} GB/s, of {theirs} {first.least:.1f} ({option})"
    )


def points(front: Front, exact: Point, collective: Collective, n: int, share: float) -> list[Point]:
    """Numbers of trees per root whose links allow more than GAIN times `share` of the optimum.

    Few first: without a root it is thread blocks that wait for each other, and few trees have few.
    With a root `promising` says which are worth a plan. Among them is the optimum in more trees: in
    as many as there are other ranks each can be a star behind a switch.
    """
    by_trees = {k: front.point(k) for k in TREES}
    if collective.has_root:
        for k in (exact.trees * times for times in (2, 4, 8, n - 1)):
            by_trees[k] = front.point(k)
    by_trees.pop(exact.trees, None)
    return [point for point in by_trees.values() if float(point.share) > GAIN * share]


def distinct(
    forests: Iterable[tuple[Point, Forest]], first: Forest
) -> Iterator[tuple[Point, Forest]]:
    """Those with other trees than `first` and those before them, or with other shares of the data.

    Twice as many trees per root may be each tree twice.
    """
    seen = [_shares(first)]
    for point, forest in forests:
        shares = _shares(forest)
        if shares not in seen:
            seen.append(shares)
            yield point, forest


def _shares(forest: Forest) -> dict[tuple[int, tuple[Path, ...]], Fraction]:
    """Of each tree its part of all the data."""
    total = sum(tree.weight for tree in forest.trees)
    shares: dict[tuple[int, tuple[Path, ...]], Fraction] = defaultdict(Fraction)
    for tree in forest.trees:
        shares[tree.root, tree.edges] += Fraction(tree.weight, total)
    return shares


def promising(
    forests: Iterable[tuple[Point, Forest]], best: Fraction, share: float, links: Latencies | None
) -> Iterator[tuple[Point, Forest]]:
    """The forests with a root that are worth a plan, the fastest first.

    Their trees alone reach more than GAIN times `share` of `best` GB/s.
    """
    fast: list[tuple[float, int, int, Point, Forest]] = []
    for point, forest in forests:
        size = size_of(forest.collective)
        reached = simulate.forest_band(forest, size, links=links, pieces=PIECES).least
        if reached / float(best) > GAIN * share:
            fast.append((-reached, forest.height, point.trees, point, forest))
    ordered = sorted(fast, key=lambda entry: entry[:3])
    return ((point, forest) for *_, point, forest in ordered)


def rings(graph: CapacityGraph, collective: Collective, best: Optimum, name: str) -> Forest | None:
    """Rings through a mesh that reach the optimum of an allreduce, or None where there are none.

    Everybody does the same at the same time, so that no link waits when a call begins and ends.
    """
    from forestcoll.solver.baselines.order import boxes_of

    n = len(graph.ranks)
    if not collective.two_phases or graph.n > n or n > RING_RANKS:
        return None
    # each ring leaves every set of ranks, so none is looked for where that is too narrow; but rings
    # inside boxes may also be joined by a narrower one between them
    first, *others = graph.ranks
    width, _ = _kernel.least_flow(graph.n, graph.tail, graph.head, graph.capacity, first, others)
    narrow = width * graph.unit * n < 2 * (n - 1) * best.algbw
    if narrow and len(boxes_of(graph)) == 1:
        return None
    return next(iter(rings_of(graph, collective, best, name, 1)), None)


def rings_of(
    graph: CapacityGraph, collective: Collective, best: Optimum, name: str, least: float
) -> list[Forest]:
    """Sets of rings as libraries use them that reach `least` of the optimum, the fastest first.

    Everybody has but one to send to and one to receive from in each, so plans of many ranks behind
    one switch have thread blocks enough. None with a root: there chains fill and run dry.
    """
    from forestcoll.solver.baselines import by_name

    if collective.has_root:
        return []
    try:
        forests = by_name("rings").forests(graph, collective)
    except UnsupportedError:
        return []
    slowest = Fraction(least) * best.algbw
    fast = [forest for forest in forests if forest.plain_algbw >= slowest]
    return [replace(forest, name=name, bound=best.bound) for forest in fast]
