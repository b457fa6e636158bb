"""Bottleneck cut: the node set with the least bandwidth leaving it for what it has to send.

With parts a(v), one unit of time at rate x moves x a(v) of the data of rank v to everyone:

    1 / x = max over node sets S, not holding all ranks, of a(S) / bandwidth leaving S

Where all parts are equal, a(S) counts ranks; of a broadcast the root alone has a part.
"""

from __future__ import annotations

from fractions import Fraction

from forestcoll.common.errors import InfeasibleError, UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.kernel import _kernel
from forestcoll.graph.symmetry.structures import alike_ranks

Cut = frozenset[int]

ALIKE_FROM = 1_024
"""Above that many ranks, alike ones are looked for: one flow will do for all of them."""


def least_cut(graph: CapacityGraph, root: int | None) -> tuple[Fraction, Cut]:
    """(rate in units of capacity, cut) of allgather (root None) or broadcast from rank `root`.

    Every switch is taken for one that may copy. Raises InfeasibleError where the rate is 0.
    """
    links = (graph.n, graph.tail, graph.head, graph.capacity)
    if len(graph.ranks) < 2:
        raise UnsupportedError("a collective needs at least two ranks")
    if root is None and graph.shares:
        rate, cut = least_ratio(graph)
    elif root is None:
        if len(graph.ranks) > ALIKE_FROM:
            sinks = alike_ranks(graph)
            leaving, inside, nodes = _kernel.best_ratio_alike(*links, graph.ranks, sinks)
        else:
            leaving, inside, nodes = _kernel.best_ratio(*links, graph.ranks)
        rate, cut = Fraction(leaving, inside), frozenset(nodes)
    else:
        leaving, nodes = _kernel.least_flow(*links, graph.ranks[root], graph.ranks)
        rate, cut = Fraction(leaving), frozenset(nodes)
    if rate == 0:
        raise explain_separation(graph, cut)
    return rate, cut


def explain_separation(graph: CapacityGraph, cut: Cut) -> InfeasibleError:
    """The error of a cut that no link leaves, though ranks are inside and outside."""
    return InfeasibleError(f"{graph.explain_cut(cut)}; add a link, or leave these ranks out")


def least_ratio(graph: CapacityGraph) -> tuple[Fraction, frozenset[int]]:
    """(capacity leaving S / parts in S, S) at its least, over the S that do not hold all ranks.

    In units of capacity per unit of a part; 0 where a rank with a part cannot reach another rank.
    Discrete Newton as for equal parts: x is possible when every rank can receive all parts, x times
    over, at once; a rank that cannot yields a cut with a smaller ratio, the next x.
    """
    parts, total = graph.parts, sum(graph.parts)
    if sum(graph.capacity) * total >= 2**62:
        raise UnsupportedError(
            f"the links add up to {sum(graph.capacity)} units and the parts to {total}: too many "
            "for exact 64-bit flows (limit 2^62); give parts or bandwidths with fewer digits"
        )
    everything = frozenset(range(graph.n))
    cuts = [everything - {v} for v, part in zip(graph.ranks, parts, strict=True) if part < total]
    entering = [0] * graph.n
    for head, capacity in zip(graph.head, graph.capacity, strict=True):
        entering[head] += capacity
    best, rate = min(
        ((cut, Fraction(entering[min(everything - cut)], graph.held(cut))) for cut in cuts),
        key=lambda pair: pair[1],
    )
    while rate > 0:
        p, q = rate.numerator, rate.denominator
        supply = [0] * graph.n
        for v, part in zip(graph.ranks, parts, strict=True):
            supply[v] = p * part
        capacities = [c * q for c in graph.capacity]
        violation = _kernel.violated(
            graph.n, graph.tail, graph.head, capacities, supply, graph.ranks
        )
        if violation is None:
            break
        best = frozenset(violation[1])
        rate = graph.leaving(best) / graph.unit / graph.held(best)
    return rate, best
