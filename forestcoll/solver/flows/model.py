"""The linear program of several groups (`groups` says what it is), solved with a proof."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from forestcoll.errors import UnsupportedError
from forestcoll.forest import Symmetry
from forestcoll.graph import CAPACITY_LIMIT, CapacityGraph
from forestcoll.kernel import _kernel
from forestcoll.program import Collective
from forestcoll.solver.flows import cutting_planes, exact_lp, views
from forestcoll.solver.flows.balance import fill
from forestcoll.solver.flows.group import Group, GroupsBound, Key, WeighedCut, phases
from forestcoll.solver.flows.group_orbits import orbits
from forestcoll.solver.flows.views import Flow, scaled

MISSED = 23
"""Rough searches leave out cuts that miss less than 1 / 2^MISSED of all data."""

Cut = tuple[int, frozenset[int]]  # flow, and the side that holds roots


class Model:
    """Variables: the common rate, links with several users, flows, parts of ranks.

    One variable stands for all that the symmetries make alike. The first one, times `scale`, is the
    common algbw in units of capacity, so that all rows are whole numbers. `equal`: the ranks of an
    allreduce have equal parts. `able`: switches that copy (for reduce trees, add) may send more
    than they receive: what no forest beats. `spanning`: trees span these switches, and use them.
    """

    def __init__(
        self,
        machine: CapacityGraph,
        groups: Sequence[Group],
        collective: Collective,
        symmetries: Sequence[Symmetry],
        equal: bool = False,
        able: bool = False,
        spanning: bool = False,
    ) -> None:
        self.machine = machine
        self.groups = groups
        self.collective = collective
        self.symmetries = tuple(symmetries)
        self.scale = math.lcm(*(len(group.graph.ranks) for group in groups))
        self.free = collective is Collective.ALLREDUCE and not equal
        self.able = able
        self.keys: list[Key] = [
            (g, phase) for g in range(len(groups)) for phase in phases(collective)
        ]
        self.graphs = [
            groups[g].graph if phase == "broadcast" else groups[g].graph.reverse()
            for g, phase in self.keys
        ]
        if spanning:
            self.graphs = [views.spanning(graph) for graph in self.graphs]
        self.orbits = orbits(machine, groups, collective, symmetries)
        self.program = exact_lp.Program([None], [1])
        self.flow = self._flow_variables()  # per flow and link
        self._link_rows()
        # per group: rank -> (variable, a): a times the variable starts there
        self.parts = self._parts()
        self.switches = self._balance_rows()
        self.sinks = self._sinks()
        self.pool: list[dict[int, int]] = []
        self.cuts: list[Cut] = []

    # ------------------------------------------------------------------------------ rows

    def _variable(self, upper: int | None) -> int:
        self.program.upper.append(upper)
        self.program.cost.append(0)
        return len(self.program.upper) - 1

    def _flow_variables(self) -> list[list[int]]:
        number: dict[int, int] = {}
        for o in (o for flow in self.orbits.flow for o in flow):
            if o not in number:
                number[o] = self._variable(None)
        return [[number[o] for o in flow] for flow in self.orbits.flow]

    def _link_rows(self) -> None:
        """What flows take of a link fits it. One variable bounds those that share it."""
        users: dict[int, list[int]] = defaultdict(list)
        for (g, _), flow in zip(self.keys, self.flow, strict=True):
            for e, j in zip(self.groups[g].links, flow, strict=True):
                users[e].append(j)
        for e in dict.fromkeys(self.orbits.link):
            variables = users.get(e, [])
            if len(variables) == 1:
                self.program.upper[variables[0]] = self.machine.capacity[e]
            elif variables:
                row = {self._variable(self.machine.capacity[e]): 1}
                for j in variables:
                    row[j] = row.get(j, 0) - 1
                self.program.rows.append(exact_lp.Row(row))

    def _parts(self) -> list[dict[int, tuple[int, int]]]:
        """What starts at the ranks of each group."""
        number: dict[int, int] = {}
        seen: set[int] = set()
        out = []
        for g, group in enumerate(self.groups):
            ranks = group.graph.ranks
            if self.collective.rooted:
                out.append({ranks[group.root]: (0, self.scale)})
                continue
            if not self.free:
                out.append(dict.fromkeys(ranks, (0, self.scale // len(ranks))))
                continue
            alike = {v: self.orbits.part[g][v] for v in ranks}
            fresh = not set(alike.values()) <= seen
            for o in alike.values():
                if o not in number:
                    number[o] = self._variable(None)
            seen |= set(alike.values())
            parts = {v: (number[o], 1) for v, o in alike.items()}
            out.append(parts)
            if fresh:  # groups that are alike have the same row
                row = {0: -self.scale}
                for j, _ in parts.values():
                    row[j] = row.get(j, 0) + 1
                self.program.rows.append(exact_lp.Row(row, equality=True))
        return out

    def _balance_rows(self) -> list[tuple[int, int]]:
        """Adds out - in = 0 for every flow and node that is no rank; (flow, node) of each row."""
        found: list[tuple[int, int]] = []
        for f, graph in enumerate(self.graphs):
            ranks = set(graph.ranks)
            rows: dict[int, dict[int, int]] = defaultdict(dict)
            for j, u, v in zip(self.flow[f], graph.tail, graph.head, strict=True):
                for w, sign in ((u, 1), (v, -1)):
                    if w not in ranks and self._stands(f, w):
                        rows[w][j] = rows[w].get(j, 0) + sign
            for w, row in rows.items():
                entries = {j: a for j, a in row.items() if a}
                if entries:
                    free = self.able and graph.multicast[w]  # of the turned graph: aggregation
                    self.program.rows.append(exact_lp.Row(entries, equality=not free))
                    found.append((f, w))
        return found

    def _stands(self, f: int, v: int) -> bool:
        """Whether (flow, node) stands for all that are like it."""
        return self.orbits.side[f][v] == f * self.machine.n + v

    def _sinks(self) -> list[list[int]]:
        """Per flow the ranks that stand for those like them."""
        return [
            [v for v in graph.ranks if self._stands(f, v)] for f, graph in enumerate(self.graphs)
        ]

    # ------------------------------------------------------------------------------ cuts

    def solve(self) -> exact_lp.Solution:
        """The exact optimum and its dual."""
        if not self.pool:
            self.pool = self.rows(self._start())
        return cutting_planes.solve(
            self.program, self.pool, self.separate, max(self.machine.capacity)
        )

    def _start(self) -> Iterable[Cut]:
        """Cuts around each rank and each box, from both sides."""
        for f, graph in enumerate(self.graphs):
            ranks = frozenset(graph.ranks)
            everything = frozenset(range(graph.n))
            boxes: dict[str, set[int]] = defaultdict(set)
            for v in range(graph.n):
                boxes[graph.box(v)].add(v)
            sides = [frozenset([v]) for v in self.sinks[f]]
            sides += [frozenset(box) for box in boxes.values() if box & ranks]
            for side in dict.fromkeys(sides + [everything - side for side in sides]):
                if not ranks <= side and any(v in side for v in self.parts[self.keys[f][0]]):
                    yield f, side

    def rows(self, cuts: Iterable[Cut]) -> list[dict[int, int]]:
        """leaving - parts inside >= 0 of each cut; those with the same row only once."""
        known = {frozenset(row.items()) for row in self.pool}
        out = []
        for f, side in cuts:
            graph = self.graphs[f]
            row: dict[int, int] = defaultdict(int)
            for j, u, v in zip(self.flow[f], graph.tail, graph.head, strict=True):
                if u in side and v not in side:
                    row[j] += 1
            for v, (j, a) in self.parts[self.keys[f][0]].items():
                if v in side:
                    row[j] -= a
            key = frozenset(row.items())
            if key not in known:
                known.add(key)
                self.cuts.append((f, side))
                out.append(dict(row))
        return out

    def separate(self, values: cutting_planes.Values, rough: bool) -> list[dict[int, int]]:
        """Rows of cuts that the values violate, at most one for each of `sinks`."""
        units, _ = self._whole(values)
        cuts = []
        for f, graph in enumerate(self.graphs):
            if not self.sinks[f]:
                continue
            supply = [0] * graph.n
            for v, (j, a) in self.parts[self.keys[f][0]].items():
                supply[v] = units[j] * a
            carried = [units[j] for j in self.flow[f]]
            if 2 * (sum(carried) + sum(supply)) >= CAPACITY_LIMIT:
                raise UnsupportedError("the optimum's fractions are too long for 64-bit flows")
            least = sum(supply) >> MISSED if rough else 0
            for sink in self.sinks[f]:
                found = _kernel.violated(graph.n, graph.tail, graph.head, carried, supply, [sink])
                if found is None:
                    continue
                side = frozenset(found[1])
                arcs = zip(graph.tail, graph.head, carried, strict=True)
                room = sum(c for u, v, c in arcs if u in side and v not in side)
                if sum(supply[v] for v in side) - room > least:
                    cuts.append((f, side))
        return self.rows(cuts)

    def _whole(self, values: cutting_planes.Values) -> tuple[list[int], int]:
        """(the values in units / common, common)."""
        common = math.lcm(*(value.denominator for value in values))
        return [int(value * common) for value in values], common

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

    def flows(self, solution: exact_lp.Solution) -> tuple[Flow, ...]:
        """The flows with all that they may take; room makes trees low and few."""
        units, common = self._whole(solution.primal)
        out = []
        raised = zip(self.keys, self.graphs, self._raised(units, common), strict=True)
        for (g, phase), graph, capacity in raised:
            share = scaled(graph, capacity, self.machine.unit / common)
            supply = [Fraction(0)] * graph.n
            for v, (j, a) in self.parts[g].items():
                supply[v] = solution.primal[j] * a * self.machine.unit / share.unit
            out.append(Flow(g, phase, share, tuple(supply)))
        return tuple(out)

    def _raised(self, units: Sequence[int], common: int) -> list[list[int]]:
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
            pairs = list(zip(graph.tail, graph.head, strict=True))
            wide = replace(graph, capacity=tuple(room))
            filled = fill(wide, dict(zip(pairs, flow, strict=True)))
            out.append([filled.get(pair, 0) for pair in pairs])
        return out
