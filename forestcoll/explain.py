"""Why an optimum is what it is: its bottleneck, the cuts nearly as tight, what more links give.

Every figure comes from a certificate that is evaluated on the graph with its links raised: a cut
grows in a straight line with the links that cross it, until another cut is the tightest.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from forestcoll.bound import Bound
from forestcoll.compile.problem import Problem
from forestcoll.errors import ForestCollError
from forestcoll.graph import CapacityGraph
from forestcoll.solver.flows.dual import check_dual
from forestcoll.solver.partitions import check_parts

NEAR = Fraction(105, 100)
"""Cuts up to so many times the optimum are listed."""
MOST = Fraction(1 << 10)
"""Times their bandwidth to which links are raised, to see what limits without them."""
TURNS = 16
"""Cuts that are tried until the one that takes over is found."""
WIDTHS = 8
"""Bandwidths, the largest first, whose links are taken to join parts of a machine."""
KINDS = 6
"""Kinds of links of a bottleneck that are looked at."""

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Raised:
    """What raising all links of one kind gives. `links`: numbers in the graph, both directions.

    `until`: times their bandwidth from which on `then` limits; None: nothing else ever does.
    `algbw`: GB/s there, which is the optimum itself where something else is as tight already.
    """

    links: tuple[int, ...]
    until: Fraction | None
    algbw: Fraction
    then: Bound | None


@dataclass(frozen=True, slots=True)
class OneMore:
    """One more NIC a box: a second link like each of `links`; GB/s then, and what limits it."""

    links: tuple[int, ...]
    algbw: Fraction
    bound: Bound


@dataclass(frozen=True, slots=True)
class Explanation:
    """The bound of a problem, other cuts within 5 %, and what more links would give."""

    problem: Problem
    bound: Bound
    near: tuple[Bound, ...]
    raised: tuple[Raised, ...]
    one_more: OneMore | None


def explain(problem: Problem, progress: Progress | None = None) -> Explanation:
    """The explanation of a problem's optimum, of plans whose GPUs copy and add."""
    plain = problem.plain
    bound = plain.optimum().bound
    kinds = kinds_of(plain.graph, crossing(plain.graph, bound, into=inward(plain)))[:KINDS]
    raised = []
    for done, links in enumerate(kinds):
        if progress is not None:
            progress("raising links", done / (len(kinds) + 1))
        raised.append(_raise(plain, bound, links))
    found = [r.then for r in raised if r.then is not None]
    near = tuple(_near(plain, bound, found))
    return Explanation(plain, bound, near, tuple(raised), _one_more(plain))


def value(problem: Problem, bound: Bound) -> Fraction | None:
    """GB/s that a certificate gives on the problem's graph; None where it does not hold there."""
    prove = check_dual if bound.method == "linear-program" else check_parts
    try:
        return prove(problem.graph, bound, problem.collective, problem.root)
    except ForestCollError:
        return None


def scaled(problem: Problem, links: Iterable[int], factor: Fraction) -> Problem:
    """The problem with these links so many times as wide."""
    raised, graph = set(links), problem.graph
    capacity = [
        c * (factor.numerator if e in raised else factor.denominator)
        for e, c in enumerate(graph.capacity)
    ]
    wide = replace(graph, capacity=tuple(capacity), unit=graph.unit / factor.denominator)
    return replace(problem, graph=wide)


def inward(problem: Problem) -> bool | None:
    """Whether what enters the sets of a cut counts, what leaves them, or either (None)."""
    return None if problem.collective.two_phases else problem.collective.reduces


def crossing(graph: CapacityGraph, bound: Bound, *, into: bool | None) -> list[int]:
    """The links that cross a bound's sets, in the direction that counts."""
    found = []
    for e, (u, v) in enumerate(zip(graph.tail, graph.head, strict=True)):
        enters = any(v in part and u not in part for part in bound.parts)
        leaves = any(u in part and v not in part for part in bound.parts)
        if (enters and into is not False) or (leaves and into is not True):
            found.append(e)
    return found


def kinds_of(graph: CapacityGraph, links: Iterable[int]) -> list[tuple[int, ...]]:
    """Links of the graph that are like these, by kind, both directions: most links first.

    Alike: names that differ in numbers alone, and the same bandwidth.
    """
    groups: dict[object, list[int]] = defaultdict(list)
    for e in range(len(graph.tail)):
        groups[_kind(graph, e)].append(e)
    wanted = dict.fromkeys(_kind(graph, e) for e in links)
    return sorted((tuple(groups[kind]) for kind in wanted), key=lambda kind: -len(kind))


def _kind(graph: CapacityGraph, link: int) -> object:
    ends = (graph.names[graph.tail[link]], graph.names[graph.head[link]])
    plain = (re.sub(r"\d+", "*", name) for name in ends)
    return tuple(sorted(plain)), graph.capacity[link]


