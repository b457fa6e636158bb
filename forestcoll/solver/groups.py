"""Several groups that run one collective at the same time on the same links.

All groups are to reach the same algbw, as large as can be. What a group's trees take of each link
is a sub-capacity of its own; together they fit the links:

    maximise  L  with, for every group g and node set S that lacks one of its N(g) ranks,
        c(g, leaving S) >= L * (ranks of g in S) / N(g)    (rooted: >= L where S holds the root)
        c(g, in) = c(g, out) at nodes that are no ranks of g
        sum over g of c(g, e) <= b(e)

An allreduce has two such flows a group, one of broadcast and one of reduce trees, and the parts of
the ranks are variables as well. Cuts are found by max-flow as they are missed (`cutting`); the dual
proves the optimum (`groups_bound`). By Edmonds' theorem trees that take c exist.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from forestcoll.errors import InfeasibleError, UnsupportedError
from forestcoll.forest import Phase
from forestcoll.graph import CAPACITY_LIMIT, CapacityGraph, Relays
from forestcoll.kernel import _kernel
from forestcoll.program import Collective
from forestcoll.solver import cutting, exact_lp
from forestcoll.solver.balance import fill
from forestcoll.solver.groups_bound import Group, GroupsBound, WeighedCut, check_groups_bound
from forestcoll.solver.optimum import optimum

GPUS = 64
"""GPUs in all groups together up to which the optimum is exact."""
VARIABLES = 1200
"""Links of all groups' flows up to which the optimum is exact."""
MISSED = 23
"""Rough searches leave out cuts that miss less than 1 / 2^MISSED of all data."""


