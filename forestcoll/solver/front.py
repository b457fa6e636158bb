"""Pareto front of algbw against trees per root: from one tree per root up to the exact optimum.

With k trees per root every link carries a whole number of them, so the optimum may need thousands
(links of 37.3 and 48.1 GB/s). A few reach nearly as much: in time U, link e carries floor(U b(e)) >
U b(e) - 1 trees. Let x be the optimal rate of a root and S a cut with s roots inside, which m links
leave. S can be left by s k trees as soon as U b(S) - m >= s k, and U b(S) >= s x U; U may be
(1 + e) k / x where 1 / (1 + e) of the optimum is enough. So e k s >= m suffices, and so does e k >=
x / (least bandwidth), for m <= b(S) / (least bandwidth), which is larger than s x only where U b(S)
has room for it. Rounding at switches can cost the same once more (`Front.limit`).

Which k below that is the first one is not monotone: all are tried, but hardly any with a flow. Cuts
that are known (what enters and leaves each rank and box, the bottleneck, and every cut that a flow
found) tell for thousands of k at once that they cannot do it.

Rates by known cuts: which numbers of trees per root can reach an algbw, many at once.

At `algbw` k trees per root take U = roots * k * unit / algbw units of time, in which link e carries
floor(U b(e)) of them. A cut asks for as many as have to leave it; so does any sum of cuts and
balances, such as the dual of a linear program. No flow is needed to see that a k cannot do it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

from forestcoll.graph.capacity_graph import CapacityGraph, is_symmetric, require_size
from forestcoll.program import Collective
from forestcoll.schedule.dual import link_worth
from forestcoll.solver.fixed_trees import by_capacity, fit_trees, rate_worth
from forestcoll.solver.flows.max_flow import cut_off
from forestcoll.solver.optimum import algbw_of_trees, check_root, optimum
from forestcoll.solver.task import Optimum, Task, analyse, forward
from forestcoll.solver.walks import by_box, neighbours

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[Any]  # int64, or Python's integers where those could overflow

GOALS = (Fraction(99, 100), Fraction(999, 1000))
"""Shares of the optimum whose least k every front holds."""
JOINT = 32
"""k that are tried at most for a joint allreduce: each of them is a linear program."""
MULTIPLES = 2**12
"""How many k are tried for the exact optimum with fewer trees than its links' common unit asks."""


@dataclass(frozen=True, slots=True)
class Point:
    """The most that `trees` trees per root reach: algbw in GB/s, and its share of the optimum."""

    trees: int
    algbw: Fraction
    share: Fraction
    exact: bool = False  # the optimum in whole units, where no link is rounded


