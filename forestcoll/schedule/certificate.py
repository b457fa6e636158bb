"""Proof that a forest is what it claims: its trees on one side, its bound on the other.

Every allreduce made of trees is bounded: a unit of data is added up along a reduce tree that spans
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

from fractions import Fraction

from forestcoll.common.errors import ForestError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective
from forestcoll.schedule.dual import check_cut, check_dual, one_group
from forestcoll.schedule.forest import Bound, Forest
from forestcoll.schedule.forest import check as check_trees
from forestcoll.schedule.group import WeighedCut

Labels = list[int]  # per node: which part holds it, or OUTSIDE

OUTSIDE = -1


def check(forest: Forest) -> tuple[Fraction, Fraction | None]:
    """(algbw, bound) in GB/s, both recomputed from the links; the bound None where none is stated.

    Raises ForestError when a tree does not span, shares do not add up, the bound does not follow
    from its certificate, or the trees claim to beat it.
    """
    algbw = check_trees(forest)
    if forest.bound is None:
        return algbw, None
    bound = check_bound(forest, forest.bound)
    if algbw > bound:
        raise ForestError(f"algbw {algbw} is above the bound {bound}: one of the two is wrong")
    return algbw, bound


def check_bound(forest: Forest, bound: Bound) -> Fraction:
    """The bound in GB/s, once its certificate has been recomputed and gives the stated number."""
    prove = check_dual if bound.method == "linear-program" else check_parts
    root = forest.root if forest.collective.has_root else None
    proven = prove(forest.graph, bound, forest.collective, root)
    if proven != bound.algbw:
        raise ForestError(f"states bound {bound.algbw}, its {bound.method} gives {proven}")
    return proven


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
    group, part = one_group(graph, collective, root), bound.parts[0]
    phase = collective.phases[0]
    check_cut([group], WeighedCut(0, phase, part, Fraction(1)), "bound: the cut")
    leaving = graph.leaving(part)
    entering = graph.leaving(graph.outside(part))
    if collective.two_phases:
        return min(leaving, entering)
    crossing = leaving if phase == "broadcast" else entering
    return (
        crossing
        if collective.has_root
        else crossing * Fraction(sum(graph.parts), graph.parts_in(part))
    )


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
    return partition_limit(graph, labels, len(bound.parts)) * graph.unit


def partition_limit(graph: CapacityGraph, labels: Labels, m: int) -> Fraction:
    """What a partition proves (units); see the head of this file."""
    entering = leaving = 0
    for u, v, units in graph.arcs:
        if labels[u] != labels[v]:
            entering += units * (labels[v] != OUTSIDE)
            leaving += units * (labels[u] != OUTSIDE)
    outside = [v for v in range(graph.n) if labels[v] == OUTSIDE]
    adds = any(graph.aggregation[v] for v in outside)
    copies = any(graph.multicast[v] for v in outside)
    enters = Fraction(entering, m if adds else 2 * (m - 1))
    leaves = Fraction(leaving, m if copies else 2 * (m - 1))
    return min(enters, leaves)
