"""Links made wider until something else limits, and the parts that machines fall into.

A certificate (a cut, lengths of links) gives a bound that grows in a straight line with the links
that it counts. So where the bound of another certificate takes over is where two lines meet, and
the optimum there says whether a third one is below both.

Then why an optimum over trees is what it is: every figure comes from a certificate that is
evaluated on the graph with its links raised: a cut grows with the links that cross it, until
another cut is the tightest.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Generic, NamedTuple, TypeVar

from forestcoll.common.errors import ForestCollError
from forestcoll.compile.problem import Problem
from forestcoll.graph.bound import Bound
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.graph.symmetry.group import DisjointSets
from forestcoll.schedule.certificate import check_parts
from forestcoll.schedule.dual import check_dual

NEAR = Fraction(105, 100)
"""What limits up to so many times the optimum is listed."""
MOST = Fraction(1 << 10)
"""Times their bandwidth to which links are raised, to see what limits without them."""
TURNS = 16
"""Certificates that are tried until the one that takes over is found."""
WIDTHS = 8
"""Bandwidths, the largest first, whose links are taken to join parts of a machine."""
KINDS = 6
"""Kinds of limiting links that are looked at."""

Certificate = TypeVar("Certificate")
Progress = Callable[[str, float], None]
Line = tuple[Fraction, Fraction]
"""(a, b): a certificate gives a + b x where the links are x times as wide."""


class Raised(NamedTuple, Generic[Certificate]):
    """What raising all links of one kind gives. `links`: numbers in the graph, both directions.

    `until`: times their bandwidth from which on `then` limits; None: nothing else ever does.
    `algbw`: GB/s there, which is the optimum itself where something else is as tight already.
    """

    links: tuple[int, ...]
    until: Fraction | None
    algbw: Fraction
    then: Certificate | None


def raise_kinds(
    graph: CapacityGraph,
    limiting: Iterable[int],
    grow: Callable[[tuple[int, ...]], Raised[Certificate]],
    progress: Progress | None,
) -> tuple[Raised[Certificate], ...]:
    """What `grow` says of each kind of limiting links, KINDS at most."""
    kinds, raised = kinds_of(graph, limiting)[:KINDS], []
    for done, links in enumerate(kinds):
        if progress is not None:
            progress("raising links", done / (len(kinds) + 1))
        raised.append(grow(links))
    return tuple(raised)


def take_over(
    links: tuple[int, ...],
    own: Certificate,
    algbw: Fraction,
    solve: Callable[[Fraction], tuple[Fraction, Certificate]],
    line: Callable[[Certificate], Line | None],
) -> Raised[Certificate]:
    """How far the optimum grows with the links until another certificate limits.

    `own`, `algbw`: what limits without raising. `solve`: optimum and certificate with the links so
    many times as wide.
    """
    value, other = solve(MOST)
    until = MOST
    for _ in range(TURNS):
        here, there = line(own), line(other)
        if here is None or there is None:
            break
        if here[1] <= there[1]:
            if there[1] and there[0] <= here[0]:
                return Raised(links, None, value, None)  # the same one
            return Raised(links, Fraction(1), algbw, other)
        until = max(Fraction(1), (there[0] - here[0]) / (here[1] - there[1]))
        value, tighter = solve(until)
        if value >= here[0] + here[1] * until:
            return Raised(links, until, value, other)
        other = tighter
    return Raised(links, until, solve(until)[0], other)


def widen(graph: CapacityGraph, links: Iterable[int], factor: Fraction) -> CapacityGraph:
    """The graph with these links so many times as wide."""
    raised = set(links)
    capacity = [
        c * (factor.numerator if e in raised else factor.denominator)
        for e, c in enumerate(graph.capacity)
    ]
    return replace(graph, capacity=tuple(capacity), unit=graph.unit / factor.denominator)


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


def boxes_of(graph: CapacityGraph) -> list[frozenset[int]]:
    """The nodes of each box that has ranks."""
    boxes: dict[str, set[int]] = defaultdict(set)
    for node in range(graph.n):
        boxes[graph.box(node)].add(node)
    return [frozenset(boxes[name]) for name in dict.fromkeys(map(graph.box, graph.ranks)) if name]


def levels_of(graph: CapacityGraph) -> list[list[frozenset[int]]]:
    """What links of each width and above join: boxes, packages, what is below a switch."""
    levels, ranks = [], set(graph.ranks)
    for width in sorted(set(graph.capacity), reverse=True)[:WIDTHS]:
        sets = DisjointSets(graph.n)
        for u, v, units in graph.arcs:
            if units >= width:
                sets.join(u, v)
        members: dict[int, set[int]] = defaultdict(set)
        for node, root in enumerate(sets.roots()):
            members[root].add(node)
        levels.append([frozenset(nodes) for nodes in members.values() if nodes & ranks])
    return levels


def parts_of(graph: CapacityGraph) -> Iterator[frozenset[int]]:
    """Sets of nodes that machines have: boxes, what wide links join, each GPU; each set once."""
    levels = [part for level in levels_of(graph) for part in level]
    singles = [frozenset([rank]) for rank in graph.ranks]
    yield from dict.fromkeys([*boxes_of(graph), *levels, *singles])


class OneMore(NamedTuple):
    """One more NIC a box: a second link like each of `links`; GB/s then, and what limits it."""

    links: tuple[int, ...]
    algbw: Fraction
    bound: Bound


class Explanation(NamedTuple):
    """The bound of a problem, other cuts within 5 %, and what more links would give."""

    problem: Problem
    bound: Bound
    near: tuple[Bound, ...]
    raised: tuple[Raised[Bound], ...]
    one_more: OneMore | None


def explain(problem: Problem, progress: Progress | None = None) -> Explanation:
    """The explanation of a problem's optimum, of plans whose GPUs copy and add."""
    plain = problem.plain
    bound = plain.optimum().bound
    limiting = crossing(plain.graph, bound, into=inward(plain))

    def grow(links: tuple[int, ...]) -> Raised[Bound]:
        def solve(factor: Fraction) -> tuple[Fraction, Bound]:
            best = scale(plain, links, factor).optimum().bound
            return best.algbw, best

        def line(other: Bound) -> Line | None:
            """What the certificate gives, by how wide the links are."""
            one, two = (value(scale(plain, links, Fraction(x)), other) for x in (1, 2))
            return None if one is None or two is None else (2 * one - two, two - one)

        return take_over(links, bound, bound.algbw, solve, line)

    raised = raise_kinds(plain.graph, limiting, grow, progress)
    later = [r.then for r in raised if r.then is not None]
    return Explanation(plain, bound, tuple(_near(plain, bound, later)), raised, _one_more(plain))


