"""What a placement costs: exactly, by the program of all groups that run together, and at least.

The least needs no program: no group is faster at once with others than alone, and what groups have
to send over a cut shares the links that leave it. Both are looked up or added up, so a search can
ask for thousands of placements; the exact cost, of those alone that may be better than the best.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain, combinations, pairwise
from typing import NamedTuple

import numpy as np

from forestcoll import solver
from forestcoll.common.errors import InfeasibleError
from forestcoll.graph.capacity_graph import CapacityGraph, Relays
from forestcoll.graph.kernel import _kernel
from forestcoll.program import Collective
from forestcoll.schedule.group import Group, view_groups
from forestcoll.schedule.layout_file import Job, Traffic, weights
from forestcoll.solver.alltoall.demand import Demand
from forestcoll.solver.alltoall.flows import Optimum, solve
from forestcoll.solver.groups.split import Split, split_apart
from forestcoll.solver.walks import neighbours
from forestcoll.study.layout.fabric import Array, Fabric, Floats, mix, shapes

GIGA = 10**9
NEVER = 1e9
"""Seconds of what cannot be served at all."""
SUBSETS = 50_000
"""Groups of GPUs that are compared for the best one; beyond, cuts bound it."""
TRIED = 10_000
"""Links, in all, of groups that are no others' image, up to which each is solved alone."""

LINKS = 560
"""Links that no symmetry makes alike up to which a step's program is exact: a second, about."""

Unit = tuple[int, ...]


class Row(NamedTuple):
    """A row of traffic and its units: groups of ranks, or pairs of stages that send to each other.

    `of[r]`: the units of rank r. `total`: bytes a step.
    """

    traffic: Traffic
    units: tuple[Unit, ...]
    of: tuple[tuple[int, ...], ...]
    total: int

    @property
    def kinds(self) -> tuple[tuple[Collective, int], ...]:
        """(collective, whether members are turned round) of what each unit runs at once."""
        if self.traffic.collective is None:
            return (Collective.BROADCAST, 1), (Collective.BROADCAST, -1)
        return ((self.traffic.collective, 1),)


def rows_of(job: Job, step: Sequence[Traffic]) -> tuple[Row, ...]:
    """The rows of a step with their units of ranks."""
    out = []
    for traffic in step:
        groups: list[Unit] = job.groups(traffic.dim)
        if traffic.collective is None:
            groups = [pair for g in groups for pair in pairwise(g)]
        of: list[list[int]] = [[] for _ in range(job.parallel.world)]
        for number, group in enumerate(groups):
            for rank in group:
                of[rank].append(number)
        out.append(Row(traffic, tuple(groups), tuple(map(tuple, of)), traffic.total))
    return tuple(out)


class StepCost(NamedTuple):
    """What a step reaches: the algbw (GB/s) of its largest row, which is at most `bound`.

    `shares`: how links are split; `exchange`: of an all-to-all, in its place. `sides`: node sets
    whose links limit it.
    """

    algbw: Fraction
    bound: Fraction
    seconds: Fraction
    sides: tuple[frozenset[int], ...]
    shares: Split | None = None
    note: str = ""
    exchange: Optimum | None = None


Placement = tuple[int, ...]  # per rank the number of its GPU, as a rank of the fabric's graph


def seconds_of(costs: Iterable[StepCost | None]) -> Fraction | None:
    """Seconds of all steps; None where one cannot be served: those behind it are not asked for."""
    total = Fraction(0)
    for cost in costs:
        if cost is None:
            return None
        total += cost.seconds
    return total