def _raise(problem: Problem, bound: Bound, links: tuple[int, ...]) -> Raised:
    """How far the bound grows with the links until another certificate is below it."""
    most = scaled(problem, links, MOST)
    other, until = most.optimum().bound, MOST
    for _ in range(TURNS):
        here, there = _line(problem, bound, links), _line(problem, other, links)
        if here is None or there is None:
            break
        if here[1] <= there[1]:
            if there[1] and there[0] <= here[0]:
                return Raised(links, None, other.algbw, None)  # the same cut
            return Raised(links, Fraction(1), bound.algbw, other)
        until = max(Fraction(1), (there[0] - here[0]) / (here[1] - there[1]))
        wide = scaled(problem, links, until)
        found = wide.optimum().bound
        if found.algbw >= here[0] + here[1] * until:
            return Raised(links, until, found.algbw, other)
        other = found
    at = scaled(problem, links, until).optimum().algbw
    return Raised(links, until, at, other)


def _line(
    problem: Problem, bound: Bound, links: tuple[int, ...]
) -> tuple[Fraction, Fraction] | None:
    """(a, b): the certificate gives a + b x where the links are x times as wide."""
    one, two = (value(scaled(problem, links, Fraction(x)), bound) for x in (1, 2))
    return None if one is None or two is None else (2 * one - two, two - one)


def _near(problem: Problem, bound: Bound, found: Iterable[Bound]) -> Iterator[Bound]:
    """Cuts of the structure, and what took over anywhere, within NEAR of the bound."""
    seen = {frozenset(bound.parts)}
    values: list[tuple[Fraction, int, Bound]] = []
    for number, other in enumerate([*found, *_structure(problem)]):
        key = frozenset(other.parts)
        if key in seen:
            continue
        seen.add(key)
        worth = value(problem, other)
        if worth is not None and worth <= NEAR * bound.algbw:
            values.append((worth, number, replace(other, algbw=worth)))
    yield from (other for _, _, other in sorted(values, key=lambda entry: entry[:2]))


def _structure(problem: Problem) -> Iterator[Bound]:
    """Cuts that machines have: round each GPU, round what wide links join (boxes, packages, what
    is below a switch), and round all GPUs or all boxes at once."""
    graph = problem.graph
    everything = frozenset(range(graph.n))
    singles = [frozenset([rank]) for rank in graph.ranks]
    widths = sorted(set(graph.capacity), reverse=True)[:WIDTHS]
    levels = [_joined(graph, width) for width in widths]
    boxes: dict[str, set[int]] = defaultdict(set)
    for node in range(graph.n):
        boxes[graph.box(node)].add(node)
    homes = [frozenset(boxes[name]) for name in dict.fromkeys(map(graph.box, graph.ranks)) if name]
    for part in dict.fromkeys([*homes, *(part for level in levels for part in level), *singles]):
        for side in (part, everything - part):
            yield Bound(Fraction(0), "cut", (side,))
    if problem.collective.two_phases:
        for groups in (singles, homes, *levels):
            if len(groups) > 1:
                yield Bound(Fraction(0), "partition", tuple(groups))


def _joined(graph: CapacityGraph, width: int) -> list[frozenset[int]]:
    """The nodes that links of at least so many units join, where ranks are among them."""
    home = list(range(graph.n))

    def find(node: int) -> int:
        while home[node] != node:
            home[node] = node = home[home[node]]
        return node

    for u, v, units in zip(graph.tail, graph.head, graph.capacity, strict=True):
        if units >= width:
            home[find(u)] = find(v)
    members: dict[int, set[int]] = defaultdict(set)
    for node in range(graph.n):
        members[find(node)].add(node)
    ranks = set(graph.ranks)
    return [frozenset(nodes) for nodes in members.values() if nodes & ranks]


def _one_more(problem: Problem) -> OneMore | None:
    """A second link like the first one that leads out of each box."""
    graph = problem.graph
    boxes = dict.fromkeys(graph.box(rank) for rank in graph.ranks)
    if len(boxes) < 2 or "" in boxes:
        return None
    links: list[int] = []
    for box in boxes:
        out = [
            e
            for e, (u, v) in enumerate(zip(graph.tail, graph.head, strict=True))
            if graph.box(u) == box and graph.box(v) != box
        ]
        if not out:
            return None
        ends = (graph.tail[out[0]], graph.head[out[0]])
        pairs = zip(graph.tail, graph.head, strict=True)
        links += [e for e, pair in enumerate(pairs) if pair in (ends, ends[::-1])]
    best = scaled(problem, links, Fraction(2)).optimum()
    return OneMore(tuple(links), best.algbw, best.bound)
