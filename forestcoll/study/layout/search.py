"""Search over placements: orders of the fabric, then trades of GPUs; the best is costed exactly.

Starts deal the dimensions out over the hierarchy of links in every order. From the best of them,
ranks trade GPUs while the least that a placement costs becomes smaller; a few random trades lead
on. A placement is costed by the exact program only where its least cost is below the best exact
one; cuts that limit it are learned, so that the least cost comes nearer the exact one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice, permutations

import numpy as np

from forestcoll.common.clock import Progress
from forestcoll.study.layout.costs import GIGA, NEVER, Costs, Placement, Row, seconds_of
from forestcoll.study.layout.fabric import Floats

Before = tuple[int, int, list[Floats], list[tuple[Floats, list[int], Floats]]]

STARTS = 400
"""Orders of dimensions and GPUs that are looked at."""
CLIMBS = 6
"""Of them, those from which ranks trade GPUs."""
WORK = 12_000
"""Trades that are looked at in all up to 32 ranks; in proportion fewer where they are more."""
DEAR = 30
"""Trades that a program of a group alone counts as, which a trade may need."""
PACKS = 8
"""For each row of traffic, times that the best groups of GPUs are packed."""
JOINS = 2_000
"""Trades of a start, at most, that join the GPUs of groups, where no start serves all."""
KICKS = 20
"""Rounds of random trades without a better placement before the search ends."""
ALL_PAIRS = 64
"""Ranks up to which every pair may trade; beyond, those of slow groups with one of each kind."""
CLOSE = 1e-9


@dataclass
class Best:
    """The best placement so far, and its exact seconds (None: it cannot be served)."""

    placement: Placement
    seconds: Fraction | None
    interrupted: bool = False


def search(costs: Costs, bound: float, progress: Progress | None = None) -> Best:
    """The best placement that was found, never worse than the default: rank r on GPU r.

    `bound`: seconds that no placement beats, at which the search ends. Ctrl-C ends it, too, with
    the best so far. Nothing else is tried where the job's placement is fixed.
    """
    world = costs.job.parallel.world
    default = tuple(range(world))
    allowed = State(costs, default).bound < NEVER
    best = Best(default, seconds_of(costs.all_steps(default)) if allowed else None)
    try:
        if costs.job.placement == "search":
            _Search(costs, bound, best, progress).run()
    except KeyboardInterrupt:
        if best.seconds is None:  # there is nothing to keep
            raise
        best.interrupted = True
    return best


class _Search:
    def __init__(self, costs: Costs, bound: float, best: Best, progress: Progress | None) -> None:
        self.costs, self.bound, self.best, self.progress = costs, bound, best, progress
        self.random = random.Random(0)
        world = costs.job.parallel.world
        self.work = self.whole = max(500, WORK * 32 // max(32, world))

    @property
    def done(self) -> bool:
        """Whether nothing is better than the best."""
        seconds = self.best.seconds
        return seconds is not None and float(seconds) <= self.bound * (1 + CLOSE)

    def run(self) -> None:
        """Starts, climbs, kicks."""
        orders = sorted(self.starts(), key=lambda state: state.score)
        packed = sorted(self.packs(), key=lambda state: state.score)
        starts = [*packed[: CLIMBS // 2], *orders][:CLIMBS]
        if min(state.bound for state in starts) >= NEVER:
            starts = sorted(map(self.join, starts), key=lambda state: state.score)
        for state in starts:
            self.consider(state)
            if self.done:
                return
        lead = starts[0]
        for state in starts:
            self.climb(state, self.whole // (2 * CLIMBS))
            self.consider(state)
            lead = min(lead, state, key=lambda state: state.score)
            if self.done:
                return
        idle = 0
        while idle < KICKS and self.work > 0 and not self.done:
            state = State(self.costs, lead.placement)
            for _ in range(self.random.randint(2, 5)):
                state.swap(*self.random.sample(range(len(lead.placement)), 2))
            self.climb(state, self.work)
            idle = 0 if self.consider(state) or state.score < lead.score else idle + 1
            lead = min(lead, state, key=lambda state: state.score)

    def starts(self) -> Iterator[State]:
        """Every order of dimensions on the fabric's order and on the topology's."""
        grid = self.costs.job.parallel.grids[0]
        dims = [i for i, size in enumerate(grid.sizes) if size > 1]
        seen = set[Placement]()
        orders = np.array([self.costs.fabric.order, range(grid.world)])
        for nest in islice(permutations(dims), STARTS):
            outer = nest[::-1]  # the last one varies the slowest
            places = np.arange(grid.world).reshape([grid.sizes[i] for i in outer])
            places = places.transpose([outer.index(i) for i in dims[::-1]]).ravel()
            for placement in map(tuple, orders[:, places].tolist()):
                if placement not in seen:
                    seen.add(placement)
                    yield State(self.costs, placement)

    def packs(self) -> Iterator[State]:
        """For each dimension, GPUs dealt out to its groups by the best group that is still free."""
        for row in self.costs.rows():
            if row.traffic.collective is None:
                continue
            groups, rates = self.costs.subsets(row)
            mixed = np.random.default_rng(0)
            for _ in range(PACKS if len(groups) else 0):
                order = np.lexsort((mixed.random(len(rates)), -rates))
                free = np.ones(self.costs.job.parallel.world, dtype=bool)
                placement = [0] * len(free)
                for unit in row.units:
                    order = order[free[groups[order]].all(axis=1)]
                    best = groups[order[0]]
                    free[best] = False
                    for rank, gpu in zip(unit, best.tolist(), strict=True):
                        placement[rank] = gpu
                yield State(self.costs, placement)

    def join(self, start: State) -> State:
        """Ranks of groups whose GPUs do not reach each other trade until all do, if it can be."""
        gpus, pieces = list(start.placement), self.costs.pieces
        units = [unit for row in self.costs.rows() for unit in row.units]
        parts = [pieces([gpus[rank] for rank in unit]) for unit in units]
        for _ in range(JOINS):
            apart = [unit for unit, count in zip(units, parts, strict=True) if count > 1]
            if not apart:
                break
            a = self.random.choice(self.random.choice(apart))
            b = self.random.randrange(len(gpus))
            gpus[a], gpus[b] = gpus[b], gpus[a]
            after = {
                i: pieces([gpus[rank] for rank in unit])
                for i, unit in enumerate(units)
                if a in unit or b in unit
            }
            if sum(after.values()) > sum(parts[i] for i in after):
                gpus[a], gpus[b] = gpus[b], gpus[a]
            else:
                parts = [after.get(i, count) for i, count in enumerate(parts)]
        return State(self.costs, gpus)

    def consider(self, state: State) -> bool:
        """Costs a placement exactly where it may be the best; whether it is."""
        best = self.best
        least = math.inf if best.seconds is None else float(best.seconds)
        if state.bound >= min(NEVER, least * (1 - CLOSE)):
            return False
        placement = state.placement
        costs = [*self.costs.all_steps(placement)]
        seconds = seconds_of(costs)
        self.costs.fabric.learn(side for cost in costs if cost for side in cost.sides)
        if seconds is None or (best.seconds is not None and seconds >= best.seconds):
            return False
        best.placement, best.seconds = placement, seconds
        return True

    def climb(self, state: State, work: int) -> None:
        """Trades that make the score smaller, until none does or the work is used up."""
        state.refresh()  # cuts may have been learned
        score, better = state.score, True
        while better and work > 0 and self.work > 0:
            better = False
            for a, b in self.pairs(state):
                if state.is_idle(a, b):
                    continue
                solved = self.costs.solved
                before = state.swap(a, b)
                after = state.score
                spent = 1 + DEAR * (self.costs.solved - solved)
                work -= spent
                self.work -= spent
                if after < score * (1 - CLOSE):
                    score, better = after, True
                else:
                    state.undo(before)
                if work <= 0 or self.work <= 0:
                    break
            if self.progress is not None:
                self.progress("layout", 1 - self.work / self.whole)

    def pairs(self, state: State) -> list[tuple[int, int]]:
        """Pairs of ranks that may trade, in random order."""
        world = len(state.gpus)
        if world <= ALL_PAIRS:
            out = [(a, b) for a in range(world) for b in range(a)]
            self.random.shuffle(out)
            return out
        slow = np.zeros(world)
        for step, times in zip(self.costs.steps, state.times, strict=True):
            for row, own in zip(step, times, strict=True):
                for unit in np.argsort(-own)[:4].tolist():
                    slow[list(row.units[unit])] += own[unit]
        first = np.argsort(-slow, kind="stable")[:16].tolist()
        mixed = list(range(world))
        self.random.shuffle(mixed)
        out = []
        for a in first:
            kinds: dict[object, int] = {}
            near = self.costs.fabric.pairs[state.gpus[a]]
            for b in mixed:
                kinds.setdefault((int(near[state.gpus[b]]), float(slow[b])), b)
            out += [(a, b) for b in kinds.values() if b != a]
        self.random.shuffle(out)
        return out


# --- a placement under search ---------------------------------------------------------------------


SLOPE = 0.02
"""What the mean over groups and cuts counts beside the largest: it leads over plateaus."""
SLICE = 32
"""Units whose data over cuts are added up at once."""
UNSERVED = 20
"""Times the default's slowest that what cannot be served counts, so that a search gets past it."""


