"""The joint optimum of allreduce: both phases share the links, and roots need not be alike.

Reduce-scatter, then allgather over the same trees is not the best in general. With x(v) the data
whose sums are made at rank v, and bc and re what broadcast and reduce trees take of each link:

    maximise  X = sum of x(v)  with  bc(e) + re(e) <= b(e),  in = out at non-ranks in each half,
        bc(leaving S) >= x(S)  and  re(entering S) >= x(S)  for every S that lacks a rank

By Edmonds' theorem trees that take bc (and re, turned round) exist. The cuts are found by max-flow
as they are needed; the dual proves the optimum (`dual`). Where the graph has symmetries, all that
they make alike is one variable: averaging a solution over them changes neither rows nor X.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from forestcoll.errors import UnsupportedError
from forestcoll.forest import Bound, Phase, Symmetry, Tree
from forestcoll.graph import CAPACITY_LIMIT, CapacityGraph, require_size
from forestcoll.kernel import _kernel
from forestcoll.solver.flows import cutting_planes, exact_lp
from forestcoll.solver.flows.balance import fill
from forestcoll.solver.flows.joint_dual import check_joint
from forestcoll.symmetry.automorphisms import symmetries
from forestcoll.symmetry.orbits import HALVES, orbits

PHASES: tuple[Phase, Phase] = ("broadcast", "reduce")
MISSED = 23
"""Rough searches leave out cuts that miss less than 1 / 2^MISSED of all data."""
VARIABLES = 20_000
"""Links, flows and ranks, alike ones counted once, up to which the program is solved."""
EVEN = 2
"""How many times its share of the sums a rank may make where there is another way."""
ALTERNATIVES = 600
"""The same, up to which solutions in other, perhaps larger units are looked for."""

Cut = tuple[int, frozenset[int]]  # half, and the side that holds the roots
Carried = tuple[tuple[int, ...], tuple[int, ...]]  # per half and link


@dataclass(frozen=True, slots=True)
class Joint:
    """An exact optimum in whole units: `supply[v]` trees rooted at each node v in each phase.

    `carried[half][e]`: how many trees link e is given, broadcast trees and reduce trees apart;
    balanced at every non-rank. `algbw` in GB/s. `trees`: broadcast trees that serve both phases,
    where these are known; then `carried` is empty.
    """

    algbw: Fraction
    supply: tuple[int, ...]
    carried: Carried
    bound: Bound
    trees: tuple[Tree, ...] = ()

    def times(self, factor: int) -> Joint:
        """The same with `factor` trees for each."""
        out, back = (tuple(units * factor for units in half) for half in self.carried)
        return replace(
            self, supply=tuple(units * factor for units in self.supply), carried=(out, back)
        )


def joint(graph: CapacityGraph) -> Joint:
    """The joint optimum of allreduce, in as few whole units as was found, with its dual.

    Of solutions with the same algbw those come first that spread the sums: no rank makes more than
    EVEN times its share of them, by the bandwidth of its links.

    Raises UnsupportedError where the program is too large, or its numbers are too long, to be
    solved exactly here.
    """
    found = symmetries(graph)
    model = Model(graph, found, equal=False)
    if model.size > VARIABLES:
        raise UnsupportedError(
            f"{model.size} links and flows that no symmetry makes alike are too many "
            f"for the joint optimum (limit {VARIABLES})"
        )
    solution = model.solve()
    bound = _bound(model, solution)
    candidates = [in_units(model, solution)]
    for again in _alternatives(model, solution.value):
        again.start()
        again.pool += again.rows(model.cuts)
        try:
            other = again.solve()
            if other.value == solution.value:
                candidates.append(in_units(again, other))
        except UnsupportedError:  # an answer is there already; this one could have been nicer
            continue
    supply, carried = min(
        candidates, key=lambda c: (not _is_spread(graph, c[0]), sum(c[0]), max(c[0]))
    )
    common = sum(supply) / solution.value  # trees for each unit of capacity
    require_size([math.ceil(c * common) for c in graph.capacity], 2)
    return Joint(solution.value * graph.unit, supply, raised(graph, carried, common), bound)


def _is_spread(graph: CapacityGraph, supply: Sequence[int]) -> bool:
    """Whether no rank makes more than EVEN times as much of the sums as it has of the links in."""
    into = [0] * graph.n
    for head, capacity in zip(graph.head, graph.capacity, strict=True):
        into[head] += capacity
    ingress = sum(into[v] for v in graph.ranks)
    return all(supply[v] * ingress <= EVEN * into[v] * sum(supply) for v in graph.ranks)


def _alternatives(model: Model, value: Fraction) -> Iterator[Model]:
    """Programs with other solutions of the same value: equal shares, no symmetries, small shares.

    Those of few variables only.
    """
    graph, found = model.graph, model.symmetries
    for others, equal in ((found, True), ((), False), (found, False)):
        again = Model(graph, others, equal)
        if again.size > ALTERNATIVES:
            continue
        if others and not equal:  # no share above the even one, in whole units of the links
            for j in again.share.values():
                again.program.upper[j] = math.ceil(value / len(graph.ranks))
        yield again


def _bound(model: Model, solution: exact_lp.Solution) -> Bound:
    """The dual, in which switches that copy or add are free to do so."""
    if not model.is_dual(solution):
        model = Model(model.graph, model.symmetries, equal=False, able=True)
        solution = model.solve()
    links = len(set(model.orbits.link))
    switches = len(model.switches)
    potentials = zip(model.switches, solution.dual[links:], strict=False)
    signed = [(half, w, p) for (half, w), p in potentials if p]
    weighted = zip(model.cuts, solution.dual[links + switches :], strict=True)
    used = [(half, side, y) for (half, side), y in weighted if y]
    bound = Bound(
        algbw=solution.value * model.graph.unit,
        method="linear-program",
        parts=tuple(side for _, side, _ in used),
        weights=tuple(y for _, _, y in used),
        phases=tuple(PHASES[half] for half, _, _ in used),
        potentials=tuple((w, p) for half, w, p in signed if half == 0),
        reduce_potentials=tuple((w, p) for half, w, p in signed if half == 1),
        symmetries=model.symmetries,
    )
    proven = check_joint(model.graph, bound)
    if proven != bound.algbw:
        raise RuntimeError(f"internal error: the dual proves {proven}, not {bound.algbw}")
    return bound


def in_units(model: Model, solution: exact_lp.Solution) -> tuple[tuple[int, ...], Carried]:
    """(supply, carried): shares and flows in the largest unit in which all of them are whole."""
    values = [solution.primal[j] for j in (*model.share.values(), *model.flow)]
    parts = math.lcm(*(value.denominator for value in values))
    common = Fraction(parts, math.gcd(*(int(value * parts) for value in values)))
    supply = [0] * model.graph.n
    for v, j in model.share.items():
        supply[v] = int(solution.primal[j] * common)
    flow = tuple(int(solution.primal[j] * common) for j in model.flow)
    return tuple(supply), (flow[: model.count], flow[model.count :])


def raised(graph: CapacityGraph, carried: Carried, common: Fraction) -> Carried:
    """`carried`, and of what is left of the links as much as in = out allows: room for low trees.

    What is left is halved, such that mirror images stay mirror images.
    """
    out = []
    for half in HALVES:
        used = {}
        room = []
        for e, (u, v) in enumerate(zip(graph.tail, graph.head, strict=True)):
            left = math.floor(graph.capacity[e] * common) - carried[0][e] - carried[1][e]
            more = left - left // 2 if (u < v) == (half == 0) else left // 2
            room.append(carried[half][e] + more)
            used[u, v] = carried[half][e]
        filled = fill(replace(graph, capacity=tuple(room)), used)
        out.append(tuple(filled.get(p, 0) for p in zip(graph.tail, graph.head, strict=True)))
    return out[0], out[1]


class Model:
    """The linear program of one graph, with one variable for all that symmetries make alike.

    Variables: links (what both halves may take together), flows (what a half takes of a link), then
    shares of ranks; with `equal` one share for all. With `able` switches that copy may send more
    than they receive (in the reduce half those that add may receive more): what no forest beats.
    """

    def __init__(
        self, graph: CapacityGraph, found: Sequence[Symmetry], equal: bool, able: bool = False
    ) -> None:
        self.graph = graph
        self.able = able
        self.equal = equal
        self.symmetries = tuple(found)
        self.count = len(graph.tail)
        self.orbits = orbits(graph, found)
        link = _numbered(self.orbits.link, 0)
        flow = _numbered(self.orbits.flow, 1 + max(link))
        first = 1 + max(flow)
        node = [self.orbits.node[v] for v in graph.ranks]
        share = [first] * len(node) if equal else _numbered(node, first)
        self.link = link
        self.flow = flow
        self.share = dict(zip(graph.ranks, share, strict=True))
        upper: list[int | None] = [None] * (1 + max(share))
        cost = [0] * len(upper)
        for e, j in enumerate(link):
            upper[j] = graph.capacity[e]
        for j in share:
            cost[j] += 1
        self.program = exact_lp.Program(upper, cost)
        for e in dict.fromkeys(self.orbits.link):
            row = {link[e]: 1}
            for half in HALVES:
                _add(row, flow[half * self.count + e], -1)
            self.program.rows.append(exact_lp.Row(row))
        self.switches = self._balance_rows()
        self.sinks = self._sinks()
        self.pool: list[dict[int, int]] = []
        self.cuts: list[Cut] = []

    @property
    def size(self) -> int:
        """How many variables there are."""
        return len(self.program.upper)

    def _balance_rows(self) -> list[tuple[int, int]]:
        """Adds out - in = 0 (reduce: in - out) of all non-ranks; (half, node) of each row."""
        ranks, n = set(self.graph.ranks), self.graph.n
        every = [s for s in dict.fromkeys(self.orbits.side) if s % n not in ranks]
        rows: dict[int, dict[int, int]] = {s: {} for s in every}
        for half in HALVES:
            for e, (u, v) in enumerate(self.arcs(half)):
                for w, sign in ((u, 1), (v, -1)):
                    if half * n + w in rows:
                        _add(rows[half * n + w], self.flow[half * self.count + e], sign)
        kept = {s: row for s, row in rows.items() if row}
        sides = [divmod(s, n) for s in kept]
        for side, row in zip(sides, kept.values(), strict=True):
            free = self.able and self.is_able(side)
            self.program.rows.append(exact_lp.Row(row, equality=not free))
        return sides

    def is_able(self, side: tuple[int, int]) -> bool:
        """Whether the switch copies broadcast data in the fabric, or adds up reduced data."""
        half, w = side
        return (self.graph.aggregation if half else self.graph.multicast)[w]

    def is_dual(self, solution: exact_lp.Solution) -> bool:
        """Whether the solution's dual also holds where switches copy and add."""
        first = len(self.program.rows) - len(self.switches)
        duals = zip(self.switches, solution.dual[first:], strict=False)
        return all(p >= 0 or not self.is_able(side) for side, p in duals)

    def _sinks(self) -> list[tuple[int, int]]:
        """(half, rank): of those that look alike one is enough."""
        ranks, n = set(self.graph.ranks), self.graph.n
        return [divmod(s, n) for s in dict.fromkeys(self.orbits.side) if s % n in ranks]

    def arcs(self, half: int) -> Iterable[tuple[int, int]]:
        """The links, in the direction from roots to the others: reduce trees turned round."""
        ends = (self.graph.tail, self.graph.head)
        return zip(*(ends if half == 0 else ends[::-1]), strict=True)

    def start(self) -> None:
        """Cuts to begin with: what leaves and what enters each rank and each box.

        Of those whose nodes look alike one is enough.
        """
        graph, n = self.graph, self.graph.n
        everything, ranks = frozenset(range(n)), frozenset(graph.ranks)
        boxes: dict[str, set[int]] = defaultdict(set)
        for v in range(n):
            boxes[graph.box(v)].add(v)
        looks: dict[tuple[int, ...], frozenset[int]] = {}
        for side in (*({v} for v in graph.ranks), *boxes.values()):
            looks.setdefault(tuple(sorted(self.orbits.node[v] for v in side)), frozenset(side))
        sides = [*looks.values(), *(everything - side for side in looks.values())]
        proper = [s for s in dict.fromkeys(sides) if s & ranks and not ranks <= s]
        self.pool = self.rows((half, side) for half in HALVES for side in proper)

    def rows(self, cuts: Iterable[Cut]) -> list[dict[int, int]]:
        """leaving - shares inside >= 0, of each cut; those with the same row only once."""
        known = {frozenset(row.items()) for row in self.pool}
        flows = [self.flow[h * self.count : (h + 1) * self.count] for h in HALVES]
        arcs = [list(zip(self.arcs(h), flows[h], strict=True)) for h in HALVES]
        out = []
        for half, side in cuts:
            leaving = [j for (u, v), j in arcs[half] if u in side and v not in side]
            row = dict(Counter(leaving))
            inside = Counter([self.share[v] for v in self.graph.ranks if v in side])
            row.update({j: -shares for j, shares in inside.items()})
            key = frozenset(row.items())
            if key not in known:
                known.add(key)
                self.cuts.append((half, side))
                out.append(row)
        return out

    def separate(self, values: cutting_planes.Values, rough: bool) -> list[dict[int, int]]:
        """Rows of cuts that the values violate, at most one for each of `sinks`."""
        graph = self.graph
        common = math.lcm(*(value.denominator for value in values))
        units = [int(value * common) for value in values]
        supply = [0] * graph.n
        for v, j in self.share.items():
            supply[v] = units[j]
        total = sum(supply)
        if 2 * (sum(units[j] for j in self.flow) + total) >= CAPACITY_LIMIT:
            raise UnsupportedError("the optimum's fractions are too long for 64-bit flows")
        least = total >> MISSED if rough else 0
        cuts: list[Cut] = []
        for half in HALVES:
            arcs = list(self.arcs(half))
            tails, heads = [u for u, _ in arcs], [v for _, v in arcs]
            carried = [units[j] for j in self.flow[half * self.count : (half + 1) * self.count]]
            for sink in (v for h, v in self.sinks if h == half):
                found = _kernel.violated(graph.n, tails, heads, carried, supply, [sink])
                if found is None:
                    continue
                side = frozenset(found[1])
                room = sum(
                    c
                    for u, v, c in zip(tails, heads, carried, strict=True)
                    if u in side and v not in side
                )
                if sum(supply[v] for v in side) - room > least:
                    cuts.append((half, side))
        return self.rows(cuts)

    def solve(self) -> exact_lp.Solution:
        """The exact optimum and its dual: links, `switches`, `cuts`."""
        if not self.pool:
            self.start()
        scale = max(1, *(u for u in self.program.upper if u is not None))
        return cutting_planes.solve(self.program, self.pool, self.separate, scale)


def _numbered(representatives: Sequence[int], first: int) -> list[int]:
    """Per member the number of its orbit, counted from `first`."""
    number = {r: first + i for i, r in enumerate(dict.fromkeys(representatives))}
    return [number[r] for r in representatives]


def _add(row: dict[int, int], j: int, a: int) -> None:
    """Adds to a coefficient; zeros are left out."""
    total = row.get(j, 0) + a
    if total:
        row[j] = total
    else:
        row.pop(j, None)
