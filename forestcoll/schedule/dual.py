"""Dual of the concurrent flows: what no schedule beats, of one group or of several at once.

Take any trees of all groups that reach the common algbw L, and let c(f, e) be what flow f (a group
and a phase) loads on link e. Reduce trees are looked at turned round, as broadcast trees.

* A cut S of flow f with weight y: what starts in S and is wanted outside leaves S, so
  y c(f, leaving S) >= y L share(S), where share(S) is the part of the group's data that starts in
  S: ranks in S / ranks of the group (parts, where they differ); rooted: 1 where S holds the root.
* A potential p of flow f at a node that is no rank of the group adds p (out - in): 0 where the node
  neither copies nor adds, >= 0 where it copies and p >= 0 (for reduce trees: where it adds).
* The left sides add up to at most the sum of c(f, e) pressure(f, e), with pressure the weights of
  the cuts that e leaves, plus p(tail) - p(head); and so to at most the sum of b(e) z(e), with z the
  largest pressure of all flows on a link, or 0.
* So L <= sum of b(e) z(e) / sum of y share(S).
* A group whose algbw is w L (`Group.weight`) counts w times in what its cuts hold.

In an allreduce the parts that start at ranks are the schedule's own choice, the same in both
phases, unless the graph gives the ranks shares of the sums. There share(S) gives way to the least
weight, over the ranks v of a group, of the cuts of either phase that hold v: that much of the
group's data crosses cuts, wherever it starts.

Averaging over symmetries (`group`) changes neither L nor what trees obey above. Where some
are given, only the mean pressure over flows that are alike counts, and the mean weight around ranks
that are alike.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from forestcoll.common.errors import ForestError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule.forest import Bound, Phase
from forestcoll.schedule.group import (
    Group,
    GroupsBound,
    Orbits,
    WeighedCut,
    find_orbits,
    flow_keys,
    whole_group,
)


def check_dual(
    graph: CapacityGraph, bound: Bound, collective: Collective, root: int | None = None
) -> Fraction:
    """The algbw (GB/s) that a "linear-program" bound of one group proves, recomputed exactly.

    Trusts nothing in `bound` and ignores its `algbw`: compare. `root` is a rank number. Raises
    ForestError with the reason where the certificate proves nothing.
    """
    group, dual = as_group(graph, bound, collective, root)
    total, weight, _ = _weigh(graph, [group], dual)
    if weight < 1:
        raise ForestError(
            f"bound: the weights of the cuts add up to {weight}, less than 1, so the bound leaves "
            "some data out"
        )
    return total


def link_worth(
    graph: CapacityGraph, bound: Bound, collective: Collective, root: int | None = None
) -> list[Fraction]:
    """Per link what a GB/s of it is worth at most, z(e), in GB/s of algbw."""
    group, dual = as_group(graph, bound, collective, root)
    return _weigh(graph, [group], dual)[2]


def as_group(
    graph: CapacityGraph, bound: Bound, collective: Collective, root: int | None
) -> tuple[Group, GroupsBound]:
    """A "linear-program" bound as that of one group, which is all ranks.

    A Bound of one phase counts its weights and potentials per unit of rate (`Bound` says how); here
    they are per algbw.
    """
    if bound.method != "linear-program":
        raise ForestError(f"bound: method {bound.method!r} is no linear-program certificate")
    group = one_group(graph, collective, root)
    both = collective.two_phases
    of = bound.phases if both else collective.phases * len(bound.parts)
    if not len(bound.parts) == len(bound.weights) == len(of):
        raise ForestError(
            f"bound: {len(bound.parts)} cuts but {len(bound.weights)} weights"
            + (f" and {len(of)} phases" if both else "")
        )
    scale = _scale(graph, collective)
    first = sorted(collective.phases)[0]
    pairs = [(first, w, p * scale) for w, p in bound.potentials]
    pairs += [("reduce", w, p) for w, p in bound.reduce_potentials if both]
    dual = GroupsBound(
        bound.algbw,
        tuple(
            WeighedCut(0, phase, side, y * scale)
            for phase, side, y in zip(of, bound.parts, bound.weights, strict=True)
        ),
        tuple((0, phase, w, p) for phase, w, p in pairs),
        tuple(replace(s, image=(*s.image, graph.n)) for s in bound.symmetries),
    )
    return group, dual


def one_group(graph: CapacityGraph, collective: Collective, root: int | None) -> Group:
    """All ranks as one group, with the root that the collective needs, or ForestError."""
    if collective.has_root and (root is None or not 0 <= root < len(graph.ranks)):
        raise ForestError(f"bound: {collective.value} needs a root rank, got {root}")
    return whole_group(graph, collective, root)


def as_bound(graph: CapacityGraph, dual: GroupsBound, collective: Collective) -> Bound:
    """The bound of one group, which is all ranks, as forests state it: `as_group` turned round."""
    both = collective.two_phases
    scale = _scale(graph, collective)
    first = sorted(collective.phases)[0]
    return Bound(
        algbw=dual.algbw,
        method="linear-program",
        parts=tuple(cut.side for cut in dual.cuts),
        weights=tuple(cut.weight / scale for cut in dual.cuts),
        phases=tuple(cut.phase for cut in dual.cuts if both),
        potentials=tuple((w, p / scale) for _, of, w, p in dual.potentials if of == first),
        reduce_potentials=tuple((w, p) for _, of, w, p in dual.potentials if of != first),
        symmetries=tuple(replace(s, image=s.image[: graph.n]) for s in dual.symmetries),
    )


def _scale(graph: CapacityGraph, collective: Collective) -> int:
    """algbw / the rate that weights and potentials of a Bound are counted by."""
    return 1 if collective.two_phases or collective.has_root else sum(graph.parts)


def check_groups_bound(
    machine: CapacityGraph, groups: Sequence[Group], bound: GroupsBound
) -> Fraction:
    """The common algbw (GB/s) that the certificate proves to be the limit, recomputed exactly.

    Trusts nothing in `bound` and ignores its `algbw`: compare. Raises ForestError with the reason
    where the certificate proves nothing.
    """
    total, weight, _ = _weigh(machine, groups, bound)
    if not weight:
        raise ForestError("bound: the weights of the cuts leave every group out")
    return total / weight


def _weigh(
    machine: CapacityGraph, groups: Sequence[Group], bound: GroupsBound
) -> tuple[Fraction, Fraction, list[Fraction]]:
    """(sum of b z in GB/s, sum of y share, z of each link), once all of it may be relied on."""
    for number, cut in enumerate(bound.cuts):
        check_cut(groups, cut, f"bound: cut {number}")
    _check_potentials(groups, bound)
    alike = find_orbits(machine, groups, bound.symmetries)
    highest: dict[int, Fraction] = defaultdict(Fraction)
    for link, pressure in _mean_pressures(groups, bound, alike):
        highest[link] = max(highest[link], pressure)
    worth = [highest[link] for link in alike.link]
    total = sum((c * z for c, z in zip(machine.capacity, worth, strict=True) if z), Fraction(0))
    return total * machine.unit, _weight(groups, bound.cuts, alike), worth


def check_cut(groups: Sequence[Group], cut: WeighedCut, where: str) -> None:
    """ForestError that begins with `where` unless data of its group have to leave the cut."""
    if not 0 <= cut.group < len(groups):
        raise ForestError(f"{where} is of group {cut.group}, which does not exist")
    collective = groups[cut.group].collective
    graph, of = groups[cut.group].graph, _of(groups, cut.group)
    inside = [v for v in graph.ranks if v in cut.side]
    if any(not 0 <= v < graph.n for v in cut.side):
        raise ForestError(f"{where} holds a node that does not exist")
    if cut.weight < 0:
        raise ForestError(f"{where} has a negative weight")
    if len(inside) == len(graph.ranks):
        raise ForestError(f"{where} holds all ranks{of}, so it cuts nothing off")
    if collective.has_root:
        root = graph.ranks[groups[cut.group].root]
        if root not in cut.side:
            raise ForestError(f"{where} does not hold the root {graph.names[root]}")
    elif not (inside if collective.two_phases else graph.parts_in(cut.side)):
        rank = "rank with a part" if inside else "rank"
        raise ForestError(f"{where} holds no {rank}{of}, so no data has to leave it")
    if cut.phase not in collective.phases:
        raise ForestError(f"{where} is of {cut.phase} trees, of which {collective} has none")


def _of(groups: Sequence[Group], number: int) -> str:
    """Which group is meant, where there are several."""
    return f" of group {number}" if len(groups) > 1 else ""


def _check_potentials(groups: Sequence[Group], bound: GroupsBound) -> None:
    seen: set[tuple[int, Phase, int]] = set()
    for g, phase, w, p in bound.potentials:
        if not 0 <= g < len(groups):
            raise ForestError(f"bound: a potential of group {g}, which does not exist")
        graph, of = groups[g].graph, _of(groups, g)
        if not 0 <= w < graph.n:
            raise ForestError(f"bound: a potential for node {w}, which does not exist")
        name = graph.names[w]
        if (g, phase, w) in seen:
            raise ForestError(f"bound: two potentials{of} for {name}")
        if w in graph.ranks:
            raise ForestError(f"bound: a potential{of} for {name}, which is a rank{of}")
        able = graph.multicast if phase == "broadcast" else graph.aggregation
        if able[w] and p < 0:
            does = "copy" if phase == "broadcast" else "add"
            raise ForestError(
                f"bound: a negative potential{of} for {name}, which may {does} in the fabric"
            )
        seen.add((g, phase, w))


def _weight(groups: Sequence[Group], cuts: Sequence[WeighedCut], alike: Orbits) -> Fraction:
    """How much of the common algbw the left sides hold, all groups together."""
    own = [Fraction(0)] * len(groups)
    around: dict[tuple[int, int], Fraction] = defaultdict(Fraction)  # group, rank
    for cut in cuts:
        own[cut.group] += cut.weight
        for v in groups[cut.group].graph.ranks:
            if v in cut.side:
                around[cut.group, v] += cut.weight
    total: dict[int, Fraction] = defaultdict(Fraction)
    size: dict[int, int] = defaultdict(int)
    for g, group in enumerate(groups):
        for v in group.graph.ranks:
            total[alike.part[g][v]] += around[g, v]
            size[alike.part[g][v]] += 1
    held = Fraction(0)
    for g, group in enumerate(groups):
        ranks, parts = group.graph.ranks, group.graph.parts
        if group.collective.has_root:
            share = own[g]
        elif group.collective.two_phases and not group.graph.shares:
            share = min(total[o] / size[o] for o in (alike.part[g][v] for v in ranks))
        else:
            each = zip(ranks, parts, strict=True)
            share = sum((around[g, v] * part for v, part in each), Fraction(0)) / sum(parts)
        held += group.weight * share
    return held


def _mean_pressures(
    groups: Sequence[Group], bound: GroupsBound, alike: Orbits
) -> list[tuple[int, Fraction]]:
    """(orbit of links, mean pressure) of each orbit of flows."""
    given = [cut.weight for cut in bound.cuts] + [p for *_, p in bound.potentials]
    common = math.lcm(*(y.denominator for y in given))
    keys = flow_keys(groups)
    sums: dict[int, int] = defaultdict(int)
    size: dict[int, int] = defaultdict(int)
    link: dict[int, int] = {}
    for f, (g, phase) in enumerate(keys):
        graph = groups[g].graph
        cuts = [
            (cut.side, int(cut.weight * common))
            for cut in bound.cuts
            if (cut.group, cut.phase) == (g, phase)
        ]
        potential = {
            w: int(p * common) for h, of, w, p in bound.potentials if (h, of) == (g, phase)
        }
        ends = (graph.tail, graph.head) if phase == "broadcast" else (graph.head, graph.tail)
        for e, (u, v) in enumerate(zip(*ends, strict=True)):
            orbit = alike.flow[f][e]
            size[orbit] += 1
            link[orbit] = alike.link[groups[g].links[e]]
            sums[orbit] += potential.get(u, 0) - potential.get(v, 0)
            sums[orbit] += sum(y for side, y in cuts if u in side and v not in side)
    return [(link[o], Fraction(total, common * size[o])) for o, total in sums.items()]
