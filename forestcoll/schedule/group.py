"""Groups of ranks on one machine, and the certificate that bounds what all reach at once.

Views of a machine: what each of several groups has of it, and what flows may take of links.

Orbits of flows: what symmetries of a machine with groups on it make alike.

A symmetry of several groups maps the machine to itself, each group to a group (roots to roots). It
is found and checked as a symmetry of a graph that has one node more for each group, linked to its
members; its image counts these nodes behind the machine's. In an allreduce it may turn links round,
which makes reduce trees of broadcast trees. Averaging a solution over symmetries changes neither
the common algbw nor whether it fits, so all that is alike may be taken to be equal.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from forestcoll.common.errors import ForestError, UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph, Relays
from forestcoll.graph.symmetry.automorphisms import find_symmetries
from forestcoll.graph.symmetry.group import least_in_orbits, symmetry_images
from forestcoll.program import Collective
from forestcoll.schedule.forest import Forest, Phase, Symmetry, check

if TYPE_CHECKING:
    from forestcoll.graph.symmetry.group import Array


@dataclass(frozen=True, slots=True)
class Flow:
    """The trees of one phase of a group, and what they may take of each link.

    `graph` is the group's, turned round for reduce trees, so that data flows from the roots; its
    capacities are what the flow may take. `supply[v]` is what starts at node v, in the same unit:
    the group's algbw in all.
    """

    group: int
    phase: Phase
    graph: CapacityGraph
    supply: tuple[Fraction, ...]


def view_groups(
    machine: CapacityGraph,
    groups: Sequence[Sequence[int]],
    roots: Sequence[int],
    relays: Relays,
    collectives: Collective | Sequence[Collective],
    weights: Sequence[Fraction] = (),
) -> list[Group]:
    """What each group has of the machine: its members, switches, and GPUs that may relay.

    `groups` are nodes of `machine`, `roots` rank numbers in each group (used where the collective
    is rooted). `relays`: "none"; "idle": GPUs in no group; "all": GPUs of other groups too.
    `collectives`: of all groups, or of each. `weights`: of each its algbw / the common one (1).
    Raises UnsupportedError for a group of one, or that names a node twice.
    """
    if isinstance(collectives, Collective):
        collectives = [collectives] * len(groups)
    busy = {v for group in groups for v in group}
    at: list[list[int]] = [[] for _ in range(machine.n)]
    for e, (u, v) in enumerate(machine.ends):
        at[u].append(e)
        at[v].append(e)
    open_ = [v for v in range(machine.n) if not machine.gpu[v] or relays == "all"]
    open_ += [v for v in range(machine.n) if relays == "idle" and machine.gpu[v] and v not in busy]
    passed = set(open_)
    common = {e for e, (u, v) in enumerate(machine.ends) if u in passed and v in passed}
    out = []
    for number, members in enumerate(groups):
        if len(members) < 2:
            raise UnsupportedError(f"group {number} has {len(members)} rank: it needs at least two")
        if len(set(members)) < len(members):
            raise UnsupportedError(f"group {number} names a rank twice")
        own = set(members)
        nodes = passed | own
        near = {e for v in own for e in at[v]}
        kept = sorted(
            common | {e for e in near if machine.tail[e] in nodes and machine.head[e] in nodes}
        )
        graph = replace(machine.keep(kept), ranks=tuple(members))
        weight = weights[number] if weights else Fraction(1)
        out.append(Group(graph, tuple(kept), roots[number], collectives[number], weight))
    return out


def scale(graph: CapacityGraph, capacity: Sequence[int], unit: Fraction) -> CapacityGraph:
    """`graph` with other capacities, in as coarse a unit as they allow; empty links left out."""
    common = math.gcd(*capacity) or 1
    kept = [e for e, units in enumerate(capacity) if units]
    return graph.keep(kept, [units // common for units in capacity], unit * common)


def span_switches(graph: CapacityGraph) -> CapacityGraph:
    """`graph` whose switches that copy are ranks without a part: trees span them, too.

    The graph itself where there is none.
    """
    ranks = set(graph.ranks)
    more = tuple(v for v in range(graph.n) if graph.multicast[v] and v not in ranks)
    if not more:
        return graph
    return replace(graph, ranks=graph.ranks + more, shares=graph.parts + (0,) * len(more))


Key = tuple[int, Phase]  # group, phase
Links = dict[tuple[str, str], Fraction]


@dataclass(frozen=True, slots=True)
class Group:
    """What a group has of the machine: the nodes are the machine's, the links a part of its links.

    `links[e]` is the number that link e of `graph` has in the machine. `root` is a rank number.
    `weight`: the group's algbw / the common one.
    """

    graph: CapacityGraph
    links: tuple[int, ...]
    root: int
    collective: Collective
    weight: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True)
class WeighedCut:
    """A node set that holds roots of a flow's trees, and its weight."""

    group: int
    phase: Phase
    side: frozenset[int]
    weight: Fraction


