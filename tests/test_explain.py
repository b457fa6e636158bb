"""Why an optimum is what it is: every figure again by the solver, and in words."""

from __future__ import annotations

from fractions import Fraction

import pytest
from graphs import machine

from forestcoll.compile.problem import Problem
from forestcoll.study.explain.trees import NEAR, Explanation, explain, scale, value

MACHINES = [
    ("dgx-a100 boxes=2", "allgather"),
    ("dgx-a100 boxes=2", "allreduce"),
    ("mi250 boxes=2", "allgather"),
    ("rail boxes=3 oversubscription=2", "reduce-scatter"),
    ("ring gpus=5", "allreduce"),
    ("dgx-a100 boxes=2", "broadcast"),
]


def explained(text: str, collective: str) -> Explanation:
    return explain(Problem.of(machine(text), collective))


@pytest.mark.parametrize(("text", "collective"), MACHINES)
def test_raised_links_give_what_the_solver_says(text: str, collective: str) -> None:
    """At `until` the optimum is `algbw`; before, the bottleneck still holds; beyond, no more.

    Other cuts are within five percent.
    """
    found = explained(text, collective)
    best = found.bound.algbw
    for other in found.near:
        assert best <= other.algbw <= NEAR * best
        assert value(found.problem, other) == other.algbw
        assert other.parts != found.bound.parts
    assert found.raised
    for raised in found.raised:
        if raised.then is None or raised.until is None:
            assert scale(found.problem, raised.links, Fraction(2)).optimum().algbw > best
            continue
        at = scale(found.problem, raised.links, raised.until)
        assert at.optimum().bound.algbw == raised.algbw
        assert value(at, raised.then) == raised.algbw
        if raised.until > 1:
            assert raised.algbw > best
            assert value(at, found.bound) == raised.algbw
            half = (1 + raised.until) / 2
            before = scale(found.problem, raised.links, half)
            assert before.optimum().bound.algbw == value(before, found.bound)
            beyond = scale(found.problem, raised.links, 2 * raised.until)
            there = value(beyond, found.bound)
            assert there is not None
            assert beyond.optimum().bound.algbw < there


def test_a_second_nic_is_doubled_in_every_box() -> None:
    found = explained("dgx-a100 boxes=2", "allreduce")
    assert found.one_more is not None
    graph = found.problem.graph
    names = [(graph.names[graph.tail[e]], graph.names[graph.head[e]]) for e in found.one_more.links]
    assert len(names) == 4
    assert all("fabric" in pair for pair in names)
    assert found.one_more.algbw == 175
    assert explained("dgx-a100", "allreduce").one_more is None
