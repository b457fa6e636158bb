"""Why an optimum is what it is: every figure again by the solver, and in words."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from command_line import Run, fine

import forestcoll
from forestcoll.compile.problem import Problem
from forestcoll.study.explain import Explanation, explain
from forestcoll.study.explain.trees import scale, value
from forestcoll.study.explain.upgrades import NEAR

MACHINES = [
    ("dgx-a100", {"boxes": "2"}, "allgather"),
    ("dgx-a100", {"boxes": "2"}, "allreduce"),
    ("mi250", {"boxes": "2"}, "allgather"),
    ("rail", {"boxes": "3", "oversubscription": "2"}, "reduce-scatter"),
    ("ring", {"gpus": "5"}, "allreduce"),
    ("dgx-a100", {"boxes": "2"}, "broadcast"),
]


def explained(name: str, given: dict[str, str], collective: str) -> Explanation:
    return explain(Problem.of(forestcoll.load_topology(name, given), collective))


@pytest.mark.parametrize(("name", "given", "collective"), MACHINES)
def test_raised_links_give_what_the_solver_says(
    name: str, given: dict[str, str], collective: str
) -> None:
    """At `until` the optimum is `algbw`; before, the bottleneck still holds; beyond, no more.

    Other cuts are within five percent.
    """
    found = explained(name, given, collective)
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
    found = explained("dgx-a100", {"boxes": "2"}, "allreduce")
    assert found.one_more is not None
    graph = found.problem.graph
    names = [(graph.names[graph.tail[e]], graph.names[graph.head[e]]) for e in found.one_more.links]
    assert len(names) == 4
    assert all("fabric" in pair for pair in names)
    assert found.one_more.algbw == 175
    assert explained("dgx-a100", {}, "allreduce").one_more is None


EXPLAIN = ("--set", "boxes=2", "-c", "allgather", "--explain")


def said(call: Run, *words: str) -> str:
    return " ".join(fine(call("optimum", "-t", *words)).split())


def test_words(call: Run) -> None:
    out = said(call, "dgx-a100", *EXPLAIN)
    assert "bottleneck every GPU's ingress: 325 GB/s" in out
    assert "crossed by 1 link of 300 GB/s between box0/gpu0 and box0/nvswitch" in out
    assert (
        "400 GB/s at 1.167 times their bandwidth (15.4 % more), then it is every box (8 GPUs): "
        "200 GB/s"
    ) in out
    assert "16 links of 25 GB/s between box0/gpu0-7, box1/gpu0-7 and fabric: every GB/s" in out
    assert "one more NIC a box, like 2 links of 25 GB/s between box0/gpu0, box1/gpu0" in out
    why = json.loads(said(call, "dgx-a100", *EXPLAIN, "--json"))["explanation"]
    assert [raised["algbw"] for raised in why["raise"]][:1] == ["400"]
    assert why["one_more_nic"]["algbw"] == "1040/3"
    # one box with less bandwidth of its uplinks: the cut is round it alone
    out = said(call, "dgx-a100", *EXPLAIN, "--scale", "box1/gpu*-fabric=1/4")
    assert "8 links of 6.25 GB/s between box1/gpu0-7 and fabric" in out
    out = said(call, "rail", "--set", "boxes=4", "--set", "oversubscription=2", *EXPLAIN[2:])
    assert "nearly every box (8 GPUs): 400 GB/s in (533.333 GB/s, 3.3 % above)" in out


@pytest.mark.parametrize(
    ("collective", "options", "message"),
    [
        ("allgather", ("--groups", "box0/gpu[0-3];box0/gpu[4-7]"), "leave --groups away"),
        ("alltoall", ("--groups", "box0/gpu0,box0/gpu1;box0/gpu2,box0/gpu3"), "for one group"),
        ("alltoall", ("-o", "-"), "--explain and '--output -' both want standard output"),
    ],
)
def test_what_is_refused(
    call: Run, collective: str, options: tuple[str, ...], message: str
) -> None:
    code, _, error = call("optimum", "-t", "dgx-a100", "-c", collective, "--explain", *options)
    assert code == 2
    assert message in error
