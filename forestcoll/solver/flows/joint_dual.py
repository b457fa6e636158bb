"""What a linear-program bound proves of an allreduce: `Bound` says what it holds.

Take any trees that reduce x(v) at each rank v and broadcast it from there, GB/s, and let bc(e) and
re(e) be what they load on link e in each phase.
* A cut S of broadcast trees with weight y: those rooted in S reach a rank outside, so they leave S:
  y bc(leaving S) >= y x(S). A cut of reduce trees: y re(entering S) >= y x(S). Where all ranks are
  in cuts of weight 1 or more together, the right sides add up to X = sum of x, or more.
* A potential p at a switch adds p (out - in) of broadcast trees. It is 0 where the switch neither
  copies nor adds, and >= 0 where it copies and p >= 0. (Where paths of one tree meet before a
  switch that copies, later ones may as well start with what came there first: loads only shrink,
  and so the switch takes in the data once.) Reduce trees are broadcast trees turned round.
* The left sides together are the sum over links of bc(e) pressure + re(e) pressure, at most
  (bc(e) + re(e)) z(e), at most b(e) z(e). So X <= sum of b(e) z(e).
* Averaging x, bc, re over a group of symmetries changes neither X nor what trees obey above. Then
  flows (phase, link) of one orbit are equal, and so are ranks: only the mean pressure on an orbit
  counts, and the mean weight of cuts around its ranks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

from forestcoll.errors import ForestError
from forestcoll.forest import Bound
from forestcoll.graph import CapacityGraph
from forestcoll.symmetry.orbits import HALVES, Orbits, orbits

Potentials = Sequence[tuple[int, Fraction]]


def check_joint(graph: CapacityGraph, bound: Bound) -> Fraction:
    """The algbw (GB/s) of allreduce that a "linear-program" bound proves, recomputed exactly.

    Trusts nothing in `bound` and ignores its `algbw`: compare. Raises ForestError with the reason
    where the certificate proves nothing.
    """
    _check_cuts(graph, bound)
    _check_potentials(graph, bound.potentials, graph.multicast, "copy")
    _check_potentials(graph, bound.reduce_potentials, graph.aggregation, "add")
    _check_weights(graph, bound, orbits(graph, bound.symmetries))
    worth = link_worth(graph, bound)
    return (
        sum((c * z for c, z in zip(graph.capacity, worth, strict=True)), Fraction(0)) * graph.unit
    )


def link_worth(graph: CapacityGraph, bound: Bound) -> list[Fraction]:
    """Per link what a GB/s of it is worth at most, z(e), in GB/s of allreduce."""
    alike = orbits(graph, bound.symmetries)
    count = len(graph.tail)
    highest: dict[int, Fraction] = defaultdict(Fraction)
    for flow, mean in _pressures(graph, bound, alike).items():
        link = alike.link[flow % count]
        highest[link] = max(highest[link], mean)
    return [highest[alike.link[e]] for e in range(count)]


def _check_cuts(graph: CapacityGraph, bound: Bound) -> None:
    """The cuts are cuts, or ForestError."""
    if not len(bound.parts) == len(bound.weights) == len(bound.phases):
        raise ForestError(
            f"bound: {len(bound.parts)} cuts but {len(bound.weights)} weights and "
            f"{len(bound.phases)} phases"
        )
    for number, (part, y) in enumerate(zip(bound.parts, bound.weights, strict=True)):
        if any(not 0 <= v < graph.n for v in part):
            raise ForestError(f"bound: cut {number} holds a node that does not exist")
        if y < 0:
            raise ForestError(f"bound: cut {number} has the negative weight {y}")
        inside = sum(v in part for v in graph.ranks)
        if inside == len(graph.ranks):
            raise ForestError(f"bound: cut {number} holds all ranks, so it cuts nothing off")
        if not inside:
            raise ForestError(f"bound: cut {number} holds no rank, so no data has to leave it")


def _check_potentials(
    graph: CapacityGraph, potentials: Potentials, able: Sequence[bool], does: str
) -> None:
    """Only nodes where in = out must hold have a potential (>= 0 if `able`), or ForestError."""
    seen: set[int] = set()
    for w, p in potentials:
        if not 0 <= w < graph.n:
            raise ForestError(f"bound: a potential for node {w}, which does not exist")
        name = graph.names[w]
        if w in seen:
            raise ForestError(f"bound: two potentials for {name}")
        if w in graph.ranks:
            raise ForestError(f"bound: a potential for {name}, which is a rank")
        if able[w] and p < 0:
            raise ForestError(
                f"bound: the negative potential {p} for {name}, which may {does} in the fabric"
            )
        seen.add(w)


def _check_weights(graph: CapacityGraph, bound: Bound, alike: Orbits) -> None:
    """Every rank, on the average over those like it, is in cuts of weight 1, or ForestError."""
    weight: dict[int, Fraction] = defaultdict(Fraction)
    size: dict[int, int] = defaultdict(int)
    for v in graph.ranks:
        size[alike.node[v]] += 1
    for part, y in zip(bound.parts, bound.weights, strict=True):
        for v in part & set(graph.ranks):
            weight[alike.node[v]] += y
    for v, members in size.items():
        if weight[v] < members:
            raise ForestError(
                f"bound: the cuts that hold {graph.names[v]} weigh {weight[v] / members}, "
                "less than 1, so the bound leaves its share out"
            )


def _pressures(graph: CapacityGraph, bound: Bound, alike: Orbits) -> dict[int, Fraction]:
    """The mean pressure on each orbit of flows: what cuts and potentials add up to on its links."""
    count = len(graph.tail)
    every = (*bound.weights, *(p for _, p in (*bound.potentials, *bound.reduce_potentials)))
    common = math.lcm(*(y.denominator for y in every))
    weights = [int(y * common) for y in bound.weights]
    sums: dict[int, int] = defaultdict(int)
    size: dict[int, int] = defaultdict(int)
    for half in HALVES:
        ends = (graph.tail, graph.head) if half == 0 else (graph.head, graph.tail)
        cuts = [
            (part, y)
            for part, y, phase in zip(bound.parts, weights, bound.phases, strict=True)
            if (phase == "reduce") == half
        ]
        given = bound.reduce_potentials if half else bound.potentials
        potential = {w: int(p * common) for w, p in given}
        for e, (u, v) in enumerate(zip(*ends, strict=True)):
            orbit = alike.flow[half * count + e]
            size[orbit] += 1
            sums[orbit] += potential.get(u, 0) - potential.get(v, 0)
            sums[orbit] += sum(y for part, y in cuts if u in part and v not in part)
    return {orbit: Fraction(total, common * size[orbit]) for orbit, total in sums.items()}
