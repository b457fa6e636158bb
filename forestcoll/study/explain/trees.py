"""Why an optimum is what it is: its bottleneck, the cuts nearly as tight, what more links give.

Every figure comes from a certificate that is evaluated on the graph with its links raised: a cut
grows in a straight line with the links that cross it, until another cut is the tightest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from forestcoll.common.errors import ForestCollError
from forestcoll.compile.problem import Problem
from forestcoll.graph.bound import Bound
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.schedule.certificate import check_parts
from forestcoll.schedule.dual import check_dual
from forestcoll.study.explain.upgrades import (
    KINDS,
    NEAR,
    Line,
    boxes_of,
    kinds_of,
    levels_of,
    parts_of,
    take_over,
    widen,
)

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
    return replace(problem, graph=widen(problem.graph, links, factor))


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


def _raise(problem: Problem, bound: Bound, links: tuple[int, ...]) -> Raised:
    """How far the bound grows with the links until another certificate is below it."""

    def solve(factor: Fraction) -> tuple[Fraction, Bound]:
        found = scaled(problem, links, factor).optimum().bound
        return found.algbw, found

    def line(other: Bound) -> Line | None:
        return _line(problem, other, links)

    return Raised(links, *take_over(bound, bound.algbw, solve, line))


def _line(problem: Problem, bound: Bound, links: tuple[int, ...]) -> Line | None:
    """What the certificate gives, by how wide the links are."""
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
    for part in parts_of(graph):
        for side in (part, everything - part):
            yield Bound(Fraction(0), "cut", (side,))
    if problem.collective.two_phases:
        singles = [frozenset([rank]) for rank in graph.ranks]
        for groups in (singles, boxes_of(graph), *levels_of(graph)):
            if len(groups) > 1:
                yield Bound(Fraction(0), "partition", tuple(groups))


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
