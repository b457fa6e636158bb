"""Bounds of allreduce: the best of all cuts and of likely partitions of the ranks.

`schedule.certificate` says what a cut or a partition proves, and why; here they are found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from fractions import Fraction

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.group import DisjointSets
from forestcoll.schedule.certificate import OUTSIDE, Labels, partition_limit
from forestcoll.schedule.forest import Bound
from forestcoll.solver.task import explain_separation, tightest_cut

Groups = frozenset[frozenset[int]]  # the ranks (nodes) of each part
THRESHOLDS = 24
"""How many of the distinct capacities, largest first, are tried as thresholds for groups."""


def allreduce_bound(graph: CapacityGraph) -> Bound:
    """The least upper bound of an allreduce's algbw (GB/s) that is found here, with its proof.

    The best of all cuts ("cut", exact) and of likely partitions ("partition"); reached by
    reduce-scatter and allgather over the same trees on symmetric machines. A bound for every
    schedule, those that copy and add in the fabric included where the graph's switches can.
    Raises InfeasibleError when some rank cannot reach another.
    """
    if len(graph.ranks) < 2:
        raise UnsupportedError("a collective needs at least two ranks")
    units, cut = _least_cut(graph)
    best = Bound(units * graph.unit, "cut", (cut,))
    value, parts = _Placing(graph).best(_groupings(graph, cut))
    if value < units:
        best = Bound(value * graph.unit, "partition", parts)
    return best


def _least_cut(graph: CapacityGraph) -> tuple[int, frozenset[int]]:
    """(units, S): the least capacity leaving a node set that holds some, not all ranks.

    Every such S either holds rank 0 and lacks another, or the other way round. What enters S leaves
    its complement, so this is the bound of both directions.
    """
    rate, cut = tightest_cut(graph, 0)
    back, beyond = tightest_cut(graph.reverse(), 0)
    if back < rate:
        rate, cut = back, graph.outside(beyond)
    if rate == 0:
        raise explain_separation(graph, cut)
    return int(rate), cut


# ------------------------------------------------------------------------------ partitions


class _Placing:
    """Puts switches into the parts of a partition of the ranks, where that proves more."""

    def __init__(self, graph: CapacityGraph) -> None:
        self.graph = graph
        self.between: list[dict[int, int]] = [defaultdict(int) for _ in range(graph.n)]
        self.into, self.out = [0] * graph.n, [0] * graph.n
        for u, v, units in graph.arcs:
            self.between[u][v] += units
            self.between[v][u] += units
            self.out[u] += units
            self.into[v] += units

    def best(self, family: Iterable[Groups]) -> tuple[Fraction, tuple[frozenset[int], ...]]:
        """(units, parts) of the best of these partitions; of equal ones that of fewest parts."""
        placed = ((*self.place(groups), len(groups)) for groups in dict.fromkeys(family))
        value, labels, _ = min(placed, key=lambda entry: (entry[0], entry[2]))
        parts: dict[int, set[int]] = defaultdict(set)
        for v, label in enumerate(labels):
            if label != OUTSIDE:
                parts[label].add(v)
        return value, tuple(frozenset(parts[i]) for i in sorted(parts))

    def place(self, groups: Groups) -> tuple[Fraction, Labels]:
        """(what it proves, labels) with every switch in the part, or in none, where it helps."""
        base = [OUTSIDE] * self.graph.n
        for i, group in enumerate(sorted(groups, key=min)):
            for v in group:
                base[v] = i
        m = len(groups)
        options = [base, self.absorb(base, self.into), self.absorb(base, self.out)]
        return min((partition_limit(self.graph, labels, m), labels) for labels in options)

    def absorb(self, base: Labels, through: list[int]) -> Labels:
        """Each switch goes to the part that it shares most with, where that saves crossings.

        `through` is what enters (or leaves) each node: inside a part this much more crosses its
        border, and all that runs between the switch and the part crosses it no longer.
        """
        labels = list(base)
        ranks = set(self.graph.ranks)
        queue = [v for v in range(self.graph.n) if v not in ranks]
        while queue:
            left = []
            for w in queue:
                share: dict[int, int] = defaultdict(int)
                for v, units in self.between[w].items():
                    if labels[v] != OUTSIDE:
                        share[labels[v]] += units
                part = max(share, key=lambda i: (share[i], -i), default=OUTSIDE)
                if part != OUTSIDE and share[part] > through[w]:
                    labels[w] = part
                else:
                    left.append(w)
            if len(left) == len(queue):
                break
            queue = left
        return labels


def _groupings(graph: CapacityGraph, cut: frozenset[int]) -> Iterator[Groups]:
    """Likely partitions: each rank alone, boxes, what wide links join, the sides of tight cuts."""
    ranks = frozenset(graph.ranks)
    singles: Groups = frozenset(frozenset([v]) for v in ranks)
    yield singles
    plain = [singles]
    paths = {v: graph.names[v].split("/") for v in ranks}
    for depth in range(1, max(len(path) for path in paths.values())):
        plain.append(_by_key((v, "/".join(path[:depth])) for v, path in paths.items()))
    plain += _groups_by_wide_links(graph)
    for groups in plain:
        if len(groups) > 1:
            yield groups
    for side in (cut, *_tight_cuts(graph)):
        inside, outside = ranks & side, ranks - side
        if not inside or not outside:
            continue
        yield frozenset([inside, outside])
        for groups in plain:
            within = frozenset(g & inside for g in groups if g & inside)
            beyond = frozenset(g & outside for g in groups if g & outside)
            yield within | {outside}
            yield beyond | {inside}
            yield within | beyond


def _by_key(pairs: Iterable[tuple[int, object]]) -> Groups:
    groups: dict[object, set[int]] = defaultdict(set)
    for v, key in pairs:
        groups[key].add(v)
    return frozenset(frozenset(group) for group in groups.values())


def _groups_by_wide_links(graph: CapacityGraph) -> list[Groups]:
    """Ranks that links of at least a threshold's capacity join, for several thresholds."""
    joined = DisjointSets(graph.n)
    wide: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for u, v, units in graph.arcs:
        wide[units].append((u, v))
    parts_joined = []
    for units in sorted(wide, reverse=True)[:THRESHOLDS]:
        for u, v in wide[units]:
            joined.join(u, v)
        parts_joined.append(_by_key((v, joined.find(v)) for v in graph.ranks))
    return parts_joined


def _tight_cuts(graph: CapacityGraph) -> Iterator[frozenset[int]]:
    """The bottleneck of allgather, and that of reduce-scatter."""
    yield from (tightest_cut(links, None)[1] for links in (graph, graph.reverse()))
