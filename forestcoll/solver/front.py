"""Fewer trees for less algbw: the points from one tree a root up to the exact optimum.

With k trees a root every link carries a whole number of them, so the optimum may need thousands
(links of 37.3 and 48.1 GB/s). A few reach nearly as much: in time U, link e carries floor(U b(e)) >
U b(e) - 1 trees. Let x be the optimal rate of a root and S a cut with s roots inside, which m links
leave. S can be left by s k trees as soon as U b(S) - m >= s k, and U b(S) >= s x U; U may be
(1 + e) k / x where 1 / (1 + e) of the optimum is enough. So e k s >= m suffices, and so does e k >=
x / (least bandwidth), for m <= b(S) / (least bandwidth), which is larger than s x only where U b(S)
has room for it. Rounding at switches can cost the same once more (`Front.limit`).

Which k below that is the first one is not monotone: all are tried, but hardly any with a flow. Cuts
that are known (what enters and leaves each rank and box, the bottleneck, and every cut that a flow
found) tell for thousands of k at once that they cannot do it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

from forestcoll.graph import CapacityGraph
from forestcoll.kernel import _kernel
from forestcoll.program import Collective
from forestcoll.solver.fixed import fixed_capacities
from forestcoll.solver.optimum import (
    Optimum,
    Task,
    analyse,
    check_root,
    is_symmetric,
    optimum,
    require_size,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[Any]  # int64, or Python's integers where those could overflow

GOALS = (Fraction(99, 100), Fraction(999, 1000))
"""Shares of the optimum whose least k every front holds."""
CELLS = 2**19
"""Numbers (k times different bandwidths) that a test of many k at once holds in memory."""
MULTIPLES = 2**12
"""How many k are tried for the exact optimum with fewer trees than its links' common unit asks."""


@dataclass(frozen=True, slots=True)
class Point:
    """The most that `trees` trees a root reach: algbw in GB/s, and its share of the optimum."""

    trees: int
    algbw: Fraction
    share: Fraction
    exact: bool = False  # the optimum in whole units, where no link is rounded


