"""Seeded random problems of up to 24 nodes, and judges that share no code with the package.

A problem has whatever a fabric may have: layers of switches, one-way links, switches whose two
directions differ, idle GPUs that relay or do not, boxes, parts that differ or are zero, switches
that copy and add. What a solver says is judged from two sides: trees are recounted link by link
(`judge`), a bound by its certificate (`proven`), and for small problems every node set there is
gives the least cut (`least_cut`). Trees that reach a proven bound are optimal, whoever made them.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import networkx as nx
import numpy as np
from ortools.linear_solver import pywraplp
from random_graphs import BUILDERS, KINDS, PRIMES, STEPS, Draft, Links

from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import BY_TREES, Collective
from forestcoll.schedule.forest import Bound
from forestcoll.schedule.group import Group, whole_group
from forestcoll.solver.shares import with_shares
from forestcoll.topology import Link, Node, Topology

NODES = 24
ALLREDUCE_NODES = 14
"""Larger ones leave no time for 2,000 problems: each allreduce is a linear program."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What the solver is asked; `has` names what is special about it."""

    seed: int
    graph: CapacityGraph
    collective: Collective
    root: int | None
    has: frozenset[str]


def random_problem(seed: int) -> Problem:
    """The problem of that seed; every rank can reach every other unless GPUs were left out."""
    rng = random.Random(seed)
    collective = rng.choices(list(BY_TREES), weights=(10, 4, 3, 3, 2))[0]
    most = ALLREDUCE_NODES if collective is Collective.ALLREDUCE else NODES
    nodes, kind = rng.randint(3, rng.choice((10, most, most))), rng.choice(KINDS)
    switches = 0 if kind == "direct" else rng.randint(1, max(1, nodes // 3))
    gpus, has = nodes - switches, {kind}
    links = _links(rng, kind, gpus, switches)
    if switches and rng.random() < 0.25:
        _starve(rng, links, gpus)
        has.add("starved")
    graph = _graph(rng, links, gpus, switches, has)
    if not collective.has_root and collective is not Collective.ALLREDUCE and rng.random() < 0.25:
        parts = [rng.choice((0, 0, 1, 2, 5)) for _ in graph.ranks]
        parts[rng.randrange(len(parts))] += 1
        graph = with_shares(graph, parts)
        has |= {"parts"} if graph.shares else set()
        has |= {"zero parts"} if 0 in graph.shares else set()
    root = rng.randrange(len(graph.ranks)) if collective.has_root else None
    has |= {"unbalanced"} if _unbalanced(graph) else set()
    has |= {"24 nodes"} if graph.n == NODES else set()
    ends = set(graph.ends)
    has |= {"one-way"} if any((v, u) not in ends for u, v in ends) else set()
    return Problem(seed, graph, collective, root, frozenset(has))


def _links(rng: random.Random, kind: str, gpus: int, switches: int) -> Links:
    units = rng.choice((tuple(range(1, 6)), (1,), PRIMES[:9], STEPS))
    links: Links = defaultdict(int)
    ranks, relays = list(range(gpus)), list(range(gpus, gpus + switches))
    BUILDERS[kind](Draft(rng, lambda: rng.choice(units), links, ranks, relays))
    return links


def _starve(rng: random.Random, links: Links, gpus: int) -> None:
    """Most switches receive far less than they send, or the other way round."""
    end = rng.choice((0, 1, 1))
    for w in sorted({max(pair) for pair in links if max(pair) >= gpus}):
        if rng.random() < 0.2:
            continue
        for pair in links:
            if pair[end] == w:
                links[pair] = -(-links[pair] // 4)
            elif w in pair:
                links[pair] *= rng.randint(2, 9)


def _graph(
    rng: random.Random, links: Links, gpus: int, switches: int, has: set[str]
) -> CapacityGraph:
    """The links as a topology, with shuffled nodes, perhaps boxes, able switches, idle GPUs."""
    names = [f"gpu{v}" for v in range(gpus)] + [f"switch{v}" for v in range(switches)]
    if rng.random() < 0.3:
        size = rng.randint(2, 4)
        names = [f"box{v // size}/{name}" if v < gpus else name for v, name in enumerate(names)]
        has.add("boxes")
    able = rng.random() < 0.25
    nodes = {}
    for v in rng.sample(range(len(names)), len(names)):
        flags = [able and v >= gpus and rng.random() < 0.6 for _ in range(2)]
        nodes[names[v]] = Node("gpu" if v < gpus else "switch", *flags)
    unit = rng.choice((Fraction(1), Fraction(25, 2), Fraction(1, 10)))
    pairs = [pair for pair, units in links.items() if units]
    rng.shuffle(pairs)
    made = [Link(names[u], names[v], links[u, v] * unit, oneway=True) for u, v in pairs]
    topology = Topology("random", nodes, tuple(made))
    idle = gpus > 3 and rng.random() < 0.3
    count = rng.randint(2, gpus - 1) if idle else gpus
    ranks = [names[v] for v in rng.sample(range(gpus), count)]
    relays = rng.choice(("none", "idle", "idle")) if idle else "none"
    has |= {f"relays {relays}"} if idle else set()
    graph = CapacityGraph.from_topology(topology, ranks, relays)
    has |= {"able"} if any(graph.multicast) or any(graph.aggregation) else set()
    return graph


def _unbalanced(graph: CapacityGraph) -> bool:
    surplus: dict[int, int] = defaultdict(int)
    for u, v, units in zip(graph.tail, graph.head, graph.capacity, strict=True):
        surplus[u] -= units
        surplus[v] += units
    return any(surplus[v] for v in range(graph.n) if v not in graph.ranks)


# ------------------------------------------------------------------------------------- judges


def feasible(problem: Problem) -> bool:
    """Whether all data can get from where it is to where it is wanted."""
    graph = problem.graph
    network = nx.DiGraph(graph.ends)
    network.add_nodes_from(range(graph.n))
    if problem.collective in (Collective.REDUCE_SCATTER, Collective.REDUCE):
        network = network.reverse()
    starts = [v for v, part in zip(graph.ranks, graph.parts, strict=True) if part]
    if problem.root is not None:
        starts = [graph.ranks[problem.root]]
    return all(set(graph.ranks) <= {start, *nx.descendants(network, start)} for start in starts)


def proven(
    graph: CapacityGraph, bound: Bound, collective: Collective, root: int | None
) -> Fraction:
    """The GB/s that a bound of one phase proves, by the words of `Bound`'s own description."""
    assert collective is not Collective.ALLREDUCE
    tail, head, copies = graph.tail, graph.head, graph.multicast
    if collective in (Collective.REDUCE_SCATTER, Collective.REDUCE):
        tail, head, copies = head, tail, graph.aggregation
    part = dict(zip(graph.ranks, graph.parts, strict=True))
    whole = 1 if collective.has_root else sum(graph.parts)
    weights = bound.weights or (Fraction(1),)
    potential = dict(bound.potentials)
    assert all(w not in part and not copies[w] for w in potential)
    assert all(y >= 0 for y in weights)
    held = Fraction(0)
    for side, y in zip(bound.parts, weights, strict=True):
        assert not side >= set(graph.ranks)
        if collective.has_root:
            assert graph.ranks[root or 0] in side
        inside = 1 if collective.has_root else sum(part.get(v, 0) for v in side)
        assert inside > 0
        held += y * inside
    total = Fraction(0)
    for u, v, units in zip(tail, head, graph.capacity, strict=True):
        pressure = sum(
            (
                y
                for side, y in zip(bound.parts, weights, strict=True)
                if u in side and v not in side
            ),
            potential.get(u, Fraction(0)) - potential.get(v, Fraction(0)),
        )
        total += units * max(Fraction(0), pressure)
    assert bound.method == "cut" or held == 1
    return total / held * graph.unit * whole


def least_cut(graph: CapacityGraph, collective: Collective, root: int | None) -> Fraction:
    """The least of all cuts in GB/s, by looking at all 2^n node sets."""
    assert collective is not Collective.ALLREDUCE
    tail, head = graph.tail, graph.head
    if collective in (Collective.REDUCE_SCATTER, Collective.REDUCE):
        tail, head = head, tail
    sets = np.arange(1 << graph.n, dtype=np.int64)
    leaving = np.zeros(len(sets), dtype=np.int64)
    for u, v, units in zip(tail, head, graph.capacity, strict=True):
        leaving += units * ((sets >> u) & ~(sets >> v) & 1)
    inside = np.zeros(len(sets), dtype=np.int64)
    for r, part in zip(graph.ranks, graph.parts, strict=True):
        inside += part * ((sets >> r) & 1)
    everybody = sum(1 << r for r in graph.ranks)
    proper = (sets & everybody) != everybody
    if collective.has_root:
        proper &= ((sets >> graph.ranks[root or 0]) & 1) == 1
        return int(leaving[proper].min()) * graph.unit
    proper &= inside > 0
    whole = sum(graph.parts)
    least = np.full(whole + 1, np.iinfo(np.int64).max)
    np.minimum.at(least, inside[proper], leaving[proper])
    found = [Fraction(int(c), i) for i, c in enumerate(least) if i and c < np.iinfo(np.int64).max]
    return min(found) * whole * graph.unit


def written_out(machine: CapacityGraph, groups: Sequence[Group]) -> float:
    """The best common algbw of groups in GB/s by one linear program, every flow written out.

    Variables: what each phase of a group takes of each link (in = out at every node that is no
    rank), within that a flow to every rank, what starts at each rank, and the rate. No cuts, no
    symmetries. Floating point: good to about nine digits.
    """
    lp = pywraplp.Solver.CreateSolver("GLOP")

    def variables(keys: Iterable[Any]) -> dict[Any, Any]:
        return {key: lp.NumVar(0, lp.infinity(), "") for key in keys}

    def kept(flow: dict[Any, Any], v: int) -> Any:
        """What leaves v, less what enters it."""
        out, into = ([x for ends, x in flow.items() if ends[side] == v] for side in (0, 1))
        return lp.Sum(out) - lp.Sum(into)

    rate, top = lp.NumVar(0, lp.infinity(), ""), max(machine.capacity)
    taken: dict[tuple[int, int], list[Any]] = {pair: [] for pair in machine.ends}
    for group in groups:
        graph, collective, ranks = group.graph, group.collective, group.graph.ranks
        start, whole = variables(ranks), float(group.weight) * rate
        rooted = [int(v == ranks[group.root]) for v in ranks]
        parts = rooted if collective.has_root else graph.parts
        if collective is Collective.ALLREDUCE and not graph.shares:  # parts are free
            lp.Add(lp.Sum(list(start.values())) == whole)
        else:
            for v, part in zip(ranks, parts, strict=True):
                lp.Add(sum(parts) * start[v] == part * whole)
        for phase in collective.phases:
            load = variables(graph.ends)
            for pair, used in load.items():
                taken[pair].append(used)
            for w in set(range(graph.n)) - set(ranks):
                lp.Add(kept(load, w) == 0)
            for sink in ranks:
                flow = variables(graph.ends)
                for pair, used in load.items():
                    lp.Add(flow[pair] <= used)
                for v in set(range(graph.n)) - {sink}:
                    lp.Add(kept(flow, v) * (1 if phase == "broadcast" else -1) == start.get(v, 0))
    for pair, units in zip(machine.ends, machine.capacity, strict=True):
        lp.Add(lp.Sum(taken[pair]) <= units / top)
    lp.Maximize(rate)
    assert lp.Solve() == pywraplp.Solver.OPTIMAL
    return float(rate.solution_value() * top * machine.unit)


def optimum_written_out(
    graph: CapacityGraph, collective: Collective, root: int | None = None
) -> float:
    """The same of one collective of all ranks."""
    return written_out(graph, [whole_group(graph, collective, root)])
