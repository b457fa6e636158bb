"""The optimum where some switch receives more than it sends, or less.

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

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from fractions import Fraction

from forestcoll.forest import Bound
from forestcoll.graph import CapacityGraph, is_balanced
from forestcoll.solver.cut import Cut, least_cut
from forestcoll.solver.flows import exact_lp
from forestcoll.solver.flows.max_flow import Links, links_of, push, reachable, residual_of


@dataclass(frozen=True, slots=True)
class Balanced:
    """A graph with in = out at every non-rank, and the optimum that it shares with the original.

    `rate` is GB/s a rank (allgather) or GB/s in all (broadcast); `bound.algbw` is N * rate or rate.
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
    plain_bound = Bound(best * graph.unit * _shares(graph, root), "cut", (cut,))
    if is_balanced(graph):
        return Balanced(graph, best * graph.unit, plain_bound)
    used = fill(graph, {})
    if not _violated(graph, used, best, root, first=True):
        return Balanced(_with_capacities(graph, used, 1), best * graph.unit, plain_bound)
    switches = _non_ranks(graph)
    cuts = _first_cuts(graph, root)
    solution, used, common = _optimum(graph, root, best, switches, cuts)
    trimmed = _with_capacities(graph, used, common)
    rate = solution.value * graph.unit
    if solution.value == best:
        return Balanced(trimmed, rate, plain_bound)
    bound = _certificate(graph, root, solution, switches, cuts)
    if any(graph.multicast[w] for w, _ in bound.potentials):
        # in = out does not hold there for schedules that copy in the fabric
        switches = [w for w in switches if not graph.multicast[w]]
        solution, _, _ = _optimum(graph, root, best, switches, cuts)
        bound = _certificate(graph, root, solution, switches, cuts)
    return Balanced(trimmed, rate, bound)


def _shares(graph: CapacityGraph, root: int | None) -> int:
    """algbw / rate."""
    return sum(graph.parts) if root is None else 1


def _non_ranks(graph: CapacityGraph) -> list[int]:
    ranks = set(graph.ranks)
    return [v for v in range(graph.n) if v not in ranks]


# ---------------------------------------------------------------------------------- trimming


def fill(graph: CapacityGraph, used: Links, common: int = 1) -> Links:
    """`used` (in = out at non-ranks), made as large as in = out allows; all in units / `common`.

    Links between ranks are taken whole; the rest is a maximum flow through the switches from all
    ranks to all ranks in what `used` leaves. Spare capacity gives the trees room.
    """
    ranks, source, sink = set(graph.ranks), -1, -2
    links = {pair: units * common for pair, units in links_of(graph).items()}
    spare: Links = {}
    for (u, v), units in links.items():
        if u in ranks and v in ranks:
            continue
        # a rank that sends is one node, the same rank as a receiver is the common sink
        pair = (u, sink if v in ranks else v)
        spare[pair] = spare.get(pair, 0) + units - used.get((u, v), 0)
    total = sum(links.values())
    network = dict(spare)
    network.update({(source, r): total for r in ranks})
    residual = residual_of(network, (source, sink))
    push(residual, source, sink, total)
    out: Links = {}
    for (u, v), units in links.items():
        if u in ranks and v in ranks:
            out[u, v] = units
            continue
        pair = (u, sink if v in ranks else v)
        room = units - used.get((u, v), 0)
        taken = max(0, min(room, spare[pair] - residual[pair[0]][pair[1]]))
        spare[pair] -= taken
        out[u, v] = used.get((u, v), 0) + taken
    return out