class Front:
    """The front of one collective on one graph; what has been found out is kept.

    `optimum` may be given where it is known. `root` is a rank number, for broadcast and reduce.
    Raises InfeasibleError and UnsupportedError as `optimum()` does.
    """

    def __repr__(self) -> str:
        return f"<Front up to {self.best.algbw} GB/s>"

    def __init__(
        self,
        graph: CapacityGraph,
        collective: Collective,
        root: int | None = None,
        best: Optimum | None = None,
    ) -> None:
        root = check_root(graph, collective, root)
        self.best = best if best is not None else optimum(graph, collective, root)
        first = analyse(forward(graph, collective), root)
        self._phases: list[_Phase | _Joint] = [_Phase(first, 1)]
        if collective is Collective.ALLREDUCE:
            if is_symmetric(graph):
                self._phases = [_Phase(first, 2)]
            else:
                self._phases.append(_Phase(analyse(graph.reverse(), None), 1))
        same = 1 / sum((p.times / p.ceiling for p in self._phases), Fraction(0))
        if same < self.best.algbw:
            self._phases = [_Joint(graph, self.best)]
        self._known: dict[int, Fraction] = {}

    def algbw(self, trees: int) -> Fraction:
        """GB/s of the best forest with `trees` trees per root (see `algbw_of_trees`)."""
        if trees not in self._known:
            time = sum((p.times / p.algbw(trees) for p in self._phases), Fraction(0))
            self._known[trees] = 1 / time
        return self._known[trees]

    def point(self, trees: int) -> Point:
        """The point of `trees` trees per root, whether a smaller k beats it or not."""
        algbw = self.algbw(trees)
        return Point(trees, algbw, algbw / self.best.algbw)

    @cached_property
    def exact(self) -> Point:
        """The optimum with as few trees per root as are known to reach it."""
        best = self.best
        trees = best.trees_per_root
        if len(self._phases) == 1:
            fewer = self._phases[0].least_exact(trees)
            if fewer is not None:
                return Point(fewer, best.algbw, Fraction(1))
        return Point(trees, best.algbw, Fraction(1), exact=True)

    def points(self, goals: Sequence[Fraction] = GOALS) -> tuple[Point, ...]:
        """All k that beat every smaller k, up to the first that reaches every goal; the optimum.

        `goals` are shares of the optimum, from 0 to 1.
        """
        goal, points = max(goals, default=Fraction(1)), [Point(0, Fraction(0), Fraction(0))]
        limit = min(self.limit(goal), self.exact.trees - 1)
        while points[-1].share < goal:
            last = points[-1]
            point = self._next(range(last.trees + 1, limit + 1), last.algbw, strict=True)
            if point is None:
                break
            points.append(point)
        if points[-1].share < 1:
            points.append(self.exact)
        return tuple(points[1:])

    def reaching(self, share: Fraction) -> Iterator[Point]:
        """Points with at least `share` of the optimum: k ascending, the exact optimum last.

        The first is the least k that is known. The list ends some way behind the k that surely
        reaches the share.
        """
        last = min(self.limit(share) + 2 * JOINT, self.exact.trees - 1)
        after = 0
        while point := self._next(range(after + 1, last + 1), share * self.best.algbw):
            yield point
            after = point.trees
        yield self.exact

    def fewest(self, share: Fraction) -> Point:
        """The least k that reaches `share` of the optimum."""
        return next(self.reaching(share))

    def limit(self, share: Fraction) -> int:
        """A k that reaches `share` of the optimum, and beyond which none is tried for it.

        Proven but for trimmed switches and for joint allreduces, whose shares of the roots differ.
        """
        most = self.best.trees_per_root
        return min(most, max(phase.limit(share, most) for phase in self._phases))

    def _next(self, trees: range, algbw: Fraction, strict: bool = False) -> Point | None:
        """The first k among `trees` that reaches `algbw` (`strict`: more than that)."""
        size = 64
        while trees:
            batch, trees = trees[:size], trees[size:]
            for k in self._hopeful(batch, algbw, strict):
                if self._objects(k, algbw, strict):
                    continue
                reached = self.algbw(k)
                if reached > algbw or (reached == algbw and not strict):
                    return self.point(k)
            size = min(2 * size, 4096)
        return None

    def _hopeful(self, trees: Sequence[int], algbw: Fraction, strict: bool) -> Sequence[int]:
        if algbw == 0:
            return trees
        for phase in self._phases:
            least = self._least(phase, algbw)
            if least > phase.ceiling or (strict and least == phase.ceiling):
                return ()
            trees = phase.rates.hopeful(trees, least, strict)
        return trees

    def _objects(self, trees: int, algbw: Fraction, strict: bool) -> bool:
        return algbw > 0 and any(
            p.objects(trees, self._least(p, algbw), strict) for p in self._phases
        )

    def _least(self, phase: _Phase | _Joint, algbw: Fraction) -> Fraction:
        """What the phase has to reach alone where the others take the least time they can."""
        others = sum((p.times / p.ceiling for p in self._phases if p is not phase), Fraction(0))
        left = 1 / algbw - others
        return phase.times / left if left > 0 else 2 * phase.ceiling