@dataclass
class Costs:
    """Costs of placements of a job on a fabric.

    `evaluated` counts exact programs of steps, `solved` those of groups alone.
    """

    job: Job
    fabric: Fabric
    relays: Relays
    steps: tuple[tuple[Row, ...], ...] = ()
    evaluated: int = 0
    solved: int = 0
    _alone: dict[object, float] = field(default_factory=dict)
    _exact: dict[object, StepCost | None] = field(default_factory=dict)
    _solved: dict[tuple[int, Placement], StepCost] = field(default_factory=dict)
    _subsets: dict[object, tuple[Array, Floats]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.steps = tuple(rows_of(self.job, step) for step in self.job.steps)

    def views(self, step: int, placement: Placement) -> list[Group]:
        """The groups of a step, row by row, units in order; sendrecv: there, then back."""
        nodes = self.fabric.graph.ranks
        rows = self.steps[step]
        shares = weights([row.traffic for row in rows])
        members, kinds, own = [], [], []
        for row, weight in zip(rows, shares, strict=True):
            for collective, turn in row.kinds:
                for unit in row.units:
                    members.append([nodes[placement[r]] for r in unit][::turn])
                    kinds.append(collective)
                    own.append(weight)
        graph = self.fabric.graph
        return view_groups(graph, members, [0] * len(members), self.relays, kinds, own)

    def step(self, number: int, placement: Placement) -> StepCost | None:
        """The exact cost of a step; None where a group's GPUs cannot reach each other."""
        key = number, self._shape(number, placement)
        if key not in self._exact:
            self.evaluated += 1
            try:
                self._exact[key] = self.solve(number, placement)
            except InfeasibleError:
                self._exact[key] = None
        return self._exact[key]

    def all_steps(self, placement: Placement) -> Iterator[StepCost | None]:
        """The exact cost of each step, as `step` has it, one after the other."""
        return (self.step(number, placement) for number in range(len(self.steps)))

    def solve(self, number: int, placement: Placement) -> StepCost:
        """The same for these very GPUs, not for a placement that is alike; or InfeasibleError."""
        if (number, placement) in self._solved:
            return self._solved[number, placement]
        most = max(row.total for row in self.steps[number])
        if self.steps[number][0].traffic.collective is Collective.ALLTOALL:
            best = solve(self.demand(number, placement))
            seconds = most / (best.algbw * GIGA)
            cost = StepCost(best.algbw, best.bound, seconds, (), exchange=best)
            return self._solved.setdefault((number, placement), cost)
        shares = split_apart(self.fabric.graph, self.views(number, placement), LINKS)
        cuts = sorted(shares.bound.cuts, key=lambda cut: -cut.weight)
        sides = tuple(dict.fromkeys(cut.side for cut in cuts))
        seconds = most / (shares.algbw * GIGA)
        cost = StepCost(shares.algbw, shares.bound.algbw, seconds, sides, shares, shares.note)
        return self._solved.setdefault((number, placement), cost)

    def demand(self, number: int, placement: Placement) -> Demand:
        """The all-to-all of a step."""
        (row,) = self.steps[number]
        members = [placement[r] for unit in row.units for r in unit]
        return self._exchange(members, len(row.units[0]), self.relays != "all")

    def _exchange(self, members: Sequence[int], size: int, closed: bool) -> Demand:
        """All-to-alls of so many GPUs each."""
        graph = self.fabric.graph
        groups = tuple(tuple(range(i, i + size)) for i in range(0, len(members), size))
        ranks = tuple(graph.ranks[i] for i in members)
        demand = Demand(replace(graph, ranks=ranks), None, groups, closed)
        demand.check_reachable()
        return demand

    def _shape(self, number: int, placement: Placement) -> bytes:
        """The same bytes for placements whose groups symmetries make alike."""
        joined = self.fabric.pairs.copy()
        for kind, row in enumerate(self.steps[number]):
            for unit in row.units:
                own = [placement[r] for r in unit]
                joined[np.ix_(own, own)] += (kind + 1) * 1_000_000_007
        colour = mix(joined).sum(axis=1)
        colour = mix(mix(joined ^ colour[None, :]).sum(axis=1))
        return bytes(np.sort(colour).tobytes())

    # ------------------------------------------------------------------------- at least

    def alone(self, row: Row, members: Sequence[int]) -> float:
        """GB/s of a unit on these GPUs with all links to itself; 0 where it cannot be served.

        Where all GPUs relay, what known cuts allow: groups hinder each other long before.
        """
        kind = row.traffic.collective
        key: object = (kind, tuple(members) if kind is None else tuple(sorted(members)))
        if key not in self._alone:
            (code,) = shapes(self.fabric.pairs, np.array([members])).tolist()
            like = (kind, len(members), code)
            if like not in self._alone:
                cuts = self.relays == "all" and row.traffic.collective is not Collective.ALLTOALL
                self._alone[like] = (self._pass if cuts else self._reach)(row, members)
            self._alone[key] = self._alone[like]
        return self._alone[key]

    def pieces(self, members: Sequence[int]) -> int:
        """Parts, without a link from one to another, that GPUs and all switches fall into."""
        graph = self.fabric.graph
        nodes = [graph.ranks[i] for i in members]
        others = [v for v in range(graph.n) if graph.gpu[v] and v not in nodes]
        labels = _kernel.components(*graph.wires, others)
        return len({labels[v] for v in nodes})

    def _reach(self, row: Row, members: Sequence[int]) -> float:
        graph = self.fabric.graph
        self.solved += 1
        try:
            if row.traffic.collective is Collective.ALLTOALL:
                return float(solve(self._exchange(members, len(members), True)).algbw)
            nodes, rates = [graph.ranks[i] for i in members], []
            for collective, turn in row.kinds:
                (view,) = view_groups(graph, [nodes[::turn]], [0], self.relays, collective)
                root = 0 if collective.has_root else None
                rates.append(solver.optimum(_lean(view.graph), collective, root, False).bound.algbw)
            return float(min(rates))
        except InfeasibleError:
            return 0.0

    def _pass(self, row: Row, members: Sequence[int]) -> float:
        """GB/s that the cuts leave to a unit."""
        held = self.fabric.inside[:, list(members)].sum(axis=1)
        needed = self.crossing(row, held, len(members))
        cut = needed > 0
        return float((self.fabric.leaving[cut] / needed[cut]).min()) if cut.any() else math.inf

    def crossing(self, row: Row, held: Floats, size: int) -> Floats:
        """What of a unit's algbw has to leave cuts that hold so many of its `size` members."""
        crosses = (held > 0) & (held < size)
        kind = row.traffic.collective
        share = np.ones_like(held)  # all of the data, or one way of a pair of stages
        if kind is not None and kind.transposes:
            share = held * (size - held) / size
        elif kind is not None and kind.input_is_part:
            share = held / size
        elif kind is not None and kind.output_is_part:
            share = (size - held) / size
        return np.where(crosses, share, 0.0)

    # ------------------------------------------------------------------------- bounds

    def best_alone(self, row: Row) -> tuple[float, bool]:
        """(GB/s that no placement exceeds for this row alone, whether best groups were looked for).

        Every GPU is in a group: the least, over the GPUs, of the best group that holds it.
        """
        count, size = len(self.fabric.box), len(row.units[0])
        limit = self._cut_limit(row, count, size)
        groups, rates = self.subsets(row)
        if not len(groups):
            return limit, False
        best = np.zeros(count)
        np.maximum.at(best, groups, rates[:, None])
        return min(limit, float(best.min())), True

    def subsets(self, row: Row) -> tuple[Array, Floats]:
        """(groups of GPUs that a unit may be, a row each; GB/s of each alone).

        None where they are too many to be solved.
        """
        fabric = self.fabric
        count, size = len(fabric.box), len(row.units[0])
        key = row.traffic.collective, size
        if key not in self._subsets:
            none = np.zeros((0, size), dtype=np.int64), np.zeros(0)
            self._subsets[key] = none
            if math.comb(count, size) <= SUBSETS:
                groups = np.array(list(combinations(range(count), size)))
                _, first, alike = np.unique(
                    shapes(fabric.pairs, groups), return_index=True, return_inverse=True
                )
                links = len(fabric.graph.tail) * size // count if self.relays != "all" else 1
                if len(first) * links < TRIED:
                    rates = [self.alone(row, groups[i].tolist()) for i in first]
                    self._subsets[key] = groups, np.array(rates)[alike]
        return self._subsets[key]

    def _cut_limit(self, row: Row, count: int, size: int) -> float:
        """By cuts that hold no whole number of groups, and by what all ranks receive in all."""
        fabric, kind = self.fabric, row.traffic.collective
        chain = size if kind is not None else len(self.job.groups(row.traffic.dim)[0])
        rest = fabric.inside.sum(axis=1) % chain
        needed = self.crossing(row, np.where(rest > 0, rest, 0.0), chain)
        limits = fabric.leaving[needed > 0] / needed[needed > 0]
        limit = float(limits.min()) if limits.size else math.inf
        if kind is not None and kind.two_phases and not any(fabric.graph.multicast):
            graph = fabric.graph
            into = sum(c for _, v, c in graph.arcs if v in set(graph.ranks)) * graph.unit
            limit = min(limit, float(into) * size / (2 * count * (size - 1)))
        return limit

    def rows(self) -> Iterator[Row]:
        """Those of all steps."""
        return chain.from_iterable(self.steps)


def _lean(graph: CapacityGraph) -> CapacityGraph:
    """The graph without dead ends: what no walk from one rank to another passes."""
    near, ranks = [{*own} for own in neighbours(graph.n, graph.ends, both=True)], {*graph.ranks}
    gone = {v for v in range(graph.n) if v not in ranks and len(near[v]) < 2}
    for v in (todo := sorted(gone)):
        for w in near[v]:
            near[w].discard(v)
            if w not in ranks and w not in gone and len(near[w]) < 2:
                gone.add(w)
                todo.append(w)
    links = {(u, v): c for u, v, c in graph.arcs if u not in gone and v not in gone}
    return graph.restrict([v for v in range(graph.n) if v not in gone], links)