def _with_capacities(graph: CapacityGraph, links: Links, common: int) -> CapacityGraph:
    """`graph` with other capacities, in units / `common`; the unit as coarse as they allow."""
    links = {pair: units for pair, units in links.items() if units}
    g = math.gcd(common, *links.values())
    return replace(
        graph,
        tail=tuple(u for u, _ in links),
        head=tuple(v for _, v in links),
        capacity=tuple(units // g for units in links.values()),
        unit=graph.unit * Fraction(g, common),
    )


# ---------------------------------------------------------------------------- linear program


def _first_cuts(graph: CapacityGraph, root: int | None) -> list[Cut]:
    """Cuts to start from: what enters and what leaves each rank and each box."""
    everything = frozenset(range(graph.n))
    boxes: dict[str, set[int]] = defaultdict(set)
    for v in range(graph.n):
        boxes[graph.box(v)].add(v)
    sides = [frozenset([v]) for v in graph.ranks] + [frozenset(box) for box in boxes.values()]
    sides += [everything - side for side in sides]
    ranks = frozenset(graph.ranks)
    if root is None:
        return [side for side in dict.fromkeys(sides) if graph.held(side) and not ranks <= side]
    return [s for s in dict.fromkeys(sides) if graph.ranks[root] in s and not ranks <= s]


def _optimum(
    graph: CapacityGraph, root: int | None, best: Fraction, switches: list[int], cuts: list[Cut]
) -> tuple[exact_lp.Solution, Links, int]:
    """(exact optimum, capacities that reach it, the part of a unit they count in).

    The variables are the links' c, then x. `cuts` grows by those that were needed; `best` bounds x
    from above. A vertex leaves most links at the least it can; cuts are searched after all others
    were raised as far as in = out allows, which spares most of them.
    """
    links = links_of(graph)
    x = len(links)
    program = exact_lp.Program([*links.values(), None], [0] * x + [1])
    for w in switches:
        program.rows.append(exact_lp.Row(_balance_row(links, w), equality=True))
    program.rows += [exact_lp.Row(_cut_row(graph, links, cut, root)) for cut in cuts]
    while True:
        solution = exact_lp.solve(program, float(best))
        common = math.lcm(*(z.denominator for z in solution.primal))
        used = {pair: int(z * common) for pair, z in zip(links, solution.primal, strict=False)}
        used = fill(graph, used, common)
        fresh = _violated(graph, used, solution.value * common, root)
        if not fresh:
            return solution, used, common
        cuts += fresh
        program.rows += [exact_lp.Row(_cut_row(graph, links, cut, root)) for cut in fresh]


def _balance_row(links: Links, w: int) -> dict[int, int]:
    """out - in."""
    return {e: 1 if u == w else -1 for e, (u, v) in enumerate(links) if w in (u, v)}


def _cut_row(graph: CapacityGraph, links: Links, cut: Cut, root: int | None) -> dict[int, int]:
    """leaving - x * parts of the ranks in the cut (broadcast: - x)."""
    row = {e: 1 for e, (u, v) in enumerate(links) if u in cut and v not in cut}
    row[len(links)] = -_count(graph, cut, root)
    return row


def _count(graph: CapacityGraph, cut: Cut, root: int | None) -> int:
    return graph.held(cut) if root is None else 1


def _violated(
    graph: CapacityGraph, links: Links, rate: Fraction, root: int | None, first: bool = False
) -> list[Cut]:
    """Cuts that leave less than `rate` asks for, at most one a rank; [] if there is none at all.

    Flows are kept between sinks: what has reached one is sent on to the next. What a rank could not
    receive whole is handed back before the next one is tried.
    """
    p, q = rate.numerator, rate.denominator
    scaled = {pair: units * q for pair, units in links.items()}
    source = -1 if root is None else graph.ranks[root]
    if root is None:
        parts = zip(graph.ranks, graph.parts, strict=True)
        scaled.update({(source, v): p * part for v, part in parts if part})
    residual = residual_of(scaled, range(graph.n))
    need, at = p * _shares(graph, root), source
    found: dict[Cut, None] = {}
    for sink in graph.ranks:
        if sink == at:
            continue
        units = push(residual, at, sink, need)
        if units == need:
            at = sink
            continue
        found[frozenset(reachable(residual, at)) - {-1}] = None
        if first:
            break
        push(residual, sink, at, units)
    return list(found)


# -------------------------------------------------------------------------------- certificate


def _certificate(
    graph: CapacityGraph,
    root: int | None,
    solution: exact_lp.Solution,
    switches: list[int],
    cuts: list[Cut],
) -> Bound:
    """The dual as a Bound: weights of cuts, potentials of switches."""
    weights = solution.dual[len(switches) :]
    pairs = [(cut, y) for cut, y in zip(cuts, weights, strict=False) if y]
    return Bound(
        algbw=solution.value * graph.unit * _shares(graph, root),
        method="linear-program",
        parts=tuple(cut for cut, _ in pairs),
        weights=tuple(y for _, y in pairs),
        potentials=tuple((w, p) for w, p in zip(switches, solution.dual, strict=False) if p),
    )
