"""Bounds of allreduce: how fast it can be at best, by cuts and by partitions of the ranks.

Every schedule made of trees is bounded: a unit of data is added up along a reduce tree that spans
all ranks, and handed out again along a broadcast tree that spans them.

A cut. Some rank outside S needs the sum that holds what the ranks in S put in, and the other way
round; so all data leave S once and enter it once, in whatever form, copies and sums made in the
fabric included: algbw <= leaving(S), algbw <= entering(S).

A partition. Let m >= 2 disjoint node sets ("parts") together hold all ranks, at least one each.
* A broadcast tree comes from one part and reaches the m - 1 others, so it enters parts m - 1 times;
  copies spare none of it, since links that enter different parts are different links. It also
  leaves parts m - 1 times: nodes outside of all parts hand on what they got, once per path. Only
  where such a node copies in the fabric may one departure serve them all.
* A reduce tree is a broadcast tree turned round: it leaves parts m - 1 times, always, and enters
  them m - 1 times, or only once where a node outside of all parts adds in the fabric.
So algbw <= (entering all parts) / (2 (m - 1)), with m in place of 2 (m - 1) where a node outside of
the parts aggregates; and the same with leaving, with m where a node outside multicasts. All ranks
must be in parts: one outside could add up for all others, and a tree would enter parts only once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from fractions import Fraction

from forestcoll.errors import ForestError, UnsupportedError
from forestcoll.forest import Bound
from forestcoll.graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.solver.cut import explain_separation

Groups = frozenset[frozenset[int]]  # the ranks (nodes) of each part
Labels = list[int]  # per node: which part holds it, or OUTSIDE

OUTSIDE = -1
WORK = 2_000_000
"""Links that the search may look at in all, about: some seconds at most, whatever the graph."""
THRESHOLDS = 24
"""How many of the distinct capacities, largest first, are tried as thresholds for groups."""


def allreduce_bound(graph: CapacityGraph) -> Bound:
    """The least upper bound of an allreduce's algbw (GB/s) that is found here, with its proof.

    The best of all cuts ("cut", exact) and of many partitions ("partition", a search); reached by
    reduce-scatter and allgather over the same trees on symmetric machines. A bound for every
    schedule, those that copy and add in the fabric included where the graph's switches can.
    Raises InfeasibleError when some rank cannot reach another.
    """
    if len(graph.ranks) < 2:
        raise UnsupportedError("a collective needs at least two ranks")
    units, cut = _least_cut(graph)
    best = Bound(units * graph.unit, "cut", (cut,))
    value, parts = _Search(graph, cut).best()
    if value < units:
        best = Bound(value * graph.unit, "partition", parts)
    return best


def _least_cut(graph: CapacityGraph) -> tuple[int, frozenset[int]]:
    """(units, S): the least capacity leaving a node set that holds some, not all ranks.

    Every such S either holds rank 0 and lacks another, or the other way round. What enters S leaves
    its complement, so this is the bound of both directions.
    """
    from forestcoll.kernel import _kernel

    first, others = graph.ranks[0], list(graph.ranks[1:])
    links = (list(graph.tail), list(graph.head))
    out, inside = _kernel.least_flow(graph.n, *links, list(graph.capacity), first, others)
    back, beyond = _kernel.least_flow(graph.n, *links[::-1], list(graph.capacity), first, others)
    cut = frozenset(inside) if out <= back else frozenset(range(graph.n)) - frozenset(beyond)
    if min(out, back) == 0:
        raise explain_separation(graph, cut)
    return min(out, back), cut


# ------------------------------------------------------------------------------ partitions


def _sums(graph: CapacityGraph, labels: Labels) -> tuple[int, int]:
    """(units that enter parts, units that leave parts), all parts together."""
    entering = leaving = 0
    for u, v, units in zip(graph.tail, graph.head, graph.capacity, strict=True):
        a, b = labels[u], labels[v]
        if a != b:
            if b != OUTSIDE:
                entering += units
            if a != OUTSIDE:
                leaving += units
    return entering, leaving


def _limit(graph: CapacityGraph, labels: Labels, m: int) -> Fraction:
    """What a partition proves (units); see the head of this file."""
    entering, leaving = _sums(graph, labels)
    outside = [v for v in range(graph.n) if labels[v] == OUTSIDE]
    adds = any(graph.aggregation[v] for v in outside)
    copies = any(graph.multicast[v] for v in outside)
    enters = Fraction(entering, m if adds else 2 * (m - 1))
    leaves = Fraction(leaving, m if copies else 2 * (m - 1))
    return min(enters, leaves)


class _Search:
    """Looks for a good partition: likely groups of ranks first, then merging and splitting them."""

    def __init__(self, graph: CapacityGraph, cut: frozenset[int]) -> None:
        self.graph = graph
        self.cut = cut
        self.ranks = frozenset(graph.ranks)
        self.relays = [v for v in range(graph.n) if v not in self.ranks]
        self.between: list[dict[int, int]] = [defaultdict(int) for _ in range(graph.n)]
        self.into, self.out = [0] * graph.n, [0] * graph.n
        for u, v, units in zip(graph.tail, graph.head, graph.capacity, strict=True):
            self.between[u][v] += units
            self.between[v][u] += units
            self.out[u] += units
            self.into[v] += units
        self.work = WORK
        self.known: dict[Groups, Fraction] = {}

    def best(self) -> tuple[Fraction, tuple[frozenset[int], ...]]:
        """(units, parts) of the best partition found."""
        family = list(dict.fromkeys(_groupings(self.graph, self.cut)))
        values = {groups: self.value(groups) for groups in family}
        groups = min(family, key=lambda g: (values[g], len(g)))
        groups = self.descend(groups, family)
        _, labels = self.place(groups)
        parts: dict[int, set[int]] = defaultdict(set)
        for v, label in enumerate(labels):
            if label != OUTSIDE:
                parts[label].add(v)
        return self.value(groups), tuple(frozenset(parts[i]) for i in sorted(parts))

    def descend(self, groups: Groups, family: list[Groups]) -> Groups:
        """`groups`, changed for the better by one move after the other while the work lasts."""
        while True:
            for candidate in self.moves(groups, family):
                if self.work <= 0:
                    return groups
                if self.value(candidate) < self.value(groups):
                    groups = candidate
                    break
            else:
                return groups

    def moves(self, groups: Groups, family: list[Groups]) -> Iterator[Groups]:
        """Groups joined into one of the family's, split into the family's, or joined two by two."""
        ordered = sorted(groups, key=min)
        home = {v: group for group in ordered for v in group}
        for other in family:
            pieces: dict[frozenset[int], set[frozenset[int]]] = defaultdict(set)
            for group in sorted(other, key=min):
                joined = frozenset(home[v] for v in group)
                if len(joined) > 1 and sum(map(len, joined)) == len(group) < len(self.ranks):
                    yield groups - joined | {group}
                for g in joined:
                    pieces[g].add(g & group)
            for g in ordered:
                if len(pieces[g]) > 1:
                    yield groups - {g} | pieces[g]
        for a in ordered if len(ordered) > 2 else ():
            near = {home[v] for u in a for v in self.neighbours(u) if home[v] is not a}
            for b in sorted(near, key=min):
                if min(a) < min(b):
                    yield groups - {a, b} | {a | b}

    def neighbours(self, u: int) -> Iterator[int]:
        """Ranks one link from rank u, or two with a switch between."""
        for v in self.between[u]:
            if v in self.ranks:
                yield v
            else:
                yield from (w for w in self.between[v] if w in self.ranks)

    def value(self, groups: Groups) -> Fraction:
        """What the partition proves, in units."""
        if groups not in self.known:
            self.known[groups] = self.place(groups)[0]
        return self.known[groups]

    def place(self, groups: Groups) -> tuple[Fraction, Labels]:
        """(what it proves, labels) with every switch in the part, or in none, where it helps."""
        base = [OUTSIDE] * self.graph.n
        for i, group in enumerate(sorted(groups, key=min)):
            for v in group:
                base[v] = i
        m = len(groups)
        options = [base, self.absorb(base, self.into), self.absorb(base, self.out)]
        self.work -= 3 * len(self.graph.tail) + self.graph.n
        return min((_limit(self.graph, labels, m), labels) for labels in options)

    def absorb(self, base: Labels, through: list[int]) -> Labels:
        """Each switch goes to the part that it shares most with, where that saves crossings.

        `through` is what enters (or leaves) each node: inside a part this much more crosses its
        border, and all that runs between the switch and the part crosses it no longer.
        """
        labels = list(base)
        queue = list(self.relays)
        while queue:
            left = []
            for w in queue:
                share: dict[int, int] = defaultdict(int)
                for v, units in self.between[w].items():
                    if labels[v] != OUTSIDE:
                        share[labels[v]] += units
                self.work -= len(self.between[w])
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
    plain += _joined_by_wide_links(graph)
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


def _joined_by_wide_links(graph: CapacityGraph) -> list[Groups]:
    """Ranks that links of at least a threshold's capacity join, for several thresholds."""
    parent = list(range(graph.n))

    def find(v: int) -> int:
        while parent[v] != v:
            parent[v] = v = parent[parent[v]]
        return v

    wide: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for u, v, units in zip(graph.tail, graph.head, graph.capacity, strict=True):
        wide[units].append((u, v))
    found = []
    for units in sorted(wide, reverse=True)[:THRESHOLDS]:
        for u, v in wide[units]:
            parent[find(u)] = find(v)
        found.append(_by_key((v, find(v)) for v in graph.ranks))
    return found


