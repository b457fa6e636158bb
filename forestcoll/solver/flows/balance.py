"""Balanced sub-capacities: the optimum where a switch receives more than it sends, or less.

Such a switch can neither copy nor add, so the plain cut promises too much: one link in and two
links out cannot feed two ranks at full rate. What a schedule really uses of each link is a
sub-capacity c <= b with in = out at every node that is no rank, and on balanced capacities the
plain cut is exact. The optimum is therefore a linear program in c and the rate x:

    maximise x  with  0 <= c <= b,  in = out at every non-rank,
                      c(leaving S) >= x * ranks in S    for every S holding some, not all ranks

(broadcast: >= x for every S that holds the root and not all ranks). Its cuts are too many to write
down, so only those that a max-flow finds violated are added; its dual is the proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from forestcoll.graph.capacity_graph import CapacityGraph, is_balanced
from forestcoll.graph.kernel import _kernel
from forestcoll.program import Collective
from forestcoll.schedule.dual import as_bound
from forestcoll.schedule.flow_views import scale
from forestcoll.schedule.forest import Bound
from forestcoll.schedule.group import whole_group
from forestcoll.solver.cut import least_cut
from forestcoll.solver.flows.max_flow import fill
from forestcoll.solver.flows.model import Model


@dataclass(frozen=True, slots=True)
class Balanced:
    """A graph with in = out at every non-rank, and the optimum that it shares with the original.

    `rate` is GB/s per rank (allgather) or GB/s in all (broadcast); `bound.algbw` is N * rate or it.
    """

    graph: CapacityGraph
    rate: Fraction
    bound: Bound


def balance(graph: CapacityGraph, root: int | None = None) -> Balanced:
    """Balanced sub-capacities that keep the true optimum of allgather, with its proof.

    With `root` (a rank number) the optimum is that of broadcast from there. For reduce-scatter and
    reduce pass the reversed graph. A balanced graph comes back unchanged. Where the plain cut can
    still be reached, the bound is that cut ("cut"); else it is the dual ("linear-program").
    Multicast and aggregation are not used, but the bound allows for them: where a copying switch
    could do better than balanced traffic, it is larger than the rate.
    Raises InfeasibleError when some rank cannot reach another.
    """
    best, cut = least_cut(graph, root)
    shares = sum(graph.parts) if root is None else 1
    plain = Bound(best * graph.unit * shares, "cut", (cut,))
    if is_balanced(graph):
        return Balanced(graph, best * graph.unit, plain)
    links = fill(graph, {})
    used = [links[pair] for pair in zip(graph.tail, graph.head, strict=True)]
    if _reaches(graph, used, best, root):
        return Balanced(scale(graph, used, graph.unit), best * graph.unit, plain)
    collective = Collective.ALLGATHER if root is None else Collective.BROADCAST
    model = Model(graph, [whole_group(graph, root)], collective, (), any_size=True)
    solution = model.solve()
    trimmed, rate = model.flows(solution)[0].graph, model.algbw(solution) / shares
    if rate == best * graph.unit:
        return Balanced(trimmed, rate, plain)
    return Balanced(trimmed, rate, as_bound(graph, model.prove(solution), collective))


def _reaches(graph: CapacityGraph, used: list[int], rate: Fraction, root: int | None) -> bool:
    """Whether every rank receives all data at `rate` units over links that carry `used`."""
    p, q = rate.numerator, rate.denominator
    supply = [0] * graph.n
    for number, (v, part) in enumerate(zip(graph.ranks, graph.parts, strict=True)):
        supply[v] = p * part if root is None else p * (number == root)
    capacity = [units * q for units in used]
    links = (graph.n, graph.tail, graph.head, capacity)
    return _kernel.violated(*links, supply, graph.ranks) is None