class _Phase:
    """Trees of one direction: which k can reach an algbw, told by cuts before any flow."""

    def __init__(self, task: Task, times: int) -> None:
        self.task = task
        self.times = times  # 2: the same trees once more, turned round
        self.ceiling = task.algbw
        self._graph = task.given

    @cached_property
    def rates(self) -> Rates:
        """With the cuts that are likely to tell; learned when the first k is asked for."""
        task, rates = self.task, Rates(self._graph, self.task.roots)
        for side in task.bound.parts:
            self._teach(rates, side)
        for side in _likely_cuts(task.given):
            self._teach(rates, side)
            self._teach(rates, side, inside=False)
        if task.bound.method == "linear-program":
            rates.add(1, rate_worth(task))
        return rates

    @cached_property
    def _parts(self) -> dict[int, int]:
        return dict(zip(self._graph.ranks, self._graph.parts, strict=True))

    @cached_property
    def _ends(self) -> tuple[list[list[int]], list[list[int]]]:
        """Per node the links that leave it, and those that enter it."""
        n, tail, head = self._graph.wires
        out, into = (
            neighbours(n, zip(ends, range(len(ends)), strict=True)) for ends in (tail, head)
        )
        return out, into

    def algbw(self, trees: int) -> Fraction:
        """GB/s of this phase alone on the links with `trees` trees per root."""
        return fit_trees(self.task, trees).algbw

    def limit(self, share: Fraction, most: int) -> int:
        """A k from which on all reach `share` of the optimum; see the head of this file.

        `most`: one that reaches all of it.
        """
        if share >= 1:
            return most
        graph, task = self.task.graph, self.task
        links = task.rate / min(graph.capacity)
        if len(graph.ranks) == graph.n:
            links = min(links, Fraction(len(graph.capacity)))
        else:
            links *= 2  # rounding at switches
        return math.ceil(links * share / (1 - share))

    def objects(self, trees: int, algbw: Fraction, strict: bool) -> bool:
        """Whether a cut, found by flows, keeps `trees` trees per root from `algbw`; learned."""
        capacity = self.rates.capacity(trees, algbw, strict)
        require_size(capacity, 1)
        graph = self._graph
        cut = cut_off(graph, capacity, self.task.supply(trees), graph.ranks)
        if cut is not None:
            self._teach(self.rates, cut)
        return cut is not None

    def least_exact(self, below: int) -> int | None:
        """The least k < `below` that reaches the optimum though some links are rounded, if any.

        The links that leave the bottleneck must be whole; k is a multiple of what they have in
        common. Where more multiples than MULTIPLES lie below, only those are tried.
        """
        task, graph = self.task, self._graph
        if task.bound.method != "cut":
            return None
        part, rate = task.bound.parts[0], task.rate * task.graph.unit / graph.unit
        step = 1  # U = k / rate makes every tight link whole
        for e in self._crossing(part):
            step = math.lcm(step, (graph.capacity[e] / rate).denominator)
        ks = range(step, below, step)[:MULTIPLES]
        if not ks:
            return None
        for k in self.rates.hopeful(ks, self.ceiling, strict=False):
            if not self.objects(k, self.ceiling, strict=False) and self.algbw(k) == self.ceiling:
                return k
        return None

    def _teach(self, rates: Rates, side: frozenset[int], inside: bool = True) -> None:
        """Says what must leave `side` (`inside` False: all but `side`), where it is a cut."""
        graph, root, parts = self._graph, self.task.root, self._parts
        if 2 * len(side) > graph.n:
            side, inside = graph.outside(side), not inside
        held = [parts[v] for v in side if v in parts]
        if len(held) == (len(parts) if inside else 0):
            return
        if root is None:
            roots = sum(held) if inside else self.task.roots - sum(held)
        else:
            roots = int((graph.ranks[root] in side) == inside)
        if roots:
            crossing = self._crossing(side, inside)
            rates.add(roots, Counter([graph.capacity[e] for e in crossing]))

    def _crossing(self, side: frozenset[int], leaving: bool = True) -> list[int]:
        """The links that leave a set of nodes, or those that enter it."""
        links = self._ends[0 if leaving else 1]
        other = self._graph.head if leaving else self._graph.tail
        return [e for v in side for e in links[v] if other[e] not in side]


class _Joint:
    """An allreduce whose two phases share the links: every k is a linear program, and no flow."""

    times = 1

    def __init__(self, graph: CapacityGraph, best: Optimum) -> None:
        self._graph = graph
        self.ceiling = best.algbw
        roots = sum(graph.parts)
        self.rates = Rates(graph, roots)
        if best.bound.method == "linear-program":
            worth = link_worth(graph, best.bound, Collective.ALLREDUCE)
            self.rates.add(roots, by_capacity(graph, worth))

    def algbw(self, trees: int) -> Fraction:
        """GB/s with `trees` trees per root on the average."""
        return algbw_of_trees(self._graph, Collective.ALLREDUCE, None, trees)

    def limit(self, share: Fraction, most: int) -> int:
        """The k beyond which none is tried, whatever the share."""
        return JOINT

    def objects(self, trees: int, algbw: Fraction, strict: bool) -> bool:
        """Nothing but the program itself could object."""
        return False

    def least_exact(self, below: int) -> None:
        """None is known but the optimum's own."""


