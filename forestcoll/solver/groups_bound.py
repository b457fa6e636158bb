"""What no schedule of several groups on the same links can beat, and how to see that.

Take any trees of all groups that reach the common algbw L, and let c(f, e) be what flow f (a group
and a phase) loads on link e. Reduce trees are looked at turned round, as broadcast trees.

* A cut S of flow f with weight y: what starts in S and is wanted outside leaves S, so
  y c(f, leaving S) >= y L share(S), where share(S) is the part of the group's data that starts in
  S: ranks in S / ranks of the group; rooted: 1 where S holds the root.
* A potential p of flow f at a node that is no rank of the group adds p (out - in): 0 where the node
  neither copies nor adds, >= 0 where it copies and p >= 0 (for reduce trees: where it adds).
* The left sides add up to at most the sum of c(f, e) pressure(f, e), with pressure the weights of
  the cuts that e leaves, plus p(tail) - p(head); and so to at most the sum of b(e) z(e), with z the
  largest pressure of all flows on a link, or 0.
* So L <= sum of b(e) z(e) / sum of y share(S).

In an allreduce the parts that start at ranks are the schedule's own choice, the same in both
phases. There share(S) gives way to the least weight, over the ranks v of a group, of the cuts of
either phase that hold v: that much of the group's data crosses cuts, wherever it starts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from forestcoll.errors import ForestError
from forestcoll.forest import Phase
from forestcoll.graph import CapacityGraph
from forestcoll.program import Collective

Key = tuple[int, Phase]  # group, phase


@dataclass(frozen=True, slots=True)
class Group:
    """What a group has of the machine: the nodes are the machine's, the links a part of its links.

    `links[e]` is the number that link e of `graph` has in the machine. `root` is a rank number.
    """

    graph: CapacityGraph
    links: tuple[int, ...]
    root: int


@dataclass(frozen=True, slots=True)
class WeighedCut:
    """A node set that holds roots of a flow's trees, and its weight."""

    group: int
    phase: Phase
    side: frozenset[int]
    weight: Fraction


@dataclass(frozen=True, slots=True)
class GroupsBound:
    """Why no common algbw is above `algbw` (GB/s); potentials are (group, phase, node, p)."""

    algbw: Fraction
    cuts: tuple[WeighedCut, ...]
    potentials: tuple[tuple[int, Phase, int, Fraction], ...] = ()


def check_groups_bound(
    machine: CapacityGraph, groups: Sequence[Group], collective: Collective, bound: GroupsBound
) -> Fraction:
    """The common algbw (GB/s) that the certificate proves to be the limit, recomputed exactly.

    Trusts nothing in `bound` and ignores its `algbw`: compare. Raises ForestError with the reason
    where the certificate proves nothing.
    """
    for number, cut in enumerate(bound.cuts):
        _check_cut(groups, collective, cut, f"bound: cut {number}")
    _check_potentials(groups, bound)
    weight = sum(
        (_weight(group, collective, g, bound.cuts) for g, group in enumerate(groups)), Fraction(0)
    )
    if not weight:
        raise ForestError("bound: the weights of the cuts leave every group out")
    highest: dict[int, Fraction] = defaultdict(Fraction)
    keys = {(cut.group, cut.phase) for cut in bound.cuts} | {p[:2] for p in bound.potentials}
    for key in sorted(keys):
        for e, pressure in _pressures(groups[key[0]], key, bound):
            highest[e] = max(highest[e], pressure)
    total = sum((machine.capacity[e] * z for e, z in highest.items()), Fraction(0))
    return total * machine.unit / weight


def _check_cut(
    groups: Sequence[Group], collective: Collective, cut: WeighedCut, where: str
) -> None:
    if not 0 <= cut.group < len(groups):
        raise ForestError(f"{where} is of group {cut.group}, which does not exist")
    graph = groups[cut.group].graph
    inside = [v for v in graph.ranks if v in cut.side]
    if any(not 0 <= v < graph.n for v in cut.side):
        raise ForestError(f"{where} holds a node that does not exist")
    if cut.weight < 0:
        raise ForestError(f"{where} has the negative weight {cut.weight}")
    if len(inside) == len(graph.ranks):
        raise ForestError(f"{where} holds all ranks of group {cut.group}, so it cuts nothing off")
    if collective.rooted:
        root = graph.ranks[groups[cut.group].root]
        if root not in cut.side:
            raise ForestError(f"{where} does not hold the root {graph.names[root]}")
    elif not inside:
        raise ForestError(f"{where} holds no rank of group {cut.group}, so no data has to leave it")
    _check_phase(collective, cut.phase, where)


def _check_phase(collective: Collective, phase: Phase, where: str) -> None:
    both = collective is Collective.ALLREDUCE
    if not both and (phase == "reduce") != collective.reduces:
        raise ForestError(f"{where} is of {phase} trees, of which {collective} has none")


def _check_potentials(groups: Sequence[Group], bound: GroupsBound) -> None:
    seen: set[tuple[int, Phase, int]] = set()
    for g, phase, w, p in bound.potentials:
        if not 0 <= g < len(groups):
            raise ForestError(f"bound: a potential of group {g}, which does not exist")
        graph = groups[g].graph
        if not 0 <= w < graph.n:
            raise ForestError(f"bound: a potential for node {w}, which does not exist")
        name = graph.names[w]
        if (g, phase, w) in seen:
            raise ForestError(f"bound: two potentials of group {g} for {name}")
        if w in graph.ranks:
            raise ForestError(f"bound: a potential of group {g} for {name}, which is its rank")
        able = graph.multicast if phase == "broadcast" else graph.aggregation
        if able[w] and p < 0:
            does = "copy" if phase == "broadcast" else "add"
            raise ForestError(
                f"bound: the negative potential {p} for {name}, which may {does} in the fabric"
            )
        seen.add((g, phase, w))


def _weight(group: Group, collective: Collective, g: int, cuts: Sequence[WeighedCut]) -> Fraction:
    """How much of the common algbw the left sides hold for one group."""
    own = [cut for cut in cuts if cut.group == g]
    ranks = group.graph.ranks
    if collective.rooted:
        return sum((cut.weight for cut in own), Fraction(0))
    around = {v: sum((cut.weight for cut in own if v in cut.side), Fraction(0)) for v in ranks}
    if collective is Collective.ALLREDUCE:
        return min(around.values())
    return sum(around.values(), Fraction(0)) / len(ranks)


def _pressures(group: Group, key: Key, bound: GroupsBound) -> list[tuple[int, Fraction]]:
    """(link of the machine, pressure of the flow `key` on it) for all links of the group."""
    cuts = [cut for cut in bound.cuts if (cut.group, cut.phase) == key]
    given = {w: p for g, phase, w, p in bound.potentials if (g, phase) == key}
    common = math.lcm(*(y.denominator for y in (*given.values(), *(cut.weight for cut in cuts))))
    potential = {w: int(p * common) for w, p in given.items()}
    weighed = [(cut.side, int(cut.weight * common)) for cut in cuts]
    ends = (group.graph.tail, group.graph.head)
    turned = ends if key[1] == "broadcast" else ends[::-1]
    out = []
    for e, (u, v) in enumerate(zip(*turned, strict=True)):
        pressure = potential.get(u, 0) - potential.get(v, 0)
        pressure += sum(y for side, y in weighed if u in side and v not in side)
        out.append((group.links[e], Fraction(pressure, common)))
    return out