class State:
    """`gpus[r]` is the GPU of rank r. `bound` and `score` are seconds.

    Per step, `times` has a number for each unit of its rows, and `loads` for each cut: seconds
    that the unit takes alone, and that the cut takes to let all of the step's data leave.
    """

    def __init__(self, costs: Costs, placement: Sequence[int]) -> None:
        self.costs = costs
        self.gpus = np.array(placement)
        self.times = [
            [np.array([self._time(row, unit) for unit in row.units]) for row in step]
            for step in costs.steps
        ]
        self.refresh()
        served = [t for rows in self.times for times in rows for t in times.tolist() if t < NEVER]
        self.dear = UNSERVED * max(served, default=1.0)
        self.kept = [costs.job.groups(dim) for dim in costs.job.keep]
        self.home = [
            {rank: number for number, group in enumerate(groups) for rank in group}
            for groups in self.kept
        ]
        self.torn = [
            np.array([self._tears(group) for group in groups], dtype=float) for groups in self.kept
        ]

    def refresh(self) -> None:
        """Counts what crosses cuts anew, as there are more of them."""
        fabric = self.costs.fabric
        self.limits = fabric.leaving * GIGA
        self.loads: list[Floats] = []
        for step in self.costs.steps:
            load = np.zeros(len(fabric.leaving))
            for row in step:
                for start in range(0, len(row.units), SLICE):
                    numbers = range(start, min(start + SLICE, len(row.units)))
                    load += self._load(row, numbers)
            self.loads.append(load)

    @property
    def placement(self) -> Placement:
        """Per rank its GPU."""
        return tuple(self.gpus.tolist())

    @property
    def bound(self) -> float:
        """Seconds that the placement takes at least; `NEVER` and more where it cannot be."""
        return self._sum(0.0, NEVER)

    @property
    def score(self) -> float:
        """What a search makes smaller: the bound, and some of the mean."""
        return self._sum(SLOPE, self.dear)

    def _sum(self, slope: float, never: float) -> float:
        total = 0.0
        for own, load in zip(self.times, self.loads, strict=True):
            over = load / self.limits
            rows = [np.minimum(times, never) for times in own]
            worst = max(float(times.max()) for times in rows)
            total += max(worst, float(over.max()) if over.size else 0.0)
            if slope:
                total += slope * sum(float(times.mean()) for times in rows)
                total += slope * (float(over.mean()) if over.size else 0.0)
        for torn in self.torn:
            total += never * (float(torn.max()) + slope * float(torn.mean()))
        return total

    def swap(self, a: int, b: int) -> Before:
        """Ranks a and b trade GPUs; what `undo` takes to put everything back."""
        touched = [
            [list(dict.fromkeys((*row.of[a], *row.of[b]))) for row in step]
            for step in self.costs.steps
        ]
        before: list[Floats] = list(self.loads)
        self.loads = [load.copy() for load in before]
        self._count(touched, -1.0)
        self.gpus[a], self.gpus[b] = self.gpus[b], self.gpus[a]
        self._count(touched, 1.0)
        old: list[tuple[Floats, list[int], Floats]] = []
        for step, units, times in zip(self.costs.steps, touched, self.times, strict=True):
            for row, numbers, own in zip(step, units, times, strict=True):
                old.append((own, numbers, own[numbers]))
                own[numbers] = [self._time(row, row.units[number]) for number in numbers]
        for groups, home, torn in zip(self.kept, self.home, self.torn, strict=True):
            numbers = [home[rank] for rank in (a, b) if rank in home]
            old.append((torn, numbers, torn[numbers]))
            torn[numbers] = [self._tears(groups[number]) for number in numbers]
        return a, b, before, old

    def undo(self, before: Before) -> None:
        """As it was before that trade, the last one."""
        a, b, self.loads, old = before
        self.gpus[a], self.gpus[b] = self.gpus[b], self.gpus[a]
        for values, numbers, had in old:
            values[numbers] = had

    def is_idle(self, a: int, b: int) -> bool:
        """Whether no group tells these ranks apart."""
        return all(row.of[a] == row.of[b] for row in self.costs.rows())

    def _count(self, touched: list[list[list[int]]], sign: float) -> None:
        for number, (step, units) in enumerate(zip(self.costs.steps, touched, strict=True)):
            for row, numbers in zip(step, units, strict=True):
                if numbers:
                    self.loads[number] += sign * self._load(row, numbers)

    def _load(self, row: Row, numbers: Sequence[int]) -> Floats:
        """Bytes that units of a row send over each cut."""
        members = self.gpus[np.array([row.units[number] for number in numbers])]
        held = self.costs.fabric.inside[:, members].sum(axis=2)
        crossing: Floats = self.costs.crossing(row, held, members.shape[1]).sum(axis=1)
        return crossing * row.total

    def _time(self, row: Row, unit: Sequence[int]) -> float:
        rate = self.costs.alone(row, self.gpus[list(unit)].tolist())
        return row.total / (rate * GIGA) if rate else NEVER

    def _tears(self, group: Sequence[int]) -> float:
        box = self.costs.fabric.box
        return float(len({box[g] for g in self.gpus[list(group)].tolist()}) > 1)