def _likely_cuts(graph: CapacityGraph) -> Iterator[frozenset[int]]:
    """Each rank and each box: what leaves and what enters them is likely to be scarce."""
    yield from (frozenset([v]) for v in graph.ranks)
    yield from map(frozenset, by_box(graph).values())


CELLS = 2**19
"""Numbers (k times different bandwidths) that a test of many k at once holds in memory."""


class Rates:
    """How many trees links carry at an algbw, for many k at once, against what cuts ask for."""

    def __init__(self, graph: CapacityGraph, roots: int) -> None:
        self._graph = graph
        self._roots = roots
        self._bandwidths = sorted(set(graph.capacity))
        self._column = {c: i for i, c in enumerate(self._bandwidths)}
        self._cuts: dict[_Cut, int] = {}  # cut -> how many k it has refused
        self._heaviest = 1  # the largest sum of weights of a cut

    def add(self, roots: int, worth: Mapping[int, Fraction | int]) -> None:
        """k trees per root ask for sum of `worth` * trees over links >= `roots` * k.

        `worth`: per capacity, that of all links that have it, together.
        """
        common = math.lcm(*(Fraction(z).denominator for z in worth.values()))
        pairs = sorted((self._column[c], int(z * common)) for c, z in worth.items() if z)
        cut = _Cut(roots * common, tuple(i for i, _ in pairs), tuple(w for _, w in pairs))
        self._cuts.setdefault(cut, 0)
        self._heaviest = max(self._heaviest, cut.roots, sum(cut.weights))

    def hopeful(self, trees: Sequence[int], algbw: Fraction, strict: bool) -> Sequence[int]:
        """Those of `trees` that no known cut keeps from `algbw` GB/s (`strict`: from more)."""
        import numpy as np

        left: list[int] = []
        size = max(1, CELLS // len(self._bandwidths))
        for start in range(0, len(trees), size):
            some = trees[start : start + size]
            floors = self._floors(some, algbw, strict)
            ks = np.array(some, dtype=floors.dtype)
            for cut in sorted(self._cuts, key=lambda cut: -self._cuts[cut]):
                weights = np.array(cut.weights, dtype=floors.dtype)
                keep = floors[:, cut.columns] @ weights >= ks * cut.roots
                if not keep.all():
                    self._cuts[cut] += int((~keep).sum())
                    floors, ks = floors[keep], ks[keep]
            left += (int(k) for k in ks)
        return left

    def capacity(self, trees: int, algbw: Fraction, strict: bool) -> list[int]:
        """Per link how many trees it carries at that algbw."""
        by_bandwidth = self._floors([trees], algbw, strict)[0]
        return [int(by_bandwidth[self._column[c]]) for c in self._graph.capacity]

    def _floors(self, trees: Sequence[int], algbw: Fraction, strict: bool) -> Numbers:
        """Per k and different bandwidth how many trees a link carries at that algbw.

        `strict`: at an algbw that is larger by next to nothing.
        """
        import numpy as np

        u = self._roots * self._graph.unit / algbw  # for one tree per root
        p, q = u.as_integer_ratio()
        whole, rest = zip(*(divmod(p * c, q) for c in self._bandwidths), strict=True)
        largest = max(trees, default=0) * max(q, (max(whole) + 1) * self._heaviest)
        kind: type[np.int64] | type[object] = np.int64 if largest < 2**62 else object
        k = np.array(trees, dtype=kind)[:, None]
        floors: Numbers = (
            k * np.array(whole, dtype=kind)
            + (k * np.array(rest, dtype=kind) - (1 if strict else 0)) // q
        )
        return floors


@dataclass(frozen=True, slots=True)
class _Cut:
    """k trees per root ask for sum of `weights` * trees over links of `columns` >= `roots` * k."""

    roots: int
    columns: tuple[int, ...]  # positions among the different bandwidths
    weights: tuple[int, ...]
