"""All-to-alls for tests: demands, optima and routes of machines by their text, and at random."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

from graphs import machine
from random_graphs import random_graph
from stranger_alltoall import judge

from forestcoll.common.errors import InfeasibleError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.solver.alltoall import file
from forestcoll.solver.alltoall.demand import Demand, uniform
from forestcoll.solver.alltoall.flows import Optimum, solve
from forestcoll.solver.alltoall.rounding import route
from forestcoll.solver.alltoall.routes import Routes

Matrix = list[list[int]]


def demand(text: str) -> Demand:
    """Equal blocks among all GPUs of a machine."""
    return uniform(machine(text))


@cache
def solved(text: str) -> Optimum:
    """Their optimum."""
    return solve(demand(text))


@cache
def routes(text: str, units: int | None = None, **how: Any) -> Routes:
    """Its routes."""
    return route(solved(text), units, **how)


def proven(found: Optimum | Routes) -> Fraction:
    """GB/s, which a stranger recounts from the file, as our reader does; no other is faster."""
    text = file.dumps(found, "x")
    again, name, bound = file.loads(text)
    best = found.optimum if isinstance(found, Routes) else found
    assert judge(json.loads(text)) == (found.algbw, bound) == (again.algbw, best.bound)
    assert file.dumps(again, name) == text
    return found.algbw


def straight_ring() -> Routes:
    """The routes of a ring of six, all clockwise."""
    found = routes("ring gpus=6")
    order = [found.graph.names.index(f"gpu{i}") for i in range(6)]
    paths = (tuple(order[: k + 1]) for k in range(1, 6))
    units = found.units
    return replace(
        found, routes=tuple(replace(found.routes[0], path=path, units=units) for path in paths)
    )


def turn(graph: CapacityGraph, *names: str) -> tuple[int, ...]:
    """The symmetry that takes each of the names to the next."""
    image = list(range(graph.n))
    for a, b in zip(names, names[1:] + names[:1], strict=True):
        image[graph.names.index(a)] = graph.names.index(b)
    return tuple(image)


# --- at random


def doubled(graph: CapacityGraph, rng: random.Random) -> CapacityGraph:
    """Two copies, joined node by node or over a switch: a graph with a symmetry."""
    n = graph.n
    links = list(graph.arcs)
    both = links + [(u + n, v + n, c) for u, v, c in links]
    names = [*graph.names, *(f"{name}'" for name in graph.names)]
    gpu = graph.gpu * 2
    width = rng.randint(1, 9)
    if rng.random() < 0.5:
        chosen = rng.sample(graph.ranks, rng.randint(1, len(graph.ranks)))
        both += [pair for v in chosen for pair in ((v, v + n, width), (v + n, v, width))]
    else:
        names.append("middle")
        gpu += (False,)
        for v in graph.ranks:
            for u in (v, v + n):
                both += [(u, 2 * n, width), (2 * n, u, width)]
    none = (False,) * len(names)
    tail, head, capacity = zip(*both, strict=True)
    return replace(
        graph,
        names=tuple(names),
        gpu=gpu,
        multicast=none,
        aggregation=none,
        ranks=(*graph.ranks, *(v + n for v in graph.ranks)),
        tail=tail,
        head=head,
        capacity=capacity,
    )


def random_demand(seed: int) -> Demand:
    """An all-to-all, groups or a matrix on a random graph of up to 12 ranks."""
    rng = random.Random(seed)
    graph = random_graph(seed)
    if len(graph.ranks) <= 6 and rng.random() < 0.6:
        graph = doubled(graph, rng)
    count = len(graph.ranks)
    what = rng.random()
    if what < 0.6:
        return Demand(graph)
    if what < 0.8 and count >= 4:
        cut = rng.randint(2, count - 2)
        groups = tuple(range(cut)), tuple(range(cut, count))
        grouped = Demand(graph, None, groups, closed=rng.random() < 0.5)
        try:
            grouped.check_reachable()
        except InfeasibleError:
            return replace(grouped, closed=False)
        return grouped
    table = [[rng.choice((0, 0, 1, 5, 1000)) for _ in range(count)] for _ in range(count)]
    table[0][1] += 1
    return Demand(graph, tuple(map(tuple, table)))


def random_matrix(n: int, dice: random.Random) -> Matrix:
    """Even, skewed, sparse, a hot receiver, a hot sender, a permutation, or heavy tails."""
    kind = dice.randrange(7)
    weight = [1 / (1 + r) ** dice.choice((0.4, 0.8, 1.2)) for r in range(n)]
    dice.shuffle(weight)
    order = dice.sample(range(n), n)
    hot = dice.randrange(n)

    def size(i: int, j: int) -> int:
        even = dice.randint(1, 1000)
        return (
            even,
            int(1000 * weight[j] * even),
            even if dice.random() < 0.2 else 0,
            even * (100 if j == hot else 1),
            even * (100 if i == hot else 1),
            even * (100 if j == order[i] else 0),
            int(even * dice.paretovariate(1.1)),
        )[kind] * (i != j)

    table = [[size(i, j) for j in range(n)] for i in range(n)]
    table[0][n - 1] += 1
    return table
