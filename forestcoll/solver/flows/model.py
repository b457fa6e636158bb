"""Concurrent flows as a linear program: what trees of every group and phase take of each link.

A flow is the trees of one phase of one group. The variables are what flows that share a link take
of it together, what each flow takes of each link, how much starts at which rank, and the common
algbw; one stands for all that symmetries make alike. Cuts come in as they are missed
(`exact_lp`); `groups.split` says what the program is, `dual` what its dual proves.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CAPACITY_LIMIT, CapacityGraph
from forestcoll.schedule.forest import Symmetry
from forestcoll.schedule.group import (
    Flow,
    Group,
    GroupsBound,
    WeighedCut,
    find_orbits,
    flow_keys,
    scale,
    span_switches,
)
from forestcoll.solver.flows import exact_lp
from forestcoll.solver.flows.max_flow import cut_off, fill, short_side
from forestcoll.solver.walks import by_box

MISSED = 23
"""Rough searches leave out cuts that miss less than 1 / 2^MISSED of all data."""

Cut = tuple[int, frozenset[int]]  # flow, and the side that holds roots


class Model:
    """The program of some groups on a machine; `solve` gives its exact optimum.

    `equal`: the ranks of an allreduce have equal parts; else these are variables, unless the graph
    gives the ranks shares. `able`: switches that copy (for reduce trees, add) may send more than
    they receive: what no forest beats. `spanning`: trees span these switches, and use them.
    `any_size`: numbers that are too long for the kernel's flows are no reason to give up, but slow.
    An allreduce of one group maximises the sum of its parts, all others a common rate, which times
    `scale` is the common algbw in units of capacity.
    """

    def __init__(
        self,
        machine: CapacityGraph,
        groups: Sequence[Group],
        symmetries: Sequence[Symmetry],
        equal: bool = False,
        able: bool = False,
        spanning: bool = False,
        any_size: bool = False,
    ) -> None:
        self.machine = machine
        self.groups = groups
        self.symmetries = tuple(symmetries)
        self.equal = equal or bool(groups[0].graph.shares)
        self.able = able
        self.any_size = any_size
        self.keys = flow_keys(groups)
        self.graphs = [
            groups[g].graph if phase == "broadcast" else groups[g].graph.reverse()
            for g, phase in self.keys
        ]
        if spanning:
            self.graphs = [span_switches(graph) for graph in self.graphs]
        self.orbits = find_orbits(machine, groups, symmetries)
        self.program = exact_lp.Program([], [])
        self.link: list[int | None] = [None] * len(machine.tail)  # what bounds it; None: not used
        self.flow: list[list[int]] = []  # per flow and link
        self._add_links()
        self.scale = 1
        self.parts = self._add_parts()  # per group: rank -> (variable, a): a times it starts there
        self.switches = self._add_balances()
        self.sinks = self._choose_sinks()
        self.pool: list[dict[int, int]] = []
        self.cuts: list[Cut] = []

    @property
    def size(self) -> int:
        """How many variables there are."""
        return len(self.program.upper)

    # ------------------------------------------------------------------------------ rows

    def _add_variable(self, upper: int | None, cost: int = 0) -> int:
        self.program.upper.append(upper)
        self.program.cost.append(cost)
        return self.size - 1

    def _add_links(self) -> None:
        """Links, flows, and rows by which what flows take of a link fits it.

        What several flows take has a variable; what one takes is bounded itself.
        """
        users: dict[int, list[int]] = defaultdict(list)  # orbits of flows
        for (g, _), flow in zip(self.keys, self.orbits.flow, strict=True):
            for e, orbit in zip(self.groups[g].links, flow, strict=True):
                users[e].append(orbit)
        shared = [e for e in dict.fromkeys(self.orbits.link) if len(users.get(e, ())) > 1]
        bounded = {e: self._add_variable(self.machine.capacity[e]) for e in shared}
        flows = dict.fromkeys(orbit for flow in self.orbits.flow for orbit in flow)
        number = {orbit: self._add_variable(None) for orbit in flows}
        self.flow = [[number[orbit] for orbit in flow] for flow in self.orbits.flow]
        for e in dict.fromkeys(self.orbits.link):
            if e in bounded:
                row = {bounded[e]: 1}
                for orbit in users[e]:
                    row[number[orbit]] = row.get(number[orbit], 0) - 1
                self.program.rows.append(exact_lp.Row(row))
            elif users.get(e):
                bounded[e] = number[users[e][0]]
                self.program.upper[bounded[e]] = self.machine.capacity[e]
        self.link = [bounded.get(e) for e in self.orbits.link]

    def _add_parts(self) -> list[dict[int, tuple[int, int]]]:
        """What starts at the ranks of each group."""
        first = self.groups[0]
        if first.collective.two_phases and len(self.groups) == 1:
            graph = first.graph
            alike = {v: 0 if self.equal else self.orbits.part[0][v] for v in graph.ranks}
            number = {o: self._add_variable(None) for o in dict.fromkeys(alike.values())}
            each = zip(graph.ranks, graph.parts, strict=True)
            parts = {v: (number[alike[v]], part) for v, part in each if part}
            for j, part in parts.values():
                self.program.cost[j] += part
            return [parts]
        rate = self._add_variable(None, cost=1)
        ways = [self._deal(group) for group in self.groups]
        shares = [
            s
            for group, way in zip(self.groups, ways, strict=True)
            for s in (way.values() if way else [group.weight])
        ]
        self.scale = math.lcm(*(share.denominator for share in shares))
        number = {}
        return [
            self._free_parts(g, rate, number)
            if way is None
            else {v: (rate, int(share * self.scale)) for v, share in way.items()}
            for g, way in enumerate(ways)
        ]

    def _deal(self, group: Group) -> dict[int, Fraction] | None:
        """What starts at each rank for each of the common algbw; None where that is a variable."""
        graph = group.graph
        if group.collective.has_root:
            return {graph.ranks[group.root]: group.weight}
        if group.collective.two_phases and not self.equal:
            return None
        each = group.weight / sum(graph.parts)
        return {v: each * part for v, part in zip(graph.ranks, graph.parts, strict=True) if part}

    def _free_parts(self, g: int, rate: int, number: dict[int, int]) -> dict[int, tuple[int, int]]:
        """Parts that are variables, `number` of each orbit; they add up to the group's algbw."""
        group = self.groups[g]
        alike = {v: self.orbits.part[g][v] for v in group.graph.ranks}
        fresh = not set(alike.values()) <= set(number)
        for o in alike.values():
            if o not in number:
                number[o] = self._add_variable(None)
        parts = {v: (number[o], 1) for v, o in alike.items()}
        if fresh:  # groups that are alike have the same row
            row = {rate: -int(group.weight * self.scale)}
            for j, _ in parts.values():
                row[j] = row.get(j, 0) + 1
            self.program.rows.append(exact_lp.Row(row, equality=True))
        return parts

    def _add_balances(self) -> list[tuple[int, int]]:
        """Adds out - in = 0 for every flow and node that is no rank; (flow, node) of each row."""
        balances: list[tuple[int, int]] = []
        for f, graph in enumerate(self.graphs):
            ranks = set(graph.ranks)
            rows: dict[int, dict[int, int]] = {
                v: {} for v in range(graph.n) if v not in ranks and self._stands(f, v)
            }
            for j, u, v in zip(self.flow[f], graph.tail, graph.head, strict=True):
                for w, sign in ((u, 1), (v, -1)):
                    if w in rows:
                        rows[w][j] = rows[w].get(j, 0) + sign
            for w, row in rows.items():
                entries = {j: a for j, a in row.items() if a}
                if entries:
                    free = self.able and graph.multicast[w]  # of the turned graph: aggregation
                    self.program.rows.append(exact_lp.Row(entries, equality=not free))
                    balances.append((f, w))
        return balances

    def _stands(self, f: int, v: int) -> bool:
        """Whether (flow, node) stands for all that are like it."""
        return self.orbits.side[f][v] == f * self.machine.n + v

    def _choose_sinks(self) -> list[list[int]]:
        """Per flow the ranks that stand for those like them."""
        return [
            [v for v in sorted(graph.ranks) if self._stands(f, v)]
            for f, graph in enumerate(self.graphs)
        ]

    # ------------------------------------------------------------------------------ cuts

    def solve(self) -> exact_lp.Solution:
        """The exact optimum and its dual."""
        if not self.pool:
            self.start()
        scale = max(1, *(u for u in self.program.upper if u is not None))
        return exact_lp.solve_by_cuts(self.program, self.pool, self.separate, scale)

    def start(self) -> None:
        """Cuts to begin with: what leaves and what enters each rank and each box.

        Of those whose nodes look alike one is enough.
        """
        self.pool = self.rows(self._likely_cuts())

    def _likely_cuts(self) -> Iterator[Cut]:
        for f, graph in enumerate(self.graphs):
            ranks, everything = frozenset(graph.ranks), frozenset(range(graph.n))
            g = self.keys[f][0]
            roots, part = self.parts[g].keys(), self.orbits.part[g]
            looks: dict[tuple[int, ...], frozenset[int]] = {}
            for nodes in (*({v} for v in graph.ranks), *by_box(graph).values()):
                looks.setdefault(tuple(sorted(part[v] for v in nodes)), frozenset(nodes))
            sides = [*looks.values(), *(everything - side for side in looks.values())]
            for side in dict.fromkeys(sides):
                if side & roots and not ranks <= side:
                    yield f, side

    def rows(self, cuts: Iterable[Cut]) -> list[dict[int, int]]:
        """leaving - parts inside >= 0 of each cut; those with the same row only once."""
        rows_seen = {frozenset(row.items()) for row in self.pool}
        out = []
        for f, side in cuts:
            graph = self.graphs[f]
            row = dict(Counter(graph.crossing(side, self.flow[f])))
            for v, (j, a) in self.parts[self.keys[f][0]].items():
                if v in side:
                    row[j] = row.get(j, 0) - a
            key = frozenset(row.items())
            if key not in rows_seen:
                rows_seen.add(key)
                self.cuts.append((f, side))
                out.append(row)
        return out

    def separate(self, values: exact_lp.Values, rough: bool) -> list[dict[int, int]]:
        """Rows of cuts that the values violate, at most one for each of `sinks`."""
        _, units = exact_lp.whole(values)
        cuts = []
        for f, graph in enumerate(self.graphs):
            if not self.sinks[f]:
                continue
            supply = [0] * graph.n
            for v, (j, a) in self.parts[self.keys[f][0]].items():
                supply[v] = units[j] * a
            carried = [units[j] for j in self.flow[f]]
            long = 2 * (sum(carried) + sum(supply)) >= CAPACITY_LIMIT
            if long and not self.any_size:
                raise UnsupportedError("the optimum's fractions are too long for 64-bit flows")
            least = sum(supply) >> MISSED if rough else 0
            for sink in self.sinks[f]:
                if long:
                    side = short_side(graph, carried, supply, sink)
                else:
                    side = cut_off(graph, carried, supply, [sink])
                if side is None:
                    continue
                if sum(supply[v] for v in side) - sum(graph.crossing(side, carried)) > least:
                    cuts.append((f, side))
        return self.rows(cuts)

    # --------------------------------------------------------------------------- answers

    def algbw(self, solution: exact_lp.Solution) -> Fraction:
        """GB/s."""
        return solution.value * self.scale * self.machine.unit

    def bound(self, solution: exact_lp.Solution) -> GroupsBound | None:
        """The dual; None where it does not hold for switches that copy or add."""
        own = len(self.program.rows)
        duals = solution.dual[own - len(self.switches) : own]
        potentials = []
        for (f, w), p in zip(self.switches, duals, strict=True):
            if p < 0 and self.graphs[f].multicast[w]:
                return None
            if p:
                potentials.append((*self.keys[f], w, p * self.scale))
        weighed = zip(self.cuts, solution.dual[own:], strict=False)
        return GroupsBound(
            algbw=self.algbw(solution),
            cuts=tuple(
                WeighedCut(*self.keys[f], side, y * self.scale) for (f, side), y in weighed if y
            ),
            potentials=tuple(potentials),
            symmetries=self.symmetries,
        )

    def prove(self, solution: exact_lp.Solution) -> GroupsBound:
        """The dual, in which switches that copy or add are free to do so."""
        bound = self.bound(solution)
        if bound is None:
            given = (self.machine, self.groups, self.symmetries)
            able = Model(*given, able=True, any_size=self.any_size)
            bound = able.bound(able.solve())
        if bound is None:
            raise RuntimeError("internal error: a dual that allows for copies is none")
        return bound

    def flows(self, solution: exact_lp.Solution) -> tuple[Flow, ...]:
        """The flows with all that they may take; room makes trees low and few."""
        common, units = exact_lp.whole(solution.primal)
        out = []
        raised = zip(self.keys, self.graphs, self._raise(units, common), strict=True)
        for (g, phase), graph, capacity in raised:
            share = scale(graph, capacity, self.machine.unit / common)
            supply = [Fraction(0)] * graph.n
            for v, (j, a) in self.parts[g].items():
                supply[v] = solution.primal[j] * a * self.machine.unit / share.unit
            out.append(Flow(g, phase, share, tuple(supply)))
        return tuple(out)

    def _raise(self, units: Sequence[int], common: int) -> list[list[int]]:
        """What each flow takes of its links, raised into what nobody takes, in units / `common`.

        What is left of a link is cut into equal parts for those that have it, and taken as far as
        in = out allows.
        """
        taken = [[units[j] for j in flow] for flow in self.flow]
        left = [c * common for c in self.machine.capacity]
        users = [0] * len(left)
        for (g, _), flow in zip(self.keys, taken, strict=True):
            for e, c in zip(self.groups[g].links, flow, strict=True):
                left[e] -= c
                users[e] += 1
        out = []
        for (g, _), graph, flow in zip(self.keys, self.graphs, taken, strict=True):
            links = self.groups[g].links
            room = [c + left[e] // users[e] for e, c in zip(links, flow, strict=True)]
            pairs = list(graph.ends)
            wide = replace(graph, capacity=tuple(room))
            filled = fill(wide, dict(zip(pairs, flow, strict=True)))
            out.append([filled.get(pair, 0) for pair in pairs])
        return out