def value(problem: Problem, bound: Bound) -> Fraction | None:
    """GB/s that a certificate gives on the problem's graph; None where it does not hold there."""
    prove = check_dual if bound.method == "linear-program" else check_parts
    try:
        return prove(problem.graph, bound, problem.collective, problem.root)
    except ForestCollError:
        return None


def scale(problem: Problem, links: Iterable[int], factor: Fraction) -> Problem:
    """The problem with these links so many times as wide."""
    return replace(problem, graph=widen(problem.graph, links, factor))


def inward(problem: Problem) -> bool | None:
    """Whether what enters the sets of a cut counts, what leaves them, or either (None)."""
    return None if problem.collective.two_phases else problem.collective.reduces


def crossing(graph: CapacityGraph, bound: Bound, *, into: bool | None) -> list[int]:
    """The links that cross a bound's sets, in the direction that counts."""
    links = []
    for e, (u, v) in enumerate(graph.ends):
        enters = any(v in part and u not in part for part in bound.parts)
        leaves = any(u in part and v not in part for part in bound.parts)
        if (enters and into is not False) or (leaves and into is not True):
            links.append(e)
    return links


def _near(problem: Problem, bound: Bound, later: Iterable[Bound]) -> Iterator[Bound]:
    """Cuts that machines have, and what took over anywhere, within NEAR of the bound.

    Those are round each GPU, round what wide links join (boxes, packages, what is below a switch),
    and round all GPUs or all boxes at once.
    """
    graph = problem.graph
    everything = frozenset(range(graph.n))
    sides = [side for part in parts_of(graph) for side in (part, everything - part)]
    cuts = [Bound(Fraction(0), "cut", (side,)) for side in sides]
    if problem.collective.two_phases:
        singles = [frozenset([rank]) for rank in graph.ranks]
        for groups in (singles, boxes_of(graph), *levels_of(graph)):
            cuts += [Bound(Fraction(0), "partition", tuple(groups))] if len(groups) > 1 else []
    seen = {frozenset(bound.parts)}
    values: list[tuple[Fraction, int, Bound]] = []
    for number, other in enumerate([*later, *cuts]):
        key = frozenset(other.parts)
        if key in seen:
            continue
        seen.add(key)
        worth = value(problem, other)
        if worth is not None and worth <= NEAR * bound.algbw:
            values.append((worth, number, replace(other, algbw=worth)))
    yield from (other for _, _, other in sorted(values, key=lambda entry: entry[:2]))


def _one_more(problem: Problem) -> OneMore | None:
    """A second link like the first one that leads out of each box."""
    graph = problem.graph
    boxes = dict.fromkeys(graph.boxes)
    if len(boxes) < 2 or "" in boxes:
        return None
    links: list[int] = []
    for box in boxes:
        out = [
            e for e, (u, v) in enumerate(graph.ends) if graph.box(u) == box and graph.box(v) != box
        ]
        if not out:
            return None
        ends = (graph.tail[out[0]], graph.head[out[0]])
        pairs = graph.ends
        links += [e for e, pair in enumerate(pairs) if pair in (ends, ends[::-1])]
    best = scale(problem, links, Fraction(2)).optimum()
    return OneMore(tuple(links), best.algbw, best.bound)