class Front:
    """The front of one collective on one graph; what has been found out is kept.

    `optimum` may be given where it is known. `root` is a rank number, for broadcast and reduce.
    Raises InfeasibleError and UnsupportedError as `optimum()` does.
    """

    def __init__(
        self,
        graph: CapacityGraph,
        collective: Collective,
        root: int | None = None,
        best: Optimum | None = None,
    ) -> None:
        root = check_root(graph, collective, root)
        self.best = best if best is not None else optimum(graph, collective, root)
        forward = graph.reverse() if collective.reduces and collective.rooted else graph
        if collective is Collective.REDUCE_SCATTER:
            forward = graph.reverse()
        self._phases = [_Phase(analyse(forward, root), 1)]
        if collective is Collective.ALLREDUCE:
            if is_symmetric(graph):
                self._phases[0].times = 2
            else:
                self._phases.append(_Phase(analyse(graph.reverse(), None), 1))
        self._known: dict[int, Fraction] = {}

    def algbw(self, trees: int) -> Fraction:
        """GB/s of the best forest with `trees` trees a root (see `fixed_algbw`)."""
        if trees not in self._known:
            time = sum((p.times / p.algbw(trees) for p in self._phases), Fraction(0))
            self._known[trees] = 1 / time
        return self._known[trees]

    def point(self, trees: int) -> Point:
        """The point of `trees` trees a root, whether a smaller k beats it or not."""
        algbw = self.algbw(trees)
        return Point(trees, algbw, algbw / self.best.algbw)

    @property
    def ceiling(self) -> Fraction:
        """GB/s that more and more trees a root come near: below the optimum in some allreduces.

        There the roots of the optimum have shares of their own.
        """
        return 1 / sum((p.times / p.ceiling for p in self._phases), Fraction(0))

    @cached_property
    def exact(self) -> Point:
        """The optimum with as few trees a root as are known to reach it."""
        best = self.best
        trees = best.trees_per_root
        if len(self._phases) == 1 and self.ceiling == best.algbw:
            fewer = self._phases[0].least_exact(trees)
            if fewer is not None:
                return Point(fewer, best.algbw, Fraction(1))
        return Point(trees, best.algbw, Fraction(1), exact=True)

    def points(self, goals: Sequence[Fraction] = GOALS) -> tuple[Point, ...]:
        """All k that beat every smaller k, up to the first that reaches every goal; the optimum.

        `goals` are shares of the optimum, from 0 to 1.
        """
        goal, found = max(goals, default=Fraction(1)), [Point(0, Fraction(0), Fraction(0))]
        limit = min(self.limit(goal), self.exact.trees - 1)
        while found[-1].algbw < goal * self.ceiling:
            last = found[-1]
            point = self._next(range(last.trees + 1, limit + 1), last.algbw, strict=True)
            if point is None:
                break
            found.append(point)
        if found[-1].share < 1:
            found.append(self.exact)
        return tuple(found[1:])

    def reaching(self, share: Fraction) -> Iterator[Point]:
        """Points with at least `share` of the optimum: k ascending, the exact optimum last.

        The first is the least k that is known. The list ends some way behind the k that surely
        reaches the share.
        """
        last = min(max(self.limit(share), 64), self.exact.trees - 1)
        after = 0
        while point := self._next(range(after + 1, last + 1), share * self.best.algbw):
            yield point
            after = point.trees
        yield self.exact

    def fewest(self, share: Fraction) -> Point:
        """The least k that reaches `share` of the optimum."""
        return next(self.reaching(share))

    def limit(self, share: Fraction) -> int:
        """A k that surely reaches `share` of the optimum of this kind of forest."""
        return max(phase.limit(share) for phase in self._phases)

    def _next(self, trees: range, algbw: Fraction, strict: bool = False) -> Point | None:
        """The first k among `trees` that reaches `algbw` (`strict`: more than that)."""
        size = 64
        while trees:
            batch, trees = trees[:size], trees[size:]
            for k in self._hopeful(batch, algbw, strict):
                if any(p.objects(k, self._least(p, algbw), strict) for p in self._phases):
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
            trees = phase.hopeful(trees, least, strict)
        return trees

    def _least(self, phase: _Phase, algbw: Fraction) -> Fraction:
        """What the phase has to reach alone where the others take the least time they can."""
        if algbw == 0:
            return algbw
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
        self._bandwidths = sorted(set(self._graph.capacity))
        self._column = {c: i for i, c in enumerate(self._bandwidths)}
        self._cuts: dict[_Cut, int] = {}  # cut -> how many k it has refused
        for side in _likely_cuts(task):
            self._learn(side)
        if task.bound.method == "linear-program":
            self._learn_dual()

    def algbw(self, trees: int) -> Fraction:
        """GB/s of this phase alone on the links with `trees` trees a root."""
        links, _, u = fixed_capacities(self.task, trees)
        return self.task.roots * trees / u * links.unit

    def limit(self, share: Fraction) -> int:
        """A k that reaches `share` of the optimum; see the head of this file."""
        if share >= 1:
            return self.task.trees_per_root
        graph, task = self.task.graph, self.task
        rounded = 1 if len(graph.ranks) == graph.n else 2
        links = min(task.rate / min(graph.capacity), Fraction(len(graph.capacity)))
        return min(task.trees_per_root, math.ceil(rounded * links * share / (1 - share)))

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
                keep = (
                    floors[:, cut.columns] @ np.array(cut.weights, dtype=floors.dtype)
                    >= ks * cut.roots
                )
                if not keep.all():
                    self._cuts[cut] += int((~keep).sum())
                    floors, ks = floors[keep], ks[keep]
            left += (int(k) for k in ks)
        return left

    def objects(self, trees: int, algbw: Fraction, strict: bool) -> bool:
        """Whether a cut, found by flows, keeps `trees` trees a root from `algbw`; it is learned."""
        if algbw == 0:
            return False
        by_bandwidth = self._floors([trees], algbw, strict)[0]
        capacity = [int(by_bandwidth[self._column[c]]) for c in self._graph.capacity]
        require_size(capacity, 1)
        graph, supply = self._graph, self.task.supply(trees)
        found = _kernel.violated(graph.n, graph.tail, graph.head, capacity, supply, graph.ranks)
        if found is not None:
            self._learn(frozenset(found[1]))
        return found is not None

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
        for t, h, c in zip(graph.tail, graph.head, graph.capacity, strict=True):
            if t in part and h not in part:
                step = math.lcm(step, (c / rate).denominator)
        ks = range(step, below, step)[:MULTIPLES]
        for k in self.hopeful(ks, self.ceiling, strict=False):
            if not self.objects(k, self.ceiling, strict=False) and self.algbw(k) == self.ceiling:
                return k
        return None

    def _floors(self, trees: Sequence[int], algbw: Fraction, strict: bool) -> Numbers:
        """Per k and different bandwidth how many trees a link carries at that algbw.

        `strict`: at an algbw that is larger by next to nothing.
        """
        import numpy as np

        u = self.task.roots * self._graph.unit / algbw  # for one tree a root
        p, q = u.as_integer_ratio()
        whole, rest = zip(*(divmod(p * c, q) for c in self._bandwidths), strict=True)
        largest = max(trees, default=0) * max(q, max(whole) + 1) * (len(self._graph.tail) + 1)
        kind: type[np.int64] | type[object] = np.int64 if largest < 2**62 else object
        k = np.array(trees, dtype=kind)[:, None]
        floors: Numbers = (
            k * np.array(whole, dtype=kind)
            + (k * np.array(rest, dtype=kind) - (1 if strict else 0)) // q
        )
        return floors

    def _learn(self, side: frozenset[int]) -> None:
        """Remembers what must leave `side`, where it is a cut."""
        graph, task = self._graph, self.task
        if all(v in side for v in graph.ranks):
            return
        root = task.root
        roots = graph.held(side) if root is None else int(graph.ranks[root] in side)
        weights: dict[int, Fraction] = defaultdict(Fraction)
        for t, h, c in zip(graph.tail, graph.head, graph.capacity, strict=True):
            if t in side and h not in side:
                weights[self._column[c]] += 1
        if roots:
            self._cuts.setdefault(_Cut.of(Fraction(roots), weights), 0)

    def _learn_dual(self) -> None:
        """Remembers the dual that proves the optimum: it holds for whole trees on links as well."""
        graph, bound = self._graph, self.task.bound
        potential = defaultdict(Fraction, bound.potentials)
        weights: dict[int, Fraction] = defaultdict(Fraction)
        for t, h, c in zip(graph.tail, graph.head, graph.capacity, strict=True):
            z = potential[t] - potential[h]
            for part, y in zip(bound.parts, bound.weights, strict=True):
                if t in part and h not in part:
                    z += y
            weights[self._column[c]] += max(Fraction(0), z)
        self._cuts.setdefault(_Cut.of(Fraction(1), weights), 0)


@dataclass(frozen=True, slots=True)
class _Cut:
    """k trees a root ask for sum of `weights` * trees over links of `columns` >= `roots` * k."""

    roots: int
    columns: tuple[int, ...]  # positions among the different bandwidths
    weights: tuple[int, ...]

    @staticmethod
    def of(roots: Fraction, weights: Mapping[int, Fraction]) -> _Cut:
        """The same in whole numbers."""
        common = math.lcm(roots.denominator, *(w.denominator for w in weights.values()))
        pairs = sorted((i, int(w * common)) for i, w in weights.items() if w)
        return _Cut(int(roots * common), tuple(i for i, _ in pairs), tuple(w for _, w in pairs))


def _likely_cuts(task: Task) -> Iterator[frozenset[int]]:
    """The bottleneck; what enters and what leaves each rank and each box."""
    graph = task.given
    everything = frozenset(range(graph.n))
    yield from task.bound.parts
    boxes: dict[str, set[int]] = {}
    for v in range(graph.n):
        boxes.setdefault(graph.box(v), set()).add(v)
    for side in (*({v} for v in graph.ranks), *boxes.values()):
        yield frozenset(side)
        yield everything - side
