"""Why an optimum is what it is: its bottleneck, the cuts nearly as tight, what more links give.

Every figure comes from a certificate that is evaluated on the graph with its links raised: a cut
grows in a straight line with the links that cross it, until another cut is the tightest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from forestcoll.common.errors import ForestCollError
from forestcoll.compile.problem import Problem
from forestcoll.graph.bound import Bound
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.schedule.certificate import check_parts
from forestcoll.schedule.dual import check_dual
from forestcoll.study.explain.upgrades import (
    NEAR,
    Line,
    Progress,
    Raised,
    boxes_of,
    levels_of,
    parts_of,
    raise_kinds,
    take_over,
    widen,
)


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
        return take_over(
            links,
            bound,
            bound.algbw,
            lambda factor: _bound(scale(plain, links, factor)),
            lambda other: _line(plain, other, links),
        )

    raised = raise_kinds(plain.graph, limiting, grow, progress)
    later = [r.then for r in raised if r.then is not None]
    return Explanation(plain, bound, tuple(_near(plain, bound, later)), raised, _one_more(plain))


def _bound(problem: Problem) -> tuple[Fraction, Bound]:
    bound = problem.optimum().bound
    return bound.algbw, bound


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


def _line(problem: Problem, bound: Bound, links: tuple[int, ...]) -> Line | None:
    """What the certificate gives, by how wide the links are."""
    one, two = (value(scale(problem, links, Fraction(x)), bound) for x in (1, 2))
    return None if one is None or two is None else (2 * one - two, two - one)


def _near(problem: Problem, bound: Bound, later: Iterable[Bound]) -> Iterator[Bound]:
    """Cuts of the structure, and what took over anywhere, within NEAR of the bound."""
    seen = {frozenset(bound.parts)}
    values: list[tuple[Fraction, int, Bound]] = []
    for number, other in enumerate([*later, *_structure(problem)]):
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
            e for e, (u, v) in enumerate(graph.ends) if graph.box(u) == box and graph.box(v) != box
        ]
        if not out:
            return None
        ends = (graph.tail[out[0]], graph.head[out[0]])
        pairs = graph.ends
        links += [e for e, pair in enumerate(pairs) if pair in (ends, ends[::-1])]
    best = scale(problem, links, Fraction(2)).optimum()
    return OneMore(tuple(links), best.algbw, best.bound)