@dataclass(frozen=True, slots=True)
class GroupsBound:
    """Why no common algbw is above `algbw` (GB/s); potentials are (group, phase, node, p).

    `schedule.dual` says what cuts, potentials and symmetries prove. The image of a symmetry
    counts the groups as nodes behind those of the machine.
    """

    algbw: Fraction
    cuts: tuple[WeighedCut, ...]
    potentials: tuple[tuple[int, Phase, int, Fraction], ...] = ()
    symmetries: tuple[Symmetry, ...] = ()


def flow_keys(groups: Sequence[Group]) -> list[Key]:
    """Every flow of the groups: one for each phase, broadcast trees before reduce trees."""
    return [(g, of) for g, group in enumerate(groups) for of in sorted(group.collective.phases)]


def whole_group(graph: CapacityGraph, collective: Collective, root: int | None = None) -> Group:
    """All ranks of a graph as one group."""
    return Group(graph, tuple(range(len(graph.tail))), root or 0, collective)


@dataclass(frozen=True, slots=True)
class Together:
    """What several groups do at once. `forests[g]` is group g's, on what it has of the links.

    A forest's topology holds the links that its trees use, with the bandwidth that is reserved for
    them; on these it reaches `algbw` times the group's weight and is optimal. `bound` says what no
    common algbw exceeds.
    """

    machine: CapacityGraph
    groups: tuple[Group, ...]
    relays: Relays
    algbw: Fraction
    forests: tuple[Forest, ...]
    bound: GroupsBound
    note: str = ""

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The different ones."""
        return tuple(dict.fromkeys(group.collective for group in self.groups))


def check_together(done: Together) -> None:
    """ForestError unless every forest reaches its algbw, and all of them at once fit the links."""
    fits(done.machine, done.forests, [done.algbw * group.weight for group in done.groups])
    for forest, group in zip(done.forests, done.groups, strict=True):
        expected = group.graph.rank_names
        given = forest.graph.rank_names
        if given != expected:
            raise ForestError(f"{forest.name} is of other ranks than its group")
        if {tree.phase for tree in forest.trees} != set(group.collective.phases):
            raise ForestError(f"{forest.name} is no {group.collective}")


def fits(machine: CapacityGraph, forests: Sequence[Forest], rates: Sequence[Fraction]) -> None:
    """ForestError unless each forest reaches its algbw (GB/s) and all of them together fit.

    Everything is recounted from the trees and the machine's own links, by name.
    """
    taken: Links = defaultdict(Fraction)
    for forest, algbw in zip(forests, rates, strict=True):
        reached = check(forest)
        if reached < algbw:
            raise ForestError(f"{forest.name} reaches {reached} GB/s, not the common {algbw}")
        graph = forest.graph
        for u, v, trees in graph.along(forest.loads()):
            if trees:
                pair = (graph.names[u], graph.names[v])
                taken[pair] += Fraction(trees, forest.total) * algbw
    bandwidth = {(machine.names[u], machine.names[v]): c * machine.unit for u, v, c in machine.arcs}
    for (src, dst), load in taken.items():
        if (src, dst) not in bandwidth:
            raise ForestError(f"a forest uses {src} -> {dst}, which is no link of the machine")
        if load > bandwidth[src, dst]:
            raise ForestError(
                f"{src} -> {dst} would have to carry {load} GB/s for all groups together, "
                f"it has {bandwidth[src, dst]}"
            )


@dataclass(frozen=True, slots=True)
class Orbits:
    """The least member of each one's orbit.

    `link[e]`: of the machine's links. `flow[f][e]`: of (flow, link of the group), numbered through
    all flows. `side[f][v]`: of (flow, node) as f * nodes + v. `part[g][v]`: of (group, node).
    """

    link: Sequence[int]
    flow: Sequence[Sequence[int]]
    side: Sequence[Sequence[int]]
    part: Sequence[Sequence[int]]


def family(machine: CapacityGraph, groups: Sequence[Group]) -> CapacityGraph:
    """The machine with a node for each group, linked to its members in a way of its kind's own."""
    kinds = dict.fromkeys((group.collective, group.weight) for group in groups)
    number = {kind: 1 + max(machine.capacity) + 2 * i for i, kind in enumerate(kinds)}
    tail, head, capacity = list(machine.tail), list(machine.head), list(machine.capacity)
    for g, group in enumerate(groups):
        mark = number[group.collective, group.weight]
        for rank, v in enumerate(group.graph.ranks):
            own = mark + 1 if group.collective.has_root and rank == group.root else mark
            tail += [machine.n + g, v]
            head += [v, machine.n + g]
            capacity += [own, own]
    more = (False,) * len(groups)
    return replace(
        machine,
        names=(*machine.names, *(f"group {g}" for g in range(len(groups)))),
        gpu=machine.gpu + more,
        multicast=machine.multicast + more,
        aggregation=machine.aggregation + more,
        tail=tuple(tail),
        head=tuple(head),
        capacity=tuple(capacity),
    )