def _tight_cuts(graph: CapacityGraph) -> Iterator[frozenset[int]]:
    """The bottleneck of allgather, and that of reduce-scatter."""
    from forestcoll.kernel import _kernel

    for tail, head in ((graph.tail, graph.head), (graph.head, graph.tail)):
        args = (list(tail), list(head), list(graph.capacity), list(graph.ranks))
        yield frozenset(_kernel.best_ratio(graph.n, *args)[2])


# ------------------------------------------------------------------------------ certificate


def check_parts(
    graph: CapacityGraph, bound: Bound, collective: Collective, root: int | None = None
) -> Fraction:
    """The algbw (GB/s) that a "cut" or "partition" bound proves, recomputed exactly from its parts.

    Trusts nothing in `bound` and ignores its `algbw`: compare. `root` is a rank number. Raises
    ForestError with the reason where the parts prove nothing.
    """
    for part in bound.parts:
        if any(not 0 <= v < graph.n for v in part):
            raise ForestError("bound: a part holds a node that does not exist")
    if bound.method == "cut":
        return _check_cut(graph, bound, collective, root)
    if bound.method == "partition":
        return _check_partition(graph, bound, collective)
    raise ForestError(f"bound: method {bound.method!r} is proven by its dual, not by parts")


def _check_cut(
    graph: CapacityGraph, bound: Bound, collective: Collective, root: int | None
) -> Fraction:
    if len(bound.parts) != 1:
        raise ForestError(f"bound: a cut is one node set, got {len(bound.parts)}")
    part = bound.parts[0]
    n, inside = len(graph.ranks), sum(v in part for v in graph.ranks)
    if inside == n:
        raise ForestError("bound: the cut holds all ranks, so it cuts nothing off")
    if not inside:
        raise ForestError("bound: the cut holds no rank, so no data has to leave it")
    leaving = graph.leaving(part)
    entering = graph.leaving(frozenset(range(graph.n)) - part)
    if collective is Collective.ALLREDUCE:
        return min(leaving, entering)
    if not collective.rooted:
        held = graph.held(part)
        if not held:
            raise ForestError("bound: no rank in the cut has a part, so no data has to leave it")
        crossing = leaving if collective is Collective.ALLGATHER else entering
        return crossing * Fraction(sum(graph.parts), held)
    if root is None or not 0 <= root < n:
        raise ForestError(f"bound: {collective.value} needs a root rank, got {root}")
    if graph.ranks[root] not in part:
        raise ForestError(f"bound: the cut does not hold the root {graph.names[graph.ranks[root]]}")
    return leaving if collective is Collective.BROADCAST else entering


def _check_partition(graph: CapacityGraph, bound: Bound, collective: Collective) -> Fraction:
    if collective is not Collective.ALLREDUCE:
        raise ForestError(f"bound: a partition proves nothing about {collective.value}")
    if len(bound.parts) < 2:
        raise ForestError(f"bound: a partition needs two parts or more, got {len(bound.parts)}")
    labels = [OUTSIDE] * graph.n
    ranks = frozenset(graph.ranks)
    for i, part in enumerate(bound.parts):
        if ranks.isdisjoint(part):
            raise ForestError(f"bound: part {i} holds no rank")
        for v in part:
            if labels[v] != OUTSIDE:
                raise ForestError(f"bound: {graph.names[v]} is in parts {labels[v]} and {i}")
            labels[v] = i
    for v in graph.ranks:
        if labels[v] == OUTSIDE:
            raise ForestError(f"bound: rank {graph.names[v]} is in no part")
    return _limit(graph, labels, len(bound.parts)) * graph.unit