@dataclass(frozen=True, slots=True)
class Flow:
    """The trees of one phase of a group, and what they may take of each link.

    `graph` is the group's, turned round for reduce trees, so that data flows from the roots; its
    capacities are what the flow may take. `supply[v]` is what starts at node v, in the same unit:
    the common algbw in all.
    """

    group: int
    phase: Phase
    graph: CapacityGraph
    supply: tuple[Fraction, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """The links shared out among groups: all reach `algbw` (GB/s), and nothing beats `bound`.

    The two are equal unless `note` says why not.
    """

    algbw: Fraction
    flows: tuple[Flow, ...]
    bound: GroupsBound
    note: str = ""


def view(
    machine: CapacityGraph, groups: Sequence[Sequence[int]], roots: Sequence[int], relays: Relays
) -> list[Group]:
    """What each group has of the machine: its members, switches, and GPUs that may relay.

    `groups` are nodes of `machine`, `roots` rank numbers in each group (used where the collective
    is rooted). `relays`: "none"; "idle": GPUs in no group; "all": GPUs of other groups too. Raises
    UnsupportedError for a group of one, or that names a node twice.
    """
    busy = {v for group in groups for v in group}
    out = []
    for number, members in enumerate(groups):
        if len(members) < 2:
            raise UnsupportedError(f"group {number} has {len(members)} rank: it needs at least two")
        if len(set(members)) < len(members):
            raise UnsupportedError(f"group {number} names a rank twice")
        own = set(members)
        nodes = frozenset(
            v
            for v in range(machine.n)
            if v in own
            or not machine.gpu[v]
            or (relays == "all")
            or (relays == "idle" and v not in busy)
        )
        kept = [
            e
            for e, ends in enumerate(zip(machine.tail, machine.head, strict=True))
            if ends[0] in nodes and ends[1] in nodes
        ]
        graph = replace(
            machine,
            ranks=tuple(members),
            tail=tuple(machine.tail[e] for e in kept),
            head=tuple(machine.head[e] for e in kept),
            capacity=tuple(machine.capacity[e] for e in kept),
        )
        out.append(Group(graph, tuple(kept), roots[number]))
    return out


def split(machine: CapacityGraph, groups: Sequence[Group], collective: Collective) -> Split:
    """The largest common algbw of all groups, what each may take of the links, and the proof.

    Exact up to `GPUS` ranks and `VARIABLES` variables; beyond that, links are cut into equal parts
    for the groups that have them, and `note` says so. Raises InfeasibleError where the ranks of a
    group cannot reach each other.
    """
    for number, group in enumerate(groups):
        try:
            group.graph.check_connected()
        except InfeasibleError as error:
            raise InfeasibleError(f"group {number}: {error}") from None
    ranks = sum(len(group.graph.ranks) for group in groups)
    if ranks > GPUS:
        return _equal(machine, groups, collective, f"{ranks} ranks in all, the limit is {GPUS}")
    try:
        return _exact(machine, groups, collective)
    except UnsupportedError as error:
        return _equal(machine, groups, collective, str(error))


def phases(collective: Collective) -> tuple[Phase, ...]:
    """The phases whose trees a collective needs."""
    if collective is Collective.ALLREDUCE:
        return ("reduce", "broadcast")
    return ("reduce",) if collective.reduces else ("broadcast",)


# ------------------------------------------------------------------------------ exact optimum


def _exact(machine: CapacityGraph, groups: Sequence[Group], collective: Collective) -> Split:
    model = _Model(machine, groups, collective)
    if len(model.program.upper) > VARIABLES:
        raise UnsupportedError(
            f"the groups have {len(model.program.upper)} links in all, the limit is {VARIABLES}"
        )
    solution = model.solve()
    bound = model.bound(solution)
    if bound is None:  # the dual forbids what switches that copy or add could do
        able = _Model(machine, groups, collective, able=True)
        bound = able.bound(able.solve())
    if bound is None:
        raise RuntimeError("internal error: a dual that allows for copies is none")
    if collective is Collective.ALLREDUCE:
        alike = _Model(machine, groups, collective, equal=True)
        alike.pool = alike.rows(model.cuts)
        other = alike.solve()
        if other.value == solution.value:  # equal parts make fewer trees
            model, solution = alike, other
    algbw = solution.value * model.scale * machine.unit
    proven = check_groups_bound(machine, groups, collective, bound)
    if proven != bound.algbw or algbw > proven:
        raise RuntimeError(
            f"internal error: {algbw} reached, {bound.algbw} stated, {proven} proven"
        )
    note = "" if algbw == proven else "the bound allows for copies and sums in switches"
    return Split(algbw, model.flows(solution), bound, note)


class _Model:
    """The linear program: the common rate, links with several users, flows, parts of ranks.

    The first variable times `scale` is the common algbw in units of capacity, so that all rows are
    whole numbers. `equal`: the ranks of an allreduce have equal parts. `able`: switches that copy
    (or, for reduce trees, add) may send more than they receive.
    """

    def __init__(
        self,
        machine: CapacityGraph,
        groups: Sequence[Group],
        collective: Collective,
        equal: bool = False,
        able: bool = False,
    ) -> None:
        self.machine = machine
        self.groups = groups
        self.collective = collective
        self.scale = math.lcm(*(len(group.graph.ranks) for group in groups))
        self.free = collective is Collective.ALLREDUCE and not equal
        self.able = able
        self.keys: list[tuple[int, Phase]] = [
            (g, phase) for g in range(len(groups)) for phase in phases(collective)
        ]
        self.graphs = [
            groups[g].graph if phase == "broadcast" else groups[g].graph.reverse()
            for g, phase in self.keys
        ]
        self.program = exact_lp.Program([None], [1])
        self.first: list[int] = []  # per flow, the variable of its first link
        self._link_variables()
        self.parts = [
            self._parts(g) for g in range(len(groups))
        ]  # per group: rank -> (variable, a)
        self.switches = self._balance_rows()
        self.pool: list[dict[int, int]] = []
        self.cuts: list[tuple[int, frozenset[int]]] = []  # flow, the side that holds roots

    def _variable(self, upper: int | None) -> int:
        self.program.upper.append(upper)
        self.program.cost.append(0)
        return len(self.program.upper) - 1

    def _link_variables(self) -> None:
        """Flows' links; one that several flows have gets a variable that bounds them together."""
        users: dict[int, list[int]] = defaultdict(list)
        for g, _ in self.keys:
            self.first.append(len(self.program.upper))
            for e in self.groups[g].links:
                users[e].append(self._variable(None))
        for e, variables in users.items():
            if len(variables) == 1:
                self.program.upper[variables[0]] = self.machine.capacity[e]
                continue
            row = {self._variable(self.machine.capacity[e]): 1} | dict.fromkeys(variables, -1)
            self.program.rows.append(exact_lp.Row(row))

    def _parts(self, g: int) -> dict[int, tuple[int, int]]:
        """What starts at a rank: a times a variable."""
        group = self.groups[g]
        ranks = group.graph.ranks
        if self.collective.rooted:
            return {ranks[group.root]: (0, self.scale)}
        if not self.free:
            return dict.fromkeys(ranks, (0, self.scale // len(ranks)))
        parts = {v: (self._variable(None), 1) for v in ranks}
        row = {0: -self.scale} | {j: 1 for j, _ in parts.values()}
        self.program.rows.append(exact_lp.Row(row, equality=True))
        return parts

    def _balance_rows(self) -> list[tuple[int, int]]:
        """Adds out - in = 0 for every flow and node that is no rank; (flow, node) of each row."""
        found: list[tuple[int, int]] = []
        for f, graph in enumerate(self.graphs):
            ranks = set(graph.ranks)
            rows: dict[int, dict[int, int]] = defaultdict(dict)
            for e, (u, v) in enumerate(zip(graph.tail, graph.head, strict=True)):
                for w, sign in ((u, 1), (v, -1)):
                    if w not in ranks:
                        rows[w][self.first[f] + e] = sign
            for w, row in rows.items():
                free = self.able and graph.multicast[w]  # of the turned graph: aggregation
                self.program.rows.append(exact_lp.Row(row, equality=not free))
                found.append((f, w))
        return found

    def solve(self) -> exact_lp.Solution:
        """The exact optimum and its dual."""
        if not self.pool:
            self.pool = self.rows(self._start())
        return cutting.solve(self.program, self.pool, self.separate, max(self.machine.capacity))

    def _start(self) -> Iterable[tuple[int, frozenset[int]]]:
        """Cuts around each rank and each box, from both sides."""
        for f, graph in enumerate(self.graphs):
            ranks = frozenset(graph.ranks)
            everything = frozenset(range(graph.n))
            boxes: dict[str, set[int]] = defaultdict(set)
            for v in range(graph.n):
                boxes[graph.box(v)].add(v)
            sides = [frozenset([v]) for v in graph.ranks]
            sides += [frozenset(box) for box in boxes.values()]
            for side in dict.fromkeys(sides + [everything - side for side in sides]):
                if not ranks <= side and any(v in side for v in self.parts[self.keys[f][0]]):
                    yield f, side

    def rows(self, cuts: Iterable[tuple[int, frozenset[int]]]) -> list[dict[int, int]]:
        """leaving - parts inside >= 0 of each cut; those with the same row only once."""
        known = {frozenset(row.items()) for row in self.pool}
        out = []
        for f, side in cuts:
            graph, first = self.graphs[f], self.first[f]
            row = {
                first + e: 1
                for e, (u, v) in enumerate(zip(graph.tail, graph.head, strict=True))
                if u in side and v not in side
            }
            for v, (j, a) in self.parts[self.keys[f][0]].items():
                if v in side:
                    row[j] = row.get(j, 0) - a
            key = frozenset(row.items())
            if key not in known:
                known.add(key)
                self.cuts.append((f, side))
                out.append(row)
        return out

    def separate(self, values: cutting.Values, rough: bool) -> list[dict[int, int]]:
        """Rows of cuts that the values violate, at most one for each rank of each flow.

        A vertex leaves most links at the least it can. Cuts are searched after all flows were
        raised into what is left, which spares most of them.
        """
        common = math.lcm(*(value.denominator for value in values))
        units = [int(value * common) for value in values]
        if 2 * sum(units) * self.scale >= CAPACITY_LIMIT:
            raise UnsupportedError("the optimum's fractions are too long for 64-bit flows")
        cuts = []
        raised = self.raised(units, common)
        for f, (graph, carried) in enumerate(zip(self.graphs, raised, strict=True)):
            supply = [0] * graph.n
            for v, (j, a) in self.parts[self.keys[f][0]].items():
                supply[v] = units[j] * a
            least = sum(supply) >> MISSED if rough else 0
            for sink in graph.ranks:
                found = _kernel.violated(graph.n, graph.tail, graph.head, carried, supply, [sink])
                if found is None:
                    continue
                side = frozenset(found[1])
                arcs = zip(graph.tail, graph.head, carried, strict=True)
                room = sum(c for u, v, c in arcs if u in side and v not in side)
                if sum(supply[v] for v in side) - room > least:
                    cuts.append((f, side))
        return self.rows(cuts)

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
            algbw=solution.value * self.scale * self.machine.unit,
            cuts=tuple(
                WeighedCut(*self.keys[f], side, y * self.scale) for (f, side), y in weighed if y
            ),
            potentials=tuple(potentials),
        )

    def raised(self, units: Sequence[int], common: int) -> list[list[int]]:
        """What each flow takes of its links, raised into what nobody takes, in units / `common`.

        What is left of a link is cut into equal parts for those that have it, and taken as far as
        in = out allows.
        """
        taken = [
            list(units[first : first + len(graph.tail)])
            for first, graph in zip(self.first, self.graphs, strict=True)
        ]
        if self.able:
            return taken
        left = [c * common for c in self.machine.capacity]
        users = [0] * len(left)
        for (g, _), flow in zip(self.keys, taken, strict=True):
            for e, c in zip(self.groups[g].links, flow, strict=True):
                left[e] -= c
                users[e] += 1
        out = []
        for (g, _), graph, flow in zip(self.keys, self.graphs, taken, strict=True):
            links = self.groups[g].links
            room = [c + max(0, left[e]) // users[e] for e, c in zip(links, flow, strict=True)]
            pairs = list(zip(graph.tail, graph.head, strict=True))
            wide = replace(graph, capacity=tuple(room))
            filled = fill(wide, dict(zip(pairs, flow, strict=True)))
            out.append([filled.get(pair, 0) for pair in pairs])
        return out

    def flows(self, solution: exact_lp.Solution) -> tuple[Flow, ...]:
        """The flows with all that they may take; room makes trees low and few."""
        common = math.lcm(*(value.denominator for value in solution.primal))
        units = [int(value * common) for value in solution.primal]
        out = []
        raised = zip(self.keys, self.graphs, self.raised(units, common), strict=True)
        for (g, phase), graph, capacity in raised:
            share = scaled(graph, capacity, self.machine.unit / common)
            supply = [Fraction(0)] * graph.n
            for v, (j, a) in self.parts[g].items():
                supply[v] = solution.primal[j] * a * self.machine.unit / share.unit
            out.append(Flow(g, phase, share, tuple(supply)))
        return tuple(out)


def scaled(graph: CapacityGraph, capacity: Sequence[int], unit: Fraction) -> CapacityGraph:
    """`graph` with other capacities, in as coarse a unit as they allow; empty links left out."""
    common = math.gcd(*capacity) or 1
    kept = [e for e, units in enumerate(capacity) if units]
    return replace(
        graph,
        tail=tuple(graph.tail[e] for e in kept),
        head=tuple(graph.head[e] for e in kept),
        capacity=tuple(capacity[e] // common for e in kept),
        unit=unit * common,
    )


# --------------------------------------------------------------------------------- equal parts


def _equal(
    machine: CapacityGraph, groups: Sequence[Group], collective: Collective, reason: str
) -> Split:
    """Every link cut into equal parts for the groups that have it, and the best cut found."""
    users = [0] * len(machine.tail)
    for group in groups:
        for e in group.links:
            users[e] += 1
    common = math.lcm(*(max(1, count) for count in users))
    shares = []
    for number, group in enumerate(groups):
        capacity = [machine.capacity[e] * (common // users[e]) for e in group.links]
        graph = scaled(group.graph, capacity, machine.unit / common)
        shares.append(_Alone(number, graph, group.root, collective))
    algbw = min(share.algbw for share in shares)
    sides = dict.fromkeys(side for share in shares for side in share.sides)
    bounds = [_plain_bound(machine, groups, collective, side) for side in sides]
    bound = min(bounds, key=lambda b: b.algbw)
    note = "" if bound.algbw == algbw else f"links are cut into equal parts: {reason}"
    return Split(algbw, tuple(f for share in shares for f in share.flows(algbw)), bound, note)


class _Alone:
    """A group on links of its own."""

    def __init__(self, number: int, graph: CapacityGraph, root: int, collective: Collective):
        self.number = number
        self.graph = graph
        self.root = root if collective.rooted else None
        self.best: dict[Phase, Fraction] = {}  # per phase, GB/s alone on all of the links
        self.sides: list[frozenset[int]] = []
        for phase in phases(collective):
            turned = graph if phase == "broadcast" else graph.reverse()
            alone = Collective.BROADCAST if collective.rooted else Collective.ALLGATHER
            found = optimum(turned, alone, self.root)
            self.best[phase] = found.algbw
            self.sides += found.bound.parts
        self.algbw = 1 / sum((1 / rate for rate in self.best.values()), Fraction(0))

    def flows(self, algbw: Fraction) -> Iterable[Flow]:
        """The phases side by side, each on as much of the links as it needs."""
        for phase, rate in self.best.items():
            turned = self.graph if phase == "broadcast" else self.graph.reverse()
            turned = replace(turned, unit=turned.unit * self.algbw / rate)
            ranks = turned.ranks
            roots = list(ranks) if self.root is None else [ranks[self.root]]
            supply = [Fraction(0)] * turned.n
            for v in roots:
                supply[v] = algbw / len(roots) / turned.unit
            yield Flow(self.number, phase, turned, tuple(supply))


def _plain_bound(
    machine: CapacityGraph, groups: Sequence[Group], collective: Collective, side: frozenset[int]
) -> GroupsBound:
    """What one cut proves: the data of all groups that has to leave it shares the links that do.

    Of an allreduce, what starts inside leaves as broadcast, what starts outside on reduce trees.
    """
    cuts = []
    for g, group in enumerate(groups):
        ranks = group.graph.ranks
        inside = sum(v in side for v in ranks)
        if inside == len(ranks) or not inside:
            continue
        if collective.rooted and ranks[group.root] not in side:
            continue
        if collective is Collective.ALLREDUCE:
            rest = frozenset(range(machine.n)) - side
            cuts.append(WeighedCut(g, "broadcast", side, Fraction(1)))
            cuts.append(WeighedCut(g, "reduce", rest, Fraction(1)))
        else:
            cuts.append(WeighedCut(g, phases(collective)[0], side, Fraction(1)))
    loose = GroupsBound(Fraction(0), tuple(cuts))
    return replace(loose, algbw=check_groups_bound(machine, groups, collective, loose))