def find_group_symmetries(machine: CapacityGraph, groups: Sequence[Group]) -> tuple[Symmetry, ...]:
    """Generators of symmetries; those that turn links round for allreduce only."""
    every = find_symmetries(family(machine, groups))
    return tuple(s for s in every if not s.turned or _one_way(groups) is None)


def _one_way(groups: Sequence[Group]) -> Collective | None:
    """A collective of the groups that has one phase, if any."""
    return next((g.collective for g in groups if not g.collective.two_phases), None)


def find_orbits(
    machine: CapacityGraph, groups: Sequence[Group], given: Iterable[Symmetry]
) -> Orbits:
    """What the symmetries make alike; ForestError where one is none."""
    import numpy as np

    keys, maps = flow_keys(groups), tuple(given)
    base = list(accumulate((len(groups[g].links) for g, _ in keys), initial=0))
    n, count, forward = machine.n, len(machine.tail), _one_way(groups)
    ends, many = [*pairwise(base)], len(groups)
    if not maps:
        return Orbits(
            range(count),
            [range(a, b) for a, b in ends],
            [range(f * n, f * n + n) for f in range(len(keys))],
            [range(g * n, g * n + n) for g in range(many)],
        )
    number = {key: f for f, key in enumerate(keys)}
    own = [np.array(group.links) for group in groups]  # ascending
    whole = family(machine, groups)
    on: list[list[Array]] = [[], [], [], []]
    for index, symmetry in enumerate(maps):
        where = f"bound: symmetry {index}"
        if symmetry.turned and forward is not None:
            raise ForestError(f"{where} turns links round, which {forward} does not allow")
        moved = symmetry_images(whole, symmetry, where)[:count]
        nodes, group = np.array(symmetry.image[:n]), [to - n for to in symmetry.image[n:]]
        turned: dict[Phase, Phase] = {"broadcast": "reduce", "reduce": "broadcast"}
        to = [number[group[g], turned[of] if symmetry.turned else of] for g, of in keys]
        flows = [
            base[f] + np.searchsorted(own[group[g]], moved[own[g]])
            for f, (g, _) in zip(to, keys, strict=True)
        ]
        on[0].append(moved)
        on[1].append(np.concatenate(flows))
        on[2].append((np.array(to)[:, None] * n + nodes).ravel())
        on[3].append((np.array(group)[:, None] * n + nodes).ravel())
    sizes = count, base[-1], len(keys) * n, many * n
    link, flow, side, part = (
        least_in_orbits(size, own_maps).tolist() for size, own_maps in zip(sizes, on, strict=True)
    )
    return Orbits(link, [flow[a:b] for a, b in ends], _rows(side, n), _rows(part, n))


def _rows(flat: list[int], length: int) -> list[list[int]]:
    return [flat[i : i + length] for i in range(0, len(flat), length)]
